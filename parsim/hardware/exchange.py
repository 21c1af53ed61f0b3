"""Exchanges between pairs of GPUs: all_to_all, gather, scatter and sendrecv as one flow.

All pairs move equal shares at the same time, so one number tells how far the exchange is; a link's coefficient is the
number of pairs that cross it. Its busiest link is busy from start to end, as with a good schedule of the pairs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

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


def exchange(cluster: Cluster, kind: str, group: tuple[int, ...]) -> Exchange:
    """The exchange of a collective; the root of gather and scatter is the first member. Cached on the cluster.

    Raises:
        TopologyError: a GPU twice in the group, or members that cannot reach each other.
    """
    key = (kind, group)
    if key not in cluster.exchange_cache:
        if len(set(group)) != len(group):
            raise TopologyError(Finding(f"a GPU appears twice in the group {group}", "cluster.placement"))
        cluster.exchange_cache[key] = _count(cluster, _pairs(kind, group))
    return cluster.exchange_cache[key]


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
    """Count pieces of routes first, links second: many pairs share their ends."""
    pieces: dict[int, Route] = {}  # machines keep their routes, so a route is known by its identity
    local: Counter[tuple[int, int]] = Counter()
    across: Counter[tuple[int, int, int, int]] = Counter()
    ends: dict[tuple[int, int, int, int], float] = {}
    farthest = 0.0
    for a, b in pairs:
        source, target = cluster.node_of(a), cluster.node_of(b)
        if source == target and (inside := cluster.machine(source).between(cluster.local(a), cluster.local(b))) is not None:
            pieces[id(inside)] = inside
            local[source, id(inside)] += 1
            farthest = max(farthest, inside.latency)
            continue
        one = cluster.crossing(a, b)
        pieces[id(one.out)], pieces[id(one.into)] = one.out, one.into
        local[source, id(one.out)] += 1
        local[target, id(one.into)] += 1
        way = (source, one.port, target, one.landing)
        across[way] += 1
        ends[way] = max(ends.get(way, 0.0), one.out.latency + one.into.latency)
    load: dict[int, float] = {}
    cap = math.inf
    for (node, number), times in local.items():
        route, first = pieces[number], cluster.first_link(node)
        cap = min(cap, route.cap)
        for link, coefficient in zip(route.links, route.coefficients, strict=True):
            load[link + first] = load.get(link + first, 0.0) + coefficient * times
    for way, times in across.items():
        route = cluster.cross(*way)
        farthest = max(farthest, route.latency + ends[way])
        for link, coefficient in zip(route.links, route.coefficients, strict=True):
            load[link] = load.get(link, 0.0) + coefficient * times
    rate = min((cluster.capacity(link) / crossings for link, crossings in load.items()), default=math.inf)
    return Exchange(tuple(load.items()), min(rate, cap), farthest, bool(across))
