"""The channels of a group: the rings its collectives run on, and how fast each one is.

One channel is one ring over all members. Inside a machine with an NVSwitch a single ring in index order carries the
whole NVLink bandwidth of a GPU; a mesh is packed with several rings; pure PCIe gets one ring in depth-first order of
the tree. Between machines there is one ring per rail: it comes in by a NIC, visits the members over NVLink and leaves by
the same NIC. A channel's rate is what it reaches while all channels of the group run, alone on the fabric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from parsim.errors import Finding, TopologyError
from parsim.hardware.cluster import Cluster
from parsim.hardware.fabric import Port, Torus
from parsim.hardware.node import Node
from parsim.hardware.rings import Ring, RingSearch
from parsim.hardware.routes import TIER_NETWORK, TIER_SWITCH, Route, join, shift, unreachable


@dataclass(frozen=True, slots=True)
class Pass:
    """The part of a ring inside one machine, in local link ids: in by a port, past the members, out by a port."""

    order: tuple[int, ...]
    entry: int
    """port by which the ring comes in; -1 for a ring that closes inside the machine"""
    exit: int
    hops: tuple[Route, ...]
    """into the first member, from member to member, out of the last; of a closed ring the hops alone"""
    load: tuple[tuple[int, float], ...]
    tier: int
    """worst path between members"""
    cap: float = math.inf


@dataclass(frozen=True, slots=True)
class Channel:
    """One ring of a group."""

    order: tuple[int, ...]
    """the GPUs in ring order"""
    path: tuple[tuple[int, float], ...]
    """(directed link, times the ring crosses it)"""
    rate: float
    """bytes per second that pass every edge of the ring"""
    tier: int
    """worst path between members inside a machine (see `parsim.hardware.routes`)"""
    plan: tuple[tuple[int, Pass], ...] = ()
    """(machine, pass) in ring order; empty where every hop is simply the cluster's route"""

    def hop(self, cluster: Cluster, number: int) -> Route:
        """The links from ``order[number]`` to the next member."""
        if not self.plan:
            return cluster.route(self.order[number], self.order[(number + 1) % len(self.order)])
        if self.plan[0][1].entry < 0:
            node, one = self.plan[0]
            return shift(one.hops[number], cluster.first_link(node))
        at = number % len(self.order)
        for index, (node, one) in enumerate(self.plan):
            if at < len(one.order) - 1:
                return shift(one.hops[at + 1], cluster.first_link(node))
            if at == len(one.order) - 1:
                other, following = self.plan[(index + 1) % len(self.plan)]
                out, into = shift(one.hops[-1], cluster.first_link(node)), shift(following.hops[0], cluster.first_link(other))
                return join((out, cluster.cross(node, one.exit, other, following.entry), into))
            at -= len(one.order)
        raise IndexError(number)


def channels(cluster: Cluster, group: tuple[int, ...]) -> tuple[Channel, ...]:
    """The channels of a group of GPUs, in order of rails; cached on the cluster.

    Machines follow each other in the order in which the group names them.

    Raises:
        TopologyError: a GPU twice in the group, or members that cannot reach each other.
    """
    found = cluster.channel_cache.get(group)
    if found is None:
        if len(set(group)) != len(group):
            raise TopologyError(Finding(f"a GPU appears twice in the group {group}", "cluster.placement"))
        found = _find(cluster, group) if len(group) > 1 else ()
        cluster.channel_cache[group] = found
    return found


