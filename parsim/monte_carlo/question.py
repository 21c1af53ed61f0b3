"""Which runs of a disturbed step are asked for: a run's number and the causes that are on. The same question always has the same answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class SampledStep(Protocol):
    """What came of one run."""

    @property
    def step_time(self) -> float:
        """[s]"""

    @property
    def slowest(self) -> int:
        """The rank that holds the others up; -1: none."""


class Sampler(Protocol):
    """Gives the step of a run; the same number has the same draws, whatever other causes are on."""

    @property
    def causes(self) -> frozenset[str]:
        """Those that are on in the scenario."""

    @property
    def by_events(self) -> bool:
        """Whether runs are made one by one; else together, as arrays."""

    @property
    def method(self) -> str:
        """How a run is found."""

    def answers(self, asked: Iterable[tuple[int, Iterable[str]]]) -> Collection[SampledStep]:
        """The steps of runs, each with some causes."""


class Sampled(NamedTuple):
    """The answer to a question."""

    step_time: float
    """[s]"""
    slowest: int
    """-1: none"""


@dataclass(frozen=True, slots=True)
class RunQuestion:
    """One run with some causes on."""

    number: int
    """of the run"""
    causes: tuple[str, ...]
    """sorted"""

    @property
    def key(self) -> str:
        """The question as text, the same in every process."""
        return f"{self.number} {'+'.join(self.causes)}"


def ask(causes: Iterable[str], runs: Iterable[int]) -> Iterator[RunQuestion]:
    """The questions of so many runs with these causes on."""
    ordered = tuple(sorted(causes))
    return (RunQuestion(number, ordered) for number in runs)


def answers(sampler: Sampler, questions: Iterable[RunQuestion]) -> list[Sampled]:
    """What a sampler says to questions."""
    found = sampler.answers((one.number, one.causes) for one in questions)
    return [Sampled(float(one.step_time), int(one.slowest)) for one in found]
