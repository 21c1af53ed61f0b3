"""Pipeline schedules: makespans, bubbles, memory in flight, versions and staleness of weights."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from math import ceil, factorial


def naive_makespan(stages: int, micro_batches: int, forward: float, backward: float, latency: float = 0.0) -> float:
    """Model parallelism without a pipeline [s]: m (p (tF + tB) + 2 (p - 1) c).

    >>> naive_makespan(4, 8, 1, 2)
    96.0
    """
    return micro_batches * (stages * (forward + backward) + 2 * (stages - 1) * latency)


def gpipe_makespan(stages: int, micro_batches: int, forward: float, backward: float, latency: float = 0.0) -> float:
    """GPipe [s]: (m + p - 1)(tF + tB) + 2 (p - 1) c (Huang et al., arXiv 1811.06965, §2.3).

    >>> gpipe_makespan(4, 8, 1, 2), gpipe_makespan(4, 8, 1, 2, latency=0.5)
    (33.0, 36.0)
    """
    return (micro_batches + stages - 1) * (forward + backward) + 2 * (stages - 1) * latency


def one_f_one_b_makespan(stages: int, micro_batches: int, forward: float, backward: float, latency: float = 0.0) -> float:
    """1F1B with a flush [s]; at c = 0 the makespan of GPipe (Narayanan et al., arXiv 2104.04473, §2.2.1).

    With latency a rank runs out of micro-batches in flight: (m + p - 1)(tF + tB) + 2c (p - 1 + floor((m - 1)(p - 1)/p)).
    The latency term is derived here from `one_f_one_b_period` and holds for equal stages and pure latency; the tests
    compare it with the simulated schedule.

    >>> [one_f_one_b_makespan(4, m, 1, 2, latency=0.5) for m in (8, 16, 32)]
    [41.0, 71.0, 131.0]
    """
    waits = stages - 1 + (micro_batches - 1) * (stages - 1) // stages
    return (micro_batches + stages - 1) * (forward + backward) + 2 * latency * waits


def one_f_one_b_period(stages: int, forward: float, backward: float, latency: float = 0.0) -> float:
    """Steady seconds per micro-batch of 1F1B: tF + tB + 2 (p - 1) c / p.

    Little's law: stage 0 keeps p micro-batches in flight, and each takes a round trip of p (tF + tB) + 2 (p - 1) c.

    >>> [one_f_one_b_period(p, 1, 2, latency=0.5) for p in (2, 4, 8)]
    [3.5, 3.75, 3.875]
    """
    return forward + backward + 2 * (stages - 1) * latency / stages


def interleaved_makespan(stages: int, micro_batches: int, virtual_stages: int, forward: float, backward: float) -> float:
    """Interleaved 1F1B [s]: (m + (p - 1)/v)(tF + tB) (arXiv 2104.04473, §2.2.2); tF and tB are of all v chunks of a rank.

    >>> interleaved_makespan(4, 8, 2, 1, 2), interleaved_makespan(4, 8, 4, 1, 2)
    (28.5, 26.25)
    """
    return (micro_batches + (stages - 1) / virtual_stages) * (forward + backward)


def looped_bfs_makespan(stages: int, micro_batches: int, virtual_stages: int, forward: float, backward: float) -> float:
    """Looped breadth-first pipeline [s]: ((v - 1) max(m, p) + m + p - 1)(tF + tB)/v; tF and tB are of all v chunks of a rank.

    For m >= p that of interleaved 1F1B (Lamy-Poirier, arXiv 2211.05953, section 3); with fewer micro-batches a loop waits for its
    first to come round, derived here.

    >>> looped_bfs_makespan(4, 8, 2, 1, 2), looped_bfs_makespan(4, 2, 2, 1, 2)
    (28.5, 13.5)
    """
    loops = (virtual_stages - 1) * max(micro_batches, stages) + micro_batches + stages - 1
    return loops * (forward + backward) / virtual_stages


def zb_h1_makespan(stages: int, micro_batches: int, forward: float, input_gradient: float, weight_gradient: float) -> float:
    """Zero-bubble ZB-H1 [s]: m (tF + tI + tW) + (p - 1)(tF + tI - tW) (Qi et al., arXiv 2401.10241), for tI >= tW.

    >>> zb_h1_makespan(4, 8, 1, 1, 1)
    27
    """
    both = forward + input_gradient
    return micro_batches * (both + weight_gradient) + (stages - 1) * (both - weight_gradient)


def interleaved_zb_makespan(
    stages: int, micro_batches: int, virtual_stages: int, forward: float, input_gradient: float, weight_gradient: float
) -> float:
    """Interleaved zero bubble [s]: m (tF + tI + tW) + (p - 1)/v (tF + tI - tW), for tF, tI >= tW; times are of all v chunks of a rank.

    ZB-H1's bubble, divided by v as interleaving divides that of 1F1B. Derived here for m >= p; the tests compare it with the simulated
    schedule.

    >>> interleaved_zb_makespan(4, 8, 2, 1, 1, 1), interleaved_zb_makespan(4, 8, 4, 1, 1, 1)
    (25.5, 24.75)
    """
    both = forward + input_gradient
    return micro_batches * (both + weight_gradient) + (stages - 1) / virtual_stages * (both - weight_gradient)


def zb_h2_span(stages: int, micro_batches: int, forward: float, input_gradient: float, weight_gradient: float) -> float:
    """Busy span of one rank under ZB-H2 [s]: m t + (p - 1) max(0, tF + tI - 2 tW) (arXiv 2401.10241), for m >= 2p - 1.

    >>> zb_h2_span(4, 8, 1, 1, 1)
    24
    """
    total = forward + input_gradient + weight_gradient
    return micro_batches * total + (stages - 1) * max(0, forward + input_gradient - 2 * weight_gradient)


def dualpipe_makespan(stages: int, micro_batches: int, forward: float, backward: float, weight_gradient: float, pair: float) -> float:
    """DualPipe [s]: m (tF + tB) + (p/2 - 1)(FB + B - 3W), FB the time of an overlapped pair (DeepSeek-V3, arXiv 2412.19437).

    The first term holds for pairs that gain nothing, FB = tF + tB. Pairs that gain make a step shorter by m - p/2 - 2 of their gains,
    derived here for tF = tI = tW; the tests compare it with the simulated schedule.

    >>> [dualpipe_makespan(4, 8, 1, 2, 1, pair=pair) for pair in (3, 2.5, 2)]
    [26.0, 24.0, 22.0]
    """
    whole = forward + backward
    bubble = (stages / 2 - 1) * (whole + backward - 3 * weight_gradient)
    return micro_batches * whole + bubble - (micro_batches - stages / 2 - 2) * (whole - pair)


def dualpipev_makespan(stages: int, micro_batches: int, forward: float, backward: float, weight_gradient: float, pair: float) -> float:
    """DualPipeV [s] for tF = tI = tW: m (tF + tB) + (p - 1) tF, less the gains of m - p/2 - 1 overlapped pairs; times are of both chunks.

    Derived here; the tests compare it with the simulated schedule.

    >>> [dualpipev_makespan(4, 8, 1, 2, 1, pair=pair) for pair in (3, 2.5, 2)]
    [27.0, 24.5, 22.0]
    """
    whole = forward + backward
    bubble = (stages - 1) * (whole - 2 * weight_gradient)
    return micro_batches * whole + bubble - (micro_batches - stages / 2 - 1) * (whole - pair)


def combined_makespan(stages: int, micro_batches: int, virtual_stages: int, forward: float, backward: float, pair: float) -> float:
    """Combined 1F1B [s]: interleaved 1F1B, less the gains of m - ((v - 1) p + 1)/v overlapped pairs; times are of all v chunks of a rank.

    Derived here from the order of Megatron-LM's ``combined_1f1b.py``, for pairs of at least max(tF, tB); the tests compare it with the
    simulated schedule. With one rank tF + (m - 1) FB + tB.

    >>> combined_makespan(4, 8, 2, 1, 2, pair=3), combined_makespan(4, 8, 2, 1, 2, pair=2)
    (28.5, 23.0)
    """
    overlapped = micro_batches - ((virtual_stages - 1) * stages + 1) / virtual_stages
    return interleaved_makespan(stages, micro_batches, virtual_stages, forward, backward) - overlapped * (forward + backward - pair)


def chimera_makespan(stages: int, micro_batches: int, forward: float, backward: float) -> float:
    """Chimera with K p micro-batches, concatenated directly [s]: (p + 2 (K - 1)) min(tF, tB) + K (2p - 2) max(tF, tB).

    For tB = 2 tF and K = 1 that of Li and Hoefler (arXiv 2107.06925), 5p - 4 forwards, and for tF = tB and any K 2 K p + p - 2; the tests
    compare it with the simulated schedule.

    >>> [chimera_makespan(p, p, 1, 2) for p in (4, 6, 8)], chimera_makespan(4, 16, 1, 2), chimera_makespan(4, 16, 1, 1)
    ([16, 26, 36], 58, 34)
    """
    units = micro_batches // stages
    return (stages + 2 * (units - 1)) * min(forward, backward) + units * (2 * stages - 2) * max(forward, backward)


def bubble_fraction(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Idle share of a rank's step at zero latency with equal stages: bubble / (ideal + bubble).

    GPipe and 1F1B (p - 1)/(m + p - 1); interleaved (p - 1)/(v m + p - 1); naive (p - 1)/p.

    >>> round(bubble_fraction("1f1b", 4, 8), 4), round(bubble_fraction("interleaved", 4, 8, 2), 4), bubble_fraction("naive", 4, 8)
    (0.2727, 0.1579, 0.75)
    """
    ratio = bubble_over_ideal(schedule, stages, micro_batches, virtual_stages)
    return ratio / (1 + ratio)


