"""What one block costs on a stage by itself, and what one pipeline rank costs besides its passes: seconds and bytes.

Candidates that differ in their pipeline, data parallelism or number of micro-batches have the same blocks; so each distinct block is
written once (by the very code that writes whole stages) and asked by thousands of candidates. What stays in a rank's memory and what ends
its step depend on the blocks that it holds and on who reduces and shards with whom, but not on the micro-batch, recomputation or schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf

from parsim.kernel import Kernel
from parsim.parallel.ddp import DistributedDataParallel
from parsim.parallel.experts import SeveralStrategies
from parsim.parallel.fsdp import ROOT, FullyShardedDataParallel
from parsim.parallel.fsdp_experts import ShardedExperts
from parsim.parallel.groups import MODEL, OFFLOAD, SHARD, TENSOR, WORLD
from parsim.parallel.hooks import Sharding, Unit
from parsim.parallel.plan import Chunk, Plan
from parsim.parallel.replicated import LANE, Replicated
from parsim.parallel.schedules.slot import GRADIENTS_OF_INPUTS
from parsim.parallel.settings import DataParallel
from parsim.parallel.training import Recompute
from parsim.parallel.zero import ZeroOptimizer
from parsim.program.pass_builder import Item
from parsim.program.program import COMPUTE
from parsim.program.stage_passes import StagePasses
from parsim.simulation.ledger import held_in
from parsim.study.search.chains import Levels, Price, levels, longest, rounded
from parsim.study.search.prices import ChainPrices

UNTOUCHED = ("none", "ddp", "zero1")
"""strategies whose kernels between the passes of a block are those of replicated weights"""


@dataclass(frozen=True, slots=True)
class BlockCost:
    """One block between its boundary tensors; what it receives from another stage is left out."""

    seconds: dict[str, float]
    """kind of slot (F, B, I, W; f, b, i, w: of the first micro-batch) -> [s]"""
    computing: dict[str, float]
    """the same if launching took no time [s]"""
    waits: dict[str, float]
    """the part of `computing` at its end in which compute waits for a collective, and the host may be launching the next block [s]"""
    idle: bool
    """some kind of slot gives its compute lane nothing to do (frozen weights), and then waits for nobody"""
    kept: int
    """live bytes that its forward adds, its input being there before and its output after [B]"""
    forward_high: int
    """most that its forward adds meanwhile [B]"""
    backward_high: tuple[int, int]
    """most that the first micro-batch's backward adds, and a later one's, the received gradient included [B]"""
    input: int
    """what another stage sends to it [B]; 0 for the first block"""
    output: int
    """what it sends to another stage [B]; 0 for the last block"""
    message: dict[str, int | None]
    """F, B -> bytes of the message that hands its result on; None: a measured duration instead"""
    message_seconds: dict[str, float]
    """that duration [s]"""
    gathers: dict[str, float]
    """F, B -> seconds in which what is received is put together from scattered parts"""
    metrics: float
    """what the trainer computes from the logits behind a backward, which nothing that leaves it waits for [s]; part of `seconds`"""


def block_cost(
    plan: Plan, block: int, *, checkpoint: bool, kinds: tuple[str, ...], clock: Callable[[Kernel], float], price: Price, speed: float
) -> BlockCost:
    """Write one block of `plan` alone on a stage and measure it. `checkpoint`: it keeps its input only.

    The data-parallel strategy is left out (its collectives hold no compute up that they need not), and with it its gradients.
    """

    def on_links(kind: str, axis: str, size: int) -> float:
        return 0.0 if axis == OFFLOAD else price(kind, axis, size)  # copies run ahead of the block that waits for them

    single = _alone(plan, block, checkpoint=checkpoint)
    passes = StagePasses(single, block, "", clock)
    for rank in (passes, *passes.unsaved):
        rank.sharding[block] = Replicated(single.weights(passes.chunks[block]), single.training, DataParallel(), single.runtime, 1)
    last = block == len(plan.model.blocks) - 1
    gathers = _gathers(passes, block, last=last, price=price)
    seconds, computing, waits, measured, idle = {}, {}, {}, {}, False
    for kind in kinds:
        for name, first in ((kind, False), (kind.lower(), True)):
            items = passes.template(kind, block, first, False)
            whole = longest(items, on_links, {}, speed=speed, arrival=0.0).compute
            bare = longest(items, on_links, {}, speed=speed, arrival=0.0, host=False)
            received = gathers.get("F" if kind == "F" else "B" if kind in GRADIENTS_OF_INPUTS else "", 0.0)
            idle |= whole < 0.0
            seconds[name], computing[name] = max(0.0, whole) - received, max(0.0, bare.compute) - received
            waits[name] = max(0.0, bare.compute - bare.busy) if bare.busy >= 0.0 else 0.0
            measured[name] = levels(items, passes.table.rows, without=("gradients", "workspace"))
    taped = passes.tape(block)
    sent = {way: passes.sends(way, block) for way in ("F", "B") if way in kinds or (way == "B" and "I" in kinds)}
    handed = rounded(taped.tensors["output"].bytes) if not last else 0
    before = 0 if block == 0 else rounded(passes.tape(block - 1).tensors["output"].bytes)
    ahead: Levels = measured["F"]
    unsent = len(passes.unsaved) * handed  # outputs that the next block takes over within a slot
    return BlockCost(
        seconds=seconds,
        computing=computing,
        waits=waits,
        idle=idle,
        kept=ahead.net - before - unsent,
        forward_high=ahead.high - before - unsent,
        backward_high=(
            max((measured[kind].high for kind in ("b", "i") if kind in measured), default=0),
            max((measured[kind].high for kind in ("B", "I") if kind in measured), default=0),
        ),
        input=before,
        output=handed,
        message={way: size for way, (size, _, _) in sent.items()},
        message_seconds={way: duration for way, (_, _, duration) in sent.items()},
        gathers=gathers,
        metrics=fsum(map(clock, passes.metrics(False)[0])) / speed if last else 0.0,
    )


def _alone(plan: Plan, block: int, *, checkpoint: bool) -> Plan:
    """The same plan with every block on a stage of its own and replicated weights."""
    training, runtime = plan.training, plan.runtime
    if checkpoint:
        training = replace(training, recompute=Recompute("full"))
    elif training.recompute.mode != "selective":
        training = replace(training, recompute=Recompute("none"))
    tied = any(parameter.tied for parameter in plan.model.blocks[block].parameters())
    if plan.parallelism.data.strategy not in UNTOUCHED or tied:
        runtime = replace(runtime, gradient_accumulation_fusion=True)  # adds no kernels that the real strategy may not have
    chunks = tuple(Chunk(b, b, (b,)) for b in range(len(plan.model.blocks)))
    pipeline = replace(plan.parallelism.pipeline, schedule="1f1b")  # pipedream would end a step in every backward
    parallelism = replace(plan.parallelism, pipeline=pipeline, data=DataParallel(size=plan.parallelism.data.size, strategy="none"))
    return replace(plan, training=training, runtime=runtime, parallelism=parallelism, chunks=chunks, _known_weights={})


def _gathers(passes: StagePasses, block: int, *, last: bool, price: Price) -> dict[str, float]:
    """Seconds of the blocking gather with which a received message becomes whole, by direction; passes without gradients receive theirs."""
    seconds = {}
    for way, boundary, count in (("F", block - 1, (block > 0) * (1 + len(passes.unsaved))), ("B", block, not last)):
        if count:
            size = passes.tape(boundary).tensors["output"].bytes
            seconds[way] = 0.0 if passes.message(size) == size else count * price("all_gather", TENSOR, passes.moved(size))
    return seconds


_GATHERS = (FullyShardedDataParallel, ShardedExperts)
JOINS = (WORLD, MODEL)
"""axes of the collective in which all stages meet before the optimizer steps"""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What leaves one chunk's last backward through the gradients' queue; -inf where nothing does."""

    total: float
    """all its buckets one after another [s]"""
    last: float
    """its last bucket [s]"""
    each: float
    """what every micro-batch puts through that queue [s]"""


