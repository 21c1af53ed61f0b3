"""Tokens put in order by PyTorch's operations: launches, bytes, and what is kept (Megatron-LM without --moe-permute-fusion)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parsim.kernel import Memory
from parsim.model.exchange import ExpertExchange
from parsim.model.mixture import Combine, Dispatch
from parsim.model.permutation import ADD_ISSUES, SUM_ISSUES, chunks_sorted
from parsim.model.workload import Workload
from parsim.routing import Routing

TOKENS, HIDDEN, EXPERTS, TOP_K, RANKS = 1000, 512, 8, 2, 4
ROWS, ROW, CELLS = 2000, 1024, 8000
"""of a rank: copies of its tokens, bytes of a row, cells of the map"""
ADDED = (Memory(TOKENS * ROW), Memory((ROWS + TOKENS) * ROW, vector=ADD_ISSUES * ROWS * HIDDEN))
SUMMED = (Memory(TOKENS * ROW), Memory((ROWS + TOKENS) * ROW, vector=SUM_ISSUES * ROWS * HIDDEN))
GATHERED = Memory(2 * ROWS * ROW)
CHOICE = Memory(4 * CELLS + 8 * TOKENS + 64 * ROWS, launches=8)
WEIGHTS = Memory(10 * CELLS + 56 * ROWS, launches=7)
WEIGHT_GRADIENTS = Memory(26 * CELLS + 4 * ROWS, launches=5)


def at(dispatcher="alltoall", *, fused=False, expert=RANKS):
    return Workload(1, TOKENS, fused=True, expert=expert, expert_tensor=1, dispatcher=dispatcher, permute_fusion=fused)


def ways(dispatcher, *, summed=False):
    exchange = ExpertExchange(at(dispatcher), HIDDEN, Routing(EXPERTS, TOP_K, RANKS), summed)
    return exchange.leaving, exchange.returning


class TestKernels:
    """A thousand tokens of hidden size 512 to two of eight experts on four ranks, 16 bit."""

    def test_all_to_all_dispatch(self):
        leaving, returning = ways("alltoall")
        sorting = Memory(2 * ROWS * (ROW + 4), launches=2)
        assert (leaving.before, leaving.behind) == ((CHOICE, WEIGHTS, Memory(2 * ROWS * ROW)), (sorting,))
        assert (returning.before, returning.behind) == ((sorting,), (WEIGHT_GRADIENTS, *ADDED))
        assert (leaving.counts, returning.counts) == ((2, 0), (0, 0))
        assert sum(kernel.launches for kernel in leaving.before) == 16
        assert sum(kernel.launches for kernel in returning.behind) == 7

    def test_all_to_all_combine(self):
        """The weights were part of the experts: sums alone."""
        leaving, returning = ways("alltoall", summed=True)
        assert (leaving.before, returning.behind) == ((GATHERED,), SUMMED)
        assert leaving.behind == returning.before == (Memory(2 * ROWS * ROW),)
        assert leaving.counts == returning.counts == (0, 0)

    @pytest.mark.parametrize("dispatcher", ["deepep", "allgather"])
    def test_what_has_arrived(self, dispatcher):
        """The map is that of the tokens that have arrived, and of the rank's two experts."""
        leaving, returning = ways(dispatcher)
        tokens = {"deepep": 1857, "allgather": 4000}[dispatcher]
        assert leaving.before == returning.behind == ()
        assert leaving.behind[0] == Memory(4 * 2 * tokens + 8 * tokens + 64 * ROWS, launches=8)
        assert leaving.behind[2:] == (Memory(2 * ROWS * ROW),)
        assert returning.before[1:] == (Memory(tokens * ROW), Memory((ROWS + tokens) * ROW, vector=ADD_ISSUES * ROWS * HIDDEN))
        assert (leaving.counts, returning.counts) == ((0, 2), (0, 0))

    def test_hybridep_has_kernels_of_its_own(self):
        assert ways("hybridep") == tuple(
            getattr(ExpertExchange(at("hybridep", fused=True), HIDDEN, Routing(EXPERTS, TOP_K, RANKS)), way)
            for way in ("leaving", "returning")
        )

    def test_where_every_rank_holds_all_experts(self):
        """The sums choose the weights and apply them."""
        dispatch = Dispatch("d", ("x", "choice"), "y", HIDDEN, TOP_K, EXPERTS).work(at(expert=1))
        combine = Combine("c", ("down", "choice"), "y", HIDDEN, TOP_K, EXPERTS).work(at(expert=1))
        assert dispatch.forward == (CHOICE, Memory(2 * ROWS * ROW))
        assert dispatch.backward_input == ADDED
        weighted = Memory(2 * ROWS * ROW, vector=165.0 * ROWS * HIDDEN)
        assert combine.forward == (WEIGHTS, weighted, *SUMMED)
        assert combine.backward_input == (GATHERED, weighted, Memory(4 * ROWS * ROW, launches=2), WEIGHT_GRADIENTS)

    def test_chunks_of_many_experts(self):
        """160 experts of eight ranks: two kernels for rows, two for weights."""
        assert chunks_sorted(100, 1000, 160, weights=True) == Memory(2 * 100 * 1004, launches=4)
        assert chunks_sorted(100, 1000, 160, weights=False) == Memory(2 * 100 * 1000, launches=2)


