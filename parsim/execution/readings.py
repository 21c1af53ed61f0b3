"""What of a disturbed run is the step: all of it, a stretch of a pipeline that never flushes, or a share of a period of local steps.

A sample of the last two is what is read off the disturbed run over what is read off the undisturbed one, times the undisturbed step: with
draws that change nothing it is that step to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from parsim.execution.prepared import Prepared
from parsim.parallel.groups import DATA, OUTER, PIPELINE
from parsim.parallel.settings import OuterLoop
from parsim.report.local_steps import LocalSteps
from parsim.report.steady import SteadyWindow, steady_period
from parsim.report.timeline import Timeline
from parsim.simulation.draws import Floats, lane_number
from parsim.simulation.op_factors import Columns, Disturbance
from parsim.simulation.watched import WHOLE, Integers, Watched
from parsim.variability import STATIC

STEP_BITS = 32
"""runs are numbered below 2^32; above that stands which of its local steps a draw is for, of two periods of a million at most"""
Plain = Callable[[], tuple[Floats, float]]
"""gives what is read off where nothing is drawn, by watched, and the undisturbed step [s]"""


class Reading(Protocol):
    """How a step is read off runs of a program."""

    @property
    def nominal(self) -> float:
        """The undisturbed step [s]."""

    def spans(self, prepared: Prepared) -> Sequence[tuple[float, float]]:
        """Begin and end of every step of the program [s]: a host pauses in each of them with the same probability."""

    def watched(self, prepared: Prepared) -> tuple[Watched, ...]:
        """The ends that are read off."""

    def programs(self, causes: Collection[str]) -> int:
        """How many runs of the program, with draws of their own, one sample needs."""

    def seconds(self, ends: Floats, disturbance: Disturbance, plain: Plain) -> float:
        """The step [s], of what was read off: shape (runs of the program, watched)."""


def reading_of(prepared: Prepared) -> Reading:
    """That of a step."""
    if prepared.plan.asynchronous:
        return SteadyStep(prepared)
    if prepared.local_step is None or prepared.local_steps is None:
        return WholeStep(prepared)
    return LocalPeriod(prepared, prepared.local_steps)


class WholeStep:
    """A step that begins and ends."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    @property
    def nominal(self) -> float:
        return self._prepared.undisturbed.makespan

    def spans(self, prepared: Prepared) -> Sequence[tuple[float, float]]:
        return [(0.0, prepared.undisturbed.makespan)]

    def watched(self, prepared: Prepared) -> tuple[Watched, ...]:
        return (WHOLE,)

    def programs(self, causes: Collection[str]) -> int:
        return 1

    def seconds(self, ends: Floats, disturbance: Disturbance, plain: Plain) -> float:
        return float(ends[0, 0])


class SteadyStep:
    """A step of a pipeline that never flushes: from when the last rank is through with a micro-batch of the steady regime to when it is
    through with the one that many later. Such steps follow each other without gap or overlap, whoever is slow.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    @cached_property
    def _window(self) -> SteadyWindow:
        known = self._prepared.plan.parallelism.pipeline.step
        return steady_period(Timeline(self._prepared.undisturbed), self._prepared.built.training.micro_batches, known=known)

    @property
    def nominal(self) -> float:
        return self._window.step_time(self._prepared.built.training.micro_batches)

    def spans(self, prepared: Prepared) -> Sequence[tuple[float, float]]:
        length = self.nominal
        return [(number * length, (number + 1) * length) for number in range(int(prepared.undisturbed.makespan // length) + 1)]

    def watched(self, prepared: Prepared) -> tuple[Watched, ...]:
        first = self._window.first
        return tuple(Watched(_through(prepared, one)) for one in (first, first + self._window.micro_batches))

    def programs(self, causes: Collection[str]) -> int:
        return 1

    def seconds(self, ends: Floats, disturbance: Disturbance, plain: Plain) -> float:
        undisturbed, nominal = plain()
        (begin, end), (before, after) = ends[0], undisturbed
        return nominal * float((end - begin) / (after - before))


def _through(prepared: Prepared, micro_batch: int) -> Integers:
    """By rank, the last op of a micro-batch on its compute lane."""
    timeline = Timeline(prepared.undisturbed)
    works = (timeline.columns.instance == micro_batch) & (timeline.end > timeline.start)
    lanes = [lane[works[lane]] for lane in map(timeline.lane, timeline.ranks)]
    return np.array([lane[-1] for lane in lanes if len(lane)], dtype=np.int64)


class LocalPeriod(WholeStep):
    """H steps of groups of replicas that step alone, each with draws of its own, and the exchanges of which they wait for each other."""

    def __init__(self, prepared: Prepared, parts: LocalSteps) -> None:
        super().__init__(prepared)
        self._parts, self._outer = parts, parts.outer

    def watched(self, prepared: Prepared) -> tuple[Watched, ...]:
        plan, columns = prepared.plan, Columns(prepared.plan)
        of = np.array(plan.mesh.coordinates(DATA)) // (plan.parallelism.data.size // self._outer.size)
        return tuple(Watched(columns=np.unique(columns.of[of == group])) for group in range(self._outer.size))

    def programs(self, causes: Collection[str]) -> int:
        return self._steps if set(causes) - set(STATIC) else 1

    @property
    def _steps(self) -> int:
        """One period; with exchanges that steps run beside the one before, too, in which the groups drift apart."""
        return self._outer.local_steps * (2 if self._outer.overlap_steps else 1)

    def seconds(self, ends: Floats, disturbance: Disturbance, plain: Plain) -> float:
        undisturbed, nominal = plain()
        shape = (self._steps, self._outer.size)
        exchanges = np.full(self._steps * self._outer.fragments // self._outer.local_steps, self._parts.fragment)
        known = period(np.broadcast_to(undisturbed, shape), exchanges, self._outer)
        drawn = period(np.broadcast_to(ends, shape), exchanges * self._slowest(disturbance, len(exchanges)), self._outer)
        return nominal * (drawn / known)

    def _slowest(self, disturbance: Disturbance, count: int) -> Floats:
        """How many times as long each exchange takes: of the groups of ranks that exchange side by side, the slowest."""
        found = np.zeros(count)
        if "collective" not in disturbance.causes:
            return found + 1.0
        plan, lane = self._prepared.plan, lane_number(OUTER)
        for stage in range(plan.mesh.size(PIPELINE)):
            for members in plan.groups.rows(OUTER, stage).tolist():
                place = members[0], members[-1] << 24 | len(members), lane
                np.maximum(found, disturbance.jitter("collective", place, count), out=found)
        return found


def period(steps: Floats, exchanges: Floats, outer: OuterLoop) -> float:
    """From the begin of one part's first exchange to that of its next one [s], the last of so many local steps.

    `steps` [s]: shape (local steps, groups); `exchanges` [s]: of every part. An exchange begins when the last group is there, and ends
    before the step that is `overlap_steps` behind it.
    """
    each = outer.local_steps // outer.fragments
    clock, begins, over = np.zeros(steps.shape[1]), [], 0.0
    for number in range(len(steps) + 1):
        turn, within = divmod(number, each)
        if within == 0:
            if turn and outer.overlap_steps == each:
                clock = np.maximum(clock, over)
            begins.append(float(clock.max()))
            if number == len(steps):
                break
            over = begins[-1] + float(exchanges[turn])
        if within == outer.overlap_steps:
            clock = np.maximum(clock, over)
        clock = clock + steps[number]
    return begins[-1] - begins[-1 - outer.fragments]
