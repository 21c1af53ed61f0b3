"""The rings of a group over a whole cluster: the rings of every machine joined by the fabric, one per channel.

The library finds rings inside every machine (NVIDIA/nccl src/graph/search.cc), then connects them in the order of the machines:
where a ring leaves one by a port, the same ring enters the next (src/graph/connect.cc, ncclTopoPostset). Which links a ring crosses
is looked up only for collectives that run on rings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.direct import GraphFabric, Torus
from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.routes import Route, join, shift, unreachable
from parsim.hardware.fabric.switches import Fabric, Port
from parsim.hardware.nccl.search import search
from parsim.hardware.nccl.task import MachineRings, Ring

_Made = TypeVar("_Made")
LinkPath = tuple[tuple[int, float], ...]
"""(directed link id, bytes on that link per byte that passes an edge)"""
Plan = tuple[tuple[int, Ring], ...]
"""(machine, its part of the ring) in ring order"""


@dataclass(frozen=True, slots=True)
class Rings:
    """All rings of a group, and what the search of each machine says about them."""

    group: tuple[int, ...]
    nodes: Mapping[int, tuple[int, ...]]
    """machine -> local indices of the members; machines in the order in which the group names them"""
    kinds: Mapping[tuple[Node, tuple[int, ...]], int]
    """(kind of machine, members in it) -> the first such machine"""
    searches: Mapping[int, MachineRings]
    """machine -> its search; empty where the cluster's routes are all there is"""
    plans: tuple[Plan, ...]
    """one per channel, equal ones as one object; empty: one ring in the order of the group, every hop on the cluster's own route"""

    @property
    def count(self) -> int:
        """Channels."""
        return max(len(self.plans), 1)

    @property
    def same_order(self) -> bool:
        """Whether every channel runs on the same ring."""
        return len(set(self.plans)) < 2

    def channels(self, made: Callable[[Plan], _Made]) -> list[_Made]:
        """What `made` says about the ring of every channel; equal rings are asked for once."""
        if not self.plans:
            return [made(())]
        known = {plan: made(plan) for plan in dict.fromkeys(self.plans)}
        return [known[plan] for plan in self.plans]


@dataclass(frozen=True, slots=True)
class Channel:
    """One ring of a group on the links of the cluster."""

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


def rings(cluster: Cluster, group: tuple[int, ...]) -> Rings:
    """The rings of a group of at least two GPUs.

    Raises:
        TopologyError: members that cannot reach each other.
    """
    nodes = cluster.by_machine(group)
    kinds: dict[tuple[Node, tuple[int, ...]], int] = {}
    for node, locals_ in nodes.items():
        kinds.setdefault((cluster.machine(node), locals_), node)
    if not all(machine.joins(locals_) for machine, locals_ in kinds):
        return Rings(group, nodes, kinds, {}, ())
    if len(nodes) == 1:
        ((node, locals_),) = nodes.items()
        one = search(cluster.machine(node), locals_)
        return Rings(group, nodes, kinds, {node: one}, tuple(((node, ring),) for ring in one.channels))
    searched = _searches(cluster, group, nodes)
    plans = plans_of({node: one.channels for node, one in searched.items()}, cluster.network)
    return Rings(group, nodes, kinds, searched if plans else {}, plans)


def ring_channel(cluster: Cluster, group: tuple[int, ...], plan: Plan) -> Channel:
    """The ring of a plan on the links of the cluster; without a plan every hop takes the cluster's own route."""
    if not plan:
        whole = join([cluster.route(a, b) for a, b in zip(group, (*group[1:], group[0]), strict=True)])
        return Channel(group, tuple(zip(whole.links, whole.coefficients, strict=True)), whole.cap)
    load: dict[int, float] = {}
    order: list[int] = []
    for (node, ring), (other, following) in zip(plan, (*plan[1:], plan[0]), strict=True):
        offset, start = cluster.first_link(node), cluster.gpu(node, 0)
        order += [start + local for local in ring.order]
        load.update([(link + offset, coefficient) for link, coefficient in ring.load])
        if ring.entry >= 0:
            for link, share in cluster.network.loads(Port(node, ring.exit), Port(other, following.entry)):
                at = link + cluster.first_fabric_link
                load[at] = load.get(at, 0.0) + share
    return Channel(tuple(order), tuple(load.items()), min([ring.cap for _, ring in plan]), plan)


