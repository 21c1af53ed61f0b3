"""Closed forms of local steps: published utilisations, bandwidths, streaming, and laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.theory import local_steps as local


@pytest.mark.parametrize(("exchange", "utilisation", "published"), [(103, 0.956777, 0.96), (382, 0.856499, 0.86), (469, 0.829393, 0.83)])
def test_intellect_1(exchange, utilisation, published):
    """38 minutes of training, then an all-reduce in the USA, across the Atlantic, worldwide (arXiv 2412.01152)."""
    found = local.compute_utilisation(100, 22.8, exchange)
    assert found == pytest.approx(utilisation, abs=6e-7)
    assert found == pytest.approx(published, abs=0.005)
    mfu = {103: 41.4, 382: 37.1, 469: 35.9}[exchange]
    assert 43.3 * found == pytest.approx(mfu, abs=0.06)


@pytest.mark.parametrize(("target", "gigabits"), [(0.5, 0.065163), (0.9, 0.586466), (0.95, 1.238095), (0.99, 6.451128)])
def test_bandwidth_for_a_utilisation(target, gigabits):
    bandwidth = local.bandwidth_for_utilisation(14, 10e9, 2280, target)
    assert 8e-9 * bandwidth == pytest.approx(gigabits, abs=6e-7)
    assert local.compute_utilisation(100, 22.8, local.outer_all_reduce(14, 10e9, bandwidth)) == pytest.approx(target, rel=1e-12)


def test_streaming_and_stragglers():
    assert [local.exposed_exchange(469, 22.8, 10, o) / 10 for o in (1, 2)] == pytest.approx([24.1, 1.3], abs=1e-9)
    assert [local.compute_utilisation(100, 22.8, 469, 10, o) for o in (1, 2)] == pytest.approx([0.904403, 0.994331], abs=6e-7)
    assert [local.straggling(14, 0.05, h) for h in (1, 100)] == pytest.approx([1.085169, 1.008517], abs=6e-7)
    assert local.traffic_reduction(100, 4, 1) == 400


@given(st.integers(1, 500), st.floats(0.01, 100), st.floats(0, 1000), st.integers(1, 20), st.integers(0, 10))
def test_laws_of_periods(steps, step, exchange, fragments, overlap):
    period = local.local_step_period(steps, step, exchange, fragments, overlap)
    assert steps * step <= period <= local.local_step_period(steps, step, exchange) * (1 + 1e-12)
    assert period <= local.local_step_period(steps, step, exchange, fragments) * (1 + 1e-12)
    assert local.local_step_period(steps, step, exchange, fragments) == pytest.approx(steps * step + exchange)
