"""Runs from one heap: what meets nobody takes the time it would take alone, the rest is the network's; all as with an event per op."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from parsim.hardware.background import Background
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.program.program import OFFLOAD, Collective, Lane, Program
from parsim.simulation.engine import Engine

CAPACITY = (10.0, 10.0, 8.0, 25.0)


class Fabric:
    """Four links; a collective's flows are told by its number of bytes."""

    def __init__(self, costs):
        self.costs = costs

    def cost(self, collective):
        return self.costs[collective.bytes]

    def capacity(self, link):
        return CAPACITY[link]


class Slowest:
    """The slowest rate that any load allows; every third load takes nothing."""

    RATES = (0.5, 0.8, 1.0)

    def load(self, collective):
        return collective.bytes % 3

    def compute_rate(self, loads, memory_bound):
        return min((self.RATES[load] for load in loads), default=1.0)

    def alike(self, loads):
        return (min(loads),) if loads else ()

    def communication_rate(self, memory_bound):
        return 1.0


class Product(Slowest):
    """Loads add up, and memory-bound kernels feel them more."""

    def compute_rate(self, loads, memory_bound):
        rate = 1.0
        for load in loads:
            rate *= self.RATES[load] ** (1 + memory_bound)
        return rate

    def alike(self, loads):
        return tuple(loads)


FLOWS = st.builds(
    lambda links, volume, cap, weight: Flow(tuple(links.items()), volume, cap, weight),
    st.dictionaries(st.integers(0, 3), st.sampled_from([1.0, 2.0]), min_size=1, max_size=2),
    st.sampled_from([0.0, 3.0, 10.0, 17.3, 40.0]),
    st.sampled_from([2.0, 4.0, 5.0, 7.7, 10.0]),
    st.sampled_from([1.0, 2.0]),
)
COSTS = st.lists(
    st.builds(lambda latency, flows: CollectiveCost(latency, tuple(flows)), st.sampled_from([0.0, 0.25, 1.1]), st.lists(FLOWS, max_size=3)),
    min_size=1,
    max_size=5,
)
NAMES = ("compute", "tensor", "send", "receive")
OPS = st.lists(
    st.tuples(
        st.sets(st.tuples(st.integers(0, 2), st.sampled_from(NAMES)), min_size=1, max_size=3),
        st.integers(-2, 6),
        st.sampled_from([0.0, 0.5, 1.0, 2.3]),
        st.lists(st.integers(1, 4), max_size=2),
    ),
    min_size=1,
    max_size=24,
)
CHANGES = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 3.7]), st.integers(0, 3), st.sampled_from([4.0, 10.0, 30.0])), max_size=2)
OTHERS = st.lists(
    st.builds(
        lambda link, cap, volume, begin, every: Background(((link, 1.0),), cap, volume, begin, every),
        st.integers(0, 3),
        st.sampled_from([2.0, 9.0]),
        st.sampled_from([float("inf"), 5.0]),
        st.sampled_from([0.0, 2.0]),
        st.sampled_from([0.0, 4.0]),
    ),
    max_size=2,
)


def made(ops, costs):
    """A program of kernels (in a rank's compute lane) and collectives of these costs in any lanes."""
    program = Program(memory_bound={"k1": 0.5})
    for number, (places, which, duration, needs) in enumerate(ops):
        before = tuple(program.ops[-back] for back in needs if back <= number)
        if which < 0:
            rank = min(places)[0]
            program.add(f"k{-which - 1}", "compute", (Lane(rank, "compute"),), before, duration)
            continue
        lanes = tuple(Lane(*place) for place in sorted(places))
        axis = OFFLOAD if which == 5 else "data"
        collective = Collective("send", axis, tuple(range(2)), which % len(costs))
        program.add("send", "data_comm", lanes, before, duration if which == 3 else 0.0, collective)
    return program


def both(program, costs, **around):
    """The run with an event per op and the quick one, after every figure has been compared."""
    wanted = Engine(program, Fabric(costs), **around).run()
    found = Engine(program, Fabric(costs), quick=True, **around).run()
    scale = max(wanted.makespan, 1e-300)
    np.testing.assert_allclose(found.starts, wanted.starts, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(found.ends, wanted.ends, rtol=0, atol=1e-11 * scale)
    assert found.links.keys() == wanted.links.keys()
    for link, use in wanted.links.items():
        assert found.links[link].bytes == pytest.approx(use.bytes, rel=1e-9, abs=1e-9)
        assert found.links[link].saturated == pytest.approx(use.saturated, rel=1e-9, abs=1e-9 * scale)
    assert found.stretched == wanted.stretched
    return wanted, found


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(OPS, COSTS, st.sampled_from([None, Slowest(), Product()]), CHANGES, OTHERS)
def test_any_program(ops, costs, interference, changes, others):
    _, found = both(made(ops, costs), costs, interference=interference, capacity_changes=changes, background=others)
    event(f"network {'used' if found.events > len(ops) else 'idle'}")
