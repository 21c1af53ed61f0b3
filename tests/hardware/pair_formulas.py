"""Closed forms of operations between pairs of GPUs, and of collectives in a loop, to compare costs on links and published sweeps with."""

from __future__ import annotations

import math
from typing import NamedTuple

from parsim.hardware.nccl import p2p
from parsim.hardware.nccl.estimate import CollectiveEstimate
from parsim.hardware.nccl.profiles import NcclProfile


def send_time(way: p2p.Transport, size: float, used: NcclProfile, connection_cap: float = 0.0) -> float:
    """Time of one message [s]."""
    return p2p.send_latency(way, size) + (size / p2p.send_rate(way, used, connection_cap) if size else 0.0)


class Exchange(NamedTuple):
    """A group whose members all send to each other, with equal nodes."""

    ranks: int
    per_node: int
    way: p2p.Transport
    """to the farthest peer; its bandwidth is that of a GPU's own links inside the node"""
    network: float = 0.0
    """NIC bandwidth per GPU [B/s]"""


def all_to_all_time(group: Exchange, size: float, used: NcclProfile, connection_cap: float = 0.0) -> float:
    """Time of an all_to_all in which every rank sends `size` bytes in all [s]; NVLink and NICs work at the same time."""
    inside = size * (group.per_node - 1) / group.ranks
    beyond = size * (group.ranks - group.per_node) / group.ranks
    moving = 0.0
    if inside:
        moving = inside / (group.way.bandwidth * p2p.local_share(used, group.way.local, group.per_node))
    if beyond:
        moving = max(moving, beyond / min(group.network, connection_cap or math.inf))
    if not beyond:
        moving += p2p.filling(used, group.way.local, inside)
    return p2p.exchange_latency(group.ranks, group.per_node, group.way, used, size / group.ranks) + moving


def pipeline_time(size: float, chunk_size: float, hops: int, bandwidth: float, step: float = 0.0) -> float:
    """Chunks that follow each other over a chain of `hops` hops [s]: (k + m - 1) c / B + m a."""
    chunks = math.ceil(size / chunk_size)
    return (chunks + hops - 1) * chunk_size / bandwidth + hops * step


def loop_time(one: CollectiveEstimate, issue: float = 38e-6, call: float = 8e-6) -> float:
    """Time per collective in a loop that a host drives without waiting: the slower of host and device [s].

    The defaults are those of a Python framework (stas00/ml-engineering, H200 sweep).

    Args:
        one: the collective.
        issue: what the host needs to issue one call [s].
        call: what every call adds on the device [s].
    """
    return max(issue, one.time + call)
