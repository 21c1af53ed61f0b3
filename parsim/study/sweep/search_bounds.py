"""The bounds of `parsim.study.search`, by which a study passes over what cannot be among the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, Protocol

from parsim import units
from parsim.errors import InputError
from parsim.report.economics import Busy, bill
from parsim.run import economics_of
from parsim.scenario.neighbours import Neighbours
from parsim.scenario.scenario import Scenario
from parsim.study.search.bounds import Bounder
from parsim.study.sweep.candidates import Place, stamp
from parsim.study.sweep.choice import Least
from parsim.study.sweep.crews import Crew
from parsim.study.sweep.evaluation import refuse_foreign

Settings = Mapping[str, Any]
TOGETHER = 200
"""points of one task; neighbours share what they cost, so a task takes consecutive ones"""


class Prover(Protocol):
    """Knows lower bounds of what a simulation would find."""

    def bounds(self, places: Sequence[Place]) -> Iterator[Least | None]:
        """Cheap ones of many, in order; None where there are none."""
        ...

    def tighter(self, place: Place, least: Least) -> Least:
        """The same or better ones of one, at a higher price."""
        ...


class Given:
    """Bounds by a function of the caller."""

    def __init__(self, bound: Callable[[Place], Least | None]) -> None:
        self._bound = bound

    def bounds(self, places: Sequence[Place]) -> Iterator[Least | None]:
        """See `Prover.bounds`."""
        return map(self._bound, places)

    def tighter(self, place: Place, least: Least) -> Least:
        """There are no others."""
        return least


class Proved:
    """Those of `parsim.study.search`, the cheap ones by all workers."""

    def __init__(self, base: Scenario, crew: Crew) -> None:
        self.base, self.crew = base, crew

    def bounds(self, places: Sequence[Place]) -> Iterator[Least | None]:
        """See `Prover.bounds`."""
        asked = [[place.settings for place in places[at : at + TOGETHER]] for at in range(0, len(places), TOGETHER)]
        for chunk, future in [(chunk, self.crew.submit(bounds_of, self.base, chunk, stamp())) for chunk in asked]:
            yield from self._answer(chunk, future)

    def _answer(self, chunk: Sequence[Settings], future: Future[Any]) -> list[Least | None]:
        try:
            found: list[Least | None] = future.result()
        except Exception as error:
            if not self.crew.died(error):
                raise
            self.crew.renew()
            return [None] * len(chunk)  # whoever killed it is found by simulating one by one, not here
        return found

    def tighter(self, place: Place, least: Least) -> Least:
        """See `Prover.tighter`."""
        neighbours, bounder = _tools(_Same(self.base))
        built = neighbours.built(place.settings)
        step_time = max(least.step_time, bounder.tight(built))
        return least._replace(step_time=step_time, bill=_bill(built, step_time))


def bounds_of(base: Scenario, chunk: Sequence[Settings], expected: tuple[str, str]) -> list[Least | None]:
    """Lower bounds of the scenarios that differ from `base` by some settings.

    Raises:
        ForeignWorkerError: this process has not the parsim that asks.
    """
    refuse_foreign(expected)
    neighbours, bounder = _tools(_Same(base))
    found: list[Least | None] = []
    for settings in chunk:
        try:
            built = neighbours.built(settings)
            if built.parallelism.data.own is not None:
                found.append(None)  # code of the user's, of which nothing is proved
                continue
            bounds = bounder.bounds(built)
        except InputError:
            found.append(None)  # the simulation says what is wrong
            continue
        needed, there = units.format_bytes(bounds.peak_memory), units.format_bytes(bounds.capacity)
        full = f"it needs at least {needed} of {there}" if bounds.surely_full else ""
        money = {} if full else _bill(built, bounds.step_time)
        found.append(Least(bounds.step_time, bounds.peak_memory, full, bounds.samples, bounds.tokens, bounds.gpus, money))
    return found


def _bill(built: Any, step_time: float) -> Mapping[str, float]:
    """Time, energy and money never fall when a step takes longer or a GPU does more in it; so these are the least there can be."""
    economics = economics_of(built)
    if economics is None:
        return {}
    return {name: value for name, value in bill(economics, step_time, Busy()).metrics().items() if value is not None}


class _Same:
    """A scenario as a key: of equal content, though it came through a pipe."""

    def __init__(self, base: Scenario) -> None:
        self.base, self._hash = base, base.hash()

    def __hash__(self) -> int:
        return hash(self._hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._hash == self._hash


@lru_cache(maxsize=2)
def _tools(same: _Same) -> tuple[Neighbours, Bounder]:
    """What neighbours have in common is found once per process."""
    return Neighbours(same.base), Bounder()
