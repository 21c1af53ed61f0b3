"""Exchanges between pairs of GPUs: all_to_all, gather, scatter and sendrecv as one flow.

All pairs move equal shares at the same time, so one number tells how far the exchange is; a link's coefficient is the
number of pairs that cross it. Its busiest link is busy from start to end, as with a good schedule of the pairs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from parsim.errors import Finding, TopologyError
from parsim.hardware.cluster import Cluster
from parsim.hardware.routes import Route


@dataclass(frozen=True, slots=True)
class Exchange:
    """A set of equal messages between pairs."""

    path: tuple[tuple[int, float], ...]
    """(directed link, pairs that cross it)"""
    rate: float
    """bytes per second of every pair, all at once"""
    latency: float
    """longest route [s]"""
    between_machines: bool


_EXCHANGES: WeakKeyDictionary[Cluster, dict[tuple[str, tuple[int, ...]], Exchange]] = WeakKeyDictionary()
"""by kind and group"""


def exchange(cluster: Cluster, kind: str, group: tuple[int, ...]) -> Exchange:
    """The exchange of a collective; the root of gather and scatter is the first member. Kept with the cluster.

    Raises:
        TopologyError: a GPU twice in the group, or members that cannot reach each other.
    """
    known = _EXCHANGES.setdefault(cluster, {})
    key = (kind, group)
    if key not in known:
        if len(set(group)) != len(group):
            raise TopologyError(Finding(f"a GPU appears twice in the group {group}", "cluster.placement"))
        known[key] = _count(cluster, _pairs(kind, group))
    return known[key]


def _pairs(kind: str, group: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    root = group[0]
    if kind == "gather":
        return ((other, root) for other in group[1:])
    if kind == "scatter":
        return ((root, other) for other in group[1:])
    if kind == "sendrecv":
        return zip(group, (*group[1:], root), strict=True)
    return ((a, b) for a in group for b in group if a != b)


def _count(cluster: Cluster, pairs: Iterable[tuple[int, int]]) -> Exchange:
    """Count pieces of routes first, links second: many pairs share their ends. A machine has one route over the same links."""
    pieces: dict[tuple[int, tuple[int, ...]], Route] = {}
    crossings: Counter[tuple[int, tuple[int, ...]]] = Counter()
    across: Counter[tuple[int, int, int, int]] = Counter()
    ends: dict[tuple[int, int, int, int], float] = {}
    farthest = 0.0

    def cross(node: int, route: Route) -> None:
        pieces[node, route.links] = route
        crossings[node, route.links] += 1

    for a, b in pairs:
        source, target = cluster.node_of(a), cluster.node_of(b)
        if source == target and (inside := cluster.machine(source).between(cluster.local(a), cluster.local(b))) is not None:
            cross(source, inside)
            farthest = max(farthest, inside.latency)
            continue
        one = cluster.crossing(a, b)
        cross(source, one.out)
        cross(target, one.into)
        way = (source, one.port, target, one.landing)
        across[way] += 1
        ends[way] = max(ends.get(way, 0.0), one.out.latency + one.into.latency)
    load: dict[int, float] = {}
    cap = math.inf
    for (node, links), times in crossings.items():
        route, first = pieces[node, links], cluster.first_link(node)
        cap = min(cap, route.cap)
        for link, coefficient in zip(links, route.coefficients, strict=True):
            load[link + first] = load.get(link + first, 0.0) + coefficient * times
    for way, times in across.items():
        route = cluster.cross(*way)
        farthest = max(farthest, route.latency + ends[way])
        for link, coefficient in zip(route.links, route.coefficients, strict=True):
            load[link] = load.get(link, 0.0) + coefficient * times
    rate = min((cluster.capacity(link) / amount for link, amount in load.items()), default=math.inf)
    return Exchange(tuple(load.items()), min(rate, cap), farthest, bool(across))
