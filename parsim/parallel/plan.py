"""The plan: which rank holds which blocks, and how its model states are kept.

Model and cluster come in, strategy decides, checks are collected. Nothing here knows a schedule's time or a link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple

from parsim.errors import PlanError
from parsim.kernel import Clocks, Kernel
from parsim.model.linear import Embedding
from parsim.model.mixture import GroupedLinear, Router, routing
from parsim.model.model import Block, Model, Parameter
from parsim.model.shared_overlap import exchanged, overlap_shared_experts
from parsim.model.workload import Workload
from parsim.parallel.chosen_findings import shared_findings
from parsim.parallel.chunk_strategy import SHARDED, sharding_of
from parsim.parallel.context import ContextParallelHooks
from parsim.parallel.expert_load import Rows
from parsim.parallel.experts import ExpertParallelHooks, expert_load, expert_mesh, loaded
from parsim.parallel.fsdp import ROOT, FullyShardedDataParallel
from parsim.parallel.fully_connected import FullyConnectedHooks
from parsim.parallel.groups import CONTEXT, DATA, PIPELINE, TENSOR, Groups, Mesh
from parsim.parallel.hooks import OperatorHooks, Sharding, Unit, Weight
from parsim.parallel.paged_stash import PagedStashHooks, products_around
from parsim.parallel.plan_findings import CENTRAL, GpuNodes, findings_of, tied_findings
from parsim.parallel.runtime import Runtime
from parsim.parallel.schedules import CUSTOM, ENDLESS, Overlapped, Schedule, SlotKind, directions, homes, overlapped, schedule
from parsim.parallel.schedules.slot import APART, repeated
from parsim.parallel.settings import Parallelism
from parsim.parallel.stages import split_blocks
from parsim.parallel.tensor import TensorParallelHooks
from parsim.parallel.ties import Ties
from parsim.parallel.training import KEPT_LAYER, Training
from parsim.routing import Routing


@dataclass(frozen=True)
class Chunk:
    """A virtual stage: consecutive blocks on one pipeline rank."""

    stage: int
    """global virtual stage, in forward order"""
    pipeline_rank: int
    blocks: tuple[int, ...]
    """indices into the model's blocks"""


class Role(NamedTuple):
    """Ranks of one stage and role do the same work in the same time."""

    central: str = ""
    """server or worker of a central strategy"""
    kind: int = 0
    """of GPU: its place among those of the job"""
    skipped: int = 0
    """micro-batches of the schedule that the replica does without: its share of the batch is smaller by so many"""


ALIKE = Role()


