"""What bounds say of a candidate, and who proves them: `parsim.study.search`, or the caller.

By bounds a study passes over what cannot be among the best.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from typing import Any, Literal, NamedTuple, Protocol, cast

from parsim import units
from parsim.errors import InputError
from parsim.parallel.schedules import UNBOUNDED, stays
from parsim.report.economics import Busy, bill
from parsim.run import economics_of, step_of
from parsim.scenario.built import Built
from parsim.scenario.neighbours import Neighbours
from parsim.scenario.scenario import Scenario
from parsim.study.search.bounds import Bounder
from parsim.study.sweep.rows import SearchObjective
from parsim.study.sweep.space import Place
from parsim.study.variants import Answered, QueueJob, Runner, Work
from parsim.study.workers import Crew, at_work, stamp

Settings = Mapping[str, Any]
ProverQuestion = Literal["longest", "chained", "step", "row"]
"""better bounds | even better ones | the exact time of its step, without a report | its row"""
QUESTIONS: tuple[ProverQuestion, ...] = ("longest", "chained", "step", "row")
_MICRO_BATCH = "training.micro_batch"
TOGETHER = 200
"""points of one task; neighbours share what they cost, so a task takes consecutive ones"""


SLACK = 1e-9
"""relative; a bound must be worse by more than rounding"""


class Least(NamedTuple):
    """What no simulation of a candidate falls below."""

    step_time: float
    """[s]"""
    memory: float = 0.0
    """of the fullest device [B]"""
    full: str = ""
    """why it surely does not fit"""
    samples: float | None = None
    """exactly, per step"""
    tokens: float | None = None
    """the same"""
    gpus: float | None = None
    """the same"""
    bill: Mapping[str, float] = {}
    """time to train, GPU-hours, money and energy, by the names of `parsim.report.economics.METRICS`"""
    exact: bool = False
    """the step was simulated: its time is no bound"""
    larger_full: bool = False
    """it does not fit, nor does it with larger micro-batches and as many fewer of them"""


Bound = Callable[[Place], Least | None]
"""proven lower bounds of a candidate; None where there are none"""

BILLED = (
    "time_to_train_s", "gpu_hours", "gpu_hours_billed", "cost_to_train", "cost_per_step", "cost_per_million_tokens",
    "cost_per_million_samples", "energy_J", "energy_per_step_J", "energy_per_token_J", "co2_kg",
)  # fmt: skip
"""metrics of the bill that never fall where the step takes longer"""


def _billed(name: str, least: Least) -> float | None:
    return least.bill.get(name)


_OF_BOUNDS: dict[str, Callable[[Least], float | None]] = {
    "step_time_s": lambda least: least.step_time,
    "samples_per_s": lambda least: _over(least.samples, least.step_time),
    "tokens_per_s": lambda least: _over(least.tokens, least.step_time),
    "tokens_per_s_per_gpu": lambda least: None if least.gpus is None else _over(least.tokens, least.step_time * least.gpus),
    "gpu_hours_per_million_tokens": lambda least: (
        None if least.gpus is None else _over(least.gpus * least.step_time * 1e6 / 3600.0, least.tokens or 0.0)
    ),
    "peak_bytes": lambda least: least.memory,
    "gpus": lambda least: least.gpus,
    **{name: partial(_billed, name) for name in BILLED},
}
"""metric -> what bounds say of it: the least it can be, or the most where more is better"""
UNTIMED = ("peak_bytes", "gpus")
"""those of them that say nothing of the step's time"""


def bounds_help(objective: SearchObjective) -> bool:
    """Whether bounds say anything of an objective, in the direction asked for."""
    return objective.metric.name in _OF_BOUNDS and objective.most == (objective.metric.better == "higher")


def least_of(objective: SearchObjective, least: Least) -> float:
    """What the score of an objective cannot fall below; minus infinity where nothing is known."""
    name = objective.metric.name
    least_figure = _OF_BOUNDS[name](least)
    slack = 0.0 if name in UNTIMED or (least.exact and name == "step_time_s") else SLACK  # the others are put together otherwise
    return -inf if least_figure is None else -least_figure * (1.0 + slack) if objective.most else least_figure * (1.0 - slack)


def _over(one: float | None, other: float) -> float | None:
    return None if one is None or other <= 0 else one / other


class Prover(Protocol):
    """Knows lower bounds of what a simulation would find."""

    @property
    def questions(self) -> tuple[ProverQuestion, ...]:
        """What it can say besides, from the cheapest to the dearest."""

    def bounds(self, places: Sequence[Place]) -> Iterator[tuple[Place, Least | None]]:
        """Cheap ones of many, as they come; None where there are none."""
        ...

    def work(self, question: ProverQuestion, about: Sequence[tuple[Place, Least]]) -> Work:
        """What a worker does to answer: the same or better bounds of each."""
        ...


class CallersBounds:
    """Bounds by a function of the caller."""

    questions: tuple[ProverQuestion, ...] = ()

    def __init__(self, bound: Callable[[Place], Least | None]) -> None:
        self._bound = bound

    def bounds(self, places: Sequence[Place]) -> Iterator[tuple[Place, Least | None]]:
        """See `Prover.bounds`."""
        return ((place, self._bound(place)) for place in places)

    def work(self, question: ProverQuestion, about: Sequence[tuple[Place, Least]]) -> Work:
        """See `Prover.work`: there are no others."""
        raise ValueError(f"bounds by a function of the caller do not answer {question!r}")


