"""A group of GPUs of a cluster as the tuning model sees it: graphs of rings, trees and heads, paths, hosts, settings."""

from __future__ import annotations

import math

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.routes import TIER_SWITCH, Route
from parsim.hardware.nccl.inputs import Graph, Heads, Inputs, Local
from parsim.hardware.nccl.rings import Rings, port_rates, ring_channel
from parsim.hardware.nccl.search import nvls_heads
from parsim.hardware.nccl.task import EPSILON, head_speed, speed_list
from parsim.hardware.nccl.wiring import wiring

_LOCAL: tuple[Local, ...] = ("nvlink2", "nvlink3", "nvlink4", "nvlink5", "xgmi")
_MOST_HEADS = 8
"""a larger NVLink domain adds no faster than eight GPUs: 835 to 847 GB/s on 72 (NVIDIA/nccl-tests pull request 43), 838 on 8"""
_OTHER_VENDORS = 8.0
"""compute capability in whose row of the tables GPUs of other makers are looked up (assumption)"""


def describe(cluster: Cluster, group: tuple[int, ...], over: Rings) -> Inputs:
    """The inputs of the model for the GPUs `group`, whose channels are `over`."""
    known = {machine.devices[local].compute_capability for machine, locals_ in over.kinds for local in locals_}
    capability = min(known) or _OTHER_VENDORS
    searched = list(dict.fromkeys(over.searches.values()))
    nodes, library = len(over.nodes), cluster.library
    path = "pcie" if any(one.kind == "pcie" for one in searched) or not searched else "nvlink"
    equal = len(known) == 1 or capability >= 9.0
    near = nodes == 1 or all(one.tier <= TIER_SWITCH for one in searched) or (capability >= 9.0 and _coherent(over))
    fabric = cluster.fabric if nodes > 1 else None
    ring = _graph(cluster, over)
    return Inputs(
        ranks=len(group),
        ring=ring,
        nodes=nodes,
        capability=capability,
        tree=_tree(cluster, over, ring, capability) if nodes > 1 and min(known) else None,
        nvls=_heads(cluster, over) if min(known) >= 9.0 and library.nvls else None,
        path="nvlink" if path == "nvlink" else "pcie",
        cpu=_cpu(over),
        network_latency=fabric.message_latency if fabric is not None else 0.0,
        handshake=fabric.handshake if fabric is not None else 0.0,
        ll128=path == "nvlink" and near and equal,
        same_order=over.same_order,
        local=_local(cluster, over),
        library=library,
    )


def _coherent(over: Rings) -> bool:
    """Whether all members reach their NICs through a CPU that NVLink-C2C joins them with: as good as a PCIe switch to the library.

    NVIDIA/nccl src/graph/tuning.cc since 2.27: "Enable LL128 by default only on Hopper/Blackwell for all connections up to P2C and PXN".
    """
    names = [[machine.finder.adjacent[machine.gpu_names[local]] for local in locals_] for machine, locals_ in over.kinds]
    return all(any(edge["link_kind"].name == "nvlink-c2c" for edge in near.values()) for machine in names for near in machine)


def _graph(cluster: Cluster, over: Rings) -> Graph:
    """Count and speed of the rings; the library takes the least of all machines."""
    if not over.searches:
        channel = ring_channel(cluster, over.group, ())
        return Graph(1, min([channel.cap, *(cluster.capacity(link) / load for link, load in channel.path)]))
    searched = dict.fromkeys(over.searches.values())
    moved = over.count * min(one.rate for one in searched) if len(over.nodes) == 1 else 0.0
    return Graph(over.count, min(one.speed for one in searched), moved=moved)


def _tree(cluster: Cluster, over: Rings, ring: Graph, capability: float) -> Graph | None:
    """The trees of several machines: inside a machine the next speeds of the list are tried up to twice the one between machines.

    NVIDIA/nccl src/graph/search.cc, ncclTopoCompute, "increase bwIntra for trees". The links of a machine must carry them.
    """
    if not over.searches:
        return None
    inside = min(_chains(cluster, node, over) for node in over.kinds.values())
    speed = ring.intra
    for faster in sorted(speed_list(capability, network=True)):
        if faster > speed and speed < 2 * ring.intra * (1 - EPSILON) and faster <= inside * (1 + EPSILON):
            speed = faster
    return Graph(ring.channels, speed, inter=ring.intra)


def _chains(cluster: Cluster, node: int, over: Rings) -> float:
    """What each channel may plan with on the hops between the members of a machine, all of them at once [B/s]."""
    wires = wiring(cluster.machine(node))
    load: dict[int, float] = {}
    for ring in over.searches[node].channels:
        for hop in ring.hops[1:-1]:
            for link, coefficient in zip(hop.links, hop.coefficients, strict=True):
                load[link] = load.get(link, 0.0) + coefficient
    return min((wires.planned[link] / amount for link, amount in load.items()), default=math.inf)


def _heads(cluster: Cluster, over: Rings) -> Heads | None:
    """Heads of the in-switch reduction; machines must have equally many GPUs of the group.

    Between machines the next speeds of the list are tried up to twice a head's, as far as its NICs go (src/graph/search.cc).
    """
    sizes = {len(locals_) for _, locals_ in over.kinds}
    if len(sizes) > 1 or min(sizes) < 2 or not over.searches:
        return None
    heads = [one for machine, locals_ in over.kinds if (one := nvls_heads(machine, locals_)) is not None]
    if len(heads) < len(over.kinds):
        return None
    count = min(*sizes, _MOST_HEADS)
    bandwidth = min(one.unquantised * (one.count + 1) for one in heads)
    capability = min(machine.devices[local].compute_capability for machine, locals_ in over.kinds for local in locals_)
    speeds = speed_list(capability, network=len(over.nodes) > 1)
    inside = head_speed(bandwidth, count, speeds)
    if len(over.nodes) == 1:
        return Heads(count, inside, unquantised=bandwidth / (count + 1))
    nics = min(math.fsum(port_rates(cluster, node).values()) for node in over.kinds.values()) / count
    between = min(inside, nics)
    for faster in sorted(speeds):
        if faster > between and between < 2 * inside * (1 - EPSILON) and faster <= nics * (1 + EPSILON):
            between = faster
    return Heads(count, inside, inter=between)


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


def _is(kind: str, name: str) -> bool:
    """Whether a kind of link is a wire: nvlink3 and nvlink3-rtx are, nvlink30 is not; every xGMI is xgmi."""
    return kind.startswith(name) and (name == "xgmi" or not kind[len(name) : len(name) + 1].isdigit())
