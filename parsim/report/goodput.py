"""How much of a job's time is useful where GPUs fail and checkpoints are written."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, sqrt
from typing import Any

SHORTEST = 1.0
"""checkpoints that take no time are still not written more often [s]"""


@dataclass(frozen=True)
class Failures:
    """Failures at a constant rate, each of which stops the whole job; all times in seconds.

    After a failure the job restarts (`restart`), does again what came after the last checkpoint, and goes on. Failures may
    strike while a checkpoint is written and while the job restarts. Source: Daly, A higher order estimate of the optimum
    checkpoint interval for restart dumps, 2006, equation 20.
    """

    mtbf: float
    """mean time between failures of the whole job"""
    checkpoint: float
    """training stands still for this long to write one"""
    restart: float
    interval: float
    """training time between two checkpoints"""

    @classmethod
    def at_best(cls, mtbf: float, checkpoint: float, restart: float, interval: float = 0.0) -> Failures:
        """With the interval that wastes least where none is given."""
        return cls(mtbf, checkpoint, restart, interval or best_interval(checkpoint, mtbf))

    @property
    def wall_per_useful(self) -> float:
        """Expected time per time of training, at least 1: M e^(R/M) (e^((tau + C)/M) - 1) / tau."""
        return self.mtbf * exp(self.restart / self.mtbf) * expm1((self.interval + self.checkpoint) / self.mtbf) / self.interval

    @property
    def goodput(self) -> float:
        """Useful time over all time, in (0, 1]."""
        return 1.0 / self.wall_per_useful

    def document(self, wall: float | None) -> dict[str, Any]:
        """The report's numbers; `wall`: the whole training [s], None if its length is unknown."""
        writing = self.goodput * self.checkpoint / self.interval
        return {
            "job_mtbf_s": self.mtbf,
            "checkpoint_time_s": self.checkpoint,
            "checkpoint_interval_s": self.interval,
            "restart_time_s": self.restart,
            "checkpoint_share": writing,
            "lost_share": max(0.0, 1.0 - self.goodput - writing),
            "expected_failures": None if wall is None else wall / self.mtbf,
        }


def best_interval(checkpoint: float, mtbf: float) -> float:
    """Training time between checkpoints that wastes least [s]: Daly's estimate for C < 2M, else M.

    sqrt(2CM) (1 + sqrt(C/2M)/3 + C/18M) - C; Young's sqrt(2CM) is its first term. Within 0.2 % of the best goodput (tests).
    """
    if checkpoint >= 2 * mtbf:
        return mtbf
    ratio = checkpoint / (2 * mtbf)
    return max(SHORTEST, sqrt(2 * checkpoint * mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint)
