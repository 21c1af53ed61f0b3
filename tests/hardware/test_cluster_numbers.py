"""Numbers of GPUs and links, routes, placement, and the size of a large cluster."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import pairwise

import pytest
from hardware_graphs import build, leaf_spine, nodes_on_rails, shipped, wire
from hypothesis import given, settings
from hypothesis import strategies as st
from work import calls

from parsim.errors import TopologyError
from parsim.hardware.collectives import collective_cost
from parsim.hardware.fabric.direct import FullMesh, Torus
from parsim.hardware.fabric.links import LinkKind
from parsim.hardware.fabric.switches import Fabric, FatTree, RailOptimised


def names(cluster, route):
    return [cluster.link(link).name for link in route.links]


def test_gpu_numbers():
    cluster = shipped("hgx-h100", nodes=4)
    assert (cluster.gpus, cluster.nodes, cluster.gpus_per_node) == (32, 4, 8)
    assert (cluster.node_of(13), cluster.local(13), cluster.gpu(1, 5)) == (1, 5, 13)
    with pytest.raises(TopologyError, match="GPU 32"):
        cluster.node_of(32)


def test_every_link_has_one_name_and_a_consistent_class():
    for name, nodes in (("dgx-a100-80gb", 3), ("dgx-1-v100", 2), ("8x-rtx-4090-pcie", 2)):
        cluster = shipped(name, nodes=nodes)
        seen = {cluster.link(number).name for number in range(cluster.link_count)}
        assert len(seen) == cluster.link_count
        for number in range(cluster.link_count):
            assert cluster.link(number).capacity == cluster.capacity(number)


@pytest.mark.parametrize(
    ("name", "nodes", "fabric"),
    [
        ("dgx-a100-80gb", 3, None),
        ("8x-rtx-4090-pcie", 2, None),
        ("dgx-a100-80gb", 5, {"leaf_ports": 2}),
        ("dgx-a100-80gb", 5, {"kind": "fat-tree", "leaf_ports": 16, "oversubscription": 2}),
        ("dgx-a100-80gb", 3, {"kind": "full-mesh"}),
    ],
)
def test_routes_are_paths_of_the_graph(name, nodes, fabric):
    cluster = shipped(name, nodes=nodes, fabric=fabric)
    graph = cluster.graph()
    ends = {data["id"]: (a, b) for a, b, data in graph.edges(data=True)}
    assert {data["id"]: data["link"] for _, _, data in graph.edges(data=True)} == {link: cluster.link(link) for link in ends}
    for a, b in ((0, 1), (0, 7), (0, 8), (3, 14), (7, cluster.gpus - 1)):
        route = cluster.route(a, b)
        full = [ends[link] for link in route.links if cluster.link(link).duplex == "full"]
        if len(full) == len(route.links):
            assert all(first[1] == second[0] for first, second in pairwise(full))
        assert full[0][0] == f"node{cluster.node_of(a)}.gpu{cluster.local(a)}"
        assert full[-1][1] == f"node{cluster.node_of(b)}.gpu{cluster.local(b)}"


def test_route_inside_and_between():
    cluster = shipped("hgx-h100", nodes=2)
    assert names(cluster, cluster.route(0, 1)) == ["node0.gpu0->nvswitch", "node0.nvswitch->gpu1"]
    assert names(cluster, cluster.route(8, 15)) == ["node1.gpu0->nvswitch", "node1.nvswitch->gpu7"]
    same_rail = names(cluster, cluster.route(3, 11))
    assert same_rail[2:4] == ["node0.port3->leaf", "node1.port3<-leaf"]
    assert cluster.route(5, 5).links == ()


def test_pxn_hops_over_nvlink_to_the_receivers_rail():
    cluster = shipped("hgx-h100", nodes=2)
    route = cluster.route(0, 13)
    assert names(cluster, route) == [
        "node0.gpu0->nvswitch", "node0.nvswitch->gpu5", "node0.gpu5->pcie5", "node0.pcie5->nic5", "node0.port5->leaf",
        "node1.port5<-leaf", "node1.nic5->pcie5", "node1.pcie5->gpu5",
    ]  # fmt: skip
    assert route.bottleneck(cluster.capacity) == 48e9


def test_rails_cross_the_spine_only_between_pods():
    cluster = nodes_on_rails(4, 2, 2, 25.0, leaf_ports=2)
    kinds = [cluster.link_class_name(link) for link in cluster.route(0, 2).links]
    assert "leaf->spine" not in kinds
    kinds = [cluster.link_class_name(link) for link in cluster.route(0, 4).links]
    assert [kind for kind in kinds if "spine" in kind] == ["leaf->spine", "spine->leaf"]


def test_other_fabrics_leave_by_the_senders_nic():
    cluster = shipped("hgx-h100", nodes=2, fabric={"kind": "single-switch"})
    assert names(cluster, cluster.route(0, 13))[2:4] == ["node0.port0->leaf", "node1.port5<-leaf"]
    mesh = shipped("hgx-h100", nodes=3, fabric={"kind": "full-mesh"})
    assert "node0.port5->node2.port5" in names(mesh, mesh.route(0, 21))


def test_fat_tree_trunks():
    cluster = shipped("hgx-h100", nodes=8, fabric={"kind": "fat-tree", "leaf_ports": 32, "oversubscription": 2})
    inside, across = cluster.route(0, 24), cluster.route(0, 32)
    assert len(across.links) == len(inside.links) + 2
    trunk = next(link for link in across.links if cluster.link_class_name(link) == "leaf->spine")
    assert cluster.capacity(trunk) == 32 * 0.98 * 50e9 / 2
    assert cluster.link(trunk).name == "leaf0->spine"


def test_torus_routes():
    tree = {
        "name": "torus",
        "node": {"gpus": 1, "device": "chip", "vertices": [], "edges": []},
        "fabric": {"kind": "torus", "nics": ["gpu0"], "link": "ici", "dims": [4, 4]},
        "links": {"ici": wire(45.0, latency="1 us")},
    }
    cluster = build(tree, nodes=16)
    assert cluster.link_count == 64
    assert len(cluster.route(0, 1).links) == 1
    assert len(cluster.route(0, 3).links) == 1  # the other way round
    assert len(cluster.route(0, 10).links) == 4
    assert cluster.route(0, 10).latency == pytest.approx(4e-6)
    assert cluster.link_class_name(cluster.route(0, 3).links[0]) == "torus x-"
    graph = cluster.graph()
    assert graph.number_of_edges() == 64
    with pytest.raises(TopologyError, match="4 x 4 = 16 points for 12 machines"):
        build(tree, nodes=12)


def test_half_duplex_is_one_link_for_both_ways():
    tree = {
        "name": "half",
        "node": {"gpus": 2, "device": "chip", "vertices": [], "edges": [{"from": "gpu0", "to": "gpu1", "kind": "bus"}]},
        "links": {"bus": wire(25.0, "nvlink", duplex="half")},
    }
    cluster = build(tree)
    assert cluster.link_count == 1
    assert cluster.route(0, 1).links == cluster.route(1, 0).links
    assert cluster.link(0).duplex == "half"


def test_intel_host_bridges_cost_a_fifth_more():
    tree = {
        "name": "intel",
        "node": {"gpus": 2, "device": "chip", "vertices": ["cpu0"], "edges": [{"from": "gpu*", "to": "cpu0", "kind": "pcie4-x16"}]},
        "links": {"pcie4-x16": {"overhead": 1.2}},
    }
    cluster = build(tree)
    assert cluster.route(0, 1).coefficients == (1.2, 1.2)
    assert cluster.route(0, 1).bottleneck(cluster.capacity) == pytest.approx(20e9)


def test_explicit_graph_routes():
    cluster = leaf_spine()
    assert [cluster.link(link).name for link in cluster.route(0, 1).links] == ["gpu0->leaf0", "leaf0->gpu1"]
    assert [cluster.link(link).name for link in cluster.route(0, 2).links] == ["gpu0->leaf0", "leaf0->spine", "spine->leaf1", "leaf1->gpu2"]
    assert set(cluster.graph()) == {"node0.gpu0", "node1.gpu1", "node2.gpu2", "node3.gpu3", "leaf0", "leaf1", "spine"}


def test_placement():
    cluster = shipped("hgx-h100", nodes=4)
    assert cluster.placement(4) == (0, 1, 2, 3)
    scattered = shipped("hgx-h100", nodes=4, placement="scattered")
    assert scattered.placement(6) == (0, 8, 16, 24, 1, 9)
    listed = shipped("hgx-h100", nodes=4, placement=[5, 3, 31])
    assert listed.placement(3) == (5, 3, 31)
    with pytest.raises(TopologyError, match="names 3 GPUs for 4 ranks"):
        listed.placement(4)
    with pytest.raises(TopologyError, match="both on GPU 5"):
        shipped("hgx-h100", placement=[5, 5])
    with pytest.raises(TopologyError, match="GPU 8 is not in"):
        shipped("hgx-h100", placement=[8])
    with pytest.raises(TopologyError, match="33 ranks"):
        cluster.placement(33)
    fewer = shipped("hgx-h100", nodes=4, gpus=10)
    assert (fewer.gpus, fewer.installed_gpus) == (10, 32)
    assert fewer.placement(10) == tuple(range(10))


def test_sixteen_thousand_gpus_are_cheap():
    shipped("hgx-h100", nodes=2).route(0, 9)  # imports
    assert calls(lambda: shipped("hgx-h100", nodes=2048)) == calls(lambda: shipped("hgx-h100", nodes=2))
    tracemalloc.start()
    cluster = shipped("hgx-h100", nodes=2048)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    assert cluster.gpus == 16384
    assert cluster.link(cluster.link_count - 1).name.startswith("spine->rail7")


def test_a_group_of_two_thousand_is_priced_in_work_that_grows_with_its_ranks():
    cluster, group = shipped("hgx-h100", nodes=2048), tuple(range(0, 16384, 8))
    assert calls(lambda: collective_cost(cluster, group, "all_gather", 1 << 30)) < 80 * len(group)
    cost = collective_cost(cluster, group, "all_gather", 1 << 30)
    assert cost.time == pytest.approx(cost.latency + 2047 / 2048 * 2**30 / 48e9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 31), st.integers(0, 31), st.sampled_from(["rail-optimised", "fat-tree", "single-switch", "full-mesh"]))
def test_routes_back_are_as_long_and_share_no_link(a, b, kind):
    cluster = clusters[kind]
    there, back = cluster.route(a, b), cluster.route(b, a)
    assert len(there.links) == len(back.links)
    assert not set(there.links) & set(back.links)
    assert there.latency == pytest.approx(back.latency)


clusters = {
    kind: shipped("dgx-a100-80gb", nodes=4, fabric={"kind": kind}) for kind in ("rail-optimised", "fat-tree", "single-switch", "full-mesh")
}


@pytest.mark.parametrize("half", [False, True], ids=["full", "half"])
@pytest.mark.parametrize(
    "make",
    [
        lambda link: Fabric(link, [(3, 2)]),
        lambda link: FatTree(link, [(5, 4)], 8, 2.0),
        lambda link: FatTree(link, [(5, 3), (2, 2)], 4, 2.0, hashed=True),
        lambda link: RailOptimised(link, [(10, 4)], 8, 1.0),
        lambda link: FullMesh(link, [(4, 2)]),
        lambda link: Torus(link, [(12, 1)], (3, 4)),
    ],
    ids=["switch", "fat-tree", "hashed", "rails", "mesh", "torus"],
)
def test_classes_of_links_are_those_of_every_link(make, half):
    link = LinkKind("net", "network", 50e9, 0.0, duplex="half" if half else "full")
    fabric = make(link)
    every = Counter((fabric.link_class(local), fabric.link(local).kind, fabric.capacity(local)) for local in range(fabric.link_count))
    counted = Counter()
    for local, count in fabric.classes_of_links():
        counted[fabric.link_class(local), fabric.link(local).kind, fabric.capacity(local)] += count
    assert counted == every
    ends = {end for local in range(fabric.link_count) for end in fabric.ends(local) if not end.startswith("node")}
    assert sum(fabric.switches().values()) == len(ends)
