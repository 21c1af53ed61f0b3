"""The chain of ops that decides how long the step takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parsim.program.program import Op
from parsim.report.timeline import COMPUTE_LANE, KEYS, Timeline


@dataclass(frozen=True)
class CriticalPath:
    """Seconds per class, and the pieces (op index, begin [s], end [s]), last first."""

    seconds: dict[str, float]
    pieces: tuple[tuple[int, float, float], ...]


def critical_path(timeline: Timeline, begin: float = 0.0, end: float | None = None) -> CriticalPath:
    """Walk back from the last op in [begin, end], at each op to the blocker that ended last.

    On ties the op's own lanes go first (the compute lane before others). An op's duration belongs to its class, a
    gap before it to launch; the seconds sum to end - begin and bubble is 0.
    """
    end = timeline.makespan if end is None else end
    ops, starts, ends = timeline.program.ops, timeline.start, timeline.end
    offsets, sources = timeline.blockers
    seconds = dict.fromkeys(KEYS, 0.0)
    pieces: list[tuple[int, float, float]] = []
    time, index = end, _last(timeline, end)
    while index is not None:
        stop = min(time, float(ends[index]))
        if stop <= begin:
            break
        seconds["launch"] += time - stop
        time = max(begin, min(stop, float(starts[index])))
        seconds[KEYS[timeline.kind[index]]] += stop - time
        pieces.append((index, time, stop))
        if time <= begin:
            break
        index = _binding(timeline, ops[index], sources[offsets[index] : offsets[index + 1]].tolist())
    seconds["launch"] += max(0.0, time - begin)
    return CriticalPath(seconds, tuple(pieces))


def _last(timeline: Timeline, end: float) -> int | None:
    """The op that ends last in a window, preferring one that ends within it, then the compute lane, then the first."""
    if not len(timeline.end):
        return None
    inside = timeline.start <= end
    reach = np.where(inside, np.minimum(timeline.end, end), -np.inf)
    latest = np.flatnonzero(reach >= reach.max() - timeline.tolerance)
    ending = latest[timeline.end[latest] <= end + timeline.tolerance]
    candidates = (ending if len(ending) else latest).tolist()
    return int(min(candidates, key=lambda index: (not _computes(timeline.program.ops[index]), index)))


def _binding(timeline: Timeline, op: Op, blockers: list[int]) -> int | None:
    """The blocker that ended last."""
    if len(blockers) < 2:
        return blockers[0] if blockers else None
    ends = timeline.end[blockers].tolist()
    latest = max(ends) - timeline.tolerance
    tied = [blocker for blocker, end in zip(blockers, ends, strict=True) if end >= latest]
    if len(tied) == 1:
        return tied[0]
    return min(tied, key=lambda index: (_distance(op, timeline.program.ops[index]), index))


def _distance(op: Op, blocker: Op) -> int:
    """0: same compute lane; 1: another lane in common; 2: none."""
    shared = [lane for lane in blocker.lanes if lane in op.lanes]
    if not shared:
        return 2
    return 0 if any(lane.name == COMPUTE_LANE for lane in shared) else 1


def _computes(op: Op) -> bool:
    return any(lane.name == COMPUTE_LANE for lane in op.lanes)
