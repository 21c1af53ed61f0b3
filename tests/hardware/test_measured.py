"""Measured tables of a device: what was measured, what lies near it, what lies far, and what is said about wrong tables."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hardware_graphs import build_cluster, device
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import TopologyError
from parsim.hardware.device import device_from_tree
from parsim.hardware.kernels import attention_time, gemm_time, kernel_time, memory_time
from parsim.hardware.measured import LARGEST_RATIO, Curve
from parsim.kernel import AdamStep, Attention, Gemm, Memory
from parsim.parallel.optimizer import step_kernels
from parsim.parallel.training import Optimizer
from parsim.run import simulate
from parsim.scenario.precision import PRESETS

PLAIN = {
    "name": "plain",
    "memory": {"size": "80 GiB", "bandwidth": "1 TB/s", "efficiency": 1.0, "l2_gain": 0.0},
    "compute": {"sms": 100, "peak": {"fp32": "10 TFLOP/s", "bf16": "100 TFLOP/s"}},
    "gemm": {"efficiency": 0.5},
    "attention": {"flash2": {"forward": 0.5, "backward": 0.4, "s_half": 200, "d64": 0.8}},
    "kernel_latency": "2 us",
}


def with_tables(**tables):
    return device_from_tree(PLAIN | {"measured": tables})


def row(gemm, seconds, **more):
    return {"m": gemm.m, "n": gemm.n, "k": gemm.k, "dtype": gemm.dtype, "time": f"{seconds!r} s"} | more


SQUARE = Gemm(4096, 4096, 4096)
TABLE_FREE = device_from_tree(PLAIN)
ANALYTIC = gemm_time(TABLE_FREE, SQUARE)


def test_a_measured_product_takes_its_measured_time():
    card = with_tables(gemm=[row(SQUARE, 1.5 * ANALYTIC, spread=0.01)])
    assert kernel_time(card, SQUARE) == pytest.approx(1.5 * ANALYTIC, rel=1e-12)
    # of another type, or accumulating into a gradient, it is another kernel
    for other in (replace(SQUARE, weight_gradient=True), replace(SQUARE, dtype="fp32", element=4)):
        assert kernel_time(card, other) == gemm_time(TABLE_FREE, other)


def test_a_product_measured_in_both_passes_counts_as_the_geometric_mean():
    rows = [row(SQUARE, 2e-3), row(SQUARE, 8e-3, **{"pass": "backward_input"}), row(SQUARE, 5e-3, **{"pass": "backward_weight"})]
    card = with_tables(gemm=rows)
    assert kernel_time(card, SQUARE) == pytest.approx(4e-3, rel=1e-12)
    assert kernel_time(card, replace(SQUARE, weight_gradient=True)) == pytest.approx(5e-3, rel=1e-12)


@pytest.mark.parametrize(("k", "trust"), [(4096 * 2, 1.0), (4096 * 3, 2 - math.log2(3)), (4096 * 4, 0.0), (4096 * 16, 0.0)])
def test_one_row_corrects_its_neighbours_up_to_a_factor_of_four(k, trust):
    card = with_tables(gemm=[row(SQUARE, 1.5 * ANALYTIC)])
    near = Gemm(4096, 4096, k)
    assert kernel_time(card, near) == pytest.approx(gemm_time(TABLE_FREE, near) * 1.5**trust, rel=1e-12)


def test_between_two_rows_by_hand():
    left, right, middle = Gemm(4096, 4096, 2048), Gemm(4096, 4096, 8192), SQUARE
    rows = [row(left, 1.2 * gemm_time(TABLE_FREE, left)), row(right, 1.8 * gemm_time(TABLE_FREE, right))]
    # both are one octave away and weigh the same: the geometric mean of the ratios
    assert kernel_time(with_tables(gemm=rows), middle) == pytest.approx(ANALYTIC * math.sqrt(1.2 * 1.8), rel=1e-12)
    # half an octave from the left one and 1.5 from the right: (1/0.5 - 1/2)^2 = 2.25 and (1/1.5 - 1/2)^2 = 1/36
    aside = Gemm(4096, 4096, round(2048 * math.sqrt(2)))
    weights = (2.25, 1 / 36)
    ratio = math.exp((weights[0] * math.log(1.2) + weights[1] * math.log(1.8)) / sum(weights))
    assert kernel_time(with_tables(gemm=rows), aside) == pytest.approx(gemm_time(TABLE_FREE, aside) * ratio, rel=1e-3)


def test_ratios_of_neighbours_are_bounded_and_nothing_beats_the_peak():
    slow = with_tables(gemm=[row(SQUARE, 50 * ANALYTIC)])
    near = Gemm(4096, 4096, 4160)
    assert kernel_time(slow, near) == pytest.approx(LARGEST_RATIO * gemm_time(TABLE_FREE, near), rel=1e-12)
    fast = with_tables(gemm=[row(SQUARE, SQUARE.flop / 120e12)])
    assert kernel_time(fast, SQUARE) == pytest.approx(SQUARE.flop / 120e12)
    assert kernel_time(fast, near) == pytest.approx(near.flop / 100e12)


sizes = st.integers(64, 20000)


@settings(max_examples=100, deadline=None)
@given(sizes, sizes, sizes, st.lists(st.tuples(sizes, sizes, sizes, st.floats(0.5, 3)), min_size=1, max_size=6, unique_by=lambda x: x[:3]))
def test_interpolated_ratios_stay_between_those_of_the_rows_and_one(m, n, k, measured):
    rows = [(Gemm(*dims), ratio * gemm_time(TABLE_FREE, Gemm(*dims))) for *dims, ratio in measured]
    rows = [(gemm, max(seconds, gemm.flop / 100e12)) for gemm, seconds in rows]
    card = with_tables(gemm=[row(*entry) for entry in rows])
    ratios = [1.0, *(seconds / gemm_time(TABLE_FREE, gemm) for gemm, seconds in rows)]
    found = kernel_time(card, Gemm(m, n, k)) / gemm_time(TABLE_FREE, Gemm(m, n, k))
    assert min(ratios) * (1 - 1e-9) <= found <= max(ratios) * (1 + 1e-9)


def test_attention_table():
    core = Attention(batch=2, heads=16, kv_heads=16, queries=2048, keys=2048, head_dim=128, causal=True)
    entry = {"batch": 2, "heads": 16, "queries": 2048, "head_dim": 128, "implementation": "flash2", "dtype": "bf16", "time": "3 ms"}
    card = with_tables(attention=[entry, entry | {"pass": "backward", "time": "9 ms"}])
    assert kernel_time(card, core) == pytest.approx(3e-3, rel=1e-12)
    assert kernel_time(card, replace(core, backward=True)) == pytest.approx(9e-3, rel=1e-12)
    longer = replace(core, queries=4096, keys=4096)  # sqrt(2) octaves away
    ratio = (3e-3 / attention_time(TABLE_FREE, core)) ** (2 - math.sqrt(2))
    assert kernel_time(card, longer) == pytest.approx(attention_time(TABLE_FREE, longer) * ratio, rel=1e-12)
    assert kernel_time(card, replace(core, causal=False)) == attention_time(TABLE_FREE, replace(core, causal=False))


def test_copies_set_the_rate_of_memory_bound_work():
    card = with_tables(copy=[{"bytes": "1 MiB", "time": "4 us"}, {"bytes": "16 MiB", "time": "32 us"}])
    assert kernel_time(card, Memory(2**20)) == pytest.approx(4e-6)
    assert kernel_time(card, Memory(3 * 2**24, launches=3)) == pytest.approx(96e-6)
    assert kernel_time(card, Memory(2**22)) == pytest.approx(math.sqrt(4e-6 * 32e-6))  # the middle in log space
    assert kernel_time(card, Memory(2**28)) == pytest.approx(16 * 32e-6)  # the bandwidth of the largest
    assert kernel_time(card, Memory(2**19)) == pytest.approx(2e-6 + 2e-6 / 2)  # half the time above the launch
    assert kernel_time(card, Memory(0, launches=4)) == pytest.approx(4 * 2e-6)
    assert kernel_time(card, Memory(2**24, launches=0)) == pytest.approx(30e-6)  # inside another kernel: no launch


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 2**30), min_size=2, max_size=2, unique=True))
def test_a_curve_of_growing_times_grows(pair):
    curve = Curve([(2.0**10, 2e-6), (2.0**16, 3e-6), (2.0**24, 40e-6)])
    low, high = sorted(pair)
    assert curve.time(low, 1e-6) <= curve.time(high, 1e-6)


def test_optimizer_steps_follow_their_implementation():
    rows = [
        {"kernels": "fused", "parameters": 10**6, "bytes": "28 MB", "time": "30 us"},
        {"kernels": "foreach", "bytes": "28 MB", "time": "90 us"},
    ]
    card = with_tables(optimizer=rows)
    fp32 = PRESETS["fp32"]
    for name, seconds in (("fused", 30e-6), ("foreach", 90e-6)):
        (step,) = step_kernels(Optimizer("adamw", name, clip_gradients=False), fp32, 10**6, 8 * 10**6, 10)
        # 4 B of gradient, and weight and two moments read and written: 4 + 3 x 8 = 28 B per parameter
        assert step == AdamStep((1.0 if name == "fused" else 20 / 7) * 28e6, 12e6, 1 if name == "fused" else 12, name, 28e6)
        assert kernel_time(card, step) == pytest.approx(seconds)
        assert kernel_time(TABLE_FREE, step) == memory_time(TABLE_FREE, step)
    (half,) = step_kernels(Optimizer("adamw", "fused", clip_gradients=False), PRESETS["pure-bf16"], 10**6, 4 * 10**6, 10)
    assert half == AdamStep(14e6, 12e6, 1, "fused", 14e6, vector=342e6)
    (other,) = step_kernels(Optimizer("lion", "fused", clip_gradients=False), fp32, 10**6, 4 * 10**6, 10)
    assert not isinstance(other, AdamStep)


def test_launch_is_the_latency_where_none_is_written():
    launch = {"kernel": "3 us", "issue": "7 us"}
    tree = {key: value for key, value in PLAIN.items() if key != "kernel_latency"} | {"measured": {"launch": launch}}
    found = device_from_tree(tree)
    assert (found.kernel_latency, found.measured.launch.issue) == (3e-6, 7e-6)
    assert device_from_tree(tree | {"kernel_latency": "1 us"}).kernel_latency == 1e-6


def test_without_tables_nothing_changes():
    assert TABLE_FREE.measured is None
    assert device("a100-sxm-80gb").measured is None
    empty = with_tables(gemm=[], date="2026-01-02")
    assert kernel_time(empty, SQUARE) == ANALYTIC
    assert empty.measured.date == "2026-01-02"


GOOD_ROW = {"m": 512, "n": 512, "k": 512, "dtype": "bf16", "time": "10 us"}
WRONG = {
    "an unknown table": ({"gem": []}, "gem", "unknown key", "did you mean 'gemm'?"),
    "no list": ({"gemm": {"m": 1}}, "gemm", "expected a list of rows", "lines of their own"),
    "no mapping": ({"gemm": [GOOD_ROW, 7]}, "gemm.1", "one measured row", ""),
    "no time": ({"gemm": [{**GOOD_ROW, "time": None}]}, "gemm.0.time", "missing", ""),
    "no unit": ({"gemm": [{**GOOD_ROW, "time": 12}]}, "gemm.0.time", "has no unit", "write the unit"),
    "no size": ({"gemm": [{**GOOD_ROW, "k": 0}]}, "gemm.0.k", "whole number from 1", ""),
    "a type without a peak": ({"gemm": [{**GOOD_ROW, "dtype": "fp16"}]}, "gemm.0.dtype", "not one of fp32, bf16", "compute.peak"),
    "an unknown pass": ({"gemm": [{**GOOD_ROW, "pass": "forwards"}]}, "gemm.0.pass", "not one of", "did you mean 'forward'?"),
    "too fast": (
        {"gemm": [{**GOOD_ROW, "time": "10 ns"}]},
        "gemm.0.time",
        "2.684e+08 FLOP / 1e-08 s = 26.84 PFLOP/s, above the device's bf16 peak of 100 TFLOP/s",
        "is the unit right?",
    ),
    "twice": ({"gemm": [GOOD_ROW, {**GOOD_ROW, "time": "11 us"}]}, "gemm.1", "same shape as", "keep one"),
    "attention without an efficiency": (
        {"attention": [{"heads": 4, "queries": 64, "head_dim": 64, "implementation": "cudnn", "dtype": "bf16", "time": "9 us"}]},
        "attention.0.implementation",
        "'cudnn' is not one of flash2",
        "describe it under attention",
    ),
    "uneven heads": (
        {
            "attention": [
                {"heads": 4, "kv_heads": 3, "queries": 9, "head_dim": 64, "implementation": "flash2", "dtype": "bf16", "time": "9 us"}
            ]
        },
        "attention.0.kv_heads",
        "4 % 3 = 1",
        "",
    ),
    "a copy beyond any cache": (
        {"copy": [{"bytes": "1 GiB", "time": "1 us"}]},
        "copy.0.time",
        "1.074e+09 B / 1e-06 s = 1.074 PB/s, 1074 times the memory's 1 TB/s",
        "is the unit right?",
    ),
    "a copy twice": ({"copy": [{"bytes": "1 MiB", "time": "3 us"}] * 2}, "copy.1", "same size", "keep one"),
    "an unknown step": (
        {"optimizer": [{"bytes": "1 MiB", "time": "3 us", "kernels": "loop"}]},
        "optimizer.0.kernels",
        "not one of fused, foreach",
        "",
    ),
    "launch without a kernel": ({"launch": {"issue": "3 us"}}, "launch.kernel", "missing", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_are_findings(name):
    tables, path, message, suggestion = WRONG[name]
    with pytest.raises(TopologyError) as caught:
        device_from_tree(PLAIN | {"measured": tables})
    (finding,) = caught.value.findings
    assert finding.path == f"device.measured.{path}"
    assert message in finding.message
    assert suggestion in finding.suggestion


DEVICE_FILE = """\
name: Mine
memory: {size: 32 GiB, bandwidth: 900 GB/s}
compute: {sms: 80, peak: {fp32: 15 TFLOP/s, fp16: 125 TFLOP/s}}
measured:
  date: 2026-01-02
  gemm:
    - {m: 512, n: 512, k: 512, dtype: fp16, time: 20 us}
    - {m: 512, n: 512, k: 1024, dtype: fp16, time: 20}
    - {m: 512, n: 512, k: 2048, dtype: bf16, time: 60 us}
