"""Rows of results (what was varied, what came out, or why nothing did), the objectives that rank them, and the files that keep them.

The same candidate always gives the same row. ``results.jsonl`` has one row per line as they come, ``study.json`` says what was asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.report.short_names import nearest
from parsim.scenario.scenario import flow
from parsim.scenario.yaml_tree import Origin
from parsim.study import journal
from parsim.study.search.search import Values
from parsim.study.sweep.metrics import ALIASES, METRICS, NOTHING, Metric, figures, metric
from parsim.study.variants import STATUSES, Outcome

_STEP = "step_time_s"


@dataclass(frozen=True)
class SearchObjective:
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


def scores(objectives: Sequence[SearchObjective], row: Mapping[str, Any]) -> Values | None:
    """What is to be small; None where a figure is missing."""
    scored = [one.score(row) for one in objectives]
    return None if None in scored else tuple(float(score) for score in scored if score is not None)


def ties_of(objectives: Sequence[SearchObjective], row: Mapping[str, Any]) -> Values:
    """What decides between a row and those that are equal in the single objective; a row without such a figure comes last."""
    scored = [one.score(row) for one in tie_breakers(objectives)]
    return tuple(inf if score is None else score for score in scored)


def tie_breakers(objectives: Sequence[SearchObjective]) -> tuple[SearchObjective, ...]:
    """What decides between rows that are equal in a single objective: the shorter step. Equals of several objectives stay equal."""
    return () if len(objectives) != 1 or objectives[0].metric.name == _STEP else _shorter()


@cache
def _shorter() -> tuple[SearchObjective, ...]:
    return (objective(_STEP),)


def objective(name: Any, origin: Origin = ("", None, None), *, most: bool = False) -> SearchObjective:
    """The objective of a metric's name.

    Raises:
        ScenarioError: no such metric, or none that may be small or large.
    """
    word = "maximise" if most else "minimise"
    wanted = metric(name.strip()) if isinstance(name, str) else None
    if wanted is None:
        known = [item.name for item in METRICS if item.better]
        hint = nearest(str(name), known, ALIASES) or f"known: {', '.join(known)}"
        raise ScenarioError(Finding(f"there is no figure {name!r} to {word}", word, name, hint, *origin))
    if not wanted.better or wanted.name == "fits":
        raise ScenarioError(Finding(f"{wanted.name} is neither better small nor large", word, name, "use it in where", *origin))
    return SearchObjective(wanted, most, origin)


Row = journal.Row
"""``key``, ``status`` (one of `STATUSES`), the varied keys, the figures of `metrics`, ``limiter_kind``, ``reason``, ``findings``"""
_SAID = 3
"""findings that a reason repeats"""
_FINDING = {"path", "value", "message", "suggestion"}
_COLUMNS = {"key", "status", *NOTHING, "limiter_kind", "reason", "findings"}


def damage(row: Any) -> str:
    """What makes something that was read from a file no row; empty for a row."""
    if not isinstance(row, dict):
        return "is no mapping"
    missing = [name for name in ("key", "status", *NOTHING, "limiter_kind", "reason", "findings") if name not in row]
    if missing:
        return f"has no {', '.join(missing[:_SAID])}{f' and {len(missing) - _SAID} more' if len(missing) > _SAID else ''}"
    if not isinstance(row["key"], str) or row["status"] not in STATUSES:
        return f"has no {'key' if not isinstance(row['key'], str) else 'known status'}"
    for name in NOTHING:
        value = row[name]
        if value is not None and not (isinstance(value, bool) if name == "fits" else _is_number(value)):
            return f"{name} is {'no number' if name != 'fits' else 'neither true nor false'}"
    if (row["step_time_s"] is None) == (row["status"] in STATUSES[:2]):
        return f"its status and its step_time_s contradict each other: {row['status']}"
    findings = row["findings"]
    if not isinstance(findings, list) or not all(isinstance(one, dict) and set(one) >= _FINDING for one in findings):
        return "findings is no list of findings"
    return "" if isinstance(row["reason"], str) else "reason is no text"


def settings_of(row: Row) -> dict[str, Any]:
    """What was varied."""
    return {name: value for name, value in row.items() if name not in _COLUMNS}


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False


def row(key: str, settings: Mapping[str, Any], came: Outcome[Mapping[str, Any]]) -> Row:
    """The row of a candidate, from what came of it."""
    report = came.answer
    return {
        "key": key,
        "status": came.status,
        **settings,
        **(NOTHING if report is None else figures(report)),
        "limiter_kind": None if report is None else report["limiter_kind"],
        "reason": _refusal(came.findings) if came.status == "refused" else came.reason,
        "findings": [_texts(finding) for finding in came.findings],
    }


def _refusal(findings: Sequence[Finding]) -> str:
    """The first findings in one line."""
    said = [": ".join(filter(None, (finding.path, finding.message))) for finding in findings]
    more = [f"and {len(said) - _SAID} more"] if len(said) > _SAID else []
    return "; ".join([*said[:_SAID], *more])


def _texts(finding: Finding) -> dict[str, str]:
    """A finding as texts: columns of a table have one type."""
    value = "" if finding.value is None else finding.value if isinstance(finding.value, str) else flow_or_text(finding.value)
    return {"path": finding.path, "value": value, "message": finding.message, "suggestion": finding.suggestion}


def flow_or_text(value: Any) -> str:
    """A value as YAML, or as Python says it."""
    try:
        return flow(value)
    except (TypeError, ValueError):
        return str(value)


class StudyJournal(journal.Journal):
    """The rows of one directory, those of before and those to come.

    `points`: the settings of all points of the study, where rows of other points are none of its own.

    Raises:
        ScenarioError: the directory cannot be written, another study is in it, or another process writes there.
    """

    def __init__(
        self,
        directory: Path,
        asked: Mapping[str, Any],
        *,
        restart: bool = False,
        points: Callable[[], Iterable[Mapping[str, Any]]] | None = None,
    ) -> None:
        self._points = points
        self._ours: set[str] | None = None
        super().__init__(directory, asked, restart=restart)

    def damage(self, row: Any) -> str:
        if (problem := damage(row)) or self._points is None:
            return problem
        if self._ours is None:
            self._ours = {_text(point) for point in self._points()}
        return "" if _text(settings_of(row)) in self._ours else "is a row of another study"


def _text(settings: Mapping[str, Any]) -> str:
    """Settings as they compare: as JSON has them, in one order."""
    return json.dumps(settings, sort_keys=True, default=str)
