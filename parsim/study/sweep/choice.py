"""Which candidate is simulated next: all in order, or those whose proven bound may still beat the best."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from parsim.study.sweep.candidates import Candidate, Place
from parsim.study.sweep.row import Row

Bound = Callable[[Candidate], tuple[float, float] | None]
"""proven lower bounds of a candidate's step time [s] and peak memory [B]; None where there are none"""
SLACK = 1e-9
"""relative; a bound must be worse by more than rounding"""


class Choice(Protocol):
    """Says what to simulate, and hears what came of it."""

    def take(self, count: int) -> list[Place]:
        """The next ones, at most `count`; none: there is nothing left to do."""

    def tell(self, place: Place, row: Row) -> None:
        """What came of one."""

    @property
    def passed(self) -> Mapping[int, str]:
        """Number of a place -> why it was never simulated."""


class Everything:
    """All candidates in order."""

    passed: Mapping[int, str] = {}

    def __init__(self, places: Iterator[Place]) -> None:
        self._places = places

    def take(self, count: int) -> list[Place]:
        found: list[Place] = []
        for place in self._places:
            found.append(place)
            if len(found) == count:
                break
        return found

    def tell(self, place: Place, row: Row) -> None:
        """Nothing follows from it."""


class Bounded:
    """Those that may still be among the best `top`, the most promising first; what is passed over is proved worse.

    Exact: a candidate is left out only where its lower bound of the step time is above the worst of the best `top` that keep all
    constraints, so the best `top` rows are those of simulating everything.
    """

    def __init__(self, places: Iterator[Place], bound: Bound, accepts: Callable[[Place, Row], float | None], top: int) -> None:
        bounds = [(bound(place.candidate) if place.candidate is not None else None, place) for place in places]
        self._waiting = sorted(((0.0 if one is None else one[0], place.number, place) for one, place in bounds), key=lambda item: item[:2])
        self._accepts, self._top = accepts, top
        self._best: list[float] = []
        self.passed: dict[int, str] = {}

    def take(self, count: int) -> list[Place]:
        found: list[Place] = []
        while self._waiting and len(found) < count:
            low, _, place = self._waiting[0]
            if len(self._best) == self._top and low > self._best[-1] * (1.0 + SLACK):
                for lower, rest, _ in self._waiting:
                    self.passed[rest] = f"step time is at least {lower:.6g} s, the best {self._top} take at most {self._best[-1]:.6g} s"
                self._waiting = []
                break
            self._waiting.pop(0)
            found.append(place)
        return found

    def tell(self, place: Place, row: Row) -> None:
        score = self._accepts(place, row)
        if score is not None:
            insort(self._best, score)
            del self._best[self._top :]
