"""The inside of one machine: a small graph, kept once however many machines of the kind there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from parsim.hardware.device import Device
from parsim.hardware.fabric.links import Link, LinkKind
from parsim.hardware.fabric.routes import NOWHERE, TIER_HOST, TIER_SWITCH, PathFinder, Route, Wire, join, unreachable

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a node or of an explicit graph, before link ids are given."""

    source: str
    target: str
    kind: LinkKind
    count: float = 1
    both_ways: bool = True


def wire(vertices: dict[str, str], edges: list[Edge]) -> tuple[list[Link], list[str], dict[str, dict[str, Wire]]]:
    """Links numbered in order, what each connects, e.g. ``gpu->nvswitch``, and vertex -> neighbour -> what joins them.

    An edge is one link each way, or one link for both ways where its kind is half duplex.
    """
    links: list[Link] = []
    classes: list[str] = []
    adjacent: dict[str, dict[str, Wire]] = {vertex: {} for vertex in vertices}
    for edge in edges:
        half = edge.kind.duplex == "half"
        arrow = "<->" if half else "->"
        ends = [(edge.source, edge.target)] + ([(edge.target, edge.source)] if edge.both_ways else [])
        for number, (source, target) in enumerate(ends):
            if not (half and number):
                name = f"{source}{arrow}{target}"
                links.append(Link(edge.kind.name, edge.kind.capacity * edge.count, edge.kind.latency, name, edge.kind.duplex))
                classes.append(f"{vertices[source]}{arrow}{vertices[target]}")
            adjacent[source][target] = {"id": len(links) - 1, "link": links[-1], "link_kind": edge.kind}
    return links, classes, adjacent


