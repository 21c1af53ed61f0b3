"""Lower bounds of a candidate's step time and peak memory, without simulating it.

Step time. Every op of a rank's compute lane follows the one before it, every slot of a pipeline follows the slot whose message
it needs, and no transfer is faster than on idle links; so a chain of such ops is a lower bound of the step:

    fill + the m passes of a rank + drain + end of the step            (`Bounds.step_time`, closed form, for every rank)
    the longest chain through all slots of the schedule                (`Bounder.tight`, walks the schedule)
    the same with every lane of the ranks                              (`Bounder.chained`, writes their passes)

and so is what passes through one queue, such as the gathers and reductions of sharded weights. What delays a simulation and is
left out here: links shared with others, compute slowed beside communication, ranks waiting for unequal ones.

Memory. The order of a rank's compute lane is fixed, whatever takes how long. What it has allocated and not freed at one place of
that order is live at one moment; the caching allocator reserves no less, and context and communicators come on top.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import fsum, inf

from parsim.parallel.groups import OPERATOR_AXES
from parsim.parallel.plan_findings import CENTRAL
from parsim.parallel.schedules.slot import GRADIENTS_OF_INPUTS
from parsim.report.memory_facts import FIRST_COMMUNICATOR, FURTHER_COMMUNICATOR
from parsim.scenario.built import Built
from parsim.study.search.chains import Walked, ends, fullest, walk, walked
from parsim.study.search.cost_cache import CandidateCosts, CostCache, operator_groups
from parsim.study.search.lanes import chained

ROUNDING_ERRORS = 1e-9
"""relative; sums are taken in another order here than by the engine"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """No simulation of the candidate finds less."""

    step_time: float
    """[s]"""
    peak_memory: int
    """of the fullest rank's device, as `memory.peak_bytes` counts it [B]"""
    capacity: int
    """of a device, what must stay free taken off [B]"""
    samples: int
    """per step"""
    tokens: float | None
    """per step; None: samples without tokens"""
    gpus: int
    gradients: int = 0
    """whole gradients of the stage with most parameters, in fp32 [B]"""

    @property
    def surely_full(self) -> bool:
        """It cannot fit."""
        return self.peak_memory > self.capacity

    @property
    def larger_surely_full(self) -> bool:
        """Nor can it with a larger micro-batch and as many fewer of them, of the same samples.

        What a stage keeps under way does not shrink then: at most as many fewer micro-batches wait in it as they are larger. Gradients
        may: of fewer micro-batches, fewer wait beside them, and a single one accumulates nothing.
        """
        return self.peak_memory - self.gradients > self.capacity


class Bounder:
    """Bounds of neighbours: what they have in common is found once."""

    def __init__(self) -> None:
        self.cache = CostCache()

    def bounds(self, built: Built) -> Bounds:
        """The cheap bound of the step and that of the memory. Raises `PlanError` for what no plan exists for.

        The step of what surely does not fit is not bounded here.
        """
        costs = self.cache.costs(built)
        training = built.training
        capacity = capacity_of(built)
        tokens = float(training.global_batch * training.mean_length) if built.model.sequence else None
        peak = memory(costs)
        step_time = closed(costs) if peak <= capacity else 0.0  # whoever cares for what cannot fit asks for a tighter one
        gradients = 4 * max(stage.parameters for stage in costs.stages)
        return Bounds(step_time, peak, capacity, training.global_batch, tokens, len(built.gpus), gradients)

    def surely_full(self, built: Built) -> bool:
        """Whether it cannot fit; no transfer is priced for it. Raises as `bounds`."""
        return memory(self.cache.costs(built)) > capacity_of(built)

    def tight(self, built: Built) -> float:
        """The longest chain through the whole schedule [s]; not below the cheap bound."""
        costs = self.cache.costs(built)
        return max(closed(costs), longest(costs))

    def chained(self, built: Built) -> float:
        """The longest chain through all lanes of the schedule [s]; not below the tight bound."""
        costs = self.cache.costs(built)
        least, order = max(closed(costs), longest(costs)), _order(costs)
        if order is None or built.parallelism.data.strategy in CENTRAL:
            return least
        return max(least, chained(costs, order) * (1 - ROUNDING_ERRORS))


def capacity_of(built: Built) -> int:
    """Of the largest GPU of the job [B]: what does not fit there fits nowhere."""
    gpus = built.gpus if built.effects_of_kinds else built.gpus[:1]
    return max(built.cluster.device(gpu).visible_memory for gpu in gpus) - built.memory_reserve


# -- step time --------------------------------------------------------------------------------------------------------


