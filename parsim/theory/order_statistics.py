"""The slowest of many: maxima of independent random times, and what sorted runs say about a quantile.

E[max of N] = integral of x dF(x)^N; ranks of different kinds multiply their distribution functions, F_max = product of F_c^n_c
(David and Nagaraja, Order Statistics, 3rd ed., 2003, sections 2.1 and 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil, erfc, exp, expm1, fsum, inf, isclose, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist

STANDARD = NormalDist()
EULER_GAMMA = 0.5772156649015329

# nodes and weights of Gauss and Legendre's rule of five points on [-1, 1] (Abramowitz and Stegun, table 25.4)
_LEGENDRE = (
    (0.0, 0.5688888888888889),
    (0.5384693101056831, 0.47862867049936647),
    (-0.5384693101056831, 0.47862867049936647),
    (0.906179845938664, 0.23692688505618908),
    (-0.906179845938664, 0.23692688505618908),
)
_PANELS = 200


@dataclass(frozen=True)
class Law:
    """A distribution of times: `above(x)` is P(X > x); outside [`low`, `high`] lies less than 1e-16 of it."""

    above: Callable[[float], float]
    low: float
    high: float

    def log_below(self, x: float) -> float:
        """Log of P(X <= x); -inf where nothing lies below."""
        above = self.above(x)
        return log1p(-above) if above < 1 else -inf


def normal_law(mean: float = 0.0, sd: float = 1.0) -> Law:
    """A normal distribution."""
    return Law(lambda x: 0.5 * erfc((x - mean) / (sd * sqrt(2))), mean - 9 * sd, mean + 9 * sd)


def lognormal_law(mean: float, relative_sd: float) -> Law:
    """Times of a given mean and relative standard deviation s: the log has variance ln(1 + s^2), so the mean stays."""
    width = sqrt(log1p(relative_sd**2))
    middle = log(mean) - width**2 / 2
    return Law(
        lambda x: 0.5 * erfc((log(x) - middle) / (width * sqrt(2))) if x > 0 else 1.0, exp(middle - 9 * width), exp(middle + 9 * width)
    )


def exponential_law(mean: float = 1.0) -> Law:
    """Exponential times."""
    return Law(lambda x: exp(-x / mean) if x > 0 else 1.0, 0.0, 45 * mean)


def mixture_law(parts: Sequence[tuple[Law, float]]) -> Law:
    """One time that follows each law with its probability (they add up to 1), such as a node that is slow or not."""
    if not isclose(fsum(share for _, share in parts), 1.0):
        raise ValueError("probabilities of a mixture add up to 1")
    return Law(
        lambda x: fsum(share * law.above(x) for law, share in parts), min(law.low for law, _ in parts), max(law.high for law, _ in parts)
    )


@dataclass(frozen=True)
class Maximum:
    """The largest of independent times: (law, how many) for each kind of rank.

    >>> slowest = Maximum(((normal_law(1, 0.02), 1024),))
    >>> round(slowest.mean(), 6), [round(slowest.quantile(q), 6) for q in (0.05, 0.5, 0.95, 0.99)]
    (1.064965, [1.05513, 1.064088, 1.077803, 1.085381])
    """

    parts: tuple[tuple[Law, int], ...]

    def below(self, x: float) -> float:
        """P(max <= x)."""
        return exp(fsum(count * law.log_below(x) for law, count in self.parts))

    def mean(self) -> float:
        """E[max], in the unit of the laws."""
        return self._end() - self._integral(lambda _: 1.0)

    def variance(self) -> float:
        """Variance of the maximum, in the unit of the laws squared."""
        end = self._end()
        return 2 * self._integral(lambda x: end - x) - self._integral(lambda _: 1.0) ** 2

    def quantile(self, probability: float) -> float:
        """The x with P(max <= x) = probability, for 0 < probability < 1."""
        low, high = min(law.low for law, _ in self.parts), self._end()
        while (middle := (low + high) / 2) not in {low, high}:
            low, high = (middle, high) if self.below(middle) < probability else (low, middle)
        return high

    def _end(self) -> float:
        return max(law.high for law, _ in self.parts)

    def _integral(self, weight: Callable[[float], float]) -> float:
        """Integral of weight(x) P(max <= x) over all laws' ranges, each law's own range cut finely enough for its width."""
        cuts = sorted({law.low + (law.high - law.low) * i / _PANELS for law, _ in self.parts for i in range(_PANELS + 1)})
        total = 0.0
        for low, high in pairwise(cuts):
            middle, half = (low + high) / 2, (high - low) / 2
            total += half * fsum(share * weight(x) * self.below(x) for node, share in _LEGENDRE for x in (middle + half * node,))
        return total


@cache
def normal_maximum_mean(count: int) -> float:
    """E[max of N standard normals], e_N.

    >>> [round(normal_maximum_mean(n), 6) for n in (2, 8, 128, 1024, 16384)]
    [0.56419, 1.4236, 2.594597, 3.24824, 3.971351]
    """
    return Maximum(((normal_law(), count),)).mean()


@cache
def normal_maximum_variance(count: int) -> float:
    """Variance of the maximum of N standard normals, v_N.

    >>> [round(normal_maximum_variance(n), 6) for n in (2, 8, 1024)]
    [0.68169, 0.372897, 0.123033]
    """
    return Maximum(((normal_law(), count),)).variance()


def normal_maximum_quantile(count: int, probability: float) -> float:
    """Quantile of the maximum of N standard normals: Phi^-1(q^(1/N)), from the far end, where 1 - q^(1/N) keeps its digits.

    >>> [round(normal_maximum_quantile(1024, q), 5) for q in (0.05, 0.5, 0.95, 0.99)]
    [2.75649, 3.20442, 3.89016, 4.26906]
    """
    return -STANDARD.inv_cdf(-expm1(log(probability) / count))


def normal_maximum_blom(count: int) -> float:
    """Blom's approximation of E[max of N standard normals]: Phi^-1((N - 0.375)/(N + 0.25)) (Blom, 1958); within 0.75 % for N >= 8.

    >>> round(normal_maximum_blom(1024) / normal_maximum_mean(1024), 4)
    0.9956
    """
    return STANDARD.inv_cdf((count - 0.375) / (count + 0.25))


def normal_maximum_gumbel(count: int) -> float:
    """The limit law's mean for N >= 2 standard normals: a + 0.5772 b, a = Phi^-1(1 - 1/N), b = 1/(N phi(a)); 0.2 to 5.4 % high from N = 8.

    Fisher and Tippett, 1928; David and Nagaraja, section 10.5.

    >>> round(normal_maximum_gumbel(1024) / normal_maximum_mean(1024), 4)
    1.0062
    """
    place = -STANDARD.inv_cdf(1 / count)
    return place + EULER_GAMMA / (count * STANDARD.pdf(place))


def exponential_maximum_mean(count: int, mean: float = 1.0) -> float:
    """E[max of N exponential times]: the mean times 1 + 1/2 + ... + 1/N (Renyi, 1953).

    >>> round(exponential_maximum_mean(1024), 6), round(exponential_maximum_mean(16384), 6)
    (7.509176, 10.281307)
    """
    return mean * fsum(1 / k for k in range(1, count + 1))


def maximum_bound(count: int, mean: float, sd: float) -> float:
    """No distribution has a larger E[max of N]: mean + sd (N - 1)/sqrt(2N - 1) (Gumbel, 1954; Hartley and David, 1954).

    >>> round(maximum_bound(2, 0, 1), 6), round(maximum_bound(8, 0, 1), 6)
    (0.57735, 1.807392)
    """
    return mean + sd * (count - 1) / sqrt(2 * count - 1)


def expected_excess(slack: float) -> float:
    """E[max(0, Z - s)] of a standard normal: what of a delay shows behind a slack of s sd; phi(s) - s (1 - Phi(s)).

    >>> [round(expected_excess(s), 7) for s in (0, 1, 2)]
    [0.3989423, 0.0833155, 0.0084907]
    """
    return exp(-slack * slack / 2) / sqrt(2 * pi) - slack * 0.5 * erfc(slack / sqrt(2))


def lockstep_pass(kernels: int, kernel_time: float, relative_sd: float, ranks: int) -> tuple[float, float]:
    """Mean and sd [s] of K kernels that t ranks do in step: K u (1 + s e_t) and s u sqrt(K v_t), for normal times.

    >>> mean, sd = lockstep_pass(320, 1e-3, 0.05, 8)
    >>> round(1e3 * mean, 4), round(1e3 * sd, 6)
    (342.7776, 0.546185)
    """
    mean = kernels * kernel_time * (1 + relative_sd * normal_maximum_mean(ranks))
    return mean, relative_sd * kernel_time * sqrt(kernels * normal_maximum_variance(ranks))


def balanced_load(ranks: int, tokens: int, experts_per_token: int) -> float:
    """Rows of the busiest of `ranks` expert ranks over the mean, where each of T tokens per rank visits K of equally likely experts.

    Binomial counts are nearly normal: 1 + e_n sqrt((1 - 1/n) / (T K)), as if ranks were independent. That rows of all ranks have a fixed
    sum makes the busiest slightly busier: 1.0080 where draws of 8 of 256 experts are counted for n = 8 and T = 4,096.

    >>> [round(balanced_load(ranks, tokens, 8), 5) for ranks, tokens in ((8, 4096), (64, 4096), (32, 8192))]
    [1.00736, 1.01285, 1.00796]
    """
    return 1 + normal_maximum_mean(ranks) * sqrt((1 - 1 / ranks) / (tokens * experts_per_token))


def rank_interval_coverage(runs: int, probability: float, low: int, high: int) -> float:
    """Chance that the quantile lies between the low-th and the high-th smallest of n runs, whatever their distribution.

    Sum over i from low to high - 1 of C(n, i) q^i (1 - q)^(n - i); ranks count from 1 (David and Nagaraja, section 7.1).

    >>> round(rank_interval_coverage(200, 0.95, 183, 196), 5), round(rank_interval_coverage(100, 0.95, 90, 99), 5)
    (0.96146, 0.95145)
    """
    return fsum(_binomial(runs, probability, range(low, high)))


def fewest_runs(probability: float, confidence: float = 0.95) -> int:
    """Fewest runs whose largest is above the quantile with this confidence: 1 - q^n >= confidence (Wilks, 1941).

    >>> fewest_runs(0.95), fewest_runs(0.99)
    (59, 299)
    """
    return ceil(log1p(-confidence) / log(probability))


def _binomial(runs: int, probability: float, successes: Iterable[int]) -> list[float]:
    # powers of both shares underflow beyond some thousand runs, so everything stays a logarithm
    every = lgamma(runs + 1)
    return [exp(every - lgamma(i + 1) - lgamma(runs - i + 1) + i * log(probability) + (runs - i) * log1p(-probability)) for i in successes]
