"""Splits over GPUs of different speed: closed forms, and two ways to find the best whole split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.parallel.shares import balanced_shares
from parsim.parallel.stages import cuts_of
from parsim.theory.mixed import asynchronous_throughput, even_time, least_time, synchronous_throughput, uneven_split

HALF_SLOW = [1.0] * 8 + [0.45] * 8


def layers_of(speeds, layers):
    edges = cuts_of([[[count / speed for count in range(layers + 1)]] for speed in speeds])
    return tuple(b - a for a, b in pairwise(edges))


def test_a_batch_over_two_kinds():
    assert even_time(HALF_SLOW, 512) == pytest.approx(71.1111, abs=5e-5) == 32 / 0.45
    shares, time = uneven_split(HALF_SLOW, 512)
    assert shares == (44,) * 8 + (20,) * 8 == balanced_shares(HALF_SLOW, 512)
    assert time == pytest.approx(44.4444, abs=5e-5)
    assert least_time(HALF_SLOW, 512) == pytest.approx(44.1379, abs=5e-5)


def test_layers_over_two_kinds():
    speeds = [1.0] * 4 + [0.5] * 4
    assert even_time(speeds, 80) == 20
    assert uneven_split(speeds, 80)[1] == 14
    assert least_time(speeds, 80) == pytest.approx(13.3333, abs=5e-5)
    counts = layers_of(speeds, 80)
    assert sum(counts) == 80
    assert max(counts[:4]) <= 14
    assert max(counts[4:]) <= 7
    assert uneven_split([1, 1, 1, 0.6], 32) == ((9, 9, 9, 5), 9)
    assert layers_of([1, 1, 1, 0.6], 32) == (9, 9, 9, 5)


def test_waiting_for_nobody_and_for_all():
    assert asynchronous_throughput(HALF_SLOW) == pytest.approx(11.6, rel=1e-12)
    assert synchronous_throughput(HALF_SLOW) == pytest.approx(7.2, rel=1e-12)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 60))
def test_the_best_whole_split_found_in_two_ways(tenths, more):
    speeds = [speed / 10 for speed in tenths]
    count = len(speeds) + more
    shares = balanced_shares(speeds, count)
    assert sum(shares) == count
    assert min(shares) >= 1
    time = max(share / speed for share, speed in zip(shares, speeds, strict=True))
    best = max(uneven_split(speeds, count)[1], 1 / min(speeds))  # a replica has at least one micro-batch
    assert time == pytest.approx(best, rel=1e-12)
    assert time >= least_time(speeds, count) * (1 - 1e-12)
    layers = layers_of(speeds, count)
    assert max(part / speed for part, speed in zip(layers, speeds, strict=True)) == pytest.approx(time, rel=1e-12)
