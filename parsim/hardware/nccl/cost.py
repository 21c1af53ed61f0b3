"""The cost of a collective among GPUs of a cluster: NCCL's choice and time, on the links that its channels cross."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.direct import GraphFabric
from parsim.hardware.fabric.routes import TIER_SWITCH, Route
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.nccl import p2p
from parsim.hardware.nccl.estimate import Estimate, Profile, estimate, profile
from parsim.hardware.nccl.inputs import AUTOMATIC, KINDS, Graph, Heads, Inputs, Local, Network, Settings
from parsim.hardware.nccl.lanes import Lanes, cost, lanes, nvls_channels, tree_channels
from parsim.hardware.nccl.rings import LinkPath, Plan, Rings, port_rates, ring_channel, rings
from parsim.hardware.nccl.search import nvls_heads
from parsim.hardware.nccl.task import head_speed, speed_list
from parsim.hardware.nccl.wiring import wiring
from parsim.hardware.transfers import exchange


@dataclass(slots=True)
class Group:
    """What is known about a group of GPUs: its channels, and per algorithm the links they cross."""

    members: tuple[int, ...]
    over: Rings
    inputs: dict[str, Inputs] = field(default_factory=dict)
    """by profile"""
    known: dict[str, Lanes] = field(default_factory=dict)
    """by algorithm, and kind where it matters"""


_Question = tuple[str, str, float, tuple[int, ...]]
"""kind, profile, limit of a connection, group"""
_GROUPS: WeakKeyDictionary[Cluster, dict[tuple[int, ...], Group]] = WeakKeyDictionary()
_PAIRS: WeakKeyDictionary[Cluster, dict[_Question, tuple[float, LinkPath, float]]] = WeakKeyDictionary()
"""latency, path and rate of exchanges"""


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
    _check(group, kind, size)
    if kind == "send":
        return _send(cluster, group[0], group[1], size, settings)
    if len(group) < 2:
        return CollectiveCost(0.0, (), "none", "none")
    if kind in ("all_to_all", "gather", "scatter", "sendrecv"):
        return _pairwise(cluster, group, kind, size, settings)
    if kind == "barrier":
        kind, size = "all_reduce", 0
    about = group_of(cluster, group)
    one = estimate(inputs_of(cluster, about, profile(settings.profile)), kind, size, settings)
    return cost(one, kind, len(group), lanes_of(cluster, about, one.choice.algorithm, kind))


def collective_estimate(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, settings: Settings = AUTOMATIC) -> Estimate:
    """Choice, latency, transfer time and CUDA blocks of a collective that the library tunes (or a barrier).

    Raises:
        TopologyError: as `collective_cost`; fewer than two members.
    """
    _check(group, kind, size)
    return estimate(inputs_of(cluster, group_of(cluster, group), profile(settings.profile)), kind, size, settings)


def _check(group: tuple[int, ...], kind: str, size: int) -> None:
    if kind not in KINDS:
        raise TopologyError(Finding(f"unknown collective {kind!r}", "collective", kind, f"known: {', '.join(KINDS)}"))
    if size < 0:
        raise TopologyError(Finding(f"a {kind} of {size} bytes", "collective", size))
    if kind == "send" and len(group) != 2:
        raise TopologyError(Finding(f"a send has two members, not {len(group)}", "collective", list(group)))


def group_of(cluster: Cluster, group: tuple[int, ...]) -> Group:
    """What is known about a group of at least two GPUs.

    Raises:
        TopologyError: a GPU twice, or members that cannot reach each other.
    """
    groups = _GROUPS.setdefault(cluster, {})
    known = groups.get(group)
    if known is None:
        if len(set(group)) != len(group):
            raise TopologyError(Finding(f"a GPU appears twice in the group {group}", "cluster.placement"))
        known = groups[group] = Group(group, rings(cluster, group))
    return known


def inputs_of(cluster: Cluster, about: Group, used: Profile) -> Inputs:
    """The group as the tuning model sees it."""
    if used.name not in about.inputs:
        about.inputs[used.name] = describe(cluster, about.members, about.over, used)
    return about.inputs[used.name]


def lanes_of(cluster: Cluster, about: Group, algorithm: str, kind: str) -> Lanes:
    """The links that an algorithm crosses.

    Raises:
        TopologyError: reductions inside the network have no links here.
    """
    chained = algorithm == "ring" and kind in ("broadcast", "reduce")
    key = f"{algorithm} {kind}" if chained or algorithm == "nvls" else algorithm
    if key not in about.known:
        about.known[key] = lanes(_channels(cluster, about, algorithm, kind), cluster.capacities)
    return about.known[key]


def _channels(cluster: Cluster, about: Group, algorithm: str, kind: str) -> list[tuple[LinkPath, float]]:
    match algorithm:
        case "tree":
            return tree_channels(cluster, about.over)
        case "nvls" | "nvls_tree":
            return nvls_channels(cluster, about.over, kind)
        case "ring" | "pat":
            return about.over.channels(lambda plan: _on_ring(cluster, about.members, plan, kind))
    raise TopologyError(
        Finding(f"{algorithm} is not supported yet: the fabric has no switches that reduce", "collectives.algorithm", algorithm)
    )


def _on_ring(cluster: Cluster, group: tuple[int, ...], plan: Plan, kind: str) -> tuple[LinkPath, float]:
    """Path and rate limit of a ring; a broadcast or reduce, whose root is the first member, leaves out one hop."""
    channel = ring_channel(cluster, group, plan)
    path = channel.chain(cluster, group[0], kind) if kind in ("broadcast", "reduce") else channel.path
    return path, channel.cap


def _way(cluster: Cluster, source: int, target: int, used: Profile) -> tuple[p2p.Way, LinkPath]:
    """How a message travels, and the links it crosses."""
    route = cluster.route(source, target)
    node, other = cluster.node_of(source), cluster.node_of(target)
    path = tuple(zip(route.links, route.coefficients, strict=True))
    machine = cluster.machine(node)
    crosses = node != other or any(link >= cluster.first_fabric_link for link in route.links)
    local = ""
    if not crosses and (inside := machine.between(cluster.local(source), cluster.local(target))) is not None:
        local = local_wire(cluster, node, inside)
    waiting = message_latency(cluster, used, network_kind(cluster)) if crosses else 0.0
    bandwidth = route.bottleneck(cluster.capacity)
    return p2p.Way(bandwidth, route.latency, local, crosses, machine.cpu, waiting), path


def _send(cluster: Cluster, source: int, target: int, size: int, settings: Settings) -> CollectiveCost:
    if source == target:
        return CollectiveCost(0.0, (), "none", "none")
    used = profile(settings.profile)
    way, path = _way(cluster, source, target, used)
    latency = p2p.send_latency(way)
    if not size:
        return CollectiveCost(latency, (), "direct")
    return CollectiveCost(latency, (Flow(path, float(size), p2p.send_rate(way, used, settings.connection_cap)),), "direct")


def _pairwise(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, settings: Settings) -> CollectiveCost:
    """Shards of size / n between every two members, or between the root and the others; all of it to the next member."""
    known = _PAIRS.setdefault(cluster, {})
    key = (kind, settings.profile, settings.connection_cap, group)
    if key not in known:
        known[key] = _exchange(cluster, group, kind, settings)
    latency, path, rate = known[key]
    if not size:
        return CollectiveCost(latency, (), "direct")
    volume = float(size) if kind == "sendrecv" else size / len(group)
    return CollectiveCost(latency, (Flow(path, volume, rate),), "direct")


def _exchange(cluster: Cluster, group: tuple[int, ...], kind: str, settings: Settings) -> tuple[float, LinkPath, float]:
    """Latency, path and the rate of every pair of an exchange."""
    used = profile(settings.profile)
    pairs = exchange(cluster, kind, group)
    members: dict[int, int] = {}
    for gpu in group:
        members[cluster.node_of(gpu)] = members.get(cluster.node_of(gpu), 0) + 1
    most = max(members.values())
    node = next(node for node, count in members.items() if count == most)
    waiting = message_latency(cluster, used, network_kind(cluster)) if pairs.between_machines else 0.0
    way = p2p.Way(math.inf, pairs.latency, _wire(cluster, group, node), pairs.between_machines, cluster.machine(node).cpu, waiting)
    if kind == "sendrecv":  # one peer to send to; another one to receive from at the same time
        latency, share = p2p.exchange_latency(2, min(most, 2), way, used), p2p.pairs(used, way.local).exchange
    else:
        latency, share = p2p.exchange_latency(len(group), most, way, used), p2p.local_share(used, way.local, most)
    return latency, pairs.path, min(pairs.rate, _least(cluster, pairs.path, share, settings.connection_cap))


def _wire(cluster: Cluster, group: tuple[int, ...], node: int) -> str:
    """The wire between two members of a machine; empty if it holds one."""
    inside = [cluster.local(gpu) for gpu in group if cluster.node_of(gpu) == node]
    route = cluster.machine(node).between(inside[0], inside[1]) if len(inside) > 1 else None
    return local_wire(cluster, node, route) if route is not None else ""


def _least(cluster: Cluster, path: LinkPath, share: float, connection_cap: float) -> float:
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


# a group of GPUs as the tuning model sees it


_LOCAL: tuple[Local, ...] = ("nvlink2", "nvlink3", "nvlink4", "nvlink5", "xgmi")
_NETWORK: dict[str, Network] = {"ib": "ib", "infiniband": "ib", "efa": "efa", "roce": "roce", "ethernet": "tcp", "tcp": "tcp"}
_MOST_HEADS = 8
"""a larger NVLink domain adds no faster than eight GPUs: 835 to 847 GB/s on 72 (NVIDIA/nccl-tests pull request 43), 838 on 8"""
_SLOW_ETHERNET = 25e9 / 8
"""line rate up to which TCP keeps up [B/s]"""
_OTHER_VENDORS = 8.0
"""compute capability in whose row of the tables GPUs of other makers are looked up (assumption)"""


def describe(cluster: Cluster, group: tuple[int, ...], over: Rings, used: Profile) -> Inputs:
    """The inputs of the model for the GPUs `group`, whose channels are `over`."""
    known = {machine.devices[local].compute_capability for machine, locals_ in over.kinds for local in locals_}
    capability = min(known) or _OTHER_VENDORS
    searched = list(dict.fromkeys(over.searches.values()))
    nodes = len(over.nodes)
    network = network_kind(cluster) if nodes > 1 else ""
    path = "pcie" if any(one.kind == "pcie" for one in searched) or not searched else "nvlink"
    equal = len(known) == 1 or capability >= 9.0
    near = nodes == 1 or all(one.tier <= TIER_SWITCH for one in searched)
    return Inputs(
        ranks=len(group),
        ring=_graph(cluster, over),
        nodes=nodes,
        capability=capability,
        nvls=_heads(cluster, over) if min(known) >= 9.0 else None,
        path="nvlink" if path == "nvlink" else "pcie",
        cpu=_cpu(over),
        network_latency=message_latency(cluster, used, network) if nodes > 1 else 0.0,
        ll128=path == "nvlink" and near and equal,
        same_order=over.same_order,
        local=_local(cluster, over),
        network=network,
    )


def _graph(cluster: Cluster, over: Rings) -> Graph:
    """Count and speed of the rings; the library takes the least of all machines."""
    if not over.searches:
        channel = ring_channel(cluster, over.group, ())
        return Graph(1, min([channel.cap, *(cluster.capacity(link) / load for link, load in channel.path)]))
    searched = dict.fromkeys(over.searches.values())
    return Graph(over.count, min(one.speed for one in searched), moved=over.count * min(one.rate for one in searched))


def _heads(cluster: Cluster, over: Rings) -> Heads | None:
    """Heads of the in-switch reduction; machines must have equally many GPUs of the group."""
    sizes = {len(locals_) for _, locals_ in over.kinds}
    if len(sizes) > 1 or min(sizes) < 2 or not over.searches:
        return None
    heads = [one for machine, locals_ in over.kinds if (one := nvls_heads(machine, locals_)) is not None]
    if len(heads) < len(over.kinds):
        return None
    count = min(*sizes, _MOST_HEADS)
    bandwidth = min(one.unquantised * (one.count + 1) for one in heads)
    capability = min(machine.devices[local].compute_capability for machine, locals_ in over.kinds for local in locals_)
    share = bandwidth / (count + 1)
    inside = head_speed(bandwidth, count, speed_list(capability, network=len(over.nodes) > 1))
    if len(over.nodes) == 1:
        return Heads(count, inside, unquantised=share)
    between = min(math.fsum(port_rates(cluster, node).values()) for node in over.kinds.values()) / count
    return Heads(count, inside, inter=min(inside, between))


def _cpu(over: Rings) -> str:
    makers = list(dict.fromkeys(machine.cpu for machine, _ in over.kinds))
    return makers[0] if len(makers) == 1 else "mixed"


def _local(cluster: Cluster, over: Rings) -> Local:
    """The wire between members inside a machine: the slowest kind of any hop."""
    if any(one.kind == "pcie" for one in over.searches.values()):
        return "pcie"
    for node, one in over.searches.items():
        for ring in one.channels[:1]:
            hops = ring.hops if ring.entry < 0 else ring.hops[1:-1]
            if hops:
                return local_wire(cluster, node, hops[0])
    return ""


def local_wire(cluster: Cluster, node: int, route: Route) -> Local:
    """The kind of wire of a route inside a machine, in local link ids."""
    machine = cluster.machine(node)
    kinds = [machine.links[link].kind for link in route.links]
    for name in _LOCAL:
        if kinds and all(_is(kind, name) for kind in kinds):
            return name
    return "pcie" if any(kind.startswith(("pcie", "socket")) for kind in kinds) else ""


def network_kind(cluster: Cluster) -> Network:
    """What kind of network joins the machines; empty where nothing is known about it."""
    fabric = cluster.fabric
    if fabric is None:
        return ""
    names = [link.kind for link in fabric.links] if isinstance(fabric, GraphFabric) else [fabric.link_kind.name]
    kinds = {_NETWORK.get(name.split("-")[0], "") for name in names}
    kind = kinds.pop() if len(kinds) == 1 else ""
    if kind == "tcp" and not isinstance(fabric, GraphFabric) and fabric.link_kind.capacity <= _SLOW_ETHERNET:
        return "ethernet"
    return kind


def message_latency(cluster: Cluster, used: Profile, network: str) -> float:
    """Latency that the network stack adds per message [s]."""
    fabric = cluster.fabric
    told = fabric.message_latency if fabric is not None else 0.0
    return told or used.network_latency.get(network, 0.0)


def _is(kind: str, name: str) -> bool:
    """Whether a kind of link is a wire: nvlink3 and nvlink3-rtx are, nvlink30 is not; every xGMI is xgmi."""
    return kind.startswith(name) and (name == "xgmi" or not kind[len(name) : len(name) + 1].isdigit())
