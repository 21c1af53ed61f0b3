"""The channels of a group over a whole cluster: the rings of every machine joined by the fabric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parsim.hardware.cluster import Cluster
from parsim.hardware.fabric import Port, Torus
from parsim.hardware.graph_fabric import GraphFabric
from parsim.hardware.nccl.costs import LinkPath
from parsim.hardware.routes import Route, join, shift, unreachable
from parsim.hardware.search import Found, Ring, search

Plan = tuple[tuple[int, Ring], ...]
"""(machine, its part of the ring) in ring order"""


@dataclass(frozen=True, slots=True)
class Channel:
    """One ring of a group."""

    order: tuple[int, ...]
    """GPUs in ring order"""
    path: LinkPath
    """links it crosses, and how often"""
    cap: float = math.inf
    """rate limit besides the links [B/s]"""
    plan: Plan = ()
    """empty where every hop is the cluster's own route"""

    def hop(self, cluster: Cluster, number: int) -> Route:
        """The links from ``order[number]`` to the next member."""
        at = number % len(self.order)
        if not self.plan:
            return cluster.route(self.order[at], self.order[(at + 1) % len(self.order)])
        for index, (node, ring) in enumerate(self.plan):
            offset = cluster.first_link(node)
            if ring.entry < 0:
                return shift(ring.hops[at], offset)
            if at < len(ring.order) - 1:
                return shift(ring.hops[at + 1], offset)
            if at == len(ring.order) - 1:
                other, following = self.plan[(index + 1) % len(self.plan)]
                out, into = shift(ring.hops[-1], offset), shift(following.hops[0], cluster.first_link(other))
                return join((out, cluster.cross(node, ring.exit, other, following.entry), into))
            at -= len(ring.order)
        raise IndexError(number)

    def chain(self, cluster: Cluster, root: int, kind: str) -> LinkPath:
        """The ring without the hop that closes it: into the root of a broadcast, out of the root of a reduce."""
        at = self.order.index(root)
        closing = self.hop(cluster, at - 1 if kind == "broadcast" else at)
        load = dict(self.path)
        for link, coefficient in zip(closing.links, closing.coefficients, strict=True):
            left = load.get(link, 0.0) - coefficient
            if left > 1e-9:
                load[link] = left
            else:
                load.pop(link, None)
        return tuple(load.items())


@dataclass(frozen=True, slots=True)
class Rings:
    """All channels of a group, and what the search of each machine says about them."""

    channels: tuple[Channel, ...]
    nodes: Mapping[int, tuple[int, ...]]
    """machine -> local indices of the members; machines in the order in which the group names them"""
    found: Mapping[int, Found]
    """machine -> its search; empty where the cluster's routes are all there is"""


def rings(cluster: Cluster, group: tuple[int, ...]) -> Rings:
    """The channels of a group of at least two GPUs.

    Raises:
        TopologyError: members that cannot reach each other.
    """
    members: dict[int, list[int]] = {}
    for gpu in group:
        members.setdefault(cluster.node_of(gpu), []).append(cluster.local(gpu))
    nodes = {node: tuple(sorted(locals_)) for node, locals_ in members.items()}
    if not all(_joined(cluster, node, locals_) for node, locals_ in nodes.items()):
        return Rings((_routed(cluster, group),), nodes, {})
    if len(nodes) == 1:
        ((node, locals_),) = nodes.items()
        found = search(cluster.machine(node), locals_)
        return Rings(_share(_closed(cluster, node, ring) for ring in found.channels), nodes, {node: found})
    return _across(cluster, group, nodes)


def _joined(cluster: Cluster, node: int, locals_: tuple[int, ...]) -> bool:
    machine = cluster.machine(node)
    return all(machine.between(locals_[0], other) is not None for other in locals_[1:])


def _routed(cluster: Cluster, group: tuple[int, ...]) -> Channel:
    """One ring in the order of the group, every hop on the cluster's own route."""
    whole = join([cluster.route(a, b) for a, b in zip(group, (*group[1:], group[0]), strict=True)])
    return Channel(group, tuple(zip(whole.links, whole.coefficients, strict=True)), whole.cap)


def _closed(cluster: Cluster, node: int, ring: Ring) -> Channel:
    start, offset = cluster.gpu(node, 0), cluster.first_link(node)
    order = tuple([start + local for local in ring.order])
    return Channel(order, tuple([(link + offset, load) for link, load in ring.load]), ring.cap, ((node, ring),))


