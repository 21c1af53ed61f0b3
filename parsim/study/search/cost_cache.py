"""What neighbouring candidates have in common, found once: costs of blocks, of stages and of collectives.

A candidate is put together from blocks and stages that thousands of others are made of too. Their costs are known by everything they
depend on, never by the candidate, so candidates may come in any order and from any lattice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from parsim.errors import Finding, PlanError
from parsim.kernel import Clocks, Kernel
from parsim.model.model import Block, Model
from parsim.parallel.groups import EXPERT, EXPERT_MODEL, EXPERT_TENSOR, OPERATOR_AXES, PIPELINE, REPLICATING, STAGE, TENSOR
from parsim.parallel.plan import Chunk, Plan
from parsim.parallel.plan_findings import CENTRAL
from parsim.parallel.settings import DataParallel, PipelineParallel
from parsim.parallel.stages import checkpoint_groups
from parsim.parallel.training import Recompute
from parsim.scenario.built import Built, clock_of, plan_of, wires_of
from parsim.study.search.chains import short
from parsim.study.search.costs import BlockCost, RankTimes, StageMemory, block_cost, stage_memory, stage_times
from parsim.study.search.prices import ChainPrices, Prices

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ChunkCost:
    """One global stage, wherever it stands."""

    seconds: dict[str, float]
    """as `BlockCost.seconds`, with the gathers of what is received"""
    least: dict[str, float]
    """F, B -> the shorter of the first micro-batch's pass and the others' [s]"""
    idle: bool
    """all its blocks may be idle"""
    kept: int
    """live bytes that a forward leaves for its backward [B]"""
    forward_high: int
    """most that a forward adds meanwhile [B]"""
    backward_high: tuple[int, int]
    """most that the first backward adds meanwhile, and a later one [B]"""
    layer_high: tuple[int, int]
    """the same while layers run"""
    entering: BlockCost
    leaving: BlockCost


class CostCache:
    """The costs known so far. It keeps everything it is asked about alive: make one per search."""

    def __init__(self) -> None:
        self._costs: dict[Hashable, Any] = {}
        self._numbers: dict[Hashable, int] = {}
        self._models: list[Model] = []

    def costs(self, built: Built) -> CandidateCosts:
        """What a candidate costs. Raises `PlanError` where no plan exists for it, and for Muon, SOAP and Shampoo."""
        if (name := built.training.optimizer.name) in (shown := {"muon": "Muon", "soap": "SOAP", "shampoo": "Shampoo"}):
            text, hint = f"not supported yet: a search over strategies with {shown[name]}", "run or compare the strategies one by one"
            raise PlanError(Finding(text, "training.optimizer.name", name, hint))
        kinds = tuple(built.cluster.device(gpu) for gpu in built.gpus) if built.effects_of_kinds else built.cluster.device(built.gpus[0])
        clock = self.known(("clock", kinds, built.effects, built.effects_of_kinds), lambda: clock_of(built))
        pipeline = built.parallelism.pipeline
        slots = pipeline.slots or short(pipeline.schedule, pipeline.size, built.training.micro_batches, pipeline.virtual_stages)
        plan = plan_of(replace(built, parallelism=replace(built.parallelism, pipeline=replace(pipeline, slots=slots))), clock)
        interconnect = wires_of(built, plan)
        where = (built.cluster, self.number(built.gpus), built.collectives, interconnect.tokens)
        wires = self.known(("prices", *where), lambda: Prices(built.cluster, interconnect))
        machine = self.number((self._model(built.model), len(plan.model.blocks), plan.parallelism.expert.shared_overlap, *where))
        least = clock.fastest if isinstance(clock, Clocks) else clock  # no GPU of the job is faster, so bounds stay below
        return CandidateCosts(self, plan, ChainPrices(plan, wires), least, machine)

    def known(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made under `key`, made now if nothing was."""
        if (cost := self._costs.get(key)) is None:
            cost = self._costs[key] = make()
        return cast(T, cost)

    def _model(self, model: Model) -> int:
        """The number of a model, by identity: comparing all its operators would take longer than a bound."""
        place = _place_of(model, self._models)
        if place == len(self._models):
            self._models.append(model)
        return place

    def number(self, key: Hashable) -> int:
        """A small key that stands for a large one."""
        return self._numbers.setdefault(key, len(self._numbers))


