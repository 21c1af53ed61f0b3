"""How many rings a group gets and how fast they are: published peaks and hand-solved graphs."""

from __future__ import annotations

from itertools import combinations

import pytest
from hardware_graphs import build, leaf_spine, nodes_on_rails, shipped, two_sockets, wire
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import TopologyError
from parsim.hardware.collectives import channels, ring


def carried(cluster, group):
    """GB/s of all channels together."""
    return sum(channel.rate for channel in channels(cluster, tuple(group))) / 1e9


# V100 cube mesh: all-reduce of 1 GiB on GPUs 0..k-1 measured 22.6 / 45.1 / 85.4 / 37.2 / 45.8 / 87.0 / 134.5 GB/s (VIA-Research/vTrain)
@pytest.mark.parametrize(
    ("group", "rings", "expected", "measured"),
    [
        ((0, 1), 1, 22.5, 22.6),
        ((0, 1, 2), 2, 45.0, 45.1),
        ((0, 1, 2, 3), 4, 90.0, 85.4),
        ((0, 1, 2, 3, 4), 2, 37.35, 37.2),  # GPU 4 is reached through GPU 0 only, which forwards
        ((0, 1, 2, 3, 4, 5), 2, 45.0, 45.8),
        ((0, 1, 2, 3, 4, 5, 6), 4, 90.0, 87.0),
        ((0, 1, 2, 3, 4, 5, 6, 7), 6, 135.0, 134.5),
        ((0, 3), 1, 45.0, None),
        ((0, 5), 1, 6.0, None),
        ((0, 7), 1, 6.0, None),
        ((0, 1, 4, 5), 2, 45.0, None),
        ((2, 3, 6, 7), 2, 45.0, None),
        ((4, 5, 6, 7), 4, 90.0, None),
        ((0, 2, 5, 7), 1, 6.0, None),
    ],
)
def test_cube_mesh(group, rings, expected, measured):
    cluster = shipped("dgx-1-v100")
    assert len(channels(cluster, group)) == rings
    assert carried(cluster, group) == pytest.approx(expected)
    if measured:
        assert expected == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(("gpus", "rings"), [(2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (7, 6), (8, 7)])
def test_full_mesh_of_xgmi(gpus, rings):
    """A complete directed graph on 4 or 6 vertices does not split into n - 1 Hamiltonian cycles; on 3, 5, 7, 8 it does."""
    cluster = shipped("mi300x-8")
    assert len(channels(cluster, tuple(range(gpus)))) == rings
    assert carried(cluster, range(gpus)) == pytest.approx(45.5 * rings)


def test_four_v100_with_two_links_per_pair():
    assert carried(build("4x v100-32gb"), range(4)) == pytest.approx(135.0)


@pytest.mark.parametrize(
    ("name", "nodes", "group", "expected", "measured", "tolerance"),
    [
        ("dgx-a100-80gb", 1, range(8), 240.0, 234.9, 0.03),
        ("hgx-h100", 1, range(8), 370.8, 367.2, 0.02),
        ("hgx-b200", 1, range(8), 721.8, 682.2, 0.06),
        ("mi300x-8", 1, range(8), 318.5, 312.9, 0.02),
        ("mi300x-8", 1, range(2), 45.5, 47.7, 0.05),
        ("dgx-a100-80gb", 4, range(32), 189.0, 192.0, 0.02),
        ("hgx-h100", 4, range(32), 370.8, 365.0, 0.02),
        ("aws-p4d", 4, range(32), 47.5, None, 0.0),
        ("dgx-1-v100", 4, range(32), 47.25, None, 0.0),
        ("hgx-b200", 4, range(32), 384.0, 382.0, 0.01),
        ("gb200-nvl72", 1, range(72), 721.8, 680.0, 0.07),
    ],
)
def test_peaks_against_published_measurements(name, nodes, group, expected, measured, tolerance):
    """Bus bandwidths of large messages: stas00/ml-engineering network/README.md, NVIDIA/nccl issue 812, coreweave/nccl-tests."""
    found = carried(shipped(name, nodes=nodes), group)
    assert found == pytest.approx(expected)
    if measured:
        assert found == pytest.approx(measured, rel=tolerance)


def test_half_of_the_nics():
    tree = shipped("dgx-a100-80gb", nodes=3, overrides={"node": {"nics": 4}})
    assert carried(tree, range(24)) == pytest.approx(94.5)  # peak 96 measured with 4 x HDR (NVIDIA/nccl-tests issue 119)


def test_geforce_ring_runs_at_the_staged_rate():
    assert carried(shipped("8x-rtx-4090-pcie"), range(8)) == pytest.approx(10.0)
    assert carried(shipped("8x-rtx-4090-pcie", p2p=True), range(4)) == pytest.approx(24.0)  # 25.7 measured on four with P2P
    assert carried(shipped("workstation-2x-rtx-3090"), range(2)) == pytest.approx(48.0)


def test_bridged_pairs():
    def pairs(count):
        return build({"gpu": "a100-pcie", "count": count, "interconnect": "nvlink-pairs", "sockets": 1})

    assert carried(pairs(2), range(2)) == pytest.approx(240.0)
    assert carried(pairs(4), range(3)) == pytest.approx(24.0)
    # both cards of a pair have a host port of their own, so two rings leave every pair
    assert carried(pairs(4), range(4)) == pytest.approx(48.0)


def test_two_sockets_in_depth_first_order():
    cluster = two_sockets()
    (found,) = channels(cluster, tuple(range(8)))
    assert (found.order, found.rate) == (tuple(range(8)), 10e9)
    assert ring(cluster, (0, 4, 1, 5, 2, 6, 3, 7)).rate == 2.5e9
    (reordered,) = channels(cluster, (0, 4, 1, 5))
    assert (reordered.order, reordered.rate) == ((0, 1, 4, 5), 10e9)


def test_leaf_and_spine_orders():
    cluster = leaf_spine()
    good, bad = ring(cluster, (0, 1, 2, 3)), ring(cluster, (0, 2, 1, 3))
    assert (good.rate, bad.rate) == (25e9, 12.5e9)
    assert channels(cluster, (0, 1, 2, 3))[0].rate == 25e9
    both: dict[int, float] = {}
    for _ in range(2):
        for link, crossings in good.path:
            both[link] = both.get(link, 0.0) + crossings
    assert min(cluster.capacity(link) / crossings for link, crossings in both.items()) == 12.5e9


def test_one_ring_per_rail_between_machines():
    cluster = shipped("hgx-h100", nodes=4)
    found = channels(cluster, tuple(range(32)))
    assert len(found) == 8
    assert found[3].order[:8] == (3, 4, 5, 6, 7, 0, 1, 2)
    shared: dict[int, float] = {}
    for channel in found:
        for link, crossings in channel.path:
            shared[link] = shared.get(link, 0.0) + crossings
    assert {count for link, count in shared.items() if cluster.link_class_name(link) in ("nic->leaf", "leaf->nic")} == {1.0}
    assert {count for link, count in shared.items() if "nvswitch" in cluster.link_class_name(link)} == {8.0}


def test_a_data_parallel_group_uses_its_own_nic_only():
    cluster = shipped("hgx-h100", nodes=4)
    for rail in range(8):
        (found,) = channels(cluster, tuple(range(rail, 32, 8)))
        nics = {cluster.link(link).name for link, _ in found.path if "leaf" in cluster.link_class_name(link)}
        assert nics == {f"node{node}.port{rail}{arrow}" for node in range(4) for arrow in ("->leaf", "<-leaf")}
        assert found.rate == 48e9


def test_two_gpus_behind_one_nic_start_and_end_the_ring():
    cluster = shipped("aws-p4d", nodes=2)
    found = channels(cluster, tuple(range(16)))
    assert len(found) == 4
    assert found[1].order[:8] == (2, 4, 5, 6, 7, 0, 1, 3)


def test_ragged_groups():
    cluster = shipped("hgx-h100", nodes=3)
    group = (0, 1, 2, 3, 8, 9, 16)
    found = channels(cluster, group)
    assert len(found) == 1  # the machine with one member has one NIC
    assert sorted(found[0].order) == sorted(group)
    assert found[0].rate == 48e9
    two = channels(cluster, (0, 1, 2, 8, 9))
    assert [sorted(channel.order) for channel in two] == [[0, 1, 2, 8, 9]] * 2
    other_rails = channels(cluster, (0, 9))
    assert any("spine" in cluster.link_class_name(link) for link, _ in other_rails[0].path)


def test_machines_follow_the_order_of_the_group():
    cluster = shipped("hgx-h100", nodes=4)
    (found,) = channels(cluster, (16, 0, 24, 8))
    assert found.order == (16, 0, 24, 8)


def test_oversubscribed_trunk_slows_only_rings_that_cross_it():
    cluster = nodes_on_rails(2, 8, 8, 25.0)
    assert carried(cluster, range(16)) == pytest.approx(200.0)
    tree = {"kind": "fat-tree", "leaf_ports": 8, "oversubscription": 2}
    thin = nodes_on_rails(2, 8, 8, 25.0, **tree)
    assert carried(thin, range(16)) == pytest.approx(100.0)


def test_torus_rings_run_both_ways():
    tree = {
        "name": "line",
        "node": {"gpus": 1, "device": "chip", "vertices": [], "edges": []},
        "fabric": {"kind": "torus", "nics": ["gpu0"], "link": "ici", "dims": [16]},
        "links": {"ici": wire(90.0)},
    }
    cluster = build(tree, nodes=16)
    assert carried(cluster, range(16)) == pytest.approx(180.0)


def test_a_gpu_twice_is_an_error():
    with pytest.raises(TopologyError, match="twice"):
        channels(shipped("hgx-h100"), (0, 0, 1))


def test_the_search_is_deterministic():
    first = [(channel.order, channel.path) for channel in channels(shipped("dgx-1-v100"), tuple(range(8)))]
    again = [(channel.order, channel.path) for channel in channels(shipped("dgx-1-v100"), tuple(range(8)))]
    assert first == again


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([group for size in (2, 3, 4, 5, 6) for group in combinations(range(8), size)]))
def test_no_packing_overbooks_a_link(group):
    cluster = mesh
    load: dict[int, float] = {}
    for channel in channels(cluster, group):
        assert sorted(channel.order) == list(group)
        for link, crossings in channel.path:
            load[link] = load.get(link, 0.0) + crossings * channel.rate
    assert all(used <= cluster.capacity(link) * (1 + 1e-9) for link, used in load.items())


mesh = shipped("dgx-1-v100")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 31), min_size=2, max_size=12, unique=True))
def test_channels_of_any_group_fit_and_visit_everyone(group):
    cluster = several
    load: dict[int, float] = {}
    for channel in channels(cluster, tuple(group)):
        assert sorted(channel.order) == sorted(group)
        whole: dict[int, float] = {}
        for number in range(len(group)):
            hop = channel.hop(cluster, number)
            for link, crossings in zip(hop.links, hop.coefficients, strict=True):
                whole[link] = whole.get(link, 0.0) + crossings
        assert whole == pytest.approx(dict(channel.path))
        for link, crossings in channel.path:
            load[link] = load.get(link, 0.0) + crossings * channel.rate
    assert all(used <= cluster.capacity(link) * (1 + 1e-9) for link, used in load.items())


several = shipped("dgx-a100-80gb", nodes=4)
