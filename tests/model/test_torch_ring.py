"""Context parallelism of PyTorch, by the lines of its ``_attention.py``; bytes by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from parsim import load
from parsim.kernel import Attention, Kernel, Memory
from parsim.model.attention import AttentionCore
from parsim.model.workload import Workload
from parsim.program.check import check
from parsim.run import execute
from parsim.scenario.build import build

C, S, HEADS, KV, D = 4, 128, 4, 2, 16
AT = Workload(1, S, attention="flash2", context=C, context_method="ring", torch_context=True)
CORE = AttentionCore("core", ("q", "k", "v"), "o", HEADS, KV, D, causal=True)
Q = S * HEADS * D  # 8,192 elements of queries, and of the output
K = 2 * S * KV * D  # 8,192 of keys and values
ROWS = 4 * S * HEADS  # 2,048 B of statistics


def memory(kernels: tuple[Kernel, ...]) -> list[Memory]:
    return [kernel for kernel in kernels if isinstance(kernel, Memory)]


def moved(kernels: tuple[Kernel, ...]) -> float:
    return sum(kernel.bytes for kernel in memory(kernels))


class TestEager:
    def test_the_blocks(self) -> None:
        """The own triangle, then three blocks of half the keys; the same in backward, the own one first."""
        part = CORE.spread(AT)
        for backward in (False, True):
            blocks = [kernel for kernel in part.kernels(backward=backward) if isinstance(kernel, Attention)]
            assert [(one.queries, one.keys, one.causal) for one in blocks] == [(S, S, True)] + [(S, S // 2, False)] * 3

    def test_a_merge_moves_38_bytes_an_element(self) -> None:
        """Cast 2 + 4; out - block 4 + 4 + 4, times the weight 4 + 4, out - that 4 + 4 + 4. Statistics: 3 + 2 + 1 + 3 + 2 + 3."""
        (_, merge) = memory(CORE.spread(AT).forward[1].kernels)
        assert merge == Memory(38 * Q + 14 * ROWS, launches=9)

    def test_forward(self) -> None:
        """Keys and values contiguous, joined for three sends, the first output and the last sum cast."""
        assert moved(CORE.spread(AT).kernels(backward=False)) == 4 * K + 3 * 4 * K + 6 * Q + 3 * (38 * Q + 14 * ROWS) + 6 * Q

    def test_backward(self) -> None:
        """Zeros of 4 B; gradients of queries read 4 + 2, written 4, four times, cast. Those of keys and values: own block 10 and joined 8;
        then thrice half of them added, 5, the halves joined, 8, and both joined, 8; cast.
        """
        keys = 4 * K + 3 * 4 * K + 4 * K + (10 + 8) * K + 3 * (5 + 8 + 8) * K + 6 * K
        assert moved(CORE.spread(AT).kernels(backward=True)) == keys + 4 * Q + 4 * 10 * Q + 6 * Q


class TestCompiled:
    AT = replace(AT, fused=True, compiled=True)

    def test_forward(self) -> None:
        """First merge 2 + 2 + 4, then 4 + 2 + 4, the last 4 + 2 + 2; with two ranks the only one 2 + 2 + 2."""
        assert moved(CORE.spread(self.AT).kernels(backward=False)) == 4 * K + 3 * 4 * K + (8 + 10 + 8) * Q + 3 * 5 * ROWS
        two = replace(self.AT, context=2)
        assert moved(CORE.spread(two).kernels(backward=False)) == 4 * K + 4 * K + 6 * Q + 5 * ROWS

    def test_backward(self) -> None:
        """Gradients of queries: four read, one written, in 16 bit. Of keys and values: 2 + 4, thrice 4 + 1 + 4, 4 + 2."""
        assert moved(CORE.spread(self.AT).kernels(backward=True)) == 4 * K + 3 * 4 * K + 10 * Q + (6 + 27 + 6) * K

    def test_what_is_gathered_is_joined_once(self) -> None:
        ring, gathered = (CORE.spread(replace(self.AT, context_method=method)) for method in ("ring", "all-gather"))
        for backward in (False, True):
            assert moved(ring.kernels(backward=backward)) - moved(gathered.kernels(backward=backward)) == 2 * 4 * K


JOB = {
    "model": {"base": "llama-3-8b", "layers": 2},
    "cluster": {"topology": "hgx-h100"},
    "training": {"sequence_length": 8192, "micro_batch": 1, "global_batch": 1, "attention": "flash2"},
    "parallel": {"context": {"size": 8}, "data": {"strategy": "fsdp"}},
    "software": {"profile": "torchtitan", "fusion": "compiled"},
}


@pytest.mark.parametrize("method", ["ring", "all-gather"])
def test_gradients_of_keys_and_values_go_round_in_fp32(method: str) -> None:
    """1,024 tokens of 8 heads of 128 in 16 bit: 4 MiB of keys and values; eight sends of 8 MiB a layer home again."""
    program = execute(build(load(JOB, f"parallel.context.method={method}"))).trace.program
    assert check(program) == []
    found = Counter(
        (op.collective.kind, op.collective.bytes)
        for op in program.ops
        if op.collective is not None and op.collective.axis == "context" and any(lane.rank == 0 for lane in op.lanes)
    )
    size, passes = 4 * 2**20, 2
    expected = Counter({("sendrecv", 2 * size): 2 * 8})
    expected += Counter({("sendrecv", size): 2 * passes * 7} if method == "ring" else {("all_gather", 8 * size): 2 * passes})
    assert found == expected


def test_other_stacks_keep_their_own() -> None:
    """Transformer Engine merges 6 B an element; Llama 3 gathers keys and attends once."""
    built = build(load(JOB, "software.profile=megatron-core"))
    assert not built.runtime.torch_context
    assert moved(CORE.spread(replace(AT, torch_context=False)).forward[-1].kernels) < moved(CORE.spread(AT).forward[-1].kernels)
