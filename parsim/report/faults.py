"""What faults do to a step: each alone, and all together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding

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

    @property
    def verdict(self) -> str:
        """One sentence."""
        return self.together.why
