"""A candidate judged: whether it is valid, what bounds say, what a simulation says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from parsim.errors import InputError, ParsimError
from parsim.run import simulate
from parsim.scenario.built import Built
from parsim.scenario.neighbours import Neighbours
from parsim.scenario.scenario import Scenario
from parsim.study.search.bounds import Bounder, Bounds
from parsim.study.search.candidate import Candidate
from parsim.study.search.objective import Metrics

MORE = ("cost", "energy_J", "time_to_train_s", "gpu_hours", "goodput")
"""keys of a report that are metrics where the scenario has what they need"""


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
            return metrics_of(self.neighbours.scenario(candidate.mapping()))
        except InputError as error:
            return Invalid(error.findings[0].message)
        except ParsimError as error:
            return Invalid(str(error).splitlines()[0])

    def _built(self, candidate: Candidate) -> Built:
        return self.neighbours.built(candidate.mapping())


def metrics_of(scenario: Scenario) -> Metrics:
    """The metrics of a scenario by simulating it: the one place where a search runs a simulation."""
    report = simulate(scenario)
    memory = report.measured.memory
    samples = report.measured.model.samples_per_step
    return Metrics(
        step_time_s=report.step_time,
        samples_per_s=samples / report.step_time if report.step_time else float("inf"),
        tokens_per_s=report.tokens_per_s,
        mfu=report.mfu,
        peak_bytes=report.peak_memory,
        capacity_bytes=memory.capacity_bytes - memory.reserve_bytes,
        fits=report.fits,
        gpus=report.measured.ranks.total,
        more={},
    )


@dataclass(frozen=True)
class Setup:
    """What every process needs to make its evaluator; sent with each piece of work, used once per process."""

    base: Scenario
    key: int = field(default_factory=lambda: next(_numbers))

    def evaluator(self) -> Evaluator:
        """A new evaluator."""
        return ScenarioEvaluator(self.base)


def _counter() -> object:
    from itertools import count
    from os import getpid

    return (getpid() * 1_000_000 + number for number in count())


_numbers = _counter()


@dataclass(frozen=True, slots=True)
class Task:
    """Candidates that one process works on, one after the other."""

    setup: Setup
    question: str
    """bounds | tight | simulate"""
    candidates: Sequence[Candidate]


_evaluators: dict[int, Evaluator] = {}


def work(task: Task) -> list[object]:
    """The answers, in order. The evaluator of the last search stays for the next task."""
    if task.setup.key not in _evaluators:
        _evaluators.clear()
        _evaluators[task.setup.key] = task.setup.evaluator()
    return [getattr(_evaluators[task.setup.key], task.question)(candidate) for candidate in task.candidates]