class CandidateCosts:
    """What one candidate costs, and the keys by which others share it. What only times need is found when it is asked for.

    Raises:
        PlanError: a stage of the plan cannot be written.
    """

    def __init__(self, cache: CostCache, plan: Plan, prices: ChainPrices, clock: Callable[[Kernel], float], machine: int) -> None:
        self.cache, self.prices, self.clock = cache, prices, clock
        self.plan = plan
        """with fewer micro-batches in its `slots`: rows that begin as the whole schedule's do"""
        self.kinds = tuple(sorted({slot.kind for row in plan.slots for slot in row}))
        split, recipe = plan.parallelism, plan.training
        pipeline, recompute = split.pipeline, recipe.recompute
        plain = replace(recipe, micro_batches=1, global_batch=1, last_micro_batch=0, recompute=Recompute())
        groups = tuple(tuple(prices.groups(axis)) for axis in operator_groups(plan))
        alike = replace(
            split, pipeline=PipelineParallel(scatter_sends=pipeline.scatter_sends), data=DataParallel(strategy=split.data.strategy)
        )
        self.blocks = cache.number((machine, plain, alike, plan.runtime, groups, self.kinds))
        self.recompute = cache.number(recompute)
        self.selective = self.recompute if recompute.mode == "selective" else -1
        alike = replace(split, pipeline=PipelineParallel(size=pipeline.size, virtual_stages=pipeline.virtual_stages))
        if split.data.custom is None and split.data.strategy not in CENTRAL:  # those hold parts of the batch
            plain = replace(plain, micro_batch=1)
        self.states = cache.number((machine, plain, alike, plan.runtime, plan.asynchronous, plan.shard_size))
        self.places = cache.known(("places", machine, plain.finetune is None), self._places)
        self.chunks = tuple(map(self._chunk_cost, plan.chunks))
        """by global stage; equal ones are one object"""
        self.stages = tuple(map(self._stage_memory, range(plan.mesh.size(PIPELINE))))
        """by pipeline rank; equal ones are one object"""

    @cached_property
    def times(self) -> tuple[RankTimes, ...]:
        """By pipeline rank; equal ones are one object."""
        return tuple(map(self._stage_times, range(len(self.stages))))

    @cached_property
    def sends(self) -> dict[tuple[str, int], float]:
        """(F or B, global stage) -> seconds of the message that hands its result on."""
        seconds: dict[tuple[str, int], float] = {}
        for stage, (chunk, cost) in enumerate(zip(self.plan.chunks, self.chunks, strict=True)):
            for way, block, to in (("F", cost.leaving, stage + 1), ("B", cost.entering, stage - 1)):
                target = self.plan.chunks[to].pipeline_rank if 0 <= to < len(self.chunks) else chunk.pipeline_rank
                if target != chunk.pipeline_rank and way in block.message:
                    size = block.message[way]
                    seconds[way, stage] = (
                        block.message_seconds[way] if size is None else self.prices.send(chunk.pipeline_rank, target, size)
                    )
        return seconds

    def _places(self) -> list[int]:
        """A number for every block of the model: equal for layers that are one object behind equal ones."""
        blocks = self.plan.model.blocks
        distinct: list[Block] = []
        numbers: dict[Hashable, int] = {}
        places = []
        before = -1
        for number, block in enumerate(blocks):
            this = _place_of(block, distinct)
            if this == len(distinct):
                distinct.append(block)
            layer = block.kind not in ("embedding", "head") and 0 < number < len(blocks) - 1
            alike = layer and self.plan.training.finetune is None
            places.append(numbers.setdefault((this, before) if alike else number, len(numbers)))
            before = this
        return places

    # -- passes ---------------------------------------------------------------------------------------------------

    def _chunk_cost(self, chunk: Chunk) -> ChunkCost:
        """The cost of a chunk, equal to that of all chunks that hold equal blocks."""
        speed = self.prices.speed(chunk.pipeline_rank)
        held = tuple([self.places[block] for block in chunk.blocks])
        received = self._received(chunk)
        return self.cache.known(("chunk", self.blocks, self.recompute, speed, held, received), lambda: self._summed(chunk, speed, received))

    def _received(self, chunk: Chunk) -> tuple[bool, bool]:
        """Whether a chunk's input, and its output's gradient, comes from another rank: not where stages turn in a V."""
        return not self.plan.stays(chunk.stage - 1), not self.plan.stays(chunk.stage)

    def _summed(self, chunk: Chunk, speed: float, received: tuple[bool, bool]) -> ChunkCost:
        """`received`: see `_received`."""
        costs: list[tuple[BlockCost, bool]] = []
        for group in checkpoint_groups(self.plan.training.recompute, self.plan.model, chunk.blocks):
            costs += [
                (self._block(block, group.checkpoint, speed), group.checkpoint and block != group.blocks[0]) for block in group.blocks
            ]
        entering, leaving = costs[0][0], costs[-1][0]
        seconds = {kind: _one_after_another([cost for cost, _ in costs], kind) for kind in entering.seconds}
        for name in seconds:
            if name in "Ff":
                seconds[name] += received[0] * entering.gathers.get("F", 0.0)
            elif name in "BbIi":
                seconds[name] += received[1] * leaving.gathers.get("B", 0.0)
        least = {
            way: min(seconds[k] for k in kinds if k in seconds)
            for way, kinds in (("F", "Ff"), ("B", "BbIi"))
            if seconds.keys() & set(kinds)
        }
        level = high = entering.input
        for cost, inner in costs:
            if inner:  # inside a group that is recomputed together only the first input is kept
                level += cost.output - cost.input
            else:
                high = max(high, level + cost.forward_high)
                level += cost.kept
        backward, layer = (self._backward_highs(chunk, costs, layers=layers) for layers in (False, True))
        idle = all(cost.idle for cost, _ in costs)
        return ChunkCost(seconds, least, idle, level - leaving.output, high, backward, layer, entering, leaving)

    def _backward_highs(self, chunk: Chunk, costs: Sequence[tuple[BlockCost, bool]], *, layers: bool) -> tuple[int, int]:
        """Most that the first backward and a later one add [B], or while layers run: what blocks behind kept has gone by then."""
        gone, highs = 0, (0, 0)
        last = costs[-1][0].output
        for block, (cost, inner) in zip(reversed(chunk.blocks), reversed(costs), strict=True):
            if not layers or self.plan.model.blocks[block].kind not in ("embedding", "head"):
                rest = last - gone - cost.output
                highs = max(highs[0], cost.backward_high[0] + rest), max(highs[1], cost.backward_high[1] + rest)
            if inner:  # recomputed with others: what is live between them is not known here
                break
            gone += cost.kept
        return highs

    def _block(self, block: int, checkpoint: bool, speed: float) -> BlockCost:
        key = ("block", self.blocks, self.places[block], checkpoint, self.selective, speed)
        return self.cache.known(
            key,
            lambda: block_cost(
                self.plan, block, checkpoint=checkpoint, kinds=self.kinds, clock=self.clock, price=self.prices.anywhere, speed=speed
            ),
        )

    # -- stages ---------------------------------------------------------------------------------------------------

    def _stage_memory(self, p: int) -> StageMemory:
        """The memory of a pipeline rank besides its passes, equal to that of all that hold equal blocks on equal links."""
        key = ("memory", self.stage_key(p))
        return self.cache.known(key, lambda: stage_memory(self.plan, p, self.clock, self.prices))

    def _stage_times(self, p: int) -> RankTimes:
        """Its time besides its passes."""
        return self.cache.known(("times", self.stage_key(p)), lambda: stage_times(self.plan, p, self.clock, self.prices))

    def stage_key(self, p: int) -> int:
        """Stands for all that it depends on."""
        held = tuple([tuple([self.places[block] for block in chunk.blocks]) for chunk in self.plan.of_rank(p)])
        return self.cache.number(("stage", self.states, held, self._links(p), self._tied(p), self.prices.speed(p)))

    def lanes_key(self, chunk: Chunk) -> int:
        """Stands for all that the passes of a chunk depend on, with what its strategy does around them."""
        p = chunk.pipeline_rank
        held = tuple([self.places[block] for block in chunk.blocks])
        beside = (self._received(chunk), self._links(p), self._tied(p), self.prices.speed(p))
        return self.cache.number(("lanes", self.blocks, self.states, self.recompute, held, *beside))

    def _links(self, p: int) -> tuple[Hashable, ...]:
        mesh, rank, along = self.plan.mesh, self.prices.ranks[p], self.prices.prices.along
        kinds: list[tuple[str, ...]] = [(TENSOR,), REPLICATING, (TENSOR, PIPELINE)]
        kinds += [STAGE] if self.plan.parallelism.exchanges_tokens else []
        return tuple([along(mesh, rank, *axes) for axes in kinds])

    def _tied(self, p: int) -> tuple[tuple[int, int], ...]:
        """Pipeline ranks that share a parameter with this one; its own chunks that share one, in the order of their backwards."""
        pairs = [(self._home[one], self._home[other]) for one, other, _ in self.plan.model.ties]
        here = self.plan.ties.on(p).values()
        chunks = [pair for tied in here for pair in ((tied.owner, tied.owner), (tied.first, tied.last))]
        return (*(pair for pair in pairs if pair[0] != pair[1] and p in pair), *chunks)

    @cached_property
    def _home(self) -> dict[int, int]:
        """Block -> the pipeline rank that holds it."""
        return {block: chunk.pipeline_rank for chunk in self.plan.chunks for block in chunk.blocks}


def operator_groups(plan: Plan) -> tuple[str, ...]:
    """Groups whose collectives may stand between the operators of a layer."""
    if not plan.parallelism.exchanges_tokens:
        return OPERATOR_AXES
    alone = plan.parallelism.expert.dispatcher == "alltoall"
    return (*OPERATOR_AXES, *((EXPERT, EXPERT_TENSOR) if alone else (EXPERT_MODEL,)))


def _one_after_another(costs: Sequence[BlockCost], kind: str) -> float:
    """Seconds of blocks in a row; while compute waits at the end of one for a collective, the host may be launching the next."""
    total = waited = 0.0
    for cost in costs if kind in "Ff" else reversed(costs):
        total += max(cost.computing[kind], cost.seconds[kind] - waited)
        waited = cost.waits[kind]
    return total


def _place_of(thing: object, among: Sequence[object]) -> int:
    """Where the very object is in a sequence; behind its end where it is not there."""
    return next((place for place, other in enumerate(among) if other is thing), len(among))
