"""What a headline states lies in its own band, and everything that sums to the step stays simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import compare, simulate
from parsim.report.definitions import DEFINITIONS
from parsim.report.estimate import Confidence
from parsim.report.page.page import page
from parsim.report.quantities import seconds
from parsim.report.report import Report
from parsim.scenario import files
from parsim.scenario.build import build
from parsim.scenario.confidence import Features, KnownRun, confidence, confidence_of
from parsim.scenario.load import load

BANDED = "gpt2-ddp-4x-a100"
KEYS = [
    "step_time_s", "step_time_band_s", "tokens_per_s", "mfu", "time_to_train_s", "cost_to_train", "peak_bytes", "peak_band_bytes", "of",
]  # fmt: skip


@pytest.fixture(name="report", scope="module")
def report_fixture() -> Report:
    return simulate(BANDED, "training.tokens=1B", "economics.gpu_hour=2")


@given(st.lists(st.tuples(*[st.floats(-0.5, 1.0)] * 3, st.sampled_from("abc"), st.integers(1, 4096)), max_size=40))
def test_the_estimate_is_inside_the_band(rows: list[tuple[float, float, float, str, int]]) -> None:
    """Whatever the published runs say, of times and of memory."""
    like = Features("A100", "ampere", "pytorch-2", "bf16", "data", 8, 1e9)
    runs = [
        KnownRun(f"{place}", family, family, replace(like, gpus=gpus), left_out, calibrated, memory)
        for place, (left_out, calibrated, memory, family, gpus) in enumerate(rows)
    ]
    sure = Confidence(**confidence_of(like, runs))
    if not rows:
        assert (sure.step, sure.step_ratio, sure.memory, sure.memory_ratio) == (None, 1.0, None, 1.0)
    else:
        assert sure.step[0] <= sure.step_ratio <= sure.step[1]
        assert sure.memory[0] <= sure.memory_ratio <= sure.memory[1]


@pytest.mark.parametrize("name", files.names("scenarios"))
def test_so_it_is_for_every_scenario_that_ships(name: str) -> None:
    """All have a band but those whose stage times are given: nothing but the order of their schedule is predicted."""
    built = build(load(name))
    sure = confidence(built)
    given_times = built.model.facts.get("family") == "stages"
    for factors, ratio in (("step", "step_ratio"), ("memory", "memory_ratio")):
        assert (factors in sure) != given_times
        low, high = sure.get(factors) or (1.0, 1.0)
        assert low <= sure.get(ratio, 1.0) <= high


def test_the_block_of_a_report(report: Report) -> None:
    document = report.document()
    found, sure = document["estimate"], report.measured.confidence
    assert list(found) == KEYS
    r = found["step_time_s"] / document["step_time_s"]
    assert r == pytest.approx(sure.step_ratio)
    assert r != 1.0
    assert found["of"] == "bands"
    assert found["step_time_band_s"] == document["confidence"]["step_time_s"]
    assert found["step_time_band_s"][0] <= found["step_time_s"] <= found["step_time_band_s"][1]
    for key in ("tokens_per_s", "mfu"):
        assert found[key] * r == pytest.approx(document[key])
    for key in ("time_to_train_s", "cost_to_train"):
        assert found[key] == pytest.approx(r * document[key])
    assert sum(document["breakdown_s"].values()) == pytest.approx(document["step_time_s"], rel=1e-9)
    assert document["tokens_per_s"] * document["step_time_s"] == pytest.approx(32 * 1024)


def test_without_a_band_it_is_what_was_simulated() -> None:
    document = simulate("pipeline-unit-1f1b").document()
    found = document["estimate"]
    assert (found["of"], found["step_time_s"], found["step_time_band_s"]) == ("simulation", document["step_time_s"], None)


def test_headlines_state_the_estimate_and_the_simulated_beside(report: Report) -> None:
    document = report.document()
    estimate, simulated = document["estimate"], f"simulated {seconds(document['step_time_s'])}"
    low, high = (seconds(value) for value in estimate["step_time_band_s"])
    said = f"step {seconds(estimate['step_time_s'])} (80 % range: {low} to {high}; {simulated})"
    assert seconds(estimate["step_time_s"]) != seconds(document["step_time_s"])
    assert said in report.verdict
    assert said in repr(report)
    html = page([("run", report)])
    assert f"Step {seconds(estimate['step_time_s'])} ({simulated}), " in html
    assert f"likely range (80 %): {low} to {high}" in html
    assert 'href="#def-estimate"' in html
    assert 'data-key="estimate.step_time_s"' in html
    assert simulated in html
    assert "step time, estimated" in report._repr_html_()
    assert DEFINITIONS["estimate"].text


def test_compare_ranks_by_estimates() -> None:
    """Published runs on MI300X lie higher above their simulation: what is simulated fastest is not what is expected to be."""
    found = compare("llama-7b-zero3-8x-a100", vary={"cluster.topology": ["mi300x-8", "gcp-a3-high"]})
    simulated, estimated = ([run.document["step_time_s"] for run in found], [run.document["estimate"]["step_time_s"] for run in found])
    assert simulated[0] < simulated[1]
    assert estimated[0] > estimated[1]
    assert found.winner is not None
    assert (found.winner.place, found.winner.criterion) == (1, "estimate.step_time_s")
    assert f"{seconds(estimated[1])} per step, simulated {seconds(simulated[1])}" in found.verdict
    assert "step time, simulated" in str(found)
