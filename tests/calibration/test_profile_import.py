"""Traces of the PyTorch profiler: a GPU one by hand, every figure worked out; a real one of this machine; broken ones."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.calibration.calibrate import checked
from parsim.calibration.kineto import parse_trace, read_trace
from parsim.calibration.measurements import MeasuredProduct, MeasuredTables, Timing
from parsim.calibration.profile import _TF32, _as_tf32, import_profile, tables_of
from parsim.cli import execute
from parsim.errors import InputError
from parsim.hardware.kernels import kernel_time
from parsim.kernel import Attention, Gemm
from parsim.validation.published_collectives import measurements

SAMPLE = Path(__file__).parent.parent / "data" / "kineto" / "gpu-step.json"


@pytest.fixture(scope="module")
def tables():
    return tables_of(read_trace(SAMPLE), "test")


def test_products_with_their_passes(tables):
    found = {(row.shape.m, row.shape.n, row.shape.k, row.shape.dtype, row.step): row.time.seconds for row in tables.gemm}
    assert found == {
        (4096, 16384, 4096, "bf16", "forward"): pytest.approx(2400e-6),
        # two kernels, one of them the reduction of split K, tied to the operation by the launch's time only
        (4096, 4096, 16384, "bf16", "forward"): pytest.approx(2360e-6),
        (16384, 4096, 4096, "bf16", "backward_weight"): pytest.approx(2500e-6),
        (4096, 4096, 16384, "bf16", "backward_input"): pytest.approx(2350e-6),
        (1024, 1024, 1024, "tf32", "forward"): pytest.approx(41e-6),  # the median of 40, 44, 41
    }
    assert all(row.shape.weight_gradient == (row.step == "backward_weight") for row in tables.gemm)


def test_attention_kernels(tables):
    shape = {"batch": 2, "heads": 32, "kv_heads": 8, "queries": 2048, "keys": 2048, "head_dim": 128, "causal": True}
    assert [(row.shape, row.time.seconds) for row in tables.attention] == [
        (Attention(**shape), pytest.approx(520e-6)),
        (Attention(**shape, backward=True), pytest.approx(1400e-6)),
    ]


def test_copies_and_launches(tables):
    (copy,) = tables.copy
    assert (copy.bytes, copy.time.seconds) == (2 * 134217728, pytest.approx(165e-6))  # read and written
    assert tables.notes == ["HtoD copies: 1, up to 24.0 GB/s (no table of a device, see its PCIe link)"]
    assert tables.kernel.seconds == pytest.approx(2.1e-6)


def test_collectives_count_as_nccl_tests_do(tables):
    found = {(row.kind, row.ranks, row.bytes): row.time.seconds for row in tables.collectives}
    assert found == {
        # 8,388,608 elements of 2 B from each of 8 ranks: the output counts
        ("all_gather", 8, 2 * 67108864): pytest.approx(560e-6),
        ("all_reduce", 8, 2 * 67108864): pytest.approx(1090e-6),  # the call that waited least
        ("reduce_scatter", 8, 4 * 67108864): pytest.approx(1080e-6),
    }


def test_the_device_of_the_trace_gets_the_times(tmp_path, capsys):
    out = tmp_path / "mine.yaml"
    assert execute(["import", "profile", str(SAMPLE), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"Wrote {out}, a device file.\n")
    device = checked(out.read_text(encoding="utf-8"), "mine.yaml")
    assert (device.name, device.peak["bf16"], device.measured.date) == ("A100 SXM 80GB, measured", 312e12, "2026-01-02")
    assert kernel_time(device, Gemm(4096, 16384, 4096)) == pytest.approx(2400e-6)
    data = measurements(tmp_path / "mine-collectives")
    assert {(point.kind, round(point.busbw / 1e9, 1)) for point in data.points} == {
        ("all_reduce", 215.5),  # 134,217,728 B / 1090 us x 2 x 7 / 8
        ("all_gather", 209.7),  # 134,217,728 B / 560 us x 7 / 8
        ("reduce_scatter", 217.5),
    }
    assert execute(["validate", "nccl", "--data", str(tmp_path / "mine-collectives"), "--json"]) == 0
    # once more to the same place: nothing is overwritten
    assert execute(["import", "profile", str(SAMPLE), "--out", str(out)]) == 2


def test_another_device_and_json(tmp_path, capsys):
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(SAMPLE.read_bytes()))
    assert execute(["import", "profile", str(packed), "--gpu", "h100", "--name", "mine", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["device"]["name"] == "mine"
    assert document["device"]["compute"]["sms"] == 132
    assert len(document["device"]["measured"]["gemm"]) == 5
    assert execute(["import", "profile", str(packed), "--gpu", "v100"]) == 0
    captured = capsys.readouterr()
    assert "the trace was recorded on NVIDIA A100-SXM4-80GB, its times are put on V100 SXM2 32GB\n" in captured.err
    assert "left out: kernels in bf16, tf32: V100 SXM2 32GB has no such peak\n" in captured.err
    assert "flash2:" not in captured.out
    assert execute(["import", "profile", str(packed), "--gpu", "l40s"]) == 0
    capsys.readouterr()
    assert execute(["import", "profile", str(packed), "--gpu", "t4"]) == 0
    capsys.readouterr()
    assert execute(["import", "profile", str(packed), "--gpu", "rtx-3090"]) == 2
    assert "above the device's bf16 peak of " in capsys.readouterr().err
    assert execute(["import", "profile", str(packed), "--gpu", "a1000"]) == 2
    assert "unknown device 'a1000'; did you mean" in capsys.readouterr().err


def test_a_real_trace_of_this_machine(torch, tmp_path):
    from torch.profiler import ProfilerActivity, profile

    layer = torch.nn.Linear(96, 160)
    x = torch.randn(64, 96, requires_grad=True)
    q = torch.randn(2, 4, 128, 32, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(3):
            layer(x).square().sum().backward()
            torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
            torch.bmm(torch.randn(3, 8, 16), torch.randn(3, 16, 4))
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    result = import_profile(str(path))
    assert not result.whole  # a CPU trace does not name its device
    found = {(row.shape.m, row.shape.n, row.shape.k, row.shape.batch, row.step) for row in result.tables.gemm}
    assert found == {
        (64, 160, 96, 1, "forward"),
        (64, 96, 160, 1, "backward_input"),
        (160, 96, 64, 1, "backward_weight"),
        (8, 4, 16, 3, "forward"),
    }
    shape = {"batch": 2, "heads": 4, "kv_heads": 4, "queries": 128, "keys": 128, "head_dim": 32, "causal": True, "dtype": "fp32"}
    cores = [Attention(**shape, implementation="mem-efficient", backward=back) for back in (False, True)]
    assert [row.shape for row in result.tables.attention] == cores
    # the times are those that PyTorch itself sums up
    averages = {row.key: row for row in recorded.key_averages()}
    own = averages["aten::addmm"].cpu_time_total / averages["aten::addmm"].count * 1e-6
    (forward,) = [row.time.seconds for row in result.tables.gemm if row.step == "forward" and row.shape.batch == 1]
    assert 0 < forward <= 3 * own


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "neither operations nor kernels"),
        ("7", "no traceEvents"),
        ('{"traceEvents": 3}', "no traceEvents"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": 1, "dur": 2}]}',
            "no matrix product with its shape (operations: 1)",
        ),
    ],
)
def test_no_trace_is_an_error_of_the_user(text, says, tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    assert execute(["import", "profile", str(path)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert str(path) in error


def test_files_that_cannot_be_read(tmp_path, capsys):
    broken = tmp_path / "t.json.gz"
    broken.write_bytes(gzip.compress(SAMPLE.read_bytes())[:500])
    for path in (tmp_path / "none.json", tmp_path, broken):
        assert execute(["import", "profile", str(path)]) == 2
    assert "internal error" not in capsys.readouterr().err


def test_shapes_that_were_not_recorded_are_said(tmp_path):
    whole = json.loads(SAMPLE.read_text(encoding="utf-8"))
    for event in whole["traceEvents"]:
        event["args"].pop("Input Dims", None)
    found = tables_of(parse_trace(json.dumps(whole).encode(), "t"), "t")
    assert found.gemm == []
    assert "7 matrix products carry no shapes; record with torch.profiler.profile(record_shapes=True)" in found.notes


odd = st.one_of(
    st.none(),
    st.integers(-5, 5),
    st.text(max_size=3),
    st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.text(max_size=2), st.none(), max_size=1),
)


@given(st.data())
def test_odd_values_never_crash(data):
    whole = json.loads(SAMPLE.read_text(encoding="utf-8"))
    for _ in range(3):
        event = data.draw(st.sampled_from(whole["traceEvents"]))
        holder = data.draw(st.sampled_from([event, event["args"] if isinstance(event.get("args"), dict) and event["args"] else event]))
        holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(odd)
    with contextlib.suppress(InputError):
        tables_of(parse_trace(json.dumps(whole).encode(), "t"), "t")


def test_products_of_fp32_operands_beyond_the_peak_are_tf32():
    """2 x 4096^3 FLOP in 1.4 ms are 98 TFLOP/s: five times what an A100 has in fp32, and less than its TF32."""
    tables = MeasuredTables(source="test")
    large, small = (
        MeasuredProduct(Gemm(size, size, size, 1, "fp32", 4), "forward", Timing(time)) for size, time in ((4096, 1.4e-3), (64, 1e-5))
    )
    tables.gemm = [large, small]
    _as_tf32(tables, {"fp32": "19.5 TFLOP/s", "tf32": "156 TFLOP/s"}, "A100")
    assert [row.shape.dtype for row in tables.gemm] == ["tf32", "fp32"]
    assert tables.notes == ["1 products of fp32 operands run at up to 98.2 TFLOP/s, A100 has 19.5 in fp32: they are TF32 products"]


def test_the_instruction_tells_tf32_kernels():
    assert _TF32.search("cutlass_80_tensorop_s1688gemm_128x128_32x3_tn_align4")
    assert _TF32.search("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n")
    assert not _TF32.search("ampere_sgemm_128x64_tn")
