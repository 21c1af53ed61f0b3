"""What one collective costs on an idle fabric, and what it asks of the links.

Ring algorithms on the channels of the group (`parsim.hardware.channels`): time = latency + bytes per edge / rate.
Latencies are the constants of NCCL 2.30's tuning model for the Simple protocol (NVIDIA/nccl src/graph/tuning.cc); an
all-reduce takes a tree instead where that is faster. Sizes follow nccl-tests (doc/PERFORMANCE.md): all_reduce, broadcast,
reduce: buffer per rank; all_gather, reduce_scatter, gather, scatter: total buffer; all_to_all: send buffer per rank;
send: the message; sendrecv: what each member sends to the next, the last to the first. The root of broadcast, reduce,
gather and scatter is the first member of the group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from parsim.errors import Finding, TopologyError
from parsim.hardware.channels import RatedChannel, channels
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.routes import TIER_NEIGHBOUR
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.transfers import exchange

KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "sendrecv", "send", "barrier",
)  # fmt: skip


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
        kind: one of `KINDS`.
        size: bytes, see the module's text; 0 costs the latency only.
        latencies: constants of the latency formulas.

    Raises:
        TopologyError: unknown kind, negative size, a GPU twice, members that cannot reach each other.
    """
    if kind not in KINDS:
        raise TopologyError(Finding(f"unknown collective {kind!r}", "collective", kind, f"known: {', '.join(KINDS)}"))
    if size < 0:
        raise TopologyError(Finding(f"a {kind} of {size} bytes", "collective", size))
    if kind == "send":
        if len(group) != 2:
            raise TopologyError(Finding(f"a send has two members, not {len(group)}", "collective", list(group)))
        return _send(cluster, group[0], group[1], size, latencies)
    if len(group) < 2:
        return CollectiveCost(0.0, (), "none", "none")
    if kind in ("all_to_all", "gather", "scatter", "sendrecv"):
        return _pairwise(cluster, group, kind, size, latencies)
    if kind == "barrier":
        kind, size = "all_reduce", 0
    return _ring_or_tree(cluster, group, kind, size, latencies)


def ring_bytes(kind: str, members: int, size: float) -> float:
    """Bytes that pass each edge of a ring, all channels together [B]."""
    match kind:
        case "all_reduce":
            return 2 * (members - 1) / members * size
        case "all_gather" | "reduce_scatter":
            return (members - 1) / members * size
        case _:
            return float(size)


def _ring_or_tree(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, latencies: Latencies) -> CollectiveCost:
    rings = channels(cluster, group)
    machines = len(rings[0].plan) or len({cluster.node_of(gpu) for gpu in group})
    latency = ring_latency(cluster, len(group), machines, max(channel.tier for channel in rings), kind, latencies)
    bandwidth = math.fsum(channel.rate for channel in rings)
    volume = ring_bytes(kind, len(group), size)
    time = latency + volume / bandwidth
    if kind == "all_reduce" and len(group) > 2:
        tree = tree_latency(cluster, len(group), machines, latencies)
        if tree + 2 * size / (latencies.tree_share * bandwidth) < time:
            return CollectiveCost(tree, _flows(rings, 2.0 * size, bandwidth, latencies.tree_share), "tree")
    if kind in ("broadcast", "reduce"):
        rings = tuple(replace(channel, path=channel.chain(cluster, group[0], kind)) for channel in rings)
    return CollectiveCost(latency, _flows(rings, volume, bandwidth, 1.0), "ring")


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
