"""Bisection bandwidth: closed forms, and every half tried with a maximum flow."""

import itertools

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.hardware.fabric.bisection import Bisection, egress, fabric_bisection, machine_bisections
from parsim.scenario.files import names
from parsim.scenario.machines import machines

GB = 1e9
MEDIA = {"nvlink": ("nvlink",), "pcie": ("pcie", "socket"), "nvlink and pcie": ("nvlink", "pcie", "socket")}


def flow(machine, media, first):
    """What the GPUs `first` can send to the others, by networkx."""
    graph = networkx.DiGraph()
    for a, b, data in machine.graph.edges(data=True):
        if data["link_kind"].medium in media and "memory" not in (machine.finder.kind[a], machine.finder.kind[b]):
            graph.add_edge(a, b, capacity=data["link"].capacity)
    for number, name in enumerate(machine.gpu_names):
        graph.add_edge(*(("all", name) if number in first else (name, "none")))
    return networkx.maximum_flow_value(graph, "all", "none")


def over(machine):
    return {one.over: one.bandwidth / GB for one in machine_bisections(machine)}


def test_known_machines():
    assert over(machines("dgx-a100-80gb").machine(0)) == pytest.approx({"nvlink": 4 * 240, "pcie": 16})
    assert over(machines("gb200-nvl72").machine(0)) == pytest.approx({"nvlink": 36 * 18 * 40.1})  # trays are joined by NVLink only
    # two quads of a cube mesh are joined by 2 + 2 + 1 + 1 links of 22.5
    assert over(machines("dgx-1-v100").machine(0)) == pytest.approx({"nvlink": 6 * 22.5, "pcie": 6})
    # every pair of the mesh: 4 x 4 links between two halves
    assert over(machines("mi300x-8").machine(0))["nvlink"] == pytest.approx(16 * 45.5)
    assert over(machines("8x-rtx-4090-pcie").machine(0)) == pytest.approx({"pcie": 16})
    assert machine_bisections(machines("single-a100").machine(0)) == ()


def test_bridges_alone_join_nobody():
    pairs = machines({"gpu": "a100-pcie-80gb", "count": 4, "interconnect": "nvlink-pairs", "sockets": 1})
    found = machine_bisections(pairs.machine(0))
    assert [one.over for one in found] == ["pcie", "nvlink and pcie"]
    assert found[1].halves == ((0, 1), (2, 3))  # never through a bridge
    assert found[1].bandwidth == pytest.approx(2 * 24 * GB)


