"""The steady period of schedules that never flush the pipeline (PipeDream, PipeDream-2BW).

Between warm-up and drain such a pipeline repeats itself: micro-batch i + c ends exactly c periods after micro-batch i
on every rank (a max-plus linear system). The longest stretch in which it does is the steady regime.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parsim.report.timeline import Floats, Timeline

_EQUAL = 1e-9
_CANDIDATES = 64


@dataclass(frozen=True)
class SteadyWindow:
    """A stretch of the steady regime, `micro_batches` long, and the time per micro-batch."""

    period: float
    """seconds per micro-batch"""
    begin: float
    end: float
    micro_batches: int
    exact: bool
    """False: the run was too short to repeat itself, `period` is the mean over its middle"""
    first: int = 0
    """the micro-batch with whose end it begins"""

    def step_time(self, micro_batches: int) -> float:
        """Seconds of a step of `micro_batches`."""
        return self.period * micro_batches

    def scale(self, micro_batches: int) -> float:
        """What to multiply counts and times of the window with to get those of a step."""
        return micro_batches / self.micro_batches


def steady_period(timeline: Timeline, micro_batches: int = 1, *, known: int = 0) -> SteadyWindow:
    """Find the steady regime and a window in it, as near as possible to `micro_batches` micro-batches long.

    `known`: micro-batches after which it repeats itself, where somebody knows. Warm-up is over when every rank has finished its first
    micro-batch; the drain begins when a rank starts its last.
    Raises ValueError if fewer than five micro-batches end between the two: simulate more.
    """
    begun, done = micro_batch_spans(timeline)
    anchor = done[0] if len(done) else np.empty(0)
    steady = np.empty(0, dtype=np.int64)
    if done.size:
        low, high = done[:, 0].max() - timeline.tolerance, begun[:, -1].min() + timeline.tolerance
        steady = np.flatnonzero((anchor >= low) & (anchor <= high))
    if len(steady) < 5:
        message = f"no steady regime: {len(steady)} micro-batches end between warm-up and drain, 5 are needed; simulate more"
        raise ValueError(message)
    done = done[:, steady]
    for cycle in (known,) if 0 < 2 * known < len(steady) else range(1, min(_CANDIDATES, len(steady) // 2) + 1):
        first, last = _longest_equal(done[:, cycle:] - done[:, :-cycle])
        # A short run of equal steps may be chance: a cycle of 3, 4, 4, 4 s has it too.
        if last - first >= max(2 * cycle, 4, len(steady) // 3):
            return _window(done, cycle, first, last, micro_batches, int(steady[0]))
    count = len(steady) - 1
    begin, end = float(done[0, 0]), float(done[0, -1])
    return SteadyWindow((end - begin) / count, begin, end, count, exact=False, first=int(steady[0]))


def micro_batch_spans(timeline: Timeline) -> tuple[Floats, Floats]:
    """When each rank's compute lane began and finished each micro-batch [s], both [rank, micro-batch].

    Only micro-batches that all ranks know; ranks without any are left out.
    """
    instances = timeline.columns.instance
    # Ops that take no time (a weight version, a mark) may number something else than micro-batches.
    works = (instances >= 0) & (timeline.end > timeline.start)
    lanes = [lane[works[lane]] for lane in map(timeline.lane, timeline.ranks)]
    lanes = [lane for lane in lanes if len(lane)]
    if not lanes:
        return np.empty((0, 0)), np.empty((0, 0))
    count = min(int(instances[lane].max()) for lane in lanes) + 1
    begun, done = np.full((len(lanes), count), np.inf), np.zeros((len(lanes), count))
    for row, lane in enumerate(lanes):
        known = lane[instances[lane] < count]
        np.minimum.at(begun[row], instances[known], timeline.start[known])
        np.maximum.at(done[row], instances[known], timeline.end[known])
    return begun, done


def first_makespan(timeline: Timeline, micro_batches: int) -> float:
    """End of the first `micro_batches` micro-batches of a run that started empty [s]."""
    instances = timeline.columns.instance
    chosen = (instances >= 0) & (instances < micro_batches) & (timeline.end > timeline.start)
    return float(timeline.end[chosen].max(initial=0.0))


def _longest_equal(step: Floats) -> tuple[int, int]:
    """The longest run of columns in which all entries of all rows are one number: (first, last + 1)."""
    equal = np.ptp(step, axis=0) <= _EQUAL * np.abs(step[0])
    best, first = (0, 0), None
    for column in range(step.shape[1]):
        if not equal[column]:
            first = None
            continue
        if first is None or abs(step[0, column] - step[0, first]) > _EQUAL * abs(step[0, first]):
            first = column
        if column + 1 - first > best[1] - best[0]:
            best = (first, column + 1)
    return best


def _window(done: Floats, cycle: int, first: int, last: int, micro_batches: int, number: int) -> SteadyWindow:
    """`done[first .. last + cycle - 1]` is steady; take whole cycles of it, from the middle. `number`: the micro-batch of its column 0."""
    steady = last - first + cycle - 1
    length = cycle * max(1, min(micro_batches, steady) // cycle)
    begin = first + (steady - length) // 2
    period = float(done[0, first + cycle] - done[0, first]) / cycle
    return SteadyWindow(period, float(done[0, begin]), float(done[0, begin + length]), length, exact=True, first=number + begin)
