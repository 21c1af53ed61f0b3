"""What a study looks for: the least or the most of a figure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.yaml_tree import Origin
from parsim.study.search.search import Values
from parsim.study.sweep.metrics import ALIASES, METRICS, Metric, metric


@dataclass(frozen=True)
class Objective:
    """A figure, and which way is better."""

    metric: Metric
    most: bool = False
    """maximise; else minimise"""
    origin: Origin = ("", None, None)

    @property
    def word(self) -> str:
        """minimise or maximise."""
        return "maximise" if self.most else "minimise"

    def __str__(self) -> str:
        return f"{self.word} {self.metric.name}"

    def score(self, row: Mapping[str, Any]) -> float | None:
        """What is to be small; None where the row has no such figure."""
        value = row.get(self.metric.name)
        return None if value is None else -float(value) if self.most else float(value)

    def shown(self, score: float) -> str:
        """The figure of a score, with its name and unit."""
        return f"{self.metric.title} {self.metric.shown(self.figure(score))}"

    def figure(self, score: float) -> float:
        """What the score stands for."""
        return -score if self.most else score


def scores(objectives: Sequence[Objective], row: Mapping[str, Any]) -> Values | None:
    """What is to be small; None where a figure is missing."""
    found = [one.score(row) for one in objectives]
    return None if None in found else tuple(float(score) for score in found if score is not None)


def objective(name: Any, origin: Origin = ("", None, None), *, most: bool = False) -> Objective:
    """The objective of a metric's name.

    Raises:
        ScenarioError: no such metric, or none that may be small or large.
    """
    word = "maximise" if most else "minimise"
    found = metric(name.strip()) if isinstance(name, str) else None
    if found is None:
        known = [item.name for item in METRICS if item.better]
        close = difflib.get_close_matches(str(name), [*known, *ALIASES], n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise ScenarioError(Finding(f"there is no figure {name!r} to {word}", word, name, hint, *origin))
    if not found.better or found.name == "fits":
        raise ScenarioError(Finding(f"{found.name} is neither better small nor large", word, name, "use it in where", *origin))
    return Objective(found, most, origin)
