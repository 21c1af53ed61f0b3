"""The schedule laboratory: pipeline schedules without a model or a cluster, run by the engine.

Makespan, period, bubble and what is in flight of one schedule or of several beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from parsim.errors import DeadlockError, Finding, PlanError
from parsim.parallel.schedules import ENDLESS, peak_in_flight, schedule
from parsim.parallel.schedules.check import circle, deadlock
from parsim.parallel.schedules.classic import staleness, weight_versions
from parsim.parallel.schedules.slot import APART, Precedence, Slot, SlotKind
from parsim.program.program import COMPUTE, Program
from parsim.program.unit_times import unit_program
from parsim.report.steady import steady_period
from parsim.report.timeline import Timeline
from parsim.simulation.engine import Engine
from parsim.simulation.no_interconnect import NoInterconnect
from parsim.study.schedule_inputs import LabSchedule, PassTimes, located
from parsim.study.schedule_theory import ClosedForm, closed_form, period


@dataclass(frozen=True)
class LabPass:
    """One pass on one rank; `start` and `end` of its slot in the unit of the times."""

    rank: int
    slot: Slot
    start: float
    end: float
    chunk: int = 0
    """which of its rank's stages, from 0"""
    overlaps: Slot | None = None
    """the other pass of an overlapped slot, with which it begins and ends"""
    share: tuple[float, float] = (0.0, 0.0)
    """the part of the slot's time that this pass adds, where drawings show it: its forward first, then its backward"""


@dataclass(frozen=True)
class LabMessage:
    """One message between ranks."""

    sender: int
    receiver: int
    slot: Slot
    """whose result travels"""
    start: float
    end: float


@dataclass(frozen=True)
class RankFigures:
    """What one rank does in a step."""

    begin: float
    """start of its first slot"""
    end: float
    """end of its last"""
    busy: float
    """time in which a slot runs"""
    in_flight: float
    """most micro-batches between F and the end of B or W; a chunk counts as its share of the rank"""
    in_flight_chunks: int
    """the same as (chunk, micro-batch) pairs"""
    in_flight_until_input: float
    """most micro-batches between F and the end of B or I"""
    activation: int | None = None
    """peak bytes of activations"""


@dataclass(frozen=True)
class LabResult:
    """One schedule and its times."""

    entry: LabSchedule
    boxes: tuple[LabPass, ...]
    messages: tuple[LabMessage, ...]
    ranks: tuple[RankFigures, ...]
    period: float
    """from one step to the next when every rank goes on as soon as its own list is done"""
    closed: ClosedForm | None
    versions: tuple[int, ...] = ()
    """weight versions per rank, of schedules that update after every backward"""
    staleness: tuple[int, ...] = ()
    """updates between a micro-batch's forward and its backward, in steady state"""
    blocking: bool = False
    """messages hold up compute on both ranks"""
    pair_given: bool = False
    """the time of overlapped slots was given; else they take the sum of their passes"""
    makespan_one_by_one: float | None = None
    """of a schedule with overlapped slots: the makespan if each ran its forward, then its backward; None if it has none or deadlocks"""

    @cached_property
    def makespan(self) -> float:
        """End of the last slot of a step that starts with an empty pipeline."""
        return max(box.end for box in self.boxes)

    @property
    def busy(self) -> float:
        """Mean over ranks of the time in which a slot runs."""
        return math.fsum(rank.busy for rank in self.ranks) / len(self.ranks)

    @property
    def bubble_fraction(self) -> float:
        """Share of the ranks' time up to the makespan in which no slot runs."""
        return _share(self.makespan - self.busy, self.makespan)

    @property
    def bubble_over_ideal(self) -> float:
        """The papers' other ratio: the same time over that in which slots run."""
        return _share(self.makespan - self.busy, self.busy)

    @property
    def steady_bubble(self) -> float:
        """Share of the period in which no slot runs."""
        return _share(self.period - self.busy, self.period)


def _share(part: float, whole: float) -> float:
    return max(0.0, part / whole) if whole else 0.0


