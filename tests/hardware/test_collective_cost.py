"""Costs of collectives: hand-solved cases, latency formulas, laws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import pytest
from hardware_graphs import leaf_spine, nodes_on_rails, pcie_and_nic_chain, shipped, switched, two_sockets
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import TopologyError
from parsim.hardware.collectives import NCCL_SIMPLE, Latencies, channels, collective_cost
from parsim.hardware.interconnect import Interconnect
from parsim.hardware.nccl.inputs import KINDS
from parsim.hardware.nccl.lanes import volume

GB = 10**9
ONE_STEP = Latencies(base=0.0, ring_nvlink=1e-6, ring_pcie=1e-6, ring_network=1e-6, tree_local=1.0, posting=0.0, software=0.0, per_peer=0.0)
NONE = Latencies(base=0.0, ring_nvlink=0.0, ring_pcie=0.0, ring_network=0.0, tree_local=1.0, posting=0.0, software=0.0, per_peer=0.0)
"""no latency, and no tree"""


def wire_time(cost):
    return cost.time - cost.latency


def test_ring_all_reduce_with_step_latency():
    assert collective_cost(switched(4, 100), (0, 1, 2, 3), "all_reduce", GB, ONE_STEP).time == pytest.approx(15.006e-3, rel=1e-12)


def test_ring_all_gather():
    cost = collective_cost(switched(8, 240), tuple(range(8)), "all_gather", GB, NONE)
    assert cost.time == pytest.approx(3.645833333e-3)
    assert collective_cost(switched(8, 240), tuple(range(8)), "reduce_scatter", GB, NONE).time == cost.time


def test_broadcast_in_a_long_pipeline():
    cost = collective_cost(switched(4, 25), (0, 1, 2, 3), "broadcast", 64 * 2**20, NONE)
    assert cost.time == pytest.approx(2.68435456e-3, rel=1e-12)


def test_all_to_all_on_a_switch():
    assert collective_cost(switched(4, 50), (0, 1, 2, 3), "all_to_all", GB, NONE).time == pytest.approx(15e-3, rel=1e-12)


def test_send_over_pcie_and_nics():
    cluster = pcie_and_nic_chain()
    assert cluster.route(0, 1).latency == pytest.approx(3.3e-6)
    cost = collective_cost(cluster, (0, 1), "send", GB, NONE)
    assert cost.time == pytest.approx(1e9 / 24e9 + 3.3e-6, rel=1e-12)
    assert cost.time == pytest.approx(41.669967e-3, rel=1e-7)


def test_rails_share_nothing():
    cluster = nodes_on_rails(2, 8, 8, 25.0)
    loads: dict[int, float] = {}
    for rail in range(8):
        cost = collective_cost(cluster, (rail, 8 + rail), "all_reduce", GB, NONE)
        assert cost.time == pytest.approx(40e-3, rel=1e-12)
        for flow in cost.flows:
            for link, crossings in flow.path:
                loads[link] = loads.get(link, 0.0) + crossings * flow.cap
    assert all(used <= cluster.capacity(link) * (1 + 1e-12) for link, used in loads.items())


def test_two_groups_on_one_nic():
    cluster = nodes_on_rails(2, 2, 1, 25.0)
    first, second = (collective_cost(cluster, (gpu, 2 + gpu), "all_reduce", GB, NONE) for gpu in (0, 1))
    shared = {link for link, _ in first.flows[0].path} & {link for link, _ in second.flows[0].path}
    nic = next(link for link in shared if cluster.link_class_name(link) == "nic->leaf")
    together = cluster.capacity(nic) / 2
    assert first.flows[0].volume / together == pytest.approx(80e-3, rel=1e-12)


def test_leaf_and_spine():
    cost = collective_cost(leaf_spine(), (0, 1, 2, 3), "all_reduce", 2 * GB, NONE)
    assert wire_time(cost) == pytest.approx(3e9 / 25e9, rel=1e-12)


def test_two_socket_pcie_box():
    cluster = two_sockets()
    assert collective_cost(cluster, tuple(range(8)), "all_reduce", GB, NONE).time == pytest.approx(175e-3, rel=1e-12)
    load: dict[int, float] = {}
    for group in ((0, 1, 4, 5), (2, 3, 6, 7)):
        for link, crossings in collective_cost(cluster, group, "all_reduce", GB, NONE).flows[0].path:
            load[link] = load.get(link, 0.0) + crossings
    assert min(cluster.capacity(link) / crossings for link, crossings in load.items()) == 5e9


def test_flat_ring_and_hierarchy():
    cluster = nodes_on_rails(4, 8, 8, 24.0, inner=235.0)
    flat = collective_cost(cluster, tuple(range(32)), "all_reduce", GB, NONE)
    assert flat.time == pytest.approx(10.091146e-3, rel=1e-7)
    inside = 2 * collective_cost(cluster, tuple(range(8)), "reduce_scatter", GB, NONE).time
    across = collective_cost(cluster, (0, 8, 16, 24), "all_reduce", GB // 8, NONE).time
    assert inside == pytest.approx(7.446809e-3, rel=1e-7)
    assert across == pytest.approx(7.8125e-3, rel=1e-12)
    assert inside + across == pytest.approx(15.259309e-3, rel=1e-7)


def test_all_to_all_between_machines():
    two = nodes_on_rails(2, 8, 8, 48.0, inner=360.0)
    cost = collective_cost(two, tuple(range(16)), "all_to_all", GB, NONE)
    assert cost.time == pytest.approx(10.416667e-3, rel=1e-7)
    assert 15 / 16 * GB / cost.time == pytest.approx(90e9)
    sixteen = nodes_on_rails(16, 8, 8, 48.0, inner=360.0)
    cost = collective_cost(sixteen, tuple(range(128)), "all_to_all", GB, NONE)
    assert 127 / 128 * GB / cost.time == pytest.approx(50.8e9)


# latency


def test_latencies_of_the_simple_protocol():
    """Table entries of NCCL 2.30's model: 56.0 us for a ring and 64.4 us for a tree of 8, 48.3 us over PCIe, 120.4 us for 4 x 8."""
    a100 = shipped("dgx-a100-80gb")
    assert collective_cost(a100, tuple(range(8)), "all_reduce", 0).latency == pytest.approx(56.0e-6)
    assert collective_cost(a100, tuple(range(8)), "all_gather", 0).latency == pytest.approx(32.2e-6)
    assert collective_cost(a100, tuple(range(8)), "broadcast", 0).latency == pytest.approx(11.8e-6)
    pcie = shipped("8x-l40s-pcie")
    assert collective_cost(pcie, tuple(range(8)), "all_gather", 0).latency == pytest.approx(48.3e-6)
    assert collective_cost(pcie, tuple(range(8)), "all_reduce", 0).latency == pytest.approx(64.4e-6)  # the tree; a ring takes 88.2
    four = shipped("dgx-a100-80gb", nodes=4)
    tiny = collective_cost(four, tuple(range(32)), "all_reduce", 0)
    assert (tiny.algorithm, tiny.latency) == ("tree", pytest.approx(120.4e-6))
    assert collective_cost(four, tuple(range(32)), "all_gather", 0).latency == pytest.approx(145.6e-6)


