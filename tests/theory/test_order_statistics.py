"""Maxima of many times: tables of exact digits, laws, and numpy's draws as a second way."""

from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.theory import order_statistics as order

# N, E[max], variance, quantiles 5, 50, 95, 99 %: mean and variance of Teichroew (Ann. Math. Stat. 27, 1956) up to 20, quadrature beyond
TABLE = [
    (2, 0.564190, 0.681690, -0.76007, 0.54495, 1.95451, 2.57496),
    (8, 1.423600, 0.372897, 0.48922, 1.38520, 2.48978, 3.02201),
    (64, 2.343733, 0.203486, 1.68775, 2.29831, 3.15549, 3.60343),
    (128, 2.594597, 0.175244, 1.99297, 2.54907, 3.35235, 3.77968),
    (1024, 3.248240, 0.123033, 2.75649, 3.20442, 3.89016, 4.26906),
    (2048, 3.441799, 0.111833, 2.97568, 3.39881, 4.05520, 4.42121),
    (16384, 3.971351, 0.087780, 3.56371, 3.93095, 4.51737, 4.85125),
    (100_000, 4.384319, 0.073909, 4.01315, 4.34602, 4.88661, 5.19840),
]


@pytest.mark.parametrize(("count", "mean", "variance", "p05", "p50", "p95", "p99"), TABLE)
def test_maximum_of_normals_to_the_last_digit(count, mean, variance, p05, p50, p95, p99):
    assert order.normal_maximum_mean(count) == pytest.approx(mean, abs=6e-7)
    assert order.normal_maximum_variance(count) == pytest.approx(variance, abs=6e-7)
    for probability, value in ((0.05, p05), (0.5, p50), (0.95, p95), (0.99, p99)):
        assert order.normal_maximum_quantile(count, probability) == pytest.approx(value, abs=6e-6)
        assert order.Maximum(((order.normal_law(), count),)).quantile(probability) == pytest.approx(value, abs=6e-6)


def test_small_maxima_are_known_exactly():
    assert order.normal_maximum_mean(1) == pytest.approx(0, abs=1e-13)
    assert order.normal_maximum_mean(2) == pytest.approx(1 / sqrt(np.pi), abs=1e-13)
    assert order.normal_maximum_mean(3) == pytest.approx(1.5 / sqrt(np.pi), abs=1e-13)
    assert order.normal_maximum_variance(1) == pytest.approx(1, abs=1e-12)
    assert order.normal_maximum_variance(2) == pytest.approx(1 - 1 / np.pi, abs=1e-12)


@pytest.mark.parametrize(("count", "harmonic"), [(1, 1.0), (2, 1.5), (1024, 7.509176), (16384, 10.281307)])
def test_maximum_of_exponentials_two_ways(count, harmonic):
    assert order.exponential_maximum_mean(count, 2.0) == pytest.approx(2 * harmonic, abs=1e-6)
    maximum = order.Maximum(((order.exponential_law(2.0), count),))
    assert maximum.mean() == pytest.approx(order.exponential_maximum_mean(count, 2.0), rel=1e-11)
    assert maximum.variance() == pytest.approx(4 * sum(k**-2 for k in range(1, count + 1)), rel=1e-9)
    assert maximum.quantile(0.95) == pytest.approx(-2 * np.log(-np.expm1(log(0.95) / count)), rel=1e-12)


def test_shortcuts_are_as_close_as_they_say():
    exact = {count: order.normal_maximum_mean(count) for count in (8, 16, 64, 1024, 16384, 100_000)}
    assert max(abs(order.normal_maximum_blom(n) / e - 1) for n, e in exact.items()) < 0.0075
    assert all(1.002 < order.normal_maximum_gumbel(n) / e < 1.0545 for n, e in exact.items())
    assert order.normal_maximum_gumbel(1024) / exact[1024] == pytest.approx(1.006, abs=5e-4)


def test_nodes_of_which_a_few_are_slow():
    """128 nodes of 8 GPUs, GPUs with sd 1 %, each node slow by 1.10 with probability 0.5 %."""
    gpu, slow = order.normal_law(1, 0.01), order.normal_law(1.10, 0.011)
    node = [order.Maximum(((law, 8),)) for law in (gpu, slow)]
    laws = [order.Law(lambda x, m=m: 1 - m.below(x), law.low, law.high) for m, law in zip(node, (gpu, slow), strict=True)]
    cluster = order.Maximum(((order.mixture_law([(laws[0], 0.995), (laws[1], 0.005)]), 128),))
    assert cluster.mean() == pytest.approx(1.072439, abs=1e-6)
    assert cluster.quantile(0.5) == pytest.approx(1.03889, abs=1e-5)
    assert cluster.quantile(0.95) == pytest.approx(1.12543, abs=1e-5)
    assert order.Maximum(((gpu, 1024),)).mean() == pytest.approx(1.032482, abs=1e-6)


