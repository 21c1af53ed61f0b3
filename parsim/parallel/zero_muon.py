"""Muon under DeepSpeed's ZeRO-1 and ZeRO-2, which cut all matrices as one flat tensor in N equal parts.

A rank orthogonalises every matrix of which some element is in its part, the whole of it; a matrix on a border is done by all ranks that
have some of it.

===========  =============================================================================================================
what         how
===========  =============================================================================================================
gradients    as ever, but those of matrices on a border are all-reduced
momentum     of whole matrices, in the type in which gradients are accumulated
iteration    on Gram matrices, in 16 bits (`gram_iteration`), of the update that the momentum makes
step         the norm and the clipping are of orthogonal updates, then weights decay and the own part is added
weights      gathered as ever
===========  =============================================================================================================

The ranks wait for the one with most work in the gather of the weights. What is no matrix of a layer is flat by itself, and AdamW's.
Source: deepspeed/runtime/zero/stage_1_and_2.py (average_tensor: muon_copy_ranks; get_flat_partition), muon/original_muon.py
(muon_update, zeropower_via_gram_newtonschulz), muon/muon_optimizer.py (MuonWithAuxAdam), deepspeed/__init__.py (set_optimizer_flags).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from parsim.kernel import Memory
from parsim.parallel.buckets import Bucket
from parsim.parallel.hooks import Emitter, Weight
from parsim.parallel.muon import Matrix, MatrixTensor, NewtonSchulz, flop_of, momentum_kernels, tensors_of, update_kernels, workspace
from parsim.parallel.optimizer import State, before_update, behind_update, masters
from parsim.parallel.replicated import LANE
from parsim.parallel.zero import ZeroOptimizer


def parts(tensors: Sequence[MatrixTensor], ranks: int) -> list[list[MatrixTensor]]:
    """The tensors of which each rank has some element, where all of them, one behind the other, are cut in equal parts."""
    share = -(-sum(tensor.count for tensor in tensors) // ranks)
    found: list[list[MatrixTensor]] = [[] for _ in range(ranks)]
    begin = 0
    for tensor in tensors:
        end = begin + tensor.count
        for rank in range(begin // share, (end - 1) // share + 1):
            found[rank].append(tensor)
        begin = end
    return found


@dataclass
class PartitionedMuon(ZeroOptimizer):
    """See the module's table. Its weights are matrices only."""

    @cached_property
    def _parts(self) -> list[list[MatrixTensor]]:
        return parts(tensors_of(self._trainable, self.training.optimizer, self.layout), self.size)

    @cached_property
    def _shared(self) -> frozenset[str]:
        """Weights that several ranks orthogonalise."""
        seen: set[str] = set()
        twice: set[str] = set()
        for part in self._parts:
            names = {weight.name for tensor in part for weight in tensor.weights}
            twice |= seen & names
            seen |= names
        return frozenset(twice)

    @property
    def _held(self) -> int:
        """Elements of whole matrices of the rank that has most."""
        return max((sum(tensor.count for tensor in part) for part in self._parts), default=0)

    def _orthogonalised(self) -> Sequence[Matrix]:
        steps = self.training.optimizer.newton_schulz_steps
        work = [[matrix for tensor in part for matrix in tensor.matrices] for part in self._parts]
        return max(work, key=lambda matrices: flop_of(matrices, steps, gram=True), default=[])

    def _state_list(self) -> list[tuple[Weight, State]]:
        if not self.shard:
            return []
        own, precision = Weight(f"{self.label}flat shard", self.weights[0].parameter, self.shard, 0), self.training.precision
        return [(own, state) for state in (*masters(precision, self.shard), State("momentum_buffer", precision.gradients * self._held))]

    def _gradient_shard(self, at: Emitter) -> str:
        return at.tensor(f"{self.label}gradient shard", self._held * self.training.precision.gradients, "gradients")

    def _reduce(self, bucket: Bucket, at: Emitter) -> int:
        """Matrices on a border go to all ranks, the others to those that have them."""
        shared = sum(weight.count for weight in bucket.weights if weight.name in self._shared)
        precision, after = self.training.precision, self._pack(bucket, at)
        allocates = [self._gradient_shard(at)] if self.stage == 2 and at.first and bucket.index == 0 else []
        frees = []
        if self.stage == 1 and not self.data.overlap_reduce:
            frees = [at.tensor(f"{self._name(bucket)}.joined", bucket.count * precision.reduce, "buffers")]
        counts = {"reduce_scatter": bucket.count - shared, "all_reduce": shared}
        sent = [(kind, count) for kind, count in counts.items() if count]
        handle = 0
        for place, (kind, count) in enumerate(sent):
            first, last = place == 0, place == len(sent) - 1
            handle = at.collective(
                kind,
                self.group,
                count * precision.reduce,
                self._name(bucket),
                lane=LANE,
                blocking=not self.data.overlap_reduce,
                after=after if first else None,
                allocates=[*allocates, *frees] if first else [],
                frees=frees if last else [],
            )
        if self.stage == 2 and not at.first:
            mine = (bucket.count - shared) // self.size + shared
            at.compute("", "compute", (Memory(3.0 * mine * precision.gradients),))
        return handle

    def _step_matrices(self, at: Emitter, count: int, temporary: Sequence[str]) -> None:
        """`count` elements are the own part; matrices are whole."""
        optimizer, precision, matrices = self.training.optimizer, self.training.precision, self._orthogonalised()
        whole = sum(matrix.count for matrix in matrices)
        space = at.tensor(f"{self.label}optimizer.newton-schulz", workspace(matrices), "temporaries")
        at.compute("optimizer", "optimizer", momentum_kernels(precision, whole), allocates=[*temporary, space])
        NewtonSchulz(optimizer.newton_schulz_steps, "blockwise", self.layout, gram=True).run(matrices, at)
        at.compute("", "optimizer", (), frees=[space])
        at.compute("", "optimizer", before_update(optimizer, precision, count))
        at.compute("", "optimizer", [*update_kernels(precision, count)[1:], *behind_update(precision, count)])
