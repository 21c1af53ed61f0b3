"""What ran on the GPUs of a run, by class of work: recorded by a profiler, or predicted in the same form.

Both sides go through `features`, so that a class means the same in both. A predicted op is many kernels; while a program is
lowered, its durations remember the classes of the kernels that they are made of (`Timed`). Recorded collectives wait for their
members: an NCCL kernel runs from its own rank's arrival on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from parsim.errors import Finding, PlanError
from parsim.kernel import Attention, Clocks, Gemm, Kernel, SparseAttention
from parsim.program.program import COMPUTE as LANE
from parsim.report.communication import covered, own_arrival
from parsim.report.simulated import SimulatedStep
from parsim.report.timeline import Timeline
from parsim.run import execute
from parsim.scenario.build import build
from parsim.scenario.built import Built, clock_of
from parsim.scenario.scenario import Scenario

GEMM, ATTENTION, MEMORY, OPTIMIZER = "gemm", "attention", "memory-bound", "optimizer"
COMPUTE = (GEMM, ATTENTION, MEMORY, OPTIMIZER)
PARTS = (GEMM, ATTENTION, MEMORY)
"""classes that an op of the simulation is made of"""
OP = "op"
"""class of a stretch of a simulated trace, whose kernels are not told apart"""

SPREAD = 1.15
"""a collective that takes no longer than so many times the short ones of its kind did not wait, it was slower (assumption)"""

Floats = NDArray[np.float64]


class Timed(float):
    """Seconds that know which classes of kernels they are made of: per class seconds and number of kernels."""

    __slots__ = ("parts",)
    parts: tuple[float, ...]

    @staticmethod
    def of(seconds: float, parts: tuple[float, ...]) -> Timed:
        """A duration with its parts."""
        made = Timed(seconds)
        made.parts = parts
        return made

    def __add__(self, other: float) -> float:
        if isinstance(other, Timed):
            return Timed.of(float(self) + float(other), tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))
        return Timed.of(float(self), self.parts) if other == 0 else float(self) + other

    __radd__ = __add__

    def __truediv__(self, other: float) -> float:
        half = len(PARTS)
        scaled = tuple(part / other for part in self.parts[:half])
        return Timed.of(float(self) / other, scaled + self.parts[half:])


def timed(clock: Callable[[Kernel], float]) -> Callable[[Kernel], float]:
    """The clock with durations that remember the class of their kernel."""
    if isinstance(clock, Clocks):
        return Clocks([timed(one) for one in clock.each], clock.of_ranks)
    known: dict[Kernel, Timed] = {}

    def measure(kernel: Kernel) -> float:
        if (duration := known.get(kernel)) is None:
            place = 0 if isinstance(kernel, Gemm) else 1 if isinstance(kernel, Attention | SparseAttention) else 2
            seconds, parts = clock(kernel), [0.0] * (2 * len(PARTS))
            parts[place] = seconds
            parts[place + len(PARTS)] = float(max(1, getattr(kernel, "launches", 1)))
            duration = known[kernel] = Timed.of(seconds, tuple(parts))
        return duration

    return measure


@dataclass(frozen=True)
class GpuSlice:
    """Work of one class on a GPU; all times in seconds."""

    kind: str
    """one of `COMPUTE`, or ``comm <kind> x<ranks>``"""
    name: str
    start: float
    duration: float
    waited: float = 0.0
    """the part of it in which the others had not come yet, where that is known"""
    count: float = 1.0
    """kernels"""
    bytes: int = 0
    """of a collective, as nccl-tests counts; 0: unknown"""

    @property
    def end(self) -> float:
        """[s]"""
        return self.start + self.duration


@dataclass(frozen=True)
class Window:
    """Recorded time of one rank: one step, or `steps` of them that nothing separates."""

    begin: float
    """[s]"""
    end: float
    """[s]"""
    stretches: Sequence[GpuSlice]
    steps: int = 1


@dataclass(frozen=True)
class Recorded:
    """What a run did: rank -> its windows."""

    ranks: Mapping[int, Sequence[Window]]
    source: str = ""
    notes: tuple[str, ...] = ()
    """what was left out or supposed when reading"""
    world: int = 0
    """ranks of the recorded job; 0: the traces do not say"""
    products: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    """(m, n, k) of recorded matrix products -> how many; empty where shapes were not recorded"""

    @property
    def slices(self) -> Iterator[GpuSlice]:
        """Every slice of every window of every rank."""
        return (one for windows in self.ranks.values() for window in windows for one in window.stretches)

    @property
    def step_time(self) -> float:
        """Seconds per step: of the rank that took longest."""
        return max(
            math.fsum(window.end - window.begin for window in windows) / sum(window.steps for window in windows)
            for windows in self.ranks.values()
        )


def features(recorded: Recorded) -> dict[tuple[int, str], float]:
    """(rank, class) -> seconds per step; classes that begin with # are numbers of kernels per step."""
    transfers = _transfers(recorded)
    times: dict[tuple[int, str], float] = {}
    for number, windows in recorded.ranks.items():
        steps = sum(window.steps for window in windows)
        for window in windows:
            for name, value in _of_window(window, transfers).items():
                times[number, name] = times.get((number, name), 0.0) + value / steps
    return times


