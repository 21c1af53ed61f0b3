"""Megatron-LM's layer-wise distributed optimizer: data-parallel ranks own whole matrices, which Muon orthogonalises or SOAP steps.

==============  =============================================  ==============================================================
what            compact (the default)                          padded (--use-layer-wise-param-layout)
==============  =============================================  ==============================================================
buckets         Megatron's: max(40e6, 1e6 N) elements          closed at max(that, 0.9 N x the largest matrix) elements
owners          of all matrices, the smallest first, to ranks  in each bucket the largest first, to the rank with the fewest
                0, 1, ... N - 1, N - 1, ... 1, 0, 0, ...       elements so far (LPT)
gradients       all-reduce of a bucket                         reduce-scatter: N parts, each as long as the longest
weights         all-gather of parts of any length, through     all-gather of the same N parts
                buffers of all of them
==============  =============================================  ==============================================================

What AdamW steps lies in buckets of its own, cut by bytes as ever. Every rank orthogonalises the matrices it owns, and all wait for
the slowest in the all-gather: the rank that is simulated has the most elements of any, and the most work of any.
Source: megatron/core/optimizer/layer_wise_optimizer.py (_compute_per_buffer_param_layout, _shard_params_ping_pong, allgather_params,
is_managed_by_layer_wise_optimizer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

from parsim.kernel import Memory
from parsim.parallel.buckets import Bucket, megatron_bucket
from parsim.parallel.hooks import Emitter, Weight
from parsim.parallel.muon import Matrix, MatrixTensor, flop_of, tensors_of
from parsim.parallel.optimizer import State, masters, states
from parsim.parallel.replicated import LANE
from parsim.parallel.zero import ZeroOptimizer

PADDING_FLOOR = 0.9
ALIGNMENT = 64
"""elements of which a rank's part of a padded bucket is a multiple"""


@dataclass(frozen=True, slots=True)
class PaddedBucket(Bucket):
    """A bucket whose parts are equally long."""

    padded: int = 0

    @property
    def count(self) -> int:
        """Elements, those that fill parts up among them."""
        return self.padded


@dataclass(frozen=True, slots=True)
class Owned:
    """What one rank owns."""

    matrices: tuple[Matrix, ...] = ()

    @property
    def count(self) -> int:
        """Elements."""
        return sum(matrix.count for matrix in self.matrices)


def _one_by_one(tensors: Sequence[MatrixTensor]) -> list[Owned]:
    """What can be owned: stored tensors, of which every expert has its own."""
    return [Owned(tuple(replace(m, number=1) for m in t.matrices)) for t in tensors for _ in range(t.matrices[0].number)]