def closed(costs: CandidateCosts) -> float:
    """Fill, a rank's own passes, drain, end of the step: the largest over the ranks [s]; 0 where it is not known."""
    plan = costs.plan
    if plan.asynchronous:
        return _steady(costs)
    if _meeting(costs):
        return 0.0
    fill, drain, rest = _ways(costs)
    compute, queues = [], []
    drained = 0.0
    for p, row in enumerate(plan.slots):
        first, last = row[0], row[-1]
        own = fsum(_passes(costs, kind, stage) for kind, stage in {(slot.kind, slot.stage): None for slot in row})
        done = own + (fill[first.stage] if first.kind == "F" else 0.0)
        compute.append(done)
        behind = rest[last.stage] if last.kind == "F" else drain[last.stage] if last.kind in GRADIENTS_OF_INPUTS else 0.0
        drained = max(drained, done + behind)
        queues.append(-inf if last.kind == "F" else _queue(costs, p, last.stage, last.kind, done))
    queued = max(fsum(r.each for r in stage.reductions.values()) for stage in costs.times) * plan.training.micro_batches
    return max(_finished(costs, compute, queues), drained + _least_ending(costs), queued) * (1 - ROUNDING_ERRORS)


def _meeting(costs: CandidateCosts) -> bool:
    """Passes that run at once take less than one after another, and of two models on the ranks each does a part of the micro-batches."""
    return bool(costs.plan.overlapped) or costs.plan.directions > 1


def _queue(costs: CandidateCosts, p: int, stage: int, kind: str, done: float) -> float:
    """When the queue of gradients is empty [s], the stage's last backward having ended at `done`; -inf: nothing is in it.

    The first bucket cannot be full before that backward begins, the last one not before its last block begins. The trainer's metrics
    run behind it.
    """
    reduction = costs.times[p].reductions.get(stage)
    if reduction is None:
        return -inf
    chunk = costs.chunks[stage]
    begun, final = (
        max(chunk.seconds[kind], chunk.seconds[kind.lower()]),
        max(chunk.entering.seconds[kind], chunk.entering.seconds[kind.lower()]),
    )
    return max(done - chunk.leaving.metrics - final + reduction.last, done - begun + reduction.total)


def _passes(costs: CandidateCosts, kind: str, stage: int) -> float:
    """All passes of one kind on a stage. A smaller last micro-batch is left out."""
    seconds, training = costs.chunks[stage].seconds, costs.plan.training
    count = training.micro_batches - bool(training.last_micro_batch)
    return seconds[kind.lower()] + (count - 1) * seconds[kind] if count else 0.0


def _ways(costs: CandidateCosts) -> tuple[list[float], list[float], list[float]]:
    """Per global stage: the forwards before it, the backwards behind it, the forwards behind it, messages included [s]."""
    count = len(costs.chunks)
    fill, drain, rest = [0.0] * count, [0.0] * count, [0.0] * count
    if costs.plan.training.last_micro_batch or any(chunk.idle for chunk in costs.chunks):
        return fill, drain, rest  # how long the smaller passes take is not known here; idle stages wait for nobody
    for stage in range(1, count):
        before = costs.chunks[stage - 1].least
        sent = costs.sends.get(("F", stage - 1), 0.0), costs.sends.get(("B", stage), 0.0)
        fill[stage] = fill[stage - 1] + before.get("F", 0.0) + sent[0]
        drain[stage] = drain[stage - 1] + before.get("B", 0.0) + sent[1]
    for stage in reversed(range(count - 1)):
        rest[stage] = rest[stage + 1] + costs.chunks[stage + 1].least.get("F", 0.0) + costs.sends.get(("F", stage), 0.0)
    return fill, drain, rest


def _least_ending(costs: CandidateCosts) -> float:
    """What follows the last pass of any rank, whichever it is [s]."""
    stages = costs.times
    meets = all(stage.before > -inf for stage in stages)
    return min(max(0.0, stage.before) for stage in stages) + (max if meets else min)(stage.after for stage in stages)


def _finished(costs: CandidateCosts, compute: list[float], queues: list[float]) -> float:
    """The end of the step [s], from the ends of every rank's passes and of its gradients' queue."""
    ranks = list(zip(compute, queues, costs.times, strict=True))
    if all(stage.before > -inf for stage in costs.times):
        met = max(max(done + stage.before, queue + stage.queued_before) for done, queue, stage in ranks)
        return met + max(stage.after for stage in costs.times)
    return max(max(done + stage.after, queue + stage.queued_after) for done, queue, stage in ranks)


def _steady(costs: CandidateCosts) -> float:
    """Without a flush a step is as many periods as it has micro-batches, and no period is shorter than a rank's own passes [s]."""
    plan = costs.plan
    p = len(plan.slots)
    # without what `parsim.scenario.built.plan_of` adds to find the steady state
    many = plan.parallelism.pipeline.step or plan.training.micro_batches - 4 * p - 8
    chunks, rows = costs.chunks, [{slot[:2]: slot for slot in row}.values() for row in plan.slots]
    least = [[min(chunks[slot.stage].seconds[kind] for kind in (slot.kind, slot.kind.lower())) for slot in row] for row in rows]
    own = list(map(fsum, least))
    return many * max(own) * (1 - 1e-6)


def _order(costs: CandidateCosts) -> Walked | None:
    """The schedule in the order of its messages; None where chains through it are not known."""
    plan = costs.plan
    if plan.asynchronous or plan.training.last_micro_batch or _meeting(costs):
        return None
    pipeline = plan.parallelism.pipeline
    if pipeline.schedule == "custom" or not plan.training.backward:
        order = walk(plan.slots, len(plan.chunks))
    else:
        order = walked(pipeline.schedule, pipeline.size, plan.training.micro_batches, pipeline.virtual_stages)
    return order if order.ranks else None