def _of_window(window: Window, transfers: Mapping[tuple[str, int], float]) -> dict[str, float]:
    times: dict[str, float] = {}
    compute = [stretch for stretch in window.stretches if stretch.kind in COMPUTE]
    comm = [stretch for stretch in window.stretches if stretch.kind not in COMPUTE]
    for stretch in compute:
        times[stretch.kind] = times.get(stretch.kind, 0.0) + stretch.duration
        if stretch.kind in (GEMM, ATTENTION):
            times[f"#{stretch.kind}"] = times.get(f"#{stretch.kind}", 0.0) + stretch.count
    moving, present = [], []
    for stretch in comm:
        shortest, moved = stretch.count * transfers[stretch.kind, stretch.bytes], stretch.duration - stretch.waited
        moved = moved if moved <= SPREAD * shortest else shortest
        times[stretch.kind] = times.get(stretch.kind, 0.0) + moved
        moving.append((stretch.end - moved, stretch.end))
        if "send" in stretch.kind:  # when a receiver posts its message says nothing about when data were due
            present.append(moving[-1])
        else:
            times["waiting for others"] = times.get("waiting for others", 0.0) + stretch.duration - moved
            present.append((stretch.start, stretch.end))
    busy = [(stretch.start, stretch.end) for stretch in compute]
    begins, ends = _merged(busy + present)
    if not len(begins):
        return times
    if comm:
        lengths = _merged(moving)
        times["exposed communication"] = float((lengths[1] - lengths[0]).sum() - covered(*_merged(busy), *lengths).sum())
    times["idle before"] = max(0.0, float(begins[0]) - window.begin)
    times["idle after"] = max(0.0, window.end - float(ends[-1]))
    times["idle within"] = float((begins[1:] - ends[:-1]).sum())
    return times


