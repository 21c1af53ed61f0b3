"""How long a whole training run takes, and what failures, stragglers and memory bandwidth do to it."""

from __future__ import annotations

from math import exp, expm1, log, sqrt

DAY = 86_400.0
"""seconds"""


def time_to_train(parameters: float, tokens: float, devices: int, flops_per_device: float, flop_per_weight: float = 8) -> float:
    """8 T P/(n X) seconds, X the FLOP/s that a device achieves (arXiv 2104.04473, §5.1); 8 = 6 + 2 for recomputation, 6 without.

    >>> round(time_to_train(175e9, 300e9, 1024, 140e12) / DAY, 2)
    33.91
    """
    return flop_per_weight * tokens * parameters / (devices * flops_per_device)


def tokens_time(tokens: float, tokens_per_second_per_device: float, devices: int) -> float:
    """Seconds for a token budget at a measured rate.

    >>> round(tokens_time(1.4e12, 380, 2048) / DAY, 2)
    20.82
    """
    return tokens / (tokens_per_second_per_device * devices)


def gpu_hours(flop: float, peak: float, utilisation: float) -> float:
    """Device hours for a budget of FLOP at an MFU (goodput included).

    >>> round(gpu_hours(6 * 6_738_415_616 * 2e12, 312e12, 0.3906), -2)
    184300.0
    """
    return flop / (peak * utilisation) / 3600


def memory_bound_time(size: float, bandwidth: float, efficiency: float = 1.0) -> float:
    """Seconds to stream `size` bytes: the floor of decoding (weights per token) and of an optimizer step (28 to 30 B per parameter).

    >>> round(memory_bound_time(2 * 6_738_415_616, 3.35e12) * 1e3, 3)
    4.023
    """
    return size / (bandwidth * efficiency)


def young_interval(checkpoint: float, mtbf: float) -> float:
    """Time between checkpoints that wastes least, to first order [s]: sqrt(2 C M) (Young 1974).

    >>> round(young_interval(60, 3 * 3600), 2)
    1138.42
    """
    return sqrt(2 * checkpoint * mtbf)


def daly_interval(checkpoint: float, mtbf: float) -> float:
    """Young's interval with higher orders [s]: sqrt(2CM) (1 + sqrt(C/2M)/3 + C/18M) - C (Daly 2006), for C < 2M.

    >>> round(daly_interval(60, 3 * 3600), 1)
    1098.8
    """
    ratio = checkpoint / (2 * mtbf)
    return young_interval(checkpoint, mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint


def checkpoint_overhead(interval: float, checkpoint: float, mtbf: float, restart: float = 0.0) -> float:
    """Share of time lost to checkpoints, repeated work and restarts: C/tau + tau/(2M) + R/M.

    >>> round(100 * checkpoint_overhead(young_interval(60, 10800), 60, 10800), 2)
    10.54
    """
    return checkpoint / interval + interval / (2 * mtbf) + restart / mtbf


def daly_wall_time(useful: float, interval: float, checkpoint: float, mtbf: float, restart: float = 0.0) -> float:
    """Expected time [s] of `useful` seconds of work under Poisson failures: M e^(R/M) (e^((tau + C)/M) - 1) T/tau.

    Failures also strike while a checkpoint is written and while the job restarts. Daly 2006, equation 20 (exact).

    >>> round(daly_wall_time(100 * 3600, 1099, 60, 3 * 3600, 300) / 3600, 2)
    114.46
    """
    return mtbf * exp(restart / mtbf) * expm1((interval + checkpoint) / mtbf) * useful / interval


def exact_interval(checkpoint: float, mtbf: float) -> float:
    """The interval that makes `daly_wall_time` shortest [s]: M (1 + W(-e^(-1 - C/M))), W Lambert's principal branch (by Newton).

    >>> round(exact_interval(60, 3 * 3600), 1)
    1098.8
    """
    target = -exp(-1 - checkpoint / mtbf)
    w = -1 + sqrt(2 * (1 - exp(-checkpoint / mtbf)))  # the branch point's series
    for _ in range(60):
        w -= (w * exp(w) - target) / (exp(w) * (1 + w))
    return mtbf * (1 + w)


def job_mtbf(device_mtbf: float, devices: int) -> float:
    """Mean time between failures of a job that any device stops [s]: M/N.

    >>> round(job_mtbf(50_700, 16_384), 2)
    3.09
    """
    return device_mtbf / devices


def slowest_of(ranks: int, mean: float, deviation: float) -> float:
    """Expected slowest of n ranks with relative jitter sigma [s]: about mean (1 + sigma sqrt(2 ln n)) (Gumbel's extreme-value limit)."""
    return mean * (1 + deviation * sqrt(2 * log(ranks)))
