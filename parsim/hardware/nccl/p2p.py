"""Operations between pairs of GPUs: messages, exchanges (all_to_all, gather, scatter) and pipelines of chunks.

The library has no tuning model for these. A message costs a launch, the hops of its route and, between nodes, the posting of
network work; its bytes move at the rate of the narrowest link. Peers of an exchange inside a node are served one after the other, as
a peer gets all channels; over the network `CONCURRENT_PEERS` at a time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from parsim.hardware.nccl.estimate import Pairs, Profile

LAUNCH = 5e-6
"""of a point-to-point kernel [s]; 5 to 8 us measured between two GPUs of a node (microsoft/vidur, send_recv profiles)"""
CONCURRENT_PEERS = 16
"""of an exchange over the network: 32 channels, 2 per peer (NVIDIA/nccl src/init.cc)"""
MESSAGE = 1.5e-6
"""per network peer of an exchange, where they come one after the other [s]; assumption"""
_KIB = 1024
_MOST_CHANNELS = 64


def chunk(nvlink_only: bool) -> int:
    """Bytes of a chunk of a point-to-point operation (NVIDIA/nccl src/init.cc, NCCL_P2P_NVL_CHUNKSIZE and its PCI and NET forms)."""
    return (512 if nvlink_only else 128) * _KIB


def channels_per_peer(*, nvlinks: int = 0, nics: int = 0, network: float = 0.0) -> int:
    """Channels of one peer: two per NVLink, two over PCIe, over the network one per NIC or 14 GB/s; a power of two.

    Args:
        nvlinks: NVLinks to the peer; 0: over PCIe or the network.
        nics: NICs towards the peer; 0: the same node.
        network: their bandwidth [B/s].
    """
    count = max(2, nics, math.ceil(network / 14e9)) if nics else 2 * max(nvlinks, 1)
    return min(1 << (count - 1).bit_length(), _MOST_CHANNELS)


class Way(NamedTuple):
    """How a message gets from one GPU to another."""

    bandwidth: float
    """of the narrowest link [B/s]"""
    hops: float = 0.0
    """latency of the route [s]"""
    local: str = ""
    """wire inside the node (see `parsim.hardware.nccl.inputs.Local`)"""
    crosses: bool = False
    """between nodes"""
    cpu: str = ""
    network_latency: float = 0.0
    """that the network plug-in adds to a message [s]"""


def posting(cpu: str) -> float:
    """Time in which the proxy posts a network operation [s] (NVIDIA/nccl src/graph/tuning.cc, getNetOverhead)."""
    return 2e-6 if cpu == "amd" else 1e-6


def send_latency(way: Way) -> float:
    """Latency of a message [s]."""
    return LAUNCH + way.hops + (posting(way.cpu) + way.network_latency if way.crosses else 0.0)


def send_rate(way: Way, used: Profile, connection_cap: float = 0.0) -> float:
    """Rate of a message [B/s]; `connection_cap` is what one connection gets out of a NIC at most."""
    if way.crosses:
        return min(way.bandwidth, connection_cap or math.inf)
    return way.bandwidth * pairs(used, way.local).send


def send_time(way: Way, size: float, used: Profile, connection_cap: float = 0.0) -> float:
    """Time of one message [s]."""
    return send_latency(way) + (size / send_rate(way, used, connection_cap) if size else 0.0)


def pairs(used: Profile, local: str) -> Pairs:
    """The point-to-point parameters of a wire inside a node."""
    return used.pairs.get(local, Pairs())


class Exchange(NamedTuple):
    """A group whose members all send to each other, with equal nodes."""

    ranks: int
    per_node: int
    way: Way
    """to the farthest peer; its bandwidth is that of a GPU's own links inside the node"""
    network: float = 0.0
    """NIC bandwidth per GPU [B/s]"""


def exchange_latency(ranks: int, per_node: int, way: Way, used: Profile) -> float:
    """Latency of an exchange [s]: the peers inside the node one by one, those beyond it `CONCURRENT_PEERS` at a time."""
    wire = pairs(used, way.local)
    near, far = per_node - 1, ranks - per_node
    latency = send_latency(way) + wire.start + (wire.peer * near if wire.start else wire.peer * max(near - 1, 0))
    return latency + MESSAGE * max(math.ceil(far / CONCURRENT_PEERS) - 1, 0)


def local_share(used: Profile, local: str, per_node: int) -> float:
    """What an exchange moves over the wires inside a node, relative to their bandwidth."""
    wire = pairs(used, local)
    return wire.pair if per_node == 2 else wire.exchange


def all_to_all_time(group: Exchange, size: float, used: Profile, connection_cap: float = 0.0) -> float:
    """Time of an all_to_all in which every rank sends `size` bytes in all [s]; NVLink and NICs work at the same time."""
    inside = size * (group.per_node - 1) / group.ranks
    beyond = size * (group.ranks - group.per_node) / group.ranks
    moving = 0.0
    if inside:
        moving = inside / (group.way.bandwidth * local_share(used, group.way.local, group.per_node))
    if beyond:
        moving = max(moving, beyond / min(group.network, connection_cap or math.inf))
    return exchange_latency(group.ranks, group.per_node, group.way, used) + moving


def pipeline_time(size: float, chunk_size: float, hops: int, bandwidth: float, step: float = 0.0) -> float:
    """Chunks that follow each other over a chain of `hops` hops [s]: (k + m - 1) c / B + m a."""
    chunks = math.ceil(size / chunk_size)
    return (chunks + hops - 1) * chunk_size / bandwidth + hops * step
