"""Does the answer change if a price, the predicted speed or the failures are other than assumed? No simulation is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parsim.study.size.answer import Answer, ranking
from parsim.study.size.configuration import Configuration

PRICE = 0.2
EFFICIENCY = 0.1
MTBF = 2.0


@dataclass(frozen=True)
class Effect:
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


def sensitivity(answer: Answer) -> list[Effect]:
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


def _effect(answer: Answer, best: Configuration, looked: list[Configuration], change: _Change) -> Effect:
    question = answer.question
    budget = None if question.budget is None else question.budget.amount
    changed = [change.of(one) for one in looked]
    possible = ranking([one for one in changed if one.meets(question.deadline, budget)], question.minimise)
    if not possible:
        return Effect(change.words, None, None, None, True)
    winner, before = possible[0], best.objective(question.minimise)
    after = winner.objective(question.minimise)
    moved = (winner.machine, winner.strategy) != (best.machine, best.strategy)
    return Effect(change.words, winner, after, after / before - 1 if before and after is not None else None, moved)
