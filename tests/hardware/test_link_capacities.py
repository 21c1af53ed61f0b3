"""Capacities of many links at a time are those of the links one by one."""

import numpy as np
import pytest
from hardware_graphs import leaf_spine, nodes_on_rails, shipped, shipped_topologies, topology_tree

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.direct import GraphFabric

FABRICS = {
    "leaves": {"kind": "fat-tree", "leaf_ports": 4, "oversubscription": 3},
    "hashed leaves": {"kind": "fat-tree", "leaf_ports": 4, "oversubscription": 2, "routing": "ecmp"},
    "rails": {"kind": "rail-optimised", "leaf_ports": 2, "oversubscription": 2},
    "mesh": {"kind": "full-mesh"},
}


def check(cluster):
    every = np.arange(cluster.link_count)
    assert cluster.capacities(every).tolist() == [cluster.capacity(link) for link in every.tolist()]
    backwards = every[::-3]
    assert cluster.capacities(backwards).tolist() == [cluster.capacity(link) for link in backwards.tolist()]


@pytest.mark.parametrize("name", shipped_topologies())
def test_shipped_machines(name):
    check(shipped(name))
    if "fabric" in topology_tree(name):
        check(shipped(name, nodes=5))


@pytest.mark.parametrize("kind", FABRICS)
def test_fabrics(kind):
    check(nodes_on_rails(5, 4, 4, 25.0, **FABRICS[kind]))


def test_unequal_machines():
    one, other = shipped("hgx-h100").machine(0), shipped("dgx-1-v100").machine(0)
    check(Cluster("both", [(one, 2), (other, 3), (one, 1)]))


def test_switches_and_cables_one_by_one():
    assert isinstance(leaf_spine().fabric, GraphFabric)
    check(leaf_spine())
