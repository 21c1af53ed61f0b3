"""Several kinds of machines on one network: routes, capacities, regions."""

from __future__ import annotations

import numpy as np
import pytest

from parsim.hardware.collectives import collective_cost as ring_cost
from parsim.hardware.fabric.joined import JoinedFabric
from parsim.hardware.nccl.cost import collective_cost
from parsim.scenario import load
from parsim.scenario.build_machine import machine
from parsim.study.topology import survey, text

TWO = [{"use": "hgx-h100", "count": 2}, {"use": "dgx-a100-80gb", "count": 2}]
FAR = [{"use": "hgx-h100", "count": 2}, {"use": "hgx-h200", "count": 2, "region": "b"}]
REGIONS = [{"between": ["a", "b"], "bandwidth": "1 Gb/s", "latency": "30 ms"}]


def cluster_of(nodes, **more):
    tree = {"model": "gpt2", "training": {"sequence_length": 64, "micro_batch": 1, "gradient_accumulation": 1}}
    return machine(load({**tree, "cluster": {"nodes": nodes, **more}}))[0]


def test_every_island_keeps_its_wires():
    cluster = cluster_of(TWO)
    fabric = cluster.fabric
    assert isinstance(fabric, JoinedFabric)
    assert (cluster.nodes, cluster.gpus, cluster.name) == (4, 32, "2 x hgx-h100 + 2 x dgx-a100-80gb")
    assert [fabric.port_kind(node).name for node in range(4)] == ["ib-ndr", "ib-ndr", "ib-hdr", "ib-hdr"]
    inside, across = cluster.route(0, 8), cluster.route(0, 16)
    assert inside.bottleneck(cluster.capacity) == pytest.approx(48e9)
    assert across.bottleneck(cluster.capacity) == pytest.approx(0.945 * 25e9)
    names = [cluster.link(link).name for link in across.links if link >= cluster.first_fabric_link]
    assert names == ["node0.port0->leaf", "island0.rail0.leaf0->spine", "island1.spine->rail0.leaf0", "node2.port0<-leaf"]


def test_links_by_number_and_many_at_once_agree():
    cluster = cluster_of(FAR, regions=REGIONS)
    numbers = np.arange(cluster.link_count)
    assert cluster.capacities(numbers).tolist() == [cluster.capacity(number) for number in numbers.tolist()]
    assert len({cluster.link(number).name for number in numbers.tolist()}) == cluster.link_count
    assert sum(count for _, count in cluster.network.classes_of_links()) == cluster.network.link_count
    graph = cluster.graph()
    assert {"core a", "core b"} <= set(graph)
    assert graph["core a"]["core b"]["link"].capacity == 125e6


def test_a_ring_runs_at_the_link_between_regions():
    cluster = cluster_of(FAR, regions=REGIONS)
    group = tuple(range(32))
    whole = ring_cost(cluster, group, "all_reduce", 10**9)
    assert whole.time - whole.latency == pytest.approx(2 * 31 / 32 * 1e9 / 125e6, rel=1e-12)
    # a chunk of an all-reduce goes round almost twice and passes both edges between regions each time
    near = ring_cost(cluster_of([{**FAR[0]}, {"use": "hgx-h200", "count": 2}]), group, "all_reduce", 10**9)
    assert whole.latency - near.latency == pytest.approx(4 * 0.030, rel=1e-9)
    gathered = collective_cost(cluster, group, "all_gather", 10**9)
    assert 2 * 0.030 < gathered.latency < 2 * 0.030 + 1e-3
    assert collective_cost(cluster, group[:16], "all_gather", 10**9).time < 0.1
    sent = collective_cost(cluster, (0, 16), "send", 10**6)
    assert 0.030 + 0.008 < sent.time < 0.0385


def test_tree_over_regions_goes_up_and_down():
    cluster = cluster_of(FAR, regions=REGIONS)
    small = collective_cost(cluster, tuple(range(32)), "all_reduce", 1024)
    assert small.algorithm == "tree"
    assert 4 * 0.030 < small.time < 4 * 0.030 + 1e-3  # the mirrored tree's longest way to its root crosses twice


def test_fewer_gpus_and_nics_of_some_machines():
    cluster = cluster_of([{"use": "hgx-h100", "gpus": 4, "nics": 2}, {"use": "hgx-h200"}])
    assert cluster.gpus == 12
    assert cluster.placement(12) == (0, 1, 2, 3, *range(8, 16))
    assert [len(cluster.machine(node).ports) for node in range(2)] == [2, 8]


def test_equal_neighbours_are_one_topology():
    once = cluster_of([{"use": "hgx-h100", "count": 2}, {"use": "hgx-h100"}])
    assert not isinstance(once.fabric, JoinedFabric)
    assert (once.nodes, once.name) == (3, "hgx-h100")


def test_a_survey_of_a_scenario(tmp_path):
    path = tmp_path / "far.yaml"
    path.write_text(
        "model: gpt2\ntraining: {sequence_length: 64, micro_batch: 1, gradient_accumulation: 1}\n"
        "cluster:\n  nodes: [{use: hgx-h100, count: 2}, {use: hgx-h200, count: 2, region: b}]\n"
        "  regions: [{between: [a, b], bandwidth: 1 Gb/s, latency: 30 ms}]\n"
    )
    found = survey(str(path))
    assert [(row.first_node, row.count, row.region) for row in found.machines] == [(0, 2, "a"), (2, 2, "b")]
    assert found.bisections[-1].bandwidth == 125e6
    assert "  2-3    hgx-h200     8  H200 SXM 141GB     8  49 GB/s  b" in text(found)
