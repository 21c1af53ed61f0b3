"""Where a step repeats itself: stretches of equal periods, found in the recorded ops of the ranks that a picture shows.

A pipeline between its fill and its drain, or gradient accumulation, does the same again and again, `micro_batches` micro-batches later.
Two periods are equal if every op of them has the same op in the other: same kind, same rank, begun and ended one period later. What has
no such op ends the stretch. Steps with jitter, or with uneven micro-batches, have no such stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from parsim.report.timeline import Flags, Floats, Indices, Timeline

FEWEST = 2
"""equal periods that make a stretch"""
_EQUAL = 1e-9
"""part of a period by which equal times may differ: rounding, and no more"""
_NOTABLE = 0.1
"""of the time that is looked at: shorter stretches are no help"""
_PERIODS = 3
"""lengths of a period that are tried per number of micro-batches: forward and backward passes of GPipe repeat with different ones"""


@dataclass(frozen=True)
class Repeat:
    """A stretch of `count` equal periods, one after another."""

    begin: float
    """of the first [s]"""
    period: float
    """[s]"""
    count: int
    micro_batches: int
    """of one period"""

    @property
    def end(self) -> float:
        """Of the last period [s]."""
        return self.begin + self.count * self.period


def repeats(timeline: Timeline, ranks: Sequence[int], begin: float, end: float, groups: Sequence[int] = (1,)) -> tuple[Repeat, ...]:
    """The stretches within [begin, end] in which all of `ranks` repeat themselves, in the order of time; empty if none is a tenth of it.

    `groups`: after how many micro-batches they may; the first that covers a third of [begin, end] is taken, else the one that covers most.
    """
    best: tuple[Repeat, ...] = ()
    if not ranks:
        return best
    first, everyone = _Ops(timeline, ranks[:1], begin, end), None
    for group in groups:
        if _covered(first.stretches(group)) <= _covered(best):  # one rank repeats itself at least as much as all do
            continue
        everyone = everyone or _Ops(timeline, ranks, begin, end)
        best = max(best, everyone.stretches(group), key=_covered)
        if _covered(best) >= (end - begin) / 3:
            break
    return best


def _covered(stretches: Sequence[Repeat]) -> float:
    return fsum(one.count * one.period for one in stretches)


class _Ops:
    """The ops of some ranks that take time within a stretch, each with what it is called and when it ran."""

    def __init__(self, timeline: Timeline, ranks: Sequence[int], begin: float, end: float) -> None:
        chosen = np.zeros(len(timeline.start), dtype=bool)
        for rank in ranks:
            chosen[timeline.of_rank(rank)] = True
        ops = np.flatnonzero(chosen & (timeline.end > timeline.start) & (timeline.end > begin) & (timeline.start < end))
        self.start, self.stop = timeline.start[ops], timeline.end[ops]
        self.limits = begin, end
        instance, kind = timeline.columns.instance[ops], timeline.columns.kind[ops]
        counted = np.flatnonzero(instance >= 0)
        # equal ops of one micro-batch, such as those of equal layers, are told apart by their order
        self.order: Indices = counted[np.lexsort((self.start[counted], instance[counted], kind[counted]))]
        self.most = int(instance.max(initial=0)) + 1
        named = kind[self.order] * (2 * self.most) + instance[self.order]  # room for a group more
        places, counts = np.unique(named, return_index=True, return_counts=True)[1:]
        self.width = int(counts.max(initial=0)) + 1
        self.keys: Indices = named * self.width + np.arange(len(self.order)) - np.repeat(places, counts)

    def stretches(self, group: int) -> tuple[Repeat, ...]:
        """The longest stretches that repeat themselves after `group` micro-batches; they do not overlap."""
        if 2 * group >= self.most:
            return ()
        at = np.searchsorted(self.keys, self.keys + group * self.width)
        at[at == len(self.keys)] = 0
        found = self.keys[at] == self.keys + group * self.width
        earlier, later = self.order[found], self.order[at[found]]
        begins, ends = self.start[later] - self.start[earlier], self.stop[later] - self.stop[earlier]
        candidates: list[Repeat] = []
        for period in _frequent(begins):
            same = (np.abs(begins - period) <= _EQUAL * period) & (np.abs(ends - period) <= _EQUAL * period)
            candidates += self._with(period, group, earlier[same], later[same])
        notable = _NOTABLE * (self.limits[1] - self.limits[0])
        candidates = [one for one in candidates if one.count * one.period >= notable]
        kept: list[Repeat] = []
        for one in sorted(candidates, key=lambda one: (-one.count * one.period, one.begin)):
            if all(one.begin >= other.end - _EQUAL * one.period or one.end <= other.begin + _EQUAL * one.period for other in kept):
                kept.append(one)
        return tuple(sorted(kept, key=lambda one: one.begin))

    def _with(self, period: float, group: int, earlier: Indices, later: Indices) -> list[Repeat]:
        """Stretches of one period, of ops that have an equal one a period later, and of those."""
        returns, returned = self._flags(earlier), self._flags(later)
        # where a period may begin and be followed by its like: no op without one may touch the first or, a period later, the second
        starts = np.concatenate((self.start[~returns], self.start[~returned] - period))
        stops = np.concatenate((self.stop[~returns], self.stop[~returned] - period))
        order = np.argsort(starts, kind="stable")
        low, high = self.limits
        free = np.maximum.accumulate(np.concatenate(([low], stops[order])))
        until = np.minimum(np.concatenate((starts[order], [high - period])), high - period)
        counts = np.floor((until - free) / period + 1.0 + 1e-6).astype(np.int64)
        return [Repeat(float(free[i]), period, int(counts[i]), group) for i in np.flatnonzero(counts >= FEWEST)]

    def _flags(self, places: Indices) -> Flags:
        flags = np.zeros(len(self.start), dtype=bool)
        flags[places] = True
        return flags


def _frequent(values: Floats) -> list[float]:
    """The positive values that occur most often, equal ones up to rounding, the most frequent first."""
    values = np.sort(values[values > 0.0])
    found: list[float] = []
    for _ in range(_PERIODS):
        if not len(values):
            break
        reach = np.searchsorted(values, values * (1.0 + _EQUAL), side="right")
        first = int(np.argmax(reach - np.arange(len(values))))
        found.append(float(np.median(values[first : reach[first]])))
        values = np.delete(values, slice(first, reach[first]))
    return found


def groups_of(stages: int, virtual_stages: int) -> tuple[int, ...]:
    """After how many micro-batches a schedule may repeat itself: each, in pairs, or in groups as large as the pipeline."""
    own = (stages, 2 * stages) if stages > 1 else ()
    return tuple(dict.fromkeys((*own, 1, 2) if virtual_stages > 1 else (1, 2, *own)))
