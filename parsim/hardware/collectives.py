"""The profile `ring`: what a collective costs on an idle fabric with plain rings and trees at the capacities of the graph.

Ring algorithms on the channels of the group: time = latency + bytes per edge / rate.
Latencies are the constants of NCCL 2.30's tuning model for the Simple protocol (NVIDIA/nccl src/graph/tuning.cc); an
all-reduce takes a tree instead where that is faster. Sizes follow nccl-tests (doc/PERFORMANCE.md): all_reduce, broadcast,
reduce: buffer per rank; all_gather, reduce_scatter, gather, scatter: total buffer; all_to_all: send buffer per rank;
send: the message; sendrecv: what each member sends to the next, the last to the first. The root of broadcast, reduce,
gather and scatter is the first member of the group.

One channel is one ring over all members. Inside a machine with an NVSwitch a single ring in index order carries the
whole NVLink bandwidth of a GPU; a mesh is packed with several rings; pure PCIe gets one ring in depth-first order of
the tree. Between machines there is one ring per rail: it comes in by a NIC, visits the members over NVLink and leaves by
the same NIC. A channel's rate is what it reaches while all channels of the group run, alone on the fabric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.joined import JoinedFabric
from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.routes import TIER_NEIGHBOUR, TIER_NETWORK, Route, join, unreachable
from parsim.hardware.fabric.switches import Fabric
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.nccl.cost import check_question
from parsim.hardware.nccl.lanes import volume
from parsim.hardware.nccl.packing import LARGEST_TABLE, Packing
from parsim.hardware.nccl.rings import Channel, plans_of, ring_channel
from parsim.hardware.nccl.task import Ring, Task, distinct, make_ring
from parsim.hardware.nccl.wiring import wiring
from parsim.hardware.region_delay import region_delay
from parsim.hardware.transfers import exchange


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds per collective and per step. Defaults: NCCL 2.30, Simple protocol."""

    base: float = 8.4e-6
    ring_nvlink: float = 3.4e-6
    """per ring step over NVLink"""
    ring_pcie: float = 5.7e-6
    ring_network: float = 14e-6
    tree_local: float = 4.0e-6
    tree_network: float = 14e-6
    posting: float = 3e-6
    """floor of a local ring step of a group that spans machines (the proxy posts the network work)"""
    tree_share: float = 0.92
    """bandwidth of the tree relative to the ring"""
    software: float = 5e-6
    """launch of a point-to-point operation; 5-8 us measured between two GPUs of a machine (microsoft/vidur, send_recv profiles)"""
    per_peer: float = 1e-6
    """each further peer of a GPU in all_to_all, gather and scatter (assumption)"""


NCCL_SIMPLE = Latencies()


def collective_cost(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, latencies: Latencies = NCCL_SIMPLE) -> CollectiveCost:
    """Cost of one collective among the GPUs `group`.

    Args:
        cluster: where the GPUs are.
        group: GPU numbers, in rank order.
        kind: one of `parsim.hardware.nccl.inputs.KINDS`.
        size: bytes, see the module's text; 0 costs the latency only.
        latencies: constants of the latency formulas.

    Raises:
        TopologyError: unknown kind, negative size, a GPU twice, members that cannot reach each other.
    """
    check_question(group, kind, size)
    if kind == "send":
        return _send(cluster, group[0], group[1], size, latencies)
    if len(group) < 2:
        return CollectiveCost(0.0, (), "none", "none")
    if kind in ("all_to_all", "gather", "scatter", "sendrecv"):
        return _pairwise(cluster, group, kind, size, latencies)
    if kind == "barrier":
        kind, size = "all_reduce", 0
    return _ring_or_tree(cluster, group, kind, size, latencies)


def _ring_or_tree(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, latencies: Latencies) -> CollectiveCost:
    rings = channels(cluster, group)
    machines = len(rings[0].plan) or len({cluster.node_of(gpu) for gpu in group})
    latency = ring_latency(cluster, len(group), machines, max(channel.tier for channel in rings), kind, latencies)
    latency += region_delay(cluster, group, "ring", kind)
    bandwidth = math.fsum(channel.rate for channel in rings)
    amount = volume("ring", kind, len(group), size)
    time = latency + amount / bandwidth
    if kind == "all_reduce" and len(group) > 2:
        tree = tree_latency(cluster, len(group), machines, latencies) + region_delay(cluster, group, "tree", kind)
        if tree + 2 * size / (latencies.tree_share * bandwidth) < time:
            return CollectiveCost(tree, _flows(rings, 2.0 * size, bandwidth, latencies.tree_share), "tree")
    if kind in ("broadcast", "reduce"):
        rings = tuple(replace(channel, path=channel.chain(cluster, group[0], kind)) for channel in rings)
    return CollectiveCost(latency, _flows(rings, amount, bandwidth, 1.0), "ring")


