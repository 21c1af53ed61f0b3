"""Optimizers that multiply a gradient by a matrix for each of its dimensions: SOAP and Shampoo.

A tensor of N elements has for each side d a factor, the mean of products of its gradient with itself (d x d), and what is made of it. All
of them are fp32, and so are the products.

====================  ==================================================  ======================================================
                      SOAP (Vyas et al. 2024, arXiv 2409.11321)           Shampoo (Gupta et al. 2018, 1802.09568; 2309.06497)
====================  ==================================================  ======================================================
tensors               matrices of layers; sides longer than               all weights, cut in blocks of at most
                      `max_preconditioner_dim` have no factor             `max_preconditioner_dim` along every side
kept per side         factor and its eigenvectors, 2 x 4 d^2 B            factor and its inverse root, 2 x 4 d^2 B
kept per element      two moments, the first one rotated                  two: mean of the gradient, second moment of grafting
every step, per side  products 2 d N FLOP: factor; gradient into the      factor; gradient times the root: 2
                      eigenbasis and the update back; first moment
                      back and, in the new basis, forth: 5
every f-th step       d' L d, L d, and QR of it: (6 + 8/3) d^3            eigenvectors 6 d^3, and the root made of them 2 d^3
====================  ==================================================  ======================================================

Megatron-LM's SOAP (--optimizer soap: NVIDIA-NeMo/Emerging-Optimizers, legacy_soap) renews the basis in every step, has factors for all
sides, keeps eigenvalues (4 d B) and by default weights one side's factor with the other's (KL-Shampoo), a sixth product.
Factors that are renewed every f-th step cost every step 1/f of it here: a mean step. The memory that this takes is all there.

Householder QR goes column by column: a kernel each for its panel and its part of Q, which at the fixed time of a kernel is most of the
6.3 ms that 2000 x 2000 takes on an A100 (ml-explore/mlx, pull request 975, cuSOLVER); eigenvectors take two passes over half of what is
left of the matrix for each column of the tridiagonal form, the rest are products (LAPACK Users' Guide: 4/3 + 8/3 + 2 d^3; an assumption,
as no rates are published).
Sources: nikhilvyas/SOAP soap.py; facebookresearch/optimizers distributed_shampoo (shampoo_preconditioner_list.py,
shampoo_ddp_distributor.py, shampoo_fully_shard_distributor.py, utils/shampoo_utils.py: merge_small_dims).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from parsim.kernel import Factorisation, Gemm, Kernel, Memory
from parsim.parallel.muon import Matrix
from parsim.parallel.optimizer import State, update
from parsim.parallel.training import Optimizer, Precision

FP32 = 4
KRONECKER = ("soap", "shampoo")
"""optimizers of this kind"""
BY_MATRIX = ("muon", "soap")
"""optimizers of the matrices of layers; AdamW steps all other weights"""
_LONGEST = {"soap": 10_000, "shampoo": 1024}
_FREQUENCY = {"soap": 10, "shampoo": 1}


@dataclass(frozen=True, slots=True)
class Preconditioned:
    """Equal tensors that are preconditioned one by one: what one rank has of them."""

    shape: tuple[int, ...]
    number: int = 1
    sides: tuple[int, ...] = ()
    """those that have a factor"""

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.shape) * self.number

    @property
    def factors(self) -> int:
        """Elements of the factors."""
        return self.number * sum(side * side for side in self.sides)


@dataclass(frozen=True, slots=True)
class Preconditioner:
    """What the optimizer does with them."""

    name: str
    longest: int = 0
    """side above which there is no factor (SOAP), or of a block (Shampoo); 0: as long as they are"""
    frequency: int = 1
    """steps from one renewal of eigenvectors or roots to the next"""
    divergence: bool = False
    """SOAP: factors are KL-Shampoo's, and eigenvalues are kept"""

    @classmethod
    def of(cls, optimizer: Optimizer, *, megatron: bool) -> Preconditioner:
        """As the optimizer of a stack is set."""
        alone = megatron and optimizer.name == "soap"
        longest = optimizer.max_preconditioner_dim or (0 if alone else _LONGEST[optimizer.name])
        frequency = optimizer.precondition_frequency or (1 if alone else _FREQUENCY[optimizer.name])
        return cls(optimizer.name, longest, frequency, alone)

    def matrices(self, matrices: Iterable[Matrix]) -> list[Preconditioned]:
        """Whole matrices, with factors of the sides that are short enough."""
        found = []
        for matrix in matrices:
            shape = (matrix.rows, matrix.columns)
            found.append(Preconditioned(shape, matrix.number, tuple(side for side in shape if not self.longest or side <= self.longest)))
        return found

    def blocks(self, shape: Sequence[int]) -> list[Preconditioned]:
        """A tensor as Shampoo cuts it: dimensions that are short together are one.

        >>> [(one.shape, one.number) for one in Preconditioner("shampoo", 1024).blocks((2048, 1500))]
        [((1024, 1024), 2), ((1024, 476), 2)]
        """
        sides = [_pieces(side, self.longest) for side in merged(shape, self.longest)]
        found = Counter(tuple(sizes) for sizes in product(*sides))
        return [Preconditioned(block, number, block) for block, number in found.items()]

    # -- what it takes ------------------------------------------------------------------------------------------------

    def states(self, precision: Precision, tensors: Sequence[Preconditioned]) -> list[State]:
        """State tensors beside a master copy."""
        count, factors = sum(one.count for one in tensors), sum(one.factors for one in tensors)
        made = "eigenvectors" if self.name == "soap" else "inverse_roots"
        states = [State(name, precision.optimizer_element * count) for name in ("exp_avg", "exp_avg_sq")]
        states += [State(name, FP32 * factors) for name in ("factors", made)]
        if self.divergence:
            states.append(State("eigenvalues", FP32 * sum(one.number * sum(one.sides) for one in tensors)))
        return states

    def state_bytes(self, precision: Precision, tensors: Sequence[Preconditioned]) -> int:
        """Bytes of them."""
        return sum(state.bytes for state in self.states(precision, tensors))

    @property
    def products(self) -> int:
        """Of the whole gradient with a matrix per side, in every step."""
        return 2 if self.name == "shampoo" else 5 + self.divergence

    def step_flop(self, tensors: Iterable[Preconditioned]) -> int:
        """Operations of every step [FLOP]."""
        return sum(self.products * 2 * one.count * sum(one.sides) for one in tensors)

    def renewal_flop(self, tensors: Iterable[Preconditioned]) -> float:
        """Operations of making all eigenvectors or roots anew [FLOP].

        >>> round(Preconditioner("soap").renewal_flop([Preconditioned((3, 3), 1, (3, 3))])), 2 * (6 * 27 + 8 * 9)
        (468, 468)
        """
        cubes = sum(one.number * sum(side**3 for side in one.sides) for one in tensors)
        return cubes * (8.0 if self.name == "shampoo" else 6 + 8 / 3)

    def kernels(self, tensors: Iterable[Preconditioned]) -> list[Kernel]:
        """Products and renewals of a mean step."""
        found: list[Kernel] = []
        for one in tensors:
            whole = prod(one.shape)
            gemms = [Gemm(side, whole // side, side, dtype="fp32", element=FP32) for side in one.sides]
            averaged = [Memory(3.0 * FP32 * side * side) for side in one.sides]
            found += [*(gemms * self.products), *averaged] * one.number
            found += [self._renewal(replace(one, sides=(side,))) for side in one.sides]
        return found

    def _renewal(self, one: Preconditioned) -> Factorisation:
        (side,) = one.sides
        passes = 2 if self.name == "shampoo" else 1
        moved = FP32 * 2 / 3 * side**3 * one.number if self.name == "shampoo" else 0.0
        columns = max(1, round(passes * side * one.number / self.frequency))
        return Factorisation(moved / self.frequency, self.renewal_flop([one]) / self.frequency, columns)

    def elementwise(self, optimizer: Optimizer, precision: Precision, count: int, tensors: int) -> list[Kernel]:
        """Moments and the update of `count` elements, as many passes as AdamW makes; Shampoo's grafting takes two norms and scales."""
        if not count:
            return []
        kept = (precision.master + 2 * precision.optimizer_element) * count
        found: list[Kernel] = [
            update(
                replace(optimizer, name="adamw", implementation="loop" if self.name == "soap" else "foreach"),
                precision,
                count,
                kept,
                tensors,
            )
        ]
        return [*found, Memory(2.0 * FP32 * count, launches=2), Memory(2.0 * FP32 * count)] if self.name == "shampoo" else found

    @staticmethod
    def workspace(tensors: Iterable[Preconditioned]) -> int:
        """Bytes that live while one tensor is stepped: gradient, its rotation and the update; or a factor's products [B]."""
        return max((3 * FP32 * max(prod(one.shape), *(side * side for side in one.sides or (0,))) for one in tensors), default=0)


def merged(shape: Sequence[int], longest: int) -> tuple[int, ...]:
    """Neighbouring dimensions together, from the last one on, while they are no more than `longest`; those of 1 are dropped.

    >>> merged((1, 2, 5, 1), 10), merged((32, 3, 64, 64), 8192), merged((4096, 1024), 1024)
    ((10,), (96, 4096), (4096, 1024))
    """
    sides = [side for side in shape if side != 1] or [1]
    found = [sides[-1]]
    for side in reversed(sides[:-1]):
        if found[0] * side <= longest:
            found[0] *= side
        else:
            found.insert(0, side)
    return tuple(found)


def _pieces(side: int, longest: int) -> list[int]:
    whole, rest = divmod(side, longest)
    return [longest] * whole + [rest] * (rest > 0)


def dealt(tensors: Iterable[Preconditioned], ranks: int) -> list[list[Preconditioned]]:
    """Blocks of each rank: the largest first, to the rank that has fewest elements (distribute_buffer_sizes)."""
    owned: list[Counter[Preconditioned]] = [Counter() for _ in range(ranks)]
    loads = [0] * ranks
    for tensor in sorted(tensors, key=lambda one: -prod(one.shape)):
        one = replace(tensor, number=1)
        for _ in range(tensor.number):
            least = min(range(ranks), key=loads.__getitem__)
            owned[least][one] += 1
            loads[least] += one.count
    return [[replace(one, number=number) for one, number in own.items()] for own in owned]
