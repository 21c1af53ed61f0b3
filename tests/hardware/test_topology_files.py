"""Topology files, inline boxes and overrides."""

from __future__ import annotations

import copy

import pytest
from hardware_graphs import build, shipped, shipped_topologies, topology_tree, wire

from parsim.errors import TopologyError
from parsim.hardware.collectives import channels, collective_cost
from parsim.hardware.fabric.topology import PRICE_KINDS, expand
from parsim.scenario.files import aliases
from parsim.study.topology import survey
from parsim.units import parse


@pytest.mark.parametrize("name", shipped_topologies())
def test_every_shipped_topology_builds_and_names_its_sources(name):
    tree = topology_tree(name)
    assert tree["name"] == name
    assert tree["source"]
    assert all(kind.get("source") for kind in tree.get("links", {}).values())
    if "price" in tree:
        assert tree["price"]["date"]
        assert tree["price"]["source"]
        assert tree["price"].get("kind", "") in ("", *PRICE_KINDS)
    cluster = shipped(name)
    assert cluster.gpus == tree["node"]["gpus"]
    if cluster.gpus > 1:
        assert channels(cluster, tuple(range(cluster.gpus)))
    if "fabric" in tree:
        several = shipped(name, nodes=3)
        assert several.gpus == 3 * cluster.gpus
        assert channels(several, tuple(range(several.gpus)))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("aws:p5.48xlarge", "aws-p5"),
        ("aws:p4d.24xlarge", "aws-p4d"),
        ("aws:p4de.24xlarge", "aws-p4de"),
        ("aws:p5en.48xlarge", "aws-p5en"),
        ("gcp:a3-highgpu-8g", "gcp-a3-high"),
        ("gcp:a3-megagpu-8g", "gcp-a3-mega"),
        ("gcp:a2-ultragpu-8g", "gcp-a2-ultra"),
        ("azure:ND96isr_H100_v5", "azure-nd-h100-v5"),
        ("azure:ND96amsr_A100_v4", "azure-nd-a100-v4"),
        ("lambda:gpu_8x_h100_sxm5", "lambda-8x-h100"),
        ("coreweave:hgx-h100", "coreweave-hgx-h100"),
        ("dgx-h100", "hgx-h100"),
        ("dgx-a100", "dgx-a100-80gb"),
        ("nvl72", "gb200-nvl72"),
        ("dgx-1", "dgx-1-v100"),
        ("dgx-b300", "hgx-b300"),
        ("8x-h800", "hgx-h800"),
        ("8x-h20", "hgx-h20"),
        ("8x-a800", "hgx-a800"),
        ("mi325x", "mi325x-8"),
        ("mi350x", "mi350x-8"),
        ("mi355x", "mi355x-8"),
    ],
)
def test_aliases(alias, name):
    assert aliases("topologies")[alias] == name


PROVIDERS = [name for name in shipped_topologies() if any(":" in alias for alias in topology_tree(name).get("aliases", ()))]


