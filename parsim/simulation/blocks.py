"""Running blocks: an op that stands for several ends when the last of them would.

How far a block is depends on what loads its device from outside. For each such load the times of its cut points are known
once and for all (a `Course`); when the load changes in the middle of a segment, that segment is played through op by op with
the changes it has seen, and from the next cut point on the course of the new load holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from parsim.program.blocks import Segment

Loads = tuple[Any, ...]
Step = tuple[int, tuple[int, ...], float]
"""the kernel that runs (-1: none), what runs beside it, and its rate if that matters to how they stand afterwards (else 0)"""
_ONE: list[Step] = [(0, (), 0.0)]
"""an op with nothing beside it"""
Log = list[tuple[float, Loads]]
"""loads and since when they hold [s]"""


@dataclass(frozen=True, slots=True)
class Inside:
    """One op inside a block."""

    kernel: bool
    """can be slowed"""
    seconds: float
    """alone"""
    memory_bound: float
    load: Any
    """what it takes from kernels beside it; None for ops that take nothing"""


class Rates(Protocol):
    """How fast a kernel runs beside loads."""

    def __call__(self, loads: Loads, memory_bound: float) -> float: ...


class Course:
    """What a block does under each load from outside, computed when it is asked for. Bodies of equal ops share one."""

    def __init__(self, inside: Sequence[Inside], segments: Sequence[Segment], rate: Rates) -> None:
        self.inside = tuple(inside)
        self.segments = tuple(segments)
        self.rate = rate
        self._cuts: dict[Loads, list[float]] = {}
        self._spans: dict[Loads, tuple[list[float], list[float]]] = {}
        self._steps: dict[Loads, list[list[Step]]] = {}

    def cuts(self, loads: Loads = ()) -> list[float]:
        """Time of every cut point from the block's beginning [s], both ends included, if `loads` stays all the while."""
        if (found := self._cuts.get(loads)) is None:
            found = self._cuts[loads] = self._walk(loads)
        return found

    def spans(self, loads: Loads = ()) -> tuple[list[float], list[float]]:
        """Beginning and end of every op from the block's beginning [s], if `loads` stays all the while."""
        self.cuts(loads)
        return self._spans[loads]

    def steps(self, loads: Loads = ()) -> list[list[Step]]:
        """Per segment, what runs before each end of an op, in the order of these ends, if `loads` stays all the while."""
        self.cuts(loads)
        return self._steps[loads]

    def _walk(self, loads: Loads) -> list[float]:
        now = 0.0
        cuts = [now]
        starts: list[float] = []
        ends: list[float] = []
        steps: list[list[Step]] = []
        for segment in self.segments:
            if len(segment.blockers) == 1:
                starts.append(now)
                now += self._alone(self.inside[segment.first], [(0.0, loads)])
                ends.append(now)
                steps.append(_ONE)
            else:
                play = _Play(self, segment, [(0.0, loads)])
                begun, ended = play.run()
                starts += [now + time for time in begun]
                ends += [now + time for time in ended]
                now = max(ends[segment.first :])
                steps.append(play.steps)
            cuts.append(now)
        self._spans[loads] = starts, ends
        self._steps[loads] = steps
        return cuts

    def play(self, segment: Segment, regimes: Sequence[tuple[float, Loads]]) -> tuple[list[float], list[float]]:
        """Beginning and end of the ops of a segment [s after its beginning]; `regimes` says from when on which loads hold."""
        if len(segment.blockers) == 1:
            return [0.0], [self._alone(self.inside[segment.first], regimes)]
        return _Play(self, segment, regimes).run()

    def _alone(self, op: Inside, regimes: Sequence[tuple[float, Loads]]) -> float:
        """End of an op with nothing of its block beside it."""
        if not op.kernel:
            return op.seconds
        left, since, speed = op.seconds, 0.0, 1.0
        for time, loads in regimes:
            left = max(0.0, left - speed * (time - since))
            since, speed = time, self.rate(loads, op.memory_bound)
        return since + left / speed


