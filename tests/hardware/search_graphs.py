"""Machines that the tests of the channel search build by hand, and checks that every answer must pass."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hardware_graphs import build, shipped, wire

from parsim.hardware.fabric.node import Node
from parsim.hardware.nccl.search import MachineRings, search

GB = 1e9
GEN3, GEN4, GEN5 = "v100-pcie-32gb", "a100-pcie-40gb", "h100-pcie-80gb"


@cache
def machine(name: str) -> Node:
    """A shipped machine."""
    return shipped(name).machine(0)


@cache
def box(**keys: Any) -> Node:
    """A machine of an inline box."""
    return build(keys).machine(0)


@cache
def switches(socket: float, cpu: str) -> Node:
    """Eight GPUs on PCIe 5.0, each with a NIC of 400 Gb/s under a switch of its own, on two sockets."""
    edges: list[dict[str, Any]] = [
        {"from": "gpu*", "to": "pcie*", "kind": "pcie5-x16", "pair": "one-to-one"},
        {"from": "nic*", "to": "pcie*", "kind": "pcie5-x16", "pair": "one-to-one"},
        {"from": "pcie0..3", "to": "cpu0", "kind": "pcie5-x16"},
        {"from": "pcie4..7", "to": "cpu1", "kind": "pcie5-x16"},
        {"from": "cpu0", "to": "cpu1", "kind": "sys"},
    ]
    node = {"gpus": 8, "device": GEN5, "cpu": cpu, "vertices": ["cpu0..1", "pcie0..7", "nic0..7"], "edges": edges}
    return build({"name": "switches", "node": node, "links": {"sys": wire(socket, "socket")}}).machine(0)


@cache
def roots(gpus: int, pcie: str, device: str, cpu: str = "", socket: float = 0.0, nics: int = 0) -> Node:
    """GPUs on root ports of one socket, or of two (with a link of `socket` GB/s); NICs on the first."""
    half = gpus // 2 if socket else gpus
    edges: list[dict[str, Any]] = [{"from": f"gpu{gpu}", "to": f"cpu{gpu // half}", "kind": pcie} for gpu in range(gpus)]
    edges += [{"from": f"nic{nic}", "to": "cpu0", "kind": pcie} for nic in range(nics)]
    if socket:
        edges.append({"from": "cpu0", "to": "cpu1", "kind": "sys"})
    vertices = ["cpu0", *(["cpu1"] if socket else []), *(f"nic{nic}" for nic in range(nics))]
    node = {"gpus": gpus, "device": device, "vertices": vertices, "edges": edges, **({"cpu": cpu} if cpu else {})}
    return build({"name": "roots", "node": node, "links": {"sys": wire(socket or 1.0, "socket")}}).machine(0)


@cache
def nvswitch(gpus: int, device: str, kind: str, count: int) -> Node:
    """GPUs with `count` NVLinks each on one NVSwitch."""
    node = {
        "gpus": gpus,
        "device": device,
        "vertices": ["nvswitch"],
        "edges": [{"from": "gpu*", "to": "nvswitch", "kind": kind, "count": count}],
    }
    return build({"name": "nvswitch", "node": node}).machine(0)


def ask(node: Node, group: Any, **options: Any) -> MachineRings:
    """The channels of a group, checked against the laws that hold for every answer."""
    found = search(node, tuple(group), **options)
    check(node, tuple(group), found, options.get("ports"))
    return found


def check(node: Node, group: tuple[int, ...], found: MachineRings, ports: Any = None) -> None:
    """Every ring visits every GPU once over links that join up; no link, as it is and as it is planned, is overbooked."""
    assert len(found.channels) == found.count >= 1
    ends = {data["id"]: [] for _, _, data in node.graph.edges(data=True)}
    plan = {}
    for source, target, data in node.graph.edges(data=True):
        ends[data["id"]].append((source, target))
        plan[data["id"]] = data["link"].capacity * data["link_kind"].planning / data["link_kind"].capacity
    load: dict[int, float] = {}
    through: dict[tuple[int, str], int] = {}
    for ring in found.channels:
        assert sorted(ring.order) == sorted(group)
        names = [node.gpu_names[gpu] for gpu in ring.order]
        stops = [*names, names[0]] if ring.entry < 0 else [node.ports[ring.entry], *names, node.ports[ring.exit]]
        whole: dict[int, float] = {}
        assert len(ring.hops) == len(stops) - 1
        for number, hop in enumerate(ring.hops):
            assert connects(hop.links, stops[number], stops[number + 1], ends)
            for link, amount in zip(hop.links, hop.coefficients, strict=True):
                whole[link] = whole.get(link, 0.0) + amount
        assert whole == pytest.approx(dict(ring.load))
        for link, amount in ring.load:
            load[link] = load.get(link, 0.0) + amount
        if ring.entry >= 0:
            for key in ((ring.entry, "in"), (ring.exit, "out")):
                through[key] = through.get(key, 0) + 1
    for link, amount in load.items():
        assert found.rate * amount <= node.capacities[link] * (1 + 1e-9), node.links[link].name
        if node.links[link].kind != "host-memory":
            assert found.speed * amount <= plan[link] * (1 + 1e-8), node.links[link].name
    for (port, _), rings in through.items():
        limit = ports if isinstance(ports, float) else (ports or {}).get(port, float("inf"))
        assert max(found.speed, found.rate) * rings <= limit * (1 + 1e-9)


def connects(links: tuple[int, ...], source: str, target: str, ends: dict[int, list[tuple[str, str]]]) -> bool:
    """Whether the links lead from vertex to vertex; links used in both directions of a half-duplex edge may be merged."""
    if any(len(ends[link]) > 1 for link in links):
        return True
    at = source
    for link in links:
        ((a, b),) = ends[link]
        if a != at:
            return False
        at = b
    return at == target
