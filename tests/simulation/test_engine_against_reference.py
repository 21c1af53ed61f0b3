"""The engine against a naive reference: a process per op, every rate worked out anew at every change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_engine import Reference

from parsim.errors import DeadlockError
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.transfers import Background
from parsim.parallel.groups import OFFLOAD, stream_lane
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.engine import Engine
from parsim.simulation.trace import LinkUse

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

    def kernel_load(self):
        return 1

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


class Wires(Product):
    """Kernels slow transfers, too."""

    def communication_rate(self, memory_bound):
        return 0.75 - 0.5 * memory_bound


FLOWS = st.builds(
    lambda links, volume, cap, weight: Flow(tuple(links.items()), volume, cap, weight),
    st.dictionaries(st.integers(0, 3), st.sampled_from([1.0, 2.0]), min_size=1, max_size=2),
    st.sampled_from([0.0, 3.0, 10.0, 17.3, 40.0]),
    st.sampled_from([2.0, 4.0, 5.0, 7.7, 10.0]),
    st.sampled_from([1.0, 2.0]),
)
COSTS = st.lists(
    st.builds(lambda latency, flows: CollectiveCost(latency, tuple(flows)), st.sampled_from([0.0, 0.25, 1.1]), st.lists(FLOWS, max_size=2)),
    min_size=2,
    max_size=5,
)
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 2.3, 7.1])
KERNELS = st.tuples(st.just("kernel"), st.integers(0, 2), st.integers(0, 1), SECONDS, st.lists(st.integers(1, 5), max_size=1))
BESIDE = st.tuples(st.just("beside"), st.integers(0, 2), st.sampled_from(["a", "b"]), SECONDS, st.lists(st.integers(1, 5), max_size=1))
LANES = st.sets(
    st.tuples(st.integers(0, 2), st.sampled_from(["tensor", "send", "receive", "receive", "data", "compute"])), min_size=1, max_size=3
)
TRANSFERS = st.tuples(st.just("transfer"), LANES, st.integers(0, 5), SECONDS, st.lists(st.integers(1, 5), max_size=2))
OPS = st.lists(KERNELS | TRANSFERS | BESIDE, min_size=6, max_size=30)
CHANGES = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 3.7]), st.integers(0, 3), st.sampled_from([4.0, 10.0, 30.0])), min_size=1, max_size=2
)
OTHERS = st.lists(
    st.builds(
        lambda link, cap, volume, begin, every: Background(((link, 1.0),), cap, volume, begin, every),
        st.integers(0, 3),
        st.sampled_from([2.0, 9.0]),
        st.sampled_from([float("inf"), 5.0]),
        st.sampled_from([0.0, 2.0]),
        st.sampled_from([0.0, 4.0]),
    ),
    min_size=1,
    max_size=2,
)
NOTHING = st.just([])


def made(ops, costs):
    """A program of kernels (in a rank's compute lane, or on a stream beside it) and transfers of these costs in any lanes."""
    program = Program(memory_bound={"k1": 0.5})
    for number, (kind, where, which, seconds, needs) in enumerate(ops):
        before = tuple(program.ops[-back] for back in needs if back <= number)
        if kind == "kernel":
            program.add(f"k{which}", "compute", (Lane(where, "compute"),), before, seconds)
            continue
        if kind == "beside":
            program.add("copy", "other", (Lane(where, stream_lane(which)),), before, seconds)
            continue
        lanes = tuple(Lane(*place) for place in sorted(where))
        collective = Collective("send", OFFLOAD if which == 5 else "data", (0, 1), which % len(costs))
        program.add("send", "data_comm", lanes, before, seconds if which == 3 else 0.0, collective)
    return program


def both(program, costs, **around):
    """The run, after every figure has been compared with the reference's."""
    wanted = Reference(program, Fabric(costs), **around)
    found = Engine(program, Fabric(costs), **around).run()
    scale = found.makespan
    np.testing.assert_allclose(found.starts, wanted.start, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(found.ends, wanted.end, rtol=0, atol=1e-11 * scale)
    for link in range(len(CAPACITY)):
        use = found.links.get(link, LinkUse(0.0, 0.0))
        assert use.bytes == pytest.approx(wanted.carried[link], rel=1e-9, abs=1e-9)
        assert use.saturated == pytest.approx(wanted.saturated[link], rel=1e-9, abs=1e-9 * scale)
    return found


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(OPS, COSTS, st.sampled_from([None, Slowest(), Product(), Wires()]), NOTHING | NOTHING | CHANGES, NOTHING | NOTHING | OTHERS)
def test_any_program(ops, costs, interference, changes, others):
    both(made(ops, costs), costs, interference=interference, capacity_changes=changes, background=others)


def messages(*sends, to=None):
    """(begin [s], index of the cost) of transfers that each wait for a kernel of a rank of their own; to a rank in a lane each."""
    program = Program()
    for rank, (begin, cost) in enumerate(sends):
        kernel = program.add("k", "compute", (Lane(rank, "compute"),), duration=begin)
        lanes = (Lane(rank, "send"), *([] if to is None else [Lane(to, f"receive {rank}")]))
        program.add("send", "pipeline_comm", lanes, (kernel,), 0.0, Collective("send", "pipeline", (rank, 9), cost))
    return program


def over(volume, cap, latency=0.0):
    """One flow on the link of 10 B/s."""
    return CollectiveCost(latency, (Flow(((0, 1.0),), volume, cap),))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), min_size=4, max_size=16),
    COSTS,
    st.sampled_from([None, Slowest(), Product(), Wires()]),
    st.lists(st.sampled_from([1.0, 2.3, 7.1]), min_size=1, max_size=6),
)
def test_any_messages_beside_kernels(sends, costs, interference, seconds):
    """Messages that come at any time, all to one rank, which computes meanwhile."""
    program = messages(*((half / 2, which % len(costs)) for half, which in sends), to=99)
    for kernel in seconds:
        program.add("k1", "compute", (Lane(99, "compute"),), duration=kernel)
    both(program, costs, interference=interference)


