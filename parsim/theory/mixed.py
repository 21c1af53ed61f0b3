"""Closed forms for clusters of GPUs of different speed.

Speeds v_i are samples (or layers) per unit of time. A synchronous step ends when the last replica does, T = max b_i / v_i; with whole
samples the best T is the smallest at which sum floor(T v_i) covers them, and one of the T = b / v_i. A pipeline's slowest stage
obeys the same rule with layers for samples, as long as layers are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor, fsum


def even_time(speeds: Sequence[float], amount: int) -> float:
    """Everyone has amount / n (rounded up): the slowest decides.

    >>> even_time([1.0] * 4 + [0.5] * 4, 80)
    20.0
    """
    return ceil(amount / len(speeds)) / min(speeds)


def least_time(speeds: Sequence[float], amount: int) -> float:
    """Everyone has as much as fits into one time, in fractions: the bound of all whole splits.

    >>> round(least_time([1.0] * 8 + [0.45] * 8, 512), 4)
    44.1379
    """
    return amount / fsum(speeds)


def uneven_split(speeds: Sequence[float], amount: int) -> tuple[tuple[int, ...], float]:
    """The best split into whole parts and its time, by bisection over b / v_i; what is too much is taken from the last.

    >>> uneven_split([1, 1, 1, 0.6], 32)
    ((9, 9, 9, 5), 9.0)
    """
    exact = [Fraction(str(speed)) for speed in speeds]
    times = sorted({part / speed for speed in set(exact) for part in range(1, amount + 1)})
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        if sum(floor(times[middle] * speed) for speed in exact) >= amount:
            high = middle
        else:
            low = middle + 1
    parts = [floor(times[low] * speed) for speed in exact]
    surplus = sum(parts) - amount
    for at in reversed(range(len(parts))):
        taken = min(surplus, parts[at])
        parts[at] -= taken
        surplus -= taken
    return tuple(parts), float(times[low])


def asynchronous_throughput(speeds: Sequence[float]) -> float:
    """Nobody waits for anybody: the sum of the speeds."""
    return fsum(speeds)


def synchronous_throughput(speeds: Sequence[float]) -> float:
    """Equal parts, and everyone waits for the slowest: n times its speed."""
    return len(speeds) * min(speeds)
