"""What happened: two float columns beside the program, and what the links carried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parsim.program.program import Program


@dataclass(frozen=True)
class LinkUse:
    """What one link carried during the run."""

    bytes: float
    saturated: float
    """time at >= 99.9 % of capacity [s]"""


@dataclass(frozen=True)
class Trace:
    """Start and end of every op [s], by op index. The program itself is never changed by a run."""

    program: Program
    start: Sequence[float]
    end: Sequence[float]
    links: Mapping[int, LinkUse] = field(default_factory=dict)
    """link id -> use (links that carried nothing are absent)"""
    events: int = 0
    """simulation events processed"""

    @property
    def makespan(self) -> float:
        """End of the last op [s]."""
        return max(self.end, default=0.0)