"""
SCENARIO = """\
model: {input: {shape: [512], dtype: fp16}, layers: [{linear: {out: 512}}]}
cluster: {topology: {gpu: ./mine.yaml, count: 1}}
training: {global_batch: 512, micro_batch: 512, precision: fp16}
"""


def test_findings_stand_at_their_place_in_the_device_file(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(DEVICE_FILE, encoding="utf-8")
    (tmp_path / "job.yaml").write_text(SCENARIO, encoding="utf-8")
    with pytest.raises(TopologyError) as caught:
        simulate(tmp_path / "job.yaml")
    found = [(Path(finding.file).name, finding.line, finding.column, finding.path) for finding in caught.value.findings]
    assert found == [("mine.yaml", 8, 46, "measured.gemm.1.time"), ("mine.yaml", 9, 33, "measured.gemm.2.dtype")]


def test_a_measured_product_moves_the_step_time(tmp_path: Path):
    text = "".join(line for line in DEVICE_FILE.splitlines(keepends=True) if "1024" not in line and "bf16" not in line)
    (tmp_path / "job.yaml").write_text(SCENARIO, encoding="utf-8")
    times = []
    for seconds in (20, 220):
        (tmp_path / "mine.yaml").write_text(text.replace("20 us", f"{seconds} us"), encoding="utf-8")
        times.append(simulate(tmp_path / "job.yaml", "software.host.graphs=true").document()["step_time_s"])
    # forward, and none for the input's gradient of the first layer
    assert times[1] - times[0] == pytest.approx(200e-6, rel=1e-9)


def test_a_changed_device_is_not_the_measured_one():
    tree = PLAIN | {"measured": {"gemm": [row(SQUARE, 2 * ANALYTIC)], "copy": [{"bytes": "1 MiB", "time": "4 us"}]}}

    def change(**device_change):
        return build_cluster("1x plain", device_lookup=lambda name: tree, overrides={"device": device_change}).device(0)

    with pytest.warns(UserWarning, match=r"measured times \(copy\) of plain are not used: cluster.set.device.memory.bandwidth"):
        faster = change(memory={"bandwidth": "x2"})
    assert kernel_time(faster, Memory(2**20)) == pytest.approx(2**20 / 2e12 + 2e-6)
    assert kernel_time(faster, SQUARE) == pytest.approx(2 * ANALYTIC)
    with pytest.warns(UserWarning, match=r"\(gemm\)"):
        slower = change(compute={"peak": {"bf16": "x0.5"}})
    assert kernel_time(slower, SQUARE) == pytest.approx(2 * (ANALYTIC - 2e-6) + 2e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert change(memory="40 GiB").measured is not None
