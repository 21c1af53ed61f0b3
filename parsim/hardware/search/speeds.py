"""The speeds that the search tries, and what one NVLink domain makes of them.

Lists: NVIDIA/nccl 2.30, src/graph/search.cc (speedArrayIntra, speedArrayInter and their sm90 and sm100 forms).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

GB = 1e9
STOP = 0.49
"""a speed below this share of the best one's is not tried any more"""
EPSILON = 1e-9
"""relative tolerance of "fits": capacities are products of decimal fractions"""

_WITHIN = {
    0.0: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    9.0: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    10.0: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
_BETWEEN = {
    0.0: (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    9.0: (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    10.0: (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
}


def speed_list(capability: float, *, network: bool) -> tuple[float, ...]:
    """Speeds of a ring, fastest first [B/s]; empty if `capability` is 0: then the capacities on the way are the speeds.

    `capability` is the lowest CUDA compute capability of the group.
    """
    if not capability:
        return ()
    table = _BETWEEN if network else _WITHIN
    newest = max(first for first in table if capability >= first)
    return tuple(speed * GB for speed in table[newest])


def times(capacity: float, amount: float) -> int:
    """How often `amount` goes into `capacity`; at most one million."""
    ratio = capacity / amount
    return math.floor(ratio * (1 + EPSILON) + EPSILON) if ratio < 1e6 else 1_000_000


def distinct(capacities: Iterable[float]) -> tuple[float, ...]:
    """Different finite capacities, largest first [B/s]."""
    found: list[float] = []
    for capacity in sorted((value for value in capacities if 0 < value < math.inf), reverse=True):
        if not found or capacity < found[-1] * (1 - EPSILON):
            found.append(capacity)
    return tuple(found)


def largest_product(capacity: float, speeds: Iterable[float]) -> tuple[int, float]:
    """The count x speed nearest below `capacity`, the faster speed where two are equal; (0, 0.0) if nothing fits."""
    count, best = 0, 0.0
    for speed in speeds:
        if count and speed < STOP * best:
            break
        trial = times(capacity, speed)
        if trial * speed > count * best * (1 + EPSILON):
            count, best = trial, speed
    return count, best


def split(count: int, speed: float, capability: float) -> tuple[int, float]:
    """Fast channels in two halves each (NVIDIA/nccl src/graph/search.cc, ncclTopoDupChannels)."""
    if not capability or speed < 25 * GB or (capability > 8.0 and speed < 50 * GB and count > 4):
        return count, speed
    return 2 * count, speed / 2


def head_speed(bandwidth: float, heads: int, speeds: Iterable[float]) -> float:
    """The fastest listed speed of an in-switch head: every GPU link carries one per head, and its own twice [B/s]."""
    return next((speed for speed in speeds if (heads + 1) * speed <= bandwidth * (1 + EPSILON)), 0.0)
