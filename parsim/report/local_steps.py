"""What a step of groups that step alone is made of: local steps, and the exchange that ends H of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parsim.parallel.settings import OuterLoop


@dataclass(frozen=True)
class LocalSteps:
    """Of one period: H local steps, and what of the exchange nobody computes beside."""

    outer: OuterLoop
    step: float
    """one local step [s]"""
    bytes: int
    """that a rank exchanges in a period, the fullest stage's [B]"""
    fragment: float
    """exchange of one part, with the same ranks of all other groups under way [s]"""

    @property
    def exposed(self) -> float:
        """What of a period's exchange is waited for [s]."""
        return self.outer.fragments * max(0.0, self.fragment - self.outer.overlap_steps * self.step)

    @property
    def period(self) -> float:
        """From one exchange to the next [s]."""
        return self.outer.local_steps * self.step + self.exposed

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "groups": self.outer.size,
            "local_steps": self.outer.local_steps,
            "fragments": self.outer.fragments,
            "overlap_steps": self.outer.overlap_steps,
            "dtype": self.outer.dtype,
            "local_step_s": self.step,
            "exchange_bytes": self.bytes,
            "exchange_s": self.outer.fragments * self.fragment,
            "exposed_s": self.exposed,
            "period_s": self.period,
            "compute_utilisation": self.outer.local_steps * self.step / self.period,
        }
