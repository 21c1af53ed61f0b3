"""Traffic of other jobs: it shares links with the job, and nothing waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from parsim.errors import Finding, TopologyError
from parsim.hardware.cluster import Cluster

SHORTEST_PERIOD = 1e-6
"""of repeated transfers [s]"""


@dataclass(frozen=True, slots=True)
class Background:
    """A stream for as long as the program runs, or transfers that begin at set times, each a flow of weight 1."""

    path: tuple[tuple[int, float], ...]
    """(directed link id, bytes on that link per byte of progress)"""
    cap: float
    """highest rate [B/s], finite"""
    volume: float = inf
    """bytes of one transfer [B]; infinite: a stream"""
    begin: float = 0.0
    """when the first transfer begins, from the begin of the program on [s]"""
    every: float = 0.0
    """time from one begin to the next [s], longer if a transfer takes longer; 0: only one transfer"""


def background(
    cluster: Cluster, source: int, target: int, *, rate: float = inf, volume: float = inf, begin: float = 0.0, every: float = 0.0
) -> Background:
    """What another job sends from GPU `source` to GPU `target`: at most `rate` [B/s], in all or every time `volume` [B].

    Raises:
        TopologyError: unknown GPUs, the same GPU twice, or no path between them.
    """
    if source == target:
        raise TopologyError(Finding(f"gpu{source} sends to itself", "cluster.background", f"gpu{source}", "name two GPUs"))
    route = cluster.route(source, target)
    path = tuple(zip(route.links, route.coefficients, strict=True))
    return Background(path, min(rate, route.bottleneck(cluster.capacity)), volume, begin, every)
