"""A candidate judged: whether it is valid, what bounds say, what a simulation says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from os import getpid
from typing import Protocol

from parsim.errors import InputError, ParsimError
from parsim.report.assemble import assemble
from parsim.report.report import Report
from parsim.run import clock_of, execute
from parsim.scenario.built import Built
from parsim.scenario.neighbours import Neighbours
from parsim.scenario.scenario import Scenario
from parsim.study.search.bounds import Bounder, Bounds
from parsim.study.search.candidate import Candidate
from parsim.study.search.objective import Metrics


@dataclass(frozen=True, slots=True)
class Invalid:
    """A candidate that cannot be simulated, and why: the first finding."""

    reason: str


class Evaluator(Protocol):
    """Answers about candidates; one lives in every process of a search."""

    def bounds(self, candidate: Candidate) -> Bounds | Invalid:
        """Cheap bounds."""

    def tight(self, candidate: Candidate) -> float:
        """A better lower bound of the step time [s]; the cheap one if there is none."""

    def simulate(self, candidate: Candidate) -> Metrics | Invalid:
        """The truth."""


class ScenarioEvaluator:
    """Evaluates candidates around a scenario."""

    def __init__(self, base: Scenario) -> None:
        self.neighbours = Neighbours(base)
        self.bounder = Bounder()

    def bounds(self, candidate: Candidate) -> Bounds | Invalid:
        """See `Evaluator.bounds`."""
        try:
            return self.bounder.bounds(self._built(candidate))
        except InputError as error:
            return Invalid(error.findings[0].message)

    def tight(self, candidate: Candidate) -> float:
        """See `Evaluator.tight`."""
        return self.bounder.tight(self._built(candidate))

    def simulate(self, candidate: Candidate) -> Metrics | Invalid:
        """See `Evaluator.simulate`."""
        try:
            return metrics_of(self._built(candidate))
        except InputError as error:
            return Invalid(error.findings[0].message)
        except ParsimError as error:
            return Invalid(str(error).splitlines()[0])

    def _built(self, candidate: Candidate) -> Built:
        return self.neighbours.built(candidate.mapping())


def metrics_of(built: Built) -> Metrics:
    """The metrics of a built scenario by simulating it: the one place where a search runs a simulation.

    They are those of `parsim.run.simulate`'s report; what only a reader of the report wants is left out.
    """
    measured = assemble(
        execute(built),
        built.cluster,
        clock_of(built),
        reserve=built.memory_reserve,
        bytes_per_parameter=built.bytes_per_parameter,
        flop_convention=built.report.flop_convention,
        training_tokens=built.tokens,
        steps_to_train=built.steps_to_train,
    )
    report = Report(measured)
    samples = report.samples_per_s
    return Metrics(
        step_time_s=report.step_time,
        samples_per_s=float("inf") if samples is None else samples,
        tokens_per_s=report.tokens_per_s,
        mfu=report.mfu,
        peak_bytes=report.peak_memory,
        capacity_bytes=measured.memory.capacity_bytes - measured.memory.reserve_bytes,
        fits=report.fits,
        gpus=measured.ranks.total,
    )


_numbers = count()


@dataclass(frozen=True)
class Setup:
    """What every process needs to make its evaluator; sent with each piece of work, used once per process."""

    base: Scenario
    key: tuple[int, int] = field(default_factory=lambda: (getpid(), next(_numbers)))

    def evaluator(self) -> Evaluator:
        """A new evaluator."""
        return ScenarioEvaluator(self.base)


@dataclass(frozen=True, slots=True)
class Task:
    """Candidates that one process works on, one after the other."""

    setup: Setup
    question: str
    """bounds | tight | simulate"""
    candidates: Sequence[Candidate]


_evaluators: dict[tuple[int, int], Evaluator] = {}


def work(task: Task) -> list[object]:
    """The answers, in order. The evaluator of the last search stays for the next task."""
    if task.setup.key not in _evaluators:
        _evaluators.clear()
        _evaluators[task.setup.key] = task.setup.evaluator()
    return [getattr(_evaluators[task.setup.key], task.question)(candidate) for candidate in task.candidates]
