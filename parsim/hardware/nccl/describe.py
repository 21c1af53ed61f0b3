"""A group of GPUs of a cluster as the tuning model sees it."""

from __future__ import annotations

import math

from parsim.hardware.cluster import Cluster
from parsim.hardware.graph_fabric import GraphFabric
from parsim.hardware.nccl.inputs import Graph, Heads, Inputs, Local, Network
from parsim.hardware.nccl.profiles import Profile
from parsim.hardware.nccl.rings import Rings, port_rates, ring_channel
from parsim.hardware.routes import TIER_SWITCH, Route
from parsim.hardware.search import nvls_heads
from parsim.hardware.search.speeds import head_speed, speed_list

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
    found = list(dict.fromkeys(over.found.values()))
    nodes = len(over.nodes)
    network = network_kind(cluster) if nodes > 1 else ""
    path = "pcie" if any(one.kind == "pcie" for one in found) or not found else "nvlink"
    equal = len(known) == 1 or capability >= 9.0
    near = nodes == 1 or all(one.tier <= TIER_SWITCH for one in found)
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
    if not over.found:
        channel = ring_channel(cluster, over.group, ())
        return Graph(1, min([channel.cap, *(cluster.capacity(link) / load for link, load in channel.path)]))
    found = dict.fromkeys(over.found.values())
    return Graph(over.count, min(one.speed for one in found), moved=over.count * min(one.rate for one in found))


def _heads(cluster: Cluster, over: Rings) -> Heads | None:
    """Heads of the in-switch reduction; machines must have equally many GPUs of the group."""
    sizes = {len(locals_) for _, locals_ in over.kinds}
    if len(sizes) > 1 or min(sizes) < 2 or not over.found:
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
    if any(one.kind == "pcie" for one in over.found.values()):
        return "pcie"
    for node, one in over.found.items():
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
