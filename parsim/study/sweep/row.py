"""A row of results: what was varied, what came out, or why nothing did. The same candidate always gives the same row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parsim.errors import Finding
from parsim.scenario.scenario import flow
from parsim.study.sweep.metrics import NOTHING, figures

Row = dict[str, Any]
"""``key``, ``status`` (one of `STATUSES`), the varied keys, the figures of `metrics`, ``limiter_kind``, ``reason``, ``findings``"""
_SAID = 3
"""findings that a reason repeats"""
STATUSES = ("fits", "does not fit", "deadlock", "refused", "failed")
"""the last: parsim or its process broke, which is nobody's fault but ours"""


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
