"""The factors that draws become.

Factors are of time. Those of jitter and of a spread of GPUs have mean 1, so that a disturbed op takes on average what it takes
undisturbed, and a disturbed step is longer by its waiting. None is cut at 0, which would move the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log1p, sqrt

import numpy as np

from parsim.simulation.draws import Draws, Floats, Place
from parsim.variability import Variability

CUT = 4.0
"""static speeds end here [standard deviations]: slower GPUs are replaced"""
MEMORY_EXPONENT = 0.3
"""how much of a GPU's slowness memory-bound kernels show: clocks differ by card, HBM hardly does; estimate"""
EVERYWHERE: Place = (0, 0, 0)
_GPUS: Place = (1, 0, 0)
_NODES: Place = (2, 0, 0)


class Factors:
    """The factors of a cluster's ops and GPUs under a `variability`, by the draws of its seed."""

    def __init__(self, variability: Variability) -> None:
        self.variability = variability
        self.draws = Draws(variability.seed)

    def jitter(self, run: int, cause: str, place: Place, count: int) -> Floats:
        """Factors of `count` ops at a place."""
        relative: float = getattr(self.variability, cause)
        if self.variability.shape == "exponential":  # what is above the shortest time is exponential
            return 1.0 - relative + relative * self.draws.exponential(run, cause, place, count)
        z = self.draws.normal(run, cause, place, count)
        if self.variability.shape == "normal":
            return 1.0 + relative * z
        variance = log1p(relative * relative)
        return np.exp(sqrt(variance) * z - variance / 2)

    def of_gpus(self, run: int, gpus: int, node_of: Callable[[int], int], *, spread: bool, slow_nodes: bool) -> Floats:
        """How many times as long compute-bound kernels take on every GPU of a cluster, for the whole run: 1 / speed.

        Normal with sd `spread`, cut at 4 of them; `node_share` of the variance is common to a node.
        """
        nodes = np.array([node_of(gpu) for gpu in range(gpus)], dtype=np.int64)
        count = int(nodes.max()) + 1
        factors = np.ones(gpus)
        if spread:
            own, common = self.draws.normal(run, "gpus", _GPUS, gpus), self.draws.normal(run, "gpus", _NODES, count)
            z = sqrt(1.0 - self.variability.node_share) * own + sqrt(self.variability.node_share) * common[nodes]
            factors = 1.0 + self.variability.spread * np.clip(z, -CUT, CUT)
        if slow_nodes:
            slow = self.draws.uniform(run, "slow_nodes", _NODES, count) < self.variability.slow_share
            factors = np.where(slow[nodes], factors / self.variability.slow_speed, factors)
        return factors

    def pause(self, run: int, rank: int, step: int = 0) -> float | None:
        """At which share of a step a rank's host pauses; None: in this one it does not."""
        strikes, moment = self.draws.uniform(run, "pause", (0, 0, step) if self.variability.aligned else (1, rank, step), 2)
        return float(moment) if strikes * self.variability.every < 1.0 else None