class ProvenBounds:
    """Those of `parsim.study.search`, by all workers."""

    questions: tuple[ProverQuestion, ...] = ("longest", "chained", "step")

    def __init__(self, base: Scenario, crew: Crew, *, must_fit: bool = False) -> None:
        self.base, self.crew, self.must_fit = base, crew, must_fit

    def bounds(self, places: Sequence[Place]) -> Iterator[tuple[Place, Least | None]]:
        """See `Prover.bounds`."""
        if self.must_fit:  # micro-batches of one strategy behind each other
            places = [place for family in _families(places) for place in family]
        queue = _CheapBounds(self.base, places, self.crew.workers, must_fit=self.must_fit)
        for answered in Runner(queue, self.crew).run(keep=True):
            yield from ((job.place, least) for job, least in answered)

    def work(self, question: ProverQuestion, about: Sequence[tuple[Place, Least]]) -> Work:
        """See `Prover.work`."""
        return at_work, (stamp(), tighter, self.base, question, [(place.settings, least) for place, least in about])


class _CheapBounds:
    """The queue of cheap bounds. Neighbours have most in common, so each worker has a part of the range, and helps others when done."""

    def __init__(self, base: Scenario, places: Sequence[Place], workers: int, *, must_fit: bool) -> None:
        self._base, self._must_fit = base, must_fit
        chunks = [places[at : at + TOGETHER] for at in range(0, len(places), TOGETHER)]
        each = -(-len(chunks) // workers) or 1
        self._parts = [deque(chunks[at : at + each]) for at in range(0, len(chunks), each)]
        self._idle = list(reversed(self._parts))
        """parts of which nobody works on a chunk"""
        self._away: dict[int, deque[Sequence[Place]]] = {}
        """number of a chunk's first place -> the part that it is of"""

    def take(self, sizes: Mapping[str, int]) -> list[QueueJob[Place]]:
        if not self._idle:
            return []
        own = self._idle.pop()
        part = own or max(self._parts, key=len)
        if not part:
            return []
        chunk = part.popleft() if part is own else part.pop()
        self._away[chunk[0].number] = part
        return [QueueJob("bounds", place) for place in chunk]

    def work(self, jobs: Sequence[QueueJob[Place]]) -> Work:
        return at_work, (stamp(), bounds_of, self._base, [job.place.settings for job in jobs], self._must_fit)

    def tell(self, answered: Sequence[Answered[Place]]) -> None:
        if (part := self._away.pop(answered[0][0].place.number, None)) is not None:
            self._idle.append(part)

    def lost(self, job: QueueJob[Place], reason: str) -> None:
        """No bound: its simulation will show that workers die of it."""


def bounds_of(base: Scenario, chunk: Sequence[Settings], must_fit: bool = False) -> list[Least | None]:
    """Lower bounds of the scenarios that differ from `base` by some settings: what a worker does.

    With `must_fit`, micro-batches larger than one that surely does not fit, nor larger ones do, are not looked at.
    """
    neighbours, bounder = _tools(_Same(base))
    found: list[Least | None] = []
    family: str | None = None
    smaller: Least | None = None
    for settings in chunk:
        before, family = family, _family(settings) if must_fit else None
        if family is None or family != before or smaller is None or not smaller.larger_full:
            smaller = _bounded(settings, neighbours, bounder)
        found.append(smaller)
    return found


def _families(places: Sequence[Place]) -> list[list[Place]]:
    """Places that differ in the size of their micro-batches only, the smallest first; the families in the order of their first."""
    families: dict[object, list[Place]] = {}
    for place in places:
        families.setdefault(_family(place.settings) or place.number, []).append(place)
    return [sorted(family, key=lambda place: cast(int, place.settings.get(_MICRO_BATCH, 0))) for family in families.values()]


def _family(settings: Settings) -> str | None:
    """All settings of a strategy but the size of its micro-batches; None where their number does not follow from the batch."""
    if settings.get("training.gradient_accumulation") != "auto" or not {_MICRO_BATCH, "training.global_batch"} <= settings.keys():
        return None
    return repr([(key, value) for key, value in settings.items() if key != _MICRO_BATCH])


def _bounded(settings: Settings, neighbours: Neighbours, bounder: Bounder) -> Least | None:
    try:
        built = neighbours.built(settings)
        pipeline = built.parallelism.pipeline
        if built.parallelism.data.custom is not None:
            return None  # code of the user's, of which nothing is proved
        if pipeline.schedule in UNBOUNDED or stays(pipeline.slots) or pipeline.overlapped or pipeline.post_validation:
            return None  # bounds take every boundary between stages for a message, and every pass of a rank to end before the next
        bounds = bounder.bounds(built)
    except InputError:
        return None  # the simulation says what is wrong
    needed, there = units.format_bytes(bounds.peak_memory), units.format_bytes(bounds.capacity)
    full = f"it needs at least {needed} of {there}" if bounds.surely_full else ""
    money = {} if full else _bill(built, bounds.step_time)
    larger = bounds.larger_surely_full
    return Least(bounds.step_time, bounds.peak_memory, full, bounds.samples, bounds.tokens, bounds.gpus, money, larger_full=larger)


def tighter(base: Scenario, question: ProverQuestion, about: Sequence[tuple[Settings, Least]]) -> list[Least | None]:
    """Better bounds of each, or with ``step`` the simulated time of its step without a report; None: nothing better is known."""
    neighbours, bounder = _tools(_Same(base))
    asked = {"longest": bounder.tight, "chained": bounder.chained, "step": lambda built: step_of(built).step_time}[question]
    return [_better(neighbours, settings, least, asked, exact=question == "step") for settings, least in about]


def _better(neighbours: Neighbours, settings: Settings, least: Least, asked: Callable[[Built], float], *, exact: bool) -> Least | None:
    try:
        built = neighbours.built(settings)
        better = asked(built)
    except Exception:
        if exact:
            return None  # whatever is wrong is wrong with its row, too, which says it
        raise
    step_time = better if exact else max(least.step_time, better)
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
