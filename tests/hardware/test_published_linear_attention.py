"""Kernels of linear attention against published times: validation/gemm/linear_attention.csv, and two measurements of Mamba-2's."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import pytest
from hardware_graphs import device

from parsim.hardware.kernels import kernel_time
from parsim.kernel import ChunkScan, Kernel
from parsim.model.linear_attention import LinearAttention
from parsim.model.workload import Workload

FILE = Path(__file__).parent.parent.parent / "validation" / "gemm" / "linear_attention.csv"
ROWS = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))
TIMED = [row for row in ROWS if int(row["batch"]) * int(row["sequence"]) * int(row["heads"]) > 2**18 and float(row["both_ms"]) < 50]
"""without those that wait for the host, and an artifact"""


def core(kind: str, heads: int, groups: int, width: int, keys: int = 0, chunk: int = 64) -> LinearAttention:
    return LinearAttention("core", ("mixed", "projected"), "o", kind, heads, groups, keys or width, width, chunk)


def milliseconds(gpu: str, kernels: Iterable[Kernel]) -> float:
    """Of the core alone: neither norms nor decays before it, nor the convolution."""
    return 1e3 * sum(kernel_time(device(gpu), kernel) for kernel in kernels if isinstance(kernel, ChunkScan))


def errors(rows: list[dict[str, str]]) -> tuple[list[float], list[float]]:
    """Predicted over measured time less one, forward and backward."""
    forward, backward = [], []
    for row in rows:
        heads, width, took = int(row["heads"]), int(row["width"]), float(row["forward_ms"])
        layer = core(row["kernel"], heads, heads, width)
        work = layer.work(Workload(int(row["batch"]), int(row["sequence"])))
        forward.append(milliseconds(row["device"], work.forward) / took - 1)
        backward.append(milliseconds(row["device"], work.backward_input) / (float(row["both_ms"]) - took) - 1)
    return forward, backward


@pytest.mark.parametrize(
    ("kernel", "most", "mean"), [("retention", 0.36, 0.16), ("gla", 0.50, 0.32), ("gated-delta", 0.27, 0.08), ("kda", 0.20, 0.10)]
)
def test_flash_linear_attention(kernel: str, most: float, mean: float) -> None:
    found = [abs(error) for of_a_pass in errors([row for row in TIMED if row["kernel"] == kernel]) for error in of_a_pass]
    assert len(found) >= 14
    assert max(found) < most
    assert sum(found) / len(found) < mean


def test_mamba_2() -> None:
    """8,192 tokens of 128 heads in one group, forward, on an H100 (vLLM's copy of the kernels); 64 in eight, both ways, on a GH200."""
    tokens = Workload(1, 8192)
    assert milliseconds("h100-sxm-80gb", core("mamba2", 128, 1, 64, 128, 128).work(tokens).forward) == pytest.approx(0.649, rel=0.01)
    work = core("mamba2", 64, 8, 64, 128, 128).work(tokens)
    assert milliseconds("gh200-96gb", (*work.forward, *work.backward_input)) == pytest.approx(0.393e3 / 8 / 23, rel=0.03)