@dataclass(frozen=True, slots=True, eq=False)
class StageMemory:
    """One pipeline rank's memory besides its passes."""

    resident: int
    """live from the first op to the last [B]"""
    gradients: tuple[int, ...]
    """of each of its chunks, live from the end of its first backward to the optimizer step, besides [B]"""
    unsharded: tuple[int, ...]
    """of each of its chunks, whole gradients of sharded weights that wait for the last of several micro-batches [B]"""
    gathered: tuple[tuple[int, int], ...]
    """of each of its chunks, sharded weights that are whole while a block runs: any block, a layer besides [B]"""
    ending_high: int
    """most that the end of the step adds [B]"""
    axes: frozenset[str]
    """of the collectives between passes: every group has a communicator"""
    parameters: int
    """elements of its weights and buffers"""
    experts: bool
    """experts' weights are among them"""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One pipeline rank's time besides its passes."""

    before: float
    """from the end of its last pass to where all stages meet [s]; -inf: they do not meet"""
    after: float
    """from there to the end, or from the end of its last pass where stages do not meet [s]"""
    queued_before: float
    queued_after: float
    """the same two from the end of the gradients' queue; -inf: nothing waits for it"""
    reductions: dict[int, Reduction]
    """by global stage"""


def stage_memory(plan: Plan, pipeline_rank: int, clock: Callable[[Kernel], float], prices: ChainPrices) -> StageMemory:
    """Write the end of the step of one pipeline rank and measure its memory; no transfer is priced."""
    passes = StagePasses(plan, pipeline_rank, plan.role(prices.ranks[pipeline_rank]).central, clock)
    strategies = _strategies(passes)
    gradients = tuple(sum(map(_gradients, parts)) * plan.training.backward for parts in strategies.values())
    items = [] if plan.asynchronous else passes.end()
    rows = passes.table.rows
    resident = sum(rounded(rows[number].bytes) for number in passes.resident if held_in(rows[number].category) == "device")
    axes = {item.collective[1] for item in items if item.collective is not None and item.collective[1] != OFFLOAD}
    every = [part for parts in strategies.values() for part in parts]
    weights = [weight for chunk in plan.of_rank(pipeline_rank) for weight in plan.weights(chunk)]
    for part in every:
        if part.size > 1 and _reduction((part,), lambda *_: 1.0, plan.training.backward).total > 0:
            axes.add(SHARD if plan.sharded else part.group)
            if isinstance(part, ZeroOptimizer) and part.instances > 1:
                axes.add(part.across)
    return StageMemory(
        resident,
        gradients,
        tuple(sum(map(_unsharded, parts)) for parts in strategies.values()),
        tuple(_gathered(parts[0]) for parts in strategies.values()),  # a layer's experts are let go before its backward ends
        levels(items, rows).high + sum(map(_gradient_shards, every)) * plan.training.backward,
        frozenset(axes),
        sum(weight.count for weight in weights),
        any(weight.parameter.expert for weight in weights),
    )