@pytest.mark.parametrize("name", PROVIDERS)
def test_cards_and_leaves_of_instances_can_be_changed(name):
    """Half the NICs, and leaves of two machines with one uplink, make collectives of four machines slower."""

    def seconds(kind="all_gather", **change):
        return collective_cost(shipped(name, nodes=4, overrides=change), tuple(range(32)), kind, 2**30).time

    whole, cards = seconds(), len(shipped(name).machine(0).ports)
    if cards > 1:
        assert seconds(node={"nics": cards // 2}) > 1.3 * whole
    tree = {"kind": "fat-tree", "leaf_ports": 2 * cards}
    even, thin = (seconds("all_to_all", fabric={**tree, "oversubscription": ratio}) for ratio in (1, 2 * cards))
    assert thin > 1.3 * even


def test_instances_of_providers_have_prices_and_powers():
    assert len(PROVIDERS) == 11
    for name in PROVIDERS:
        cluster = shipped(name)
        assert cluster.price is not None, name
        assert cluster.machine(0).overhead_power in {2000, 2800}, name


NETWORK = {  # Gb/s of a machine for its GPUs: instance types of the providers
    "aws-p4d": 400, "aws-p4de": 400, "aws-p5": 3200, "aws-p5en": 3200, "azure-nd-h100-v5": 3200, "azure-nd-a100-v4": 1600,
    "gcp-a3-mega": 1600, "gcp-a3-high": 800, "gcp-a2-ultra": 100, "lambda-8x-h100": 3200, "coreweave-hgx-h100": 3200,
}  # fmt: skip


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_network_of_an_instance(name):
    tree = topology_tree(name)
    rate = parse(tree["links"][tree["fabric"]["link"]]["line_rate"], "rate")
    assert len(shipped(name).machine(0).ports) * rate * 8 / 1e9 == NETWORK[name]


@pytest.mark.parametrize(
    ("name", "device", "links", "each", "cards", "network"),
    [  # links of a GPU and what arrives over each [GB/s]; NICs and the line rate of each [Gb/s]
        ("hgx-h100", "h100-sxm-80gb", 18, 20.6, 8, 400), ("hgx-h800", "h800-sxm-80gb", 8, 20.6, 8, 400),
        ("hgx-h20", "h20-sxm-96gb", 18, 20.6, 8, 400), ("hgx-a800", "a800-sxm-80gb", 8, 20.0, 8, 200),
        ("hgx-b300", "b300-sxm-288gb", 18, 40.1, 8, 800), ("mi325x-8", "mi325x-256gb", 7, 45.5, 8, 400),
        ("mi355x-8", "mi355x-288gb", 7, 57.6, 8, 400), ("mi350x-8", "mi350x-288gb", 7, 52.4, 8, 400),
    ],
)  # fmt: skip
def test_links_and_network_of_eight_gpus(name, device, links, each, cards, network):
    tree = topology_tree(name)
    machine = shipped(name).machine(0)
    assert (tree["node"]["device"], machine.gpus) == (device, 8)
    for gpu in machine.gpu_names:
        inner = [data["link"].capacity for data in machine.graph.adj[gpu].values() if data["link_kind"].medium == "nvlink"]
        assert len(inner) in (1, 7)  # one bundle to the NVSwitches, or one link to each of the others
        assert sum(inner) == pytest.approx(links * each * 1e9)
    assert {one.nvlinks for one in machine.devices} == {links}
    assert len(machine.ports) == cards
    assert parse(tree["links"][tree["fabric"]["link"]]["line_rate"], "rate") * 8 / 1e9 == network


@pytest.mark.parametrize("name", ["hgx-b300", "hgx-h800", "hgx-h20", "mi325x-8", "mi350x-8", "mi355x-8"])
def test_every_gpu_reaches_its_own_card_at_the_line_rate(name):
    found, tree = survey(name), topology_tree(name)
    rate = parse(tree["links"][tree["fabric"]["link"]]["line_rate"], "rate")
    assert [way.nic for way in found.ways] == [f"nic{number}" for number in range(8)]
    for way in found.ways:
        assert way.relation == "PIX"
        assert 0.9 * rate <= way.together <= rate


def test_ranges_and_wildcards():
    assert expand("nic0..3") == ["nic0", "nic1", "nic2", "nic3"]
    assert expand("cpu") == ["cpu"]
    cluster = shipped("dgx-a100-80gb")
    graph = cluster.machine(0).graph
    assert graph.edges["gpu5", "nvswitch"]["link"].capacity == 240e9
    assert graph.has_edge("gpu3", "pcie1")
    assert graph.has_edge("nic7", "pcie3")
    assert not graph.has_edge("gpu3", "pcie0")


def test_the_cube_mesh_has_24_links_and_degree_six():
    machine = shipped("dgx-1-v100").machine(0)
    degree = dict.fromkeys(machine.gpu_names, 0.0)
    for a, b, data in machine.graph.edges(data=True):
        if data["link_kind"].medium == "nvlink":
            degree[a] += data["link"].capacity / 22.5e9
            assert b.startswith("gpu")
    assert set(degree.values()) == {6.0}


def test_price():
    price = shipped("aws-p4d").price
    assert price is not None
    assert (price.gpu_hour, price.currency, price.date) == (2.74, "USD", "2025-06-05")
    tree = topology_tree("single-a100") | {"price": {"gpu_hour": 2.0}}
    with pytest.raises(TopologyError, match="date"):
        build(tree)


def nics(cluster):
    return cluster.machine(0).owned_ports


def test_gpu_to_nic():
    assert nics(shipped("dgx-1-v100")) == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))
    assert nics(shipped("dgx-a100-80gb")) == tuple((k,) for k in range(8))
    assert nics(shipped("hgx-h100")) == tuple((k,) for k in range(8))
    assert nics(shipped("aws-p4d")) == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))
    assert nics(shipped("4x-v100-pcie")) == ((0,),) * 4
    assert nics(shipped("workstation-2x-rtx-3090")) == ((), ())


def test_more_nics_than_gpus_are_dealt_out():
    edges = [{"from": "gpu*", "to": "pcie0", "kind": "pcie4-x16"}, {"from": "nic*", "to": "pcie0", "kind": "pcie4-x16"}]
    node = {"gpus": 2, "device": "chip", "vertices": ["pcie0", "nic0..3"], "edges": edges}
    assert nics(build({"name": "x", "node": node})) == ((0, 2), (1, 3))


