"""ZeRO-3 as DeepSpeed ran it in 2021 (v0.3.13 to v0.5): every weight is gathered and reduced by itself, through lists of tensors.

=====================  ================================================================================
when                   what
=====================  ================================================================================
before a unit          each weight of more than 1e5 elements is gathered on its own; the thread that launches kernels first lists a
                       view of it for every rank, with the device at rest (``torch.cuda.synchronize`` in _allgather_param). The unit
                       ahead is gathered beside the compute, unless one of its weights alone exceeds `max_live_parameters`
before its backward    the same for the recomputation, and once more for those weights whose backward is farther from that than
                       `max_reuse_distance`
gradients complete     each one is divided, listed and reduce-scattered on its own, small ones too, and compute waits unless
                       `overlap_reduce`
behind the step        small weights, which stay whole on every rank, are gathered at once and copied out rank by rank and weight by weight
=====================  ================================================================================

An entry of a list costs the launching thread ``software.host.per_list_entry``. With 1,536 ranks that is 18 ms a weight, whatever its size,
which is why a step took as long on 1,536 GPUs as on 768 (Narayanan et al. 2021, 2104.04473, table 2). ProcessGroupNCCL copies between the
list and the flat tensor that it communicates (PyTorch 1.8, flatten_for_scatter_gather).

Source: deepspeedai/DeepSpeed v0.3.15, deepspeed/runtime/zero/partition_parameters.py (_allgather_param, _allgather_params,
_reduce_scatter_gradient) and stage3.py (PartitionedParameterCoordinator, step; the defaults of the constants below). Collectives on flat
tensors of many weights came in v0.5.9 and are what `parsim.parallel.fsdp` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parsim.kernel import Fixed, Memory
from parsim.parallel.copies import GATHERS
from parsim.parallel.fsdp import ROOT, FullyShardedDataParallel
from parsim.parallel.groups import SHARD
from parsim.parallel.hooks import START, Emitter, Unit, Weight
from parsim.parallel.replicated import LANE

PERSISTENCE_THRESHOLD = 100_000
"""param_persistence_threshold: weights of no more elements stay whole"""
MAX_REUSE_DISTANCE = 1_000_000_000
"""max_reuse_distance: elements that are used between two uses of a weight, from which on it is let go"""
MAX_LIVE_PARAMETERS = 1_000_000_000
"""max_live_parameters: elements that are gathered, from which on nothing is prefetched"""


@dataclass
class ListedZero3(FullyShardedDataParallel):
    """See the module's table."""

    _again: dict[str, int] = field(init=False, default_factory=dict)
    """unit -> handle of its last second gather in this backward"""

    def _large(self, unit: Unit) -> list[Weight]:
        """The weights that are gathered when they are used."""
        return [weight for weight in unit.weights if weight.count > PERSISTENCE_THRESHOLD]

    def _small(self) -> list[Weight]:
        """The weights that stay whole."""
        return [weight for unit in self.units for weight in unit.weights if weight.count <= PERSISTENCE_THRESHOLD]

    def _let_go_between(self, unit: Unit) -> list[Weight]:
        """The weights that recomputation gathers and backward gathers again: the later ones are used twice before theirs."""
        if self.training.recompute.mode not in ("full", "every"):
            return []
        behind, far = 0, []
        for weight in reversed(self._large(unit)):
            if 2 * behind >= MAX_REUSE_DISTANCE:
                far.append(weight)
            behind += weight.count
        return far

    def _prefetched(self, unit: Unit) -> bool:
        return all(weight.count < MAX_LIVE_PARAMETERS for weight in unit.weights)

    def _list(self, lists: int, at: Emitter) -> None:
        """The launching thread makes that many lists with an entry for every rank, and nothing else is launched meanwhile."""
        if seconds := lists * self.size * self.runtime.host.per_list_entry:
            at.compute("lists", "launch", (Fixed(seconds),))

    def resident(self, at: Emitter) -> list[str]:
        """Besides shards: the weights that stay whole."""
        size = sum(weight.count for weight in self._small()) * self._gathered_element
        return [*super().resident(at), *([at.tensor("persistent parameters", size, "parameters")] if size else [])]

    # -- gathers --------------------------------------------------------------------------------------------------

    def _gather(self, unit: Unit, at: Emitter, after: Sequence[int]) -> None:
        if unit.name in self._issued or unit.name in self._live:
            return
        self._live.add(unit.name)
        at.compute("", "compute", (), allocates=[self._whole(unit, at)])
        if (gathered := self._gather_each(self._large(unit), at)) is not None:
            self._issued[unit.name] = gathered

    def _gather_each(self, weights: Sequence[Weight], at: Emitter) -> int | None:
        """Gather some weights one by one, and return the handle of the last."""
        handle = None
        for weight in weights:
            self._list(1, at)
            size = weight.count * self._gathered_element
            handle = at.collective("all_gather", SHARD, size, f"{weight.name} weights", lane=LANE)
            handle = at.beside(f"copy {weight.name} weights out", (Memory(2.0 * size),), stream=GATHERS, after=[handle])
        return handle

    def before_forward(self, unit: Unit, at: Emitter) -> None:
        """Wait for this unit, and gather the next ones beside it."""
        self._fetch_and_prefetch(unit, min(self.data.prefetch, self.data.limit_gathers - 1), at)

    def _fetch_and_prefetch(self, unit: Unit, ahead: int, at: Emitter) -> None:
        self._gather(unit, at, [START])
        if unit.name in self._issued:
            at.wait(self._issued[unit.name])
        if unit.name != ROOT:
            place = self._place[unit.name] + 1
            for coming in filter(self._prefetched, self._order[place : place + ahead]):
                self._gather(coming, at, [START])

    def before_backward(self, unit: Unit, at: Emitter) -> None:
        """The same; and gather again what the unit's recomputation will have let go."""
        self._fetch_and_prefetch(unit, self.data.prefetch, at)
        if (again := self._gather_each(self._let_go_between(unit), at)) is not None:
            self._again[unit.name] = again
            if not self._prefetched(unit):
                at.wait(again)

    def after_backward(self, unit: Unit, at: Emitter) -> None:
        """Reduce the gradients and free the unit."""
        if unit.name in self._again:
            at.wait(self._again.pop(unit.name))
        super().after_backward(unit, at)

    # -- reductions -----------------------------------------------------------------------------------------------

    def _reduce(self, unit: Unit, count: int, at: Emitter) -> None:
        """Divide, list and reduce-scatter every gradient of the unit, and add what comes of them to the own share."""
        element, share = self.training.precision.reduce, self._share(count)
        keep = [self._shard_gradient(unit, at)] if at.first else []
        weights = [weight for weight in unit.weights if weight.trains]
        for weight in weights:
            self._list(1, at)
            at.compute("", "compute", [Memory(2.0 * weight.count * element), Memory(2.0 * weight.count * element)])
            at.collective(
                "reduce_scatter",
                SHARD,
                weight.count * element,
                f"{weight.name} grads",
                lane=self._reduce_lane,
                blocking=not self.data.overlap_reduce,
                allocates=keep if weight is weights[0] else (),
                frees=self._gradients(unit, unit.weights, at) if weight is weights[-1] else (),
            )
        at.compute("", "compute", self._copies.behind_reduce(share, adds=not at.first))

    def distribute(self, at: Emitter) -> None:
        """Gather the small weights."""
        small = self._small()
        if small and self.training.step and self.training.backward:
            self._list(1 + len(small), at)
            size = sum(weight.count for weight in small) * self._gathered_element
            at.collective("all_gather", SHARD, size, "persistent parameters", lane=LANE, blocking=True)
