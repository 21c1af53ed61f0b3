"""The JSON document: every key of the contract, numbers that agree with each other, words that are honest."""

from __future__ import annotations

import json

import pytest

from parsim.errors import Finding, InputError
from parsim.program.program import Collective, Lane, Program
from parsim.report import DeviceMemory, MemoryFacts, ModelFacts, RankClass, Ranks, Report, ScheduleFacts
from parsim.report.definitions import DEFINITIONS, explain
from parsim.report.measured import MemoryCurve, compress_ranges
from parsim.report.quantities import gib, number, percent, seconds, time_unit
from parsim.report.steady import steady_period
from parsim.report.timeline import KEYS, Timeline
from parsim.simulation.trace import LinkUse

GIB = 2**30

CONTRACT = {
    "": "parsim version provenance scenario ranks experts model step_time_s makespan_s estimate variability slow_gpu period_s samples_per_s"
    " tokens_per_s tokens_per_s_per_gpu model_tflops_per_gpu hardware_tflops_per_gpu mfu hfu bubble_fraction bubble_over_ideal"
    " bubble_fraction_theory breakdown_rank bottleneck_rank breakdown_s critical_path_s limiter_kind limiter memory schedule"
    " collectives links unused_links confidence"
    " cost energy_J time_to_train_s gpu_hours goodput steps_to_train gpu_hours_billed cost_per_step cost_per_million_tokens"
    " cost_per_million_samples cost_to_train energy_per_step_J energy_per_token_J co2_kg economics"
    " training_run plan assumptions warnings simulation",
    "estimate": "step_time_s step_time_band_s tokens_per_s mfu time_to_train_s cost_to_train peak_bytes peak_band_bytes of",
    "provenance": "catalogue_sha256 command trusted_code python",
    "ranks": "total tensor context data pipeline expert expert_tensor expert_data outer micro_batches nodes idle_gpus",
    "model": "parameters parameters_padded parameters_active parameters_trainable flop_per_step flop_convention",
    "breakdown_s": "compute recompute tensor_comm data_comm pipeline_comm context_comm expert_comm optimizer offload launch bubble other",
    "memory": "capacity_bytes reserve_bytes fits headroom_bytes peak_allocated_bytes peak_reserved_bytes peak_device_used_bytes peak_bytes"
    " host_bytes at_save_bytes bytes_per_parameter host devices",
    "memory.devices": "rank ranks count stage peak_bytes allocated_bytes reserved_bytes device_used_bytes method peak_time_s peak_op"
    " resident_bytes at_peak in_flight_micro_batches weight_versions",
    "memory.devices.at_peak": "parameters gradients optimizer activations buffers temporaries workspace context communicators"
    " fragmentation",
    "schedule": "name stages virtual_stages layers_per_stage stage_time_s",
    "schedule.stage_time_s": "forward backward_input backward_weight",
    "collectives": "kind axis group_size count bytes busy_s exposed_s wait_s algorithm protocol algbw_Bps busbw_Bps",
    "links": "link kind count capacity_Bps bytes utilisation saturated_s",
    "confidence": "status step_time_s peak_bytes basis rows sources left_out_error features nearest",
    "assumptions": "name value source origin effect",
    "warnings": "path message",
    "simulation": "folded ranks ranks_simulated ops events wall_s seed",
}


@pytest.fixture(name="report")
def report_fixture(run, make_pipeline, make_measured):
    trace = run(make_pipeline(4, 8, send=0.25, optimizer=0.5), {0: LinkUse(2.4e11, 0.5)})
    return Report(make_measured(trace, 4, warnings=(Finding("long", "training.sequence_length", suggestion="write 2048"),)))


def test_the_document_has_exactly_the_keys_of_the_contract(report):
    document = report.document()
    for path, keys in CONTRACT.items():
        found = document
        for part in filter(None, path.split(".")):
            found = found[part]
            found = found[0] if isinstance(found, list) else found
        assert list(found) == keys.split(), path
    assert list(document["critical_path_s"]) == list(KEYS)


