"""What an estimated collective asks of the links: one macro-flow per channel.

All edges of a channel advance together, so a channel is one flow; its volume is what passes one edge and a link's coefficient says
how often the channel crosses it. Channels share a collective equally. The cap of a flow is its volume over the time in which the
bytes of the estimate move, so a collective that is alone takes exactly the estimate; links too thin for that (trunks of the
fabric that the library does not know) make it longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.nccl.profiles import Estimate

Capacities = Callable[[NDArray[np.int64]], NDArray[np.float64]]
LinkPath = tuple[tuple[int, float], ...]
"""(directed link id, bytes on that link per byte that passes an edge)"""


@dataclass(frozen=True, slots=True)
class Lane:
    """One channel, or several that cross the same links."""

    path: LinkPath
    share: float
    """of the collective's volume"""
    cap: float = math.inf
    """rate limit besides the links [B/s]"""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The channels of a group for one algorithm; their shares add up to one."""

    lanes: tuple[Lane, ...]
    slowest: float
    """seconds that the links need per byte of volume, all lanes at once [s/B]"""


def lanes(channels: Iterable[tuple[LinkPath, float]], capacities: Capacities) -> Lanes:
    """Lanes of equal channels, given as (path, rate limit); channels over the same links become one lane.

    Args:
        channels: one entry per channel.
        capacities: of links by number [B/s].
    """
    counts: dict[LinkPath, int] = {}
    caps: dict[LinkPath, float] = {}
    total = 0
    for path, cap in channels:
        counts[path] = counts.get(path, 0) + 1
        caps[path] = min(cap, caps.get(path, math.inf))
        total += 1
    found = tuple(Lane(path, count / total, caps[path] * count) for path, count in counts.items())
    load: dict[int, float] = {}
    for lane in found:
        for link, coefficient in lane.path:
            load[link] = load.get(link, 0.0) + coefficient * lane.share
    links, amounts = np.fromiter(load, dtype=np.int64), np.fromiter(load.values(), dtype=np.float64)
    slowest = float((amounts / capacities(links)).max(initial=0.0))
    return Lanes(found, max([slowest, *(lane.share / lane.cap for lane in found)]))


def volume(algorithm: str, kind: str, ranks: int, size: float) -> float:
    """Bytes that pass each edge, all channels together [B]; for trees and NVLS the collective's size."""
    if algorithm not in ("ring", "pat"):
        return float(size)
    match kind:
        case "all_reduce" | "barrier":
            return 2 * (ranks - 1) / ranks * size
        case "all_gather" | "reduce_scatter":
            return (ranks - 1) / ranks * size
        case _:
            return float(size)


def flows(over: Lanes, amount: float, transfer: float) -> tuple[Flow, ...]:
    """The flows of `amount` bytes (see `volume`) that take `transfer` seconds on their own, if the links allow."""
    if not amount:
        return ()
    time = max(transfer, amount * over.slowest)
    return tuple(Flow(lane.path, amount * lane.share, amount * lane.share / time) for lane in over.lanes)


def cost(one: Estimate, kind: str, ranks: int, over: Lanes) -> CollectiveCost:
    """The cost of an estimated collective over the links of `over`."""
    amount = volume(one.choice.algorithm, kind, ranks, one.choice.size)
    return CollectiveCost(one.latency, flows(over, amount, one.transfer), one.choice.algorithm, one.choice.protocol)
