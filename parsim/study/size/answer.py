"""What comes out: per kind of machine, what was looked at, what is possible, and why the rest is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding
from parsim.study.size.choose import Tally
from parsim.study.size.configuration import Configuration
from parsim.study.size.question import Question
from parsim.study.size.recipe import Assumed, Recipe


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
class Answer:
    """To a question."""

    question: Question
    recipe: Recipe
    parameters: int
    machines: tuple[Sized, ...]

    def __str__(self) -> str:
        from parsim.study.size.text import text

        return text(self)

    def document(self) -> dict[str, Any]:
        """As `parsim size --json` prints it."""
        return document(self)

    @property
    def ranked(self) -> list[Configuration]:
        """The best possible configuration of every machine, the best first."""
        return ranking([sized.possible[0] for sized in self.machines if sized.possible], self.question.minimise)

    @property
    def everything(self) -> list[Configuration]:
        """All possible configurations, the best first."""
        return ranking([one for sized in self.machines for one in sized.possible], self.question.minimise)

    @property
    def warnings(self) -> list[Finding]:
        """Each once."""
        return list({finding.message: finding for sized in self.machines for one in sized.found for finding in one.warnings}.values())

    @property
    def assumed(self) -> list[Assumed]:
        """Each once."""
        found = [*self.recipe.assumed, *(one for sized in self.machines for one in sized.assumed)]
        return list({(one.name, one.value): one for one in found}.values())


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


def document(answer: Answer) -> dict[str, Any]:
    """The answer as JSON; s, B, J."""
    from parsim.study.size.sensitivity import sensitivity

    return {
        "parsim": 1,
        "question": dict(answer.question.document()),
        "recipe": {
            "sequence_length": answer.recipe.sequence_length, "global_batch": answer.recipe.global_batch,
            "tokens_per_step": answer.recipe.tokens_per_step, "mtbf_per_gpu_s": answer.recipe.mtbf,
            "checkpoint_time_s": answer.recipe.checkpoint_time,
        },
        "parameters": answer.parameters,
        "ranked": [one.document() for one in answer.ranked],
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
