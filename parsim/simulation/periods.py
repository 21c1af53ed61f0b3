"""Where a step repeats itself in time, which answers for longer steps of the same job.

The state of a run is which ops are under way, since when, and what ended before. If a stretch of time does the same as the stretch
before it, micro-batch by micro-batch, in every lane and hence on every link, then the states at their ends are equal, and so is all
that follows for as long as every rank's schedule repeats itself. A longer step passes through more such stretches and differs in
nothing else: it takes their time longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parsim.parallel.schedules.repetition import Repetition
from parsim.simulation.trace import Trace

_EQUAL = 1e-10
"""part of a period by which times of two equal ones may differ: rounding, and no more"""
_AHEAD = 2
"""slots behind the second of two equal periods that must repeat, too: a pass may prefetch for the one behind it"""

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Period:
    """What repeats itself."""

    micro_batches: int
    seconds: float

    def makespan(self, trace: Trace, more: int) -> float:
        """End of the last op of a step with `more` micro-batches than `trace` has, a multiple of those of a period [s]."""
        return trace.makespan + more // self.micro_batches * self.seconds


def period_of(trace: Trace, repetitions: Mapping[int, Repetition], cycle: int) -> Period | None:
    """Two successive equal periods of `cycle` micro-batches within the part of the schedule that repeats itself; None if there are none.

    `repetitions` says of every rank of the program where its schedule does.
    """
    earlier, later = _counterparts(trace, cycle)
    if not len(earlier):
        return None
    seconds = float(np.median(trace.starts[later] - trace.starts[earlier]))
    if seconds <= 0:
        return None
    same = np.abs(trace.starts[later] - trace.starts[earlier] - seconds) <= _EQUAL * seconds
    same &= np.abs(trace.ends[later] - trace.ends[earlier] - seconds) <= _EQUAL * seconds
    returns, returned = (np.zeros(len(trace.starts), dtype=bool) for _ in range(2))
    returns[earlier[same]] = True
    returned[later[same]] = True
    # no op that has no equal one period later may touch the first of the two, nor one that had none before touch the second
    begins = np.concatenate((trace.starts[~returns], trace.starts[~returned] - seconds))
    ends = np.concatenate((trace.ends[~returns], trace.ends[~returned] - seconds))
    for begin in _gaps(begins, ends, seconds * (1 - _EQUAL)):
        if _within(trace, repetitions, begin + seconds, begin + 2 * seconds):
            return Period(cycle, seconds)
    return None


def _counterparts(trace: Trace, cycle: int) -> tuple[Indices, Indices]:
    """Ops and, for each, the same op `cycle` micro-batches later."""
    kind, instance = trace.columns.kind, trace.columns.instance
    chosen = np.flatnonzero(instance >= 0)
    # equal ops of one micro-batch, such as those of equal layers, are told apart by their order
    order = chosen[np.lexsort((chosen, instance[chosen], kind[chosen]))]
    most = int(instance.max(initial=0)) + 1 + cycle
    groups = kind[order] * most + instance[order]
    places, counts = np.unique(groups, return_index=True, return_counts=True)[1:]
    nth = np.arange(len(order)) - np.repeat(places, counts)
    width = int(counts.max(initial=0)) + 1
    keys = groups * width + nth
    at = np.searchsorted(keys, keys + cycle * width)
    at[at == len(keys)] = 0
    found = keys[at] == keys + cycle * width
    return order[found], order[at[found]]


def _gaps(begins: Floats, ends: Floats, length: float) -> Floats:
    """Where stretches of at least `length` begin that none of the intervals touches."""
    order = np.argsort(begins, kind="stable")
    covered = np.maximum.accumulate(ends[order])
    after = np.append(begins[order][1:], np.inf)
    return covered[after - covered >= length]


def _within(trace: Trace, repetitions: Mapping[int, Repetition], begin: float, end: float) -> bool:
    """Whether, from `begin` to `end`, every rank is in slots that repeat themselves, and takes as many as a period has."""
    for rank, repetition in repetitions.items():
        if min(ops := trace.program.begins[rank]) < 0:
            return False  # nobody can say when a slot without compute began
        starts = trace.starts[ops]
        tolerance = _EQUAL * (end - begin)  # a slot that begins at the end of a period belongs to the next one, rounded or not
        first, last = (int(np.count_nonzero(starts < time - tolerance)) for time in (begin, end))
        if last - first != repetition.slots or first < repetition.begin or last + _AHEAD > repetition.end:
            return False
    return True