@dataclass(frozen=True)
class LabStageTimes:
    """Times per global stage of one schedule, in the unit of the times."""

    forward: list[float]
    backward: list[float]
    weight: list[float]
    communication: list[float]
    pair: list[float] | None = None
    overlap: bool = True

    def program(self, entry: LabSchedule) -> Program:
        """The slots of `entry` with these times."""
        return unit_program(
            entry.rows,
            self.forward,
            self.backward,
            weight=self.weight,
            latency=self.communication,
            overlap_sends=self.overlap,
            overlapped=entry.overlapped,
            pair=self.pair,
            directions=entry.directions,
        )


def stage_times(entry: LabSchedule, times: PassTimes) -> LabStageTimes:
    """`times` as one value per global stage of `entry`. Raises `PlanError` where they do not fit."""
    if entry.split and times.whole:
        message = f"{entry.label} splits its backwards, so B alone does not say how long I and W take"
        raise PlanError(Finding(message, "--times", "B", "give I and W"))
    if entry.overlapped and not times.overlap:
        message = f"{entry.label} has slots that overlap a forward with a backward: not supported yet with blocking messages"
        hint = "leave --sends out" + (", or write the two passes one after the other" if entry.name == "custom" else "")
        raise PlanError(Finding(message, "--sends", "blocking", hint))
    if entry.directions > 1 and not times.overlap:
        message = f"{entry.label} sends both ways at once: not supported yet with blocking messages"
        raise PlanError(Finding(message, "--sends", "blocking", "leave --sends out"))
    factor = times.factor(entry)
    forward, inputs, weight = (
        [share * times_ for share, times_ in zip(times.per_stage("--times", values, entry), factor, strict=True)]
        for values in (times.forward, times.inputs, times.weights)
    )
    backward = [i + w for i, w in zip(inputs, weight, strict=True)]
    pair = None
    if times.pairs and entry.overlapped:
        pair = [share * times_ for share, times_ in zip(times.per_stage("--times", times.pairs, entry), factor, strict=True)]
    return LabStageTimes(forward, backward, weight, times.messages(entry), pair, times.overlap)


def simulate(entries: Iterable[LabSchedule], times: PassTimes, activation: int | None = None) -> list[LabResult]:
    """Run all schedules. `activation`: bytes that a micro-batch keeps on a rank, all its chunks together.

    Raises:
        PlanError: times do not fit a schedule; with all that do not.
        DeadlockError: schedules wait for themselves; names the slots, with their places in the user's files.
    """
    prepared: list[tuple[LabSchedule, LabStageTimes]] = []
    findings: list[Finding] = []
    for entry in entries:
        try:
            prepared.append((entry, stage_times(entry, times)))
        except PlanError as error:
            findings += error.findings
    if findings:
        raise PlanError(findings)
    if stuck := [entry for entry, _ in prepared if deadlock(entry.rows, entry.overlapped, entry.directions)]:
        raise ScheduleDeadlockError(stuck)
    return [_result(entry, seconds, times, activation) for entry, seconds in prepared]


class ScheduleDeadlockError(DeadlockError):
    """Schedules that wait for themselves; `findings` names every rank that stops, `circles` who waits for whom."""

    def __init__(self, entries: Sequence[LabSchedule]) -> None:
        self.findings = [
            located(entry, finding) for entry in entries for finding in deadlock(entry.rows, entry.overlapped, entry.directions)
        ]
        self.circles = {entry.label: circle_text(entry) for entry in entries}
        blocks = [f"cycle of dependencies in {label}:\n  " + "\n  ".join(lines) for label, lines in self.circles.items() if lines]
        super().__init__("\n".join([*map(str, self.findings), *blocks]))


def circle_text(entry: LabSchedule) -> list[str]:
    """Who waits for whom: one line per rank of the circle."""
    ring = circle(entry.rows, entry.overlapped, entry.directions)
    precedence = Precedence(entry.rows, entry.overlapped, entry.directions)
    where = {slot: (rank, position) for rank, row in enumerate(entry.rows) for position, slot in enumerate(row)}

    def place(slot: Slot) -> str:
        rank, position = where[slot]
        line, column = entry.place(rank, position)
        at = f", {entry.file}:{line}:{column}" if line is not None else ""
        return f"{precedence.name(slot)} (rank {rank} position {position}{at})"

    lines = []
    for number, (_, _, slot, need) in enumerate(ring):
        behind = ring[(number + 1) % len(ring)][2]
        lines.append(
            f"{place(slot)} waits for {place(need)}"
            + (f", which comes after {precedence.name(behind)}" if need not in precedence.pair(behind) else "")
        )
    return lines


