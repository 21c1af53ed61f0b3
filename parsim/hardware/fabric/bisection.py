"""Bisection bandwidth: what one half of the GPUs, or of the machines, can send to the other half at once, for the worst halves.

Inside a machine the worst halves are found exactly: all GPUs of a half send, so a cut is the edges between the halves, with
switches and CPUs on whichever side is cheaper; every side is tried. Between machines the halves are the first and the last
machines, which cut a fabric of equal leaves at its thinnest, and a torus across its longest dimension.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.direct import FullMesh, GraphFabric, Torus
from parsim.hardware.fabric.joined import JoinedFabric
from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.storage import VERTEX
from parsim.hardware.fabric.switches import Fabric, FatTree, Port

_MOST_PLACES = 16
"""switches and CPUs whose sides are all tried"""
_MOST_MESHED = 16
"""GPUs with direct links whose halves are all tried"""

Floats = npt.NDArray[np.float64]


class Bisection(NamedTuple):
    """Bandwidth between two halves, in one direction."""

    over: str
    """nvlink | pcie | nvlink and pcie | fabric"""
    bandwidth: float
    """[B/s]"""
    halves: tuple[tuple[int, ...], tuple[int, ...]]
    """GPUs of a machine, or machines; the first half sends"""
    exact: bool = True
    """whether these are the worst halves; else the bandwidth of the worst may be lower"""


def machine_bisections(machine: Node) -> tuple[Bisection, ...]:
    """Bisections inside a machine: over NVLink where that joins all GPUs, and over PCIe and sockets where those do.

    Where neither does alone, over both together.
    """
    if machine.gpus < 2:
        return ()
    media = {"nvlink": ("nvlink",), "pcie": ("pcie", "socket")}
    joined = {over: kinds for over, kinds in media.items() if _joins(machine, kinds)}
    if not joined and _joins(machine, ("nvlink", "pcie", "socket")):
        joined = {"nvlink and pcie": ("nvlink", "pcie", "socket")}
    elif "nvlink" not in joined and any(data["link_kind"].medium == "nvlink" for _, _, data in machine.graph.edges(data=True)):
        joined["nvlink and pcie"] = ("nvlink", "pcie", "socket")
    return tuple(_worst(machine, over, kinds) for over, kinds in joined.items())


def _joins(machine: Node, media: Sequence[str]) -> bool:
    """Whether links of these media join all GPUs."""
    reached, todo = {machine.gpu_names[0]}, [machine.gpu_names[0]]
    while todo:
        for other, data in machine.graph.adj[todo.pop()].items():
            if data["link_kind"].medium in media and other not in reached:
                reached.add(other)
                todo.append(other)
    return reached.issuperset(machine.gpu_names)


def _worst(machine: Node, over: str, media: Sequence[str]) -> Bisection:
    """The halves between which the least can move."""
    gpus = machine.gpu_names
    edges = [(a, b, data["link"].capacity) for a, b, data in machine.graph.edges(data=True) if data["link_kind"].medium in media]
    inner = list(dict.fromkeys(vertex for a, b, _ in edges for vertex in (a, b) if vertex not in gpus))
    inner = [vertex for vertex in inner if machine.finder.kind[vertex] in ("nvswitch", "pcie", "cpu")]
    place = {vertex: number for number, vertex in enumerate((*gpus, *inner))}
    capacity = np.zeros((len(place), len(place)))
    for a, b, rate in edges:
        if a in place and b in place:
            capacity[place[a], place[b]] += rate
    meshed = bool(capacity[: len(gpus), : len(gpus)].any())
    if len(inner) > _MOST_PLACES or (meshed and len(gpus) > _MOST_MESHED):
        halves = _halves(len(gpus))
        return Bisection(over, _least_cut(capacity, len(gpus), halves[0]), halves, exact=False)
    find = _worst_of_all if meshed else _worst_by_order
    bandwidth, first = find(capacity, len(gpus))
    second = tuple(gpu for gpu in range(len(gpus)) if gpu not in first)
    if np.array_equal(capacity, capacity.T):  # either half may send: name the one with the first GPU first
        first, second = sorted((first, second))
    return Bisection(over, bandwidth, (first, second))


def _halves(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first half, and the rest; with an odd count the second has one more."""
    return tuple(range(count // 2)), tuple(range(count // 2, count))


def _sides(count: int) -> Floats:
    """Every way to put `count` vertices on two sides, one per row; 1: with the senders."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=count))).reshape(2**count, count)


def _worst_by_order(capacity: Floats, gpus: int) -> tuple[float, tuple[int, ...]]:
    """Without links between GPUs each GPU has its own price on either side, so the cheapest half is the first of the sorted ones."""
    best = (math.inf, tuple[int, ...]())
    for side in _sides(len(capacity) - gpus):
        among = side @ capacity[gpus:, gpus:] @ (1 - side)
        sends = capacity[:gpus, gpus:] @ (1 - side)
        receives = side @ capacity[gpus:, :gpus]
        first = np.argsort(sends - receives, kind="stable")[: gpus // 2]
        cut = float(among + receives.sum() + (sends - receives)[first].sum())
        if cut < best[0] - 1e-3:
            best = (cut, tuple(sorted(map(int, first))))
    return best


def _worst_of_all(capacity: Floats, gpus: int) -> tuple[float, tuple[int, ...]]:
    """Every half, with every side of the switches and CPUs."""
    chosen = list(itertools.combinations(range(gpus), gpus // 2))
    halves = np.zeros((len(chosen), gpus))
    for row, half in enumerate(chosen):
        halves[row, list(half)] = 1.0
    direct = np.einsum("pi,ij,pj->p", halves, capacity[:gpus, :gpus], 1 - halves)
    best = (math.inf, tuple[int, ...]())
    for side in _sides(len(capacity) - gpus):
        among = side @ capacity[gpus:, gpus:] @ (1 - side)
        sends = halves @ (capacity[:gpus, gpus:] @ (1 - side))
        receives = (1 - halves) @ (side @ capacity[gpus:, :gpus])
        cuts = direct + among + sends + receives
        least = int(cuts.argmin())
        if cuts[least] < best[0] - 1e-3:
            best = (float(cuts[least]), chosen[least])
    return best


def _least_cut(capacity: Floats, gpus: int, first: Sequence[int]) -> float:
    """Most that the GPUs `first` can send to the others."""
    import networkx

    graph: networkx.DiGraph[object] = networkx.DiGraph()
    for a, b in zip(*map(np.ndarray.tolist, np.nonzero(capacity)), strict=True):
        graph.add_edge(a, b, capacity=float(capacity[a, b]))
    for gpu in range(gpus):
        graph.add_edge(*(("all", gpu) if gpu in first else (gpu, "none")))
    return float(networkx.minimum_cut_value(graph, "all", "none"))


def egress(cluster: Cluster, node: int) -> tuple[float, ...]:
    """What the GPUs of a machine can send out of each of its ports, all at once [B/s]."""
    import networkx

    machine, fabric = cluster.machine(node), cluster.network
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from(("all", "none"))
    for a, b, data in machine.graph.edges(data=True):
        if data["link_kind"].medium in ("pcie", "socket", "network"):
            graph.add_edge(a, b, capacity=data["link"].capacity)
    for name in machine.gpu_names:
        graph.add_edge("all", name)
    for number, name in enumerate(machine.ports):
        graph.add_edge(name, "none", capacity=fabric.capacity(fabric.to_core(Port(node, number))[0]))
    _, flow = networkx.maximum_flow(graph, "all", "none")
    return tuple(float(flow[name]["none"]) for name in machine.ports)


def fabric_bisection(cluster: Cluster) -> Bisection | None:
    """The bisection between machines; None for a single one."""
    fabric = cluster.fabric
    if fabric is None or cluster.nodes < 2:
        return None
    halves = _halves(cluster.nodes)
    if isinstance(fabric, (GraphFabric, JoinedFabric)):
        return Bisection("fabric", _graph_cut(cluster, halves[0]), halves, exact=cluster.nodes == 2)
    if isinstance(fabric, Torus):
        return _torus_cut(fabric, halves)
    if isinstance(fabric, FullMesh):
        cables = len(halves[0]) * len(halves[1]) * fabric.rails
        return Bisection("fabric", cables * fabric.link_kind.capacity, halves)
    return _leaf_cut(cluster, fabric, halves)


def _leaf_cut(cluster: Cluster, fabric: Fabric, halves: tuple[tuple[int, ...], tuple[int, ...]]) -> Bisection:
    """Through leaves with trunks to a core that does not block: what stays in a leaf, and what its trunk carries.

    Halves that split a leaf are the worst only where trunks are as wide as what they serve.
    """
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    known: dict[Node, tuple[float, ...]] = {}
    for node in range(cluster.nodes):
        machine = cluster.machine(node)
        if machine not in known:
            known[machine] = egress(cluster, node)
        into = sent if node in halves[0] else received
        for port, rate in enumerate(known[machine]):
            leaf = fabric.leaf_of(Port(node, port))
            into[leaf] = into.get(leaf, 0.0) + rate
    trunk = fabric.trunk_capacity if isinstance(fabric, FatTree) else 0.0
    stays = {leaf: min(rate, received.get(leaf, 0.0)) for leaf, rate in sent.items()}
    up = math.fsum(min(trunk, rate - stays[leaf]) for leaf, rate in sent.items())
    down = math.fsum(min(trunk, rate - stays.get(leaf, 0.0)) for leaf, rate in received.items())
    thin = isinstance(fabric, FatTree) and fabric.oversubscription > 1
    split = any(rate > 0 for rate in stays.values())
    return Bisection("fabric", math.fsum(stays.values()) + min(up, down), halves, exact=not (thin and split))


def _torus_cut(fabric: Torus, halves: tuple[tuple[int, ...], tuple[int, ...]]) -> Bisection:
    """Two planes across the longest dimension: a ring of k points is cut twice, of two points as well (two cables)."""
    longest = max(range(len(fabric.dims)), key=lambda axis: fabric.dims[axis])
    size = fabric.dims[longest]
    planes = fabric.nodes // size
    first = tuple(node for node in range(fabric.nodes) if fabric.position(node)[longest] < size // 2)
    second = tuple(node for node in range(fabric.nodes) if node not in set(first))
    chosen = (first, second) if first else halves
    return Bisection("fabric", 2 * planes * fabric.link_kind.capacity if size > 1 else 0.0, chosen, exact=size % 2 == 0)


def _graph_cut(cluster: Cluster, first: Sequence[int]) -> float:
    """Through an explicit graph, every edge with its capacity."""
    import networkx

    whole: networkx.DiGraph[str] = networkx.DiGraph()
    for a, b, data in cluster.graph().edges(data=True):
        if VERTEX in (a, b):  # no way between machines
            continue
        whole.add_edge(a, b, capacity=data["link"].capacity)
    for node in range(cluster.nodes):
        for name in cluster.machine(node).gpu_names:
            vertex = f"node{node}.{name}"
            whole.add_edge(*(("all", vertex) if node in first else (vertex, "none")))
    return float(networkx.minimum_cut_value(whole, "all", "none"))
