"""Paths: which links a transfer between two vertices occupies.

GPUs never relay PCIe traffic. NVLink (direct, through a switch, or through one neighbour GPU) is preferred over PCIe,
a short PCIe path over a long one. Without peer-to-peer the bytes are staged in the memory of the target's host.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.links import Link, LinkKind

if TYPE_CHECKING:
    import networkx


TIER_NVLINK, TIER_NEIGHBOUR, TIER_SWITCH, TIER_HOST, TIER_SOCKET, TIER_NETWORK = range(6)
"""What a path crosses at worst: NVLink only, NVLink through another GPU, PCIe switches, a CPU, two CPUs, a network"""

RELAY_SHARE = 0.83
"""what a GPU that forwards for its neighbours moves of one NVLink; measured on five GPUs of a V100 cube mesh (VIA-Research/vTrain)"""

SHARED_MEMORY_RATE = 10e9
"""one GPU to GPU stream staged in host memory [B/s]; NVIDIA/nccl-tests issue 74: 19-21 GB/s both ways together, PCIe 4.0, P2P disabled"""


class Route(NamedTuple):
    """The directed links a transfer occupies.

    `coefficients[i]` is the number of bytes on `links[i]` per byte transferred; a link appears once.
    """

    links: tuple[int, ...]
    coefficients: tuple[float, ...]
    latency: float
    """sum over hops [s]"""
    tier: int = TIER_NVLINK
    cap: float = math.inf
    """rate limit of one stream besides the links [B/s]"""

    def bottleneck(self, capacity: Callable[[int], float]) -> float:
        """Rate of one transfer that has the links to itself [B/s]."""
        rates = [capacity(link) / a for link, a in zip(self.links, self.coefficients, strict=True)]
        return min([self.cap, *rates])

    def up_to(self, end: int) -> Route:
        """The route without its links from number `end` on."""
        if all(link < end for link in self.links):
            return self
        kept = [(link, load) for link, load in zip(self.links, self.coefficients, strict=True) if link < end]
        return Route(tuple(link for link, _ in kept), tuple(load for _, load in kept), self.latency, self.tier, self.cap)


NOWHERE = Route((), (), 0.0)
"""the route from a device to itself"""


def join(routes: Iterable[Route]) -> Route:
    """One route out of consecutive pieces; a link crossed twice gets both coefficients."""
    pieces = [route for route in routes if route.links]
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return NOWHERE
    links = tuple(link for route in pieces for link in route.links)
    if len(set(links)) == len(links):
        coefficients = tuple(a for route in pieces for a in route.coefficients)
        latency = math.fsum([route.latency for route in pieces])
        return Route(links, coefficients, latency, max([route.tier for route in pieces]), min([route.cap for route in pieces]))
    load: dict[int, float] = {}
    for route in pieces:
        for link, coefficient in zip(route.links, route.coefficients, strict=True):
            load[link] = load.get(link, 0.0) + coefficient
    return Route(
        tuple(load),
        tuple(load.values()),
        math.fsum(route.latency for route in pieces),
        max((route.tier for route in pieces), default=TIER_NVLINK),
        min((route.cap for route in pieces), default=math.inf),
    )


def shift(route: Route, offset: int) -> Route:
    """The same route with every link id moved by `offset`."""
    if not offset or not route.links:
        return route
    return Route(tuple([link + offset for link in route.links]), route.coefficients, route.latency, route.tier, route.cap)


class Wire(TypedDict):
    """A directed edge: the number of its link, the link, and its kind."""

    id: int
    link: Link
    link_kind: LinkKind


class PathFinder:
    """Shortest allowed paths on the graph of one node (or of one network of switches).

    `kind`: vertex -> gpu | nvswitch | pcie | cpu | memory | nic | switch. `adjacent`: vertex -> neighbour -> what joins them.
    """

    def __init__(self, kind: dict[str, str], adjacent: dict[str, dict[str, Wire]]) -> None:
        self.kind = kind
        self.adjacent = adjacent
        self._order = {vertex: number for number, vertex in enumerate(kind)}
        self._capacities: dict[int, float] = {data["id"]: data["link"].capacity for _, _, data in self.edges()}
        self._units: dict[int, float] = {data["id"]: data["link_kind"].capacity for _, _, data in self.edges()}

    def edges(self) -> Iterator[tuple[str, str, Wire]]:
        """Every directed edge: source, target, what joins them."""
        for source, neighbours in self.adjacent.items():
            for target, data in neighbours.items():
                yield source, target, data

    @cached_property
    def graph(self) -> networkx.DiGraph[str]:
        """The same as a networkx graph, for its algorithms and for pictures: vertices carry ``kind``, edges what `Wire` has."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for vertex, kind in self.kind.items():
            graph.add_node(vertex, kind=kind)
        for source, target, data in self.edges():
            graph.add_edge(source, target, **data)
        return graph

    def path(self, source: str, target: str, media: tuple[str, ...], relays: tuple[str, ...]) -> list[str] | None:
        """Fewest hops, then widest, over edges of `media` and inner vertices of the `relays` kinds; None if there is none."""
        queue: list[tuple[int, float, tuple[int, ...], list[str]]] = [(0, -math.inf, (), [source])]
        done: set[str] = set()
        while queue:
            hops, width, order, path = heapq.heappop(queue)
            vertex = path[-1]
            if vertex == target:
                return path
            if vertex in done or (hops and self.kind[vertex] not in relays):
                continue
            done.add(vertex)
            for neighbour, data in self.adjacent[vertex].items():
                if neighbour not in done and data["link_kind"].medium in media:
                    narrow = max(width, -data["link"].capacity)
                    heapq.heappush(queue, (hops + 1, narrow, (*order, self._order[neighbour]), [*path, neighbour]))
        return None

    def along(self, path: list[str], tier: int, overhead: bool = False, cap: float = math.inf) -> Route:
        """The route over the vertices of `path`; `overhead` charges the packet overhead of a host bridge."""
        load: dict[int, float] = {}
        latency = 0.0
        for source, target in pairwise(path):
            data = self.adjacent[source][target]
            link: Link = data["link"]
            kind: LinkKind = data["link_kind"]
            load[data["id"]] = load.get(data["id"], 0.0) + (kind.overhead if overhead else 1.0)
            latency += link.latency
        return Route(tuple(load), tuple(load.values()), latency, tier, cap)

    def nvlink(self, source: str, target: str) -> Route | None:
        """Direct NVLink or through NVSwitches."""
        path = self.path(source, target, ("nvlink",), ("nvswitch",))
        return self.along(path, TIER_NVLINK) if path else None

    def neighbours(self, source: str, target: str, among: Iterable[str]) -> list[Route]:
        """NVLink routes through exactly one of the GPUs `among`, widest first, then in the order given."""
        detours: list[tuple[float, int, Route]] = []
        for number, relay in enumerate(among):
            if relay in (source, target):
                continue
            first, second = self.nvlink(source, relay), self.nvlink(relay, target)
            if first and second:
                route = join((first, second))
                cap = RELAY_SHARE * min(self.unit(link) for link in route.links)
                route = Route(route.links, route.coefficients, route.latency, TIER_NEIGHBOUR, cap)
                detours.append((-route.bottleneck(self.capacity), number, route))
        return [route for _, _, route in sorted(detours, key=lambda item: item[:2])]

    def host(self, source: str, target: str, staged: bool) -> Route | None:
        """Over PCIe, CPUs and sockets; `staged` through the memory of the target's CPU."""
        path = self.path(source, target, ("pcie", "socket"), ("pcie", "cpu"))
        if path is None:
            return None
        tier = self.tier(path)
        gpu_to_gpu = self.kind[source] == self.kind[target] == "gpu"
        if not staged:
            return self.along(path, tier, overhead=gpu_to_gpu and tier >= TIER_HOST)
        detour = self._detour(source, target)
        if detour is None:
            return self.along(path, max(tier, TIER_HOST), cap=SHARED_MEMORY_RATE if gpu_to_gpu else math.inf)
        return self.along(detour, max(self.tier(detour), TIER_HOST), cap=SHARED_MEMORY_RATE if gpu_to_gpu else math.inf)

    def network(self, source: str, target: str) -> Route | None:
        """Through network switches and NICs of an explicit graph."""
        path = self.path(source, target, ("network",), ("switch", "nic"))
        return self.along(path, TIER_NETWORK) if path else None

    def capacity(self, link: int) -> float:
        """Capacity of edge `link` of this graph [B/s]."""
        return self._capacities[link]

    def unit(self, link: int) -> float:
        """Capacity of one of the parallel links that make up edge `link` [B/s]."""
        return self._units[link]

    def tier(self, path: list[str]) -> int:
        """What a host path crosses at worst."""
        if any(self.adjacent[a][b]["link_kind"].medium == "socket" for a, b in pairwise(path)):
            return TIER_SOCKET
        return TIER_HOST if any(self.kind[vertex] == "cpu" for vertex in path) else TIER_SWITCH

    def _detour(self, source: str, target: str) -> list[str] | None:
        """Source to the host memory nearest the target (the receiver owns the buffer) and on to the target."""
        end = target if self.kind[target] == "gpu" else source
        best: tuple[int, list[str]] | None = None
        for vertex, kind in self.kind.items():
            if kind != "memory":
                continue
            there = self.path(source, vertex, ("pcie", "socket", "memory"), ("pcie", "cpu"))
            back = self.path(vertex, target, ("pcie", "socket", "memory"), ("pcie", "cpu"))
            if there and back:
                near = len(back if end == target else there)
                if best is None or near < best[0]:
                    best = (near, [*there, *back[1:]])
        return best[1] if best else None


def unreachable(source: str, target: str) -> TopologyError:
    """The error for two devices without a path."""
    repair = "connect them with an edge, or give the nodes NICs and a fabric"
    return TopologyError(Finding(f"no path from {source} to {target}", "cluster", f"{source} -> {target}", repair))