@pytest.mark.parametrize("name", names("topologies"))
def test_no_other_halves_have_less(name):
    machine = machines(name).machine(0)
    for one in machine_bisections(machine):
        assert one.exact
        assert sorted((*one.halves[0], *one.halves[1])) == list(range(machine.gpus))
        assert flow(machine, MEDIA[one.over], one.halves[0]) == pytest.approx(one.bandwidth)
        others = itertools.islice(itertools.combinations(range(machine.gpus), machine.gpus // 2), 40)
        assert min(flow(machine, MEDIA[one.over], half) for half in others) >= one.bandwidth * (1 - 1e-9)


@st.composite
def trees(draw):
    """Machines with up to six GPUs on random switches and random NVLinks."""
    gpus = draw(st.integers(2, 6))
    switches = draw(st.integers(1, 3))
    kinds = st.sampled_from(["pcie3-x16", "pcie4-x16", "pcie5-x16"])
    edges = [{"from": f"gpu{gpu}", "to": f"pcie{draw(st.integers(0, switches - 1))}", "kind": draw(kinds)} for gpu in range(gpus)]
    edges += [{"from": f"pcie{number}", "to": "cpu0", "kind": draw(kinds)} for number in range(switches)]
    pairs = draw(st.lists(st.sampled_from(list(itertools.combinations(range(gpus), 2))), unique=True, max_size=5))
    edges += [{"from": f"gpu{a}", "to": f"gpu{b}", "kind": "nvlink3", "count": draw(st.integers(1, 4))} for a, b in pairs]
    vertices = ["cpu0", *(f"pcie{number}" for number in range(switches))]
    return {"name": "drawn", "node": {"gpus": gpus, "device": "a100-pcie-80gb", "vertices": vertices, "edges": edges}}


@given(trees())
@settings(max_examples=40)
def test_the_worst_halves_of_random_machines(tree):
    machine = machines(tree).machine(0)
    for one in machine_bisections(machine):
        least = min(flow(machine, MEDIA[one.over], half) for half in itertools.combinations(range(machine.gpus), machine.gpus // 2))
        assert one.bandwidth == pytest.approx(least)


HDR = 0.945 * 25 * GB
"""what a 200 Gb/s port of InfiniBand carries [B/s]"""


def test_what_leaves_a_machine():
    assert egress(machines("dgx-a100-80gb", 2), 0) == pytest.approx([HDR] * 8)
    assert egress(machines("aws-p4d", 2), 0) == pytest.approx([11.875 * GB] * 4)


def test_fabrics_by_formula():
    assert fabric_bisection(machines("dgx-a100-80gb")) is None
    full = fabric_bisection(machines("dgx-a100-80gb", 128))
    assert full.bandwidth == pytest.approx(64 * 8 * HDR)
    assert full.exact
    thin = machines("dgx-1-v100", 8, fabric={"leaf_ports": 16, "oversubscription": 4})  # four machines of four NICs to a leaf
    assert fabric_bisection(thin) == Bisection("fabric", pytest.approx(4 * 4 * HDR / 2 / 4), ((0, 1, 2, 3), (4, 5, 6, 7)))
    split = fabric_bisection(machines("dgx-1-v100", 6, fabric={"leaf_ports": 16, "oversubscription": 4}))
    assert not split.exact
    # three machines send; the fourth of their leaf receives what its four NICs take, the trunk as much more
    assert split.bandwidth == pytest.approx(2 * 4 * HDR / 2)


def test_a_torus_is_cut_across_its_longest_dimension():
    node = {
        "gpus": 1, "device": "a100-sxm-80gb", "vertices": ["cpu0", "nic0"],
        "edges": [{"from": "gpu0", "to": "cpu0", "kind": "pcie5-x16"}, {"from": "nic0", "to": "cpu0", "kind": "pcie5-x16"}],
    }  # fmt: skip
    torus = {"name": "torus", "node": node, "fabric": {"kind": "torus", "dims": [4, 2], "nics": ["nic0"], "link": "ib-hdr"}}
    found = fabric_bisection(machines(torus, 8))
    assert found.bandwidth == pytest.approx(2 * 2 * HDR)
    assert found.halves == ((0, 1, 4, 5), (2, 3, 6, 7))
    mesh = {"name": "mesh", "node": node, "fabric": {"kind": "full-mesh", "nics": ["nic0"], "link": "ib-hdr"}}
    assert fabric_bisection(machines(mesh, 4)).bandwidth == pytest.approx(4 * HDR)


@pytest.mark.parametrize(
    ("topology", "nodes", "fabric"),
    [
        ("dgx-1-v100", 6, {"leaf_ports": 8, "oversubscription": 3}),
        ("dgx-1-v100", 5, {"kind": "single-switch"}),
        ("dgx-a100-80gb", 6, {"leaf_ports": 3, "oversubscription": 2}),
        ("aws-p4d", 4, None),
    ],
)
def test_fabrics_by_maximum_flow(topology, nodes, fabric):
    cluster = machines(topology, nodes, fabric=fabric)
    found = fabric_bisection(cluster)
    graph = networkx.DiGraph()
    for a, b, data in cluster.graph().edges(data=True):
        if data["link"].kind[:6] != "nvlink":
            graph.add_edge(a, b, capacity=data["link"].capacity)
    for node in range(nodes):
        for name in cluster.machine(node).gpu_names:
            graph.add_edge(*(("all", f"node{node}.{name}") if node in found.halves[0] else (f"node{node}.{name}", "none")))
    assert networkx.maximum_flow_value(graph, "all", "none") == pytest.approx(found.bandwidth)
