"""Which candidate is simulated next: all in order, or those whose proven bound may still beat the best."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, Protocol

from parsim.errors import ParsimError
from parsim.study.sweep.candidates import Place
from parsim.study.sweep.objective import Objective
from parsim.study.sweep.row import Row

if TYPE_CHECKING:
    from parsim.study.sweep.search_bounds import Prover

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


Bound = Callable[[Place], Least | None]
"""proven lower bounds of a candidate; None where there are none"""


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

    Exact: a candidate is left out only where its bound is worse than the worst of the best `top` that keep all constraints, or
    (with `must_fit`) where it surely does not fit, so the best `top` rows are those of simulating everything. Whoever comes up with
    a cheap bound is given a better one first. `look` completes a place when it is its turn: with its candidate, and with its row
    if that is there already; None if there is nothing to simulate.
    """

    def __init__(
        self,
        places: Sequence[Place],
        prover: Prover,
        objective: Objective,
        accepts: Callable[[Place, Row], float | None],
        top: int,
        *,
        look: Callable[[Place], tuple[Place, Row | None] | None] = lambda place: (place, None),
        must_fit: bool = True,
    ) -> None:
        self.passed: dict[int, str] = {}
        self._places = {place.number: place for place in places}
        self._prover, self._objective, self._accepts, self._look = prover, objective, accepts, look
        self._top, self._must_fit = top, must_fit
        self._least: dict[int, Least] = {}
        self._best: list[float] = []
        self._open: list[tuple[float, int, bool]] = []
        """(bound of the score, number, whether it is the best bound there is), a heap"""
        self._proved = False

    def _prove(self) -> None:
        self._proved = True
        places = list(self._places.values())
        for place, least in zip(places, self._prover.bounds(places), strict=True):
            if least is None:
                self._open.append((float("-inf"), place.number, True))
            elif least.full and self._must_fit:
                self.passed[place.number] = f"does not fit: {least.full}"
            else:
                self._least[place.number] = least
                self._open.append((least_of(self._objective, least), place.number, False))
        heapify(self._open)

    def take(self, count: int) -> list[Place]:
        if not self._proved:
            self._prove()
        found: list[Place] = []
        while self._open and len(found) < count:
            low, number, tight = self._open[0]
            if len(self._best) == self._top and low > self._best[-1] + SLACK * abs(self._best[-1]):
                self._pass_over()
                break
            heappop(self._open)
            if not tight:
                least = self._least[number] = self._prover.tighter(self._places[number], self._least[number])
                heappush(self._open, (max(low, least_of(self._objective, least)), number, True))
            elif (looked := self._look(self._places[number])) is not None:
                place, row = looked
                if row is None:
                    found.append(place)
                else:
                    self.tell(place, row)
        return found

    def _pass_over(self) -> None:
        metric, sign = self._objective.metric, -1.0 if self._objective.most else 1.0
        word = "most" if self._objective.most else "least"
        limit = metric.shown(sign * self._best[-1])
        best = "the best has" if self._top == 1 else f"the best {self._top} have"
        for low, number, _ in self._open:
            self.passed[number] = f"proved worse: {metric.title} is at {word} {metric.shown(sign * low)}, {best} {limit}"
        self._open = []

    def tell(self, place: Place, row: Row) -> None:
        least, time = self._least.get(place.number), row.get("step_time_s")
        if least is not None and time is not None and time < least.step_time * (1.0 - SLACK):
            raise ParsimError(f"{row['key']} takes {time!r} s, but was proved to take at least {least.step_time!r} s: please report it")
        score = self._accepts(place, row)
        if score is not None:
            insort(self._best, score)
            del self._best[self._top :]


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


def bounds_help(objective: Objective) -> bool:
    """Whether bounds say anything of an objective, in the direction asked for."""
    return objective.metric.name in _OF_BOUNDS and objective.most == (objective.metric.better == "higher")


def least_of(objective: Objective, least: Least) -> float:
    """What the score of an objective cannot fall below; minus infinity where nothing is known."""
    found = _OF_BOUNDS[objective.metric.name](least)
    return float("-inf") if found is None else -found * (1.0 + SLACK) if objective.most else found * (1.0 - SLACK)


def _over(one: float | None, other: float) -> float | None:
    return None if one is None or other <= 0 else one / other