def longest_first(tensors: Sequence[MatrixTensor], ranks: int) -> list[Owned]:
    """Who owns what: the largest first, to the rank that has least."""
    owned: list[list[Matrix]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for tensor in sorted(_one_by_one(tensors), key=lambda one: -one.count):
        least = min(range(ranks), key=loads.__getitem__)
        owned[least] += tensor.matrices
        loads[least] += tensor.count
    return [Owned(tuple(matrices)) for matrices in owned]


def ping_pong(tensors: Sequence[MatrixTensor], ranks: int) -> list[Owned]:
    """Who owns what: the smallest first, to the ranks upwards and downwards in turn."""
    owned: list[list[Matrix]] = [[] for _ in range(ranks)]
    turns = cycle([*range(ranks), *reversed(range(ranks))])
    for tensor, rank in zip(sorted(_one_by_one(tensors), key=lambda one: one.count), turns, strict=False):
        owned[rank] += tensor.matrices
    return [Owned(tuple(matrices)) for matrices in owned]


@dataclass
class LayerWiseOptimizer(ZeroOptimizer):
    """See the module's table. Its weights are matrices only."""

    _owned: list[Owned] = field(init=False, default_factory=list)
    _busiest: tuple[Matrix, ...] = field(init=False, default=())
    """matrices of the rank that has the most work"""

    @property
    def _padded(self) -> bool:
        return self.training.optimizer.padded_parts

    def _assign(self) -> list[Bucket]:
        optimizer = self.training.optimizer
        tensors = tensors_of(self._trainable, optimizer, self.layout)
        if self._padded:
            buckets, self._owned = self._filled(list(reversed(tensors)))
        else:
            buckets, self._owned = super()._assign(), ping_pong(tensors, self.size)
        work = [self._work(own.matrices) for own in self._owned]
        self._busiest = self._owned[work.index(max(work))].matrices
        return buckets

    def _work(self, matrices: Sequence[Matrix]) -> float:
        """Operations of a step on these matrices."""
        optimizer = self.training.optimizer
        if optimizer.name == "muon":
            return flop_of(matrices, optimizer.newton_schulz_steps, optimizer.tensor_mode, self.layout.ranks)
        tensors = self._preconditioner.matrices(matrices)
        return self._preconditioner.step_flop(tensors) + self._preconditioner.renewal_flop(tensors) / self._preconditioner.frequency

    def _filled(self, tensors: Sequence[MatrixTensor]) -> tuple[list[Bucket], list[Owned]]:
        """Padded buckets of tensors in the order of backward, and who owns what of all of them."""
        size = megatron_bucket(self.replicas or self.size)
        if self.data.bucket is not None:
            amount, unit = self.data.bucket
            size = amount if unit == "elements" else amount / self.training.precision.reduce
        owned: list[list[Matrix]] = [[] for _ in range(self.size)]
        buckets: list[Bucket] = []
        held: list[MatrixTensor] = []
        for place, tensor in enumerate(tensors):
            held.append(tensor)
            largest = max(one.count for one in _one_by_one(held))
            full = sum(one.count for one in held) >= max(size, int(self.size * largest * PADDING_FLOOR))
            if not full and place < len(tensors) - 1:
                continue
            parts = longest_first(held, self.size)
            padded = -(-max(part.count for part in parts) // ALIGNMENT) * ALIGNMENT * self.size
            buckets.append(PaddedBucket(len(buckets), tuple(w for one in held for w in one.weights), padded))
            for rank, part in enumerate(parts):
                owned[rank] += part.matrices
            held = []
        return buckets, [Owned(tuple(matrices)) for matrices in owned]

    @property
    def count(self) -> int:
        """Elements of the buckets."""
        return sum(bucket.count for bucket in self.buckets)

    @property
    def shard(self) -> int:
        """Elements of the rank that owns most."""
        return max((own.count for own in self._owned), default=0)

    def resident(self, at: Emitter) -> list[str]:
        """Besides, what fills up the buffer of the weights."""
        filled = self.count - sum(weight.count for weight in self._trainable)
        size = filled * self.training.precision.parameters
        padding = [at.tensor(f"{self.label}padding of weights", size, "parameters")] if size else []
        return [*super().resident(at), *padding]

    def _state_list(self) -> list[tuple[Weight, State]]:
        if not self.shard:
            return []
        own = Weight(f"{self.label}owned", self.weights[0].parameter, self.shard, 0)
        if self.training.optimizer.name == "soap":
            fullest = max(self._owned, key=lambda owned: sum(state.bytes for state in self._states_of(owned)))
            return [(own, state) for state in self._states_of(fullest)]
        return [(own, state) for state in states(self.training.optimizer, self.training.precision, (self.shard,), self.shard)]

    def _states_of(self, own: Owned) -> list[State]:
        """SOAP's states of what a rank owns."""
        precision = self.training.precision
        return [*masters(precision, own.count), *self._preconditioner.states(precision, self._preconditioner.matrices(own.matrices))]

    def _reduce(self, bucket: Bucket, at: Emitter) -> int:
        if self._padded:
            return super()._reduce(bucket, at)
        self._average(bucket.count, at)
        size = bucket.count * self.training.precision.reduce
        return at.collective("all_reduce", self.group, size, self._name(bucket), lane=LANE, blocking=not self.data.overlap_reduce)

    def step(self, at: Emitter) -> None:
        """Orthogonalise and step the own matrices, drop the gradients."""
        self._let_go = set()
        self._step(at, sum(matrix.count for matrix in self._busiest), 1, 0)
        self._drop_gradients(at)

    def _orthogonalised(self) -> Sequence[Matrix]:
        return self._busiest

    def distribute(self, at: Emitter) -> None:
        """Gather the stepped weights, unless the next forward does: parts of any length through a buffer of their own."""
        if self._padded or self.data.overlap_gather or not self._updates:
            super().distribute(at)
            return
        size = self.count * self.training.precision.parameters
        buffer = [at.tensor(f"{self.label}gathered", size, "buffers")]
        name = f"weights {self.label}owned"
        at.collective("all_gather", self.group, size, name, lane=LANE, blocking=True, allocates=buffer)
        at.compute("", "optimizer", [Memory(2.0 * size)], frees=buffer)