class Node:
    """A kind of machine: GPUs, switches, CPUs and NICs as a directed graph with link ids from 0.

    `ports` are the vertices that plug into the fabric (NICs, or GPUs with network ports of their own). Routes are in
    local link ids and cached.
    """

    def __init__(
        self,
        name: str,
        vertices: dict[str, str],
        edges: list[Edge],
        devices: tuple[Device, ...],
        ports: tuple[str, ...],
        p2p: bool,
        cpu: str = "",
        host_memory: int | None = None,
    ) -> None:
        self.name = name
        self.devices = devices
        self.ports = ports
        self.p2p = p2p
        """whether GPUs reach each other and the NICs over PCIe without staging in host memory"""
        self.cpu = cpu or next((edge.kind.vendor for edge in edges if edge.kind.vendor), "")
        """maker of the CPUs (intel | amd | ibm | arm), by default that of the socket link; empty if unknown"""
        self.host_memory = host_memory
        """memory of the machine's CPUs [B]; None if the topology does not say"""
        self.overhead_power: float | None = None
        """what the machine draws beside its GPUs while it trains [W]; None if the topology does not say"""
        self.links, self.classes, adjacent = wire(vertices, edges)
        self.capacities = [link.capacity for link in self.links]
        self.gpu_names = tuple(vertex for vertex, kind in vertices.items() if kind == "gpu")
        self.gpus = len(self.gpu_names)
        self.finder = PathFinder(vertices, adjacent)
        self.host_routes: dict[tuple[int, str], Route] = {}
        """ways between a GPU and its host, filled by `parsim.hardware.transfers`"""
        self._routes: dict[tuple[str, str], Route] = {}
        self._distances: dict[tuple[int, int], float] = {}
        self._exits: dict[tuple[int, int | None], tuple[int, Route]] = {}

    @property
    def graph(self) -> networkx.DiGraph[str]:
        """The machine as networkx has it; see `PathFinder.graph`."""
        return self.finder.graph

    def route(self, source: str, target: str) -> Route | None:
        """Links from vertex `source` to vertex `target` inside the machine, or None."""
        key = (source, target)
        known = self._routes.get(key)
        if known is None:
            if source == target:
                known = NOWHERE
            else:
                search = self._search(source, target)
                if search is None:
                    return None
                known = search
            self._routes[key] = known
        return known

    def _search(self, source: str, target: str) -> Route | None:
        finder = self.finder
        if direct := finder.nvlink(source, target):
            return direct
        if host := finder.host(source, target, staged=not self.p2p):
            return host
        return finder.network(source, target)

    def between(self, a: int, b: int) -> Route | None:
        """Route between two GPUs by local index."""
        return self.route(self.gpu_names[a], self.gpu_names[b])

    def to_port(self, gpu: int, port: int) -> Route:
        """From a GPU to a port of the machine.

        Raises:
            TopologyError: the two are not connected.
        """
        return self._need(self.gpu_names[gpu], self.ports[port])

    def from_port(self, port: int, gpu: int) -> Route:
        """From a port of the machine to a GPU.

        Raises:
            TopologyError: the two are not connected.
        """
        return self._need(self.ports[port], self.gpu_names[gpu])

    def _need(self, source: str, target: str) -> Route:
        route = self.route(source, target)
        if route is None:
            raise unreachable(source, target)
        return route

    def joins(self, gpus: Sequence[int]) -> bool:
        """Whether routes inside the machine lead from the first of these GPUs to all others."""
        return all(self.between(gpus[0], other) is not None for other in gpus[1:])

    @cached_property
    def fingerprint(self) -> str:
        """The same for machines in which every route is the same."""
        edges = tuple(
            (source, target, data["id"], data["link"], data["link_kind"].medium, data["link_kind"].planning / data["link_kind"].capacity,
             data["link_kind"].overhead)
            for source, target, data in self.finder.edges()
        )  # fmt: skip
        return repr((tuple(self.finder.kind.items()), edges, self.ports, self.p2p, self.cpu))

    @cached_property
    def owned_ports(self) -> tuple[tuple[int, ...], ...]:
        """Per GPU: the ports it uses, nearest first."""
        return self.owned(tuple(range(len(self.ports))))

    def owned(self, ports: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Per GPU: which of `ports` it uses, nearest first.

        The nearest port by path is taken (same switch, same CPU, other socket). Where t GPUs share the same m nearest
        ports, the q-th of them owns ports q, q + t, ...; with fewer ports than GPUs, port q mod m.
        """
        nearest = [self._nearest_ports(gpu, ports) for gpu in range(self.gpus)]
        owned: list[tuple[int, ...]] = []
        for gpu, near in enumerate(nearest):
            tied = [other for other, theirs in enumerate(nearest) if theirs == near]
            rank, gpus = tied.index(gpu), len(tied)
            owned.append(near[rank::gpus] if len(near) >= gpus else (near[rank % len(near)],) if near else ())
        return tuple(owned)

    def way_out(self, local: int, rail: int | None) -> tuple[int, Route]:
        """The port by which a GPU's bytes leave, and the route to it.

        Bytes that must land on `rail` leave by that port if the GPU owns it, or hop over NVLink to a GPU nearer to it (PXN), if
        possible to its owner; else, and without a rail, by the GPU's first port. A port beyond a CPU is also reached over NVLink
        where that is shorter.
        """
        key = (local, rail)
        if key not in self._exits:
            self._exits[key] = self._way_out(local, rail)
        return self._exits[key]

    def _way_out(self, local: int, rail: int | None) -> tuple[int, Route]:
        own = self.owned_ports[local]
        far = self.distance(local, own[0]) >= 100 * TIER_HOST
        wanted = own[0] if rail is None or rail >= len(self.ports) else rail
        if wanted not in own or far:
            near = self.nearest_gpus(wanted, range(self.gpus))
            # owners first: where several GPUs are equally near, the first would otherwise forward for all rails of its switch
            for owner in sorted(near, key=lambda gpu: wanted not in self.owned_ports[gpu]):
                hop = self.finder.nvlink(self.gpu_names[local], self.gpu_names[owner]) if owner != local else None
                if hop is not None and self.distance(owner, wanted) < self.distance(local, wanted):
                    return wanted, join((hop, self.to_port(owner, wanted)))
        port = wanted if wanted in own else own[0]
        return port, self.to_port(local, port)

    def distance(self, gpu: int, port: int) -> float:
        """How far a port is from a GPU: 100 x the worst thing between them (switch, CPU, socket), plus switches on the way."""
        name = self.gpu_names[gpu]
        if name == self.ports[port]:
            return 0.0
        key = (gpu, port)
        if key not in self._distances:
            path = self.finder.path(name, self.ports[port], ("pcie", "socket", "network"), ("pcie", "cpu"))
            if path is None:
                self._distances[key] = math.inf
            else:
                tier = self.finder.tier(path)
                switches = sum(self.finder.kind[vertex] == "pcie" for vertex in path)
                self._distances[key] = tier * 100.0 + (switches if tier == TIER_SWITCH else 0)
        return self._distances[key]

    def nearest_gpus(self, port: int, among: Iterable[int]) -> tuple[int, ...]:
        """The GPUs of `among` that are nearest to a port."""
        far = {gpu: self.distance(gpu, port) for gpu in among}
        best = min(far.values(), default=math.inf)
        return tuple(gpu for gpu, distance in far.items() if distance == best < math.inf)

    def _nearest_ports(self, gpu: int, ports: tuple[int, ...]) -> tuple[int, ...]:
        far = {port: self.distance(gpu, port) for port in ports}
        best = min(far.values(), default=math.inf)
        return tuple(port for port, distance in far.items() if distance == best < math.inf)

    def pcie_order(self, gpus: tuple[int, ...]) -> tuple[int, ...]:
        """The GPUs in depth-first order of the PCIe tree: by socket, then root port or switch, then index.

        No order crosses a tree edge less often in each direction.
        """
        return tuple(sorted(gpus, key=lambda gpu: (*self._branch(gpu), gpu)))

    def _branch(self, gpu: int) -> tuple[int, ...]:
        """First-seen numbers of the CPU and the switches above a GPU, top down."""
        order = {vertex: number for number, vertex in enumerate(self.finder.kind)}
        above: list[int] = []
        vertex, seen = self.gpu_names[gpu], {self.gpu_names[gpu]}
        while True:
            parents = [
                other
                for other, data in self.finder.adjacent[vertex].items()
                if other not in seen and self.finder.kind[other] in ("pcie", "cpu") and data["link_kind"].medium == "pcie"
            ]
            if not parents:
                return tuple(reversed(above))
            best = min(parents, key=lambda other: (self._depth(other), order[other]))
            above.append(order[best])
            if self.finder.kind[best] == "cpu":
                return tuple(reversed(above))
            vertex = best
            seen.add(best)

    def _depth(self, vertex: str) -> int:
        """Hops to the nearest CPU."""
        if self.finder.kind[vertex] == "cpu":
            return 0
        cpus = [name for name, kind in self.finder.kind.items() if kind == "cpu"]
        paths = (self.finder.path(vertex, cpu, ("pcie",), ("pcie",)) for cpu in cpus)
        return min((len(path) for path in paths if path), default=99)
