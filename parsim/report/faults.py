"""What faults do to a step: each alone, and all together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding
from parsim.report.quantities import seconds

if TYPE_CHECKING:
    from parsim.report.measured import Measured


@dataclass(frozen=True)
class FaultEffect:
    """What comes of a step."""

    step_time_s: float | None
    """None: the step does not end"""
    ended: bool
    failed_at_s: float | None
    """when a step that does not end is given up, from its begin on"""
    gpu_seconds_lost: float
    """what all GPUs do longer; of a step that fails all that they did, to the moment at which it is given up"""
    why: str


@dataclass(frozen=True)
class FaultRow:
    """One fault alone."""

    key: str
    """of the scenario"""
    fault: str
    begin_s: float
    end_s: float | None
    """None: not within the step"""
    effect: FaultEffect


@dataclass(frozen=True, eq=False)
class Faults:
    """All of them."""

    rows: tuple[FaultRow, ...]
    together: FaultEffect
    warnings: tuple[Finding, ...] = ()
    """faults that do nothing"""
    measured: Callable[[], Measured] | None = None
    """the step with all of them, for pictures and traces; None where it does not end"""

    def document(self) -> dict[str, Any]:
        """The keys that stand under ``variability`` in the report's JSON document."""
        return {
            "faults": [
                {"key": row.key, "fault": row.fault, "begin_s": row.begin_s, "end_s": row.end_s, "effect": vars(row.effect).copy()}
                for row in self.rows
            ],
            "disturbed": vars(self.together).copy(),
        }

    def lines(self, ranks: int) -> list[str]:
        """What a terminal says: all together, and each alone where there are several; of a job of `ranks` GPUs."""
        subject = "With its faults" if len(self.rows) > 1 else "With its fault"
        if len(self.rows) == 1 and self.together.ended:
            subject += f", {self.rows[0].fault}"
        head = f"{subject}: {_said(self.together)}"
        lost = self.together.gpu_seconds_lost
        lines = [head]
        if lost > 0:
            lines.append(f"{ranks:,} GPUs lose {hours(lost)}")
        if len(self.rows) > 1:
            lines += [f"{row.fault}, alone: {_said(row.effect)}" for row in self.rows]
        return lines


def _said(effect: FaultEffect) -> str:
    """In one line."""
    return effect.why if effect.step_time_s is None else f"{seconds(effect.step_time_s)}; {effect.why}"


def hours(gpu_seconds: float) -> str:
    """Time of GPUs, in hours where it is worth it."""
    return f"{gpu_seconds / 3600:,.4g} GPU-hours" if gpu_seconds >= 360 else f"{gpu_seconds:,.4g} GPU-seconds"
