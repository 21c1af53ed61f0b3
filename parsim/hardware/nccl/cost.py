"""The cost of a collective among GPUs of a cluster: NCCL's choice and time, on the links that its channels cross."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.nccl import p2p
from parsim.hardware.nccl.describe import describe, local_wire
from parsim.hardware.nccl.estimate import CollectiveEstimate, estimate
from parsim.hardware.nccl.expert_kernels import expert_kernels
from parsim.hardware.nccl.inputs import AUTOMATIC, KINDS, Inputs, Settings
from parsim.hardware.nccl.lanes import Lanes, cost, lanes, nvls_channels, tree_channels, volume
from parsim.hardware.nccl.profiles import profile
from parsim.hardware.nccl.rings import LinkPath, Plan, Rings, port_rates, ring_channel, rings
from parsim.hardware.nccl.wiring import wiring
from parsim.hardware.region_delay import region_delay
from parsim.hardware.transfers import exchange


@dataclass(slots=True)
class Communicator:
    """What is known about a group of GPUs: its channels, and per algorithm the links they cross."""

    members: tuple[int, ...]
    over: Rings
    inputs: Inputs
    known: dict[str, Lanes] = field(default_factory=dict)
    """by algorithm, and kind where it matters"""


class _Pairwise(NamedTuple):
    """Operations between the pairs of a group."""

    short: float
    """latency of messages that LL carries [s]"""
    long: float
    """of longer ones [s]"""
    path: LinkPath
    rate: float
    """of each pair [B/s]"""
    wire: str = ""
    """inside one machine: what they move over, if it takes time to fill"""


_Question = tuple[str, str, str, float, tuple[int, ...]]
"""kind, kernels, profile, limit of a connection, group"""
_GROUPS: WeakKeyDictionary[Cluster, dict[tuple[int, ...], Communicator]] = WeakKeyDictionary()
_PAIRS: WeakKeyDictionary[Cluster, dict[_Question, _Pairwise]] = WeakKeyDictionary()


def collective_cost(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, settings: Settings = AUTOMATIC) -> CollectiveCost:
    """Cost of one collective among the GPUs `group`.

    Sizes follow nccl-tests (doc/PERFORMANCE.md): all_reduce, broadcast, reduce: buffer per rank; all_gather, reduce_scatter,
    gather, scatter: total buffer; all_to_all: send buffer per rank; send: the message; sendrecv: what each member sends to the
    next, the last to the first. The root of broadcast, reduce, gather and scatter is the first member. Without bytes the latency
    remains. What is found out about a group is kept with the cluster.

    Args:
        cluster: where the GPUs are.
        group: GPU numbers, in rank order; any subset, also unequally many per machine.
        kind: one of `parsim.hardware.nccl.inputs.KINDS`.
        size: bytes.
        settings: profile, library version, overrides.

    Raises:
        TopologyError: unknown kind, negative size, a GPU twice, members that cannot reach each other, an algorithm or protocol
            that is not possible here.
    """
    check_question(group, kind, size)
    if settings.kernels != "nccl":
        expert_kernels(settings.kernels, kind)
    if kind == "send":
        return _send(cluster, group[0], group[1], size, settings)
    if len(group) < 2:
        return CollectiveCost(0.0, (), "none", "none")
    if kind in ("all_to_all", "gather", "scatter", "sendrecv"):
        return _pairwise(cluster, group, kind, size, settings)
    if kind == "barrier":
        kind, size = "all_reduce", 0
    one = collective_estimate(cluster, group, kind, size, settings)
    return cost(one, kind, len(group), lanes_of(cluster, group_of(cluster, group), one.choice.algorithm, kind))


def collective_estimate(
    cluster: Cluster, group: tuple[int, ...], kind: str, size: int, settings: Settings = AUTOMATIC
) -> CollectiveEstimate:
    """Choice, latency, transfer time and CUDA blocks of a collective that the library tunes (or a barrier).

    Raises:
        TopologyError: as `collective_cost`; fewer than two members.
    """
    check_question(group, kind, size)
    about = group_of(cluster, group)

    def links(algorithm: str) -> float:
        return volume(algorithm, kind, len(group), 1.0) * lanes_of(cluster, about, algorithm, kind).slowest

    one = estimate(about.inputs, kind, size, settings, links=links)
    more = region_delay(cluster, group, one.choice.algorithm, kind)
    return one._replace(latency=one.latency + more) if more else one


def check_question(group: tuple[int, ...], kind: str, size: int) -> None:
    """Refuse unknown kinds, negative sizes and messages among other than two."""
    if kind not in KINDS:
        raise TopologyError(Finding(f"unknown collective {kind!r}", "collective", kind, f"known: {', '.join(KINDS)}"))
    if size < 0:
        raise TopologyError(Finding(f"a {kind} of {size} bytes", "collective", size))
    if kind == "send" and len(group) != 2:
        raise TopologyError(Finding(f"a send has two members, not {len(group)}", "collective", list(group)))


def group_of(cluster: Cluster, group: tuple[int, ...]) -> Communicator:
    """What is known about a group of at least two GPUs.

    Raises:
        TopologyError: a GPU twice, or members that cannot reach each other.
    """
    groups = _GROUPS.setdefault(cluster, {})
    known = groups.get(group)
    if known is None:
        if len(set(group)) != len(group):
            raise TopologyError(Finding(f"a GPU appears twice in the group {group}", "cluster.placement"))
        over = rings(cluster, group)
        known = groups[group] = Communicator(group, over, describe(cluster, group, over))
    return known


def lanes_of(cluster: Cluster, about: Communicator, algorithm: str, kind: str) -> Lanes:
    """The links that an algorithm crosses.

    Raises:
        TopologyError: reductions inside the network have no links here.
    """
    chained = algorithm == "ring" and kind in ("broadcast", "reduce")
    key = f"{algorithm} {kind}" if chained or algorithm == "nvls" else algorithm
    if key not in about.known:
        about.known[key] = lanes(_channels(cluster, about, algorithm, kind), cluster.capacities)
    return about.known[key]


def _channels(cluster: Cluster, about: Communicator, algorithm: str, kind: str) -> list[tuple[LinkPath, float]]:
    match algorithm:
        case "tree":
            return tree_channels(cluster, about.over)
        case "nvls" | "nvls_tree":
            return nvls_channels(cluster, about.over, kind)
        case "ring" | "pat":
            return about.over.channels(lambda plan: _on_ring(cluster, about.members, plan, kind))
    raise TopologyError(
        Finding(f"{algorithm} is not supported yet: the network has no reducing switches", "collectives.algorithm", algorithm)
    )


def _on_ring(cluster: Cluster, group: tuple[int, ...], plan: Plan, kind: str) -> tuple[LinkPath, float]:
    """Path and rate limit of a ring; a broadcast or reduce, whose root is the first member, leaves out one hop."""
    channel = ring_channel(cluster, group, plan)
    path = channel.chain(cluster, group[0], kind) if kind in ("broadcast", "reduce") else channel.path
    return path, channel.cap


def _way(cluster: Cluster, source: int, target: int) -> tuple[p2p.Transport, LinkPath]:
    """How a message travels, and the links it crosses."""
    route = cluster.route(source, target)
    node, other = cluster.node_of(source), cluster.node_of(target)
    path = tuple(zip(route.links, route.coefficients, strict=True))
    machine = cluster.machine(node)
    crosses = node != other or any(link >= cluster.first_fabric_link for link in route.links)
    local = ""
    if not crosses and (inside := machine.between(cluster.local(source), cluster.local(target))) is not None:
        local = local_wire(cluster, node, inside)
    waiting = cluster.network.message_latency if crosses else 0.0
    bandwidth = route.bottleneck(cluster.capacity)
    return p2p.Transport(bandwidth, route.latency, local, crosses, machine.cpu, waiting), path


def _send(cluster: Cluster, source: int, target: int, size: int, settings: Settings) -> CollectiveCost:
    if source == target:
        return CollectiveCost(0.0, (), "none", "none")
    used = profile(settings.profile)
    way, path = _way(cluster, source, target)
    latency = p2p.send_latency(way, size)
    if not size:
        return CollectiveCost(latency, (), "direct")
    return CollectiveCost(latency, (Flow(path, float(size), p2p.send_rate(way, used, settings.connection_cap)),), "direct")


def _pairwise(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, settings: Settings) -> CollectiveCost:
    """Shards of size / n between every two members, or between the root and the others; all of it to the next member."""
    known = _PAIRS.setdefault(cluster, {})
    key = (kind, settings.kernels, settings.profile, settings.connection_cap, group)
    if key not in known:
        known[key] = _exchange(cluster, group, kind, settings)
    one = known[key]
    if not size:
        return CollectiveCost(one.short, (), "direct")
    volume, peers = (float(size), 1) if kind == "sendrecv" else (size / len(group), len(group) - 1)
    latency = one.short if volume <= p2p.SHORT else one.long
    latency += p2p.filling(profile(settings.profile), one.wire, volume * peers)
    return CollectiveCost(latency, (Flow(one.path, volume, one.rate),), "direct")


def _exchange(cluster: Cluster, group: tuple[int, ...], kind: str, settings: Settings) -> _Pairwise:
    used = profile(settings.profile)
    pairs = exchange(cluster, kind, group)
    members: dict[int, int] = {}
    for gpu in group:
        members[cluster.node_of(gpu)] = members.get(cluster.node_of(gpu), 0) + 1
    most = max(members.values())
    node = next(node for node, count in members.items() if count == most)
    waiting = cluster.network.message_latency if pairs.between_machines else 0.0
    way = p2p.Transport(math.inf, pairs.latency, _wire(cluster, group, node), pairs.between_machines, cluster.machine(node).cpu, waiting)
    if settings.kernels != "nccl":
        own = expert_kernels(settings.kernels, kind)
        line = min(port_rates(cluster, node).values()) if pairs.between_machines else 0.0
        rate = min(pairs.rate, least_rate(cluster, pairs.path, own.nvlink, own.nic * line))
        before = own.before(machines=len(members))
        return _Pairwise(before, before, pairs.path, rate)
    ranks, near, share = len(group), most, p2p.local_share(used, way.local, most)
    if kind == "sendrecv":  # one peer to send to; another one to receive from at the same time
        ranks, near, share = 2, min(most, 2), p2p.pairs(used, way.local).exchange
    short, long = (p2p.exchange_latency(ranks, near, way, used, message) for message in (p2p.SHORT, math.inf))
    rate = min(pairs.rate, least_rate(cluster, pairs.path, share, settings.connection_cap))
    return _Pairwise(short, long, pairs.path, rate, "" if pairs.between_machines else way.local)


def _wire(cluster: Cluster, group: tuple[int, ...], node: int) -> str:
    """The wire between two members of a machine; empty if it holds one."""
    inside = [cluster.local(gpu) for gpu in group if cluster.node_of(gpu) == node]
    route = cluster.machine(node).between(inside[0], inside[1]) if len(inside) > 1 else None
    return local_wire(cluster, node, route) if route is not None else ""


def least_rate(cluster: Cluster, path: LinkPath, share: float, connection_cap: float) -> float:
    """Rate of each pair where NVLink moves `share` of its bandwidth, and a NIC at most `connection_cap` [B/s]."""
    nvlink = _nvlink_test(cluster)
    rate = math.inf
    for link, crossings in path:
        capacity = cluster.capacity(link)
        if link < cluster.first_fabric_link:
            if nvlink(link):
                rate = min(rate, capacity * share / crossings)
        elif connection_cap:
            rate = min(rate, min(capacity, connection_cap) / crossings)
    return rate


def _nvlink_test(cluster: Cluster) -> Callable[[int], bool]:
    """Whether a link inside a machine is NVLink, by id."""
    blocks = [(block.first_link, len(block.node.links), wiring(block.node).medium) for block in cluster.blocks]

    def test(link: int) -> bool:
        first, each, media = next(block for block in reversed(blocks) if link >= block[0])
        return media[(link - first) % each] == "nvlink"

    return test
