"""Operations between pairs of GPUs: messages and exchanges (all_to_all, gather, scatter).

The library has no tuning model for these. A message costs a launch, the hops of its route and, between nodes, the posting of
network work; its bytes move at the rate of the narrowest link. Peers of an exchange inside a node are served one after the other, as
a peer gets all channels; over the network `CONCURRENT_PEERS` at a time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from parsim.hardware.nccl.profiles import NcclProfile, Pairs

LAUNCH = 5e-6
"""of a point-to-point kernel [s]; 5 to 8 us measured between two GPUs of a node (microsoft/vidur, send_recv profiles)"""
SHORT = 16384
"""bytes of a message that LL carries, at most; a longer one takes Simple (NCCL_P2P_LL_THRESHOLD)"""
SHORT_PEER = 0.8e-6
"""per peer beyond the first, of an exchange of short messages inside a node [s]; 10.6 us on eight H20 (deepseek-ai/DeepEP issue 303)"""
BATCH = 8
"""peers that a channel serves at once (NVIDIA/nccl src/include/device.h, NCCL_MAX_DEV_WORK_P2P_PER_BATCH)"""
MEETING = 12e-6
"""between nodes, of a short message, and again of a long one: a proxy hears from the other where to write before it does [s]; 21.6 and
34 us measured for messages between B200 over InfiniBand, 33 to 39 us for an exchange of short ones over RoCE (validation/nccl)"""
CONCURRENT_PEERS = 16
"""of an exchange over the network: 32 channels, 2 per peer (NVIDIA/nccl src/init.cc)"""
MESSAGE = 1.5e-6
"""per network peer of an exchange, where they come one after the other [s]; assumption"""


class Transport(NamedTuple):
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


def send_latency(way: Transport, size: float) -> float:
    """Latency of a message [s]; between nodes two cross, as the receiver is heard first."""
    meetings = 1 if size <= SHORT else 2
    return LAUNCH + way.hops + (MEETING * meetings + posting(way.cpu) + 2 * way.network_latency if way.crosses else 0.0)


def send_rate(way: Transport, used: NcclProfile, connection_cap: float = 0.0) -> float:
    """Rate of a message [B/s]; `connection_cap` is what one connection gets out of a NIC at most."""
    if way.crosses:
        return min(way.bandwidth, connection_cap or math.inf)
    return way.bandwidth * pairs(used, way.local).send


def pairs(used: NcclProfile, local: str) -> Pairs:
    """The point-to-point parameters of a wire inside a node."""
    return used.pairs.get(local, Pairs())


def exchange_latency(ranks: int, per_node: int, way: Transport, used: NcclProfile, message: float) -> float:
    """Latency of an exchange of messages of so many bytes [s]: peers beyond the node come `CONCURRENT_PEERS` at a time."""
    near, far = per_node - 1, ranks - per_node
    waiting = SHORT_PEER * max(near - 1, 0) if message <= SHORT else pairs(used, way.local).peer * min(near, BATCH)
    return send_latency(way, message) + waiting + MESSAGE * max(math.ceil(far / CONCURRENT_PEERS) - 1, 0)


def filling(used: NcclProfile, local: str, moved: float) -> float:
    """What filling the pipeline costs an exchange in which a GPU sends `moved` bytes to the others of its machine [s]."""
    wire = pairs(used, local)
    return wire.ramp * moved / (moved + wire.half)


def local_share(used: NcclProfile, local: str, per_node: int) -> float:
    """What an exchange moves over the wires inside a node, relative to their bandwidth."""
    wire = pairs(used, local)
    return wire.pair if per_node == 2 else wire.exchange
