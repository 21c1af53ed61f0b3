"""Who proves bounds, by which a study passes over what cannot be among the best: `parsim.study.search`, or the caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import lru_cache
from typing import Any, Protocol

from parsim import units
from parsim.errors import InputError
from parsim.parallel.schedules import stays
from parsim.report.economics import Busy, bill
from parsim.run import economics_of, step_of
from parsim.scenario.built import Built
from parsim.scenario.neighbours import Neighbours
from parsim.scenario.scenario import Scenario
from parsim.study.search.bounds import Bounder
from parsim.study.sweep.candidates import Place, stamp
from parsim.study.sweep.choice import Question, Work
from parsim.study.sweep.crews import Crew
from parsim.study.sweep.evaluation import ONE_AT_A_TIME, refuse_foreign
from parsim.study.sweep.least import Least

Settings = Mapping[str, Any]
TOGETHER = 200
"""points of one task; neighbours share what they cost, so a task takes consecutive ones"""


class Prover(Protocol):
    """Knows lower bounds of what a simulation would find."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """What it can say besides, from the cheapest to the dearest."""

    def bounds(self, places: Sequence[Place]) -> Iterator[tuple[Place, Least | None]]:
        """Cheap ones of many, as they come; None where there are none."""
        ...

    def work(self, question: Question, about: Sequence[tuple[Place, Least]]) -> Work:
        """What a worker does to answer: the same or better bounds of each."""
        ...


class Given:
    """Bounds by a function of the caller."""

    questions: tuple[Question, ...] = ()

    def __init__(self, bound: Callable[[Place], Least | None]) -> None:
        self._bound = bound

    def bounds(self, places: Sequence[Place]) -> Iterator[tuple[Place, Least | None]]:
        """See `Prover.bounds`."""
        return ((place, self._bound(place)) for place in places)

    def work(self, question: Question, about: Sequence[tuple[Place, Least]]) -> Work:
        """See `Prover.work`: there are no others."""
        raise ValueError(f"bounds by a function of the caller do not answer {question!r}")


class Proved:
    """Those of `parsim.study.search`, by all workers."""

    questions: tuple[Question, ...] = ("longest", "chained", "step")

    def __init__(self, base: Scenario, crew: Crew) -> None:
        self.base, self.crew = base, crew

    def bounds(self, places: Sequence[Place]) -> Iterator[tuple[Place, Least | None]]:
        """See `Prover.bounds`. Neighbours have most in common, so each worker has a part of the range, and helps others when it is done."""
        chunks = [places[at : at + TOGETHER] for at in range(0, len(places), TOGETHER)]
        each = -(-len(chunks) // self.crew.workers)
        parts = [deque(chunks[at : at + each]) for at in range(0, len(chunks), each)] if chunks else []
        asked = {self._submit(part[0]): (part, part.popleft()) for part in parts}
        died = False
        while asked:
            for future in wait(asked, return_when=FIRST_COMPLETED).done:
                part, chunk = asked.pop(future)
                answers = self._answers(future)
                died |= answers is None
                yield from zip(chunk, answers or [None] * len(chunk), strict=True)
                source = part or max(parts, key=len)
                if source:
                    chunk = source.popleft() if source is part else source.pop()
                    asked[self._submit(chunk)] = (source, chunk)
        if died:
            self.crew.renew()

    def _submit(self, chunk: Sequence[Place]) -> Future[Any]:
        return self.crew.submit(bounds_of, self.base, [place.settings for place in chunk], stamp())

    def _answers(self, future: Future[Any]) -> list[Least | None] | None:
        """None where the worker died: whoever killed it is found by simulating one by one, not here."""
        try:
            found: list[Least | None] = future.result()
        except Exception as error:
            if not self.crew.died(error):
                raise
            return None
        return found

    def work(self, question: Question, about: Sequence[tuple[Place, Least]]) -> Work:
        """See `Prover.work`."""
        return tighter, (self.base, question, [(place.settings, least) for place, least in about])


def bounds_of(base: Scenario, chunk: Sequence[Settings], expected: tuple[str, str]) -> list[Least | None]:
    """Lower bounds of the scenarios that differ from `base` by some settings.

    Raises:
        ForeignWorkerError: this process has not the parsim that asks.
    """
    refuse_foreign(expected)
    with ONE_AT_A_TIME:
        neighbours, bounder = _tools(_Same(base))
        return [_bounded(settings, neighbours, bounder) for settings in chunk]


def _bounded(settings: Settings, neighbours: Neighbours, bounder: Bounder) -> Least | None:
    try:
        built = neighbours.built(settings)
        pipeline = built.parallelism.pipeline
        if built.parallelism.data.custom is not None:
            return None  # code of the user's, of which nothing is proved
        if pipeline.schedule == "zb-v" or stays(pipeline.slots):
            return None  # bounds take every boundary between stages for a message
        bounds = bounder.bounds(built)
    except InputError:
        return None  # the simulation says what is wrong
    needed, there = units.format_bytes(bounds.peak_memory), units.format_bytes(bounds.capacity)
    full = f"it needs at least {needed} of {there}" if bounds.surely_full else ""
    money = {} if full else _bill(built, bounds.step_time)
    return Least(bounds.step_time, bounds.peak_memory, full, bounds.samples, bounds.tokens, bounds.gpus, money)


def tighter(base: Scenario, question: Question, about: Sequence[tuple[Settings, Least]], expected: tuple[str, str]) -> list[Least | None]:
    """Better bounds of each, or with ``step`` the simulated time of its step without a report; None: nothing better is known.

    Raises as `bounds_of`.
    """
    refuse_foreign(expected)
    with ONE_AT_A_TIME:
        neighbours, bounder = _tools(_Same(base))
        asked = {"longest": bounder.tight, "chained": bounder.chained, "step": lambda built: step_of(built).step_time}[question]
        return [_better(neighbours, settings, least, asked, exact=question == "step") for settings, least in about]


def _better(neighbours: Neighbours, settings: Settings, least: Least, asked: Callable[[Built], float], *, exact: bool) -> Least | None:
    try:
        built = neighbours.built(settings)
        found = asked(built)
    except Exception:
        if exact:
            return None  # whatever is wrong is wrong with its row, too, which says it
        raise
    step_time = found if exact else max(least.step_time, found)
    return least._replace(step_time=step_time, bill=_bill(built, step_time), exact=exact)


def _bill(built: Built, step_time: float) -> Mapping[str, float]:
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
