"""Does the answer change if a price, the predicted speed or the failures are other than assumed? No simulation is needed."""

from __future__ import annotations

from collections.abc import Callable
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
    looked = [one for sized in answer.machines for one in sized.found]
    if best is None or not looked:
        return []
    names = list(dict.fromkeys(one.machine for one in looked))
    effects = []
    priced = [name for name in names if any(one.machine == name and one.cost is not None for one in looked)]
    for name in priced:
        for factor in (1 - PRICE, 1 + PRICE):
            words = f"price of {name} {100 * (factor - 1):+.0f} %"
            effects.append(_effect(answer, best, words, looked, _only(name, lambda one, factor=factor: one.changed(price=factor))))
    for name in names:
        low, high, words = _speeds([one for one in looked if one.machine == name])
        for factor, end in ((low, 0), (high, 1)):
            effects.append(_effect(answer, best, f"step of {name} {100 * (factor - 1):+.0f} %{words[end]}", looked, _only(name, lambda one, factor=factor: one.changed(slower=factor))))
    if any(one.economics.failures is not None for one in looked):
        for factor in (1 / MTBF, MTBF):
            effects.append(_effect(answer, best, f"MTBF x{factor:g}", looked, lambda one, factor=factor: one.changed(mtbf=factor)))
    return effects


def _only(name: str, change: Callable[[Configuration], Configuration]) -> Callable[[Configuration], Configuration]:
    return lambda one: change(one) if one.machine == name else one


def _speeds(of: list[Configuration]) -> tuple[float, float, tuple[str, str]]:
    """Factors on a step: the widest validation band of the machine's configurations, else ten percent."""
    bands = [one.band for one in of if one.band is not None]
    if not bands:
        return 1 - EFFICIENCY, 1 + EFFICIENCY, ("", "")
    words = " (band of published runs)"
    return min(low for low, _ in bands), max(high for _, high in bands), (words, words)


def _effect(answer: Answer, best: Configuration, words: str, looked: list[Configuration], change: Callable[[Configuration], Configuration]) -> Effect:
    question = answer.question
    budget = None if question.budget is None else question.budget.amount
    changed = [change(one) for one in looked]
    possible = ranking([one for one in changed if one.meets(question.deadline, budget)], question.minimise)
    if not possible:
        return Effect(words, None, None, None, True)
    winner, before = possible[0], best.objective(question.minimise)
    after = winner.objective(question.minimise)
    moved = (winner.machine, winner.strategy) != (best.machine, best.strategy)
    return Effect(words, winner, after, after / before - 1 if before and after is not None else None, moved)