def stage_times(plan: Plan, pipeline_rank: int, clock: Callable[[Kernel], float], prices: ChainPrices) -> RankTimes:
    """Write the end of the step of one pipeline rank and measure it."""
    passes = StagePasses(plan, pipeline_rank, plan.role(prices.ranks[pipeline_rank]).central, clock)
    speed = prices.speed(pipeline_rank)

    def price(kind: str, axis: str, size: int) -> float:
        return prices.at(pipeline_rank, kind, axis, size)

    reductions = {stage: _reduction(parts, price, plan.training.backward) for stage, parts in _strategies(passes).items()}
    items = [] if plan.asynchronous else passes.end()
    meeting = next((place for place, item in enumerate(items) if item.collective is not None and item.collective[1] in JOINS), None)
    from_compute, from_queue = ({COMPUTE: 0.0}, {LANE: 0.0})
    if meeting is None:
        before = queued_before = -inf
        after, queued = (longest(items, price, source, speed=speed).whole for source in (from_compute, from_queue))
        after = max(0.0, after)
    else:
        head = items[:meeting]
        before = max(0.0, longest(head, price, from_compute, speed=speed).compute)
        queued_before = longest(up_to(items, meeting), price, from_queue, speed=speed).compute
        after = longest(_from(items, meeting), price, dict.fromkeys(items[meeting].lanes, 0.0), speed=speed).whole
        queued = -inf
    return RankTimes(before, after, queued_before, queued, reductions)


def _strategies(passes: StagePasses) -> dict[int, tuple[Replicated, ...]]:
    """How each chunk keeps its weights, by global stage: in one way, or spread experts in another than the rest, which comes first."""
    return {stage: parts for stage, sharding in passes.sharding.items() if (parts := strategies_in(sharding))}


def strategies_in(sharding: Sharding) -> tuple[Replicated, ...]:
    """The strategies of a chunk."""
    if isinstance(sharding, SeveralStrategies):
        return sharding.parts
    return (sharding,) if isinstance(sharding, Replicated) else ()


def up_to(items: list[Item], place: int) -> list[Item]:
    """The items before a meeting, and an empty one on the compute lane that waits for what the meeting waits for."""
    stop = items[place]
    return [*items[:place], Item("", "compute", (COMPUTE,), needs=list(stop.needs), tails=list(stop.tails))]


def _from(items: list[Item], place: int) -> list[Item]:
    """The items from a meeting on, with what they need before it dropped."""
    behind = []
    for item in items[place:]:
        needs = [need - place for need in item.needs if need >= place]
        tails = [tail for tail in item.tails if tail != COMPUTE]
        behind.append(Item(item.name, item.kind, item.lanes, item.duration, collective=item.collective, needs=needs, tails=tails))
    return behind


def _gradients(sharding: Replicated) -> int:
    """Gradients that are tensors of their own and stay until the step [B]."""
    if sharding.training.offload.optimizer != "none" or isinstance(sharding, FullyShardedDataParallel):
        return 0
    if isinstance(sharding, DistributedDataParallel) and (sharding.data.bucket_view or sharding.runtime.megatron):
        return 0
    if isinstance(sharding, ZeroOptimizer) and (sharding.stage == 2 or sharding.runtime.megatron):
        return 0
    if type(sharding) not in (Replicated, DistributedDataParallel, ZeroOptimizer):
        return 0
    return sum(rounded(w.count * sharding.training.precision.gradients) for w in sharding.trainable)


