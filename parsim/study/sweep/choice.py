"""What is asked about which candidate next: a row of all in order, or of those whose proven bounds may still beat the best."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import fsum, inf
from typing import Any, Protocol, cast

from parsim.errors import ParsimError
from parsim.study.search.search import Best, Front, Search, Values, dominates
from parsim.study.sweep.prover import SLACK, UNTIMED, Least, Prover, ProverQuestion, least_of
from parsim.study.sweep.rows import Row, SearchObjective, tie_breakers, ties_of
from parsim.study.sweep.space import Place, evaluate_all, lost
from parsim.study.variants import Answered, Queue, QueueJob, Work
from parsim.study.workers import at_work, stamp

Look = Callable[[Place], tuple[Place, Row | None] | None]


class CandidateQueue(Queue[Place], Protocol):
    """A queue whose answers are rows, or bounds (None: there are none), and what it passed over."""

    @property
    def passed(self) -> Mapping[int, str]:
        """Number of a place -> why it has no row."""

    @property
    def judged(self) -> frozenset[int]:
        """Those of them whose step was simulated."""

    @property
    def likely(self) -> float | None:
        """The least score of the first objective among those whose step was simulated."""


def rows_of(jobs: Sequence[QueueJob[Place]]) -> Work:
    """The work of simulating."""
    return at_work, (stamp(), evaluate_all, [(job.place.candidate, job.place.settings) for job in jobs])


class Everything:
    """The rows of all candidates in order."""

    passed: Mapping[int, str] = {}
    judged: frozenset[int] = frozenset()
    likely: float | None = None

    def __init__(self, places: Iterator[Place]) -> None:
        self._places = places

    def take(self, sizes: Mapping[str, int]) -> list[QueueJob[Place]]:
        return [QueueJob("row", place) for place in islice(self._places, sizes["row"])]

    def work(self, jobs: Sequence[QueueJob[Place]]) -> Work:
        return rows_of(jobs)

    def tell(self, answered: Sequence[Answered[Place]]) -> None:
        """Nothing follows from rows."""

    def lost(self, job: QueueJob[Place], reason: str) -> Row:
        return lost(job.place, reason)


@dataclass
class _Group:
    """The seeds of one candidate, which are ranked by their mean; a single place where there are no seeds."""

    places: list[Place]
    level: int = 0
    """of the questions"""
    looked: bool = False
    awaited: set[int] = field(default_factory=set)
    values: dict[int, Values | None] = field(default_factory=dict)
    """of places that have a row; None: a constraint is not kept"""


class BoundedQueue:
    """Those that may still be among the best `top`, or on the front of several objectives, the most promising first.

    Exact: what has no row is proved worse, or (with `must_fit`) does not fit, so the best `top` rows (the front) are those of simulating
    everything. Whoever comes up with a cheap bound is asked for a better one, then for the exact time of its step; only whoever is
    still among the best then is asked for a row. `values` are a row's scores, None if it breaks a constraint. `look` completes a place
    when it is its turn: with its candidate, and with its row if that is there already; None if there is nothing to simulate.
    """

    def __init__(
        self,
        places: Sequence[Place],
        prover: Prover,
        objectives: Sequence[SearchObjective],
        values: Callable[[Place, Row], Values | None],
        top: int,
        *,
        look: Look = lambda place: (place, None),
        must_fit: bool = True,
        seeds_of: Callable[[Place], object] = lambda place: place.number,
    ) -> None:
        self._prover, self._objectives, self._values, self._look, self._must_fit = prover, tuple(objectives), values, look, must_fit
        groups: dict[object, _Group] = {}
        for place in places:
            groups.setdefault(seeds_of(place), _Group([])).places.append(place)
        self._questions: tuple[ProverQuestion, ...] = ("row",)
        if (len(groups) > top or len(objectives) > 1) and any(one.metric.name not in UNTIMED for one in objectives):
            self._questions = (*prover.questions, "row")  # else better bounds of the step decide nothing
        self._groups = {group.places[0].number: group for group in groups.values()}
        self._number = {place.number: number for number, group in self._groups.items() for place in group.places}
        self._ranked_by = (*self._objectives, *tie_breakers(self._objectives))
        self._answer = Best(top) if len(self._objectives) == 1 else Front()
        self._search = Search(self._answer)
        self._least: dict[int, Least] = {}
        self._full: dict[int, str] = {}
        self._kept: dict[int, Values] = {}
        self._ready: deque[QueueJob[Place]] = deque()
        self._proved = False
        self.likely: float | None = None

    # -- bounds -------------------------------------------------------------------------------------------------------

    def prove(self, watch: Callable[[Iterable[Any], int], Iterable[Any]] = lambda found, _: found) -> None:
        """Bound everything; `watch` is given the bounds as they come, and how many there will be."""
        self._proved = True
        places = [place for group in self._groups.values() for place in group.places]
        for place, least in watch(self._prover.bounds(places), len(places)):
            if least is not None:
                self._least[place.number] = least
        for number, group in self._groups.items():
            full = {place.number: proven.full for place in group.places if (proven := self._least.get(place.number)) and proven.full}
            if full and self._must_fit:
                self._full |= {place.number: f"does not fit: {full.get(place.number, 'nor does another seed')}" for place in group.places}
                continue
            if any(place.number not in self._least for place in group.places):
                group.level = len(self._questions) - 1
            self._search.enter(number, self._bound(group))

    def _bound(self, group: _Group) -> Values:
        """What the means over the seeds do not fall below; before they are looked at, any of them may turn out not to count."""
        bounds = [self._bound_of(place) for place in group.places]
        mean = group.looked and len(bounds) > 1
        return tuple(fsum(column) / len(column) if mean else min(column) for column in zip(*bounds, strict=True))

    def _bound_of(self, place: Place) -> Values:
        least = self._least.get(place.number)
        return tuple(-inf if least is None else least_of(one, least) for one in self._ranked_by)

    # -- questions ----------------------------------------------------------------------------------------------------

    def take(self, sizes: Mapping[str, int]) -> list[QueueJob[Place]]:
        if not self._proved:
            self.prove()
        jobs: list[QueueJob[Place]] = []
        while not jobs or len(jobs) < sizes[jobs[0].question]:
            if not self._ready:
                number = self._search.next()
                if number is None:
                    break
                self._ask(number, self._groups[number])
            elif jobs and self._ready[0].question != jobs[0].question:
                break
            else:
                jobs.append(self._ready.popleft())
        return jobs

    def _ask(self, number: int, group: _Group) -> None:
        """The next question about every place of a group; what is there already is no question."""
        question = self._questions[group.level]
        if question in ("step", "row") and not group.looked:
            group.looked = True
            group.places = [self._looked(place, group) for place in group.places]
        left = [place for place in group.places if place.number not in group.values]
        group.awaited = {place.number for place in left}
        self._ready += [QueueJob(question, place) for place in left]
        if not left:
            self._settle(number, group)

    def _looked(self, place: Place, group: _Group) -> Place:
        """The place with its candidate; what is known of it already is heard."""
        looked = self._look(place)
        if looked is None:
            group.values[place.number] = None
            return place
        if looked[1] is not None:
            self._heard(looked[0], looked[1], group)
        return looked[0]

    def work(self, jobs: Sequence[QueueJob[Place]]) -> Work:
        question = jobs[0].question
        if question == "row":
            return rows_of(jobs)
        return self._prover.work(cast(ProverQuestion, question), [(job.place, self._least[job.place.number]) for job in jobs])

    def lost(self, job: QueueJob[Place], reason: str) -> Row | None:
        return None if job.place.candidate is None else lost(job.place, reason)  # better bounds are not worth a worker

    def tell(self, answered: Sequence[Answered[Place]]) -> None:
        for job, answer in answered:
            self._tell(job, answer)

    def _tell(self, job: QueueJob[Place], answer: Any) -> None:
        number = self._number[job.place.number]
        group = self._groups[number]
        group.awaited.discard(job.place.number)
        if isinstance(answer, Least):
            before = self._least[job.place.number].step_time
            if answer.exact and answer.step_time < before * (1.0 - SLACK):
                self._refute(job.place, f"takes {answer.step_time!r} s", f"take at least {before!r} s")
            self._least[job.place.number] = answer
            if answer.exact:
                score = self._bound_of(job.place)[0]
                self.likely = score if self.likely is None else min(self.likely, score)
        elif answer is not None:
            self._heard(job.place, answer, group)
        if group.awaited:
            return
        if job.question == "row" or all(place.number in group.values for place in group.places):
            self._settle(number, group)
        else:
            group.level += 1
            exact = all(place.number in group.values or self._least[place.number].exact for place in group.places)
            self._search.raised(number, self._bound(group), exact=exact)

    def _settle(self, number: int, group: _Group) -> None:
        """All rows of a group are there."""
        kept = [values for place in group.places if (values := group.values[place.number]) is not None]
        if len(kept) < len(group.places):
            self._search.known(number, None)
            return
        self._kept[number] = tuple(fsum(column) / len(column) for column in zip(*kept, strict=True))
        self._search.known(number, self._kept[number])

    def _heard(self, place: Place, row: Row, group: _Group) -> None:
        time, memory = row.get("step_time_s"), row.get("peak_bytes")
        if (least := self._least.get(place.number)) is not None:
            if time is not None and time < least.step_time * (1.0 - SLACK):
                self._refute(place, f"takes {time!r} s", f"take at least {least.step_time!r} s")
            if memory is not None and memory < least.memory:
                self._refute(place, f"needs {memory!r} B", f"need at least {least.memory!r} B")
        values = self._values(place, row)
        group.values[place.number] = None if values is None else (*values, *ties_of(self._objectives, row))

    @staticmethod
    def _refute(place: Place, found: str, proved: str) -> None:
        """A bound that a simulation contradicts makes the whole search wrong."""
        key = place.candidate.key if place.candidate is not None else f"point {place.number}"
        raise ParsimError(f"{key} {found}, but was proved to {proved}: please report it")

    # -- reasons ------------------------------------------------------------------------------------------------------

    @property
    def judged(self) -> frozenset[int]:
        groups = [self._groups[number] for number in self._search.left]
        left = (place.number for group in groups for place in group.places if place.number not in group.values)
        return frozenset(number for number in left if number in self._least and self._least[number].exact)

    @property
    def passed(self) -> Mapping[int, str]:
        reasons = dict(self._full)
        for number, least in self._search.left.items():
            group = self._groups[number]
            reasons |= dict.fromkeys(
                (place.number for place in group.places if place.number not in group.values), self._worse(least, group)
            )
        return reasons

    def _worse(self, least: Values, group: _Group) -> str:
        """Why a group is passed over: its bounds, and what beats them."""
        exact = all(place.number in group.values or self._least[place.number].exact for place in group.places)
        said = " and ".join(map(self._said, self._objectives, least))
        proved = "its step was simulated" if exact else "proved worse"
        if len(self._objectives) > 1:
            rival = next(values for _, values in self._kept.items() if dominates(values, least))
            has = " and ".join(one.metric.shown(one.figure(value)) for one, value in zip(self._objectives, rival, strict=True))
            return f"{proved}: {said}, a row has {has}"
        kept = self._answer.kept()
        best = "the best has" if len(kept) == 1 else f"the best {len(kept)} have"
        limit = self._objectives[0].metric.shown(self._objectives[0].figure(self._kept[kept[-1]][0]))
        shorter = " and a shorter step" if len(least) > 1 and least[0] == self._kept[kept[-1]][0] else ""
        return f"{proved}: {said}, {best} {limit}{shorter}"

    @staticmethod
    def _said(one: SearchObjective, value: float) -> str:
        return f"{one.metric.title} is at {'most' if one.most else 'least'} {one.metric.shown(one.figure(value))}"
