"""Transfers that no library tunes: a GPU and its own host, exchanges between pairs of GPUs, traffic of other jobs.

Copies over PCIe into host memory, transfers to and from drives, and work of the CPU in host memory cross the links of the machine's
graph (GPU, PCIe switch, CPU, host memory), so they contend with each other, with staged transfers and with the NIC behind the same
switch. Host memory is one resource per socket that reads and writes share; pinned buffers and the processes of a GPU are taken to
be on the socket nearest to it.

All pairs of an exchange (all_to_all, gather, scatter, sendrecv) move equal shares at the same time, so one number tells how far it
is; a link's coefficient is the number of pairs that cross it. Its busiest link is busy from start to end, as with a good schedule
of the pairs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple
from weakref import WeakKeyDictionary

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.routes import TIER_HOST, Route, shift
from parsim.hardware.flows import CollectiveCost, Flow

# a GPU and its host


COPIES = ("d2h", "h2d", "nvme_read", "nvme_write", "cpu_step")
"""device to host, host to device, drive to host memory, host memory to drive, and bytes that the CPU moves in host memory"""
LAUNCH = 10e-6
"""of an asynchronous copy or a drive request [s]; a cudaMemcpyAsync of a few bytes takes 8 to 12 us end to end (assumption)"""


def host_cost(cluster: Cluster, gpu: int, kind: str, size: int) -> CollectiveCost:
    """Cost of one of `COPIES` of `size` bytes for `gpu`.

    Raises:
        TopologyError: the machine has no host memory, or no drive.
    """
    node = cluster.node_of(gpu)
    route = shift(host_route(cluster.machine(node), cluster.local(gpu), kind), cluster.first_link(node))
    latency = LAUNCH + route.latency
    if not size:
        return CollectiveCost(latency, (), "copy", "none")
    path = tuple(zip(route.links, route.coefficients, strict=True))
    return CollectiveCost(latency, (Flow(path, float(size), route.bottleneck(cluster.capacity)),), "copy", "none")


def host_route(machine: Node, gpu: int, kind: str) -> Route:
    """The links of a copy, in local ids of the machine.

    Raises:
        TopologyError: there is no way from the GPU to host memory, or from there to a drive.
    """
    key = (gpu, kind)
    if (known := machine.host_routes.get(key)) is None:
        known = machine.host_routes[key] = _search(machine, machine.gpu_names[gpu], kind)
    return known


def _search(machine: Node, gpu: str, kind: str) -> Route:
    out = _nearest(machine, gpu, "memory")
    if out is None:
        text = f"{machine.name} has no path from {gpu} to host memory: nothing can be offloaded"
        raise TopologyError(Finding(text, "cluster.topology", None, "connect the GPU to a CPU with a PCIe edge"))
    match kind:
        case "d2h":
            vertices = out
        case "h2d":
            vertices = out[::-1]
        case "cpu_step":
            vertices = out[-2:]
        case _:
            drive = _nearest(machine, out[-1], "nvme")
            if drive is None:
                raise TopologyError(Finding(f"{machine.name} has no drive near {gpu}", "cluster.topology", None, "offload to cpu"))
            vertices = drive if kind == "nvme_write" else drive[::-1]
    return machine.finder.along(vertices, TIER_HOST)


def _nearest(machine: Node, source: str, kind: str) -> list[str] | None:
    """The shortest path to a vertex of a kind: host memory beside the nearest CPU."""
    ends = [vertex for vertex, other in machine.finder.kind.items() if other == kind]
    media = ("pcie", "socket", "memory", "storage")
    paths = [path for end in ends if (path := machine.finder.path(source, end, media, ("pcie", "cpu"))) is not None]
    return min(paths, key=len) if paths else None


# exchanges between pairs


class EqualMessages(NamedTuple):
    """A set of equal messages between pairs."""

    path: tuple[tuple[int, float], ...]
    """(directed link, pairs that cross it)"""
    rate: float
    """bytes per second of every pair, all at once"""
    latency: float
    """longest route [s]"""
    between_machines: bool


_EXCHANGES: WeakKeyDictionary[Cluster, dict[tuple[str, tuple[int, ...]], EqualMessages]] = WeakKeyDictionary()
"""by kind and group"""


def exchange(cluster: Cluster, kind: str, group: tuple[int, ...]) -> EqualMessages:
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


def between(cluster: Cluster, pairs: Iterable[tuple[int, int]]) -> EqualMessages:
    """The exchange of equal messages between these pairs of GPUs.

    Raises:
        TopologyError: GPUs that cannot reach each other.
    """
    return _count(cluster, pairs)


def _pairs(kind: str, group: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    root = group[0]
    if kind == "gather":
        return ((other, root) for other in group[1:])
    if kind == "scatter":
        return ((root, other) for other in group[1:])
    if kind == "sendrecv":
        return zip(group, (*group[1:], root), strict=True)
    return ((a, b) for a in group for b in group if a != b)


def _count(cluster: Cluster, pairs: Iterable[tuple[int, int]]) -> EqualMessages:
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
    return EqualMessages(tuple(load.items()), min(rate, cap), farthest, bool(across))


# traffic of other jobs


SHORTEST_PERIOD = 1e-6
"""of repeated transfers [s]"""


@dataclass(frozen=True, slots=True)
class Background:
    """A stream for as long as the program runs, always or in turns, or transfers that begin at set times, each a flow of weight 1."""

    path: tuple[tuple[int, float], ...]
    """(directed link id, bytes on that link per byte of progress)"""
    cap: float
    """highest rate [B/s], finite"""
    volume: float = inf
    """bytes of one transfer [B]; infinite: a stream"""
    begin: float = 0.0
    """when the first transfer begins, from the begin of the program on [s]"""
    every: float = 0.0
    """time from one begin to the next [s], longer if a transfer takes longer; 0: only one transfer, or a stream without end"""
    duty: float = 1.0
    """share of every period `every`, from `begin` on, in which a stream flows; 1: always"""

    @property
    def steady(self) -> bool:
        """Whether it is the same at any time."""
        return self.volume == inf and self.duty == 1


def background(
    cluster: Cluster,
    source: int,
    target: int,
    *,
    rate: float = inf,
    volume: float = inf,
    begin: float = 0.0,
    every: float = 0.0,
    duty: float = 1.0,
) -> Background:
    """What another job sends from GPU `source` to GPU `target`: at most `rate` [B/s], in all or every time `volume` [B].

    With `duty` a stream that flows in this share of every period only.

    Raises:
        TopologyError: unknown GPUs, the same GPU twice, or no path between them.
    """
    if source == target:
        raise TopologyError(Finding(f"gpu{source} sends to itself", "cluster.background", f"gpu{source}", "name two GPUs"))
    route = cluster.route(source, target)
    path = tuple(zip(route.links, route.coefficients, strict=True))
    return Background(path, min(rate, route.bottleneck(cluster.capacity)), volume, begin, every, duty)