@dataclass(frozen=True)
class Plan:
    """A model split over ranks. Rank numbers follow `mesh`; rank r runs on GPU `gpus[r]`."""

    model: Model
    mesh: Mesh
    training: Training
    parallelism: Parallelism
    runtime: Runtime
    workload: Workload
    chunks: tuple[Chunk, ...]
    """by global stage"""
    slots: Schedule
    """per pipeline rank"""
    overlapped: Overlapped
    """slots that run a forward and a backward at once"""
    gpus: tuple[int, ...]
    slow: Mapping[int, float] = field(default_factory=dict)
    """rank -> relative speed of its compute"""
    loads: Mapping[int, Rows] = field(default_factory=dict)
    """rows of the experts of blocks whose load is their own"""
    outer_share: float = 0.0
    """what of the exchange between groups that step alone nobody computes beside, shared among the steps between two of them [s]"""
    kinds: tuple[int, ...] = ()
    """kind of GPU of every rank; empty: all are of one kind"""
    _known_weights: dict[int, tuple[Weight, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def stages(self) -> int:
        """Global virtual stages."""
        return len(self.chunks)

    @property
    def replicas(self) -> int:
        """Ranks with the same parameters, over which gradients are reduced and model states are sharded: data x context, or the part of
        them that steps together.
        """
        return self.mesh.replicas // self.parallelism.data.outer.size

    @property
    def shard_size(self) -> int:
        """Ranks that share one copy of the model states under a sharded strategy."""
        data = self.parallelism.data
        return data.shard_size or self.replicas // data.optimizer_instances

    @cached_property
    def groups(self) -> Groups:
        """The process groups of this plan's collectives, by name."""
        expert = expert_mesh(self.parallelism) if self.parallelism.exchanges_tokens else (0, 0, 0)
        data = self.parallelism.data
        return Groups(self.mesh, min(self.shard_size, self.replicas), expert, data.secondary_partition, data.local_ranks, data.outer.size)

    @cached_property
    def routing(self) -> Routing | None:
        """Where the tokens of a mixture layer go; None: they stay."""
        if not self.parallelism.exchanges_tokens:
            return None
        layers = (layer for operator in self.model.distinct_operators if (layer := exchanged(operator)) is not None)
        return next((routing(layer, self.workload) for layer in layers), None)

    @property
    def asynchronous(self) -> bool:
        """Ranks update when they have gradients of a step, and go on without waiting for each other."""
        pipeline = self.parallelism.pipeline
        return pipeline.schedule in ENDLESS or pipeline.post_validation

    @property
    def step(self) -> int:
        """Micro-batches between two updates of a stage."""
        pipeline, all_of_them = self.parallelism.pipeline, self.training.micro_batches
        return 1 if pipeline.schedule == "pipedream" else (pipeline.step or all_of_them) // self.directions

    @property
    def double_buffered(self) -> bool:
        """PipeDream-2BW: a step computes with the weights of the one before, so that there are two versions."""
        return self.parallelism.pipeline.schedule == "pipedream-2bw"

    @property
    def sharded(self) -> bool:
        """Parameters are sharded over the replicas and gathered unit by unit."""
        data = self.parallelism.data
        return data.strategy in SHARDED or (data.custom is not None and issubclass(data.custom.kind, FullyShardedDataParallel))

    @property
    def shares_gradients(self) -> bool:
        """See `Sharding.shares_gradients`."""
        data = self.parallelism.data
        return data.custom.kind.shares_gradients if data.custom else data.strategy in ("zero1", "zero2", *SHARDED)

    def operator_hooks(self, *, partial: bool = False, split: bool = False) -> list[OperatorHooks]:
        """What the axes do between the operators of one pass, of a smaller micro-batch (`partial`), or of one that runs the gradients of
        inputs and weights in different passes (`split`).
        """
        made: list[OperatorHooks] = []
        if self.mesh.size(TENSOR) > 1:
            gradient = self.training.precision.gradients
            made.append(TensorParallelHooks(self.timed(partial), self.parallelism.tensor, gradient, split=split))
        if self.mesh.size(CONTEXT) > 1:
            made.append(ContextParallelHooks(self.timed(partial)))
        if self.parallelism.exchanges_tokens or self.parallelism.waits_for_counts:
            answer = self.runtime.host.answer if self.parallelism.waits_for_counts else 0.0
            made.append(ExpertParallelHooks(self.timed(partial), self.loads, answer))
        if self.parallelism.exchanges_tokens:
            made.append(FullyConnectedHooks(self.timed(partial)))
            if self.parallelism.expert.paged_stash and self.training.backward:
                made.append(PagedStashHooks(self.timed(partial), self.loads, self._experts))
        return made

    @cached_property
    def _experts(self) -> dict[GroupedLinear, tuple[GroupedLinear, ...]]:
        return products_around(self.model)

    def role(self, rank: int) -> Role:
        """Ranks of one stage and role do the same work."""
        return self._roles[rank] if self._roles else ALIKE

    @cached_property
    def _roles(self) -> tuple[Role, ...]:
        """Of every rank; empty where all are alike."""
        central = self.parallelism.data.strategy in CENTRAL and self.mesh.size(DATA) > 1
        shares = self.training.shares
        if not (central or self.kinds or shares):
            return ()
        most = self.training.micro_batches
        made = []
        for rank, replica in enumerate(self.mesh.coordinates(DATA)):
            place = ("worker" if replica else "server") if central else ""
            made.append(Role(place, self.kinds[rank] if self.kinds else 0, most - shares[replica] if shares else 0))
        return tuple(made)

    @property
    def directions(self) -> int:
        """Whole models on the pipeline ranks, each an equal part of the global stages, with an equal part of the micro-batches."""
        return directions(self.parallelism.pipeline.schedule)

    def neighbour(self, stage: int, step: int) -> int | None:
        """The global stage `step` further on (1) or back (-1); None at the ends of the model."""
        length = self.stages // self.directions
        return stage + step if 0 <= stage < self.stages and 0 <= stage % length + step < length else None

    def stays(self, stage: int) -> bool:
        """The next global stage is on the same rank: nothing is sent from this one to it."""
        following = self.neighbour(stage, 1)
        return following is not None and self.chunks[stage].pipeline_rank == self.chunks[following].pipeline_rank

    @cached_property
    def branches(self) -> bool:
        """Some pipeline rank hands its results to two others, or has them from two, as where stages lie in a V."""
        hops = {(a.pipeline_rank, b.pipeline_rank) for a, b in pairwise(self.chunks) if a.pipeline_rank != b.pipeline_rank}
        return any(len({hop[end] for hop in hops}) < len(hops) for end in (0, 1))

    def roles(self) -> Sequence[Role]:
        """The role of every rank."""
        return self._roles or [ALIKE] * self.mesh.ranks

    def speeds(self) -> list[float]:
        """The relative speed of every rank's compute."""
        return [self.slow.get(rank, 1.0) for rank in range(self.mesh.ranks)]

    def of_rank(self, pipeline_rank: int) -> list[Chunk]:
        """The chunks of one pipeline rank, in forward order."""
        return [chunk for chunk in self.chunks if chunk.pipeline_rank == pipeline_rank]

    def weights(self, chunk: Chunk) -> tuple[Weight, ...]:
        """Parameters and buffers of a chunk on one rank, in registration order.

        A tied parameter is the same storage where its partner is on this pipeline rank, a copy of its own elsewhere.
        """
        if chunk.stage in self._known_weights:
            return self._known_weights[chunk.stage]
        held_here = []
        shared = self._shared(chunk.pipeline_rank)
        held: Block | None = None
        for block in chunk.blocks:
            if self.model.blocks[block] is not held:  # equal layers are one object
                held = self.model.blocks[block]
                rows = self._rows(held)
            for parameter, count, table, operator, part in rows:
                name = f"{self.model.block_names[block]}.{parameter.name}"
                if parameter.tied and self.ties.storage(parameter.tied, chunk.pipeline_rank) not in ("", name):
                    continue
                held_here.append(Weight(name, parameter, count, block, not table or name in shared, operator, part, table))
        self._known_weights[chunk.stage] = tuple(held_here)
        return self._known_weights[chunk.stage]

    def _rows(self, block: Block) -> list[tuple[Parameter, int, bool, str, str]]:
        """Of every parameter of a block: its elements on one rank, whether it is a table, its operator and its part; see `Weight`."""
        layer = block.kind not in ("embedding", "head")
        owners = {p.name: operator for operator in block.operators for p in block.by_operator[operator.name]}
        rows = []
        for parameter in block.parameters():
            operator = owners[parameter.name]
            table = isinstance(operator, Embedding)
            part = "head" if table else KEPT_LAYER if block.kept else "" if layer else block.kind
            if layer and isinstance(operator, Router):
                part = "router"
            rows.append((parameter, self.local_count(parameter), table, operator.name if layer else "", part))
        return rows

    def local_count(self, parameter: Parameter) -> int:
        """Elements of a parameter on each of the ranks that it is split over."""
        return parameter.rank_count(self.workload)

    def _shared(self, pipeline_rank: int) -> set[str]:
        """Parameters that another block of the same pipeline rank uses too."""
        held = [self.model.blocks[block] for chunk in self.of_rank(pipeline_rank) for block in chunk.blocks]
        distinct = {id(block): block for block in held}.values()  # equal layers are one object
        return {parameter.tied for block in distinct for parameter in block.parameters() if parameter.tied}

    @cached_property
    def ties(self) -> Ties:
        """Parameters that blocks share."""
        return Ties(self.model, self.chunks, self.slots, self.local_count)

    def units(self, chunk: Chunk) -> tuple[Unit, ...]:
        """What hooks are called with: one unit per block, or as `data.unit` wraps them for sharded strategies."""
        held: dict[int, list[Weight]] = {block: [] for block in chunk.blocks}
        for weight in self.weights(chunk):
            held[weight.block].append(weight)
        by_block = {block: tuple(weights) for block, weights in held.items()}
        if not self.sharded or self.parallelism.data.unit == "block":
            return tuple(Unit(self.model.block_names[block], (block,), weights) for block, weights in by_block.items())
        if self.parallelism.data.unit == "model":
            return (Unit("model", chunk.blocks, self.weights(chunk)),)
        outer = tuple(b for b in chunk.blocks if self.model.blocks[b].kind in ("embedding", "head"))
        units = [Unit(self.model.block_names[b], (b,), by_block[b]) for b in chunk.blocks if b not in outer]
        root = Unit(ROOT, outer, tuple(w for b in outer for w in by_block[b]))
        return (root, *units) if root.weights else tuple(units)

    def sharding(self, chunk: Chunk, role: str) -> Sharding:
        """The data-parallel strategy of a chunk, with its own buckets and state."""
        return sharding_of(self, chunk, role)

    def partial(self, micro_batch: int) -> bool:
        """This micro-batch is the smaller last one."""
        return bool(self.training.last_micro_batch) and micro_batch == self.training.micro_batches - 1

    def sized(self, partial: bool = False) -> Workload:
        """The workload that tensors are made for, of a whole micro-batch or of the smaller last one."""
        return replace(self.workload, batch=self.training.last_micro_batch) if partial else self.workload

    def in_block(self, block: int, workload: Workload) -> Workload:
        """The workload as it is in a block: with its own load of experts, where it has one."""
        rows = self.loads.get(block)
        return workload if rows is None else loaded(workload, rows)

    def timed(self, partial: bool = False) -> Workload:
        """The workload that takes the time of an average micro-batch."""
        sized = self.sized(partial)
        mean = self.training.mean_length // self.mesh.size(CONTEXT)
        return replace(sized, sequence=mean) if self.training.mean_sequence_length else sized

    def boundary_bytes(self, partial: bool = False) -> tuple[int, int]:
        """What the model puts out and what goes in, of one micro-batch [B]."""
        at = self.sized(partial)
        samples = at.batch
        if self.model.sequence:
            tokens, further = at.tokens, at.batch * int(str(self.model.facts.get("further_input", 0)))
            return tokens * self.model.vocabulary * self.workload.element, 8 * tokens + further
        outputs, inputs = (_elements(self.model.facts.get(key)) for key in ("output_shape", "input_shape"))
        return samples * outputs * self.workload.element, samples * inputs * self.workload.element

    def input_bytes(self, partial: bool = False) -> int:
        """The batch of one micro-batch as the script holds it: int64 token ids, or images and features [B]."""
        return self.boundary_bytes(partial)[1]


def plan(
    model: Model,
    machine: GpuNodes,
    training: Training,
    parallelism: Parallelism,
    runtime: Runtime,
    clock: Callable[[Kernel], float],
    gpus: tuple[int, ...],
    slow: Mapping[int, float] | None = None,
) -> Plan:
    """Split `model` over the ranks that run on `gpus` (rank r on gpus[r]).

    `clock` gives a kernel's seconds, for `pipeline.split: balanced`; `Clocks` where GPUs are of several kinds. Raises `PlanError` with
    every finding.
    """
    model = _repeat_profiled(model, parallelism)
    mesh = Mesh.of(parallelism.order, parallelism.sizes)
    findings = findings_of(model, machine, training, parallelism, runtime, mesh, gpus, slow or {})
    if findings:
        raise PlanError(findings)
    model = overlap_shared_experts(model) if parallelism.expert.shared_overlap else model
    tokens = training.micro_batch * training.sequence_length // parallelism.context.size // parallelism.tensor.size
    load = expert_load(parallelism.expert, max(1, tokens))
    mixture = next((operator for operator in model.distinct_operators if isinstance(operator, GroupedLinear)), None)
    busiest, sent, _ = Rows(1.0, 1.0) if mixture is None else load.rows(mixture)
    workload = Workload(
        batch=training.micro_batch,
        sequence=training.sequence_length // parallelism.context.size if model.sequence else 1,
        document=training.document_length,
        context=parallelism.context.size,
        context_method=parallelism.context.method,
        torch_context=runtime.torch_context,
        tensor=parallelism.tensor.size,
        sequence_parallel=parallelism.tensor.sequence_parallel,
        gathers_again=runtime.gathers_again,
        inner_sequence=runtime.inner_sequence,
        interleaved=runtime.megatron,
        repeats_kv=runtime.repeats_kv,
        expert=parallelism.expert.size,
        expert_tensor=parallelism.expert_width,
        expert_imbalance=busiest,
        expert_sent=sent,
        experts_in_turn=parallelism.expert.in_turn,
        dispatcher=parallelism.expert.dispatcher,
        dispatch_fp8=parallelism.expert.dispatch_dtype == "fp8",
        combine_fp8=parallelism.expert.combine_dtype == "fp8",
        fused_experts=parallelism.expert.fused_mlp,
        single_grouped=parallelism.expert.single_kernel,
        permute_fusion=parallelism.expert.permute_fusion,
        paged_stash=parallelism.expert.paged_stash,
        element=training.precision.activations,
        dtype=training.precision.matmul,
        kept=training.precision.keep,
        quantisation=training.precision.quantisation,
        weight_element=training.precision.cached_casts or training.precision.parameters,
        attention=training.attention,
        dropout=training.dropout,
        fused=runtime.fused,
        compiled=runtime.compiled,
        two_pass_norm=runtime.two_pass_norm,
        autocast=bool(training.precision.cached_casts),
        wide_stream=_wide_stream(training, runtime, parallelism.data.strategy),
        loss_kernel=training.loss_kernel,
        holds_logits=training.holds_logits,
        loss_chunks=training.loss_chunks,
        backward=training.backward,
    )
    pipeline = parallelism.pipeline
    virtual = pipeline.virtual_stages
    step = pipeline.step if pipeline.post_validation and pipeline.step else training.micro_batches
    slots = pipeline.slots or repeated(schedule(pipeline.schedule, pipeline.size, step, virtual), step, training.micro_batches)
    held_by = homes(slots)
    named = pipeline.schedule != CUSTOM
    pairs = overlapped(pipeline.schedule, pipeline.size, training.micro_batches, virtual) if named else pipeline.overlapped
    if not training.backward:
        slots = tuple(tuple(slot for slot in row if slot.kind == SlotKind.FORWARD) for row in slots)
        pairs = APART
    mean = replace(workload, sequence=training.mean_length // parallelism.context.size) if model.sequence else workload
    stages = pipeline.size * virtual
    clocks = _clocks_of_stages(clock, mesh, held_by, stages) if isinstance(clock, Clocks) else ()
    blocks = split_blocks(model, mean, pipeline.size, virtual, pipeline.split, clock, clocks, pipeline.account_for)
    blocks *= directions(pipeline.schedule)
    chunks = tuple(Chunk(stage, held_by[stage], blocks[stage]) for stage in range(len(blocks)))
    loads = load.by_block(model)
    kinds = clock.of_ranks if isinstance(clock, Clocks) else ()
    made = Plan(model, mesh, training, parallelism, runtime, workload, chunks, slots, pairs, gpus, dict(slow or {}), loads, kinds=kinds)
    if findings := [*tied_findings(made), *shared_findings(made)]:
        raise PlanError(findings)
    return made


def _wide_stream(training: Training, runtime: Runtime, strategy: str) -> bool:
    """Whether autocast finds fp32 weights around an fp32 residual stream: frozen weights are 16-bit, and FSDP casts what it gathers."""
    cast = bool(training.precision.cached_casts) and training.finetune is None
    return cast and not runtime.fused and strategy not in ("fsdp", "hsdp")


def _clocks_of_stages(clock: Clocks, mesh: Mesh, held_by: Sequence[int], stages: int) -> list[list[Callable[[Kernel], float]]]:
    """The clocks of the kinds of GPU on which each stage of the model lies."""
    kinds: dict[int, dict[int, None]] = {}
    for p, kind in zip(mesh.coordinates(PIPELINE), clock.of_ranks, strict=True):
        kinds.setdefault(p, {})[kind] = None
    each: list[dict[int, None]] = [{} for _ in range(stages)]
    for stage, p in enumerate(held_by):
        each[stage % stages] |= kinds[p]
    return [[clock.each[kind] for kind in sorted(found)] for found in each]


def _elements(shape: object) -> int:
    return prod(int(n) for n in shape) if isinstance(shape, tuple) else 0


def _repeat_profiled(model: Model, parallelism: Parallelism) -> Model:
    """A model of one measured stage that stands for all: as many copies as the pipeline has stages."""
    if not model.facts.get("repeat"):
        return model
    stages = parallelism.pipeline.size * parallelism.pipeline.virtual_stages
    names = tuple(f"stage {stage}" for stage in range(stages))
    return replace(model, blocks=model.blocks * stages, block_names=names, layers=stages)