def ring(cluster: Cluster, order: Sequence[int]) -> Channel:
    """The one ring that visits the GPUs in exactly this order, every hop on the cluster's route."""
    hops = [cluster.route(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    whole = join(hops)
    inner = [hop.tier for hop in hops if hop.tier != TIER_NETWORK]
    draft = (tuple(order), dict(zip(whole.links, whole.coefficients, strict=True)), max(inner, default=0), whole.cap, ())
    return _rated(cluster, [draft])[0]


def _find(cluster: Cluster, group: tuple[int, ...]) -> tuple[Channel, ...]:
    members: dict[int, list[int]] = {}
    for gpu in group:
        members.setdefault(cluster.node_of(gpu), []).append(cluster.local(gpu))
    nodes = {node: tuple(sorted(locals_)) for node, locals_ in members.items()}
    if not all(_joined(cluster.machine(node), locals_) for node, locals_ in nodes.items()):
        return (ring(cluster, group),)
    if len(nodes) == 1:
        ((node, locals_),) = nodes.items()
        found = local_rings(cluster.machine(node), locals_)
        first = cluster.first_link(node)
        drafts: list[_Draft] = [
            (
                tuple(cluster.gpu(node, local) for local in one.order),
                {link + first: coefficient for link, coefficient in one.load},
                one.tier,
                one.cap,
                ((node, one),),
            )
            for one in found
        ]
        return _rated(cluster, drafts)
    return _across(cluster, nodes, group)


def _joined(machine: Node, locals_: tuple[int, ...]) -> bool:
    return all(machine.between(a, b) is not None for a in locals_[:1] for b in locals_[1:])


_Plan = tuple[tuple[int, Pass], ...]
_Draft = tuple[tuple[int, ...], dict[int, float], int, float, _Plan]


def _rated(cluster: Cluster, drafts: list[_Draft]) -> tuple[Channel, ...]:
    """Channels with rates such that all can run together: capacity over the load of all channels of the group."""
    total: dict[int, float] = {}
    if len(drafts) > 1:
        for _, load, _, _, _ in drafts:
            for link, coefficient in load.items():
                total[link] = total.get(link, 0.0) + coefficient
    capacity = cluster.capacity
    found = []
    for order, load, tier, cap, plan in drafts:
        alone = not total
        rate = _alone(cluster, load, plan) if alone else min((capacity(link) / total[link] for link in load), default=math.inf)
        rate = min(cap, rate)
        if not 0 < rate < math.inf:
            raise TopologyError(Finding(f"the ring {order} has no bandwidth", "cluster"))
        found.append(Channel(order, tuple(load.items()), rate, tier, plan))
    return tuple(found)


def _alone(cluster: Cluster, load: dict[int, float], plan: _Plan) -> float:
    """Rate of a group's only channel; inside machines of one kind the narrowest link is looked up once."""
    capacity, outside = cluster.capacity, cluster.first_fabric_link
    if not plan:
        return min((capacity(link) / coefficient for link, coefficient in load.items()), default=math.inf)
    seen: dict[tuple[int, int], tuple[int, Pass]] = {}
    for node, one in plan:
        seen.setdefault((id(cluster.machine(node)), id(one)), (node, one))
    rate = min((cluster.machine(node).capacities[link] / a for node, one in seen.values() for link, a in one.load), default=math.inf)
    return min(rate, min((capacity(link) / a for link, a in load.items() if link >= outside), default=math.inf))


# one machine


def local_rings(machine: Node, locals_: tuple[int, ...]) -> tuple[Pass, ...]:
    """Closed rings over members of one machine."""
    key = ("rings", locals_)
    if key not in machine.rings:
        machine.rings[key] = tuple(_pass(one.order, -1, -1, one.hops) for one in _local_rings(machine, locals_))
    return machine.rings[key]


def _local_rings(machine: Node, locals_: tuple[int, ...]) -> list[Ring]:
    """Rings whose orders are local GPU indices."""
    if on_nvswitch(machine, locals_):
        return [_in_order(machine, locals_)]
    if not _any_nvlink(machine, locals_):
        return [_in_order(machine, machine.pcie_order(locals_))]
    finder = machine.finder
    search = RingSearch(len(locals_), lambda a, b: _candidates(machine, locals_, a, b), finder.capacity, finder.unit)
    found = search.best()
    if not found:
        return [_in_order(machine, machine.pcie_order(locals_))]
    return [Ring(tuple(locals_[member] for member in one.order), one.hops) for one in found]


def on_nvswitch(machine: Node, locals_: tuple[int, ...]) -> bool:
    """Whether all members are plugged into one NVSwitch."""
    adjacent, names = machine.finder.adjacent, machine.gpu_names
    switches = [vertex for vertex, kind in machine.finder.kind.items() if kind == "nvswitch"]
    return any(all(switch in adjacent[names[local]] for local in locals_) for switch in switches)


def _any_nvlink(machine: Node, locals_: tuple[int, ...]) -> bool:
    names = machine.gpu_names
    return any(machine.finder.nvlink(names[a], names[b]) is not None for a in locals_ for b in locals_ if a != b)


def _in_order(machine: Node, order: tuple[int, ...]) -> Ring:
    return Ring(order, tuple(_between(machine, a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)))


def _between(machine: Node, a: int, b: int) -> Route:
    route = machine.between(a, b)
    if route is None:
        raise unreachable(machine.gpu_names[a], machine.gpu_names[b])
    return route


def _candidates(machine: Node, locals_: tuple[int, ...], a: int, b: int) -> list[Route]:
    """NVLink if there is any; else NVLink through another member, and PCIe."""
    names = machine.gpu_names
    source, target = names[locals_[a]], names[locals_[b]]
    direct = machine.finder.nvlink(source, target)
    if direct is not None:
        return [direct]
    routes = machine.finder.neighbours(source, target, (names[local] for local in locals_))
    host = machine.finder.host(source, target, staged=not machine.p2p)
    return [*routes, host] if host is not None else routes


def _pass(order: tuple[int, ...], entry: int, leave: int, hops: Sequence[Route]) -> Pass:
    whole = join(hops)
    between = hops if entry < 0 else hops[1:-1]
    tier = max((hop.tier for hop in between), default=0)
    return Pass(order, entry, leave, tuple(hops), tuple(zip(whole.links, whole.coefficients, strict=True)), tier, whole.cap)


# several machines


def _across(cluster: Cluster, nodes: dict[int, tuple[int, ...]], group: tuple[int, ...]) -> tuple[Channel, ...]:
    fabric = cluster.fabric
    if fabric is None:
        raise unreachable(f"GPU {group[0]}", f"GPU {next(gpu for gpu in group if cluster.node_of(gpu) != cluster.node_of(group[0]))}")
    inside = {node: machine_passes(cluster.machine(node), locals_, fabric.capacity(0)) for node, locals_ in nodes.items()}
    for node, passes in inside.items():
        if not passes:
            other = next(gpu for gpu in group if cluster.node_of(gpu) != node)
            raise unreachable(f"GPU {cluster.gpu(node, nodes[node][0])}", f"GPU {other}")
    plans = _rails(list(inside.items()), fabric.rail_bound)
    if fabric.kind == "full-mesh" and any(len({one.entry for _, one in plan}) > 1 for plan in plans):
        return (ring(cluster, group),)
    if isinstance(fabric, Torus):
        plans = [way for plan in plans for way in (plan, plan[::-1])]
    return _rated(cluster, [_draft(cluster, plan) for plan in plans])


def _rails(inside: list[tuple[int, tuple[Pass, ...]]], rail_bound: bool) -> list[list[tuple[int, Pass]]]:
    """One list of passes per channel: on rails all machines share if the fabric wants that, else by position."""
    if rail_bound:
        first = [one.entry for one in inside[0][1]]
        by_entry = {id(passes): {one.entry: one for one in passes if one.entry == one.exit} for _, passes in inside}
        shared = [entry for entry in first if all(entry in by_entry[id(passes)] for _, passes in inside)]
        if shared:
            return [[(node, by_entry[id(passes)][entry]) for node, passes in inside] for entry in shared]
    rails = min(len(passes) for _, passes in inside)
    return [[(node, passes[rail]) for node, passes in inside] for rail in range(rails)]


def _draft(cluster: Cluster, plan: list[tuple[int, Pass]]) -> _Draft:
    """A ring through the machines of `plan` in order."""
    fabric, first = cluster.network, cluster.first_fabric_link
    load: dict[int, float] = {}
    order: list[int] = []
    tier, cap = 0, math.inf
    for number, (node, one) in enumerate(plan):
        offset = cluster.first_link(node)
        start = cluster.gpu(node, 0)
        order += [start + local for local in one.order]
        for link, coefficient in one.load:
            load[link + offset] = coefficient
        other, following = plan[number + 1 - len(plan)]
        for link in fabric.route(Port(node, one.exit), Port(other, following.entry)):
            load[link + first] = load.get(link + first, 0.0) + 1.0
    for one in {id(one): one for _, one in plan}.values():
        tier, cap = max(tier, one.tier), min(cap, one.cap)
    return tuple(order), load, tier, cap, tuple(plan)


def machine_passes(machine: Node, locals_: tuple[int, ...], port_rate: float) -> tuple[Pass, ...]:
    """How rings cross one machine with these members: one pass per rail; `port_rate` is what a NIC carries [B/s]."""
    key = ("passes", locals_, port_rate)
    if key not in machine.rings:
        machine.rings[key] = tuple(_machine_passes(machine, locals_, port_rate))
    return machine.rings[key]


def _machine_passes(machine: Node, locals_: tuple[int, ...], port_rate: float) -> list[Pass]:
    ports = sorted({port for local in locals_ for port in machine.owned_ports[local]})
    if not ports:
        return []
    if len(locals_) == 1 or on_nvswitch(machine, locals_):
        return [_switched(machine, locals_, port) for port in ports]
    if not _any_nvlink(machine, locals_):
        return [_over_pcie(machine, locals_)]
    if len(locals_) < 9:
        found = _through_mesh(machine, locals_, ports, port_rate)
        if found:
            return found
    return [_over_pcie(machine, locals_)]


def _switched(machine: Node, locals_: tuple[int, ...], port: int) -> Pass:
    """In at the GPU nearest to the port, past the others in index order, out through a second GPU as near or back over NVLink."""
    near = machine.nearest_gpus(port, locals_)
    owners = [local for local in near if port in machine.owned_ports[local]] or near
    first = owners[0]
    at = locals_.index(first)
    rest = list(locals_[at + 1 :] + locals_[:at])
    last = owners[1] if len(owners) > 1 else None
    if last is not None:
        rest.remove(last)
        rest.append(last)
    order = (first, *rest)
    pieces = [machine.from_port(port, first)]
    pieces += [_between(machine, a, b) for a, b in pairwise(order)]
    out = machine.to_port(first if last is None else last, port)
    pieces.append(out if order[-1] in (first, last) else join((_between(machine, order[-1], first), out)))
    return _pass(order, port, port, pieces)


def _over_pcie(machine: Node, locals_: tuple[int, ...]) -> Pass:
    """Depth-first order, begun at the member that gives the least loaded links."""
    order = machine.pcie_order(locals_)
    best: tuple[float, Pass] | None = None
    for turn in range(len(order)):
        turned = order[turn:] + order[:turn]
        enter, leave = machine.owned_ports[turned[0]], machine.owned_ports[turned[-1]]
        if not enter or not leave:
            continue
        pieces = [machine.from_port(enter[0], turned[0])]
        pieces += [_between(machine, a, b) for a, b in pairwise(turned)]
        pieces.append(machine.to_port(turned[-1], leave[0]))
        one = _pass(turned, enter[0], leave[0], pieces)
        rate = min((machine.capacities[link] / coefficient for link, coefficient in one.load), default=one.cap)
        rate = min(rate, one.cap)
        if best is None or rate > best[0] * (1 + 1e-9):
            best = (rate, one)
    if best is None:
        raise unreachable(machine.gpu_names[locals_[0]], "any NIC")
    return best[1]


def _through_mesh(machine: Node, locals_: tuple[int, ...], ports: list[int], port_rate: float) -> list[Pass]:
    """Rings over the members and the network as one more member, whose edges are the NICs."""
    outside = len(locals_)
    links = len(machine.links)

    def candidates(a: int, b: int) -> list[Route]:
        if outside not in (a, b):
            return _candidates(machine, locals_, a, b)
        found = []
        for port in ports:
            if b == outside:
                inner, wire = machine.to_port(locals_[a], port), links + 2 * port
                path, loads = (*inner.links, wire), (*inner.coefficients, 1.0)
            else:
                inner, wire = machine.from_port(port, locals_[b]), links + 2 * port + 1
                path, loads = (wire, *inner.links), (1.0, *inner.coefficients)
            found.append(Route(path, loads, inner.latency, max(inner.tier, TIER_SWITCH), inner.cap))
        return found

    def capacity(link: int) -> float:
        return port_rate if link >= links else machine.finder.capacity(link)

    def unit(link: int) -> float:
        return port_rate if link >= links else machine.finder.unit(link)

    passes = []
    for one in RingSearch(outside + 1, candidates, capacity, unit).best():
        at = one.order.index(outside)
        order = one.order[at + 1 :] + one.order[:at]
        hops = one.hops[at:] + one.hops[:at]
        entry = (hops[0].links[0] - links) // 2
        leave = (hops[-1].links[-1] - links) // 2
        inner = [_inside(hop, links) for hop in hops]
        passes.append(_pass(tuple(locals_[member] for member in order), entry, leave, inner))
    return sorted(passes, key=lambda one: one.entry)


def _inside(hop: Route, links: int) -> Route:
    """The hop without the virtual links of the network."""
    kept = [(link, coefficient) for link, coefficient in zip(hop.links, hop.coefficients, strict=True) if link < links]
    return Route(tuple(link for link, _ in kept), tuple(a for _, a in kept), hop.latency, hop.tier, hop.cap)
