"""What comes out: per kind of machine, what was looked at, what is possible, why the rest is not, and what moves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding
from parsim.report.slow_gpu import SlowGpu
from parsim.study.size.prices import PriceTag
from parsim.study.size.question import Assumed, Recipe, SizeQuestion
from parsim.study.size.recommendation import recommendation
from parsim.study.size.search import Tally
from parsim.study.size.strategies import Configuration
from parsim.study.size.ties import Tie, ties


@dataclass(frozen=True)
class Looked:
    """One number of GPUs, and what its fastest strategy is."""

    gpus: int
    found: Configuration | None
    """None: no strategy that fits is known to be good enough"""
    tally: Tally
    reason: str = ""
    """why nothing was found"""


@dataclass(frozen=True)
class Sized:
    """One kind of machine."""

    machine: str
    grid: tuple[int, ...]
    """numbers of GPUs that some strategy uses, from the least that could be enough to the most that was looked at"""
    looked: tuple[Looked, ...]
    possible: tuple[Configuration, ...]
    """those that meet the deadline and the budget, the best first"""
    reason: str = ""
    """why there are none"""
    notes: tuple[str, ...] = ()
    """idle GPUs and better counts, axes"""
    assumed: tuple[Assumed, ...] = ()
    """what the scenarios assume about prices, power and failures"""
    price: PriceTag | None = None
    """None: it has none"""

    @property
    def tally(self) -> Tally:
        """Of all counts."""
        total = Tally()
        for one in self.looked:
            total.add(one.tally)
        return total

    @property
    def found(self) -> list[Configuration]:
        """Every configuration that fits, by number of GPUs."""
        return [one.found for one in self.looked if one.found is not None]


@dataclass(frozen=True)
class BetterConfiguration:
    """A configuration that is possible, and better than all before it."""

    after: float
    """since the search began [s]"""
    found: Configuration


@dataclass(frozen=True)
class AnswerData:
    """To a question."""

    question: SizeQuestion
    recipe: Recipe
    parameters: int
    machines: tuple[Sized, ...]
    interrupted: bool = False
    """the user ended it before everything was looked at"""
    slow_gpu: SlowGpu | None = None
    """what one slow GPU costs the best option, where machines or steps differ; None: they do not, or nobody asked"""

    @property
    def slow_goodput(self) -> float | None:
        """Goodput of the best option with one slow GPU at its worst place; None where that is not known."""
        return None if self.slow_gpu is None else self.ranked[0].goodput * (1.0 - self.slow_gpu.lost(self.slow_gpu.worst))

    def document(self) -> dict[str, Any]:
        """As `parsim size --json` prints it."""
        return document(self)

    @property
    def ranked(self) -> list[Configuration]:
        """The best possible configuration of every machine, the best first."""
        return ranking([sized.possible[0] for sized in self.machines if sized.possible], self.question.minimise)

    @property
    def ties(self) -> list[Tie]:
        """Machines whose best configuration is not known to be worse than the first of `ranked`."""
        return ties(self.ranked, self.question.minimise)

    @property
    def everything(self) -> list[Configuration]:
        """All possible configurations, the best first."""
        return ranking([one for sized in self.machines for one in sized.possible], self.question.minimise)

    @property
    def prices(self) -> list[PriceTag]:
        """Of the machines that have one."""
        return [sized.price for sized in self.machines if sized.price is not None]

    @property
    def warnings(self) -> list[Finding]:
        """Each once."""
        return list({finding.message: finding for sized in self.machines for one in sized.found for finding in one.warnings}.values())

    @property
    def assumed(self) -> list[Assumed]:
        """Each once."""
        assumed = [*self.recipe.assumed, *(one for sized in self.machines for one in sized.assumed)]
        return list({(one.name, one.value): one for one in assumed}.values())


def possible_of(configurations: Iterable[Configuration], question: SizeQuestion) -> tuple[Configuration, ...]:
    """Those that meet the deadline and the budget of a question, the best first."""
    budget = None if question.budget is None else question.budget.amount
    return tuple(ranking([one for one in configurations if one.meets(question.deadline, budget)], question.minimise))


def ranking(configurations: list[Configuration], minimise: str) -> list[Configuration]:
    """Least first; without a price last; ties by time."""

    def key(one: Configuration) -> tuple[bool, float, float]:
        value = one.objective(minimise)
        return value is None, value or 0.0, one.seconds

    return sorted(configurations, key=key)


def front(configurations: list[Configuration]) -> list[Configuration]:
    """Those that no other beats in time or in cost without losing in the other, by time; GPUs count where nothing has a price."""
    priced = [(one.seconds, one.cost, one) for one in configurations if one.cost is not None]
    points = priced or [(one.seconds, float(one.gpus), one) for one in configurations]
    kept: list[tuple[float, float, Configuration]] = []
    for point in sorted(points, key=lambda each: each[:2]):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return [one for _, _, one in kept]


def document(answer: AnswerData) -> dict[str, Any]:
    """The answer as JSON; s, B, J."""
    return {
        "parsim": 1,
        "question": dict(answer.question.document()),
        "recipe": {
            "sequence_length": answer.recipe.sequence_length, "global_batch": answer.recipe.global_batch,
            "tokens_per_step": answer.recipe.tokens_per_step, "mtbf_per_gpu_s": answer.recipe.mtbf,
            "checkpoint_time_s": answer.recipe.checkpoint_time,
        },
        "parameters": answer.parameters,
        "recommendation": recommendation(answer).sentence,
        "interrupted": answer.interrupted,
        "prices": [tag.document() for tag in answer.prices],
        "ranked": [one.document() for one in answer.ranked],
        "slow_gpu": None if answer.slow_gpu is None else {**answer.slow_gpu.document(), "goodput": answer.slow_goodput},
        "ties": [tie.document() for tie in answer.ties],
        "machines": [_machine(sized) for sized in answer.machines],
        "pareto": [{"machine": one.machine, "gpus": one.gpus} for one in front(answer.everything)],
        "sensitivity": [one.document() for one in sensitivity(answer)],
        "assumptions": [{"name": one.name, "value": one.value, "source": one.source} for one in answer.assumed],
        "warnings": [{"path": finding.path, "message": str(finding)} for finding in answer.warnings],
    }  # fmt: skip


def _machine(sized: Sized) -> dict[str, Any]:
    tally = sized.tally
    return {
        "machine": sized.machine,
        "grid": list(sized.grid),
        "candidates": {
            "considered": tally.considered, "refused": tally.refused, "bounded_away_memory": tally.too_large,
            "bounded_away_time": tally.too_slow, "simulated": tally.simulated, "simulated_did_not_fit": tally.did_not_fit,
        },
        "looked_at": [
            {"gpus": one.gpus, "found": None if one.found is None else one.found.document(), "reason": one.reason or None}
            for one in sized.looked
        ],
        "possible": [one.document() for one in sized.possible],
        "reason": sized.reason or None,
        "notes": list(sized.notes),
    }  # fmt: skip


PRICE = 0.2
EFFICIENCY = 0.1
MTBF = 2.0


@dataclass(frozen=True)
class Sensitivity:
    """One assumption moved, and what wins then."""

    change: str
    winner: Configuration | None
    """None: nothing is possible"""
    value: float | None
    """of what is minimised, for the winner"""
    relative: float | None
    """value over that of the answer, less one"""
    moved: bool
    """another configuration wins"""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        winner = self.winner
        return {
            "change": self.change, "machine": None if winner is None else winner.machine, "gpus": None if winner is None else winner.gpus,
            "value": self.value, "relative": self.relative, "winner_changes": self.moved,
        }  # fmt: skip


def sensitivity(answer: AnswerData) -> list[Sensitivity]:
    """Every effect on the best of what was looked at, in the order: prices, speed, failures."""
    best = next(iter(answer.everything), None)
    if best is None:
        return []
    looked = [one for sized in answer.machines for one in sized.found]
    return [_effect(answer, best, looked, change) for change in _changes(looked)]


@dataclass(frozen=True, slots=True)
class _Change:
    words: str
    machine: str | None
    """None: all"""
    price: float = 1.0
    slower: float = 1.0
    mtbf: float = 1.0

    def of(self, one: Configuration) -> Configuration:
        if self.machine not in (None, one.machine):
            return one
        return one.changed(price=self.price, slower=self.slower, mtbf=self.mtbf)


def _changes(looked: list[Configuration]) -> Iterator[_Change]:
    names = list(dict.fromkeys(one.machine for one in looked))
    for name in names:
        if any(one.machine == name and one.cost is not None for one in looked):
            for factor in (1 - PRICE, 1 + PRICE):
                yield _Change(f"price of {name} {100 * (factor - 1):+.0f} %", name, price=factor)
    for name in names:
        low, high, why = _speeds([one for one in looked if one.machine == name])
        for factor in (low, high):
            yield _Change(f"step of {name} {100 * (factor - 1):+.0f} %{why}", name, slower=factor)
    if any(one.economics.failures is not None for one in looked):
        for factor in (1 / MTBF, MTBF):
            yield _Change(f"MTBF x{factor:g}", None, mtbf=factor)


def _speeds(of: list[Configuration]) -> tuple[float, float, str]:
    """Factors on a step: the widest validation band of the machine's configurations, else ten percent."""
    bands = [one.band for one in of if one.band is not None]
    if not bands:
        return 1 - EFFICIENCY, 1 + EFFICIENCY, ""
    return min(low for low, _ in bands), max(high for _, high in bands), " (band of published runs)"


def _effect(answer: AnswerData, best: Configuration, looked: list[Configuration], change: _Change) -> Sensitivity:
    question = answer.question
    budget = None if question.budget is None else question.budget.amount
    changed = [change.of(one) for one in looked]
    possible = ranking([one for one in changed if one.meets(question.deadline, budget)], question.minimise)
    if not possible:
        return Sensitivity(change.words, None, None, None, True)
    winner, before = possible[0], best.objective(question.minimise)
    after = winner.objective(question.minimise)
    moved = (winner.machine, winner.strategy) != (best.machine, best.strategy)
    return Sensitivity(change.words, winner, after, after / before - 1 if before and after is not None else None, moved)