def test_the_network_stack_adds_latency():
    infiniband, cloud = shipped("hgx-h100", nodes=2), shipped("aws-p5", nodes=2)
    group = tuple(range(16))
    difference = collective_cost(cloud, group, "all_gather", 0).latency - collective_cost(infiniband, group, "all_gather", 0).latency
    assert difference == pytest.approx(40e-6)
    difference = collective_cost(cloud, (0, 8), "send", 0).latency - collective_cost(infiniband, (0, 8), "send", 0).latency
    assert difference == pytest.approx(20e-6)


def test_large_all_reduces_ride_the_ring_small_ones_the_tree():
    cluster = shipped("hgx-h100", nodes=16)
    group = tuple(range(128))
    assert collective_cost(cluster, group, "all_reduce", 2**20).algorithm == "tree"
    assert collective_cost(cluster, group, "all_reduce", 2**33).algorithm == "ring"


def test_zero_bytes_cost_latency_only():
    cluster = shipped("hgx-h100", nodes=2)
    for kind in KINDS:
        group = (0, 8) if kind == "send" else tuple(range(16))
        cost = collective_cost(cluster, group, kind, 0)
        assert cost.flows == ()
        assert cost.time == cost.latency > 0


def test_a_group_of_one_is_free():
    cluster = shipped("hgx-h100")
    for kind in KINDS:
        if kind != "send":
            assert collective_cost(cluster, (3,), kind, GB).time == 0.0
    assert collective_cost(cluster, (3, 3), "send", GB).time == 0.0


