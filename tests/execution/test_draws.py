"""Draws have addresses; factors have mean 1 and the standard deviation that was asked for; static speeds have the extremes of their law."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.simulation.draws import Draws
from parsim.simulation.factors import CUT, EVERYWHERE, Factors
from parsim.variability import CAUSES, SHAPES, Variability

ADDRESSES = st.tuples(st.integers(0, 99), st.sampled_from(CAUSES), st.tuples(*[st.integers(0, 2**40)] * 3))


@given(st.integers(0, 2**63 - 1), ADDRESSES, ADDRESSES)
@settings(max_examples=50, deadline=None)
def test_a_draw_is_a_function_of_its_address(seed, here, there):
    draws = Draws(seed)
    first = draws.normal(*here, 5)
    other = draws.normal(*there, 5)  # what is asked for in between changes nothing
    assert np.array_equal(Draws(seed).normal(*here, 8)[:5], first), "more draws begin with the same ones"
    assert here == there or not np.any(first == other)
    assert not np.any(Draws(seed ^ 1).normal(*here, 5) == first)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("relative", [0.02, 0.15])
def test_factors_have_mean_1_and_their_standard_deviation(shape, relative):
    count = 200_000
    variability = Variability(kernel=relative, shape=shape)
    factors = Factors(variability).jitter(0, "kernel", EVERYWHERE, count)
    assert factors.min() > 0
    assert factors.mean() == pytest.approx(1.0, abs=4 * relative / sqrt(count))
    assert factors.std() == pytest.approx(relative, rel=0.02)


def slowest(variability, gpus, runs, **causes):
    """By run, the largest factor of a cluster of machines with eight GPUs."""
    on = {"spread": True, "slow_nodes": False} | causes
    return np.array([Factors(variability).of_gpus(run, gpus, lambda gpu: gpu // 8, **on).max() for run in range(runs)])


@pytest.mark.parametrize(
    ("variability", "gpus", "slow", "mean"),
    [
        # 1 + 0.02 E[max of 1,024 standard normals], 3.248240 (Harter, Expected values of normal order statistics, Biometrika 1961)
        (Variability(spread=0.02, node_share=0.0), 1024, False, 1.064965),
        # machine and GPU 1.5 % each: by quadrature over the maximum within a machine
        (Variability(spread=0.015 * sqrt(2), node_share=0.5), 1024, False, 1.0680197),
        # by quadrature of the mixture: 128 machines, 0.5 % of them 1.10 times as long
        (Variability(spread=0.01, node_share=0.0, slow_share=0.005, slow_speed=1 / 1.1), 1024, True, 1.072439),
    ],
)
def test_the_slowest_gpu_of_a_cluster(variability, gpus, slow, mean):
    found = slowest(variability, gpus, 800, slow_nodes=slow)
    assert found.mean() == pytest.approx(mean, abs=3 * found.std() / sqrt(len(found)))


def test_static_speeds_end_at_four_standard_deviations():
    factors = Factors(Variability(spread=0.1)).of_gpus(0, 400_000, lambda gpu: gpu // 8, spread=True, slow_nodes=False)
    assert factors.max() == 1 + CUT * 0.1
    assert factors.min() == 1 - CUT * 0.1
    assert factors.mean() == pytest.approx(1.0, abs=4 * 0.1 * sqrt((0.5 + 0.5 * 8) / 400_000))


@pytest.mark.parametrize("aligned", [False, True])
def test_how_often_somebody_pauses(aligned):
    """1 - (1 - q)^N of the steps; the step of N = 128 ranks with pauses of 0.2 s every 500 steps is 45.211 ms longer, 0.4 ms if aligned."""
    variability = Variability(pause=0.2, every=500.0, aligned=aligned)
    chance = 1 / 500 if aligned else 1 - (1 - 1 / 500) ** 128
    assert 0.2 * chance == pytest.approx(0.4e-3 if aligned else 45.211e-3, abs=1e-6)
    factors, runs = Factors(variability), 200
    ranks = range(1 if aligned else 128)
    struck = [any(factors.pause(run, rank) is not None for rank in ranks) for run in range(runs * (10 if aligned else 1))]
    assert np.mean(struck) == pytest.approx(chance, abs=3 * sqrt(chance * (1 - chance) / len(struck)))
    if aligned:
        assert factors.pause(7, 0) == factors.pause(7, 5)


def test_a_cut_of_four_standard_deviations_concerns_one_gpu_in_fifteen_thousand():
    assert 1 - erf(CUT / sqrt(2)) == pytest.approx(1 / 15_787, rel=1e-3)