def test_a_transfer_under_way_shares_from_when_another_comes():
    """40 B at 10 B/s; 10 B come at 1 s: half each, those end at 3 s. 10 + 10 B are through then, the other 20 B end at 5 s."""
    found = both(messages((0.0, 0), (1.0, 1)), [over(40.0, 10.0), over(10.0, 10.0)])
    assert list(found.ends) == pytest.approx([0, 5, 1, 3], rel=1e-12)
    assert found.links[0].bytes == pytest.approx(50, rel=1e-12)
    assert found.links[0].saturated == pytest.approx(5, rel=1e-12)


def test_a_transfer_that_still_waits_for_its_latency():
    """Latency until 2 s, 20 B at 10 B/s; 30 B come at 1 s: alone for 1 s, half each for 4 s; both end at 6 s."""
    found = both(messages((0.0, 0), (1.0, 1)), [over(20.0, 10.0, latency=2.0), over(30.0, 10.0)])
    assert list(found.ends) == pytest.approx([0, 6, 1, 6], rel=1e-12)
    assert found.links[0].saturated == pytest.approx(5, rel=1e-12)


def test_transfers_that_cannot_fill_a_link_together_never_reach_the_network(monkeypatch):
    """2 x 4.9 B/s on 10: below the 99.9 % at which a link is full, the network is not asked; 5 + 5 are too much to say so."""
    asked = []
    monkeypatch.setattr("parsim.simulation.network.Network.start", lambda *a, **k: asked.append(a))
    found = Engine(messages((0.0, 0), (1.0, 0)), Fabric([over(9.8, 4.9)])).run()
    assert list(found.ends) == pytest.approx([0, 2, 1, 3], rel=1e-12)
    assert found.links[0].saturated == 0
    assert not asked
    with pytest.raises(DeadlockError):
        Engine(messages((0.0, 0), (1.0, 0)), Fabric([over(10.0, 5.0)])).run()
    assert len(asked) == 2


def test_flows_of_one_transfer_leave_a_link_one_after_the_other():
    """6 + 4 B/s fill the link until the first flow ends at 2 s, 4 B/s do not; the same again behind it."""
    flows = (Flow(((0, 1.0),), 12.0, 6.0), Flow(((0, 1.0),), 20.0, 4.0))
    found = both(messages((0.0, 0), (7.0, 0)), [CollectiveCost(0.5, flows)])
    assert list(found.ends) == pytest.approx([0, 5.5, 7, 12.5], rel=1e-12)
    assert found.links[0].saturated == pytest.approx(4, rel=1e-12)


def test_a_kernel_beside_transfers_that_come_and_go():
    """10 s of work; beside loads at half rate from 1 to 3 s, and at 0.8 from there to 5 s: 3.6 s are done, 6.4 left."""
    costs = [over(6.0, 3.0), over(6.0, 2.0)]  # 2 s, rate 0.5; 3 s, rate 0.8
    program = messages((1.0, 0), (2.0, 1), to=7)
    kernel = program.add("k", "compute", (Lane(7, "compute"),), duration=10.0)
    found = both(program, costs, interference=Slowest())
    assert found.end[kernel.index] == pytest.approx(11.4, rel=1e-12)


def test_a_dead_link_is_a_deadlock():
    program = messages((0.0, 0), (1.0, 1))
    program.add("after", "compute", (Lane(0, "compute"),), (program.ops[1],), 1.0)
    with pytest.raises(DeadlockError, match=r"capacity of link 0 \(=0 B/s\)"):
        Engine(program, Fabric([over(40.0, 10.0), over(1.0, 5.0)]), capacity_changes=[(2.0, 0, 0.0)]).run()
