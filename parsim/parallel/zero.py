"""ZeRO stages 1 and 2 (Rajbhandari et al. 2020) as DeepSpeed and Megatron's distributed optimizer run them.

======  ==============================================  ====================================================
stage   resident per rank (N data-parallel ranks)        communication
======  ==============================================  ====================================================
1       weights, gradients whole; optimizer state 1/N    reduce-scatter of gradient buckets in the last
                                                         backward, all-gather of weights after the step
2       weights whole; gradients and optimizer state     the same, but every micro-batch reduces its
        1/N                                              gradients and keeps only its own share
======  ==============================================  ====================================================

Buckets: DeepSpeed 5e8 elements in arrival order; Megatron max(40e6, 1e6 N) elements. With `overlap_gather` the
all-gather runs under the next step's forward, hence stands at the beginning of this one.

With several `instances` (Megatron-LM, --num-distributed-optimizer-instances) N is the ranks of one: gradients are reduce-scattered and
weights gathered inside it, and in between the own share is all-reduced across instances, in the order of the buckets
(param_and_grad_buffer.py, start_grad_sync: both wait in one stream).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from parsim.kernel import Memory
from parsim.parallel.buckets import DEEPSPEED_BUCKET, Bucket, BucketArrivals, element_buckets, megatron_buckets
from parsim.parallel.copies import REDUCTIONS, bucket_copies
from parsim.parallel.groups import REPLICA
from parsim.parallel.hooks import Emitter, Unit, Weight
from parsim.parallel.narrow_weights import VALUE, narrow_elements, narrow_tensors
from parsim.parallel.offload import gradients_out, wait_for_gradients
from parsim.parallel.optimizer import State
from parsim.parallel.replicated import LANE, Replicated, gradient_names


@dataclass
class ZeroOptimizer(Replicated):
    """Stages 1 and 2; see the module's table."""

    shares_gradients: ClassVar[bool] = True

    stage: int = 1
    instances: int = field(default=1, kw_only=True)
    """groups of `size` ranks, each of which holds all optimizer states"""
    across: str = field(default=REPLICA, kw_only=True)
    """ranks with the same share, one of each instance"""
    lends: tuple[Bucket, ...] = field(default=(), kw_only=True)
    """buckets of another strategy of the rank, which are reduced in the same buffers"""
    borrows: bool = field(default=False, kw_only=True)
    """its buckets are reduced in another's"""
    buckets: tuple[Bucket, ...] = field(init=False)
    _arrivals: BucketArrivals = field(init=False)
    _gathers: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buckets = tuple(self._assign())
        self._arrivals = BucketArrivals(self.buckets)

    def _assign(self) -> list[Bucket]:
        if self.data.bucket is not None:
            amount, unit = self.data.bucket
            return element_buckets(self._trainable, amount if unit == "elements" else amount / self.training.precision.reduce)
        if self.runtime.megatron:
            return megatron_buckets(self._trainable, self.replicas or self.size)
        return element_buckets(self._trainable, DEEPSPEED_BUCKET)

    @property
    def count(self) -> int:
        """Trainable elements of the rank."""
        return sum(w.count for w in self._trainable)

    @property
    def shard(self) -> int:
        """This rank's share of them, padded to a multiple of N."""
        return -(-self.count // self.size)

    # -- memory ---------------------------------------------------------------------------------------------------

    def resident(self, at: Emitter) -> list[str]:
        """Whole weights, this rank's share of the optimizer state, reduction buffers."""
        names = super().resident(at)
        if not self.training.backward:
            return names
        precision = self.training.precision
        if self.runtime.megatron:
            share = self.count if self.stage == 1 else self.shard
            names.append(at.tensor(f"{self.label}gradient buffer", share * precision.gradients, "gradients"))
        elif (self.data.overlap_reduce or self.stage == 2) and not self.borrows:
            largest = max((bucket.count for bucket in (*self.buckets, *self.lends)), default=0)
            copies = 2 if self.data.overlap_reduce else 1
            names += [at.tensor(f"{self.label}reduce bucket {i}", largest * precision.reduce, "buffers") for i in range(copies)]
        return names + self._host(at, self.shard, self.count)

    def _state_list(self) -> list[tuple[Weight, State]]:
        return self._flat_states(f"{self.label}flat shard", self._trainable, 0)

    @property
    def _keeps_fresh(self) -> bool:
        """DeepSpeed's BF16_Optimizer adds the 16-bit gradients to fp32 ones hook by hook and drops them after backward."""
        wider = self.training.precision.gradients > self.training.precision.parameters
        return wider and self.stage == 1 and not self.runtime.megatron and not self._offloaded

    def _gradient(self, weight: Weight, at: Emitter) -> str:
        if self.runtime.megatron and self.stage == 1:
            return at.tensor(gradient_names(weight.name)[0], 0, "gradients")
        return super()._gradient(weight, at)

    def _gradient_shard(self, at: Emitter) -> str:
        size = 0 if self.runtime.megatron else self.shard * self.training.precision.gradients
        return at.tensor(f"{self.label}gradient shard", size, "gradients")

    # -- events ---------------------------------------------------------------------------------------------------

    def step_begins(self, at: Emitter) -> None:
        """DeepSpeed has stepped once on zeros (initialize_optimizer_states), so that the allocator has room for its fp32 gradients."""
        super().step_begins(at)
        precision = self.training.precision
        if not self.runtime.megatron and self._keeps_states() and not self._offloaded and precision.gradients < precision.master:
            wide = [self._wide(self.shard, at)]
            at.compute("", "compute", (), allocates=wide)
            at.compute("", "compute", (), frees=wide)

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """The previous step's updated weights arrive under the first forward, first bucket of the forward first."""
        self._gathers = {}
        if self.data.overlap_gather and self._updates and at.first and not backward:
            for bucket in reversed(self.buckets):
                handle = self._gather(bucket, at, after=())
                for weight in bucket.weights:
                    self._gathers[weight.block] = max(handle, self._gathers.get(weight.block, handle))

    @property
    def _updates(self) -> bool:
        """Whether weights change in a step, and so have to be gathered."""
        return self.training.step and self.training.backward

    def before_forward(self, unit: Unit, at: Emitter) -> None:
        """Wait for the weights that are still on their way."""
        for block in unit.blocks:
            if block in self._gathers:
                at.wait(self._gathers.pop(block))

    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """Stage 2 writes every micro-batch's gradient anew."""
        if self.stage == 1:
            super().before_gradient(unit, weights, at)
        else:
            at.compute("", "compute", (), allocates=[self._gradient(w, at) for w in weights])

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """Stage 1 accumulates whole gradients; stage 2 copies each into the bucket and lets it go."""
        if self.stage == 1:
            super().gradient(unit, weights, at)
        else:
            moved = sum(w.count for w in weights) * self.training.precision.gradients
            at.compute("", "compute", (Memory(2.0 * moved),), frees=[self._gradient(w, at) for w in weights])
        if not (self.stage == 2 or at.last or self.data.accumulate == "every"):
            return
        for bucket in self._arrivals.complete(weights):
            if self.data.overlap_reduce or self.stage == 2:
                self._reduce(bucket, at)

    def _reduce(self, bucket: Bucket, at: Emitter) -> int:
        share = -(-bucket.count // self.size)
        element = self.training.precision.gradients
        if self._offloaded:
            allocates = [at.tensor(f"{self._name(bucket)}.share", share * element, "gradients", per_micro_batch=True)]
        else:
            allocates = [self._gradient_shard(at)] if self.stage == 2 and at.first and bucket.index == 0 else []
        frees = []
        if self.stage == 1 and not self.runtime.megatron and not self.data.overlap_reduce:
            # "Overlap and contiguous grads are meaningless in stage 1 and are ignored" (runtime/engine.py): a bucket is joined now
            frees = [at.tensor(f"{self._name(bucket)}.joined", bucket.count * self.training.precision.reduce, "buffers")]
        handle = at.collective(
            "reduce_scatter",
            self.group,
            bucket.count * self.training.precision.reduce,
            self._name(bucket),
            lane=LANE,
            blocking=not self.data.overlap_reduce,
            after=self._pack(bucket, at),
            allocates=[*allocates, *frees],
            frees=frees,
        )
        if self.instances > 1:
            handle = at.collective(
                "all_reduce",
                self.across,
                share * self.training.precision.reduce,
                self._name(bucket),
                lane=LANE,
                blocking=not self.data.overlap_reduce,
                after=[handle],
            )
        if self._offloaded:
            adds = self.stage == 2 and not at.first
            gradients_out(at, self.training, share, f"{self._name(bucket)} grads", handle, adds=adds, frees=allocates)
        if self.stage == 2 and not at.first:
            at.compute("", "compute", (Memory(3.0 * share * element),))
        return handle

    def _pack(self, bucket: Bucket, at: Emitter) -> list[int] | None:
        """What happens to a bucket before it is reduced: beside compute where that overlaps; returns what the reduction waits for."""
        self._average(bucket.count, at)
        if not self.runtime.deepspeed or self.size == 1:
            return None
        kernels = bucket_copies(self.training.precision, bucket.count, copied=self.stage == 2)
        if self.data.overlap_reduce:
            return [at.beside(f"copy {self._name(bucket)} in", kernels, stream=REDUCTIONS)]
        at.compute("", "compute", kernels)
        return None

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        """Stage 2 of DeepSpeed waits for the gradients of every micro-batch (independent_gradient_partition_epilogue)."""
        super().pass_ends(at, backward=backward)
        if backward and self.stage == 2 and self.size > 1 and self.runtime.deepspeed:
            at.wait_for_lane(LANE)

    def finish_gradients(self, at: Emitter) -> None:
        """Without overlap stage 1 reduces everything now; the step waits for the last bucket."""
        if self.training.backward:
            if not self.data.overlap_reduce and self.stage == 1:
                for bucket in self.buckets:
                    self._reduce(bucket, at)
            at.wait_for_lane(LANE)
            if self._offloaded:
                wait_for_gradients(at, self.training.offload)

    def step(self, at: Emitter) -> None:
        """Step the own share, drop the gradients."""
        self._let_go = set()
        self._step(at, self.shard, 1, self.shard)
        self._find_scales(at)
        if self.stage == 2 and self.training.backward:
            kept = bool(self.buckets) and not self._offloaded
            at.compute("", "optimizer", (), frees=[self._gradient_shard(at)] if kept else [])
        else:
            self._drop_gradients(at)

    def _find_scales(self, at: Emitter) -> None:
        """Megatron-LM: largest values of the own share of fp8 weights, on which all agree before the masters are cast."""
        precision = self.training.precision
        narrow = narrow_elements(self._trainable, precision)
        if not narrow or precision.quantisation is None or not self._updates:
            return
        kernels = precision.quantisation.before_gather(-(-narrow // self.size), precision.master)
        if kernels:
            at.compute("", "optimizer", kernels)
        values = VALUE * narrow_tensors(self._trainable, precision)
        at.collective("all_reduce", self.group, values, "largest values of weights", lane=LANE)
        at.wait_for_lane(LANE)

    def _widen(self, count: int, at: Emitter) -> list[str]:
        """DeepSpeed lets the gradients of other shares go, joins those of its own, widens what it has joined and lets them go too
        (runtime/zero/stage_1_and_2.py, step: free_grad_in_param_list, flatten and single_grad_partition).
        """
        if self.runtime.megatron:
            return super()._widen(count, at)
        own: list[str] = []
        if self.stage == 1:
            covered = 0
            for weight in self._trainable:
                if covered < count:
                    own.append(self._gradient(weight, at))
                covered += weight.count
            at.compute("", "optimizer", (), frees=[self._gradient(weight, at) for weight in self._trainable[len(own) :]])
            self._let_go = {weight.name for weight in self._trainable}
        flat = at.tensor(f"{self.label}optimizer.joined gradients", self.training.precision.gradients * count, "temporaries")
        at.compute("", "optimizer", (), allocates=[flat])
        wide = super()._widen(count, at)
        at.compute("", "optimizer", (), frees=[flat, *own])
        return wide

    def distribute(self, at: Emitter) -> None:
        """All-gather the stepped weights, unless the next forward does."""
        if self._updates and not self.data.overlap_gather:
            for bucket in reversed(self.buckets):
                self._gather(bucket, at)
            at.wait_for_lane(LANE)

    def _gather(self, bucket: Bucket, at: Emitter, after: Sequence[int] | None = None) -> int:
        precision = self.training.precision
        size = bucket.count * precision.parameters - narrow_elements(bucket.weights, precision) * (precision.parameters - 1)
        return at.collective("all_gather", self.group, size, f"weights {self._name(bucket)}", lane=LANE, after=after)