def port_rates(cluster: Cluster, node: int) -> dict[int, float]:
    """What the library takes each port of a machine for, in each direction: the line rate [B/s]."""
    fabric, ports = cluster.network, cluster.machine(node).ports
    if not isinstance(fabric, GraphFabric):
        return dict.fromkeys(range(len(ports)), fabric.port_kind(node).planning)
    adjacent = fabric.finder.adjacent
    names = fabric.port_names[node]
    return {port: max((_cable(data) for data in adjacent[name].values()), default=0.0) for port, name in enumerate(names)}


def _cable(data: Mapping[str, Any]) -> float:
    kind = data["link_kind"]
    return float(data["link"].capacity * kind.planning / kind.capacity)


def _searches(cluster: Cluster, group: tuple[int, ...], nodes: Mapping[int, tuple[int, ...]]) -> dict[int, MachineRings]:
    """The search of every machine; equal machines with equal members and ports share one."""
    if cluster.fabric is None:
        first = cluster.node_of(group[0])
        raise unreachable(f"GPU {group[0]}", f"GPU {next(gpu for gpu in group if cluster.node_of(gpu) != first)}")
    ports_differ = isinstance(cluster.fabric, GraphFabric)
    known: dict[tuple[Node, tuple[int, ...], int], MachineRings] = {}
    searched: dict[int, MachineRings] = {}
    for node, locals_ in nodes.items():
        machine = cluster.machine(node)
        key = (machine, locals_, node if ports_differ else 0)
        if key not in known:
            if not machine.ports:
                other = next(gpu for gpu in group if cluster.node_of(gpu) != node)
                raise unreachable(f"GPU {cluster.gpu(node, locals_[0])}", f"GPU {other}")
            known[key] = search(machine, locals_, network=True, ports=port_rates(cluster, node), cross=cluster.library.cross_nic)
        searched[node] = known[key]
    return searched


def plans_of(rings_of: Mapping[int, tuple[Ring, ...]], fabric: Fabric) -> tuple[Plan, ...]:
    """Join the rings of several machines, one plan per channel: on rails all machines share if the fabric wants that, else by position.

    Rings that leave by another port than they came by change places with their partners on every other machine, so that they do
    not cross rails (NVIDIA/nccl src/graph/connect.cc, "Alternate rings"). Nothing where a full mesh has no cable between the
    ports at which machines would be joined.
    """
    plans = _alternating(rings_of) or (_on_rails(rings_of) if fabric.rail_bound else [])
    if not plans:
        count = min(map(len, rings_of.values()))
        plans = [tuple((node, rings[number]) for node, rings in rings_of.items()) for number in range(count)]
    if fabric.kind == "full-mesh" and any(len({ring.entry for _, ring in plan}) > 1 for plan in plans):
        return ()
    if isinstance(fabric, Torus):  # cables both ways: every ring runs in both directions
        plans = [way for plan in plans for way in (plan, plan[::-1])]
    one_of_each: dict[Plan, Plan] = {}
    return tuple(one_of_each.setdefault(plan, plan) for plan in plans)


def _alternating(rings_of: Mapping[int, tuple[Ring, ...]]) -> list[Plan]:
    """Plans of machines whose rings come in pairs, each leaving by the port at which its partner comes in; else none."""
    count = len(next(iter(rings_of.values())))
    for rings in dict.fromkeys(rings_of.values()):
        pairs = zip(rings[::2], rings[1::2], strict=False)
        if len(rings) != count or count % 2 or not all(a.entry == b.exit != a.exit == b.entry for a, b in pairs):
            return []
    return [tuple((node, rings[number ^ (place & 1)]) for place, (node, rings) in enumerate(rings_of.items())) for number in range(count)]


def _on_rails(rings_of: Mapping[int, tuple[Ring, ...]]) -> list[Plan]:
    """Rings that leave every machine by the port by which they come, the same one on all machines."""
    rails = {rings: _by_rail(rings) for rings in dict.fromkeys(rings_of.values())}
    first = next(iter(rails.values()))
    return [
        tuple((node, rails[rings][entry][turn]) for node, rings in rings_of.items())
        for entry in first
        if all(entry in rail for rail in rails.values())
        for turn in range(min(len(rail[entry]) for rail in rails.values()))
    ]


def _by_rail(rings: tuple[Ring, ...]) -> dict[int, list[Ring]]:
    """Rings that leave by the port by which they come, by port."""
    rails: dict[int, list[Ring]] = {}
    for ring in rings:
        if ring.entry == ring.exit:
            rails.setdefault(ring.entry, []).append(ring)
    return rails
