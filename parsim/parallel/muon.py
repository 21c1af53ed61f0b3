"""Muon (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982): momentum of every matrix of a layer, orthogonalised by Newton-Schulz steps.

=====================  ================================================================================================
of a matrix m x n      m <= n; a step makes A = X X', B = b A + c A A and X = a X + B X: 4 m^2 n + 2 m^3 FLOP in bf16
what is a matrix       weights of layers with two dimensions (routers, too), and those of each expert; embedding, head, norms and
                       biases are stepped by AdamW
kept                   fp32 master and one momentum; AdamW keeps two moments
tensor parallelism     blockwise: each rank orthogonalises its own part; duplicated: every rank gathers the whole (fp32) and does
                       all the work; distributed: a rank has its part of the sharded side, and Gram matrices are summed in every step
=====================  ================================================================================================

Elementwise around it, per element [B]: momentum 12, norm 4, division 8, cast to bf16 and back 6 + 6, scale, weight decay and update 28.
Sources: NVIDIA/Megatron-LM megatron/core/optimizer (muon.py, emerging_optimizers.py), NVIDIA-NeMo/Emerging-Optimizers
orthogonalized_optimizers/muon_utils.py (newton_schulz, newton_schulz_tp): query, key and value are split from the stored tensor, gate and
up are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from parsim.kernel import Gemm, Kernel, Memory
from parsim.parallel.groups import TENSOR
from parsim.parallel.hooks import Emitter, Weight
from parsim.parallel.training import Optimizer, Precision

GRAM_RESTART = 2
"""step of an iteration on Gram matrices that begins anew"""
BF16, FP32 = 2, 4
"""bytes of an element of the iteration, and of what is gathered for it"""
QUERY_KEY_VALUE, GATE_UP = "query_key_value", ("mlp_up", "experts_up", "shared_up_projection")
"""operators whose weights some stacks store as one tensor"""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Equal matrices that are orthogonalised one by one: what one rank has of them."""

    rows: int
    columns: int
    number: int = 1
    split: int | None = None
    """dimension that the ranks of a group share; None: every rank has all"""

    @property
    def count(self) -> int:
        """Elements of the rank."""
        return self.rows * self.columns * self.number

    def whole(self, ranks: int) -> Matrix:
        """The matrices as they are over all ranks of the group."""
        if self.split is None:
            return self
        return replace(self, **({"rows": self.rows * ranks} if self.split == 0 else {"columns": self.columns * ranks}), split=None)