def test_findings_of_a_topology_come_together():
    tree = {
        "name": "bad",
        "colour": "red",
        "node": {
            "gpus": 2,
            "device": "chip",
            "vertices": ["nvswitch", "thing0"],
            "edges": [
                {"from": "gpu*", "to": "nvswitch", "kind": "nvlink33"},
                {"from": "gpu9", "to": "nvswitch", "kind": "nvlink3"},
                {"from": "gpu0", "to": "nvswitch", "kind": "nvlink3"},
            ],
        },
        "links": {"nvlink3": {"per_direction": "20 GB"}},
    }
    with pytest.raises(TopologyError) as caught:
        build(tree)
    paths = [finding.path for finding in caught.value.findings]
    assert "links.nvlink3.per_direction" in paths
    assert "node.vertices" in paths
    assert "node.edges[0].kind" in paths
    assert "node.edges[1].from" in paths
    assert "node.edges[2]" in paths
    assert "colour" in paths
    kinds = next(finding for finding in caught.value.findings if finding.path == "node.edges[0].kind")
    assert kinds.suggestion == "did you mean 'nvlink3'?"


def test_two_nvswitch_vertices_are_refused():
    edges = [{"from": "gpu*", "to": "nvswitch*", "kind": "nvlink3", "count": 6, "pair": "all"}]
    node = {"gpus": 2, "device": "chip", "vertices": ["nvswitch0..1"], "edges": edges}
    with pytest.raises(TopologyError, match="one nvswitch vertex"):
        build({"name": "x", "node": node})


def test_ambiguous_wildcards_are_refused():
    node = {
        "gpus": 2,
        "device": "chip",
        "vertices": ["pcie0..1"],
        "edges": [{"from": "gpu*", "to": "pcie*", "kind": "pcie4-x16"}],
    }
    with pytest.raises(TopologyError, match="pair: one-to-one"):
        build({"name": "x", "node": node})


def test_wrong_numbers():
    with pytest.raises(TopologyError, match="17 GPUs wanted"):
        shipped("hgx-h100", nodes=2, gpus=17)
    with pytest.raises(TopologyError, match="whole number"):
        shipped("hgx-h100", nodes=0)
    with pytest.raises(TopologyError, match="no NIC"):
        shipped("workstation-2x-rtx-3090", nodes=2, fabric={"link": "ib-ndr"})
    with pytest.raises(TopologyError, match="no trunks"):
        shipped("hgx-h100", nodes=2, fabric={"kind": "single-switch", "oversubscription": 2})


# inline boxes


def test_box_line():
    cluster = build("4x v100-32gb")
    assert cluster.gpus == 4
    assert cluster.device(0).name == "V100 SXM2 32GB"
    assert sum(one.rate for one in channels(cluster, (0, 1, 2, 3))) == pytest.approx(135e9)  # two links per pair: six rings
    with pytest.raises(TopologyError, match="no box"):
        build("four v100")


def test_box_of_geforce_cards():
    cluster = build({"gpu": "rtx-3090", "count": 6, "interconnect": "pcie3-x8", "p2p": False})
    assert (cluster.gpus, cluster.nodes) == (6, 1)
    route = cluster.route(0, 1)
    assert [cluster.link_class_name(link) for link in route.links] == ["gpu->cpu", "cpu<->memory", "cpu->gpu"]
    assert route.coefficients == (1.0, 2.0, 1.0)
    assert cluster.capacity(route.links[0]) == 6e9
    assert channels(cluster, tuple(range(6)))[0].rate == 6e9


def test_box_wirings():
    bridged = build({"gpu": "rtx-3090", "count": 4, "interconnect": "nvlink-pairs"})
    assert bridged.link_class_name(bridged.route(0, 1).links[0]) == "gpu->gpu"
    assert len(bridged.route(1, 2).links) == 3
    switched = build("8x a100-80gb")
    assert channels(switched, tuple(range(8)))[0].rate == 240e9
    with pytest.raises(TopologyError, match="dgx-1-v100"):
        build("8x v100-32gb")
    with pytest.raises(TopologyError, match="has no NVLink"):
        build({"gpu": "rtx-4090", "count": 2, "interconnect": "nvlink-pairs"})
    with pytest.raises(TopologyError, match="did you mean 'pcie4-x16'"):
        build({"gpu": "rtx-4090", "count": 2, "interconnect": "pcie4-x17"})


def test_box_with_a_nic():
    cluster = build({"gpu": "l40s", "count": 4, "nic": "roce-200g"}, nodes=2)
    route = cluster.route(0, 7)
    assert route.bottleneck(cluster.capacity) == 0.94 * 25e9
    assert len(route.links) == 6


def test_p2p_argument_wins():
    tree = topology_tree("8x-rtx-4090-pcie")
    assert len(build(copy.deepcopy(tree)).route(0, 1).links) == 3
    assert len(build(copy.deepcopy(tree), p2p=True).route(0, 1).links) == 2