def test_the_document_survives_json(report):
    document = report.document()
    assert json.loads(report.to_json()) == document
    assert document["warnings"] == [{"path": "training.sequence_length", "message": "long; write 2048"}]
    assert document["links"][0]["utilisation"] == pytest.approx(1.0 / report.step_time)
    assert document["unused_links"] == 4
    assert document["simulation"]["ops"] == len(report.timeline.program.ops)
    assert isinstance(document["links"][0]["bytes"], int)


def test_numbers_agree_with_each_other(report):
    document = report.document()
    step = document["step_time_s"]
    assert step == document["makespan_s"] == report.timeline.makespan
    assert document["period_s"] is None
    assert sum(document["breakdown_s"].values()) == pytest.approx(step, abs=1e-9)
    assert sum(document["critical_path_s"].values()) == pytest.approx(step, abs=1e-9)
    assert document["mfu"] == pytest.approx(6e14 / (step * 4 * 312e12))
    assert document["hfu"] / document["mfu"] == pytest.approx(4 / 3)
    assert document["model_tflops_per_gpu"] == pytest.approx(document["mfu"] * 312)
    assert document["tokens_per_s"] == pytest.approx(4 * document["tokens_per_s_per_gpu"])
    assert document["samples_per_s"] * 2048 == pytest.approx(document["tokens_per_s"])
    for device in document["memory"]["devices"]:
        assert sum(device["at_peak"].values()) == device["peak_bytes"]
    assert document["memory"]["headroom_bytes"] == 40 * GIB - document["memory"]["peak_bytes"]


def test_the_verdict_of_a_pipeline_names_its_bubble(run, make_pipeline, make_measured):
    report = Report(make_measured(run(make_pipeline(4, 8)), 4))
    assert report.verdict == (
        "fits: 24.5 of 40.0 GiB (26.3 GB); step 33 s; 27 % bubble, 0 % exposed communication; biggest lever:"
        " bubble, at most 9 s (27 %): micro-batches 8 → 16 take the ideal bubble from 27 % to 16 %"
    )
    assert report.limiter_kind == "compute"
    assert report.limiter.startswith("compute: 100 % of the critical path (33 s of 33 s)")
    assert report.breakdown_rank == 0
    assert report.bubble == pytest.approx(3 / 11)


def test_a_naive_pipeline_is_limited_by_its_bubble(run, make_pipeline, make_measured):
    report = Report(make_measured(run(make_pipeline(4, 1)), 4, micro_batches=1))
    assert report.bubble == pytest.approx(0.75)
    assert report.limiter_kind == "bubble"
    assert report.limiter.startswith("bubble: the average rank waits 75 % of the step")


def test_an_uneven_pipeline_is_not_told_to_use_more_micro_batches(run, make_pipeline, make_measured):
    program = make_pipeline(4, 16)
    program = program.with_durations([op.duration * (4.0 if op.lanes[0].rank == 3 else 1.0) for op in program.ops])
    report = Report(make_measured(run(program), 4, micro_batches=16))
    assert report.bottleneck_rank == 3
    assert report.limiter_kind == "bubble"
    assert report.limiter.endswith("stage 3 computes 2.3 times the mean")
    assert report.verdict.endswith("stage 3 computes 2.3 times the mean; split the work more evenly")


def test_too_much_memory_is_the_limit_and_the_lever(run, make_pipeline, make_measured):
    report = Report(make_measured(run(make_pipeline(4, 8)), 4, capacity=24 * GIB))
    assert not report.fits
    assert report.headroom == -GIB // 2
    assert report.limiter_kind == "memory"
    assert report.limiter == "memory: rank 0 (stage 0) needs 24.5 GiB of 24.0 GiB; optimizer states, 12.0 GiB, are the largest part"
    assert report.verdict.startswith("does not fit: 24.5 of 24.0 GiB (26.3 GB), 0.50 GiB too much on rank 0 (stage 0); step 33 s")
    assert "shard the optimizer states" in report.verdict


