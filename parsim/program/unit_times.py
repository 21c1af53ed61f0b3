"""The schedule laboratory: a pipeline schedule with given stage times, without model or cluster.

What the papers draw on squared paper, as a program that the engine runs. Also the program of a model whose stages
are profiled times instead of kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import fsum

from parsim.errors import Finding, PlanError
from parsim.parallel.schedules.blocking import MessageExchange, blocking_order
from parsim.parallel.schedules.slot import APART, Overlapped, Precedence, Schedule, Slot, SlotKind
from parsim.program.program import Effect, Effects, Lane, Op, Program, Tensor

PerStage = float | Sequence[float]
"""one number for all global stages, or one each"""


def unit_program(  # noqa: PLR0913 - what a schedule may be asked with
    schedule: Schedule,
    forward: PerStage,
    backward: PerStage,
    *,
    weight: PerStage | None = None,
    latency: PerStage = 0.0,
    overlap_sends: bool = True,
    activation: int | Sequence[int] = 0,
    overlapped: Overlapped = APART,
    pair: PerStage | None = None,
    directions: int = 1,
) -> Program:
    """A schedule as a program: one op per slot in ``Lane(rank, "compute")``, one op per message between ranks.

    Parameters
    ----------
    forward, backward
        seconds of F and of a whole backward (B, or I + W), for all global stages or per global stage. With v chunks
        per rank a global stage is 1/v of what a rank holds.
    weight
        seconds of W, out of `backward`; needed where the schedule splits its backwards.
    latency
        seconds of a message, for all boundaries or per boundary between global stages s and s + 1. It is pure latency: messages do
        not slow each other. Message ops stand in the lanes ``send <micro-batch>`` of both ranks; the messages of one micro-batch
        follow each other anyway, so those lanes hold nobody up.
    overlap_sends
        False: messages block, and stand in the compute lanes of both ranks where `blocking_order` puts them.
    activation
        bytes that a micro-batch holds on a global stage from the start of F to the end of B (of W where split).
    overlapped
        slots that run a forward and a backward at once. Such a slot begins when the inputs of both are there, takes the sum of
        their times and ends both: its two ops follow each other without a gap, and what either makes leaves at the end of the second.
    pair
        seconds of such a slot by global stage of its forward, instead of the sum; its two ops share them in proportion to their times.
    directions
        equal parts of the global stages, each a whole model with micro-batches of its own.

    A schedule that deadlocks gives a program that does. Raises `PlanError` for times that do not fit the schedule, and for
    overlapped slots with blocking sends.
    """
    if overlapped and not overlap_sends:
        raise PlanError(
            Finding("slots that overlap a forward with a backward need sends that overlap too", path="overlap_sends", value=False)
        )
    precedence = Precedence(schedule, overlapped, directions)
    laboratory = _Laboratory(schedule, precedence, forward, backward, weight, latency, activation, pair)
    return laboratory.with_overlapped_sends() if overlap_sends else laboratory.with_blocking_sends()


class _Laboratory:
    """Stage times by slot, and the two ways to send."""

    def __init__(
        self,
        schedule: Schedule,
        precedence: Precedence,
        forward: PerStage,
        backward: PerStage,
        weight: PerStage | None,
        latency: PerStage,
        activation: int | Sequence[int],
        pair: PerStage | None,
    ) -> None:
        self.schedule = schedule
        self.precedence = precedence
        stages = self.precedence.last_stage + 1
        split = next((slot for slot in self.precedence.rank if slot.kind == SlotKind.BACKWARD_WEIGHT), None)
        if weight is None and split is not None:
            message = f"the schedule splits its backwards ({split}), so the time of a weight gradient is needed"
            raise PlanError(Finding(message, path="weight", suggestion="give weight, a part of backward"))
        fewer = max(stages - 1, 0)
        self.forward = _per_stage("forward", forward, stages)
        self.backward = _per_stage("backward", backward, stages)
        self.weight = _per_stage("weight", weight or 0.0, stages)
        self.latency = _per_stage("latency", latency, fewer)
        self.pair = None if pair is None else _per_stage("pair", pair, stages)
        if any(part > whole for part, whole in zip(self.weight, self.backward, strict=True)):
            raise PlanError(Finding("weight is a part of backward and cannot be longer", path="weight", value=weight))
        self.program = Program()
        self.effects = self._memory(_per_stage("activation", activation, stages))
        self.program.slots = dict(enumerate(schedule))
        self.lanes = [(Lane(rank, "compute"),) for rank in range(len(schedule))]
        self.ops: dict[Slot, Op] = {}

    def duration(self, slot: Slot) -> float:
        """Seconds of a pass, or its share of those of an overlapped slot."""
        if self.pair is None or len(both := self.precedence.pair(slot)) == 1:
            return self._alone(slot)
        whole = fsum(self._alone(part) for part in both)
        return self._alone(slot) * self.pair[both[0].stage] / whole if whole else 0.0

    def _alone(self, slot: Slot) -> float:
        kind, stage, _ = slot
        match kind:
            case SlotKind.FORWARD:
                return self.forward[stage]
            case SlotKind.FULL_BACKWARD:
                return self.backward[stage]
            case SlotKind.BACKWARD_WEIGHT:
                return self.weight[stage]
        return self.backward[stage] - self.weight[stage]

    def delay(self, slot: Slot) -> float:
        """Seconds that the result of `slot` travels."""
        return self.latency[slot.stage if slot.kind == SlotKind.FORWARD else slot.stage - 1]

    def with_overlapped_sends(self) -> Program:
        for row in self.schedule:
            for slot in row:
                self._add(slot)
        # the messages of a micro-batch in the order in which they come to be: up the stages with F, down with B or I
        travelling = [slot for slot in self.precedence.rank if self.precedence.travels(slot)]
        for slot in sorted(
            travelling, key=lambda s: (s.micro_batch, s.kind != SlotKind.FORWARD, s.stage if s.kind == SlotKind.FORWARD else -s.stage)
        ):
            self._send(slot)
        self._local(sends=False)
        return self.program

    def with_blocking_sends(self) -> Program:
        steps = blocking_order(self.schedule, self.duration, lambda exchange: max(map(self.delay, exchange.slots)))
        for step in steps:
            if isinstance(step, MessageExchange):
                lanes = self.lanes[step.sender] + self.lanes[step.receiver]
                name = f"send {' '.join(map(str, step.slots))}"
                delay = max(map(self.delay, step.slots))
                self.program.add(name, "pipeline_comm", lanes, duration=delay, instance=step.slots[0].micro_batch)
            else:
                self._add(step)
        stuck = [slot for slot in self.precedence.rank if slot not in self.ops]
        for slot in stuck:
            self._add(slot)
        self._local(sends=bool(stuck))
        return self.program

    def _add(self, slot: Slot) -> None:
        rank = self.precedence.rank[slot]
        duration = self.duration(slot)
        effects: Effects = ()
        if own := self.effects.get((slot.stage, slot.kind)):
            effects = ((rank, tuple(effect if effect.allocate else effect._replace(offset=duration) for effect in own)),)
        self.ops[slot] = self.program.add(
            str(slot), "compute", self.lanes[rank], duration=duration, effects=effects, instance=slot.micro_batch
        )

    def _send(self, slot: Slot) -> None:
        source = self.precedence.source(slot)
        if source is None or source not in self.ops:
            return
        channel = f"send {slot.micro_batch}"
        lanes = (Lane(self.precedence.rank[source], channel), Lane(self.precedence.rank[slot], channel))
        message = self.program.add(
            f"send {source}", "pipeline_comm", lanes, (self._ends(source),), self.delay(source), instance=slot.micro_batch
        )
        self.program.block(message.index, self._begins(slot).index)

    def _begins(self, slot: Slot) -> Op:
        """The first op of the slot that runs this pass."""
        return self.ops[self.precedence.pair(slot)[0]]

    def _ends(self, slot: Slot) -> Op:
        """The last op of the slot that runs this pass."""
        return self.ops[self.precedence.pair(slot)[-1]]

    def _local(self, sends: bool) -> None:
        """Order within a rank that its list may break, and (for a schedule that is stuck) what messages would have said."""
        for slot, op in self.ops.items():
            for need in self.precedence.needs(slot):
                blocker = self.ops.get(need)
                if blocker is not None and (self.precedence.rank[need] == self.precedence.rank[slot] or sends):
                    self.program.block(blocker.index, op.index)

    def _memory(self, activation: Sequence[float]) -> dict[tuple[int, str], tuple[Effect, ...]]:
        """Tensor tables of the ranks, and the effects of a slot by (stage, kind)."""
        effects: dict[tuple[int, str], tuple[Effect, ...]] = {}
        if not any(activation):
            return effects
        homes = sorted({slot.stage: rank for slot, rank in self.precedence.rank.items()}.items(), key=lambda home: (home[1], home[0]))
        for rank, stages in groupby(homes, key=lambda home: home[1]):
            for row, (stage, _) in enumerate(stages):
                table = self.program.tensors.setdefault(rank, [])
                table.append(Tensor(f"activations of stage {stage}", int(activation[stage]), "activations", per_micro_batch=True))
                effects[stage, SlotKind.FORWARD] = (Effect(0.0, row, allocate=True),)
                effects[stage, SlotKind.FULL_BACKWARD] = (Effect(self.backward[stage], row, allocate=False),)
                effects[stage, SlotKind.BACKWARD_WEIGHT] = (Effect(self.weight[stage], row, allocate=False),)
        return effects


def _per_stage(name: str, value: PerStage | int | Sequence[int], count: int) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(values) != count:
        message = f"{name} has {len(values)} values, but {count} are needed: one per global stage (latency: per boundary)"
        raise PlanError(Finding(message, path=name, value=value))
    if any(not 0.0 <= entry < float("inf") for entry in values):
        raise PlanError(Finding(f"{name} must be finite and not negative", path=name, value=value))
    return values


def as_run(program: Program, start: Sequence[float]) -> Schedule:
    """The slots of a unit program in the order in which they really began, by rank; `start` is a trace's column."""
    rows: dict[int, list[tuple[float, int, Slot]]] = {rank: [] for rank in program.slots}
    for op in program.ops:
        if op.kind == "compute":
            rows[op.lanes[0].rank].append((start[op.index], op.index, Slot.parse(op.name)))
    return tuple(tuple(slot for *_, slot in sorted(rows[rank])) for rank in sorted(rows))
