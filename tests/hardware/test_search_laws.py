"""What holds for every answer of the channel search: legal rings, no overbooked link, bounded effort, the same answer every time."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations, permutations
from pathlib import Path

import pytest
from hardware_graphs import build, chip, device_tree, wire
from hypothesis import given, settings
from hypothesis import strategies as st
from search_graphs import GB, GEN5, ask, box, check, machine, nvswitch, roots, switches

from parsim.errors import TopologyError
from parsim.hardware.device import device_from_tree
from parsim.hardware.fabric.links import standard_kind
from parsim.hardware.nccl.packing import BUDGET, BUDGET_OF_NINE, cheapest_order
from parsim.hardware.nccl.search import search
from parsim.hardware.nccl.task import largest_product, speed_list, split

SUBSETS = [group for size in range(2, 9) for group in combinations(range(8), size)]
MOST_EVALUATIONS = BUDGET + 24 * 32
PAIRS = {"gpu": "a100-pcie", "count": 8, "interconnect": "nvlink-pairs", "sockets": 2}


@pytest.mark.parametrize(("name", "worst", "total"), [("dgx-1-v100", 170, 6000), ("mi300x-8", 200, 12000), ("pairs", 20, 500)])
def test_effort_over_all_groups_of_a_machine(name, worst, total):
    """A look-up of a cheapest ring costs 0.03 (four members) to 0.2 ms (eight): 200 of them stay below 50 ms."""
    node = box(**PAIRS, cpu="amd") if name == "pairs" else machine(name)
    effort = [ask(node, group).evaluations for group in SUBSETS]
    assert len(effort) == 247
    assert max(effort) <= worst
    assert sum(effort) <= total


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ports"), [("dgx-1-v100", 12.0), ("mi300x-8", 48.0), ("mi300x-8", 24.0)])
def test_effort_with_the_network(name, ports):
    """Nine members (0.6 ms per look-up): the budget is smaller."""
    effort = {group: ask(machine(name), group, network=True, ports=ports * GB).evaluations for group in SUBSETS}
    assert max(effort.values()) <= 200
    assert effort[tuple(range(8))] <= BUDGET_OF_NINE + 10


@pytest.mark.slow
def test_same_rings_whatever_the_hash_seed():
    script = (
        "import hashlib\n"
        "from itertools import combinations\n"
        "from search_graphs import box, machine\n"
        "from parsim.hardware.nccl.search import search\n"
        "nodes = [machine('dgx-1-v100'), machine('mi300x-8'), box(gpu='a100-pcie', count=8, interconnect='nvlink-pairs', sockets=2)]\n"
        "found = [search(node, group) for node in nodes for size in (2, 3, 4, 5, 6, 7, 8) for group in combinations(range(8), size)]\n"
        "found += [search(nodes[0], tuple(range(8)), network=True, ports=12e9)]\n"
        "print(len(found), hashlib.sha256(repr(found).encode()).hexdigest())\n"
    )
    here = Path(__file__).parent
    started = []
    for seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
        started.append(subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment))
    outputs = [process.communicate()[0] for process in started]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("742 ")


def test_order_of_the_group_does_not_matter_and_answers_are_kept():
    node = machine("dgx-1-v100")
    first = search(node, (3, 1, 0, 2))
    assert search(node, (0, 1, 2, 3)) is first
    twin = roots(4, "pcie4-x16", GEN5, "amd")
    assert search(twin, (0, 1)) is search(roots.__wrapped__(4, "pcie4-x16", GEN5, "amd"), (0, 1))
    assert search(roots(4, "pcie4-x16", GEN5, "intel"), (0, 1)).speed != search(twin, (0, 1)).speed


# a second way to compute


def best_by_hand(node, group):
    """The largest count x speed over all multisets of rings on direct NVLinks, by exhaustive search [B/s]."""
    names = [node.gpu_names[gpu] for gpu in group]
    room = {}
    for a, b in permutations(range(len(group)), 2):
        data = node.graph.get_edge_data(names[a], names[b])
        if data and data["link_kind"].medium == "nvlink":
            room[a, b] = data["link"].capacity * data["link_kind"].planning / data["link_kind"].capacity
    rings = [[(0, *rest)[i : i + 2] for i in range(len(group) - 1)] + [(rest[-1], 0)] for rest in permutations(range(1, len(group)))]
    rings = [ring for ring in rings if all(step in room for step in ring)]
    speeds = speed_list(node.devices[0].compute_capability, network=False) or (48 * GB,)
    best, fastest = 0.0, 0.0
    for speed in speeds:
        if best and speed < 0.49 * fastest:
            break
        left = {step: int(capacity / speed * (1 + 1e-9)) for step, capacity in room.items()}
        count = _most(rings, left)
        if count * speed > best * (1 + 1e-9):
            best, fastest = count * speed, speed
    return best


def _most(rings, left):
    best = 0
    for number, ring in enumerate(rings):
        if all(left[step] for step in ring):
            for step in ring:
                left[step] -= 1
            best = max(best, 1 + _most(rings[number:], left))
            for step in ring:
                left[step] += 1
    return best


@pytest.mark.parametrize("name", ["dgx-1-v100", "mi300x-8"])
def test_as_good_as_exhaustive_search_on_small_meshes(name):
    node = machine(name)
    for size in (2, 3, 4):
        for group in combinations(range(8), size):
            exact = best_by_hand(node, group)
            if exact:
                found = ask(node, group)
                # rings through a third GPU may add to those on direct links
                assert found.bandwidth >= exact * (1 - 1e-9), group
                assert found.tier > 0 or found.bandwidth == pytest.approx(exact), group


def test_mesh_of_four_with_two_links_against_exhaustive_search():
    node = box(gpu="v100-32gb", count=4)
    assert best_by_hand(node, (0, 1, 2, 3)) == pytest.approx(ask(node, range(4)).bandwidth) == 120 * GB


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_link_is_overbooked_on_random_machines(data):
    gpus = data.draw(st.integers(2, 7), "gpus")
    device = data.draw(st.sampled_from(["v100-sxm2-32gb", "a100-sxm-40gb", "h100-sxm-80gb", "b200-sxm-180gb", "mi300x-192gb"]), "device")
    kind = {"v": "nvlink2", "a": "nvlink3", "h": "nvlink4", "b": "nvlink5", "m": "xgmi3"}[device[0]]
    pairs = [(a, b) for a in range(gpus) for b in range(a)]
    meshed = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=len(pairs)), "edges")
    edges = [{"from": f"gpu{a}", "to": f"gpu{b}", "kind": kind, "count": data.draw(st.integers(1, 3))} for a, b in sorted(meshed)]
    for gpu in range(gpus):
        port = data.draw(st.sampled_from(["cpu0", "cpu1", "pcie0"]))
        edges.append({"from": f"gpu{gpu}", "to": port, "kind": data.draw(st.sampled_from(["pcie3-x8", "pcie4-x16", "pcie5-x16"]))})
    edges += [
        {"from": "pcie0", "to": "cpu0", "kind": "pcie4-x16"},
        {"from": "nic0", "to": "pcie0", "kind": "pcie4-x16"},
        {"from": "nic1", "to": "cpu1", "kind": "pcie4-x16"},
        {"from": "cpu0", "to": "cpu1", "kind": "socket"},
    ]
    node_tree = {
        "gpus": gpus,
        "device": device,
        "cpu": data.draw(st.sampled_from(["intel", "amd"])),
        "p2p": data.draw(st.booleans()),
        "vertices": ["cpu0..1", "pcie0", "nic0..1"],
        "edges": edges,
    }
    socket = wire(data.draw(st.sampled_from([6.0, 16.0, 22.0])), "socket")
    node = build({"name": "random", "node": node_tree, "links": {"socket": socket}}).machine(0)
    group = tuple(data.draw(st.lists(st.integers(0, gpus - 1), unique=True, min_size=2, max_size=gpus), "group"))
    found = ask(node, group)
    assert found.evaluations <= MOST_EVALUATIONS
    assert found.carried > 0
    rate = data.draw(st.sampled_from([3.0, 12.0, 24.0])) * GB
    ask(node, group, network=True, ports=rate)
    ask(node, group[:1], network=True, ports=rate)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.data())
def test_cheapest_order_is_the_cheapest(members, data):
    import numpy

    entries = data.draw(st.lists(st.integers(1, 9), min_size=members**2, max_size=members**2))
    cost = numpy.array(entries, dtype=float).reshape(members, members)
    lengths = {}
    for rest in permutations(range(1, members)):
        order = (0, *rest)
        lengths[order] = sum(cost[a, b] for a, b in zip(order, (*rest, 0), strict=True))
    first = min(lengths, key=lambda order: (lengths[order], order))
    assert cheapest_order(cost) == first
    even = cost + cost.T
    both = cheapest_order(even, symmetric=True)
    total = {order: sum(even[a, b] for a, b in zip(order, (*order[1:], 0), strict=True)) for order in lengths}
    assert total[both] == min(total.values())


def test_order_of_many_members():
    """Sixteen on a circle of short steps: found without a table of all orders."""
    import numpy

    place = (numpy.arange(16) * 7) % 16
    far = numpy.abs(place[:, None] - place[None, :])
    cost = numpy.minimum(far, 16 - far).astype(float)
    order = cheapest_order(cost)
    assert sorted(order) == list(range(16))
    assert sum(cost[a, b] for a, b in zip(order, (*order[1:], order[0]), strict=True)) == 16


def test_a_mesh_of_sixteen():
    """A square of 4 x 4 with wrap-around links: four neighbours each, so at most four rings."""
    edges = []
    for gpu in range(16):
        row, column = divmod(gpu, 4)
        edges += [{"from": f"gpu{gpu}", "to": f"gpu{4 * row + (column + 1) % 4}", "kind": "nvlink2"}]
        edges += [{"from": f"gpu{gpu}", "to": f"gpu{4 * ((row + 1) % 4) + column}", "kind": "nvlink2"}]
    node = build({"name": "torus", "node": {"gpus": 16, "device": "v100-sxm2-32gb", "vertices": [], "edges": edges}}).machine(0)
    found = ask(node, range(16))
    assert 2 <= found.count <= 4
    assert found.speed == 20 * GB


# pieces


def test_lists_of_speeds():
    assert speed_list(7.0, network=False)[:3] == (40e9, 30e9, 20e9)
    assert speed_list(8.9, network=True)[0] == 48e9
    assert speed_list(9.0, network=False)[0] == 60e9
    assert speed_list(12.0, network=False)[0] == 90e9
    assert speed_list(0.0, network=False) == ()


def test_rounding_and_splitting():
    assert largest_product(240e9, speed_list(8.0, network=False)) == (6, 40e9)
    assert largest_product(370.8e9, speed_list(9.0, network=False)) == (6, 60e9)
    assert largest_product(2e9, speed_list(8.0, network=False)) == (0, 0.0)
    assert split(6, 40e9, 8.0) == (12, 20e9)
    assert split(6, 60e9, 9.0) == (12, 30e9)
    assert split(8, 45e9, 9.0) == (8, 45e9)
    assert split(4, 40e9, 9.0) == (8, 20e9)
    assert split(8, 24e9, 8.0) == (8, 24e9)
    assert split(7, 48e9, 0.0) == (7, 48e9)


def test_links_slower_than_every_speed_run_at_their_own():
    found = ask(roots(2, "pcie1-x4", "a100-pcie-40gb", "amd"), (0, 1))
    assert (found.count, found.speed, found.carried) == (1, 0.75e9, 0.75e9)
    slow = build(
        {
            "name": "slow",
            "node": {"gpus": 3, "device": "a100-pcie-40gb", "vertices": [], "edges": [{"from": "gpu*", "to": "gpu*", "kind": "nv"}]},
            "links": {"nv": wire(1.0, "nvlink")},
        }
    ).machine(0)
    assert ask(slow, range(3)).carried == 1e9


def test_switches_in_two_halves():
    """Two NVSwitches with a trunk: the ring crosses it once each way."""
    edges = [
        {"from": "gpu0..3", "to": "nvswitch0", "kind": "nvlink3", "count": 12},
        {"from": "gpu4..7", "to": "nvswitch1", "kind": "nvlink3", "count": 12},
        {"from": "nvswitch0", "to": "nvswitch1", "kind": "nvlink3", "count": 6},
    ]
    node = {"gpus": 8, "device": "a100-sxm-40gb", "vertices": ["nvswitch0..1"], "edges": edges}
    built = build({"name": "halves", "node": node}).machine(0)
    found = ask(built, range(8))
    assert (found.count, found.speed) == (6, 20 * GB)
    assert ask(built, (0, 1, 2)).bandwidth == 240 * GB


def test_worst_card_decides_on_the_list():
    edges = [{"from": "gpu*", "to": "cpu0", "kind": "pcie5-x16"}]
    node = {"gpus": 2, "device": ["h100-pcie-80gb", "a100-pcie-40gb"], "vertices": ["cpu0"], "edges": edges}
    found = ask(build({"name": "mixed", "node": node}).machine(0), (0, 1))
    assert found.speed == 40 * GB  # not 2 x 24, which two H100 would get


def test_ports_of_gpus_themselves():
    node = {"gpus": 1, "device": "chip", "vertices": [], "edges": []}
    built = build({"name": "torus", "node": node, "fabric": {"nics": ["gpu0"]}}).machine(0)
    found = ask(built, (0,), network=True, ports=90 * GB)
    assert (found.carried, found.tier, found.kind) == (90 * GB, 0, "nvlink")
    with pytest.raises(TopologyError, match="nothing limits"):
        search(built, (0,), network=True)


@pytest.mark.parametrize(
    ("group", "options", "words"),
    [
        ((0, 0), {}, "twice"),
        ((0, 9), {}, "not within"),
        ((), {}, "not within"),
        ((1,), {}, "no channels"),
        ((0, 1), {"network": True, "ports": {9: 1e9}}, "not 9"),
        ((0, 1), {"network": True, "ports": {}}, "any NIC"),
        ((0, 1), {"network": True, "ports": 0.0}, "any NIC"),
    ],
)
def test_what_cannot_be_asked(group, options, words):
    with pytest.raises(TopologyError, match=words):
        search(machine("8x-l40s-pcie"), group, **options)


def test_machines_without_a_way():
    node = {"gpus": 2, "device": "chip", "vertices": ["nic0"], "edges": []}
    apart = build({"name": "apart", "node": node}).machine(0)
    with pytest.raises(TopologyError, match="no path"):
        search(apart, (0, 1))
    with pytest.raises(TopologyError, match="no NIC"):
        search(nvswitch(8, "h100-sxm-80gb", "nvlink4", 8), (0, 1), network=True)


def test_facts_of_devices_and_hosts():
    assert device_from_tree(device_tree("a100-sxm-80gb")).compute_capability == 8.0
    assert device_from_tree(device_tree("mi300x-192gb")).compute_capability == 0.0
    bare = {**chip(), "links": {"nvlink": "nvlink4", "nvlinks": 18}}
    assert device_from_tree(bare).compute_capability == 9.0
    assert device_from_tree({**chip(), "vendor": "nvidia"}).compute_capability == 7.0
    assert device_from_tree(chip()).compute_capability == 0.0
    assert machine("dgx-1-v100").cpu == "intel"
    assert machine("aws-p5").cpu == "amd"
    assert switches(16.0, "intel").cpu == "intel"
    assert standard_kind("nvlink2").planning == 20e9
    with pytest.raises(TopologyError, match="unknown maker"):
        roots(2, "pcie4-x16", GEN5, "inel")
    thin = build({"gpu": "v100-32gb", "count": 4, "links": {"nvlink2": {"per_direction": "11.25 GB/s"}}}).machine(0)
    found = ask(thin, range(4))
    assert found.bandwidth <= 6 * 10 * GB
    check(thin, tuple(range(4)), found)
