"""A row of results: what was varied, what came out, or why nothing did. The same candidate always gives the same row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from parsim.errors import Finding
from parsim.scenario.scenario import flow
from parsim.study.sweep.metrics import NOTHING, figures

Row = dict[str, Any]
"""``key``, ``status`` (one of `STATUSES`), the varied keys, the figures of `metrics`, ``limiter_kind``, ``reason``, ``findings``"""
_SAID = 3
"""findings that a reason repeats"""
_FINDING = {"path", "value", "message", "suggestion"}
_COLUMNS = {"key", "status", *NOTHING, "limiter_kind", "reason", "findings"}
STATUSES = ("fits", "does not fit", "deadlock", "refused", "failed")
"""the last: parsim or its process broke, which is nobody's fault but ours"""


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


def simulated(key: str, settings: Mapping[str, Any], document: Mapping[str, Any]) -> Row:
    """The row of a report."""
    fits = document["memory"]["fits"]
    found = {"key": key, "status": "fits" if fits else "does not fit", **settings, **figures(document)}
    return {**found, "limiter_kind": document["limiter_kind"], "reason": "" if fits else document["limiter"], "findings": []}


def without_report(key: str, status: str, settings: Mapping[str, Any], reason: str, findings: Sequence[Finding] = ()) -> Row:
    """The row of a candidate that has no report."""
    found = {"key": key, "status": status, **settings, **NOTHING, "limiter_kind": None, "reason": reason}
    return {**found, "findings": [_texts(finding) for finding in findings]}


def refused(key: str, settings: Mapping[str, Any], findings: Sequence[Finding]) -> Row:
    """The row of a scenario that cannot be simulated."""
    said = [": ".join(filter(None, (finding.path, finding.message))) for finding in findings]
    more = [f"and {len(said) - _SAID} more"] if len(said) > _SAID else []
    reason = "; ".join([*said[:_SAID], *more])
    return without_report(key, "refused", settings, reason, findings)


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