def _result(entry: LabSchedule, seconds: LabStageTimes, times: PassTimes, activation: int | None) -> LabResult:
    program = seconds.program(entry)
    trace = Engine(program, NoInterconnect()).run()
    homes = entry.homes
    precedence = Precedence(entry.rows, entry.overlapped)
    shares: dict[Slot, tuple[float, float]] = {}
    chunk = {stage: homes[:stage].count(home) for stage, home in enumerate(homes)}
    messages = []
    for op in program.ops:
        start, end = trace.start[op.index], trace.end[op.index]
        if op.kind == COMPUTE:
            shares[Slot.parse(op.name)] = (start, end)
        elif end > start:
            sender, receiver = (lane.rank for lane in op.lanes)
            first, *back = map(Slot.parse, op.name.removeprefix("send ").split())
            messages.append(LabMessage(sender, receiver, first, start, end))
            messages += [LabMessage(receiver, sender, slot, start, end) for slot in back]
    boxes = []
    for slot, share in shares.items():
        pair = precedence.pair(slot)
        other = next((part for part in pair if part != slot), None)
        start, end = shares[pair[0]][0], shares[pair[-1]][1]
        boxes.append(LabPass(precedence.rank[slot], slot, start, end, chunk[slot.stage], other, share))
    asynchronous = entry.name in ENDLESS
    return LabResult(
        entry,
        tuple(boxes),
        tuple(messages),
        tuple(_rank_figures(entry, boxes, activation)),
        _endless_period(entry, seconds) if asynchronous else period(program, entry.ranks),
        closed_form(entry, times),
        *(_versions(entry) if asynchronous else ((), ())),
        blocking=not times.overlap,
        pair_given=bool(times.pairs),
        makespan_one_by_one=_makespan_one_by_one(entry, seconds) if entry.overlapped else None,
    )


def _makespan_one_by_one(entry: LabSchedule, seconds: LabStageTimes) -> float | None:
    """The makespan if every pass had a slot of its own, in the order of the rows."""
    apart = replace(entry, overlapped=APART)
    return None if deadlock(apart.rows, APART, apart.directions) else Engine(seconds.program(apart), NoInterconnect()).run().makespan


def _rank_figures(entry: LabSchedule, boxes: Iterable[LabPass], activation: int | None) -> Iterable[RankFigures]:
    own: list[list[LabPass]] = [[] for _ in entry.rows]
    for box in boxes:
        own[box.rank].append(box)
    until_input = peak_in_flight(
        tuple(
            tuple(
                Slot(SlotKind.BACKWARD_WEIGHT if slot.kind == SlotKind.BACKWARD_INPUT else slot.kind, *slot[1:])
                for slot in row
                if slot.kind != "W"
            )
            for row in entry.rows
        )
    )
    for rank, (row, peak, shorter) in enumerate(zip(own, peak_in_flight(entry.rows), until_input, strict=True)):
        chunks = entry.chunks[rank]
        yield RankFigures(
            min((box.start for box in row), default=0.0),
            max((box.end for box in row), default=0.0),
            math.fsum(box.share[1] - box.share[0] for box in row),
            peak / chunks,
            peak,
            shorter / chunks,
            None if activation is None else round(peak * activation / chunks),
        )


def _versions(entry: LabSchedule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Weight versions and staleness by rank of a schedule without a flush."""
    if entry.name == "pipedream-2bw":
        return (2,) * entry.ranks, (1,) * entry.ranks
    longer = schedule("pipedream", entry.ranks, max(entry.micro_batches, 2 * entry.ranks))
    return tuple(map(weight_versions, entry.rows)), tuple(staleness(row)[-1] for row in longer)


def _endless_period(entry: LabSchedule, seconds: LabStageTimes) -> float:
    """`micro_batches` times the steady time per micro-batch of a schedule that never flushes."""
    longer = replace(entry, rows=schedule(entry.name, entry.ranks, max(entry.micro_batches, 12 * entry.ranks + 16)))
    trace = Engine(seconds.program(longer), NoInterconnect()).run()
    return entry.micro_batches * steady_period(Timeline(trace)).period