def _merged(intervals: Iterable[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Begin and end of the union of intervals, ascending and disjoint."""
    pairs = sorted(interval for interval in intervals if interval[1] > interval[0])
    if not pairs:
        return np.empty(0), np.empty(0)
    table = np.array(pairs)
    tops = np.maximum.accumulate(table[:, 1])
    fresh = np.concatenate(([True], table[1:, 0] > tops[:-1]))
    lasts = np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(tops) - 1]))
    return table[fresh, 0], tops[lasts]


def _transfers(recorded: Recorded) -> dict[tuple[str, int], float]:
    """(class, bytes) -> what moving the data takes [s]: the lower quartile of all recorded ones, of the rank where it is least.

    An NCCL kernel runs from its own rank's arrival on, so its length contains the wait for the others; who came last did not wait.
    """
    durations: dict[tuple[str, int], dict[int, list[float]]] = {}
    for number, windows in recorded.ranks.items():
        for stretch in (stretch for window in windows for stretch in window.stretches if stretch.kind not in COMPUTE):
            each = (stretch.duration - stretch.waited) / max(stretch.count, 1.0)
            durations.setdefault((stretch.kind, stretch.bytes), {}).setdefault(number, []).append(each)
    return {key: min(float(np.quantile(values, 0.25)) for values in ranks.values()) for key, ranks in durations.items()}


def predicted(scenario: Scenario, ranks: Iterable[int] | None = None) -> Recorded:
    """What `ranks` (default: one of each class) do in a simulated step.

    Raises:
        InputError: the scenario cannot be simulated, or its schedule has no end of a step.
    """
    built = build(scenario)
    refuse(built)
    run = execute(built, unfolded=not built.report.fold, clock=timed(clock_of(built)))
    timeline = Timeline(run.trace)
    stands_for = representatives(run)
    wanted = sorted(timeline.lanes) if ranks is None else list(ranks)
    parts: dict[int, Window] = {}
    for rank in {stands_for[rank] for rank in wanted}:
        parts[rank] = Window(0.0, timeline.makespan, tuple(_stretches(timeline, rank)))
    return Recorded({rank: (parts[stands_for[rank]],) for rank in wanted}, "predicted")


def refuse(built: Built) -> None:
    """Raise `PlanError` where a step cannot be compared with a trace."""
    pipeline = built.parallelism.pipeline
    if pipeline.post_validation:
        text = "ranks that start the next step independently have no common step to compare with a trace"
        raise PlanError(Finding(text, "parallel.pipeline.post_validation", True, "give --step-time alone"))
    if pipeline.schedule.startswith("pipedream"):
        text = "a schedule without a flush has no single step to compare with a trace"
        raise PlanError(Finding(text, "parallel.pipeline.schedule", pipeline.schedule, "give --step-time alone"))


def representatives(run: SimulatedStep) -> Mapping[int, int]:
    """Rank -> the simulated rank that stands for it."""
    if not run.folded:
        return {rank: rank for rank in range(run.plan.mesh.ranks)}
    return dict(run.classes.represents)


def _stretches(timeline: Timeline, rank: int) -> Iterator[GpuSlice]:
    ops = timeline.program.ops
    lane = set(timeline.lane(rank).tolist())
    indices = timeline.of_rank(rank)
    shared = np.array([index for index in indices.tolist() if ops[index].collective is not None], dtype=np.int64)
    arrivals = dict(zip(shared.tolist(), own_arrival(timeline, rank, shared).tolist(), strict=True)) if len(shared) else {}
    for index in indices.tolist():
        op, start, end = ops[index], float(timeline.start[index]), float(timeline.end[index])
        if op.collective is not None:
            one = op.collective
            arrived = min(start, arrivals[index])
            kind = f"comm {one.kind} x{len(one.group)}"
            yield GpuSlice(kind, op.name, arrived, end - arrived, start - arrived, 1.0, one.bytes)
        elif index in lane and op.kind != "launch" and end > start and any(known.name == LANE for known in op.lanes):
            yield from _kernels(op.name, op.kind, op.duration, start, end)


def _kernels(name: str, kind: str, nominal: float, start: float, end: float) -> Iterator[GpuSlice]:
    """The classes of one op one after the other; what slows the op slows all of them."""
    if kind == "optimizer":
        yield GpuSlice(OPTIMIZER, name, start, end - start)
        return
    parts = nominal.parts if isinstance(nominal, Timed) else (0.0, 0.0, float(nominal), 0.0, 0.0, 1.0)
    total = math.fsum(parts[: len(PARTS)])
    place = start
    for index, (part, seconds) in enumerate(zip(PARTS, parts[: len(PARTS)], strict=True)):
        if seconds > 0:
            length = (end - start) * seconds / total
            yield GpuSlice(part, name, place, length, 0.0, parts[index + len(PARTS)])
            place += length


def without_waits(recorded: Recorded) -> Recorded:
    """Collectives from their last member's arrival on, as parsim's own traces show them."""

    def moved(stretch: GpuSlice) -> Iterator[GpuSlice]:
        yield replace(stretch, start=stretch.start + stretch.waited, duration=stretch.duration - stretch.waited, waited=0.0)

    return _changed(recorded, moved)


def _changed(recorded: Recorded, change: Callable[[GpuSlice], Iterable[GpuSlice]]) -> Recorded:
    """`recorded` with what `change` makes of every slice."""
    ranks = {
        rank: tuple(replace(window, stretches=tuple(part for one in window.stretches for part in change(one))) for window in windows)
        for rank, windows in recorded.ranks.items()
    }
    return replace(recorded, ranks=ranks)


def told_apart(recorded: Recorded, like: Recorded) -> Recorded:
    """`recorded` with ops of a simulated trace divided into classes of kernels.

    One factor per class is fitted to the ops' lengths (non-negative least squares on what `like` predicts of each name); then
    each op is divided in proportion.
    """
    shares, counts = _composition(like)
    lengths: dict[str, list[float]] = {}
    for stretch in recorded.slices:
        if stretch.kind == OP:
            lengths.setdefault(stretch.name, []).append(stretch.duration)
    names = [name for name in lengths if name in shares]
    factors = _factors([shares[name] for name in names], [math.fsum(lengths[name]) / len(lengths[name]) for name in names])

    def divided(stretch: GpuSlice) -> Iterator[GpuSlice]:
        if stretch.kind != OP:
            yield stretch
            return
        row = [share * factor for share, factor in zip(shares.get(stretch.name, (0.0, 0.0, 1.0)), factors, strict=True)]
        total, place = math.fsum(row) or 1.0, stretch.start
        for number, (kind, part) in enumerate(zip(PARTS, row, strict=True)):
            if part > 0:
                each = stretch.duration * part / total
                known = counts.get(stretch.name, (0.0, 0.0, 1.0))[number]
                yield replace(stretch, kind=kind, start=place, duration=each, count=known)
                place += each

    return _changed(recorded, divided)


def _composition(like: Recorded) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and kernels per class of one op of each name, in the mean."""
    shares: dict[str, list[float]] = {}
    counts: dict[str, list[float]] = {}
    ops: dict[str, list[int]] = {}
    for stretch in like.slices:
        if stretch.kind not in PARTS:
            continue
        place = PARTS.index(stretch.kind)
        shares.setdefault(stretch.name, [0.0] * len(PARTS))[place] += stretch.duration
        counts.setdefault(stretch.name, [0.0] * len(PARTS))[place] += stretch.count
        ops.setdefault(stretch.name, [0] * len(PARTS))[place] += 1
    for table in (shares, counts):
        for name, row in table.items():
            table[name] = [value / max(ops[name]) for value in row]
    return shares, counts


def _factors(shares: Sequence[Sequence[float]], lengths: Sequence[float]) -> list[float]:
    """Non-negative least squares by active sets: three unknowns, so classes whose factor turns negative are dropped in turn."""
    table, target = np.array(shares, dtype=np.float64).reshape(-1, len(PARTS)), np.array(lengths, dtype=np.float64)
    if not len(table):
        return [1.0] * len(PARTS)
    weight = 1.0 / np.maximum(target, 1e-12)
    ridge = 1e-3 * np.eye(len(PARTS))
    active = list(range(len(PARTS)))
    while active:
        rows = np.vstack((table[:, active] * weight[:, None], ridge[np.ix_(active, active)]))
        solution = np.linalg.lstsq(rows, np.concatenate((target * weight, np.full(len(active), 1e-3))), rcond=None)[0]
        if (solution > 0).all():
            break
        active = [place for place, value in zip(active, solution, strict=True) if value > 0]
    factors = [0.0] * len(PARTS)
    for place, value in zip(active, solution, strict=True):
        factors[place] = float(value)
    return factors
