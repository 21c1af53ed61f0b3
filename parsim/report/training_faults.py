"""What breaks at given moments of a training, and what comes of it: for documents and for people."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from parsim.report.quantities import percent, seconds


@dataclass(frozen=True)
class TrainingFault:
    """One of `variability.faults`, or a slow while."""

    key: str
    """of the scenario"""
    fault: str
    begin: float
    """[s]"""
    end: float | None
    """when its effect is over [s]; None: not within the training, or with the restart after it"""
    effect: Literal["slower", "stands", "fails", "nothing"]
    step_time: float | None = None
    """of a step while it lasts, by itself [s]; None where no step is done"""
    speed: float | None = None
    """work per time while it lasts, of that without it"""

    def within(self, wall: float) -> TrainingFault:
        """The same in a training that is over after `wall` [s]."""
        return self if self.begin < wall else replace(self, effect="nothing", step_time=None, speed=None)

    def document(self) -> dict[str, Any]:
        """A row of ``training_run.faults``."""
        return {
            "key": self.key, "fault": self.fault, "begin_s": self.begin, "end_s": self.end, "effect": self.effect,
            "step_time_s": self.step_time, "speed": self.speed,
        }  # fmt: skip

    def line(self) -> str:
        """What a terminal says."""
        if self.effect == "slower" and self.step_time is not None and self.speed is not None:
            return f"{self.fault}: steps of {seconds(self.step_time)}, {percent(self.speed)} of the normal speed"
        if self.effect == "stands" and self.end is not None:
            return f"{self.fault}: training stands still for {seconds(self.end - self.begin)}"
        if self.effect == "fails":
            return f"{self.fault}: the job fails and recovers"
        return f"{self.fault}: nothing changes"
