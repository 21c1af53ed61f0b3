"""Time between machines: the law in closed form, the two steps of the search that it needs, what machines set, and the wire."""

from __future__ import annotations

import math

import pytest
from hardware_graphs import shipped
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import TopologyError
from parsim.hardware.fabric.library import Library
from parsim.hardware.fabric.networks import EAGER_LIMIT, NETWORKS, network_class
from parsim.hardware.nccl.between import BETWEEN, Crossing
from parsim.hardware.nccl.cost import collective_cost, collective_estimate, group_of, lanes_of
from parsim.hardware.nccl.estimate import choose
from parsim.hardware.nccl.inputs import Graph, Heads, Inputs, Settings
from parsim.validation.bandwidth_bound import least_time
from parsim.validation.published_collectives import measurements

GB = 1e9
MIB = 2**20
GIB = 2**30
TWO = Inputs(16, Graph(8, 24 * GB), nodes=2, capability=8.0)


def crossing(inputs, size, algorithm="ring", protocol="simple", kind="all_reduce"):
    return Crossing(inputs, kind, algorithm, protocol, size)


# the law


@pytest.mark.parametrize(
    ("network_latency", "protocol", "nodes", "expected"),
    [
        (0.0, "ll", 2, 3 + 6.8 + 2 * (7 * 0.6 + 5.0)),
        (20e-6, "ll", 2, 3 + 6.8 + 2 * (7 * 0.6 + 25.0)),
        (20e-6, "simple", 2, 3 + 8.4 + 2 * (7 * 4.0 + 14.0 + 40.0)),
        (0.0, "ll", 32, 3 + 6.8 + 2 * (7 * 0.6 + 5 * 5.0)),
    ],
)
def test_latency_of_a_tree(network_latency, protocol, nodes, expected):
    """Two nodes: 69 us measured on p5 (LL, two messages), 164 on p4de (Simple, four); 62 to 65 us on 32 nodes of A100 over InfiniBand."""
    inputs = Inputs(8 * nodes, Graph(8, 24 * GB), nodes=nodes, network_latency=network_latency)
    assert BETWEEN.latency(crossing(inputs, 8, "tree", protocol)) * 1e6 == pytest.approx(expected)


@pytest.mark.parametrize(
    ("algorithm", "protocol", "kind", "nodes", "messages"),
    [
        ("tree", "ll128", "all_reduce", 2, 2),
        ("tree", "simple", "all_reduce", 8, 2 * 6),
        ("ring", "ll", "all_reduce", 4, 6),
        ("ring", "simple", "all_gather", 4, 2 * 3),
    ],
)
def test_large_messages_pay_a_handshake_at_every_step(algorithm, protocol, kind, nodes, messages):
    ranks = 8 * nodes
    inputs = Inputs(ranks, Graph(8, 24 * GB), nodes=nodes, handshake=15e-6)
    limit = EAGER_LIMIT * (ranks if kind == "all_gather" else 1)
    small, large = (BETWEEN.latency(crossing(inputs, size, algorithm, protocol, kind)) for size in (limit, limit + ranks))
    assert (large - small) * 1e6 == pytest.approx(15 * messages)


@given(st.floats(1, 2**40), st.floats(1e-13, 1e-9))
def test_a_ring_fills_its_pipeline_and_then_flows(size, busiest):
    """t = S b (1 + h C / (S + ramp C)): never less than the wire needs, and no more than that for large messages."""
    chunks = 16 * 512 * 1024
    time = BETWEEN.transfer(crossing(TWO, size), busiest, math.inf)
    assert time == pytest.approx(size * busiest * (1 + BETWEEN.fill["ring"] * chunks / (size + BETWEEN.ramp * chunks)))
    assert size * busiest <= time <= size * busiest * (1 + BETWEEN.fill["ring"] / BETWEEN.ramp) * (1 + 1e-12)


def test_protocols_and_trees():
    size, busiest = 64 * MIB, 1 / (90 * GB)
    assert BETWEEN.transfer(crossing(TWO, size, protocol="ll"), busiest, 10 * GB) == size / (10 * GB)
    assert BETWEEN.transfer(crossing(TWO, size, protocol="ll128"), busiest, 1 * GB) == pytest.approx(size * busiest * 128 / 120)
    assert BETWEEN.transfer(crossing(TWO, size, "tree", "ll128"), busiest, 1 * GB) == pytest.approx(size / GB)
    large = 2**50
    assert BETWEEN.transfer(crossing(TWO, large, "tree"), busiest, GB) == pytest.approx(large * busiest / BETWEEN.tree_share, rel=1e-6)
    assert BETWEEN.transfer(crossing(TWO, 0), busiest, GB) == 0.0


