"""Which candidate is simulated next: all in order, or those whose proven bound may still beat the best."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from parsim.errors import ParsimError
from parsim.study.sweep.candidates import Place
from parsim.study.sweep.objective import Objective
from parsim.study.sweep.row import Row

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
    bill: Mapping[str, float | None] = {}
    """figures of the bill (`BILLED`) of a run that takes no longer and draws no more"""


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
    (with `must_fit`) where it surely does not fit, so the best `top` rows are those of simulating everything.
    """

    def __init__(
        self,
        places: Iterator[Place],
        bound: Bound,
        objective: Objective,
        accepts: Callable[[Place, Row], float | None],
        top: int,
        *,
        must_fit: bool = True,
    ) -> None:
        self.passed: dict[int, str] = {}
        self._accepts, self._top, self._objective = accepts, top, objective
        self._least: dict[int, Least] = {}
        self._best: list[float] = []
        self._waiting: list[tuple[float, int, Place]] = []
        for place in places:
            found = bound(place)
            if found is None:
                self._waiting.append((float("-inf"), place.number, place))
            elif found.full and must_fit:
                self.passed[place.number] = found.full
            else:
                self._least[place.number] = found
                self._waiting.append((least_of(objective, found), place.number, place))
        self._waiting.sort(key=lambda item: item[:2], reverse=True)

    def take(self, count: int) -> list[Place]:
        found: list[Place] = []
        while self._waiting and len(found) < count:
            low, _, place = self._waiting[-1]
            if len(self._best) == self._top and low > self._best[-1] + SLACK * abs(self._best[-1]):
                self._pass_over()
                break
            self._waiting.pop()
            found.append(place)
        return found

    def _pass_over(self) -> None:
        metric, sign = self._objective.metric, -1.0 if self._objective.most else 1.0
        word = "most" if self._objective.most else "least"
        limit = metric.shown(sign * self._best[-1])
        best = "the best has" if self._top == 1 else f"the best {self._top} have"
        for low, number, _ in self._waiting:
            self.passed[number] = f"{metric.title} is at {word} {metric.shown(sign * low)}, {best} {limit}"
        self._waiting = []

    def tell(self, place: Place, row: Row) -> None:
        least, time = self._least.get(place.number), row.get("step_time_s")
        if least is not None and time is not None and time < least.step_time * (1.0 - SLACK):
            raise ParsimError(f"{row['key']} takes {time!r} s, but was proved to take at least {least.step_time!r} s: please report it")
        score = self._accepts(place, row)
        if score is not None:
            insort(self._best, score)
            del self._best[self._top :]


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
}
"""metric -> what bounds say of it: the least it can be, or the most where more is better"""


BILLED = (
    "time_to_train_s", "gpu_hours", "gpu_hours_billed", "cost_to_train", "cost_per_step", "cost_per_million_tokens",
    "cost_per_million_samples", "energy_J", "energy_per_step_J", "energy_per_token_J", "co2_kg",
)  # fmt: skip
"""metrics that never fall where the step takes longer"""


def bounds_help(objective: Objective) -> bool:
    """Whether bounds say anything of an objective, in the direction asked for."""
    known = objective.metric.name in _OF_BOUNDS or objective.metric.name in BILLED
    return known and objective.most == (objective.metric.better == "higher")


def least_of(objective: Objective, least: Least) -> float:
    """What the score of an objective cannot fall below; minus infinity where nothing is known."""
    name = objective.metric.name
    found = _OF_BOUNDS[name](least) if name in _OF_BOUNDS else least.bill.get(name)
    return float("-inf") if found is None else -found * (1.0 + SLACK) if objective.most else found * (1.0 - SLACK)


def _over(one: float | None, other: float) -> float | None:
    return None if one is None or other <= 0 else one / other
