"""Documents packed into samples: attention works on pairs of one document only, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from parsim import simulate
from parsim.errors import PlanError
from parsim.kernel import Attention
from parsim.model.attention import AttentionCore
from parsim.model.workload import Workload

SAMPLE = 4096


def job(length: int | str, **training: Any) -> dict[str, Any]:
    return {
        "model": "llama-2-7b",
        "training": {"sequence_length": SAMPLE, "micro_batch": 1, "global_batch": 16, "document_length": length, **training},
        "parallel": {"data": {"strategy": "zero1"}},
        "cluster": "hgx-h100",
    }


def cores(length: int, *, sequence: int, chunk: int = 0) -> tuple[Any, ...]:
    core = AttentionCore("core", ("q", "k", "v"), "out", 8, 8, 64, chunk=chunk)
    return core.training_work(Workload(3, sequence, document=length)).forward


@pytest.mark.parametrize(
    ("length", "chunk", "parts"), [(0, 0, [(3, 10)]), (4, 0, [(6, 4), (3, 2)]), (5, 0, [(6, 5)]), (5, 4, [(6, 4), (3, 2)])]
)
def test_pairs_are_those_of_one_document(length: int, chunk: int, parts: list[tuple[int, int]]) -> None:
    """b documents of l tokens: l (l + 1) / 2 pairs each; of what is left of a sample as many."""
    kernels = cores(length, sequence=10, chunk=chunk)
    assert [(kernel.batch, kernel.queries) for kernel in kernels if isinstance(kernel, Attention)] == parts
    flop = sum(kernel.flop for kernel in kernels)
    assert flop == sum(2 * 8 * 128 * batch * tokens * (tokens + 1) / 2 for batch, tokens in parts)


def test_a_sample_that_is_one_document_is_as_before() -> None:
    whole, one = simulate(job("auto")), simulate(job(SAMPLE))
    assert (one.step_time, one.peak_memory) == (whole.step_time, whole.peak_memory)


def test_only_attention_gets_shorter() -> None:
    whole, packed = simulate(job("auto")), simulate(job(256))
    assert packed.peak_memory == whole.peak_memory
    assert packed.measured.model.flop_per_step == whole.measured.model.flop_per_step, "of MFU, which counts whole samples"
    assert 0.85 < packed.step_time / whole.step_time < 0.97
    assert simulate(job(2048)).step_time > simulate(job(1024)).step_time > packed.step_time


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"training": job(5000)["training"]}, "documents of 5000 tokens are longer than the samples that they are packed into, 4096"),
        ({"training": job(256, attention="eager")["training"]}, "eager attention works on all pairs"),
        ({"parallel": {"context": {"size": 2}}}, "packed documents with context parallelism"),
        ({"model": "mamba2-2.7b"}, "packed documents with the attention of mamba2-2.7b"),
    ],
)
def test_what_they_do_not_go_with(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        simulate(job(256) | changes)