def bubble_over_ideal(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """The papers' other ratio, bubble / ideal: (p - 1)/m for GPipe and 1F1B, (p - 1)/(v m) interleaved (looped if m >= p), p - 1 naive.

    PipeDream's and 2BW's is 0 in steady state. Raises `KeyError` for other schedules.

    >>> bubble_over_ideal("gpipe", 4, 8), bubble_over_ideal("interleaved", 4, 8, 4)
    (0.375, 0.09375)
    """
    ratios = {
        "naive": stages - 1.0,
        "gpipe": (stages - 1) / micro_batches,
        "1f1b": (stages - 1) / micro_batches,
        "interleaved": (stages - 1) / (virtual_stages * micro_batches),
        "looped-bfs": looped_bfs_makespan(stages, micro_batches, virtual_stages, 1, 2) / (3 * micro_batches) - 1,
        "pipedream": 0.0,
        "pipedream-2bw": 0.0,
    }
    return ratios[schedule]


def in_flight(schedule: str, stages: int, micro_batches: int, stage: int, virtual_stages: int = 1) -> int:
    """Most (chunk, micro-batch) pairs whose activations rank `stage` holds; interleaved counts chunks of 1/v of a rank.

    GPipe m; looped breadth-first m v; naive 1; 1F1B and PipeDream min(m, p - s); interleaved min(m v, 2 (p - s - 1) + (v - 1) p + 1)
    (arXiv 2104.04473 and Megatron-LM's warm-up rule). Until their weight gradients are made: ZB-H1 min(m, p), ZB-H2 min(m, 2 p - 1) and
    ZB-V min(2 m, m + s + 1, 2 p) chunks of half a rank (arXiv 2401.10241); interleaved zero bubble min(m v, (v - 1) m/r + p) with
    r = max(1, floor(m/p)) rounds. Combined 1F1B has one chunk more than interleaved 1F1B; DualPipe p + 1 micro-batches, DualPipeV 2 p + 1
    chunks of half a rank (arXiv 2412.19437), Chimera p/2 + 1 on the outer ranks to p on the inner ones (arXiv 2107.06925). What the
    orders of arXiv 2405.15362 come to, in halves too: V-Half min(2 m, m + s + 1, p + 2), where an
    odd p has p + 1; V-Min 2 ceil(p/3) + 2 for m >= p, less 2 if p = 1 mod 3, less 1 on rank 0 if p = 2 mod 3. Raises `KeyError` for other
    schedules, and for V-Min with m < p.

    >>> [in_flight("interleaved", 4, 8, s, 2) for s in range(4)]
    [11, 9, 7, 5]
    >>> [in_flight("v-half", 4, 8, s) for s in range(4)], [in_flight("v-min", 8, 16, s) for s in range(3)]
    ([6, 6, 6, 6], [7, 8, 8])
    """
    if schedule == "interleaved" and virtual_stages == 1:
        schedule = "1f1b"
    counts = {
        "naive": 1,
        "gpipe": micro_batches,
        "looped-bfs": micro_batches * virtual_stages,
        "1f1b": min(micro_batches, stages - stage),
        "pipedream": min(micro_batches, stages - stage),
        "pipedream-2bw": min(micro_batches, stages - stage),
        "interleaved": min(micro_batches * virtual_stages, 2 * (stages - stage - 1) + (virtual_stages - 1) * stages + 1),
        "combined-1f1b": min(micro_batches * virtual_stages, 2 * (stages - stage - 1) + (virtual_stages - 1) * stages + 2),
        "dualpipe": stages + 1,
        "dualpipev": 2 * stages + 1,
        "chimera": min(min(micro_batches, stages) // 2, stages - stage) + min(min(micro_batches, stages) // 2, stage + 1),
        "zb-h1": min(micro_batches, stages),
        "zb-h2": min(micro_batches, 2 * stages - 1),
        "zb-v": min(2 * micro_batches, micro_batches + stage + 1, 2 * stages),
        "v-half": min(2 * micro_batches, micro_batches + stage + 1, stages + 2 - stages % 2),
        "interleaved-zb": min(
            micro_batches * virtual_stages, (virtual_stages - 1) * (micro_batches // max(1, micro_batches // stages)) + stages
        ),
    }
    if micro_batches >= stages:
        less = (0, 2, int(stage == 0))[stages % 3]
        counts["v-min"] = 2 * ceil(stages / 3) + 2 - less
    return counts[schedule]


def pipedream_period(forward: Sequence[float], backward: Sequence[float], replicas: Sequence[int] | None = None) -> float:
    """Steady seconds per mini-batch of PipeDream: max over stages of (tF + tB)/replicas (Narayanan et al., SOSP 2019).

    >>> pipedream_period([1, 1, 1, 1], [2, 2, 2, 2])
    3.0
    """
    counts = replicas or [1] * len(forward)
    return max((f + b) / count for f, b, count in zip(forward, backward, counts, strict=True))


def pipedream_makespan(stages: int, mini_batches: int, forward: float, backward: float) -> float:
    """A run of m mini-batches started empty and drained, equal stages [s]: (m + p - 1)(tF + tB).

    >>> [pipedream_makespan(4, m, 1, 2) for m in (8, 9, 100, 200)]
    [33, 36, 309, 609]
    """
    return (mini_batches + stages - 1) * (forward + backward)


def pipedream_noam(workers: int, input_workers: int = 1) -> int:
    """NUM_OPT_ACTIVE_MINIBATCHES: mini-batches admitted at start-up, ceil(workers / workers of the input stage) (SOSP 2019, §3.2).

    >>> pipedream_noam(4)
    4
    """
    return ceil(workers / input_workers)


def pipedream_versions(stages: int, stage: int) -> int:
    """Weight versions that stage s stashes, the newest included: p - s (SOSP 2019, §3.3).

    >>> [pipedream_versions(4, s) for s in range(4)]
    [4, 3, 2, 1]
    """
    return stages - stage


def pipedream_staleness(stages: int, stage: int) -> int:
    """Updates of stage s between a mini-batch's forward and its backward, in steady state: p - 1 - s.

    >>> [pipedream_staleness(4, s) for s in range(4)]
    [3, 2, 1, 0]
    """
    return stages - 1 - stage


_Terms = dict[tuple[int, int], Fraction]
"""sum of factor x^k e^(-j x), by (k, j)"""


def exponential_pipeline(micro_batches: int, stages: int) -> tuple[float, float]:
    """Mean and variance [s] of a forward-only pipeline whose m p passes are independent exponentials of mean 1 s.

    The makespan T is last-passage percolation (Johansson, Commun. Math. Phys. 209, 437 (2000), eq. 1.10-1.18): with n = min(m, p),
    a = abs(m - p) and the lower incomplete gamma function g, P(T <= x) = det[g(a + i + j + 1, x)] / prod k! (a + k)!, i, j, k = 0 .. n - 1.
    Written out it is a sum of x^k e^(-j x), which is integrated exactly. For large m and p, (sqrt m + sqrt p)^2.

    >>> exponential_pipeline(1, 4), exponential_pipeline(2, 2), exponential_pipeline(3, 2)
    ((4.0, 4.0), (3.5, 3.25), (4.875, 4.359375))
    >>> [round(value, 5) for value in exponential_pipeline(8, 4)]
    [15.94177, 11.41499]
    """
    size, apart = min(micro_batches, stages), abs(micro_batches - stages)
    scale = Fraction(1)
    for k in range(size):
        scale /= factorial(k) * factorial(apart + k)
    gamma = {order: _incomplete_gamma(order) for order in range(apart + 1, apart + 2 * size)}
    below: _Terms = {}
    for columns in permutations(range(size)):
        product: _Terms = {(0, 0): scale * _sign(columns)}
        for row, column in enumerate(columns):
            product = _times(product, gamma[apart + row + column + 1])
        for term, factor in product.items():
            below[term] = below.get(term, Fraction(0)) + factor
    late = {term: -factor for term, factor in below.items() if factor and term != (0, 0)}  # 1 - P(T <= x)
    mean = sum((factor * Fraction(factorial(k), j ** (k + 1)) for (k, j), factor in late.items()), Fraction(0))
    square = sum((2 * factor * Fraction(factorial(k + 1), j ** (k + 2)) for (k, j), factor in late.items()), Fraction(0))
    return float(mean), float(square - mean * mean)


def _incomplete_gamma(order: int) -> _Terms:
    """g(n, x) = (n - 1)! (1 - e^-x sum over k < n of x^k / k!)."""
    whole = Fraction(factorial(order - 1))
    return {(0, 0): whole} | {(k, 1): -whole / factorial(k) for k in range(order)}


def _times(one: _Terms, other: _Terms) -> _Terms:
    product: _Terms = {}
    for (k, j), factor in one.items():
        for (further, more), times in other.items():
            term = (k + further, j + more)
            product[term] = product.get(term, Fraction(0)) + factor * times
    return product


def _sign(columns: Sequence[int]) -> int:
    """Of a permutation."""
    swaps = sum(columns[i] > columns[j] for i in range(len(columns)) for j in range(i + 1, len(columns)))
    return -1 if swaps % 2 else 1
