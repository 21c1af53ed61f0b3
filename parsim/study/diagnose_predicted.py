"""A simulated step as a profiler would have recorded it: kernels by class, and collectives that wait for their members."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from parsim.errors import Finding, PlanError
from parsim.program.program import COMPUTE as LANE
from parsim.report.communication import own_arrival
from parsim.report.simulated import Run
from parsim.report.timeline import Timeline
from parsim.run import execute
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.job import clock_of
from parsim.scenario.scenario import Scenario
from parsim.study.diagnose_features import ATTENTION, GEMM, MEMORY, OPTIMIZER, Recorded, Stretch, Timed, Window, timed

PARTS = (GEMM, ATTENTION, MEMORY)
OP = "op"
"""class of a stretch of a simulated trace, whose kernels are not told apart"""


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
    if built.parallelism.pipeline.schedule.startswith("pipedream"):
        text = "a schedule without a flush has no step that a trace could be compared with"
        raise PlanError(Finding(text, "parallel.pipeline.schedule", built.parallelism.pipeline.schedule, "give --step-time alone"))


def representatives(run: Run) -> Mapping[int, int]:
    """Rank -> the simulated rank that stands for it."""
    if not run.folded:
        return {rank: rank for rank in range(run.plan.mesh.ranks)}
    return dict(run.classes.represents)


def _stretches(timeline: Timeline, rank: int) -> Iterator[Stretch]:
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
            yield Stretch(kind, op.name, arrived, end - arrived, start - arrived, 1.0, one.bytes)
        elif index in lane and op.kind != "launch" and end > start and any(known.name == LANE for known in op.lanes):
            yield from _kernels(op.name, op.kind, op.duration, start, end)


def _kernels(name: str, kind: str, nominal: float, start: float, end: float) -> Iterator[Stretch]:
    """The classes of one op one after the other; what slows the op slows all of them."""
    if kind == "optimizer":
        yield Stretch(OPTIMIZER, name, start, end - start)
        return
    parts = nominal.parts if isinstance(nominal, Timed) else (0.0, 0.0, float(nominal), 0.0, 0.0, 1.0)
    total = math.fsum(parts[: len(PARTS)])
    place = start
    for index, (part, seconds) in enumerate(zip(PARTS, parts[: len(PARTS)], strict=True)):
        if seconds > 0:
            length = (end - start) * seconds / total
            yield Stretch(part, name, place, length, 0.0, parts[index + len(PARTS)])
            place += length


def without_waits(recorded: Recorded) -> Recorded:
    """Collectives from their last member's arrival on, as parsim's own traces show them."""

    def moved(stretch: Stretch) -> Stretch:
        return replace(stretch, start=stretch.start + stretch.waited, duration=stretch.duration - stretch.waited, waited=0.0)

    ranks = {
        rank: tuple(replace(window, stretches=tuple(map(moved, window.stretches))) for window in windows)
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
    for stretch in (one for windows in recorded.ranks.values() for window in windows for one in window.stretches if one.kind == OP):
        lengths.setdefault(stretch.name, []).append(stretch.duration)
    names = [name for name in lengths if name in shares]
    factors = _factors([shares[name] for name in names], [math.fsum(lengths[name]) / len(lengths[name]) for name in names])

    def divided(stretch: Stretch) -> Iterator[Stretch]:
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

    ranks = {
        rank: tuple(
            replace(window, stretches=tuple(part for stretch in window.stretches for part in divided(stretch))) for window in windows
        )
        for rank, windows in recorded.ranks.items()
    }
    return replace(recorded, ranks=ranks)


def _composition(like: Recorded) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and kernels per class of one op of each name, in the mean."""
    shares: dict[str, list[float]] = {}
    counts: dict[str, list[float]] = {}
    ops: dict[str, list[int]] = {}
    for stretch in (one for windows in like.ranks.values() for window in windows for one in window.stretches if one.kind in PARTS):
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
        found = np.linalg.lstsq(rows, np.concatenate((target * weight, np.full(len(active), 1e-3))), rcond=None)[0]
        if (found > 0).all():
            break
        active = [place for place, value in zip(active, found, strict=True) if value > 0]
    factors = [0.0] * len(PARTS)
    for place, value in zip(active, found, strict=True):
        factors[place] = float(value)
    return factors
