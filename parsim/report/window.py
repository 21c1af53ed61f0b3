"""A stretch of the step as a user writes it."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from parsim import units
from parsim.errors import Finding, InputError
from parsim.report.quantities import seconds

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

Window = str | tuple[float | None, float | None]
"""``"0.2s:0.5s"``, ``"40%:60%"``, or seconds; an end left out is that of the step"""

_ROUNDED = 5e-3
"""how far beyond the step a window may reach: a step is shown with three digits"""
_FORM = "write it as 0.2s:0.5s, 200ms: or 40%:60%"


def window_of(report: Metrics, window: Window | None) -> tuple[float, float]:
    """Begin and end [s] on the axis of the figure; the whole measured stretch for None.

    Raises:
        InputError: not a window, reversed, empty or beyond the step; every problem is a finding.
    """
    if window is None:
        return report.begin, report.end
    parts = window.split(":") if isinstance(window, str) else list(window)
    if len(parts) != 2:
        raise InputError(Finding("a window is two times with a colon between them", "window", window, _FORM))
    findings: list[Finding] = []
    begin, end = (_time(part, side, report, findings) for part, side in zip(parts, (report.begin, report.end), strict=True))
    if findings:
        raise InputError(findings)
    span = f"the figure shows {seconds(report.begin)} to {seconds(report.end)}" if report.begin else f"the step takes {seconds(report.end)}"
    slack = _ROUNDED * (report.end - report.begin)
    written = window if isinstance(window, str) else None
    if end <= begin:
        order = f"the window ends at {seconds(end)} and begins at {seconds(begin)}"
        swap = "swap its ends" if end < begin else "make it longer"
        raise InputError(Finding(order, "window", written, swap))
    for name, time in (("begins", begin), ("ends", end)):
        if not report.begin - slack <= time <= report.end + slack:
            findings.append(Finding(f"the window {name} at {seconds(time)}, {span}", "window", written, "choose a window within it"))
    begin, end = max(begin, report.begin), min(end, report.end)
    if not findings and end <= begin:
        findings.append(Finding(f"the window begins at {seconds(begin)}, {span}", "window", written, "choose a window within it"))
    if findings:
        raise InputError(findings)
    return begin, end


def _time(part: str | float | None, default: float, report: Metrics, findings: list[Finding]) -> float:
    """Seconds of one end of a window."""
    if part is None or (isinstance(part, str) and not part.strip()):
        return default
    try:
        if isinstance(part, str) and part.strip().endswith("%"):
            return report.begin + (report.end - report.begin) * float(part.strip()[:-1]) / 100.0
        if isinstance(part, str):
            return float(units.parse(part, "time"))
        value = float(part)
        if isfinite(value):
            return value
        findings.append(Finding(f"{part} is no time", "window", part, _FORM))
    except ValueError as error:
        findings.append(Finding(str(error), "window", part, _FORM))
    return default
