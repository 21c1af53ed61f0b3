"""What a sample says of the distribution that it comes from, whatever that is: quantiles, and intervals that hold the truth mostly.

A quantile lies between two ranks of the sorted sample as often as a binomial count lies between them (David and Nagaraja, Order
Statistics, 2003, section 7.1). The mean is within Student's t of that of the sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

COVERAGE = 0.95
"""how often an interval holds what it is about"""
_TAIL = 12.0
"""standard deviations of a binomial count beyond which nothing lies"""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least value of a sorted sample that at least `share` of it does not exceed: no value between two of them is made up."""
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


@cache
def quantile_ranks(count: int, share: float) -> tuple[int, int] | None:
    """Ranks (from 1) of a sorted sample of `count` between whose values the true quantile `share` lies in at least 95 % of cases.

    Of the shortest intervals the one of the lowest ranks, whose upper end is the least extreme value. None: the sample is too small.
    """
    first, weights = _binomial(count, share)
    below = np.concatenate(([0.0], np.cumsum(weights)))  # P(count < first + i)
    ends = np.searchsorted(below, below + COVERAGE - 1e-12)
    known = np.flatnonzero((ends < len(below)) & (np.arange(len(below)) + first >= 1))
    known = known[first + ends[known] <= count]
    if not len(known):
        return None
    chosen = known[np.argmin(ends[known] - known)]
    return int(first + chosen), int(first + ends[chosen])


def coverage(count: int, share: float, ranks: tuple[int, int]) -> float:
    """How often the true quantile `share` lies between the values of two ranks (from 1) of a sorted sample of `count`."""
    first, weights = _binomial(count, share)
    return float(weights[max(0, ranks[0] - first) : max(0, ranks[1] - first)].sum())


def _binomial(count: int, share: float) -> tuple[int, NDArray[np.float64]]:
    """The first count that is not impossibly rare, and the probabilities from it on."""
    middle, reach = count * share, _TAIL * math.sqrt(count * share * (1.0 - share)) + _TAIL
    first, last = max(0, math.floor(middle - reach)), min(count, math.ceil(middle + reach))
    steps = np.arange(first, last, dtype=np.float64)
    logarithms = np.concatenate(([0.0], np.cumsum(np.log((count - steps) / (steps + 1.0) * (share / (1.0 - share))))))
    weights = np.exp(logarithms - logarithms.max())
    return first, weights / weights.sum()


@cache
def student_t(freedom: int, probability: float = COVERAGE) -> float:
    """The t that a variable of Student's distribution with `freedom` degrees of freedom stays within with `probability`."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < probability:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _within(middle, freedom) < probability else (low, middle)
    return high


_NORMAL_FROM = 10_000
"""degrees of freedom from which Student's t is the normal distribution to four digits"""


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t), as finite sums (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    if freedom >= _NORMAL_FROM:
        return math.erf(t / math.sqrt(2.0))
    angle = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for place in range(odd + 1, freedom + (0 if odd else 1), 2):
        total += term
        term *= square * place / (place + 1.0)
    return 2.0 / math.pi * (angle + sine * total) if odd else sine * total


def mean_interval(mean: float, deviation: float, count: int) -> tuple[float, float] | None:
    """Between what the true mean lies in 95 % of cases; None for one value, which says nothing about others."""
    if count < 2:
        return None
    reach = student_t(count - 1) * deviation / math.sqrt(count)
    return mean - reach, mean + reach