class TestTransformers:
    """grouped_mm_experts_forward of transformers 5.23 and what autograd makes of it, operation by operation: (elements read, written)."""

    FORWARD = (("gather", 1, 1), ("weighted", 1, 1), ("gather", 1, 1), ("sum", 1, 1 / TOP_K))
    BACKWARD = (
        ("expanded", 1 / TOP_K, 1), ("zeros", 0, 1), ("put", 2, 1), ("weights' product", 2, 1), ("sum", 1, 0), ("rows' product", 1, 1),
        ("zeros", 0, 1 / TOP_K), ("put", 1 + 1 / TOP_K, 1 / TOP_K),
    )  # fmt: skip

    def works(self, **changed):
        eager = replace(at(expert=1, fused=True), **changed)
        parts = (("x", "choice"), ("down", "choice"))
        return [kind("k", inputs, "y", HIDDEN, TOP_K, EXPERTS).work(eager) for kind, inputs in zip((Dispatch, Combine), parts, strict=True)]

    def test_rows(self):
        dispatch, combine = self.works(fused=False)
        for kernels, operations in (
            ((*dispatch.forward, *combine.forward), self.FORWARD),
            ((*combine.backward_input, *dispatch.backward_input), self.BACKWARD),
        ):
            wide = [kernel for kernel in kernels if kernel.bytes > 1000 * ROWS]
            assert sum(kernel.launches for kernel in wide) == len(operations)
            assert sum(kernel.bytes for kernel in wide) == pytest.approx(ROW * ROWS * sum(read + wrote for _, read, wrote in operations))

    def test_numbers(self):
        """A sort of 8 B and their places in eight passes, sorts in three before rows are added: nearly nothing to move, and 50 launches."""
        kernels = [k for work in self.works(fused=False) for k in (*work.forward, *work.backward_input) if k.bytes <= 1000 * ROWS]
        assert sum(kernel.bytes for kernel in kernels) < ROW * ROWS
        assert sum(kernel.launches for kernel in kernels) == 18 + 20 + 3 + 9

    def test_fused(self):
        dispatch, combine = self.works(fused=True)
        assert [len(part) for work in (dispatch, combine) for part in (work.forward, work.backward_input)] == [1, 1, 1, 1]


class TestKept:
    def test_with_the_tokens(self):
        """8 B for a row, 5 B for a cell: weights in fp32 and the map."""
        work = Dispatch("d", ("x", "choice"), "y", HIDDEN, TOP_K, EXPERTS).work(at())
        assert {save.tensor: save.bytes for save in work.saves} == {"d.order": 16_000, "d.chosen_from": 40_000}
        combine = Combine("c", ("down", "choice"), "y", HIDDEN, TOP_K, EXPERTS)
        assert combine.work(at()).saves == combine.work(at(fused=True)).saves

    def test_with_the_sums(self):
        dispatch = Dispatch("d", ("x", "choice"), "y", HIDDEN, TOP_K, EXPERTS).work(at(expert=1))
        combine = Combine("c", ("down", "choice"), "y", HIDDEN, TOP_K, EXPERTS).work(at(expert=1))
        assert {save.tensor: save.bytes for save in dispatch.saves} == {"d.order": 16_000}
        kept = {save.tensor: save.bytes for save in combine.saves}
        assert kept == {"down": ROWS * ROW, "choice": 12 * ROWS, "c.weights": 4 * ROWS, "c.chosen_from": 40_000}
