"""Fitting: a device whose times the model itself made is found again; what the rows do not tell stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parsim.calibration.calibrate import checked, described, summary
from parsim.calibration.fit import fit
from parsim.calibration.measurements import (
    CollectiveTime,
    Copy,
    Core,
    DeviceFacts,
    MeasuredProduct,
    MeasuredTables,
    OptimizerStep,
    Timing,
    best_rate,
    catalogue_name,
    streaming_rate,
    timing,
)
from parsim.hardware.device import device_from_tree
from parsim.hardware.kernels import attention_time, gemm_time, kernel_time
from parsim.kernel import AdamStep, Attention, Gemm, Memory
from parsim.validation.published_collectives import measurements

START = {
    "name": "plain",
    "memory": {"size": "80 GiB", "bandwidth": "1 TB/s", "l2": "40 MiB"},
    "compute": {"sms": 100, "peak": {"fp32": "10 TFLOP/s", "bf16": "100 TFLOP/s"}},
    "gemm": {"efficiency": 0.8},
    "attention": {"flash2": {"forward": 0.6, "backward": 0.5, "s_half": 210, "d64": 0.9}},
}
SHAPES = [Gemm(m, n, k) for m in (512, 2048, 8192) for n in (1024, 4096, 12288) for k in (256, 1024, 4096, 16384)]


def products(device, shapes=SHAPES):
    rows = []
    for shape in shapes:
        for step in ("forward", "backward_weight"):
            one = replace(shape, weight_gradient=step == "backward_weight")
            rows.append(MeasuredProduct(one, step, Timing(gemm_time(device, one))))
    return rows


def test_fit_finds_the_device_that_made_the_times():
    truth = device_from_tree(
        START | {"gemm": {"efficiency": 0.7, "k_half": 300, "wave_quantisation": 0.4, "tile_128": 0.6, "weight_gradient": 0.9}}
    )
    found = fit(device_from_tree(START), MeasuredTables(gemm=products(truth)))
    gemm = found.device.gemm
    assert gemm.efficiency == pytest.approx(0.7, rel=0.01)
    assert gemm.k_half == pytest.approx(300, rel=0.05)
    assert gemm.weight_gradient == pytest.approx(0.9, rel=0.01)
    assert found.gemm.median < 0.005
    assert found.gemm.p90 < 0.02
    assert found.at_bounds == ()


def test_each_type_has_its_own_efficiency_and_what_was_not_measured_stays():
    start = device_from_tree(START)
    rows = [MeasuredProduct(replace(shape, dtype="fp32", element=4), "forward", Timing(0.0)) for shape in SHAPES[:12]]
    truth = replace(start, gemm=replace(start.gemm, efficiency=0.5))
    rows = [MeasuredProduct(row.shape, "forward", Timing(gemm_time(truth, row.shape))) for row in rows]
    found = fit(start, MeasuredTables(gemm=rows)).device
    assert found.gemm.of("fp32") == pytest.approx(0.5, rel=0.02)
    assert found.gemm.weight_gradient == start.gemm.weight_gradient  # no weight gradient was measured
    assert found.attention == start.attention
    assert found.memory_efficiency == start.memory_efficiency


def test_efficiencies_stay_physical_and_say_so():
    start = device_from_tree(START)
    rows = [MeasuredProduct(row.shape, row.step, Timing(row.time.seconds / 3)) for row in products(start)]  # faster than the peak
    found = fit(start, MeasuredTables(gemm=rows))
    assert found.device.gemm.efficiency <= 1.0
    assert "gemm.efficiency bf16" in found.at_bounds
    assert "On the edge of what is physical" in "\n".join(summary(found, MeasuredTables(gemm=rows)))


def test_one_strange_row_does_not_bend_the_rest():
    start = device_from_tree(START)
    rows = products(start)
    rows[7] = MeasuredProduct(rows[7].shape, rows[7].step, Timing(30 * rows[7].time.seconds))
    found = fit(start, MeasuredTables(gemm=rows))
    assert found.device.gemm.efficiency == pytest.approx(0.8, rel=0.02)
    assert found.gemm.median < 0.02


def test_attention_fit():
    truth = device_from_tree(START | {"attention": {"flash2": {"forward": 0.45, "backward": 0.35, "s_half": 400, "d64": 0.8}}})
    shapes = [
        Attention(max(1, 16384 // s), 32, 32, s, s, d, causal=True, backward=back)
        for s in (512, 2048, 8192)
        for d in (64, 128)
        for back in (False, True)
    ]
    rows = [Core(shape, Timing(attention_time(truth, shape))) for shape in shapes]
    found = fit(device_from_tree(START), MeasuredTables(attention=rows))
    table = found.device.attention["flash2"]
    assert (table.forward, table.backward, table.d64) == (
        pytest.approx(0.45, rel=0.02),
        pytest.approx(0.35, rel=0.02),
        pytest.approx(0.8, rel=0.02),
    )
    assert table.s_half == pytest.approx(400, rel=0.1)
    assert found.attention.worst < 0.01


def test_timing_is_the_median_and_the_distance_of_the_quartiles():
    assert timing([5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0]) == Timing(4.5, (6.0 - 3.0) / 4.5)
    assert timing([3.0]) == Timing(3.0, 0.0)
    assert timing([2.0, 4.0]) == Timing(3.0, 2.0 / 3.0)


TABLES = MeasuredTables(
    gemm=[
        MeasuredProduct(Gemm(256, 512, 1024, 1, "fp32", 4), "forward", Timing(3e-3, 0.01)),
        MeasuredProduct(Gemm(256, 1024, 512, 1, "fp32", 4), "backward_input", Timing(3.1e-3, 0.02)),
        MeasuredProduct(Gemm(512, 1024, 256, 1, "fp32", 4, weight_gradient=True), "backward_weight", Timing(3.2e-3, 0.03)),
    ],
    attention=[Core(Attention(1, 4, 4, 256, 256, 64, causal=True, implementation="mem-efficient", dtype="fp32"), Timing(2e-3))],
    copy=[Copy(2**20, Timing(50e-6)), Copy(2**24, Timing(1e-3))],
    optimizer=[OptimizerStep("fused", 10**6, Timing(2e-3)), OptimizerStep("foreach", 10**6, Timing(8e-3))],
    kernel=Timing(2e-6),
    issue=Timing(2.5e-6),
    collectives=[CollectiveTime("all_reduce", 2, 65536, Timing(4e-4, 0.1), "Gloo through PyTorch")],
    date="2026-01-02",
    versions={"torch": "2.13.0+cpu"},
    source="parsim calibrate --device cpu",
)
CPU = DeviceFacts("CPU Example 9000", 16 * 2**30, 2, 32 * 2**20, 0.0, "", ("fp32",))


def test_rates_by_hand():
    assert best_rate(TABLES.gemm, "fp32") == 2 * 256 * 512 * 1024 / 3e-3
    assert best_rate(TABLES.gemm, "bf16") == 0.0
    assert streaming_rate(TABLES.copy) == 2**24 / 1e-3
    assert TABLES.optimizer[0].bytes == 28 * 10**6


def test_the_written_device_loads_and_answers_with_the_measured_times():
    result = described(CPU, TABLES, "my machine")
    device = checked(result.yaml, "x.yaml")
    assert (device.name, device.sms, device.memory, device.kernel_latency) == ("my machine", 2, 16 * 2**30, 2e-6)
    assert device.bandwidth == pytest.approx(2**24 / 1e-3, rel=1e-5)
    assert device.peak["fp32"] == pytest.approx(2 * 256 * 512 * 1024 / 3e-3, rel=1e-5)
    for row in (*TABLES.gemm, *TABLES.attention):
        assert kernel_time(device, row.shape) == pytest.approx(row.time.seconds, rel=1e-5)
    assert kernel_time(device, Memory(2**20)) == pytest.approx(50e-6)
    assert kernel_time(device, AdamStep(84e6, 0.0, 12, "foreach", 28e6)) == pytest.approx(8e-3)
    assert device.measured.launch.issue == 2.5e-6
    assert (device.measured.date, device.measured.versions) == ("2026-01-02", {"torch": "2.13.0+cpu"})


def test_a_gpu_of_the_catalogue_keeps_its_datasheet():
    gpu = DeviceFacts("NVIDIA A100-SXM4-80GB", 85094039552, 108, 40 * 2**20, 8.0, "NVIDIA", ("bf16",))
    tables = MeasuredTables(gemm=[MeasuredProduct(Gemm(8192, 8192, 8192), "forward", Timing(4.4e-3))], date="2026-01-02", source="here")
    device = checked(described(gpu, tables, "A100, rack 7").yaml, "x.yaml")
    assert (device.peak["bf16"], device.bandwidth, device.tdp, device.nvlink) == (312e12, 2039e9, 400.0, "nvlink3")
    assert kernel_time(device, Gemm(8192, 8192, 8192)) == pytest.approx(4.4e-3)
    assert 2 * 8192**3 / (312e12 * device.gemm.efficiency) < 4.4e-3


def test_rows_that_cannot_be_true_are_left_out_and_said():
    gpu = DeviceFacts("NVIDIA A100-SXM4-80GB", 85094039552, 108, 40 * 2**20, 8.0, "NVIDIA", ("bf16",))
    right = MeasuredProduct(Gemm(8192, 8192, 8192), "forward", Timing(4.4e-3))
    fast = MeasuredProduct(Gemm(4096, 8192, 8192), "forward", Timing(1.0e-3))
    tables = MeasuredTables(gemm=[fast, right], copy=[Copy(2**30, Timing(1e-6))], date="2026-01-02", source="here")
    result = described(gpu, tables, "A100")
    assert result.tables.gemm == [right]
    assert result.tables.copy == []
    assert len(result.tables.notes) == 2
    # 2 x 4096 x 8192 x 8192 FLOP in 1 ms
    assert "5.498e+11 FLOP / 0.001 s = 549.8 TFLOP/s, above the device's bf16 peak of 312 TFLOP/s" in result.yaml
    assert checked(result.yaml, "x.yaml").peak["bf16"] == 312e12


@pytest.mark.parametrize(
    ("name", "memory", "sms", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 85094039552, 108, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 42406903808, 108, "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", 85094039552, 108, "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", 85029158912, 132, "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", 85029158912, 114, "h100-pcie-80gb"),
        ("NVIDIA H200", 150110011392, 132, "h200-sxm-141gb"),
        ("Tesla V100-SXM2-32GB", 34072559616, 80, "v100-sxm2-32gb"),
        ("Tesla T4", 15828320256, 40, "t4-16gb"),
        ("NVIDIA GeForce RTX 3090", 25438126080, 82, "rtx-3090-24gb"),
        ("NVIDIA GeForce RTX 3080", 10_000_000_000, 68, "rtx-3080-10gb"),
        ("CPU AMD EPYC", 2**34, 2, None),
    ],
)
def test_names_of_drivers(name, memory, sms, expected):
    assert catalogue_name(name, memory, sms) == expected


def test_collectives_are_written_so_that_they_can_be_compared(tmp_path):
    result = described(CPU, TABLES, "my machine")
    (tmp_path / "x.yaml").write_text(result.yaml, encoding="utf-8")
    folder = tmp_path / "x-collectives"
    folder.mkdir()
    for name, text in result.collective_files(tmp_path / "x.yaml").items():
        (folder / name).write_text(text, encoding="utf-8")
    (point,) = measurements(folder).points
    assert (point.system, point.kind, point.gpus, point.bytes, point.time) == ("my-machine", "all_reduce", 2, 65536, pytest.approx(4e-4))
    assert measurements(folder).systems["my-machine"].cluster(1).gpus == 2
