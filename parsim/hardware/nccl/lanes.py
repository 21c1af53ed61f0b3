"""What a collective asks of the links: the links that trees and in-switch reductions cross, and one macro-flow per channel.

Two complementary binary trees carry half of the bytes each; a machine is an inner node in at most one of them. Inside a machine a
tree goes on as a chain of GPUs; with NVLS the NVSwitch takes the chain's place.

All edges of a channel advance together, so a channel is one flow; its volume is what passes one edge and a link's coefficient says
how often the channel crosses it. Channels share a collective equally. The cap of a flow is its volume over the time in which the
bytes of the estimate move, so a collective that is alone takes exactly the estimate; links too thin for that (trunks of the
fabric that the library does not know) make it longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.routes import Route, join, shift
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.nccl.estimate import CollectiveEstimate
from parsim.hardware.nccl.rings import LinkPath, Plan, Rings, ring_channel
from parsim.hardware.nccl.wiring import MachineGraph, wiring

# trees over the machines of a group (NVIDIA/nccl src/graph/trees.cc)


Edge = tuple[int, int]
"""(child, parent), positions of machines in the group"""


def binary_tree(nodes: int) -> list[Edge]:
    """Edges of the library's binary tree over 0 ... nodes - 1, rooted at 0, which has one child."""
    edges = []
    for node in range(1, nodes):
        bit = node & -node
        parent = (node ^ bit) | (bit << 1)
        edges.append((node, parent if parent < nodes else node ^ bit))
    return edges


def double_tree(nodes: int) -> tuple[list[Edge], list[Edge]]:
    """The binary tree and its complement: mirrored for an even number of nodes, shifted by one for an odd number."""
    first = binary_tree(nodes)
    if nodes % 2:
        return first, [((child + 1) % nodes, (parent + 1) % nodes) for child, parent in first]
    return first, [(nodes - 1 - child, nodes - 1 - parent) for child, parent in first]


def tree_channels(cluster: Cluster, over: Rings) -> list[tuple[LinkPath, float]]:
    """Every ring of the group turned into a tree, as (path per byte of the collective's size, rate limit)."""
    return over.channels(lambda plan: _tree(cluster, over.group, plan))


def _tree(cluster: Cluster, group: tuple[int, ...], plan: Plan) -> tuple[LinkPath, float]:
    load: dict[int, float] = {}
    if not plan:
        routes = [route for a, b in pairwise(group) for route in (cluster.route(a, b), cluster.route(b, a))]
        cap = min([ring_channel(cluster, group, plan).cap, *(_add(load, route, 1.0) for route in routes)])
        return tuple(load.items()), cap
    cap = min([ring.cap for _, ring in plan])
    for node, ring in plan:
        wires, offset = wiring(cluster.machine(node)), cluster.first_link(node)
        hops = ring.hops[:-1] if ring.entry < 0 else ring.hops[1:-1]
        for (a, b), hop in zip(pairwise(ring.order), hops, strict=True):
            for route in (hop, _back(wires, b, a, ring.order, hop)):
                cap = min(cap, _add(load, shift(route, offset), 1.0))
    if len(plan) > 1:
        cap = min(cap, _add_trees(cluster, load, plan, 0.5))
    return tuple(load.items()), cap


def _back(wires: MachineGraph, source: int, target: int, group: tuple[int, ...], hop: Route) -> Route:
    """The way against a hop, over the same kind of wire."""
    routes = wires.between(source, target, group)
    return next((route for route in routes if route.tier == hop.tier), routes[0] if routes else hop)


def nvls_channels(cluster: Cluster, over: Rings, kind: str) -> list[tuple[LinkPath, float]]:
    """The in-switch reduction of every machine, one channel per rail between machines, per byte of the collective's size.

    An all-reduce reads every GPU's own share from all of them and sends all shares to each: (heads + 1) / heads in both directions.
    """
    inside: dict[int, float] = {}
    for node, locals_ in over.nodes.items():
        offset, share = cluster.first_link(node), 1 / len(locals_)
        out, into = {"all_gather": (share, 1.0), "reduce_scatter": (1.0, share)}.get(kind, (1 + share, 1 + share))
        for up, down in _switch_links(cluster, node, locals_):
            inside[up + offset] = out
            inside[down + offset] = into
    if len(over.nodes) == 1:
        return [(tuple(inside.items()), math.inf)]

    def rail(plan: Plan) -> tuple[LinkPath, float]:
        load = dict(inside)
        cap = _add_trees(cluster, load, plan, 0.5)
        return tuple(load.items()), cap

    return over.channels(rail)


