"""ZeRO-3 as DeepSpeed 0.3.15 ran it (April 2021, when the comparison of SC21 was made), as far as its source says what it did.

What differs from the ZeRO-3 of today (`parsim.parallel.fsdp`), with the place in microsoft/DeepSpeed v0.3.15:

- Parameters are gathered one by one (``_allgather_param``, runtime/zero/partition_parameters.py); those below 1e5 elements are not sharded
  (``stage3_param_persistence_threshold``).
- Before every gather the host waits for the device (``torch.cuda.synchronize()`` in ``_allgather_param``), builds a list of one view per
  rank and hands it to ``torch.distributed.all_gather``, which copies every rank's part out of a buffer of its own
  (``ProcessGroupNCCL::allgather``, PyTorch 1.8): the device idles meanwhile, in proportion to the number of ranks. Gradients are
  reduce-scattered from such a list too (``_reduce_scatter_gradient``).
- Under activation checkpointing a parameter is released after its recomputed forward unless it is used again within 1e9 elements
  (``stage3_max_reuse_distance``), and then gathered a third time.
- A gathered tensor is zeroed first, and the norm of every parameter is taken for a message that is not printed (``fetch_sub_module``).
"""

from __future__ import annotations

from collections.abc import Sequence

from parsim.kernel import Fixed, Memory
from parsim.parallel.fsdp import SHARD, FullyShardedDataParallel
from parsim.parallel.hooks import Emitter, Unit, Weight
from parsim.parallel.replicated import LANE

PERSISTENT = 1e5
"""elements below which a parameter is not sharded"""
REUSE_DISTANCE = 1e9
"""elements"""
PART = 9e-6
"""host time for one rank's part of a list: a view made in Python, a copy issued from C++ [s]. An assumption: an eager PyTorch kernel
costs the launching thread 5-20 us"""


class ZeroThreeOf2021(FullyShardedDataParallel):
    """See the module's text; everything else is as today."""

    def _large(self, unit: Unit) -> list[Weight]:
        return [weight for weight in unit.weights if weight.count >= PERSISTENT]

    def _again(self, unit: Unit) -> list[Weight]:
        """Parameters that are released between their recomputed forward and their backward: too much is used in between."""
        large = self._large(unit)
        behind = [2 * sum(later.count for later in large[place + 1 :]) for place in range(len(large))]
        return [weight for weight, distance in zip(large, behind, strict=True) if distance > REUSE_DISTANCE]

    def _gather(self, unit: Unit, at: Emitter, after: Sequence[int], again: Sequence[Weight] = ()) -> None:
        size = self._gathered_bytes(unit)
        if unit.name in self._issued or unit.name in self._live or not size:
            return
        self._live.add(unit.name)
        element = self._gathered_element
        allocates = [self._whole(unit, at)]
        for weight in (*self._large(unit), *again):
            at.compute("", "compute", (Fixed(self.size * PART), Memory(4.0 * weight.count * element)))  # zeroed, copied, its norm taken
            self._issued[unit.name] = at.collective(
                "all_gather", SHARD, weight.count * element, f"{weight.name} gathered", lane=LANE, after=after, allocates=allocates
            )
            allocates = []

    def before_backward(self, unit: Unit, at: Emitter) -> None:
        """Prefetch as today, but what is released in between is gathered once more."""
        for ahead in self._order[self._order.index(unit) :][:2] if unit in self._order else [unit]:
            self._gather(ahead, at, self._after(self._order.index(ahead), 2) if ahead in self._order else [], self._again(ahead))
        if unit.name in self._issued:
            at.wait(self._issued[unit.name])

    def after_backward(self, unit: Unit, at: Emitter) -> None:
        """Every gradient is divided, copied to a bucket, and reduced from a list of parts."""
        large = self._large(unit)
        element = self.training.precision.gradients
        at.compute("", "compute", (Fixed(len(large) * self.size * PART), Memory(6.0 * sum(w.count for w in large) * element)))
        super().after_backward(unit, at)
