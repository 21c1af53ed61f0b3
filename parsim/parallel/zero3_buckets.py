"""ZeRO-3 whose gradients are reduced in buckets of `parallel.data.bucket` elements, as DeepSpeed's are (reduce_bucket_size).

====================  =====================================================================================================
when                  what
====================  =====================================================================================================
a unit's backward     its gradients, last weight first, are copied into the bucket; one that would overflow it has the bucket reduced
has ended             first. The bucket is a buffer of its full size, resident from construction
end of the backward   what is left is reduced, and compute waits
====================  =====================================================================================================

Without `bucket` the gradients of a unit are reduced together (`parsim.parallel.fsdp`). Source: deepspeed/runtime/zero/stage3.py
(reduce_independent_p_g_buckets_and_remove_grads, __add_grad_to_ipg_bucket, __reduce_and_partition_ipg_grads,
independent_gradient_partition_epilogue).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parsim.errors import Finding
from parsim.kernel import Memory
from parsim.parallel.copies import REDUCTIONS
from parsim.parallel.fsdp import FullyShardedDataParallel
from parsim.parallel.groups import SHARD
from parsim.parallel.hooks import Emitter, Unit
from parsim.parallel.offload import gradients_out
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import DataParallel
from parsim.parallel.zero_plus_plus import asked


@dataclass
class BucketedZero3(FullyShardedDataParallel):
    """See the module's table."""

    _held: int = field(init=False, default=0)
    """elements in the bucket"""
    _begun: list[Unit] = field(init=False, default_factory=list)
    """units with gradients in it whose own share is not there yet"""
    _reductions: int = field(init=False, default=0)
    """of this pass"""

    @property
    def cap(self) -> int:
        """Elements of the bucket."""
        if self.data.bucket is None:
            return 0
        amount, unit = self.data.bucket
        return int(amount if unit == "elements" else amount / self.training.precision.reduce)

    def resident(self, at: Emitter) -> list[str]:
        """Besides: the bucket."""
        names = super().resident(at)
        if not self.training.backward:
            return names
        return [*names, at.tensor("reduce bucket", self.cap * self.training.precision.gradients, "buffers")]

    def _reduce(self, unit: Unit, count: int, at: Emitter) -> None:
        """The unit's gradients go into the bucket."""
        self._begun.append(unit)
        at.beside(f"copy {unit.name} grads", [Memory(2.0 * self._gathered_element * count)], stream=REDUCTIONS)
        for weight in reversed([weight for weight in unit.weights if weight.trains]):
            if self._held and self._held + weight.count > self.cap:
                self._send(at)
            self._held += weight.count
        at.compute("", "compute", (), frees=self._gradients(unit, unit.weights, at))

    def _send(self, at: Emitter) -> None:
        """Reduce what the bucket holds."""
        count, precision, name = self._held, self.training.precision, f"bucket {self._reductions} grads"
        share, adds = self._share(count), not at.first
        if self._offloaded:
            keep = [at.tensor(f"bucket {self._reductions}.share", share * precision.gradients, "gradients", per_micro_batch=True)]
        else:
            keep = [self._shard_gradient(unit, at) for unit in self._begun] if at.first else []
        after = None
        if self.size > 1 and (kernels := self._copies.before_reduce(count)[1:]):
            after = [at.beside(f"join {name}", kernels, stream=REDUCTIONS)]
        size = count * precision.reduce
        reduced = at.collective("reduce_scatter", SHARD, size, name, lane=self._reduce_lane, after=after, allocates=keep)
        if self.size > 1 and (kernels := self._copies.behind_reduce(share, adds=adds)):
            reduced = at.beside(f"add {name}" if adds else f"copy {name} out", kernels, stream=REDUCTIONS, after=[reduced])
        if self._offloaded:
            gradients_out(at, self.training, share, name, reduced, adds=adds, frees=keep)
        self._reduced = reduced
        self._held, self._begun = 0, []
        self._reductions += 1

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """The bucket is empty."""
        super().pass_begins(units, at, backward=backward)
        self._reductions = 0

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        """Reduce what is left."""
        if backward and self._held:
            self._send(at)
        super().pass_ends(at, backward=backward)


def bucketed(data: DataParallel, runtime: Runtime) -> bool:
    """Whether gradients of ZeRO-3 are reduced in buckets."""
    return data.strategy == "zero3" and data.bucket is not None and not runtime.lists_weights and not asked(data)


def findings(data: DataParallel, runtime: Runtime) -> list[Finding]:
    """Where nothing is done with a bucket of ZeRO-3."""
    if data.strategy != "zero3" or data.bucket is None or bucketed(data, runtime):
        return []
    amount, unit = data.bucket
    who = "ZeRO++" if asked(data) else f"ZeRO-3 of {runtime.profile}"
    text = f"not supported yet: buckets of gradients under {who}"
    return [Finding(text, "parallel.data.bucket", f"{amount:g} {unit}", "leave it out, or use software.profile deepspeed without ZeRO++")]
