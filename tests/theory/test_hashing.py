"""Balls into bins: exact numbers, exhaustive counts as a second way, and laws."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.theory import hashing


@pytest.mark.parametrize(("flows", "links", "chance"), [(4, 8, 0.41015625), (8, 8, 0.00240326), (16, 64, 0.12901153)])
def test_no_collision(flows, links, chance):
    assert float(hashing.no_collision_probability(flows, links)) == pytest.approx(chance, abs=5e-9)
    assert hashing.no_collision_probability(flows, links) == hashing.largest_load_below(flows, links, 1)


@pytest.mark.parametrize(
    ("flows", "links", "load"),
    [
        (2, 2, Fraction(3, 2)),
        (4, 4, Fraction(17, 8)),
        (8, 8, Fraction(680849, 262144)),
        (16, 8, 4.201416),
        (32, 8, 7.047784),
        (64, 8, 12.235295),
        (32, 32, 3.532941),
    ],
)
def test_mean_of_the_largest_load(flows, links, load):
    found = hashing.mean_largest_load(flows, links)
    assert found == load if isinstance(load, Fraction) else float(found) == pytest.approx(load, abs=6e-7)


def test_leaves_and_connections():
    assert [float(hashing.mean_largest_load(8, 8, leaves)) for leaves in (8, 32)] == pytest.approx([3.606961, 4.244600], abs=6e-7)
    assert float(hashing.hashing_slowdown(8, 8, 4)) == pytest.approx(1.761946, abs=6e-7)
    assert [float(hashing.hashing_slowdown(m, 8)) for m in (8, 16, 32, 64)] == pytest.approx([2.597, 2.101, 1.762, 1.529], abs=6e-4)


@pytest.mark.parametrize(("flows", "links", "connections"), [(3, 2, 1), (5, 3, 1), (2, 3, 1), (2, 4, 2), (3, 3, 2)])
def test_every_way_to_hash(flows, links, connections):
    loads = [max(map(way.count, way)) for way in product(range(links), repeat=flows * connections)]
    for load in range(flows * connections + 1):
        assert hashing.largest_load_below(flows * connections, links, load) == Fraction(sum(one <= load for one in loads), len(loads))
    mean = max(Fraction(flows, links), 1) * connections  # of a link, or what one flow puts on the links that it has to itself
    times = [max(1, Fraction(load) / mean) for load in loads]
    assert hashing.hashing_slowdown(flows, links, connections) == sum(times) / len(times)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.integers(1, 16), st.integers(1, 4))
def test_laws_of_hashing(flows, links, leaves):
    slowdown = hashing.hashing_slowdown(flows, links, leaves=leaves)
    assert 1 <= slowdown <= flows
    assert slowdown >= hashing.hashing_slowdown(flows, links)
    assert (slowdown == 1) == (links == 1 or flows == 1)
    assert hashing.largest_load_below(flows, links, flows) == 1


def test_other_jobs_in_turns():
    assert hashing.background_slowdown(1, 0.5, fast=False) == 1.5
    assert hashing.background_slowdown(1, 0.5, fast=True) == pytest.approx(4 / 3)
    assert hashing.background_slowdown(3, 1.0, fast=True) == hashing.background_slowdown(3, 1.0, fast=False) == 4
