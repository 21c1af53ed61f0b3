"""Distributed Shampoo (Shi et al. 2023, arXiv 2309.06497) as facebookresearch/optimizers runs it.

==========  ===================================================  =====================================================================
where       who steps what                                       messages
==========  ===================================================  =====================================================================
DDP         blocks are dealt to all replicas, the largest first,  all-gather of search directions in fp32, as many for every rank as
            to the rank that has fewest elements; states are      the fullest has; all ranks add all of them
            with their blocks
FSDP2       every rank cuts its own rows of each weight into      none
            blocks: rows of other ranks are not in its factors
==========  ===================================================  =====================================================================

Gradients are reduced as ever: under DDP all ranks have all of them.
Sources: distributed_shampoo/distributor (shampoo_ddp_distributor.py: num_trainers_per_group -1, communication_dtype fp32;
shampoo_fully_shard_distributor.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from parsim.kernel import Memory
from parsim.parallel.ddp import DistributedDataParallel
from parsim.parallel.fsdp import FullyShardedDataParallel
from parsim.parallel.hooks import Emitter, Weight
from parsim.parallel.kronecker import FP32, Preconditioned, dealt
from parsim.parallel.optimizer import State, behind_update
from parsim.parallel.replicated import LANE


@dataclass
class DistributedShampoo(DistributedDataParallel):
    """Replicas that step a part of the blocks each; see the module's table."""

    @cached_property
    def _dealt(self) -> list[list[Preconditioned]]:
        return dealt(self._blocks(), self.size)

    def _stepped_blocks(self, *, fullest: bool) -> list[Preconditioned]:
        method, precision = self._preconditioner, self.training.precision
        if fullest:
            return max(self._dealt, key=lambda own: method.state_bytes(precision, own))
        return max(self._dealt, key=lambda own: method.step_flop(own) + method.renewal_flop(own) / method.frequency)

    @property
    def _gathered(self) -> int:
        """Bytes of the directions of all ranks, each as long as the longest [B]."""
        return self.size * FP32 * max(sum(one.count for one in own) for own in self._dealt)

    def resident(self, at: Emitter) -> list[str]:
        """Besides, the buffer in which directions are gathered."""
        steps = self.training.step and self.training.backward
        return [*super().resident(at), *([at.tensor("search directions", self._gathered, "buffers")] if steps else [])]

    def _add_directions(self, at: Emitter, count: int) -> None:
        """Those of other ranks have to be there."""

    def distribute(self, at: Emitter) -> None:
        """Gather what the ranks have found, and add it to the weights."""
        if not (self.training.step and self.training.backward):
            return
        at.collective("all_gather", self.group, self._gathered, "search directions", lane=LANE, blocking=True)
        precision, count = self.training.precision, sum(weight.count for weight in self._trainable)
        added = Memory(float((FP32 + 2 * (precision.master or precision.parameters)) * count))
        at.compute("", "optimizer", [added, *behind_update(precision, count)])


@dataclass
class ShardedShampoo(FullyShardedDataParallel):
    """Ranks that step the rows that they have; see the module's table."""

    def _blocks(self) -> list[Preconditioned]:
        rows = [(self._share(w.parameter.shape[0]), *w.parameter.shape[1:]) for w in self._trainable]
        return [block for shape in rows for block in self._preconditioner.blocks(shape)]

    def _state_list(self) -> list[tuple[Weight, State]]:
        return self._block_states()
