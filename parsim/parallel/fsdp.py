"""ZeRO-3 and FullyShardedDataParallel (Rajbhandari et al. 2020, Zhao et al. 2023): everything is sharded.

=================  ====================================================================================
when               what
=================  ====================================================================================
before forward     all-gather the unit; at most `limit_gathers` units are live, so the gather of unit i+limit
                   may not start before forward i has ended
after forward      free the gathered unit (reshard) unless `reshard_after_forward` is off
before backward    all-gather it again; the next unit's gather is issued first (BACKWARD_PRE prefetch), so the
                   queue reads AG L, AG L-1, | B L, RS L, AG L-2, | B L-1, RS L-1, ...
after backward     reduce-scatter its gradients, free weights and whole gradients, keep the own share
last unit          the compute stream waits for the last reduction of a micro-batch that is reduced (the final
                   callback of PyTorch's backward, DeepSpeed's independent_gradient_partition_epilogue); a pipeline
                   stage that reduces once does so behind its last send (REDUCE_GRAD of
                   torch.distributed.pipelining), and the step waits
step               optimizer on the own share; nothing to gather: the next forward does
=================  ====================================================================================

What is copied and cast around gathers and reductions, and on which stream, is in `parsim.parallel.copies`. FSDP2 joins a unit's
gradients only when the reduction before has ended (FSDPParamGroup.post_backward), FSDP1 and DeepSpeed queue them on a stream.

All-gathers and reduce-scatters share one communicator, hence one queue (`queues: separate` gives each its own).
Hybrid sharding (hsdp) does this inside shard groups and all-reduces each unit's own share across the groups behind its
reduce-scatter, in a queue of its own.
`unit`: ``layer`` wraps every transformer layer and leaves embedding, final norm and head in the root unit, which stays
gathered from forward to backward; ``block`` wraps those too; ``model`` is one unit. In a pipeline, units that are not resharded
after forward stay gathered until their last backward (torch.distributed.pipelining, stage.py: backward_maybe_with_nosync). Under FSDP
`accumulate: no_sync` keeps whole gradients until the last micro-batch, ``every`` reduces in each; ZeRO-3 always does (DeepSpeed's
engine refuses no_sync from stage 2 on).

Memory of fully_shard (PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py and _fsdp_param_group.py): a unit is gathered
into a buffer that the stream of the gathers allocates, and copied out of it into its weights; forward keeps the buffer until the next
unit is copied out, backward does not. Gradients are made weight by weight in the type of the gathered weights, and joined in a buffer of
the type of the reduction, kept until the next unit's; what a reduce-scatter returns, the own share, is allocated by the reductions'
stream. The allocator gives no stream what another has freed. Flat parameters (FSDP1, ZeRO-3) are gathered in place.

Frozen weights are gathered as they are stored, and have no gradients; with `finetune.base_sharded` off they stay whole on every
rank. Units in which nothing wants a gradient take no part in the backward pass. As in FSDP2, a unit may hold both kinds and reduces
the gradients of the trained ones only; with `finetune.flat_gradients` it does what FSDP1's flat parameters do (use_orig_params):
the gradient of a mixed unit is that of all its weights (PyTorch 2 documentation, FullyShardedDataParallel, use_orig_params).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from parsim.kernel import Memory
from parsim.parallel.copies import GATHERS, REDUCTIONS, ShardedCopies
from parsim.parallel.groups import REPLICA, SHARD, stream_lane
from parsim.parallel.hooks import START, Emitter, Unit, Weight
from parsim.parallel.muon import (
    BF16,
    FP32,
    Matrix,
    NewtonSchulz,
    filled_batches,
    matrix_elements,
    orthogonalise_batches,
    tensors_of,
    workspace,
)
from parsim.parallel.narrow_weights import VALUE, narrow_elements, narrow_tensors
from parsim.parallel.offload import gradients_out, place, wait_for_gradients
from parsim.parallel.replicated import LANE
from parsim.parallel.sharded_units import ShardedUnits

ROOT = "root"


@dataclass
class Traffic:
    """What the units of a stage have in common, whoever shares each of them (FSDPCommContext)."""

    reduced: int = START
    """handle of the last reduction in the current pass"""
    arrived: list[str] = field(default_factory=list)
    """buffer of the unit gathered last, kept until the next one is copied out"""
    left: list[str] = field(default_factory=list)
    """buffer of the unit reduced last, kept until the next one is"""


@dataclass
class FullyShardedDataParallel(ShardedUnits):
    """See the module's table."""

    shares_gradients: ClassVar[bool] = True

    copies: int = 1
    """shard groups; `size` is the ranks of one"""
    pipelined: bool = False
    """the units are a stage of a pipeline"""
    groups: tuple[str, str] = field(default=(SHARD, REPLICA), kw_only=True)
    """ranks that share a unit, and ranks with the same share"""
    traffic: Traffic = field(default_factory=Traffic, kw_only=True)
    _live: set[str] = field(init=False, default_factory=set)
    """units gathered now"""
    _order: list[Unit] = field(init=False, default_factory=list)
    """units in the order of the current pass"""
    _place: dict[str, int] = field(init=False, default_factory=dict)
    """unit -> its place in `_order`"""
    _done: list[int] = field(init=False, default_factory=list)
    """handles of the units already finished in it"""
    _issued: dict[str, int] = field(init=False, default_factory=dict)
    """handles of the gathers issued in it"""
    _written: set[str] = field(init=False, default_factory=set)
    """units whose gradient this pass has begun; empty between passes, because a pass that is repeated is not written again"""

    @property
    def _reduce_lane(self) -> str:
        return LANE if self.data.queues == "shared" else f"{LANE} reduce"

    @property
    def _replica_lane(self) -> str:
        return f"{LANE} replicas"

    @property
    def _every(self) -> bool:
        """Every micro-batch reduces its gradients."""
        return self.data.accumulate == "every" or self.data.strategy == "zero3"

    @property
    def _stays(self) -> bool:
        """Gathered units stay until their last backward: a pipeline stage that reduces then reshards then."""
        return self.pipelined and not self.data.reshard_after_forward and not self._every

    @property
    def _copies(self) -> ShardedCopies:
        precision = self.training.precision
        if self.data.strategy == "zero3":
            return ShardedCopies("zero3", self.size, self._gathered_element, precision.gradients, precision.reduce)
        fp16 = precision.matmul == "fp16" and precision.reduce == 2
        stack: Literal["fsdp1", "fsdp2"] = "fsdp1" if self.data.fsdp_version == 1 else "fsdp2"
        return ShardedCopies(stack, self.size, self._gathered_element, precision.master or precision.parameters, precision.reduce, fp16)

    # -- memory ---------------------------------------------------------------------------------------------------

    def resident(self, at: Emitter) -> list[str]:
        """Every unit's flat shard and its optimizer state; buffers whole."""
        names = [self._weight(w, at) for w in self.weights if w.parameter.buffer or (self._whole_base and not w.trains)]
        category = place(self.training.offload.parameters, "parameters")
        names += [at.tensor(f"{u.name}.shard", self._shard_bytes(u), category) for u in self.units]
        names += self._host(at, sum(self._share(self._trained(u)) for u in self.units), sum(u.count for u in self.units))
        if self._keeps_states():
            names += self._states(at)
        return names

    @property
    def _fully_shard(self) -> bool:
        """PyTorch's fully_shard: gathers and reductions pass through buffers of their own (see the module's table of memory)."""
        return self._copies.stack == "fsdp2" and self._copied and self.training.offload.parameters == "none"

    @property
    def _copied(self) -> bool:
        """What is reduced passes through a buffer of its own."""
        return self.size > 1

    def _whole(self, unit: Unit, at: Emitter) -> str:
        return at.tensor(f"{unit.name}.gathered", self._gathered_bytes(unit), "buffers", per_micro_batch=False)

    def _arriving(self, unit: Unit, at: Emitter) -> str:
        return at.tensor(f"{unit.name}.all-gather", self._gathered_bytes(unit), "buffers", stream=GATHERS)

    def _leaving(self, unit: Unit, at: Emitter) -> str:
        size = self._trained(unit) * self.training.precision.reduce
        return at.tensor(f"{unit.name}.reduce-scatter", size, "buffers", per_micro_batch=self._every)

    def _gradients(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> list[str]:
        """Whole gradients: of a unit, or of its weights one by one as autograd makes them, in the type that the layers compute in.

        Accumulated over the step; or each micro-batch's own, the next of which may begin while the last one is still reduced.
        """
        if not self._fully_shard:
            size = self._trained(unit) * self.training.precision.gradients
            return [at.tensor(f"{unit.name}.grad", size, "gradients", per_micro_batch=self._every)]
        alone = self._every or (at.first and at.last)
        element = self._gathered_element if alone else self.training.precision.gradients
        return [at.tensor(f"{w.name}.grad", w.count * element, "gradients", per_micro_batch=self._every) for w in weights if w.trains]

    def _shard_gradient(self, unit: Unit, at: Emitter) -> str:
        size = self._share(self._trained(unit)) * self.training.precision.gradients
        stream = REDUCTIONS if self._fully_shard else ""
        return at.tensor(f"{unit.name}.grad.shard", size, "gradients", per_micro_batch=self._offloaded, stream=stream)

    # -- forward --------------------------------------------------------------------------------------------------

    def state(self) -> Hashable:
        """Names of the units that are gathered."""
        return frozenset(self._live)

    def restore(self, state: Hashable) -> None:
        """Take these units as the gathered ones."""
        if isinstance(state, frozenset):
            self._live = set(state)

    def step_begins(self, at: Emitter) -> None:
        """Everything starts sharded."""
        self._live = set()

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """A new pass over `units` (in the order they will run): forget the positions of the last one."""
        self._order = [unit for unit in units if unit.name != ROOT]
        self._place = {unit.name: place for place, unit in enumerate(self._order)}
        self._done = []
        self._issued = {}
        self.traffic.reduced = START

    def _gather(self, unit: Unit, at: Emitter, after: Sequence[int]) -> None:
        size = self._gathered_bytes(unit)
        if unit.name in self._issued or unit.name in self._live or not size:
            return
        self._live.add(unit.name)
        if self.training.offload.parameters != "none":
            self._issued[unit.name] = self._fetch(unit, size, at, after)
            return
        name = f"{unit.name} weights"
        if self.size > 1 and (kernels := self._before_gather(unit)):
            after = [at.beside(f"copy {name} in", kernels, stream=GATHERS, after=after)]
        into = self._arriving(unit, at) if self._fully_shard else self._whole(unit, at)
        gathered = at.collective("all_gather", self.groups[0], size, name, lane=LANE, after=after, allocates=[into])
        if self.size > 1 and self._copies.out_beside:
            gathered = at.beside(f"copy {name} out", self._copies.behind_gather(size), stream=GATHERS, after=[gathered])
        self._issued[unit.name] = gathered

    def _before_gather(self, unit: Unit) -> list[Memory]:
        plain, other = self._split(unit)
        return self._copies.before_gather(self._share(plain), self._share(other), self._share(self._narrow_of(unit)))

    def _fetch(self, unit: Unit, size: int, at: Emitter, after: Sequence[int]) -> int:
        """Gather a unit whose own share is off the device: bring that first."""
        share = self._shard_bytes(unit)
        if self.training.offload.parameters == "nvme":
            after = [at.copy("nvme_read", share, f"{unit.name} weights", after=after)]
        if self.size == 1:
            return at.copy("h2d", share, f"{unit.name} weights", after=after, allocates=[self._whole(unit, at)])
        staged = at.tensor(f"{unit.name}.fetched", share, "buffers")
        here = at.copy("h2d", share, f"{unit.name} weights", after=after, allocates=[staged])
        whole = self._whole(unit, at)
        return at.collective(
            "all_gather", self.groups[0], size, f"{unit.name} weights", lane=LANE, after=[here], allocates=[whole], frees=[staged]
        )

    def _after(self, position: int, live: int) -> list[int]:
        """A gather may start once the unit `live` places before it is done (its memory is free again)."""
        earlier = position - live
        return [self._done[earlier]] if 0 <= earlier < len(self._done) else [START]

    def before_forward(self, unit: Unit, at: Emitter) -> None:
        """Gather this unit and, as far as the limit lets them start, the next ones."""
        self.gather(unit, 0, at, backward=False)
        self.use(unit, at, backward=False)

    def gather(self, unit: Unit, ahead: int, at: Emitter, *, backward: bool) -> None:
        """Gather what stands `ahead` places behind a unit in the order of the pass, if something does."""
        if unit.name == ROOT:
            self._gather(unit, at, [START])
        elif (place := self._place[unit.name] + ahead) < len(self._order):
            live = self.data.prefetch + 1 if backward else max(1, self.data.limit_gathers)
            self._gather(self._order[place], at, self._after(place, live))

    def use(self, unit: Unit, at: Emitter, *, backward: bool) -> None:
        """Wait for the unit's weights, and copy them to where the layers read them. Forward keeps what they arrived in until the next
        unit's are copied.
        """
        if unit.name not in self._issued:
            return
        at.wait(self._issued[unit.name])
        kernels = () if self.size == 1 or self._copies.out_beside else self._copies.behind_gather(self._gathered_bytes(unit))
        if self._fully_shard:
            arrived = [self._arriving(unit, at)]
            if not backward:
                at.compute("", "compute", (), frees=self.traffic.arrived)
            at.compute("", "compute", kernels, allocates=[self._whole(unit, at)], frees=arrived if backward else ())
            self.traffic.arrived = [] if backward else arrived
        elif kernels:
            at.compute("", "compute", kernels)

    def after_forward(self, unit: Unit, at: Emitter) -> None:
        """Free the gathered weights, unless the unit stays gathered for its backward."""
        if self._reshards(unit) and unit.name in self._live:
            at.compute("", "compute", (), frees=[self._whole(unit, at)])
            self._live.discard(unit.name)
        if unit.name != ROOT:
            self._done.append(at.mark())

    def _reshards(self, unit: Unit) -> bool:
        if not self.training.backward:
            return True
        return self.data.reshard_after_forward and unit.name != ROOT

    # -- backward -------------------------------------------------------------------------------------------------

    def before_backward(self, unit: Unit, at: Emitter) -> None:
        """Gather this unit and prefetch the next `prefetch` ones before computing."""
        for ahead in range(self.data.prefetch + 1 if unit.name != ROOT else 1):
            self.gather(unit, ahead, at, backward=True)
        self.use(unit, at, backward=True)

    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """The unit's whole gradient comes into being with its first weight gradient, or weight by weight."""
        if self._fully_shard or unit.name not in self._written:
            self._written.add(unit.name)
            if at.first or self._every:
                at.compute("", "compute", (), allocates=self._gradients(unit, weights, at))

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """Gradients leave unit by unit; see `after_backward`."""

    def after_backward(self, unit: Unit, at: Emitter) -> None:
        """Reduce-scatter the gradients and free the unit."""
        self._drop(unit, at)
        if unit.name != ROOT:
            self._done.append(at.mark())
        self._take_gradients(unit, at)

    def _drop(self, unit: Unit, at: Emitter) -> None:
        """Backward needs the gathered weights no more."""
        if unit.name in self._live and (at.last or not self._stays):
            at.compute("", "compute", (), frees=[self._whole(unit, at)])
            self._live.discard(unit.name)

    def _take_gradients(self, unit: Unit, at: Emitter) -> None:
        """The unit's gradients of this micro-batch are complete."""
        precision, count = self.training.precision, self._trained(unit)
        if not count:
            return
        if self._every or at.last:
            self._reduce(unit, count, at)
        elif not at.first and not self.runtime.gradient_accumulation_fusion:
            at.compute("", "compute", (Memory(3.0 * count * precision.gradients),))

    def _reduce(self, unit: Unit, count: int, at: Emitter) -> None:
        """Reduce-scatter `count` gradients of the unit, which are complete, and add what comes of them to the own share."""
        name, precision, copies = f"{unit.name} grads", self.training.precision, self._copies
        keep = [self._shard_gradient(unit, at)] if at.first or not self._every or self._offloaded else []
        whole, after = self._gradients(unit, unit.weights, at), None
        if self._copied:
            if copies.stack == "fsdp2":
                at.wait(self.traffic.reduced)
            if self._fully_shard:
                joined = [self._leaving(unit, at)]
                at.compute("", "compute", (), frees=self.traffic.left)
                at.compute("", "compute", copies.join(count), allocates=joined, frees=whole)
                self.traffic.left, whole = joined, []
            else:
                at.compute("", "compute", copies.join(count))
            if kernels := copies.before_reduce(count):
                after = [at.beside(f"copy {name} in", kernels, stream=REDUCTIONS)]
        reduced = self.traffic.reduced = at.collective(
            "reduce_scatter",
            self.groups[0],
            count * precision.reduce,
            name,
            lane=self._reduce_lane,
            after=after,
            allocates=keep,
            frees=whole,
        )
        share, adds = self._share(count), self._every and not at.first
        if self.copies > 1:
            reduced = at.collective("all_reduce", self.groups[1], share * precision.reduce, name, lane=self._replica_lane, after=[reduced])
        if self._copied:
            if kernels := copies.behind_reduce(share, adds=adds):
                reduced = at.beside(f"add {name}" if adds else f"copy {name} out", kernels, stream=REDUCTIONS, after=[reduced])
        elif adds:
            at.compute("", "compute", (Memory(3.0 * share * precision.gradients),))
        if self._offloaded:
            gradients_out(at, self.training, share, name, reduced, adds=adds, frees=keep)

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        """Units that backward had no use for, left gathered by the forward, are freed."""
        at.compute("", "compute", (), frees=[*self.traffic.arrived, *self.traffic.left])
        self.traffic.arrived, self.traffic.left = [], []
        if backward:
            self._written = set()
            self.traffic.reduced = START
            idle = [unit for unit in self.units if unit.name in self._live and (at.last or not self._stays)]
            at.compute("", "compute", (), frees=[self._whole(unit, at) for unit in idle])
            self._live.difference_update(unit.name for unit in idle)
            if self._every or (at.last and not self.pipelined):
                self._wait_for_reductions(at)

    def _wait_for_reductions(self, at: Emitter) -> None:
        """For the last reduce-scatter, the last all-reduce across shard groups, and what follows them."""
        at.wait_for_lane(self._reduce_lane)
        if self.copies > 1:
            at.wait_for_lane(self._replica_lane)
        at.wait_for_lane(stream_lane(REDUCTIONS))

    def finish_gradients(self, at: Emitter) -> None:
        """Wait for all of that, and for the last gather."""
        at.wait_for_lane(LANE)
        self._wait_for_reductions(at)
        if self._offloaded:
            wait_for_gradients(at, self.training.offload)

    @property
    def masters_only(self) -> bool:
        """PyTorch's shards are the optimizer's; DeepSpeed keeps 16-bit ones besides."""
        return self.data.strategy != "zero3"

    def _matrix_elements(self) -> int:
        return sum(self._share(matrix_elements(unit.weights)) for unit in self.units)

    def _orthogonalise(self, at: Emitter) -> None:
        """Matrices travel to whole ones on single ranks, and back; so do those of experts, unless they are whole already."""
        optimizer, share = self.training.optimizer, self._matrix_elements()
        tensors = tensors_of(self._trainable, optimizer, self.layout)
        of_experts = [m for t in tensors if t.weights[0].parameter.expert for m in t.matrices]
        others = [m for t in tensors if not t.weights[0].parameter.expert for m in t.matrices]
        element = self._gathered_update
        space = at.tensor(f"{self.label}optimizer.newton-schulz", workspace([*of_experts, *others]) + element * share, "temporaries")
        at.compute("", "optimizer", [Memory(float((FP32 + element) * share))], allocates=[space])
        whole = [replace(matrix, number=self._share(matrix.number)) for matrix in of_experts if not self._cuts(matrix)]
        NewtonSchulz(optimizer.newton_schulz_steps, optimizer.tensor_mode, self.layout).run(whole, at)
        batches = [replace(matrix, number=1) for matrix in of_experts if self._cuts(matrix)] + filled_batches(others, self.size)
        orthogonalise_batches(batches, optimizer.newton_schulz_steps, at, self.groups[0], LANE, element)
        at.compute("", "optimizer", (), frees=[space])

    @property
    def _gathered_update(self) -> int:
        """Bytes of an element of an update on the wire: torchtitan's DistMuon sends the type of the weight, microsoft/dion bf16."""
        return self.training.precision.parameters if self.runtime.torchtitan else BF16

    def _cuts(self, experts: Matrix) -> bool:
        """Whether experts are cut inside: fully_shard cuts a tensor of experts expert by expert."""
        return False

    def step(self, at: Emitter) -> None:
        """Run the optimizer on this rank's share, then drop its gradients."""
        trained = [unit for unit in self.units if self._trained(unit)]
        shares = [self._stepped(unit) for unit in trained]
        self._step(at, sum(shares), len(shares), max(shares, default=0))
        self._find_scales(at)
        if self.training.backward and not self._offloaded:
            at.compute("", "optimizer", (), frees=[self._shard_gradient(u, at) for u in trained])

    def _find_scales(self, at: Emitter) -> None:
        """Behind the step: the largest values of weights that travel in fp8, on which the shard group agrees."""
        precision = self.training.precision
        narrow = [w for unit in self.units for w in unit.weights] if precision.gathers_narrow else []
        if not (tensors := narrow_tensors(narrow, precision)) or not (self.training.step and self.training.backward):
            return
        stored = precision.master or precision.parameters
        at.compute("", "optimizer", [Memory(float(stored * self._share(narrow_elements(narrow, precision))), launches=2)])
        at.collective("all_reduce", self.groups[0], VALUE * tensors, "largest values of weights", lane=LANE)
        at.wait_for_lane(LANE)
