"""Tokens in order of their experts, and sums of their results, by PyTorch's operations.

First Megatron-LM without --moe-permute-fusion, then transformers (`SortedRows`).

Megatron-LM (megatron/core/transformer/moe/moe_utils.py: permute, unpermute; fused, all of it is one kernel of Transformer Engine each way),
T tokens, a map of T x E booleans, R rows of h values:

===================  ==================================================  ==============================================================
operation            forward                                             backward
===================  ==================================================  ==============================================================
choice of rows       map transposed, token numbers, masked_select
choice of weights    weights transposed, masked_select                   zeros, prefix sum of the map, its check, masked_scatter
rows                 index_select                                        zeros, index_add
sums                 zeros, scatter_add                                  gather
weighting            product of rows and weights                         that of their gradients, and of both, which is summed by rows
===================  ==================================================  ==============================================================

masked_select finds the places of a map and reads what is there, in six kernels: two count the places, the host waits for their number, two
choose them, one makes rows and columns of them (ATen: native/cuda/Nonzero.cu, IndexKernel.cu). Where the weights travel with the tokens,
dispatch chooses them, too, so that the host waits twice, and nothing is weighted behind the experts (Megatron-LM since April 2025);
otherwise the sums choose them. Experts that are filled up need no number: a sort stands in the place of masked_select, counted alike. Since
March 2026 Megatron-LM sorts the whole map instead, and the host waits for nothing; parsim has what was before, which published steps ran.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import WEIGHED, Memory

ADD_ISSUES, SUM_ISSUES = 543.0, 264.0
"""of index_add and scatter_add, for an element of the rows [FLOP]: `Memory.vector`. They add every element by an atomic operation: 8.1 and
3.9 ps an element. Least squares of relative errors over six shapes of 16,384 to 196,608 rows of 2,048 to 7,168 bf16 values on an H200 SXM
(PyTorch 2.11, 28 November 2026: validation/gemm/elementwise.csv), together with 64 us that the host takes in either forward operation
beside what is counted here. Errors are -5 to 5 % of the backward of copies, -7 to 3 and -2 to 5 % of the sums' forward and backward, and
-10 to 12 % of copies, which come out of the cache where many experts read a token"""
INDEX, PLACE, WEIGHT = 8, 16, 4
"""bytes of a token's number, of a place in the map, and of a weight in fp32"""
MAPPED, CHOSEN, SCATTERED = 4, 10, 26
"""bytes of a cell of the map, read and written: transposed and read twice for the choice of rows; weights transposed and the map read twice
for theirs; zeros, the map, its prefix sum written and read, the map and the result for their gradients"""


@dataclass(frozen=True, slots=True)
class Permutation:
    """Rows of tokens that a map chooses; `width` is that of a row in bytes."""

    tokens: int
    experts: int
    """columns of the map"""
    rows: int
    hidden: int

    @property
    def cells(self) -> int:
        """Of the map."""
        return self.tokens * self.experts

    @property
    def choice(self) -> Memory:
        """Which token stands in which row; the host waits inside."""
        each = 2 * INDEX + 2 * PLACE + 2 * INDEX
        return Memory(MAPPED * self.cells + INDEX * self.tokens + each * self.rows, launches=8)

    @property
    def weights(self) -> Memory:
        """The weights of the rows; the host waits inside."""
        each = 2 * INDEX + 2 * PLACE + 2 * WEIGHT
        return Memory(CHOSEN * self.cells + each * self.rows, launches=7)

    @property
    def weight_gradients(self) -> Memory:
        """Of the weights, where they were chosen."""
        return Memory(SCATTERED * self.cells + WEIGHT * self.rows, launches=5)

    def copied(self, width: int) -> Memory:
        """Rows, of their tokens."""
        return Memory(2 * self.rows * width)

    def added(self, width: int) -> tuple[Memory, ...]:
        """Gradients of tokens: sums of those of their rows."""
        return self._sums(width, ADD_ISSUES)

    def weighted(self, width: int) -> Memory:
        """Rows times their weights, written once more."""
        return Memory(2 * self.rows * width, vector=WEIGHED * self.rows * self.hidden)

    def summed(self, width: int) -> tuple[Memory, ...]:
        """Tokens, of their rows."""
        return self._sums(width, SUM_ISSUES)

    def gathered(self, width: int) -> Memory:
        """Gradients of rows: copies of those of their tokens."""
        return Memory(2 * self.rows * width)

    def weighting_gradients(self, width: int) -> tuple[Memory, ...]:
        """Of rows (read, written) and of weights (two read, one written; that read and summed)."""
        return self.weighted(width), Memory(4 * self.rows * width, launches=2)

    def _sums(self, width: int, issues: float) -> tuple[Memory, ...]:
        whole = self.tokens * width
        return Memory(whole), Memory(self.rows * width + whole, vector=issues * self.rows * self.hidden)

    @property
    def order(self) -> int:
        """Numbers of the tokens of all rows, which backward reads [B]."""
        return INDEX * self.rows

    @property
    def chosen_from(self) -> int:
        """Transposed weights and map, which masked_select keeps where it chooses weights [B]."""
        return (WEIGHT + 1) * self.cells