@dataclass(frozen=True, slots=True)
class MatrixTensor:
    """One stored tensor of matrices: whoever steps it has all of it."""

    weights: tuple[Weight, ...]
    matrices: tuple[Matrix, ...]

    @property
    def count(self) -> int:
        """Elements of the rank."""
        return sum(matrix.count for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """How a stack stores the matrices of some weights."""

    group: str = TENSOR
    """ranks that share them"""
    ranks: int = 1
    heads: int = 1
    kv_heads: int = 1
    gated: bool = False
    joined: bool = False
    """query, key and value of a layer are one tensor, as are gate and up (Transformer Engine's LayerNormLinear)"""


def newton_schulz_flop(rows: int, columns: int, steps: int = 5) -> int:
    """Operations of orthogonalising one matrix [FLOP].

    >>> newton_schulz_flop(4096, 4096), newton_schulz_flop(14336, 4096)
    (2061584302080, 5497558138880)
    >>> newton_schulz_flop(6144, 4096), newton_schulz_flop(4096, 4096) + 2 * newton_schulz_flop(1024, 4096)
    (2748779069440, 2254857830400)
    """
    m, n = sorted((rows, columns))
    return steps * (4 * m * m * n + 2 * m**3)


def is_matrix(weight: Weight) -> bool:
    """Whether Muon steps this weight; the others are AdamW's."""
    shape = weight.parameter.shape[1:] if weight.parameter.expert else weight.parameter.shape
    return weight.trains and bool(weight.operator) and len(shape) == 2 and min(shape) > 1


def matrix_elements(weights: Iterable[Weight]) -> int:
    """Elements of the weights that Muon steps."""
    return sum(weight.count for weight in weights if is_matrix(weight))


def tensors_of(weights: Sequence[Weight], optimizer: Optimizer, layout: MatrixLayout) -> list[MatrixTensor]:
    """The stored tensors of matrices among some weights, in their order; only Muon takes some of them apart."""
    if optimizer.name != "muon":
        optimizer = replace(optimizer, split_query_key_value=False, split_gate_up=False)
    groups: dict[tuple[int, str], list[Weight]] = {}
    for weight in filter(is_matrix, weights):
        key = weight.operator if layout.joined else weight.name
        groups.setdefault((weight.block, key), []).append(weight)
    return [MatrixTensor(tuple(group), tuple(_matrices(group, optimizer, layout))) for group in groups.values()]


def _matrices(group: Sequence[Weight], optimizer: Optimizer, layout: MatrixLayout) -> list[Matrix]:
    """What is orthogonalised by itself of one stored tensor."""
    parts = [_local(weight, layout.ranks) for weight in group]
    operator = group[0].operator.rpartition(".")[2]
    if operator == QUERY_KEY_VALUE:
        if optimizer.split_query_key_value and len(parts) == 1 and group[0].name.endswith(f"{QUERY_KEY_VALUE}.weight"):
            heads, kv_heads = layout.heads, layout.kv_heads
            return [_part(parts[0], share, heads + 2 * kv_heads) for share in (heads, kv_heads, kv_heads)]
        return parts if optimizer.split_query_key_value else [_join(parts)]
    if operator in GATE_UP and layout.gated:
        if optimizer.split_gate_up and len(parts) == 1 and not group[0].name.endswith(("gate.weight", "up.weight", "gate_proj.weight")):
            return [_part(parts[0], 1, 2)] * 2
        return parts if optimizer.split_gate_up else [_join(parts)]
    return parts


def _local(weight: Weight, ranks: int) -> Matrix:
    """A weight's matrices on one rank; experts have one each."""
    parameter = weight.parameter
    rows, columns = parameter.shape[-2:]
    split = None if parameter.split is None or ranks == 1 else parameter.split - int(parameter.expert)
    if split == 0:
        rows = -(-rows // ranks)
    elif split == 1:
        columns = -(-columns // ranks)
    return Matrix(rows, columns, weight.count // (rows * columns), split)


def _part(matrix: Matrix, share: int, of: int) -> Matrix:
    return replace(matrix, rows=matrix.rows * share // of)


def _join(matrices: Sequence[Matrix]) -> Matrix:
    return replace(matrices[0], rows=sum(matrix.rows for matrix in matrices))


def flop_of(matrices: Iterable[Matrix], steps: int = 5, mode: str = "blockwise", ranks: int = 1, *, gram: bool = False) -> int:
    """Operations of one of `ranks` ranks that orthogonalise the matrices of which it has these parts [FLOP]; `gram`: on Gram matrices."""
    total = 0
    for matrix in matrices:
        if gram:
            each = gram_flop(matrix.rows, matrix.columns, steps)
        elif matrix.split is None or mode == "blockwise":
            each = newton_schulz_flop(matrix.rows, matrix.columns, steps)
        elif mode == "duplicated":
            whole = matrix.whole(ranks)
            each = newton_schulz_flop(whole.rows, whole.columns, steps)
        else:
            side, own = (matrix.columns, matrix.rows) if matrix.split == 0 else (matrix.rows, matrix.columns)
            each = steps * (4 * side * side * own + 2 * side**3)
        total += matrix.number * each
    return total


def iteration(m: int, n: int) -> list[Kernel]:
    """The products of one step for X of m x n, whichever is longer: A = X X', A A and B X."""
    return [Gemm(m, m, n), Gemm(m, m, m), Gemm(m, n, m)]


def gram_iteration(m: int, n: int, steps: int) -> list[Kernel]:
    """The products of an iteration that keeps R = X X' (m x m, m < n) and the product Q of all its factors, and makes Q X once.

    Z = b R + c R R; Q = a Q + Z Q; then R = a (a R + Z R) + Z (a R + Z R), unless R is not needed. Behind the second step X = Q X, and
    R anew, for the sake of precision (DeepSpeed, zeropower_via_gram_newtonschulz; Dion's use_gram_newton_schulz).
    """
    long, gram, square = Gemm(m, n, m), Gemm(m, m, n), Gemm(m, m, m)
    kernels: list[Kernel] = [gram]
    fresh = True
    for step in range(steps):
        if step == GRAM_RESTART:
            kernels += [long, gram]
            fresh = True
        kernels += [square] if fresh else [square, square]
        fresh = False
        if step < steps - 1 and step + 1 != GRAM_RESTART:
            kernels += [square, square]
    return [*kernels, long]


def gram_flop(rows: int, columns: int, steps: int = 5) -> int:
    """Operations of orthogonalising one matrix by its Gram matrices; a square one goes the plain way [FLOP].

    >>> gram_flop(4096, 14336), 8 * 4096**2 * 14336 + 28 * 4096**3, gram_flop(64, 64) == newton_schulz_flop(64, 64)
    (3848290697216, 3848290697216, True)
    """
    m, n = sorted((rows, columns))
    if m == n:
        return newton_schulz_flop(m, n, steps)
    return sum(2 * kernel.m * kernel.n * kernel.k for kernel in gram_iteration(m, n, steps) if isinstance(kernel, Gemm))


def workspace(matrices: Iterable[Matrix]) -> int:
    """Bytes that live while the largest matrix is orthogonalised: the fp32 update, X and its successor, A and B in bf16 [B]."""
    sides = (sorted((matrix.rows, matrix.columns)) for matrix in matrices)
    return max(((FP32 + 2 * BF16) * m * n + 2 * BF16 * m * m for m, n in sides), default=0)


def momentum_kernels(precision: Precision, count: int) -> list[Kernel]:
    """The gradient goes into the momentum of `count` elements."""
    gradient = max(precision.gradients, precision.master)
    return [Memory(float((gradient + 2 * precision.optimizer_element) * count), 2.0 * count)] if count else []


def update_kernels(precision: Precision, count: int) -> list[Kernel]:
    """Scale the orthogonal update, let weights decay and add it."""
    weight = precision.master or precision.parameters
    return [Memory(8.0 * count), Memory(2.0 * weight * count), Memory((4.0 + 2 * weight) * count)] if count else []


def _around(count: int) -> tuple[list[Kernel], list[Kernel]]:
    """Before the iteration: norm, division and cast to bf16; behind it: the cast back."""
    return [Memory(4.0 * count), Memory(8.0 * count), Memory(6.0 * count)], [Memory(6.0 * count)]


@dataclass(frozen=True, slots=True)
class NewtonSchulz:
    """Orthogonalises a rank's matrices one after another on the compute lane."""

    steps: int
    mode: Literal["blockwise", "duplicated", "distributed"]
    layout: MatrixLayout
    gram: bool = False
    """iterate on Gram matrices where a matrix is not square"""

    def run(self, matrices: Sequence[Matrix], at: Emitter) -> None:
        """All of them; between kernels stand the collectives of the ranks that share a matrix."""
        for matrix in matrices:
            if matrix.split is None or self.mode == "blockwise":
                at.compute("", "optimizer", self._alone(matrix) * matrix.number)
                continue
            for _ in range(matrix.number):
                (self._duplicated if self.mode == "duplicated" else self._distributed)(replace(matrix, number=1), at)

    def _alone(self, matrix: Matrix) -> list[Kernel]:
        before, behind = _around(matrix.rows * matrix.columns)
        m, n = sorted((matrix.rows, matrix.columns))
        products = gram_iteration(m, n, self.steps) if self.gram and m < n else iteration(m, n) * self.steps
        return [*before, *products, *behind]

    def _duplicated(self, matrix: Matrix, at: Emitter) -> None:
        whole = matrix.whole(self.layout.ranks)
        at.collective("all_gather", self.layout.group, FP32 * whole.count, "updates", blocking=True)
        at.compute("", "optimizer", self._alone(whole))

    def _distributed(self, matrix: Matrix, at: Emitter) -> None:
        """The Gram matrix is that of the side that is not shared, long or short (newton_schulz_tp: transpose = partition_dim == 0)."""
        side, own = (matrix.columns, matrix.rows) if matrix.split == 0 else (matrix.rows, matrix.columns)
        before, behind = _around(side * own)
        gram, *others = iteration(side, own)
        at.compute("", "optimizer", before[:1])
        at.collective("all_reduce", self.layout.group, FP32, "norm of updates", blocking=True)
        at.compute("", "optimizer", before[1:])
        for _ in range(self.steps):
            at.compute("", "optimizer", [gram])
            at.collective("all_reduce", self.layout.group, BF16 * side * side, "Gram matrices", blocking=True)
            at.compute("", "optimizer", others)
        at.compute("", "optimizer", behind)


def filled_batches(matrices: Iterable[Matrix], ranks: int) -> list[Matrix]:
    """What one of N ranks gets whole of sharded matrices, N of one shape at a time; a batch that is not full is filled up.

    microsoft/dion, dion/muon.py: pad_batch and muon_update_batch_async.
    """
    shapes: dict[tuple[int, int], int] = {}
    for matrix in matrices:
        shapes[matrix.rows, matrix.columns] = shapes.get((matrix.rows, matrix.columns), 0) + matrix.number
    return [Matrix(*shape) for shape, number in shapes.items() for _ in range(-(-number // ranks))]


def orthogonalise_batches(batches: Sequence[Matrix], steps: int, at: Emitter, group: str, lane: str, element: int = BF16) -> None:
    """Sharded matrices, each of which a rank gets whole, orthogonalises and hands back; the next ones travel meanwhile.

    `element`: bytes of an element on the wire.
    """

    def send(matrix: Matrix, name: str) -> int:
        return at.collective("all_to_all", group, element * matrix.count, name, lane=lane)

    arriving = send(batches[0], "updates") if batches else 0
    for place, matrix in enumerate(batches):
        here = arriving
        if place + 1 < len(batches):
            arriving = send(batches[place + 1], "updates")
        at.wait(here)
        m, n = sorted((matrix.rows, matrix.columns))
        cast = [Memory((element + 2.0) * m * n)] if element != BF16 else []
        each: list[Kernel] = [*cast, Memory(2.0 * m * n), Memory(4.0 * m * n), *(iteration(m, n) * steps), *cast]
        at.compute("", "optimizer", each * matrix.number)
        send(matrix, "orthogonal updates")
    at.wait_for_lane(lane)