def _unsharded(sharding: Replicated) -> int:
    """FSDP without synchronisation: the first backward writes whole gradients, the last one reduces them [B]."""
    if type(sharding) not in _GATHERS or not sharding.training.backward or sharding.training.finetune is not None:
        return 0
    if sharding.data.accumulate == "every" or sharding.data.strategy == "zero3":
        return 0
    return sum(rounded(unit.count * sharding.training.precision.gradients) for unit in _units(sharding))


def _units(sharding: Replicated) -> tuple[Unit, ...]:
    return sharding.units if isinstance(sharding, FullyShardedDataParallel) else ()


def _gathered(sharding: Replicated) -> tuple[int, int]:
    """Weights of the root unit, which stay whole from a forward to its backward, and of the smallest other unit [B]."""
    if type(sharding) is not FullyShardedDataParallel or sharding.training.finetune is not None:
        return 0, 0
    element = _gathered_element(sharding)
    sizes = {unit.name: rounded(unit.count * element) for unit in sharding.units}
    return sizes.pop(ROOT, 0), min(sizes.values(), default=0)


def _gradient_shards(sharding: Replicated) -> int:
    """Reduced shares that are there when the optimizer steps, and not before the first backward [B]."""
    element = sharding.training.precision.gradients
    if sharding.training.offload.optimizer != "none" or sharding.training.finetune is not None:
        return 0
    if type(sharding) in _GATHERS:
        return sum(rounded(-(-unit.count // sharding.size) * element) for unit in _units(sharding))
    if type(sharding) is ZeroOptimizer and sharding.stage == 2 and not sharding.runtime.megatron:
        return rounded(sharding.shard * element)
    return 0


def _reduction(parts: Sequence[Replicated], price: Callable[[str, str, int], float], backward: bool) -> Reduction:
    """The collectives that a chunk's backward puts into the gradients' queue, in the order of the queue.

    The last of spread experts' may come before the last block begins: the last bucket is that of the rest.
    """
    nothing = Reduction(-inf, -inf, 0.0)
    if not backward or parts[0].training.offload.parameters != "none":
        return nothing
    if gathering := [part for part in parts if isinstance(part, FullyShardedDataParallel) and type(part) in _GATHERS and part.size > 1]:
        return _sharded(gathering, price)
    each = [_bucket_seconds(part, price) for part in parts]
    if not any(each):
        return nothing
    rest = parts[0]
    total = fsum(seconds for bucket in each for seconds in bucket)
    always = rest.data.accumulate == "every" or getattr(rest, "stage", 0) == 2
    last = each[0][-1] if each[0] and rest.training.finetune is None else -inf  # frozen blocks may follow the last gradient
    return Reduction(total, last, total if always else 0.0)


def _bucket_seconds(part: Replicated, price: Callable[[str, str, int], float]) -> list[float]:
    """Of the reduction of each bucket that leaves beside backward."""
    if type(part) not in (DistributedDataParallel, ZeroOptimizer) or not part.data.overlap_reduce or part.size == 1:
        return []
    kind = "reduce_scatter" if isinstance(part, ZeroOptimizer) else "all_reduce"
    buckets, element = getattr(part, "buckets", ()), part.training.precision.reduce
    seconds = [price(kind, part.group, bucket.count * element) for bucket in buckets]
    if isinstance(part, ZeroOptimizer) and part.instances > 1:
        shares = (-(-bucket.count // part.size) * element for bucket in buckets)
        seconds = [one + price("all_reduce", part.across, share) for one, share in zip(seconds, shares, strict=True)]
    return seconds


def _sharded(parts: Sequence[FullyShardedDataParallel], price: Callable[[str, str, int], float]) -> Reduction:
    """Gathers and reductions of one micro-batch under sharded strategies; units are gathered anew in backward where they reshard."""
    gathers = reduces = 0.0
    data, precision = parts[0].data, parts[0].training.precision
    shared = data.queues == "shared"
    always = data.accumulate == "every" or data.strategy == "zero3"
    for part, unit in [(own, unit) for own in parts for unit in own.units]:
        if unit.name == ROOT or not all(weight.trains for weight in unit.weights):
            continue
        size, ranks = unit.count, part.groups[0]
        one = price("all_gather", ranks, size * _gathered_element(part)) if data.reshard_after_forward else 0.0
        gathers += 2 * one
        reduces += price("reduce_scatter", ranks, size * precision.reduce)
    each = gathers + reduces * always if shared else max(gathers, reduces * always)
    return Reduction(-inf, -inf, each)


def _gathered_element(sharding: FullyShardedDataParallel) -> int:
    """Bytes of a gathered weight, at least."""
    precision = sharding.training.precision
    return 1 if precision.gathers_narrow else precision.gathered
