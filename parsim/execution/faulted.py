"""One step while things break: each fault alone, and all together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from parsim.errors import Finding, PlanError
from parsim.execution.prepared import Prepared
from parsim.faults import Fault, LinkFault
from parsim.report.faults import FaultEffect, FaultRow, Faults
from parsim.report.measured import Measured
from parsim.report.simulated import SimulatedStep
from parsim.scenario.built import Built
from parsim.scenario.faults import Broken
from parsim.simulation.engine import collector_paused
from parsim.simulation.faults import Breaking, FaultedRun, Likes
from parsim.units import format_time

_NOTHING = 1e-9
"""relative: two step times this close are equal"""
_IDLE = "it acts on nothing"
"""how the reason of a fault begins that deserves a warning"""


@dataclass(frozen=True, eq=False)
class FaultedStep:
    """The step of a scenario with faults. `prepared` is the undisturbed step, which takes `nominal` [s].

    Raises PlanError for a schedule without a flush, whose steps overlap.
    """

    prepared: Prepared
    nominal: float

    def __post_init__(self) -> None:
        if self.prepared.plan.asynchronous:
            schedule = self.prepared.built.parallelism.pipeline.schedule
            text = "not supported yet: faults under a schedule without a flush, whose steps overlap"
            raise PlanError(Finding(text, self._broken[0].path, None, f"use another schedule than {schedule}"))

    @property
    def _broken(self) -> tuple[Broken, ...]:
        return self.prepared.built.faults

    @cached_property
    def split(self) -> Prepared:
        """The same step, in which only what breaks alike is folded."""
        if not self.prepared.folded:
            return self.prepared
        kinds: dict[tuple[int, ...], int] = {}
        of_rank: list[list[int]] = [[] for _ in range(self.prepared.plan.mesh.ranks)]
        changing: dict[int, list[Hashable]] = {}
        for number, (_, fault) in enumerate(self._broken):
            if isinstance(fault, LinkFault):
                for link in fault.links:
                    changing.setdefault(link, []).append((number, fault.mark(link)))
                continue
            for rank in fault.ranks:
                of_rank[rank].append(number)
        numbers = [kinds.setdefault(tuple(marks), len(kinds)) for marks in of_rank]
        return self.prepared.apart(numbers, {link: tuple(marks) for link, marks in changing.items()})

    @cached_property
    def likes(self) -> Likes:
        """Which links and ranks stand for others."""
        classes = self.split.classes
        return Likes(classes.links, classes.represents) if self.split.folded else Likes({link: link for link in classes.links})

    def outcome(self, faults: Iterable[Fault]) -> FaultedRun:
        """What comes of a step with some of the faults."""
        with collector_paused():
            breaking = Breaking(tuple(faults), self.likes, self.split.fabric.capacity)
            return breaking.outcome(self.split.trace(processes=breaking.processes()))

    def rows(self) -> tuple[FaultRow, ...]:
        """Every fault alone."""
        return tuple(
            FaultRow(path, fault.name, fault.begin, _end(fault), self.effect(self._alone(fault), (fault,))) for path, fault in self._broken
        )

    def _alone(self, fault: Fault) -> FaultedRun:
        return self.together if len(self._broken) == 1 else self.outcome((fault,))

    @cached_property
    def together(self) -> FaultedRun:
        """All of them."""
        return self.outcome(fault for _, fault in self._broken)

    def effect(self, outcome: FaultedRun, faults: Sequence[Fault]) -> FaultEffect:
        """The outcome in a report's words."""
        ranks = self.prepared.plan.mesh.ranks
        if (failure := outcome.failure) is not None:
            why = f"the step fails at {format_time(failure.at)}: {failure.why}"
            return FaultEffect(None, ended=False, failed_at_s=failure.at, gpu_seconds_lost=ranks * failure.at, why=why)
        late = outcome.end - self.nominal
        lost = ranks * late if abs(late) > _NOTHING * self.nominal else 0.0
        return FaultEffect(outcome.end, ended=True, failed_at_s=None, gpu_seconds_lost=lost, why=self._ended(outcome.end, faults))

    def _ended(self, end: float, faults: Sequence[Fault]) -> str:
        late = end - self.nominal
        if abs(late) > _NOTHING * self.nominal:
            return f"the step takes {format_time(abs(late))} {'longer' if late > 0 else 'less'} ({100 * late / self.nominal:+.3g} %)"
        if all(fault.begin >= end for fault in faults):
            return f"{_IDLE}: the step has ended at {format_time(end)}"
        wires = [fault for fault in faults if isinstance(fault, LinkFault)]
        if len(wires) == len(faults) and not any(self.likes.link(link) is not None for fault in wires for link in fault.links):
            return f"{_IDLE}: no transfer of the step crosses it"
        return "the step takes as long as without it: it hides in what others take anyway"

    def warnings(self, rows: Sequence[FaultRow]) -> list[Finding]:
        """Faults that do nothing."""
        return [
            Finding(f"{row.fault}: {row.effect.why}", row.key, suggestion="the time counts from the begin of the step")
            for row in rows
            if row.effect.why.startswith(_IDLE)
        ]


def faulted(prepared: Prepared, run: SimulatedStep, measured: Callable[[Built, SimulatedStep], Measured]) -> Faults:
    """What the faults of a scenario do to its step, which undisturbed is `run`. Raises as `FaultedStep`.

    `measured` makes of a run what pictures are drawn from; it is asked for when there is one to be drawn.
    """
    step = FaultedStep(prepared, run.makespan)
    rows = step.rows()
    together = step.together
    effect = rows[0].effect if len(rows) == 1 else step.effect(together, [fault for _, fault in prepared.built.faults])
    if together.failure is not None:
        return Faults(rows, effect, tuple(step.warnings(rows)))
    split = step.split
    disturbed = replace(run, lowering=split.lowering, trace=together.trace, classes=split.classes, loads=split.fabric.cost)
    marks = [(fault.begin, fault.name) for _, fault in prepared.built.faults]
    marks += [(end, f"end of {fault.name}") for _, fault in prepared.built.faults if (end := _end(fault)) is not None]
    seen = tuple(sorted(mark for mark in marks if mark[0] <= together.end))

    def drawn() -> Measured:
        return replace(measured(prepared.built, disturbed), marks=seen)

    return Faults(rows, effect, tuple(step.warnings(rows)), drawn)


def _end(fault: Fault) -> float | None:
    end = getattr(fault, "end", inf)
    return None if end == inf else end