def test_thread_blocks_bind_hopper_beyond_two_machines():
    """320 to 366 GB/s with the 16 blocks of eight rings, 391 with NCCL_MIN_CTAS=24, which the NICs bind (NVIDIA/nccl-tests issue 309)."""
    heads = Heads(8, 40 * GB, inter=48 * GB)

    def bus(nodes, algorithm, **library):
        inputs = Inputs(8 * nodes, Graph(8, 48 * GB), nodes=nodes, capability=9.0, nvls=heads, library=Library(**library))
        size = 2**50
        time = BETWEEN.transfer(crossing(inputs, size, algorithm), 2 / (400 * GB) / 1.0, math.inf)
        return 2 * (inputs.ranks - 1) / inputs.ranks * size / time / GB

    for algorithm in ("ring", "nvls_tree"):
        assert bus(8, algorithm) == pytest.approx(16 * 21.5, rel=1e-6)
        assert bus(8, algorithm, min_channels=24) == pytest.approx(400 * 63 / 64, rel=1e-6)
        assert bus(8, algorithm, max_channels=8) == pytest.approx(8 * 21.5, rel=1e-6)
    assert bus(2, "nvls_tree") == pytest.approx(400 * 15 / 16, rel=1e-6)  # 8 x 58.8 are more than these NICs


def test_buffers_are_what_fills():
    twice = Inputs(16, Graph(8, 24 * GB), nodes=2, library=Library(buffer=8 * MIB))
    size, busiest = 256 * MIB, 1 / (90 * GB)
    fill = [BETWEEN.transfer(crossing(one, size), busiest, GB) / (size * busiest) - 1 for one in (TWO, twice)]
    chunks = 8 * MIB
    assert fill == pytest.approx([one * chunks / (size + BETWEEN.ramp * one * chunks) for one in (1, 2)])


# two steps of the library's search


@pytest.mark.parametrize(
    ("name", "options", "channels", "ring", "tree"),
    [
        ("aws-p4d", {}, 4, 12, 24),  # twice the ring's, 4 x 24 fit into 240
        ("dgx-a100-80gb", {}, 8, 24, 30),  # 8 x 30 are all of NVLink
        ("hgx-h100", {}, 8, 48, 48),  # the list ends
        ("dgx-1-v100", {}, 4, 12, 20),  # direct links of 20
    ],
)
def test_trees_inside_a_machine_run_up_to_twice_as_fast_as_between(name, options, channels, ring, tree):
    """NVIDIA/nccl src/graph/search.cc: "increase bwIntra for trees (2 nodes or collnet)"."""
    inputs = group_of(cluster := shipped(name, nodes=2, **options), tuple(range(cluster.gpus))).inputs
    assert (inputs.ring.channels, inputs.ring.intra) == (channels, pytest.approx(ring * GB))
    assert (inputs.tree.channels, inputs.tree.intra, inputs.tree.between) == (channels, pytest.approx(tree * GB), pytest.approx(ring * GB))


def test_heads_between_machines_run_as_fast_as_their_nics():
    """40 GB/s inside, 48 of a NIC's 50 between; with 25 per NIC no more than that."""
    for link, expected in (("ib-ndr", 48), ("ib-hdr", 25)):
        cluster = shipped("hgx-h100", nodes=2, fabric={"link": link})
        heads = group_of(cluster, tuple(range(16))).inputs.nvls
        assert (heads.speed, heads.between) == (40 * GB, pytest.approx(expected * GB))


def test_crossed_rings_change_places_so_that_none_crosses_rails():
    """NVIDIA/nccl src/graph/connect.cc, "Alternate rings": between two machines every ring keeps to two leaves, and no spine is used."""
    cluster = shipped("hgx-h100", nodes=2)
    group = tuple(range(16))
    plans = group_of(cluster, group).over.plans
    assert len(plans) == 8
    for (_, first), (_, second) in plans:
        assert (first.exit, second.exit) == (second.entry, first.entry)
    for algorithm in ("ring", "tree"):
        links = {link for lane in lanes_of(cluster, group_of(cluster, group), algorithm, "all_reduce").lanes for link, _ in lane.path}
        assert not any("spine" in cluster.link_class_name(link) for link in links)


# what the machines set


def test_machines_may_forbid_protocols_and_algorithms():
    two = {"p4d": shipped("aws-p4d", nodes=2), "mega": shipped("gcp-a3-mega", nodes=2), "high": shipped("gcp-a3-high", nodes=2)}
    group = tuple(range(16))
    for size in (8, 64 * 1024, 16 * MIB, GIB):
        assert collective_estimate(two["p4d"], group, "all_reduce", size).choice.protocol == "simple"
        assert collective_estimate(two["mega"], group, "all_reduce", size).choice[:2] in (("tree", "simple"), ("ring", "simple"))
        assert collective_estimate(two["high"], group, "all_reduce", size).choice[:2] == ("ring", "simple")
    free = shipped("aws-p4d", nodes=2, overrides={"collectives": {"protocols": []}})
    assert collective_estimate(free, group, "all_reduce", 8).choice.protocol == "ll"


