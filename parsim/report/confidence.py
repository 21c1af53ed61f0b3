"""How sure a report is of its numbers: the band that published runs like this one leave around a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Factors = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Confidence:
    """Bands as factors of the prediction: measured / predicted of runs like this one lies between them in 80 % of cases."""

    status: str = "unvalidated"
    """validated: measured runs are close in GPUs and size; interpolated: same GPU and kind of strategy, farther away;
    unvalidated: nothing like it was measured"""
    step: Factors | None = None
    memory: Factors | None = None
    step_ratio: float = 1.0
    """median of measured / predicted over the runs that make the band; 1 without a band"""
    memory_ratio: float = 1.0
    basis: str | None = None
    """what the bands rest on, in words"""
    nearest: tuple[Mapping[str, Any], ...] = ()
    """measured rows, the nearest first: id, source, error, what differs"""

    def step_band(self, seconds: float) -> tuple[float, float] | None:
        """Step times between which the truth probably lies [s]."""
        return None if self.step is None else (seconds * self.step[0], seconds * self.step[1])

    def memory_band(self, used: int) -> tuple[int, int] | None:
        """Peaks between which the truth probably lies [B]."""
        return None if self.memory is None else (round(used * self.memory[0]), round(used * self.memory[1]))

    def document(self, seconds: float, used: int | None) -> dict[str, Any]:
        """As the report has it."""
        step, peak = self.step_band(seconds), None if used is None else self.memory_band(used)
        return {
            "status": self.status,
            "step_time_s": None if step is None else list(step),
            "peak_bytes": None if peak is None else list(peak),
            "basis": self.basis,
            "nearest": [dict(row) for row in self.nearest],
        }
