"""What failures leave of a training over weeks: checkpoints, restarts, spares and stragglers, as closed forms.

M: mean time between failures of the job, tau: training between two checkpoints, s: standstill to write one, L: until it is durable
after that, R: from a failure until training goes on. Failures come at a constant rate, also while the job saves and restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, expm1, fsum, lgamma, log, sqrt

from parsim.theory.sizing import exact_interval


def observed_mtbf(hours: float, failures: int) -> float:
    """Mean time between failures of a job that saw so many in so many hours [s].

    >>> round(observed_mtbf(54 * 24, 419) / 3600, 6)  # Llama 3, arXiv 2407.21783
    3.093079
    """
    return 3600.0 * hours / failures


def survival(time: float, mtbf: float) -> float:
    """Probability that nothing fails for so long.

    >>> round(survival(3600, observed_mtbf(54 * 24, 419)), 6)
    0.723755
    """
    return exp(-time / mtbf)


def any_of(count: int, share: float) -> float:
    """Probability that at least one of `count` is among the `share` of bad ones.

    >>> round(100 * any_of(128, 0.005), 4)
    47.3553
    """
    return 1.0 - (1.0 - share) ** count


def exact_goodput(mtbf: float, interval: float, stall: float, restart: float, lag: float = 0.0) -> float:
    """Useful time over all time: tau e^(-L/M) / (M e^(R/M) (e^((tau + s)/M) - 1)).

    Daly 2006, equation 20, for L = 0. For asynchronous saves: the k-th becomes durable k (tau + s) + L after a start, so that
    tau e^(-L/M) / (e^((tau + s)/M) - 1) of work survives a failure on average; L is at most tau + s.

    >>> round(exact_goodput(11_135.0835, 600, 5, 300, lag=120), 6)
    0.929316
    """
    return interval * exp(-lag / mtbf) / (mtbf * exp(restart / mtbf) * expm1((interval + stall) / mtbf))


def best_goodput(mtbf: float, stall: float, restart: float) -> float:
    """That of synchronous saves at the best interval, M (1 + W(-e^(-s/M - 1))).

    >>> round(best_goodput(15 * 60, 5 * 60, 10 * 60), 6)
    0.199668
    """
    return exact_goodput(mtbf, exact_interval(stall, mtbf), stall, restart)


def mtbf_with_restarts(mtbf: float, restarts: Iterable[tuple[float, float]]) -> float:
    """M / E[e^(-R/M)] [s], in the place of M e^(R/M) where restarts take R with probability p: (p, R) pairs.

    >>> round(mtbf_with_restarts(11_135.0835, [(0.9, 120), (0.1, 1800)]), 1)
    11415.6
    """
    return mtbf / fsum(share * exp(-time / mtbf) for share, time in restarts)


def finite_wall_time(segments: int, interval: float, stall: float, restart: float, mtbf: float) -> float:
    """Expected time [s] of a job of so many intervals, with no checkpoint after the last; a restart counts to its interval.

    >>> round(finite_wall_time(1, 100, 10, 0, 1e9), 3)
    100.0
    """
    saved = (segments - 1) * expm1((interval + stall) / mtbf)
    return mtbf * exp(restart / mtbf) * (saved + expm1(interval / mtbf))


def level_interval(stall: float, share: float, mtbf: float) -> float:
    """Interval of one of several kinds of checkpoints, which serves `share` of the failures, to first order: sqrt(2 s M / f) [s].

    >>> round(level_interval(1, 0.9, 11_135.0835), 3)
    157.304
    """
    return sqrt(2.0 * stall * mtbf / share)


def levels_waste(levels: Sequence[tuple[float, float, float]], mtbf: float) -> float:
    """Share of the time lost with several kinds of checkpoints, (stall, share of failures, restart) each at its best interval.

    Sum of s/tau + f (tau/2 + R)/M, to first order (Di et al. 2014 and others on multilevel checkpoints).

    >>> round(100 * levels_waste([(30, 1, 600)], 11_135.0835), 4)
    12.7289
    """
    waste = 0.0
    for stall, share, restart in levels:
        interval = level_interval(stall, share, mtbf)
        waste += stall / interval + share * (interval / 2 + restart) / mtbf
    return waste


def first_order_ettr(rate: float, restart: float, interval: float, stall: float = 0.0, queue: float = 0.0) -> float:
    """Effective training time ratio to first order, (1 - rate (u + tau/2) - s/tau) / (1 + rate q) (Kokolis et al. 2024, arXiv 2410.21680).

    Good while rate (u + tau/2) stays below about 0.1.

    >>> round(first_order_ettr(2048 * 6.5e-3 / 24, 5 / 60, 5 / 60), 6)
    0.930667
    """
    return (1.0 - rate * (restart + interval / 2) - stall / interval) / (1.0 + rate * queue)


def machines_in_repair(nodes: int, mtbf_node: float, repair: float) -> float:
    """Mean of the machines in repair, which are Poisson distributed whatever the law of the repair (Palm).

    >>> round(machines_in_repair(2048, 6334.63, 48), 4)
    15.5185
    """
    return nodes * repair / mtbf_node


def poisson_cdf(most: int, mean: float) -> float:
    """Probability of at most so many."""
    return fsum(exp(-mean + count * log(mean) - lgamma(count + 1)) for count in range(most + 1)) if mean > 0 else 1.0


def spares_needed(mean: float, probability: float) -> int:
    """Fewest spare machines that suffice with this probability, for a mean number in repair.

    >>> [spares_needed(15.5185, share) for share in (0.95, 0.99, 0.999)]
    [22, 25, 29]
    """
    spares = 0
    while poisson_cdf(spares, mean) < probability:
        spares += 1
    return spares


def eviction_pays_after(restart: float, lost: float, factor: float) -> float:
    """Remaining time [s] beyond which exchanging a GPU that makes every step `factor` times as long saves time: (R + lost) f/(f - 1).

    >>> round(eviction_pays_after(300, 60, 1.1), 6)
    3960.0
    """
    return (restart + lost) * factor / (factor - 1.0)


def replica_capacity(mtbf_replica: float, away: float) -> float:
    """Share of the replicas that train, where one that fails is back after `away`: 1 / (1 + away / M) (alternating renewal).

    >>> round(replica_capacity(50_677 / 512, 2), 6)
    0.980194
    """
    return 1.0 / (1.0 + away / mtbf_replica)


def replayed_wall_time(work: float, interval: float, stall: float, restart: float, failures: Iterable[float]) -> tuple[float, float]:
    """End of a job of `work` whose failures are at these times, and the time it lost [s]; no checkpoint after the last interval.

    >>> replayed_wall_time(300, 100, 10, 20, [150, 275])
    (505.0, 145.0)
    """
    now = done = lost = 0.0
    for failure in sorted(failures):
        began = now  # training goes on here at the latest
        while now <= failure and done < work:
            step = min(interval, work - done)
            end = now + step + (stall if done + step < work else 0.0)
            if end > failure:
                break
            now, done, began = end, done + step, end
        if done >= work:
            break
        lost += max(0.0, failure - began)
        now = failure + restart
    while done < work:
        step = min(interval, work - done)
        done += step
        now += step + (stall if done < work else 0.0)
    return now, lost