def chunks_sorted(rows: int, width: int, chunks: int, *, weights: bool) -> Memory:
    """Rows of several experts by expert instead of by rank, or back: torch.cat of the chunks of each rank and expert.

    So with their `weights`. A kernel takes 128 chunks (ATen: native/cuda/Shape.cu, CAT_ARRAY_BATCH_SIZE).
    """
    return Memory(2 * rows * (width + weights * WEIGHT), launches=(1 + weights) * -(-chunks // 128))


# transformers


INTEGER = 8
SORTED, SORT_LAUNCHES = 8 * 4 * INTEGER, 11
"""torch.sort of numbers and their places: bytes for each of eight passes that read and write both, and kernels (CUB's radix sort)"""
PLACED, PLACE_LAUNCHES = 3 * 4 * INTEGER + 4 * INTEGER, 9
"""what index_put_ does before it adds rows at places that repeat: offsets and numbers made, a sort of 17 to 24 bits (three passes)"""


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows that transformers sorts by their experts and back, each `width` bytes (integrations/moe.py, grouped_mm_experts_forward, 5.23).

    Every operation with what it reads and writes. index_put_ adds rows one place after another, which may take longer than its bytes.
    Up to transformers 5.17 rows of experts elsewhere were masked, too, although there were none: 14 times the bytes of these rows and 16
    times those of the activation's, which are not counted.
    """

    tokens: int
    rows: int
    width: int

    @property
    def copied(self) -> tuple[Memory, ...]:
        """Experts sorted; tokens, weights and offsets in that order: a quotient, a gather, a cast, a histogram and its sum; rows."""
        order = Memory((SORTED + 8 * INTEGER) * self.rows, launches=SORT_LAUNCHES + 7)
        return order, Memory(2.0 * self.rows * self.width)

    @property
    def added(self) -> tuple[Memory, ...]:
        """Gradients of weights and tokens: zeros, to which rows are added."""
        order = Memory((2 * PLACED + 4 * INTEGER) * self.rows, launches=2 * PLACE_LAUNCHES + 2)
        return order, Memory((self.rows + 3.0 * self.tokens) * self.width, launches=2)

    @property
    def summed(self) -> tuple[Memory, ...]:
        """Results weighted, put back in the order of tokens, which is made for it, and summed."""
        order = Memory(4.0 * INTEGER * self.rows, launches=3)
        return order, Memory((5.0 * self.rows + self.tokens) * self.width, launches=3)

    @property
    def spread(self) -> tuple[Memory, ...]:
        """Gradients of results and of their weights: the sum's copied to every row, zeros, to which they are added, and three products."""
        order = Memory(PLACED * self.rows, launches=PLACE_LAUNCHES)
        back = (1 + 1 + 3) * self.rows + self.tokens
        return order, Memory(float(back * self.width), launches=3), Memory(6.0 * self.rows * self.width, launches=3)