# overrides


def test_link_overrides():
    assert shipped("dgx-a100-80gb", overrides={"links": {"nvlink3": {"bandwidth": "x2"}}}).route(0, 1).bottleneck(
        lambda link: shipped("dgx-a100-80gb", overrides={"links": {"nvlink3": {"bandwidth": "x2"}}}).capacity(link)
    ) == pytest.approx(480e9)
    slow = shipped("dgx-a100-80gb", nodes=2, overrides={"links": {"ib-hdr": {"bandwidth": "100 Gb/s"}}})
    assert slow.route(0, 8).bottleneck(slow.capacity) == pytest.approx(0.945 * 12.5e9)
    standard = {"fabric": {"link": "roce-200g"}, "overrides": {"links": {"roce-200g": {"efficiency": 0.5, "message_latency": "9 us"}}}}
    changed = shipped("dgx-a100-80gb", nodes=2, **standard).network.link_kind  # not in the file: the standard kind is changed
    assert (changed.capacity, changed.planning, changed.message_latency) == pytest.approx((12.5e9, 25e9, 9e-6))
    with pytest.raises(TopologyError, match="unknown kind of link"):
        shipped("dgx-a100-80gb", overrides={"links": {"nvlink33": {"bandwidth": "x2"}}})


def test_a_standard_link_that_the_file_does_not_define_can_be_changed():
    box = {"gpu": "a100-80gb", "count": 2}
    cluster = build(box, overrides={"links": {"nvlink3": {"bandwidth": "x0.5"}}})
    assert cluster.capacity(cluster.route(0, 1).links[0]) == pytest.approx(120e9)


def test_nic_override():
    assert nics(shipped("dgx-a100-80gb", nodes=2, overrides={"node": {"nics": 1}})) == ((0,),) * 8
    with pytest.raises(TopologyError, match="has 8 NICs, not 9"):
        shipped("dgx-a100-80gb", nodes=2, overrides={"node": {"nics": 9}})


# explicit graphs


def test_explicit_graph():
    tree = {
        "name": "pair",
        "device": ["a100-80gb", "h100"],
        "vertices": ["gpu0", "gpu1", "cpu0", "cpu1", "nic0", "nic1", "leaf"],
        "edges": [
            {"from": "gpu0", "to": "cpu0", "kind": "pcie4-x16"},
            {"from": "gpu1", "to": "cpu1", "kind": "pcie5-x16"},
            {"from": "nic0", "to": "cpu0", "kind": "pcie4-x16"},
            {"from": "nic1", "to": "cpu1", "kind": "pcie5-x16"},
            {"from": "nic*", "to": "leaf", "kind": "ib-ndr"},
        ],
    }
    cluster = build(tree)
    assert (cluster.nodes, cluster.gpus) == (2, 2)
    assert [cluster.device(gpu).name for gpu in (0, 1)] == ["A100 SXM 80GB", "H100 SXM 80GB"]
    route = cluster.route(0, 1)
    assert [cluster.link_class_name(link) for link in route.links] == [
        "gpu->cpu", "cpu->nic", "nic->switch", "switch->nic", "nic->cpu", "cpu->gpu",
    ]  # fmt: skip
    with pytest.raises(TopologyError, match="cannot be repeated"):
        build(tree, nodes=2)


def test_an_unreachable_pair_is_an_error_that_names_both():
    node = {"gpus": 2, "device": "chip", "vertices": ["cpu0"], "edges": [{"from": "gpu0", "to": "cpu0", "kind": "pcie4-x16"}]}
    cluster = build({"name": "broken", "node": node})
    with pytest.raises(TopologyError, match="GPU 0 to GPU 1"):
        cluster.route(0, 1)
    with pytest.raises(TopologyError, match="no path"):
        channels(cluster, (0, 1))
    split = {
        "name": "split",
        "device": "chip",
        "vertices": ["gpu0", "gpu1", "leaf0", "leaf1"],
        "edges": [{"from": "gpu0", "to": "leaf0", "kind": "net"}, {"from": "gpu1", "to": "leaf1", "kind": "net"}],
        "links": {"net": wire(25.0)},
    }
    with pytest.raises(TopologyError, match="no path from gpu0 to gpu1"):
        build(split).route(0, 1)


def test_bare_numbers_and_bombs_are_refused():
    tree = topology_tree("single-a100") | {"links": {"pcie4-x16": {"per_direction": 24}}}
    with pytest.raises(TopologyError, match="write the unit"):
        build(tree)
    with pytest.raises(TopologyError, match="more than 10000"):
        expand("gpu0..999999999")
    with pytest.raises(TopologyError, match="from 1 to 1024"):
        build({"gpu": "chip", "count": 10**9})