class _Play:
    """A segment, op by op: at most one kernel, whose rate changes, and ops beside it that take their time."""

    def __init__(self, course: Course, segment: Segment, regimes: Sequence[tuple[float, Loads]]) -> None:
        self._inside = course.inside[segment.first : segment.last]
        self._after = segment.after
        self._blockers = list(segment.blockers)
        self._rate = course.rate
        self._regimes = regimes
        self._now = 0.0
        self._foreign = regimes[0][1]
        self._kernel = -1
        self._left = self._speed = 0.0
        self._beside: dict[int, float] = {}
        """op -> its end"""
        self._starts = [0.0] * len(self._inside)
        self._ends = [0.0] * len(self._inside)
        self.steps: list[Step] = []

    def run(self) -> tuple[list[float], list[float]]:
        for i, count in enumerate(self._blockers[:]):
            if not count:
                self._begin(i)
        number = 1
        while self._kernel >= 0 or self._beside:
            self.steps.append((self._kernel, tuple(self._beside), self._speed if self._kernel >= 0 and self._beside else 0.0))
            over = self._now + self._left / self._speed if self._kernel >= 0 else inf
            other, until = min(self._beside.items(), key=lambda entry: entry[1], default=(-1, inf))
            change = self._regimes[number][0] if number < len(self._regimes) else inf
            if change <= over and change <= until:
                self._reach(change)
                self._foreign = self._regimes[number][1]
                number += 1
                self._pace()
            elif over <= until:
                self._reach(over)
                done, self._kernel = self._kernel, -1
                self._end(done)
            else:
                self._reach(until)
                del self._beside[other]
                self._pace()
                self._end(other)
        return self._starts, self._ends

    def _reach(self, time: float) -> None:
        self._left = max(0.0, self._left - self._speed * (time - self._now))
        self._now = time

    def _begin(self, i: int) -> None:
        op = self._inside[i]
        self._starts[i] = self._now
        if op.kernel:
            self._kernel, self._left = i, op.seconds
        else:
            self._beside[i] = self._now + op.seconds
        self._pace()

    def _pace(self) -> None:
        if self._kernel >= 0:
            own = tuple(self._inside[i].load for i in self._beside if self._inside[i].load is not None)
            self._speed = self._rate((*self._foreign, *own), self._inside[self._kernel].memory_bound)

    def _end(self, i: int) -> None:
        self._ends[i] = self._now
        for other in self._after[i]:
            self._blockers[other] -= 1
            if not self._blockers[other]:
                self._begin(other)


class Progress:
    """A block under way: it reaches cut point `cut` at time `at` and goes on from there as the course says."""

    __slots__ = ("armed", "at", "course", "cut", "cuts", "end", "entered", "loads", "log", "regimes")

    def __init__(self, course: Course, start: float, loads: Loads) -> None:
        self.course = course
        self.loads = loads
        self.cuts = course.cuts(loads)
        self.cut = 0
        self.at = start
        self.end = start + self.cuts[-1]
        self.armed = inf
        """earliest time at which somebody looks whether it has ended"""
        self.entered = start
        """when the segment before `cut` began, if that is under way"""
        self.regimes: Log = []
        """what that segment has seen, in seconds after its beginning"""
        self.log: Log = [(start, loads)]

    def advance(self, now: float, loads: Loads) -> None:
        """Find where the block is, and go on under other loads."""
        cuts, segments = self.cuts, self.course.segments
        if now < self.at:
            self.regimes.append((now - self.entered, loads))
        else:
            base = self.at - cuts[self.cut]
            place = self.place(now)
            self.entered = base + cuts[place] if place > self.cut else self.at
            self.regimes = [(0.0, self.loads), (now - self.entered, loads)]
            self.cut = place + 1
        self.loads = loads
        self.cuts = cuts = self.course.cuts(loads)
        _, ended = self.course.play(segments[self.cut - 1], self.regimes)
        self.at = max(now, self.entered + max(ended))
        self.end = self.at + (cuts[-1] - cuts[self.cut])

    def place(self, now: float) -> int:
        """The segment under way, if that is not one that saw a change."""
        reached = bisect_right(self.cuts, now - (self.at - self.cuts[self.cut]), self.cut) - 1
        return min(max(reached, self.cut), len(self.course.segments) - 1)


def expand(course: Course, start: float, end: float, log: Log) -> tuple[list[float], list[float]]:
    """Beginning and end of every op of a block that ran from `start` to `end` [s] under these loads from outside."""
    loads = log[0][1]
    if len(log) == 1:
        begun, over = course.spans(loads)
        return [start + time for time in begun], _until([start + time for time in over], end)
    progress = Progress(course, start, loads)
    starts: list[float] = []
    ends: list[float] = []
    for now, loads in log[1:]:  # the changes are replayed; what is certain before the next one is written down
        if now >= progress.at:
            _settle(progress, progress.place(now), starts, ends)
        progress.advance(now, loads)
    _settle(progress, len(course.segments), starts, ends)
    _abut(course.segments, starts, ends)
    return starts, _until(ends, end)


def _abut(segments: Sequence[Segment], starts: list[float], ends: list[float]) -> None:
    """Segments are one behind the other, also in the last digit: a gap of rounding would be counted as waiting."""
    cut = starts[0]
    for segment in segments:
        for place, count in enumerate(segment.blockers, start=segment.first):
            if not count:
                starts[place] = cut
                ends[place] = max(cut, ends[place])
        cut = max(ends[segment.first : segment.last])


def _settle(progress: Progress, until: int, starts: list[float], ends: list[float]) -> None:
    """Append the ops of the segments before `until`, which nothing changes any more."""
    course, segments, cut = progress.course, progress.course.segments, progress.cut
    if cut and len(starts) <= segments[cut - 1].first:
        begun, over = course.play(segments[cut - 1], progress.regimes)
        starts += [progress.entered + time for time in begun]
        ends += [progress.entered + time for time in over]
    if until <= cut:
        return
    begun, over = course.spans(progress.loads)
    base = progress.at - progress.cuts[cut]
    first, behind = segments[cut].first, segments[until - 1].last
    starts += [base + time for time in begun[first:behind]]
    ends += [base + time for time in over[first:behind]]


def _until(ends: list[float], end: float) -> list[float]:
    """No op ends after its block, and the last ends with it."""
    last = max(ends)
    return [end if time >= last else time for time in ends]