def test_a_reserve_and_a_smaller_device_count(run, make_pipeline, make_measured):
    trace = run(make_pipeline(2, 4))
    small = DeviceMemory(0, GIB, GIB, GIB, {"parameters": GIB}, capacity_bytes=2 * GIB)
    large = DeviceMemory(1, 30 * GIB, 30 * GIB, 30 * GIB, {"parameters": 30 * GIB})
    memory = MemoryFacts(40 * GIB, (small, large), reserve_bytes=GIB // 2)
    report = Report(make_measured(trace, 2, memory=memory))
    assert report.fits
    assert report.headroom == GIB // 2
    assert report.worst_device is small
    assert report.peak_memory == 30 * GIB


def single_gpu(run, make_measured, kinds, **more):
    program = Program()
    for kind, duration in kinds:
        collective = Collective("all_reduce", "tensor", (0, 1), 8) if kind == "tensor_comm" else None
        program.add(kind, kind, (Lane(0, "compute"),), duration=duration, collective=collective)
    return Report(
        make_measured(
            run(program),
            1,
            ranks=Ranks(),
            classes=(RankClass(0, (0,)),),
            schedule=ScheduleFacts(),
            **more,
        )
    )


@pytest.mark.parametrize(
    ("kinds", "limit", "lever"),
    [
        ([("compute", 5.0), ("tensor_comm", 4.0)], "compute", "tensor-parallel communication, at most 4 s (44 %)"),
        ([("compute", 1.0), ("tensor_comm", 4.0)], "tensor_comm", "tensor-parallel communication, at most 4 s (80 %)"),
        ([("compute", 4.0), ("recompute", 2.0)], "compute", "recomputation, at most 2 s (33 %)"),
        ([("compute", 1.0), ("optimizer", 2.0)], "optimizer", "the optimizer step, at most 2 s (67 %)"),
        ([("compute", 1.0)], "compute", "none but compute itself"),
        ([("compute", 1.0), ("reading", 1.0)], "compute", "other work, at most 1 s (50 %)"),
    ],
)
def test_limits_and_levers_come_from_the_critical_path(run, make_measured, kinds, limit, lever):
    report = single_gpu(run, make_measured, kinds)
    assert report.limiter_kind == limit
    assert f"biggest lever: {lever}" in report.verdict


def test_compute_that_waits_for_memory_is_memory_bandwidth(run, make_measured):
    facts = ModelFacts(1, 1, 1, 1.0, 1.0, 1.0, 1, memory_bound_fraction=0.7)
    report = single_gpu(run, make_measured, [("compute", 1.0)], model=facts)
    assert report.limiter_kind == "memory_bandwidth"
    assert report.limiter.endswith("more than half of it waits for HBM")
    assert report.tokens_per_s is None
    assert report.document()["tokens_per_s_per_gpu"] is None


def test_what_the_report_notices_is_a_warning(run, make_measured):
    bad = MemoryFacts(GIB, (DeviceMemory(0, 1, 1, 5, {"parameters": 4}),))
    report = single_gpu(run, make_measured, [("reading", 1.0)], memory=bad)
    assert [finding.path for finding in report.warnings] == ["report", "memory"]
    assert "reading" in report.warnings[0].message
    assert "sums to 4 B" in report.warnings[1].message


def test_an_empty_step_has_no_rates(run, make_measured):
    report = single_gpu(run, make_measured, [])
    document = report.document()
    assert document["step_time_s"] == 0.0
    assert document["mfu"] is None
    assert document["bubble_fraction"] is None
    json.dumps(document, allow_nan=False)


def test_pipedream_reports_the_steady_window(run, make_pipeline, make_measured):
    """p = 4, m = 8: makespan 33 s started empty, step 24 s, no bubble."""
    trace = run(make_pipeline(4, 32, send=0.0))
    window = steady_period(Timeline(trace), 8)
    report = Report(make_measured(trace, 4, micro_batches=8, window=window, steps_simulated=4.0))
    document = report.document()
    assert document["step_time_s"] == pytest.approx(24.0)
    assert document["makespan_s"] == pytest.approx(33.0)
    assert document["period_s"] == pytest.approx(3.0)
    assert document["bubble_fraction"] == pytest.approx(0.0, abs=1e-12)
    assert sum(document["breakdown_s"].values()) == pytest.approx(24.0, abs=1e-9)
    assert sum(document["critical_path_s"].values()) == pytest.approx(24.0, abs=1e-9)


def test_a_window_shorter_than_the_step_is_scaled(run, make_pipeline, make_measured):
    trace = run(make_pipeline(4, 16, send=0.5))
    window = steady_period(Timeline(trace), 64)
    report = Report(make_measured(trace, 4, micro_batches=64, window=window, steps_simulated=0.25))
    assert window.micro_batches < 64
    assert report.step_time == pytest.approx(64 * window.period)
    assert sum(report.breakdown.values()) == pytest.approx(report.step_time, abs=1e-9)
    (row,) = report.collectives
    assert row.count == 128  # rank 0 sends 64 activations and receives 64 gradients per step


def test_folded_classes_weigh_by_their_count(run, make_pipeline, make_measured):
    trace = run(make_pipeline(2, 4))
    classes = (RankClass(0, (0, 1, 2, 3), stage=0), RankClass(1, (4, 5, 6, 7), stage=1))
    report = Report(make_measured(trace, 2, classes=classes, ranks=Ranks(total=8, data=4, pipeline=2, micro_batches=4), folded=True))
    document = report.document()
    assert [(row["ranks"], row["count"]) for row in document["memory"]["devices"]] == [("0-3", 4), ("4-7", 4)]
    assert document["simulation"]["ranks"] == 8
    assert document["simulation"]["ranks_simulated"] == 2
    assert document["bubble_fraction"] == pytest.approx(0.2)


def test_tables_are_flat(report):
    tables = report.tables
    assert {row["key"]: row["breakdown_s"] for row in tables["breakdown"]} == report.breakdown
    assert tables["memory"][0]["at_peak_activations"] == 8 * GIB
    assert all(not isinstance(value, (dict, list)) for rows in tables.values() for row in rows for value in row.values())


def test_reports_show_themselves(report):
    assert "fits" in repr(report)
    shown = report._repr_html_()
    assert shown.startswith("<div ")
    assert "pipeline_comm" in shown


def test_ranges_are_compressed():
    assert compress_ranges([0, 1, 2, 3, 8]) == "0-3,8"
    assert compress_ranges([5, 3, 4, 9, 3]) == "3-5,9"
    assert compress_ranges([7]) == "7"
    assert compress_ranges([]) == ""
    assert compress_ranges([1, 3, 5]) == "1,3,5"


def test_every_number_is_defined():
    assert explain("mfu").unit == "fraction"
    assert "6 N + 12 L h s" in str(explain("mfu"))
    described = set(DEFINITIONS)
    assert {"step_time_s", "breakdown_s", "critical_path_s", "bubble_fraction", "collectives", "links", "peak_bytes"} <= described
    with pytest.raises(InputError, match="did you mean 'bubble_fraction'"):
        explain("bubble_fracton")


def test_a_share_that_missed_0_by_rounding_is_0_percent():
    assert percent(1.5e-16) == percent(0.0)


def test_a_thinned_curve_keeps_its_peak():
    count = 50_000
    levels = [GIB] * count
    levels[31_337] = 9 * GIB
    curve = MemoryCurve([i * 1e-3 for i in range(count)], {"activations": levels, "parameters": [GIB] * count})
    times, thin = curve.thinned(1_000)
    assert len(times) <= 1_100
    assert list(thin) == ["parameters", "activations"]
    assert thin["activations"].max() == 9 * GIB
    assert times[thin["activations"].argmax()] == pytest.approx(31.337)
    assert (times[0], times[-1]) == (0.0, pytest.approx(49.999))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (seconds(1.42), "1.42 s"),
        (seconds(None), "–"),
        (gib(61.3 * GIB), "61.3"),
        (gib(9.996 * GIB), "10.0"),
        (gib(0), "0.00"),
        (percent(0.18), "18 %"),
        (percent(0.0943), "9.4 %"),
        (percent(0.0), "0 %"),
        (percent(1e-5), "0.0 %"),
        (number(147690.0), "147,690"),
        (number(1.25), "1.25"),
        (time_unit(21.3).name, "s"),
        (time_unit(0.5).cell(0.0123), "12.30"),
        (time_unit(1e-3).name, "µs"),
    ],
)
def test_numbers_as_people_read_them(text, expected):
    assert text == expected