def test_classes_multiply_their_distributions():
    """Two kinds of ranks: against a million draws, and equal kinds against one kind."""
    fast, slow = order.lognormal_law(1.0, 0.05), order.exponential_law(0.3)
    maximum = order.Maximum(((fast, 12), (slow, 3)))
    rng = np.random.Generator(np.random.Philox(5))
    width = sqrt(np.log1p(0.05**2))
    drawn = np.exp(width * rng.standard_normal((100_000, 12)) - width**2 / 2).max(axis=1)
    drawn = np.maximum(drawn, 0.3 * rng.standard_exponential((100_000, 3)).max(axis=1))
    assert maximum.mean() == pytest.approx(drawn.mean(), abs=4 * drawn.std() / sqrt(drawn.size))
    assert maximum.variance() == pytest.approx(drawn.var(), rel=0.05)
    halves = order.Maximum(((order.normal_law(), 400), (order.normal_law(), 624)))
    assert halves.mean() == pytest.approx(order.normal_maximum_mean(1024), rel=1e-12)
    assert order.Maximum(((fast, 1),)).mean() == pytest.approx(1.0, rel=1e-12)


def test_what_a_slack_leaves_and_kernels_in_lockstep():
    assert [order.expected_excess(s) for s in (0, 1, 2)] == pytest.approx([0.398942, 0.083315, 0.0084907], abs=6e-7)
    mean, sd = order.lockstep_pass(320, 1.0, 0.05, 8)
    assert (mean, sd) == (pytest.approx(342.7776, abs=1e-4), pytest.approx(0.546185, abs=1e-6))
    assert mean + sd * order.normal_maximum_mean(128) == pytest.approx(344.1947, abs=1e-4)  # over 128 replicas
    once = order.Maximum(((order.normal_law(320, 0.05 * sqrt(320)), 8),))  # one barrier behind all 320 kernels
    assert once.mean() == pytest.approx(321.2733, abs=1e-4)


def test_machines_that_differ_and_their_gpus():
    """128 machines (sd 1.5 %) of 8 GPUs (1.5 %): what is common to a machine is drawn once, and costs less than 1,024 draws of both."""
    independent = 0.015 * sqrt(2) * order.normal_maximum_mean(1024)
    assert 100 * independent == pytest.approx(6.89056, abs=1e-5)
    inside = order.Maximum(((order.normal_law(0.0, 0.015), 8),))
    steps = np.linspace(-8, 8, 201)
    density = np.exp(-steps * steps / 2)
    weights = density / density.sum()
    machine = order.Law(lambda x: float(1 - sum(w * inside.below(x - 0.015 * z) for w, z in zip(weights, steps, strict=True))), -0.12, 0.24)
    assert 100 * order.Maximum(((machine, 128),)).mean() == pytest.approx(6.80197, abs=2e-5)


@pytest.mark.parametrize(("ranks", "tokens", "factor"), [(8, 4096, 1.0073), (64, 4096, 1.0128), (32, 8192, 1.0079)])
def test_a_balanced_router_still_has_a_busiest_rank(ranks, tokens, factor):
    """Every one of `ranks` sends `tokens`, each to 8 of 256 experts that are equally likely: the rows of the busiest over the mean."""
    assert order.balanced_load(ranks, tokens, 8) == pytest.approx(factor, abs=1e-4)
    if ranks > 8:
        return  # drawing them takes seconds
    rng = np.random.Generator(np.random.Philox(11))
    rows = [
        rng.multivariate_hypergeometric([256 // ranks] * ranks, 8, size=ranks * tokens, method="marginals").sum(axis=0) for _ in range(8)
    ]
    drawn = np.mean([one.max() for one in rows]) / (tokens * 8)
    assert drawn == pytest.approx(factor, abs=0.0025)
    assert drawn > 1.002


def test_ranks_of_sorted_runs_cover_a_quantile():
    for runs, low, high, coverage in (
        (200, 183, 196, 0.96146),
        (100, 90, 99, 0.95145),
        (400, 372, 389, 0.95025),
        (1000, 937, 964, 0.95042),
    ):
        assert order.rank_interval_coverage(runs, 0.95, low, high) == pytest.approx(coverage, abs=5e-6)
    assert order.rank_interval_coverage(5000, 0.95, 0, 5001) == pytest.approx(1, rel=1e-9)
    assert (order.fewest_runs(0.95), order.fewest_runs(0.99)) == (59, 299)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5000), st.floats(0.5, 10), st.floats(0.01, 0.3))
def test_laws_of_maxima(count, mean, relative_sd):
    """Scaling, growth with N, the bound of all distributions, and quantiles that undo the distribution function."""
    sd = mean * relative_sd
    maximum = order.Maximum(((order.normal_law(mean, sd), count),))
    assert maximum.mean() == pytest.approx(mean + sd * order.normal_maximum_mean(count), rel=1e-11)
    assert maximum.mean() <= order.maximum_bound(count, mean, sd) * (1 + 1e-12)
    assert order.normal_maximum_mean(count + 1) > order.normal_maximum_mean(count)
    assert maximum.below(maximum.quantile(0.9)) == pytest.approx(0.9, rel=1e-9)
    assert exp(count * order.normal_law().log_below(order.normal_maximum_quantile(count, 0.3))) == pytest.approx(0.3, rel=1e-8)


def test_mixture_of_wrong_shares_is_refused():
    with pytest.raises(ValueError, match="add up to 1"):
        order.mixture_law([(order.normal_law(), 0.5)])
