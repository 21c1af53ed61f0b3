"""Which rank holds the others up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parsim.simulation.draws import Floats

_EQUAL = 1e-12


class SlowestRank:
    """The rank whose kernels take longest, in proportion to what they take undisturbed."""

    def __init__(self, ranks: int) -> None:
        self._own, self._whole = np.zeros(ranks), np.zeros(ranks)

    def add(self, members: NDArray[np.int64], own: Floats, whole: float) -> None:
        """Kernels that take `whole` seconds undisturbed and `own` now, in the shape of `members`, in which a rank may stand twice."""
        self._own[members] += own
        self._whole[members] += whole

    def join(self, other: SlowestRank) -> None:
        """Count another run as well."""
        self._own += other._own
        self._whole += other._whole

    def worst(self) -> tuple[int, float]:
        """(rank, how many times as long); -1 where no one is slower than all others."""
        ranks = np.flatnonzero(self._whole)
        if not len(ranks):
            return -1, 1.0
        slowness = self._own[ranks] / self._whole[ranks]
        first = int(np.argmax(slowness))
        most = float(slowness[first])
        if len(ranks) > 1 and np.count_nonzero(slowness >= most / (1 + _EQUAL)) > 1:
            return -1, most
        return int(ranks[first]), most
