"""The words in which a model tells a device what to compute.

A model lowers each operator to kernels; `parsim.hardware.kernels.kernel_time` turns a kernel into
seconds. This module knows neither models nor devices, so both rooms may import it.
FLOPs count 2 per multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gemm:
    """Matrix product [m, k] x [k, n], `batch` times; a convolution is its implicit GEMM."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    """matmul type: fp32 | tf32 | fp16 | bf16 | fp8 | fp4 | int8"""
    element: float = 2
    """bytes of an operand element in memory [B]"""
    weight_gradient: bool = False
    """accumulates into a gradient; slower than the plain product (see the device's `gemm.weight_gradient`)"""
    layout: str = "TN"
    """how the operands lie in memory, as transA and transB of the column-major library call: TN (forward) both operands are
    contiguous along K, NN (gradient of the input) only the [m, k] one, NT (gradient of the weight) neither"""
    occupied: int = 0
    """multiprocessors that communication beside it keeps"""
    grouped: bool = False
    """the `batch` products have weights of their own, as those of experts have: what they move passes through memory once per step"""
    gradient: float = 4
    """of a grouped weight gradient: bytes of an element of the gradient that it is added to [B]"""
    launches: int = 1
    """kernels that the host launches for it"""
    padded: bool = False
    """sides are filled up to whole 16 bytes first (torch.compile)"""

    @property
    def flop(self) -> float:
        """Executed operations [FLOP]."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def bytes(self) -> float:
        """Operands read once and the result written once [B]; the result of an 8-bit product has 16 bits.

        A grouped weight gradient reads and writes the gradient that it is added to.
        """
        operands = self.element * (self.m * self.k + self.k * self.n)
        result = 2 * self.gradient if self.grouped and self.weight_gradient else max(self.element, 2)
        return float(self.batch * (operands + result * self.m * self.n))

    @property
    def along_k(self) -> tuple[bool, bool]:
        """Whether the [m, k] and the [k, n] operand are contiguous along K."""
        return self.layout[1] == "N", self.layout[0] == "T"


@dataclass(frozen=True, slots=True)
class Attention:
    """One fused attention core (flash, memory-efficient): softmax(QK^T)V without stored scores."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    """query positions per sample"""
    keys: int
    """key positions per sample"""
    head_dim: int
    causal: bool
    backward: bool = False
    implementation: str = "flash2"
    dtype: str = "bf16"
    value_dim: int = 0
    """head dim of V where it differs (MLA); 0 = head_dim"""
    window: int = 0
    """sliding window in tokens; 0 = all keys"""

    @property
    def width(self) -> int:
        """Multiplications per pair of a query and a key: the widths of all products of one head.

        Forward QK^T and PV; backward QK^T again, dQ and dK (as wide as keys), dP and dV (as wide as values).
        """
        value_dim = self.value_dim or self.head_dim
        return 3 * self.head_dim + 2 * value_dim if self.backward else self.head_dim + value_dim

    @property
    def flop(self) -> float:
        """Executed operations [FLOP]; causal counts the lower triangle."""
        pairs: float = self.queries * self.keys
        if self.window and self.window < self.keys:
            pairs = self.queries * self.window - (self.window * (self.window - 1) / 2 if self.causal else 0)
        elif self.causal:
            pairs = self.queries * (self.keys - self.queries) + self.queries * (self.queries + 1) / 2
        return 2.0 * pairs * self.batch * self.heads * self.width

    @property
    def bytes(self) -> float:
        """Queries, keys, values and output of two bytes each (fp8: one), once; backward also their gradients [B]."""
        width = self.head_dim + (self.value_dim or self.head_dim)
        element = 1.0 if self.dtype == "fp8" else 2.0
        return element * self.batch * (self.heads * self.queries + self.kv_heads * self.keys) * width * (2 if self.backward else 1)


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory-bound kernel: `bytes` read plus written [B] in `launches` launches, `flop` for the books.

    Some issue so many instructions for the bytes they move that the multiprocessors are busy longer than the memory (`vector`).
    """

    bytes: float
    flop: float = 0.0
    launches: int = 1
    vector: float = field(default=0.0, kw_only=True)
    """how long the multiprocessors are busy, as what they could do with an fp32 multiply-add in every instruction meanwhile [FLOP]: seconds
    measured on a GPU of as many fp32 lanes as issue slots, times its fp32 peak; 0: not as long"""


WIDENED, ROWS_SCALED, WEIGHED, MIXED, SPREAD = 197.0, 201.0, 165.0, 259.0, 164.0
"""`Memory.vector` of PyTorch's own elementwise kernels for an element [FLOP]: a 16-bit tensor copied to fp32; an fp32 tensor times one
number a row or one a column; a 16-bit tensor times one number a column; the sum or product of a 16-bit and an fp32 tensor; one number a
row written to the whole row. 8,192 x 4,096 on an H200 (PyTorch 2.11, November 2026): 98, 98 to 100, 83, 130 and 82 us, where kernels whose
operands have one type and shape run at the memory's rate: 49 us for two of 16 bits and their sum, 66 us for an fp32 tensor's square."""


@dataclass(frozen=True, slots=True)
class AdamStep(Memory):
    """The update of one Adam or AdamW step; a device whose optimizer step was measured knows its time.

    `Memory.bytes` is what the step moves by the book of its implementation, `needed` what any implementation must move.
    """

    implementation: str = "fused"
    """fused | foreach"""
    needed: float = 0.0
    """gradient, weight and moments read once, the latter two written once [B]"""


@dataclass(frozen=True, slots=True)
class SparseAttention(Memory):
    """The kernels that score keys, or attend to chosen ones, in one direction.

    `flop` are those of the products, `bytes` what is read and written: chosen keys once for every query that reads them.
    """

    dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class ChunkScan(Memory):
    """The kernels of a linear-attention core in one direction: many small matrix products, chunk by chunk.

    `flop` are those of the products, `bytes` what all its kernels read and write.
    """

    dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class Factorisation(Memory):
    """Orthogonal factorisations of square matrices in fp32 (QR, eigenvectors), which go column by column, and the products around them.

    `launches` are the columns of all, `flop` the products', `bytes` what is read beside them.
    """


@dataclass(frozen=True, slots=True)
class Fixed:
    """Work whose duration the user measured."""

    seconds: float
    flop: float = 0.0


Kernel = Gemm | Attention | Memory | Fixed


class Clocks:
    """Seconds of a kernel on each kind of GPU of a job; called like a function, it answers for the first kind."""

    def __init__(self, each: Sequence[Callable[[Kernel], float]], of_ranks: Sequence[int]) -> None:
        self.each = tuple(each)
        """by kind of GPU"""
        self.of_ranks = tuple(of_ranks)
        """kind of GPU of every rank"""
        self._first = self.each[0]

    def __call__(self, kernel: Kernel) -> float:
        return self._first(kernel)

    def fastest(self, kernel: Kernel) -> float:
        """On whichever kind is done first [s]: never more than on any GPU of the job."""
        return min(clock(kernel) for clock in self.each)


def on_kind(clock: Callable[[Kernel], float], kind: int) -> Callable[[Kernel], float]:
    """The clock of one kind of GPU; a plain function answers for all."""
    return clock.each[kind] if isinstance(clock, Clocks) else clock
