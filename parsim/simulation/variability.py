"""How far machines and steps differ: the parameters of every cause, and the factors that draws become under them.

All factors are of time and have mean 1, so that a disturbed op takes on average what it takes undisturbed; what a disturbed *step* takes
longer is waiting. None is cut at 0, which would move the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log1p, sqrt

import numpy as np

from parsim.simulation.draws import CAUSES, Draws, Floats, Place

SHAPES = ("lognormal", "normal", "exponential")
MOST_NORMAL = 0.15
"""largest relative sd of normal jitter: 0 is 6.7 standard deviations below the mean, and no draw gets there"""
CUT = 4.0
"""static speeds end here [standard deviations]: slower GPUs are replaced"""
MEMORY_EXPONENT = 0.3
"""how much of a GPU's slowness memory-bound kernels show: clocks differ by card, HBM hardly does; estimate"""
EVERYWHERE: Place = (0, 0, 0)
_GPUS: Place = (1, 0, 0)
_NODES: Place = (2, 0, 0)


@dataclass(frozen=True)
class Variability:
    """The `variability` section; jitters and spreads are relative standard deviations."""

    seed: int = 0
    runs: int = 1
    kernel: float = 0.0
    """of each kernel"""
    collective: float = 0.0
    """of each collective, common to its ranks"""
    host: float = 0.0
    """of each launch"""
    step: float = 0.0
    """of all kernels of a step together"""
    shape: str = "lognormal"
    spread: float = 0.0
    """of GPUs among each other"""
    node_share: float = 0.5
    """of the variance of `spread`, what GPUs of a node have in common"""
    slow_share: float = 0.0
    """of nodes that are slow"""
    slow_speed: float = 1.0
    """of these"""
    pause: float = 0.0
    """of a rank's host [s]"""
    every: float = 500.0
    """mean steps from one to the next"""
    aligned: bool = False
    """all hosts pause at once"""

    @property
    def causes(self) -> tuple[str, ...]:
        """What is random here, in the order of `CAUSES`."""
        slow = self.slow_share * (self.slow_speed != 1.0)
        sizes = (self.spread, slow, self.kernel, self.collective, self.host, self.step, self.pause)
        return tuple(cause for cause, size in zip(CAUSES, sizes, strict=True) if size)

    def jitter(self, draws: Draws, run: int, cause: str, place: Place, count: int) -> Floats:
        """Factors of `count` ops at a place."""
        relative: float = getattr(self, cause)
        if self.shape == "exponential":  # what is above the shortest time is exponential
            return 1.0 - relative + relative * draws.exponential(run, cause, place, count)
        z = draws.normal(run, cause, place, count)
        if self.shape == "normal":
            return 1.0 + relative * z
        variance = log1p(relative * relative)
        return np.exp(sqrt(variance) * z - variance / 2)

    def gpu_factors(self, draws: Draws, run: int, gpus: int, node_of: Callable[[int], int], *, spread: bool, slow_nodes: bool) -> Floats:
        """How many times as long compute-bound kernels take on every GPU of a cluster, for the whole run: 1 / speed.

        Normal with sd `spread`, cut at 4 of them; `node_share` of the variance is common to a node.
        """
        nodes = np.array([node_of(gpu) for gpu in range(gpus)], dtype=np.int64)
        count = int(nodes.max()) + 1
        factors = np.ones(gpus)
        if spread:
            own, common = draws.normal(run, "gpus", _GPUS, gpus), draws.normal(run, "gpus", _NODES, count)
            z = sqrt(1.0 - self.node_share) * own + sqrt(self.node_share) * common[nodes]
            factors = 1.0 + self.spread * np.clip(z, -CUT, CUT)
        if slow_nodes:
            slow = draws.uniform(run, "slow_nodes", _NODES, count) < self.slow_share
            factors = np.where(slow[nodes], factors / self.slow_speed, factors)
        return factors

    def pauses(self, draws: Draws, run: int, rank: int) -> float | None:
        """At which share of the step a rank's host pauses; None: in this one it does not."""
        strikes, moment = draws.uniform(run, "pause", EVERYWHERE if self.aligned else (1, rank, 0), 2)
        return float(moment) if strikes * self.every < 1.0 else None
