"""Distributed Shampoo (Shi et al. 2023, arXiv 2309.06497) as facebookresearch/optimizers runs it.

==========  ===================================================  =====================================================================
where       who steps what                                       messages
==========  ===================================================  =====================================================================
DDP         blocks are dealt to all replicas, the largest first,  all-gather of search directions in fp32, as many for every rank as
            to the rank that has fewest elements; states are      the fullest has; all ranks add all of them
            with their blocks
FSDP2       every rank cuts its own rows of each weight into      none
            blocks: rows of other ranks are not in its factors
HSDP        so, and the blocks of equal rows are dealt to the     as under DDP, among the ranks with the same rows
            ranks that have them
==========  ===================================================  =====================================================================

Gradients are reduced as ever: under DDP all ranks have all of them.
Sources: distributed_shampoo/distributor (shampoo_ddp_distributor.py: num_trainers_per_group -1, communication_dtype fp32;
shampoo_fully_shard_distributor.py, shampoo_hybrid_shard_distributor.py).
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
from parsim.parallel.replicated import LANE, Replicated


class DealtBlocks(Replicated):
    """Ranks with the same weights, or rows of them, that step a part of the blocks each."""

    @property
    def _sharers(self) -> tuple[str, int]:
        """Group of the ranks among which blocks are dealt, and how many they are."""
        raise NotImplementedError

    @cached_property
    def _dealt(self) -> list[list[Preconditioned]]:
        return dealt(self._blocks(), self._sharers[1])

    def _stepped_blocks(self, *, fullest: bool) -> list[Preconditioned]:
        method, precision = self._preconditioner, self.training.precision
        if fullest:
            return max(self._dealt, key=lambda own: method.state_bytes(precision, own))
        return max(self._dealt, key=lambda own: method.step_flop(own) + method.renewal_flop(own) / method.frequency)

    @property
    def _gathers(self) -> bool:
        return self.training.step and self.training.backward and self._sharers[1] > 1

    @property
    def _gathered(self) -> int:
        """Bytes of the directions of all ranks, each as long as the longest [B]."""
        return self._sharers[1] * FP32 * max(sum(one.count for one in own) for own in self._dealt)

    def resident(self, at: Emitter) -> list[str]:
        """Besides, the buffer in which directions are gathered."""
        return [*super().resident(at), *([at.tensor("search directions", self._gathered, "buffers")] if self._gathers else [])]

    def _add_directions(self, at: Emitter, count: int) -> None:
        """Those of other ranks have to be there."""
        if not self._gathers:
            super()._add_directions(at, count)

    def distribute(self, at: Emitter) -> None:
        """Gather what the ranks have found, and add it to the weights."""
        super().distribute(at)
        if not self._gathers:
            return
        at.collective("all_gather", self._sharers[0], self._gathered, "search directions", lane=LANE, blocking=True)
        precision, count = self.training.precision, sum(block.count for block in self._blocks())
        added = Memory(float((FP32 + 2 * (precision.master or precision.parameters)) * count))
        at.compute("", "optimizer", [added, *behind_update(precision, count, masters_only=self.masters_only)])


@dataclass
class DistributedShampoo(DealtBlocks, DistributedDataParallel):
    """Replicas under DDP; see the module's table."""

    @property
    def _sharers(self) -> tuple[str, int]:
        return self.group, self.size


@dataclass
class ShardedShampoo(DealtBlocks, FullyShardedDataParallel):
    """Ranks that step the rows that they have, or a part of them; see the module's table."""

    @property
    def _sharers(self) -> tuple[str, int]:
        return self.groups[1], self.copies

    def _blocks(self) -> list[Preconditioned]:
        rows = [(self._share(w.parameter.shape[0]), *w.parameter.shape[1:]) for w in self._trainable]
        return [block for shape in rows for block in self._preconditioner.blocks(shape)]

    def _state_list(self) -> list[tuple[Weight, State]]:
        return self._block_states()