def test_wrong_questions():
    cluster = shipped("hgx-h100")
    with pytest.raises(TopologyError, match="unknown collective"):
        collective_cost(cluster, (0, 1), "allreduce", 1)
    with pytest.raises(TopologyError, match="two members"):
        collective_cost(cluster, (0, 1, 2), "send", 1)
    with pytest.raises(TopologyError, match="-1 bytes"):
        collective_cost(cluster, (0, 1), "all_reduce", -1)
    with pytest.raises(TopologyError, match="twice"):
        collective_cost(cluster, (0, 1, 1), "all_to_all", 1)


def test_chains_leave_out_the_edge_that_closes_the_ring():
    cluster = switched(4, 25)
    path = dict(collective_cost(cluster, (1, 0, 2, 3), "broadcast", GB).flows[0].path)
    names = {cluster.link(link).name for link in path}
    assert "node0.nvswitch->gpu1" not in names
    assert len(path) == 6
    path = dict(collective_cost(cluster, (1, 0, 2, 3), "reduce", GB).flows[0].path)
    assert "node0.gpu1->nvswitch" not in {cluster.link(link).name for link in path}


def test_gather_fills_the_port_of_the_root():
    cluster = switched(4, 25)
    cost = collective_cost(cluster, (2, 0, 1, 3), "gather", GB, NONE)
    assert cost.time == pytest.approx(0.75e9 / 25e9, rel=1e-12)
    port = max(cost.flows[0].path, key=lambda entry: entry[1])
    assert cluster.link(port[0]).name == "node0.nvswitch->gpu2"
    scatter = collective_cost(cluster, (2, 0, 1, 3), "scatter", GB, NONE)
    assert cluster.link(max(scatter.flows[0].path, key=lambda entry: entry[1])[0]).name == "node0.gpu2->nvswitch"


# the view of a program


@dataclass(frozen=True)
class Collective:
    kind: str
    group: tuple[int, ...]
    bytes: int


def test_interconnect_maps_ranks_to_gpus():
    cluster = shipped("hgx-h100", nodes=4, placement="scattered")
    interconnect = Interconnect(cluster, cluster.placement(32))
    spread = interconnect.cost(Collective("all_reduce", (0, 1, 2, 3), GB))
    assert spread.flows[0].cap == 48e9
    inside = interconnect.cost(Collective("all_reduce", (0, 4, 8, 12), GB))
    assert inside.flows[0].cap == 370.8e9
    assert interconnect.cost(Collective("all_reduce", (0, 4, 8, 12), GB)) is inside
    link = inside.flows[0].path[0][0]
    assert interconnect.capacity(link) == cluster.capacity(link)


# laws


@cache
def zoo(number):
    names = [("hgx-h100", 3), ("dgx-1-v100", 1), ("aws-p4d", 2), ("8x-rtx-4090-pcie", 2), ("8x-l40s-pcie", 1), ("mi300x-8", 2)]
    name, nodes = names[number]
    return shipped(name, nodes=nodes)


