"""The exact best of many candidates by branch and bound, best bound first.

Every candidate is bounded; those that surely break a constraint go. The others are simulated in the order of their bounds until
no bound is better than what has been found: then nothing that was not simulated can be better either. A candidate whose cheap
bound comes up is bounded more tightly first. The answer is that of simulating everything, whatever the executor and its timing:
what is simulated together depends on counts only, and of equals the earlier candidate wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from time import perf_counter
from typing import Any, Literal

from parsim.errors import ParsimError
from parsim.study.search.bounds import Bounds
from parsim.study.search.candidate import Candidate
from parsim.study.search.evaluate import Invalid, Setup, Task, work
from parsim.study.search.incumbents import Best, Front, Incumbents, Values
from parsim.study.search.objective import STEP_TIME, Constraint, Fits, Metrics, Objective

Status = Literal["kept", "worse", "bound", "broken", "invalid"]
Question = Literal["bounds", "tight", "simulate"]
Progress = Callable[[Question, int, int], None]
"""(what is asked, answered so far, candidates): of bounds all are asked, of the others nobody knows how many will be"""
BOUNDED_TOGETHER = 100
"""candidates of one task; neighbours share pieces, so a task takes consecutive ones"""
TIGHTENED_TOGETHER = 16
SIMULATED_TOGETHER = 2
TOLERANCE = 1e-9
"""relative; a bound above the value by more than rounding is an error in the bound"""


class BoundError(ParsimError):
    """A simulation found less than a bound says is possible: an error in the bound, not in the candidate."""


@dataclass(slots=True)
class Record:
    """What became of one candidate."""

    index: int
    candidate: Candidate
    status: Status = "bound"
    why: str = ""
    """why it is not in the answer, with the figures"""
    bounds: Bounds | None = None
    metrics: Metrics | None = None
    """None: not simulated"""
    least: Values = ()
    """lower bounds of the objectives"""
    values: Values = ()
    """the objectives, where it was simulated"""

    def document(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {
            "index": self.index,
            "changes": self.candidate.mapping(),
            "status": self.status,
            "why": self.why,
            "bound_step_time_s": self.bounds.step_time if self.bounds else None,
            "bound_peak_bytes": self.bounds.peak_memory if self.bounds else None,
            "step_time_s": self.metrics.step_time_s if self.metrics else None,
            "peak_bytes": self.metrics.peak_bytes if self.metrics else None,
            "fits": self.metrics.fits if self.metrics else None,
        }


@dataclass(frozen=True)
class Found:
    """The answer and what became of everything else."""

    records: tuple[Record, ...]
    """in the order of the candidates"""
    kept: tuple[Record, ...]
    """the answer, best first: the k best, or the Pareto front"""
    seconds: float
    """wall time"""

    @property
    def best(self) -> Record | None:
        """The best; None if no candidate is valid and keeps the constraints."""
        return self.kept[0] if self.kept else None

    @property
    def simulated(self) -> int:
        """Candidates that were simulated."""
        return sum(record.metrics is not None for record in self.records)

    @property
    def valid(self) -> int:
        """Candidates that could be simulated."""
        return sum(record.status != "invalid" for record in self.records)

    @property
    def counts(self) -> dict[str, int]:
        """Candidates by status."""
        return dict(Counter(record.status for record in self.records))

    @cached_property
    def _by_candidate(self) -> dict[str, Record]:
        return {repr(sorted(record.candidate.changes, key=lambda change: change[0])): record for record in self.records}

    def why_not(self, candidate: Candidate) -> str | None:
        """Why a candidate is not in the answer; empty if it is, None if it was not searched."""
        found = self._by_candidate.get(repr(sorted(candidate.changes, key=lambda change: change[0])))
        return None if found is None else found.why


def search(
    setup: Setup,
    candidates: Iterable[Candidate],
    objectives: Sequence[Objective] = (STEP_TIME,),
    constraints: Sequence[Constraint] = (Fits(),),
    *,
    top: int = 1,
    exhaustive: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Found:
    """The `top` best candidates by the one objective, or the exact Pareto front of several.

    `executor` runs the work (None: this process); any `concurrent.futures.Executor` will do, its processes need no preparation.
    `exhaustive` simulates every valid candidate instead of pruning, with the same answer. Raises `BoundError` if a simulation
    contradicts a bound.
    """
    began = perf_counter()
    records = [Record(index, candidate) for index, candidate in enumerate(candidates)]
    run = _Search(setup, records, tuple(objectives), tuple(constraints), Best(top) if len(objectives) == 1 else Front(), executor, progress)
    run.bound(keep=exhaustive)
    run.descend(exhaustive=exhaustive)
    run.explain()
    return Found(tuple(records), tuple(records[index] for index in run.answer.kept()), perf_counter() - began)


@dataclass
class _Search:
    """One search under way."""

    setup: Setup
    records: list[Record]
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    answer: Incumbents
    executor: Executor | None
    progress: Progress | None
    _open: list[tuple[Values, int, bool]] = field(default_factory=list)
    """(bounds of the objectives, candidate, whether they are tight), a heap"""
    _answered: Counter[str] = field(default_factory=Counter)

    def bound(self, *, keep: bool) -> None:
        """Bound everything; `keep`: what surely breaks a constraint stays to be simulated all the same."""
        for record, found in zip(self.records, self._ask("bounds", self.records, BOUNDED_TOGETHER), strict=True):
            if isinstance(found, Invalid):
                record.status, record.why = "invalid", found.reason
                continue
            record.bounds = found
            record.why = next(filter(None, (constraint.hopeless(found) for constraint in self.constraints)), "")
            record.status = "broken" if record.why else "bound"
            record.least = self._least(found)
            if keep or not record.why:
                self._open.append((record.least, record.index, False))
        heapify(self._open)

    def descend(self, *, exhaustive: bool) -> None:
        """Simulate in the order of bounds until none of those left could belong to the answer."""
        if exhaustive:
            self._simulate(sorted((index for _, index, _ in self._open)))
            return
        while self._open:
            least, index, tight = heappop(self._open)
            if not self.answer.admits(least, index):
                continue
            wave = [index]
            while self._open and len(wave) < (SIMULATED_TOGETHER if tight else TIGHTENED_TOGETHER) and self._open[0][2] == tight:
                least, index, _ = heappop(self._open)
                if self.answer.admits(least, index):
                    wave.append(index)
            if tight:
                self._simulate(wave)
            else:
                self._tighten(wave)

    def _tighten(self, wave: list[int]) -> None:
        chosen = [self.records[index] for index in wave]
        for record, step_time in zip(chosen, self._ask("tight", chosen, 1), strict=True):
            if record.bounds is None:
                continue
            record.bounds = replace(record.bounds, step_time=max(record.bounds.step_time, step_time))
            record.least = self._least(record.bounds)
            heappush(self._open, (record.least, record.index, True))

    def _simulate(self, wave: list[int]) -> None:
        chosen = [self.records[index] for index in wave]
        for record, found in zip(chosen, self._ask("simulate", chosen, 1), strict=True):
            if isinstance(found, Invalid):
                record.status, record.why = "invalid", found.reason
                continue
            record.metrics = found
            record.values = tuple(objective.value(found) for objective in self.objectives)
            self._check(record, found)
            record.why = next(filter(None, (constraint.broken(found) for constraint in self.constraints)), "")
            record.status = "broken" if record.why else "worse"
            if not record.why:
                self.answer.add(record.values, record.index)

    def _check(self, record: Record, metrics: Metrics) -> None:
        """A bound that a simulation contradicts would make the search wrong."""
        bounds = record.bounds
        pairs = [(name.name, least, value) for name, least, value in zip(self.objectives, record.least, record.values, strict=True)]
        if bounds is not None:
            pairs += [
                ("step_time_s", bounds.step_time, metrics.step_time_s),
                ("peak_bytes", float(bounds.peak_memory), float(metrics.peak_bytes)),
            ]
        for name, least, value in pairs:
            if least > value + TOLERANCE * abs(value):
                raise BoundError(f"{name} of {record.candidate} is {value!r}, but its lower bound is {least!r}")

    def _least(self, bounds: Bounds) -> Values:
        return tuple(objective.least(bounds) for objective in self.objectives)

    def _ask(self, question: Question, chosen: Sequence[Record], together: int) -> list[Any]:
        """The evaluator's answers, in order."""
        cut = range(0, len(chosen), together)
        tasks = [Task(self.setup, question, [record.candidate for record in chosen[at : at + together]]) for at in cut]
        answers: list[Any] = []
        for some in map(work, tasks) if self.executor is None else self.executor.map(work, tasks):
            answers += some
            self._answered[question] += len(some)
            if self.progress is not None:
                self.progress(question, self._answered[question], len(self.records))
        return answers

    def explain(self) -> None:
        """Say of every candidate that lost without breaking a rule what it lost to."""
        kept = self.answer.kept()
        for index in kept:
            self.records[index].status = "kept"
        if not kept:
            return
        best = self.records[kept[0]]
        for record in self.records:
            if record.status == "bound":
                record.why = self._compared("at least ", record.least, best.values)
            elif record.status == "worse":
                record.why = self._compared("", record.values, best.values)

    def _compared(self, words: str, own: Values, best: Values) -> str:
        parts = []
        for objective, mine, least in zip(self.objectives, own, best, strict=True):
            more = f", {100 * (mine / least - 1):.2f} % more" if least > 0 and mine >= least else ""
            parts.append(f"{objective.name} {words}{mine:.6g}{more} (best: {least:.6g})")
        return "; ".join(parts)