def _share(channels: Iterable[Channel]) -> tuple[Channel, ...]:
    """Equal channels as one object."""
    kept: dict[tuple[tuple[int, ...], LinkPath], Channel] = {}
    return tuple(kept.setdefault((channel.order, channel.path), channel) for channel in channels)


def _across(cluster: Cluster, group: tuple[int, ...], nodes: dict[int, tuple[int, ...]]) -> Rings:
    fabric = cluster.fabric
    if fabric is None:
        first = cluster.node_of(group[0])
        raise unreachable(f"GPU {group[0]}", f"GPU {next(gpu for gpu in group if cluster.node_of(gpu) != first)}")
    kept: dict[tuple[int, tuple[int, ...], object], Found] = {}
    found: dict[int, Found] = {}
    for node, locals_ in nodes.items():
        machine = cluster.machine(node)
        ports = port_rates(cluster, node)
        key = (id(machine), locals_, tuple(ports.items()))
        if key not in kept:
            if not machine.ports:
                other = next(gpu for gpu in group if cluster.node_of(gpu) != node)
                raise unreachable(f"GPU {cluster.gpu(node, locals_[0])}", f"GPU {other}")
            kept[key] = search(machine, locals_, network=True, ports=ports)
        found[node] = kept[key]
    plans = _plans(list(found.items()), fabric.rail_bound)
    if fabric.kind == "full-mesh" and any(len({ring.entry for _, ring in plan}) > 1 for plan in plans):
        return Rings((_routed(cluster, group),), nodes, {})
    if isinstance(fabric, Torus):
        plans = [way for plan in plans for way in (plan, plan[::-1])]
    built: dict[tuple[int, ...], Channel] = {}
    channels = []
    for plan in plans:
        key_of_plan = tuple(id(ring) for _, ring in plan)
        if key_of_plan not in built or isinstance(fabric, Torus):
            built[key_of_plan] = _joined_ring(cluster, plan)
        channels.append(built[key_of_plan])
    return Rings(tuple(channels), nodes, found)


def port_rates(cluster: Cluster, node: int) -> dict[int, float]:
    """What the network takes from each port of a machine, in each direction [B/s]."""
    fabric, ports = cluster.network, cluster.machine(node).ports
    if not isinstance(fabric, GraphFabric):
        return dict.fromkeys(range(len(ports)), fabric.link_kind.capacity)
    adjacent = fabric.finder.adjacent
    names = fabric.port_names[node]
    return {port: max((data["link"].capacity for data in adjacent[name].values()), default=0.0) for port, name in enumerate(names)}


def _plans(found: list[tuple[int, Found]], rail_bound: bool) -> list[Plan]:
    """One plan per channel: on rails that all machines share if the fabric wants that, else by position."""
    if rail_bound:
        rails = [_by_rail(one) for _, one in found]
        plans = [
            tuple((node, rail[entry][turn]) for (node, _), rail in zip(found, rails, strict=True))
            for entry, first in rails[0].items()
            if all(entry in rail for rail in rails)
            for turn in range(min(len(first), *(len(rail[entry]) for rail in rails)))
        ]
        if plans:
            return plans
    count = min(len(one.channels) for _, one in found)
    return [tuple((node, one.channels[number]) for node, one in found) for number in range(count)]


def _by_rail(found: Found) -> dict[int, list[Ring]]:
    """Rings that leave by the port by which they come, by port."""
    rails: dict[int, list[Ring]] = {}
    for ring in found.channels:
        if ring.entry == ring.exit:
            rails.setdefault(ring.entry, []).append(ring)
    return rails


def _joined_ring(cluster: Cluster, plan: Plan) -> Channel:
    """A ring through the machines of `plan` in order."""
    fabric, first = cluster.network, cluster.first_fabric_link
    load: dict[int, float] = {}
    order: list[int] = []
    cap = math.inf
    for number, (node, ring) in enumerate(plan):
        offset, start = cluster.first_link(node), cluster.gpu(node, 0)
        order += [start + local for local in ring.order]
        for link, coefficient in ring.load:
            load[link + offset] = coefficient
        cap = min(cap, ring.cap)
        other, following = plan[number + 1 - len(plan)]
        for link in fabric.route(Port(node, ring.exit), Port(other, following.entry)):
            load[link + first] = load.get(link + first, 0.0) + 1.0
    return Channel(tuple(order), tuple(load.items()), cap, plan)