def bound(cluster, group, kind, size):
    """What some member must at least send or receive, over all links out of (into) it."""
    n = len(group)
    share = {"all_reduce": 2 * (n - 1) / n, "all_gather": (n - 1) / n, "reduce_scatter": (n - 1) / n, "all_to_all": (n - 1) / n}
    machine = cluster.machine(0)
    widest = 0.0
    for gpu in machine.gpu_names:
        widest = max(widest, sum(data["link"].capacity for data in machine.graph.adj[gpu].values()))
    return share.get(kind, 1.0 if kind in ("broadcast", "reduce") else (n - 1) / n) * size / widest


groups = st.integers(0, 5).flatmap(
    lambda number: st.tuples(st.just(number), st.lists(st.integers(0, zoo(number).gpus - 1), min_size=2, max_size=9, unique=True))
)
kinds = st.sampled_from([kind for kind in KINDS if kind not in ("send", "barrier")])


@settings(max_examples=80, deadline=None)
@given(groups, kinds, st.integers(1, 2**34))
def test_no_collective_beats_the_wire(question, kind, size):
    number, group = question
    cluster = zoo(number)
    cost = collective_cost(cluster, tuple(group), kind, size)
    assert wire_time(cost) >= bound(cluster, group, kind, size) * (1 - 1e-9)
    assert cost.latency > 0
    assert all(0 < flow.cap < math.inf and flow.volume > 0 for flow in cost.flows)
    # all flows of a lone collective fit side by side and end together
    load: dict[int, float] = {}
    for flow in cost.flows:
        for link, crossings in flow.path:
            load[link] = load.get(link, 0.0) + crossings * flow.cap
        assert flow.volume / flow.cap == pytest.approx(wire_time(cost), rel=1e-9)
    assert all(used <= cluster.capacity(link) * (1 + 1e-9) for link, used in load.items())


@settings(max_examples=60, deadline=None)
@given(groups, kinds, st.integers(0, 2**32), st.integers(0, 2**32))
def test_time_grows_with_size(question, kind, one, other):
    number, group = question
    small, large = sorted((one, other))
    cluster = zoo(number)
    assert collective_cost(cluster, tuple(group), kind, small).time <= collective_cost(cluster, tuple(group), kind, large).time * (
        1 + 1e-12
    )


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["nvlink4", "pcie5-x16", "ib-ndr"]), st.sampled_from(["all_reduce", "all_gather", "all_to_all", "broadcast"]))
def test_halving_the_bottleneck_slows_a_lone_collective(link, kind):
    group = tuple(range(4)) if link == "nvlink4" else (0, 8, 16)
    before, after = lone(link, None), lone(link, "x0.25")
    size = 2**30
    slow, fast = (wire_time(collective_cost(cluster, group, kind, size, NONE)) for cluster in (after, before))
    assert slow > fast * 1.5


@cache
def lone(link, factor):
    return shipped("hgx-h100", nodes=3, overrides={"links": {link: {"bandwidth": factor}}} if factor else None)


@settings(max_examples=40, deadline=None)
@given(groups, st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), st.integers(2**28, 2**33))
def test_volume_per_edge_is_the_rings(question, kind, size):
    number, group = question
    cluster = zoo(number)
    cost = collective_cost(cluster, tuple(group), kind, size)
    if cost.algorithm == "ring":
        assert sum(flow.volume for flow in cost.flows) == pytest.approx(volume("ring", kind, len(group), size))
        rate = sum(channel.rate for channel in channels(cluster, tuple(group)))
        assert cost.time == pytest.approx(cost.latency + volume("ring", kind, len(group), size) / rate)


def test_constants_are_documented_defaults():
    assert NCCL_SIMPLE.base == 8.4e-6
    assert (NCCL_SIMPLE.ring_nvlink, NCCL_SIMPLE.ring_pcie, NCCL_SIMPLE.ring_network) == (3.4e-6, 5.7e-6, 14e-6)
