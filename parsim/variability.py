"""How far machines and steps differ: the causes, and the parameters of each."""

from __future__ import annotations

from dataclasses import dataclass

CAUSES = ("gpus", "slow_nodes", "kernel", "collective", "host", "step", "pause", "hashing")
"""what disturbs a step, in the order of reports; its number in this list is part of an address, so new ones go to the end"""
STATIC = ("gpus", "slow_nodes", "hashing")
"""those that stay as they are for a whole training: they differ between clusters, not between steps"""
SHAPES = ("lognormal", "normal", "exponential")
"""of jitter"""
MOST_NORMAL = 0.15
"""largest relative sd of normal jitter: 0 is 6.7 standard deviations below the mean, and no draw gets there"""


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
    hashing: bool = False
    """flows are hashed onto other paths"""

    @property
    def causes(self) -> tuple[str, ...]:
        """What is random here, in the order of `CAUSES`."""
        slow = self.slow_share * (self.slow_speed != 1.0)
        sizes = (self.spread, slow, self.kernel, self.collective, self.host, self.step, self.pause, self.hashing)
        return tuple(cause for cause, size in zip(CAUSES, sizes, strict=True) if size)
