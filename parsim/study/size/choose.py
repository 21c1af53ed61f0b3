"""The fastest strategy among many, exactly: proven bounds say which need no simulation.

A candidate is simulated only if its bound is below the fastest one found and below the limit; bounds that are lower bounds of
what the simulation finds make the answer the same as if all were simulated (a test tries).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar

from parsim.study.search.search import Best, Search
from parsim.study.size.strategies import Strategy

R_co = TypeVar("R_co", bound="Simulated", covariant=True)


class Simulated(Protocol):
    """What a simulation found."""

    @property
    def step_time(self) -> float:
        """[s]"""
        ...

    @property
    def fits(self) -> bool:
        """In memory."""
        ...


@dataclass(frozen=True, slots=True)
class Bound:
    """What no simulation is better than."""

    step_time: float
    """[s]"""
    lacks: int = 0
    """bytes that are surely missing; 0: it may fit"""
    refused: str = ""
    """why there is nothing to simulate"""


class Judge(Protocol[R_co]):
    """Knows bounds, and simulates."""

    def bound(self, strategy: Strategy) -> Bound:
        """A quick bound."""
        ...

    def tight(self, strategy: Strategy) -> float:
        """A better, slower bound of the step time [s]."""
        ...

    def simulate(self, strategy: Strategy) -> R_co:
        """What it is. Raises nothing for a strategy whose bound was not refused."""
        ...


@dataclass
class Tally:
    """What became of the candidates."""

    considered: int = 0
    refused: int = 0
    """model, machine and strategy do not go together"""
    too_large: int = 0
    """surely do not fit in memory"""
    too_slow: int = 0
    """surely slower than the limit, or than the fastest found"""
    simulated: int = 0
    did_not_fit: int = 0
    """of those simulated"""
    reasons: dict[str, int] = field(default_factory=dict)
    """why candidates were refused -> how many"""

    def add(self, other: Tally) -> None:
        """Count another's in."""
        for name in ("considered", "refused", "too_large", "too_slow", "simulated", "did_not_fit"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


@dataclass
class Choice(Generic[R_co]):
    """The fastest that fits, and how it was found."""

    strategy: Strategy | None = None
    found: R_co | None = None
    tally: Tally = field(default_factory=Tally)
    least_bound: float = inf
    """of the strategies that may fit [s]: none of them is faster"""
    least_lack: int | None = None
    """bytes that the nearest of those that surely do not fit lacks; None: there is none"""


def fastest(strategies: Iterable[Strategy], judge: Judge[R_co], limit: float = inf, *, exhaustive: bool = False) -> Choice[R_co]:
    """The strategy with the shortest step that fits and is not above `limit` [s]; ties go to the first.

    `exhaustive` simulates everything that is not refused.
    """
    choice: Choice[R_co] = Choice()
    tally = choice.tally
    search = Search(Best(limit=limit))
    entered: list[Strategy] = []
    for strategy in strategies:
        tally.considered += 1
        bound = judge.bound(strategy)
        if bound.refused:
            tally.refused += 1
            tally.reasons[bound.refused] = tally.reasons.get(bound.refused, 0) + 1
        elif bound.lacks and not exhaustive:
            tally.too_large += 1
            choice.least_lack = bound.lacks if choice.least_lack is None else min(choice.least_lack, bound.lacks)
        else:
            choice.least_bound = min(choice.least_bound, bound.step_time)
            search.enter(len(entered), (-inf if exhaustive else bound.step_time,))
            entered.append(strategy)
    tight: set[int] = set()
    results: dict[int, R_co] = {}
    while (number := search.next()) is not None:
        strategy = entered[number]
        if number not in tight and not exhaustive:
            tight.add(number)
            search.raised(number, (judge.tight(strategy),))
            continue
        found = results[number] = judge.simulate(strategy)
        tally.simulated += 1
        tally.did_not_fit += not found.fits
        search.known(number, (found.step_time,) if found.fits else None)
    tally.too_slow = len(search.left)
    for number in search.answer.kept():
        choice.strategy, choice.found = entered[number], results[number]
    return choice