def _flows(rings: tuple[RatedChannel, ...], volume: float, bandwidth: float, share: float) -> tuple[Flow, ...]:
    """One flow per channel; each carries its part of the volume, so all end together."""
    if not volume:
        return ()
    return tuple(Flow(channel.path, volume * channel.rate / bandwidth, channel.rate * share) for channel in rings)


def ring_latency(cluster: Cluster, members: int, machines: int, tier: int, kind: str, latencies: Latencies) -> float:
    """Latency of a ring collective [s]: base plus its steps, those between machines at the network's price.

    `tier` is the worst path inside a machine (see `parsim.hardware.fabric.routes`).
    """
    local = latencies.ring_nvlink if tier <= TIER_NEIGHBOUR else latencies.ring_pcie
    network = latencies.ring_network + _message_latency(cluster)
    if kind in ("broadcast", "reduce"):
        return latencies.base + (network if machines > 1 else local)
    rounds = 2 if kind == "all_reduce" else 1
    steps = rounds * (members - 1)
    between = rounds * (machines - 1)
    if machines > 1:
        local = max(local, latencies.posting)
    return latencies.base + (steps - between) * local + between * network


def tree_latency(cluster: Cluster, members: int, machines: int, latencies: Latencies) -> float:
    """Latency of a tree all-reduce [s]: up and down a chain inside the machine and a binary tree between machines."""
    largest = -(-members // machines)
    depth = math.floor(math.log2(machines))
    network = latencies.tree_network + _message_latency(cluster)
    return latencies.base + 2 * ((largest - 1) * latencies.tree_local + depth * network)


def _port_rate(fabric: Fabric, node: int) -> float:
    """What a port of a machine moves [B/s]."""
    return fabric.port_kind(node).capacity if isinstance(fabric, JoinedFabric) else fabric.capacity(0)


def _message_latency(cluster: Cluster) -> float:
    """Latency the network stack adds per message, twice: the Simple protocol flushes."""
    return 2 * cluster.fabric.message_latency if cluster.fabric else 0.0


def _send(cluster: Cluster, source: int, target: int, size: int, latencies: Latencies) -> CollectiveCost:
    route = cluster.route(source, target)
    if not route.links:
        return CollectiveCost(0.0, (), "none", "none")
    latency = latencies.software + route.latency
    if cluster.fabric is not None and cluster.node_of(source) != cluster.node_of(target):
        latency += cluster.fabric.message_latency
    if not size:
        return CollectiveCost(latency, (), "direct")
    path = tuple(zip(route.links, route.coefficients, strict=True))
    return CollectiveCost(latency, (Flow(path, float(size), route.bottleneck(cluster.capacity)),), "direct")


def _pairwise(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, latencies: Latencies) -> CollectiveCost:
    """Shards of size / n between every two members, or between the root and the others; all of it to the next member."""
    pairs = exchange(cluster, kind, group)
    peers = 1 if kind == "sendrecv" else len(group) - 1
    latency = latencies.software + pairs.latency + (peers - 1) * latencies.per_peer
    if pairs.between_machines and cluster.fabric is not None:
        latency += cluster.fabric.message_latency
    if not size:
        return CollectiveCost(latency, (), "direct")
    volume = float(size) if kind == "sendrecv" else size / len(group)
    return CollectiveCost(latency, (Flow(pairs.path, volume, pairs.rate),), "direct")


# channels: the rings of a group, and how fast each is


@dataclass(frozen=True, slots=True)
class RatedChannel(Channel):
    """One ring of a group, and how fast it is."""

    rate: float = 0.0
    """bytes per second that pass every edge of the ring"""
    tier: int = 0
    """worst path between members inside a machine (see `parsim.hardware.fabric.routes`)"""


_CHANNELS: WeakKeyDictionary[Cluster, dict[tuple[int, ...], tuple[RatedChannel, ...]]] = WeakKeyDictionary()
_LOCAL: WeakKeyDictionary[Node, dict[tuple[tuple[int, ...], float], tuple[Ring, ...]]] = WeakKeyDictionary()
"""rings of a machine by members, and by what a NIC carries; 0: closed rings"""


def channels(cluster: Cluster, group: tuple[int, ...]) -> tuple[RatedChannel, ...]:
    """The channels of a group of GPUs, in order of rails; kept with the cluster.

    Machines follow each other in the order in which the group names them.

    Raises:
        TopologyError: a GPU twice in the group, or members that cannot reach each other.
    """
    known = _CHANNELS.setdefault(cluster, {})
    if group not in known:
        if len(set(group)) != len(group):
            raise TopologyError(Finding(f"a GPU appears twice in the group {group}", "cluster.placement"))
        known[group] = _channels(cluster, group) if len(group) > 1 else ()
    return known[group]


def ring(cluster: Cluster, order: Sequence[int]) -> RatedChannel:
    """The one ring that visits the GPUs in exactly this order, every hop on the cluster's route."""
    return _rated(cluster, [ring_channel(cluster, tuple(order), ())])[0]


def _channels(cluster: Cluster, group: tuple[int, ...]) -> tuple[RatedChannel, ...]:
    nodes = cluster.by_machine(group)
    if not all(cluster.machine(node).joins(locals_) for node, locals_ in nodes.items()):
        return (ring(cluster, group),)
    if len(nodes) == 1:
        ((node, locals_),) = nodes.items()
        closed = _local_rings(cluster.machine(node), locals_)
        return _rated(cluster, [ring_channel(cluster, group, ((node, one),)) for one in closed])
    fabric = cluster.fabric
    if fabric is None:
        raise unreachable(f"GPU {group[0]}", f"GPU {next(gpu for gpu in group if cluster.node_of(gpu) != cluster.node_of(group[0]))}")
    inside = {node: _local_rings(cluster.machine(node), locals_, _port_rate(fabric, node)) for node, locals_ in nodes.items()}
    for node, rings in inside.items():
        if not rings:
            other = next(gpu for gpu in group if cluster.node_of(gpu) != node)
            raise unreachable(f"GPU {cluster.gpu(node, nodes[node][0])}", f"GPU {other}")
    plans = plans_of(inside, fabric) or ((),)
    return _rated(cluster, [ring_channel(cluster, group, plan) for plan in plans])


def _rated(cluster: Cluster, rings: list[Channel]) -> tuple[RatedChannel, ...]:
    """Channels with rates such that all can run together: capacity over the load of all channels of the group."""
    total: dict[int, float] = {}
    for one in rings:
        for link, coefficient in one.path:
            total[link] = total.get(link, 0.0) + coefficient
    links = np.fromiter(total, dtype=np.int64)
    rates = dict(zip(total, (cluster.capacities(links) / np.fromiter(total.values(), dtype=np.float64)).tolist(), strict=True))
    rated = []
    for one in rings:
        rate = min([one.cap, *(rates[link] for link, _ in one.path)])
        if not 0 < rate < math.inf:
            raise TopologyError(Finding(f"the ring {one.order} has no bandwidth", "cluster"))
        rated.append(RatedChannel(one.order, one.path, one.cap, one.plan, rate, _worst_inside(cluster, one)))
    return tuple(rated)


def _worst_inside(cluster: Cluster, one: Channel) -> int:
    """The worst path between members inside a machine."""
    if one.plan:
        hops = [hop for _, part in one.plan for hop in (part.hops if part.entry < 0 else part.hops[1:-1])]
    else:
        hops = [one.hop(cluster, number) for number in range(len(one.order))]
    return max((hop.tier for hop in hops if hop.tier != TIER_NETWORK), default=0)


# one machine


def _local_rings(machine: Node, locals_: tuple[int, ...], port_rate: float = 0.0) -> tuple[Ring, ...]:
    """Rings over members of one machine: closed ones, or one per rail where NICs carry `port_rate` [B/s]."""
    known = _LOCAL.setdefault(machine, {})
    key = (locals_, port_rate)
    if key not in known:
        known[key] = tuple(_through(machine, locals_, port_rate) if port_rate else _closed(machine, locals_))
    return known[key]


def _closed(machine: Node, locals_: tuple[int, ...]) -> list[Ring]:
    if on_nvswitch(machine, locals_):
        return [_in_order(machine, locals_)]
    if not _any_nvlink(machine, locals_):
        return [_in_order(machine, machine.pcie_order(locals_))]
    packed = _packed(machine, locals_, None)
    return packed or [_in_order(machine, machine.pcie_order(locals_))]


class _GraphTask(Task):
    """A search at the capacities of the graph: every capacity on the way, and that of one of several parallel links, is a speed to try."""

    @property
    def patient(self) -> bool:
        return True

    @property
    def planned(self) -> list[float]:
        return self.capacity

    def between(self, a: int, b: int) -> list[Route]:
        """NVLink if there is any; else NVLink through another member, and PCIe."""
        machine, names = self.node, self.node.gpu_names
        direct = machine.finder.nvlink(names[a], names[b])
        if direct is not None:
            return [direct]
        relayed = machine.finder.neighbours(names[a], names[b], (names[local] for local in self.group))
        host = machine.finder.host(names[a], names[b], staged=not machine.p2p)
        return [*relayed, host] if host is not None else relayed

    def trials(self, routes: Iterable[Route]) -> tuple[float, ...]:
        steps = [(link, load) for route in routes for link, load in zip(route.links, route.coefficients, strict=True)]
        one_of_several = [self.node.finder.unit(link) / load for link, load in steps if link < self.wiring.outside]
        return distinct([*(self.capacity[link] / load for link, load in steps), *one_of_several])


def _packed(machine: Node, locals_: tuple[int, ...], ports: tuple[tuple[int, float], ...] | None) -> list[Ring]:
    """Rings packed on a mesh, closed or through ports of these rates; none where nothing packs."""
    wires = wiring(machine)
    rings, _ = Packing(_GraphTask(wires, locals_, (), 0.0, ports)).best()
    return [make_ring(ring.order, [hop.up_to(wires.outside) for hop in ring.hops], ring.entry, ring.exit) for ring in rings]


def on_nvswitch(machine: Node, locals_: tuple[int, ...]) -> bool:
    """Whether all members are plugged into one NVSwitch."""
    adjacent, names = machine.finder.adjacent, machine.gpu_names
    switches = [vertex for vertex, kind in machine.finder.kind.items() if kind == "nvswitch"]
    return any(all(switch in adjacent[names[local]] for local in locals_) for switch in switches)


def _any_nvlink(machine: Node, locals_: tuple[int, ...]) -> bool:
    names = machine.gpu_names
    return any(machine.finder.nvlink(names[a], names[b]) is not None for a in locals_ for b in locals_ if a != b)


def _in_order(machine: Node, order: tuple[int, ...]) -> Ring:
    return make_ring(order, [_between(machine, a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)])


def _between(machine: Node, a: int, b: int) -> Route:
    route = machine.between(a, b)
    if route is None:
        raise unreachable(machine.gpu_names[a], machine.gpu_names[b])
    return route


# in by a port, past the members, out by a port


def _through(machine: Node, locals_: tuple[int, ...], port_rate: float) -> list[Ring]:
    ports = sorted({port for local in locals_ for port in machine.owned_ports[local]})
    if not ports:
        return []
    if len(locals_) == 1 or on_nvswitch(machine, locals_):
        return [_switched(machine, locals_, port) for port in ports]
    packed: list[Ring] = []
    if _any_nvlink(machine, locals_) and len(locals_) < LARGEST_TABLE:
        packed = _packed(machine, locals_, tuple((port, port_rate) for port in ports))
    return sorted(packed, key=lambda ring: ring.entry) or [_over_pcie(machine, locals_)]


def _switched(machine: Node, locals_: tuple[int, ...], port: int) -> Ring:
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
    out = machine.to_port(first if last is None else last, port)
    if order[-1] not in (first, last):
        out = join((_between(machine, order[-1], first), out))
    return make_ring(order, [machine.from_port(port, first), *(_between(machine, a, b) for a, b in pairwise(order)), out], port, port)


def _over_pcie(machine: Node, locals_: tuple[int, ...]) -> Ring:
    """Depth-first order, begun at the member that gives the least loaded links."""
    order = machine.pcie_order(locals_)
    best: tuple[float, Ring] | None = None
    for turn in range(len(order)):
        turned = order[turn:] + order[:turn]
        enter, leave = machine.owned_ports[turned[0]], machine.owned_ports[turned[-1]]
        if not enter or not leave:
            continue
        way_in, way_out = machine.from_port(enter[0], turned[0]), machine.to_port(turned[-1], leave[0])
        one = make_ring(turned, [way_in, *(_between(machine, a, b) for a, b in pairwise(turned)), way_out], enter[0], leave[0])
        rate = min([one.cap, *(machine.capacities[link] / coefficient for link, coefficient in one.load)])
        if best is None or rate > best[0] * (1 + 1e-9):
            best = (rate, one)
    if best is None:
        raise unreachable(machine.gpu_names[locals_[0]], "any NIC")
    return best[1]
