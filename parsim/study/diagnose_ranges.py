"""Between which values a parameter of a run was found: ``catalogue/plausible.yaml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from parsim.scenario import files

_NARROWEST = 0.02
"""half-width of a range, logarithmic, below which distances are not divided by it"""


@dataclass(frozen=True, slots=True)
class Plausible:
    """The values that were found for one parameter, in the parameter's own unit."""

    low: float
    high: float
    basis: str
    """fitted | measured | assumption"""
    source: str

    def beyond(self, value: float) -> float:
        """How far `value` lies outside: 0 inside, 1 where it is as far outside as the range is wide on one side of its middle.

        Logarithmic where the range has a ratio, linear where it begins at zero.
        """
        if self.low <= value <= self.high:
            return 0.0
        if self.low <= 0.0 or value <= 0.0:
            return (value - self.high) / (0.5 * (self.high - self.low)) if value > self.high else 1.0
        half = max(0.5 * math.log(self.high / self.low), _NARROWEST)
        return math.log(value / self.high if value > self.high else self.low / value) / half


@cache
def _tree() -> Mapping[str, Any]:
    return files.read(files.home("devices").parent / "plausible.yaml").tree


def plausible(name: str, now: float, device: str = "", unit: float = 1.0) -> Plausible:
    """The range of a cause.

    Args:
        name: a block of the file.
        now: what the scenario has; relative ranges multiply it.
        device: name of the GPU, for a range of its own.
        unit: what 1 of the file is in the parameter's unit.
    """
    row = _tree()[name]
    own = (row.get("devices") or {}).get(device)
    if own is not None:
        return Plausible(float(own["low"]) * unit, float(own["high"]) * unit, own["basis"], own["source"])
    scale = now if row["relative"] else unit
    return Plausible(float(row["low"]) * scale, float(row["high"]) * scale, row["basis"], row["source"])