def _switch_links(cluster: Cluster, node: int, locals_: Sequence[int]) -> list[Edge]:
    """(link to the NVSwitch, link from it) of every member, in local link ids."""
    machine = cluster.machine(node)
    pairs = []
    for at, local in enumerate(locals_):
        peer = locals_[at - 1] if len(locals_) > 1 else local
        out, into = machine.between(local, peer), machine.between(peer, local)
        if out is not None and into is not None and out.links and into.links:
            pairs.append((out.links[0], into.links[-1]))
    return pairs


def _add_trees(cluster: Cluster, load: dict[int, float], plan: Plan, amount: float) -> float:
    """Put both trees between machines on the links, `amount` up and down every edge: from each ring's first GPU by its port.

    Rings may change places from machine to machine, trees do not: the end of a ring is taken that has the first machine's port.
    """
    port = plan[0][1].entry
    doors = [
        (node, ring.order[-1], ring.exit) if ring.exit == port != ring.entry else (node, ring.order[0], ring.entry) for node, ring in plan
    ]
    cap = math.inf
    for tree in double_tree(len(doors)):
        for child, parent in tree:
            for source, target in ((doors[child], doors[parent]), (doors[parent], doors[child])):
                cap = min(cap, _add(load, _between(cluster, source, target), amount))
    return cap


def _between(cluster: Cluster, source: tuple[int, int, int], target: tuple[int, int, int]) -> Route:
    node, gpu, port = source
    other, peer, landing = target
    away = shift(cluster.machine(node).to_port(gpu, port), cluster.first_link(node))
    home = shift(cluster.machine(other).from_port(landing, peer), cluster.first_link(other))
    return join((away, cluster.cross(node, port, other, landing), home))


def _add(load: dict[int, float], route: Route, amount: float) -> float:
    """Add a route; its own rate limit per unit of the whole path."""
    for link, coefficient in zip(route.links, route.coefficients, strict=True):
        load[link] = load.get(link, 0.0) + coefficient * amount
    return route.cap / amount


# flows


Capacities = Callable[[NDArray[np.int64]], NDArray[np.float64]]


class ChannelLane(NamedTuple):
    """One channel, or several that cross the same links."""

    path: LinkPath
    share: float
    """of the collective's volume"""
    cap: float = math.inf
    """rate limit besides the links [B/s]"""


class Lanes(NamedTuple):
    """The channels of a group for one algorithm; their shares add up to one."""

    lanes: tuple[ChannelLane, ...]
    slowest: float
    """seconds that the links need per byte of volume, all lanes at once [s/B]"""


def lanes(channels: Iterable[tuple[LinkPath, float]], capacities: Capacities) -> Lanes:
    """Lanes of equal channels, given as (path, rate limit); channels over the same links become one lane.

    Args:
        channels: one entry per channel.
        capacities: of links by number [B/s].
    """
    counts: dict[LinkPath, int] = {}
    caps: dict[LinkPath, float] = {}
    total = 0
    for path, cap in channels:
        counts[path] = counts.get(path, 0) + 1
        caps[path] = min(cap, caps.get(path, math.inf))
        total += 1
    merged = tuple(ChannelLane(path, count / total, caps[path] * count) for path, count in counts.items())
    load: dict[int, float] = {}
    for lane in merged:
        for link, coefficient in lane.path:
            load[link] = load.get(link, 0.0) + coefficient * lane.share
    links, amounts = np.fromiter(load, dtype=np.int64), np.fromiter(load.values(), dtype=np.float64)
    slowest = float((amounts / capacities(links)).max(initial=0.0))
    return Lanes(merged, max([slowest, *(lane.share / lane.cap for lane in merged)]))


def volume(algorithm: str, kind: str, ranks: int, size: float) -> float:
    """Bytes that pass each edge, all channels together [B]; for trees and NVLS the collective's size."""
    if algorithm not in ("ring", "pat"):
        return float(size)
    match kind:
        case "all_reduce" | "barrier":
            return 2 * (ranks - 1) / ranks * size
        case "all_gather" | "reduce_scatter":
            return (ranks - 1) / ranks * size
        case _:
            return float(size)


def flows(over: Lanes, amount: float, transfer: float) -> tuple[Flow, ...]:
    """The flows of `amount` bytes (see `volume`) that take `transfer` seconds on their own, if the links allow."""
    if not amount:
        return ()
    time = max(transfer, amount * over.slowest)
    return tuple(Flow(lane.path, amount * lane.share, amount * lane.share / time) for lane in over.lanes)


def cost(one: CollectiveEstimate, kind: str, ranks: int, over: Lanes) -> CollectiveCost:
    """The cost of an estimated collective over the links of `over`."""
    amount = volume(one.choice.algorithm, kind, ranks, one.choice.size)
    return CollectiveCost(one.latency, flows(over, amount, one.transfer), one.choice.algorithm, one.choice.protocol, one.ctas)