def longest(costs: CandidateCosts) -> float:
    """The longest chain through all slots of the schedule, and the end of the step behind it [s]; 0 where it is not known."""
    plan = costs.plan
    order = None if any(chunk.idle for chunk in costs.chunks) else _order(costs)
    if order is None:
        return 0.0
    seconds = [costs.chunks[stage].seconds[kind.lower() if first else kind] for kind, stage, first in order.names]
    travel = [costs.sends.get(("F", stage - 1) if kind == "F" else ("B", stage + 1), 0.0) for kind, stage, _ in order.names]
    lanes, done = ends(order, len(plan.slots), seconds, travel)
    queues = [-inf] * len(lanes)
    for stage, place in order.last_backward.items():
        p = plan.chunks[stage].pipeline_rank
        queues[p] = max(queues[p], _queue(costs, p, stage, order.names[order.keys[place]][0], done[place]))
    return _finished(costs, lanes, queues) * (1 - ROUNDING_ERRORS)


# -- memory -----------------------------------------------------------------------------------------------------------


def memory(costs: CandidateCosts) -> int:
    """The fullest rank [B]: what stays, what its first slots pile up, context and communicators.

    Of ranks that hold the same, the first is asked: the earlier a stage, the more micro-batches wait in it.
    """
    plan = costs.plan
    asked: dict[tuple[Hashable, ...], int] = {}
    for p in range(len(costs.stages)):
        asked.setdefault((costs.stages[p], *(costs.chunks[chunk.stage] for chunk in plan.of_rank(p))), p)
    messages = [block.message for chunk in dict.fromkeys(costs.chunks) for block in (chunk.entering, chunk.leaving)]
    sends = len(costs.chunks) > 1 and all(size is not None for sizes in messages for size in sizes.values())
    most = max(_allocated(costs, p) + _buffers(costs, p, sends=sends) for p in asked.values())
    return plan.runtime.context + plan.runtime.overhead + most


def _allocated(costs: CandidateCosts, p: int) -> int:
    """Allocated memory of one pipeline rank [B]."""
    plan, stage = costs.plan, costs.stages[p]
    whole_ones = plan.training.micro_batches - bool(plan.training.last_micro_batch)
    row = [slot for slot in plan.slots[p] if slot.micro_batch < whole_ones]  # what the smaller last one keeps is not known here
    split = any(slot.kind == "W" for slot in row)
    own = plan.of_rank(p)
    written, whole = {}, {}
    for chunk, size, unsharded, gathered in zip(own, stage.gradients, stage.unsharded, stage.gathered, strict=True):
        waiting = unsharded if whole_ones > 1 and not plan.training.last_micro_batch else 0
        written[chunk.stage] = (0, 0) if split else (size, waiting)
        root, layer = gathered
        whole[chunk.stage] = root * (chunk.blocks[0] == 0), layer  # with the embedding, the root unit stays whole through a backward
    net: dict[tuple[str, int], int] = {}
    high: dict[tuple[str, int, bool], int] = {}
    for chunk in own:
        stage_number, cost = chunk.stage, costs.chunks[chunk.stage]
        root, layer = whole[stage_number]
        net["F", stage_number] = cost.kept if plan.training.backward else min(0, cost.kept)
        net["B", stage_number] = net["I", stage_number] = -cost.kept
        net["W", stage_number] = 0
        for first, any_block, layers in zip((True, False), cost.backward_high, cost.layer_high, strict=True):
            high["F", stage_number, first], high["W", stage_number, first] = cost.forward_high, 0
            high["B", stage_number, first] = high["I", stage_number, first] = root + max(any_block, layers + layer)
    most = fullest(row, net, high, written, plan.training.micro_batches)
    if plan.parallelism.pipeline.schedule == "gpipe" and plan.training.backward:  # the row here has fewer forwards than come first
        place = own[0].stage
        kept = whole_ones * net["F", place]
        most = max(
            most, kept - net["F", place] + high["F", place, True], kept if plan.training.last_micro_batch else kept + high["B", place, True]
        )
    if not plan.asynchronous:
        most = max(most, sum(stage.gradients) + stage.ending_high)
    return stage.resident + most


def _buffers(costs: CandidateCosts, p: int, *, sends: bool) -> int:
    """Communicators that a rank surely has [B]; `sends`: one for its messages among them."""
    plan = costs.plan
    if plan.runtime.communicators is not None:
        return plan.runtime.communicators
    members, rank = costs.prices.prices.members, costs.prices.ranks[p]
    stage = costs.stages[p]
    axes = (*stage.axes, *(operator_groups(plan) if stage.experts else OPERATOR_AXES))
    groups = {group for axis in axes if len(group := members(plan, axis, rank)) > 1}
    if plan.runtime.sends_alone and any(len(group) == 2 for group in groups):
        sends = False  # the pair may be one of them
    count = len(groups) + sends
    return FIRST_COMMUNICATOR + FURTHER_COMMUNICATOR * (count - 1) if count else 0
