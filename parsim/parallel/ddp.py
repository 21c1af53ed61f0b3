"""DistributedDataParallel (Li et al. 2020): replicas that all-reduce gradient buckets while backward runs.

=================  ======================================================================================
when               what
=================  ======================================================================================
forward begins     broadcast of buffers (BatchNorm statistics), if there are any; once while gradients accumulate
gradient ready     its bucket's all-reduce is queued once all gradients of this and earlier buckets are ready
step               the optimizer waits for the last bucket
=================  ======================================================================================

Buckets hold parameters in reverse registration order: 1 MiB first, then 25 MiB; the first iteration uses one bucket
for everything because the arrival order is not known yet. A bucket is a flat copy of its gradients, resident from
construction, unless `bucket_view` (gradient_as_bucket_view) lets gradients live in it.

Megatron-LM's own wrapper keeps gradients in one contiguous buffer from construction, also with a single replica, in
buckets of max(40e6, 1e6 N) elements (megatron/core/distributed/distributed_data_parallel.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parsim.kernel import Memory
from parsim.parallel.buckets import DDP_BUCKET, DDP_FIRST_BUCKET, Bucket, BucketArrivals, ddp_buckets, megatron_buckets
from parsim.parallel.hooks import Emitter, Unit, Weight
from parsim.parallel.replicated import LANE, Replicated, gradient_names


@dataclass
class DistributedDataParallel(Replicated):
    """See the module's table."""

    buckets: tuple[Bucket, ...] = field(init=False)
    _arrivals: BucketArrivals = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buckets = tuple(self._assign())
        self._arrivals = BucketArrivals(self.buckets)

    def _assign(self) -> list[Bucket]:
        if self.runtime.megatron and self.data.bucket is None:
            return megatron_buckets(self._trainable, self.replicas or self.size)
        precision = self.training.precision
        cap, first = float(DDP_BUCKET), float(DDP_FIRST_BUCKET)
        if self.data.bucket is not None:
            amount, unit = self.data.bucket
            cap = amount * (precision.gradients if unit == "elements" else 1)
        if self.data.first_bucket is not None:
            first = self.data.first_bucket
        if self.training.iteration == "first" and not self.runtime.megatron:
            cap = first = float("inf")
        return ddp_buckets(self._trainable, precision.gradients, cap, min(first, cap))

    def resident(self, at: Emitter) -> list[str]:
        """The replica plus the flat bucket buffers."""
        names = super().resident(at)
        if self.training.backward:
            element = self.training.precision.gradients
            category = "gradients" if self._view else "buffers"
            names += [at.tensor(self._name(bucket), bucket.count * element, category) for bucket in self.buckets]
        return names

    @property
    def _view(self) -> bool:
        """Gradients live in the buckets."""
        return self.data.bucket_view or self.runtime.megatron

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """Buffers follow rank 0, all in one broadcast; not inside no_sync."""
        size = sum(w.count * (w.parameter.element or 4) for w in self.weights if w.parameter.buffer)
        if size and self.size > 1 and not backward and (at.first or self.data.accumulate == "every"):
            at.collective("broadcast", self.group, size, "buffers", lane=LANE, blocking=True)

    def _gradient(self, weight: Weight, at: Emitter) -> str:
        if self._view:
            return at.tensor(gradient_names(weight.name)[0], 0, "gradients")
        return super()._gradient(weight, at)

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """Count arrivals; reduce every bucket that is complete, in bucket order."""
        super().gradient(unit, weights, at)
        if self.size == 1 or not self._synchronises(at):
            return
        for bucket in self._arrivals.complete(weights):
            if self.data.overlap_reduce:
                self._reduce(bucket, at)

    def _synchronises(self, at: Emitter) -> bool:
        return at.last or self.data.accumulate == "every"

    def _reduce(self, bucket: Bucket, at: Emitter) -> int:
        precision = self.training.precision
        if not self._view:
            at.compute("", "compute", (Memory(2.0 * bucket.count * precision.gradients),))
        self._average(bucket.count, at)
        return at.collective("all_reduce", self.group, bucket.count * precision.reduce, self._name(bucket), lane=LANE)

    def finish_gradients(self, at: Emitter) -> None:
        """Without overlap all buckets go now; the step waits for the last."""
        if self.size > 1 and self.training.backward:
            if not self.data.overlap_reduce:
                for bucket in self.buckets:
                    self._reduce(bucket, at)
            at.wait_for_lane(LANE)
