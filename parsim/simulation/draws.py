"""Random numbers that have an address: seed, run, cause, place and number of the op; never the next of a shared stream.

A draw is a pure function of its address (Philox: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC11). So neither the order
of events nor folding, nor the number of workers, nor whether another cause is on changes it: runs of two scenarios that
share an address share the draw, and their difference has the variance of what differs.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from parsim.variability import CAUSES

Floats = NDArray[np.float64]
Place = tuple[int, int, int]
"""where the draws belong: numbers below 2^64, such as a rank and a lane"""


class Draws:
    """The draws of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def normal(self, run: int, cause: str, place: Place, count: int) -> Floats:
        """The first `count` standard normals at a place; more of them begin with the same ones."""
        return self._generator(run, cause, place).standard_normal(count)

    def exponential(self, run: int, cause: str, place: Place, count: int) -> Floats:
        """The same, exponentials of mean 1."""
        return self._generator(run, cause, place).standard_exponential(count)

    def uniform(self, run: int, cause: str, place: Place, count: int) -> Floats:
        """The same, uniform in [0, 1)."""
        return self._generator(run, cause, place).random(count)

    def _generator(self, run: int, cause: str, place: Place) -> np.random.Generator:
        key = np.array([self.seed, run << 8 | CAUSES.index(cause)], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, *place], dtype=np.uint64)))


def lane_number(name: str) -> int:
    """A number for a lane's name that is the same everywhere and always."""
    return crc32(name.encode())
