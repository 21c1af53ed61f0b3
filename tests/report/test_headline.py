"""The answer in three short lines: what each says, number by number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parsim import simulate
from parsim.report import Report
from parsim.report.quantities import gib, percent, seconds


def test_three_lines_of_a_run_with_a_band():
    report = simulate("gpt2-xl-gpipe-4x-v100")
    said, worst, estimate = report.headline, report.worst_device, report.estimate
    low, high = estimate.step_time_band_s
    waits, rate = report.bubble * report.step_time, f"{estimate.tokens_per_s:,.0f}"
    assert said.lines == (
        f"Fits: {gib(worst.device_used_bytes)} of {gib(report.capacity(worst))} GiB usable on V100 SXM2 32GB",
        f"Step {seconds(estimate.step_time_s)} (simulated {seconds(report.step_time)}), {rate} tokens/s, MFU {percent(estimate.mfu)}",
        f"Limited by compute; largest loss: bubble, {seconds(waits)} ({percent(report.bubble)})",
    )
    assert (said.badge, said.band) == ("validated", f"likely range (80 %): {seconds(low)} to {seconds(high)}")


def test_what_does_not_fit_says_by_how_much_and_what_is_largest():
    report = simulate("llama-7b-ddp-8x-a100")
    worst = report.worst_device
    used, capacity = worst.device_used_bytes, report.capacity(worst)
    fits, speed, limit = report.headline.lines
    assert fits == f"Does not fit: {gib(used)} of {gib(capacity)} GiB usable on A100 SXM 80GB, {gib(used - capacity)} GiB too much"
    assert speed.startswith("If it fitted: step ")
    assert limit == f"Limited by memory; largest part: optimizer states, {gib(worst.at_peak['optimizer'])} GiB"


def test_the_gpu_of_a_mixed_job_is_named_with_its_rank_and_a_tight_fit_is_called_one(run, make_pipeline, make_measured):
    mixed = simulate("llama-7b-zero1-mixed-h100-a100")
    rank = mixed.worst_device.rank
    assert mixed.headline.memory.endswith(f"usable on {mixed.measured.profiled.gpus[rank].name} (rank {rank})")
    measured = make_measured(run(make_pipeline(4, 8)), 4)
    sure = replace(measured.confidence, memory=(0.9, 2.0))
    report = Report(replace(measured, confidence=sure))
    used = report.worst_device.device_used_bytes
    assert report.headline.memory == f"Fits, but tight: 24.5 of 40.0 GiB usable on rank 0; {gib(2 * used)} GiB is within the model's error"


def test_stage_times_have_neither_tokens_nor_mfu():
    report = simulate("pipeline-unit-1f1b")  # four stages, eight micro-batches, 3 s each: 3 * (8 + 3) s
    assert report.headline.speed == "Step 33 s, 0.242 samples/s"  # 8 / 33
    assert report.headline.limit == "Limited by compute; largest loss: bubble, 9 s (27 %)"  # 3 / 11
    assert report.headline.badge == "unvalidated"


def test_the_mean_of_many_runs_is_said_to_be_one():
    report = simulate("gpt2-ddp-4x-a100", "variability.runs=3", "variability.seed=1", "variability.jitter.kernel=0.1")
    varied = report.measured.variability
    assert varied is not None
    assert report.headline.speed.startswith(
        f"Step {seconds(varied.expected)} in the mean of 3 {varied.over} (undisturbed {seconds(report.step_time)}), "
    )
    assert report.headline.band == "no published run was predicted with this variability"


@pytest.mark.parametrize("name", ["gpt2-ddp-4x-a100", "llama-7b-ddp-8x-a100"])
def test_the_sentence_of_before_is_made_of_the_same_words(name):
    report = simulate(name)
    assert report.verdict.endswith(report.loss)
