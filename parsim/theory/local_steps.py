"""Training with local steps (local SGD, DiLoCo): groups of replicas that take H steps each and then exchange what they learned.

Douillard et al., "DiLoCo", arXiv 2311.08105; with parts that are exchanged in turn, "Streaming DiLoCo", arXiv 2501.18512; across
continents, Jaghouar et al., "INTELLECT-1 Technical Report", arXiv 2412.01152. All of it is about time, nothing about the loss.
"""

from __future__ import annotations

from math import sqrt

from parsim.theory.order_statistics import normal_maximum_mean


def outer_all_reduce(groups: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """All-reduce among n groups over a ring [s]: latency + 2 (n - 1)/n S/B.

    >>> round(outer_all_reduce(14, 10e9, 0.065163e9 / 8))
    2280
    """
    return latency + 2 * (groups - 1) / groups * size / bandwidth


def exposed_exchange(exchange: float, step: float, fragments: int = 1, overlap_steps: int = 0) -> float:
    """What of a period's exchange nobody computes beside [s]: P max(0, C/P - o t), each of P parts needed o steps later.

    >>> [round(exposed_exchange(469, 22.8, 10, o), 9) for o in (0, 1, 2)]
    [469.0, 241.0, 13.0]
    """
    return fragments * max(0.0, exchange / fragments - overlap_steps * step)


def local_step_period(local_steps: int, step: float, exchange: float, fragments: int = 1, overlap_steps: int = 0) -> float:
    """H steps and the exchange that ends them [s]: H t + P max(0, C/P - o t).

    >>> local_step_period(100, 22.8, 103)
    2383.0
    """
    return local_steps * step + exposed_exchange(exchange, step, fragments, overlap_steps)


def compute_utilisation(local_steps: int, step: float, exchange: float, fragments: int = 1, overlap_steps: int = 0) -> float:
    """Share of the period that is training: H t over the period. INTELLECT-1: 38 minutes, then 103 s in one country to 469 s worldwide.

    >>> [round(compute_utilisation(100, 22.8, c), 6) for c in (103, 382, 469)]
    [0.956777, 0.856499, 0.829393]
    >>> [round(compute_utilisation(100, 22.8, 469, 10, o), 6) for o in (1, 2)]
    [0.904403, 0.994331]
    """
    return local_steps * step / local_step_period(local_steps, step, exchange, fragments, overlap_steps)


def bandwidth_for_utilisation(groups: int, size: float, inner: float, utilisation: float) -> float:
    """Bandwidth [B/s] at which the exchange leaves this compute utilisation: 2 (n - 1)/n S/(H t (1/CU - 1)); `inner` is H t [s].

    >>> [round(8e-9 * bandwidth_for_utilisation(14, 10e9, 2280, cu), 6) for cu in (0.5, 0.9, 0.95, 0.99)]
    [0.065163, 0.586466, 1.238095, 6.451128]
    """
    return 2 * (groups - 1) / groups * size / (inner * (1 / utilisation - 1))


def straggling(groups: int, relative_sd: float, local_steps: int = 1) -> float:
    """Mean period over that of equal groups, whose steps vary independently: 1 + s e_n/sqrt(H), e_n the mean maximum of n normals.

    What is slow all the time (another machine) gains nothing from local steps.

    >>> round(straggling(14, 0.05), 6), round(straggling(14, 0.05, 100), 6)
    (1.085169, 1.008517)
    """
    return 1 + relative_sd * normal_maximum_mean(groups) / sqrt(local_steps)


def traffic_reduction(local_steps: int, gradient_bytes: float = 4.0, outer_bytes: float = 4.0) -> float:
    """Times less traffic than gradients of every step: H x bytes of a gradient over bytes of what is exchanged.

    >>> traffic_reduction(100, 4, 1)
    400.0
    """
    return local_steps * gradient_bytes / outer_bytes
