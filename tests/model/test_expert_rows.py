"""Rows of experts that narrow products take: filled up to a multiple, half of it on average; counts by hand."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.kernel import Gemm, Memory
from parsim.model.low_precision import DEEPSEEK, TORCHAO, TRANSFORMER_ENGINE, Quantisation
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Work
from parsim.model.workload import Workload

T, TOP, EXPERTS, K, N = 1000, 2, 8, 256, 512
COPIES = T * TOP


def experts(casts: Quantisation | None, split: Any = "column") -> tuple[GroupedLinear, Workload, Work]:
    at = Workload(1, T, dtype=casts.products if casts is not None else "bf16", quantisation=casts, fused=True, expert_tensor=1)
    operator = GroupedLinear("up", ("x",), "y", K, N, EXPERTS, TOP, split)
    return operator, at, operator.work(at)


@pytest.mark.parametrize(
    ("recipe", "library", "multiple", "saved"),
    [
        ("delayed", TRANSFORMER_ENGINE, 16, 1),
        ("blockwise", TRANSFORMER_ENGINE, 16, 1.03125),
        ("mxfp8", TRANSFORMER_ENGINE, 32, 1.03125),
        ("nvfp4", TRANSFORMER_ENGINE, 64, 0.5625),
        ("deepseek-v3", DEEPSEEK, 128, 1.03125),
        ("mxfp8", TORCHAO, 32, 0),
        ("rowwise", TORCHAO, 16, 0),
    ],
)
def test_rows_of_an_expert(recipe: str, library: str, multiple: int, saved: float) -> None:
    operator, at, work = experts(Quantisation(recipe, library, tn_only=False, caches_weights=True))
    rows = COPIES // EXPERTS + multiple // 2
    sides = [next(kernel for kernel in kernels if isinstance(kernel, Gemm)) for kernels in (work.forward, work.backward_input)]
    assert [gemm.m for gemm in sides] == [rows, rows]
    assert next(kernel for kernel in work.backward_weight if isinstance(kernel, Gemm)).k == rows
    assert operator.filled(at) == COPIES / (EXPERTS * rows)
    kept = next(save.bytes for save in work.saves if save.until == "weight")
    assert kept == (round(EXPERTS * rows * K * saved) if saved else COPIES * K * 2)


def test_bf16_takes_any_number_of_rows() -> None:
    operator, at, work = experts(None)
    assert [kernel.m for kernel in work.forward if isinstance(kernel, Gemm)] == [COPIES // EXPERTS]
    assert operator.filled(at) == 1.0
    assert not any(isinstance(kernel, Memory) for kernel in (*work.forward, *work.backward_input))


@pytest.mark.parametrize(("split", "width"), [("column", K), ("row", N)])
def test_transformer_engine_copies_into_rows_and_out_of_them(split: str, width: int) -> None:
    """Before the first product and behind the second; torchao's rows are filled up where tokens are put in order."""
    copy = Memory(2 * COPIES * width * 2)
    _, _, work = experts(Quantisation("mxfp8", TRANSFORMER_ENGINE, tn_only=False, caches_weights=True), split)
    forward, backward = (0, -1) if split == "column" else (-1, 0)
    assert (work.forward[forward], work.backward_input[backward]) == (copy, copy)
    _, _, other = experts(Quantisation("mxfp8", TORCHAO, tn_only=False, caches_weights=False), split)
    assert copy not in (*other.forward, *other.backward_input)


@pytest.mark.parametrize(
    ("dispatcher", "forward", "backward", "launches"), [("alltoall", 12, 16, (17, 33)), ("hybridep", 28, 40, (18, 42))]
)
def test_megatron_adds_the_weighted_bias_expert_by_expert(dispatcher: str, forward: int, backward: int, launches: tuple[int, int]) -> None:
    """bf16: b p (2), t + b p (6), cat (4); .. cat (4), g p and its sum (6), g b and its sum (6).

    Weights in fp32: 4, 10, 8, cast (6); casts (6, 6), 4, 12, 12. What PyTorch does element by element, and its sums, are bound by issue.
    """
    at = Workload(1, T, fused=True, expert_tensor=1, dispatcher=dispatcher)
    work = GroupedLinear("down", ("x",), "y", K, N, EXPERTS, TOP, "row", bias=True).work(at)
    for kernels, size, count in ((work.forward, forward, launches[0]), (work.backward_input, backward, launches[1])):
        added = [kernel for kernel in kernels if isinstance(kernel, Memory)]
        assert (sum(kernel.bytes for kernel in added), sum(kernel.launches for kernel in added)) == (size * COPIES * N, count)
    issued = [
        (kernel.bytes, kernel.vector) for kernel in (*work.forward, *work.backward_input) if isinstance(kernel, Memory) and kernel.vector
    ]
    one = COPIES * N
    assert issued == (
        [(2 * one, 143 * one), (12 * one, 578 * one)] if dispatcher == "alltoall" else [(14 * one, 577 * one), (30 * one, 1049 * one)]
    )
    assert not any(isinstance(k, Memory) for k in GroupedLinear("up", ("x",), "y", K, N, EXPERTS, TOP, bias=True).work(at).forward)
