"""When runs are enough: as soon as the interval of what is asked for is narrow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from parsim.errors import Finding, ScenarioError
from parsim.report.short_names import named, nearest
from parsim.report.variability import FEWEST_P95, Spread

BETWEEN = 20
"""runs between two looks at the interval: which run is the last depends on nothing else"""
_FORM = re.compile(r"(?:(?P<of>[A-Za-z][\w -]*?)\s*[:= ]?\s*)?(?P<number>\d+(?:\.\d*)?|\.\d+)\s*%")
_OF: dict[str, Literal["mean", "p95"]] = {"mean": "mean", "step_time_s": "mean", "p95": "p95", "p95_step_time_s": "p95"}


@dataclass(frozen=True, slots=True)
class Until:
    """Enough: the 95 % interval of a number reaches at most this share of it to either side."""

    within: float
    of: Literal["mean", "p95"] = "mean"

    def enough(self, spread: Spread) -> bool:
        """Whether no more runs are needed."""
        ends = spread.mean_interval if self.of == "mean" else spread.p95_interval
        number = spread.mean if self.of == "mean" else spread.quantile(0.95)
        if ends is None or number is None:
            return False
        return max(number - ends[0], ends[1] - number) <= self.within * number

    @property
    def first(self) -> int:
        """Runs after which to look first."""
        return FEWEST_P95 if self.of == "p95" else BETWEEN


def until(text: str) -> Until:
    """``1%``, ``p95:0.5%``, ``step_time:1%``.

    Raises:
        ScenarioError: it is neither.
    """
    match = _FORM.fullmatch(text.strip())
    share = float(match["number"]) / 100 if match is not None else 0.0
    if match is None or not 0 < share < 1:
        message = f"{text!r} is no share of the mean or of p95 between 0 and 100 %"
        raise ScenarioError(Finding(message, "--until", text, "write 1% (of the mean), or p95:1%"))
    of = named(match["of"] or "mean", _OF)
    if of is None:
        message = f"runs differ in the time of the step, not in {match['of']!r}"
        raise ScenarioError(Finding(message, "--until", text, nearest(match["of"], _OF) or "write 1% (of the mean), or p95:1%"))
    return Until(share, _OF[of])