def test_a_wish_outweighs_what_the_machines_set():
    cluster = shipped("aws-p4d", nodes=2)
    assert choose(group_of(cluster, tuple(range(16))).inputs, "all_reduce", 8, Settings(protocol="ll")).protocol == "ll"
    mega = shipped("gcp-a3-mega", nodes=2)
    with pytest.raises(TopologyError, match="switched off"):
        collective_cost(mega, tuple(range(16)), "all_reduce", GIB, Settings(algorithm="nvls_tree"))


def test_settings_of_machines_are_checked():
    for section, message in (
        ({"algorithms": ["rings"]}, "did you mean 'ring'"),
        ({"protocols": ["ll256"]}, "unknown name 'll256'"),
        ({"min_channels": 16, "max_channels": 8}, "16 channels at least and 8 at most"),
        ({"buffers": "8 MiB"}, "did you mean 'buffer'"),
    ):
        with pytest.raises(TopologyError, match=message):
            shipped("hgx-h100", overrides={"collectives": section})


# networks


def test_every_class_of_networks_says_where_it_is_from():
    assert all(one.source and (one.measured or "assumption" in one.source) for one in NETWORKS.values())
    known = {
        "ib-ndr": "ib", "ib-hdr": "ib-hdr", "ib-edr": "ib-hdr", "roce-400g": "roce", "efa-100g": "efa", "slingshot-200g": "slingshot",
        "tcpxo-200g": "tcpxo", "tcpx-200g": "tcpx", "ethernet-25g": "slow-ethernet", "ethernet-100g": "ethernet", "ibis": "unknown",
    }  # fmt: skip
    assert {name: network_class(name).name for name in known} == known


def test_sockets_do_not_cost_tcpxo():
    """188.5 of 200 GB/s measured in an all-gather (dstackai/dstack); kernel sockets would get 120."""
    cost = collective_cost(shipped("gcp-a3-mega", nodes=2), tuple(range(16)), "all_gather", 8 * GIB)
    assert 15 / 16 * 8 * GIB / cost.time / GB == pytest.approx(188.5, rel=0.01)


@pytest.mark.parametrize(("version", "algorithm"), [("2.28.7", "nvls_tree"), ("2.29.3", "nvls_tree"), ("2.30", "nvls_tree")])
def test_giving_the_true_version_does_not_change_the_time(version, algorithm):
    """2.28 and 2.29 have the newest numbers for Hopper."""
    cluster = shipped("hgx-h100", nodes=2)
    newest = collective_estimate(cluster, tuple(range(16)), "all_reduce", 256 * MIB)
    told = collective_estimate(cluster, tuple(range(16)), "all_reduce", 256 * MIB, Settings(version=version))
    assert told.choice.algorithm == algorithm
    assert told.time == newest.time


WIRE = measurements().wire
EIGHTS = ("hgx-b300", "hgx-h800", "hgx-h20", "hgx-a800", "mi325x-8", "mi355x-8")
MACHINES = ("aws-p4d", "aws-p5", "azure-nd-a100-v4", "hgx-h100", "gcp-a3-mega", "gcp-a3-high", "mi300x-8", *EIGHTS)
CLUSTERS = [(name, nodes) for name in MACHINES for nodes in (2, 3, 8)]


@given(
    st.sampled_from(sorted(CLUSTERS)),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    st.floats(0, 36),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["auto", "ring", "tree"]),
    st.sampled_from(["2.12", "2.18", "2.23", "2.28", "2.30"]),
)
def test_nothing_beats_the_wire(machine, kind, power, each, algorithm, version):
    """Whatever library, algorithm, size and group: not faster than the bytes that must pass over the signalling rates."""
    name, nodes = machine
    cluster = shipped(name, nodes=nodes)
    group = tuple(8 * node + local for node in range(machine[1]) for local in range(each))
    size = round(2**power)
    wished = {"all_reduce": algorithm} if algorithm == "ring" or kind == "all_reduce" else "auto"
    time = collective_cost(cluster, group, kind, size, Settings(version=version, algorithm=wished)).time
    assert time >= least_time(cluster, group, kind, size, WIRE) * (1 - 1e-9)


@pytest.mark.parametrize("name", EIGHTS)
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_nothing_beats_the_wires_of_one_machine(name, kind):
    cluster = shipped(name)
    for each in (2, 4, 8):
        for size in (MIB, 64 * MIB, 1024 * MIB, 16384 * MIB):
            time = collective_cost(cluster, tuple(range(each)), kind, size).time
            assert time >= least_time(cluster, tuple(range(each)), kind, size, WIRE) * (1 - 1e-9)
