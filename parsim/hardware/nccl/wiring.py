"""Which routes a ring may take between two GPUs of a machine, or between a GPU and the network.

Candidates of an ordered pair: the direct NVLink (or the way through NVSwitches) alone, if there is one; else NVLink through
every other member of the group that is connected to both, and the shortest PCIe route. GPUs never relay PCIe traffic.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from typing import NamedTuple

from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.routes import NOWHERE, TIER_HOST, TIER_NEIGHBOUR, TIER_NVLINK, TIER_SWITCH, Route

INTEL_OVERHEAD = 1.2
"""PCIe bytes per byte between two GPUs through an Intel root complex: 64-byte packets (NVIDIA/nccl src/graph/topo.h, INTEL_P2P_OVERHEAD)"""

_LARGEST_CACHE = 64
_shared: OrderedDict[str, MachineGraph] = OrderedDict()
"""by fingerprint of the machine"""


class CandidateRoute(NamedTuple):
    """A route that the hop between two members of a group may take; members are positions in the group."""

    source: int
    target: int
    route: Route


class MachineGraph:
    """A machine's graph as the channel search sees it; routes are in local link ids and kept.

    `capacity` is what a link really moves, `planned` what the library takes it for [B/s]; it does not know host memory.
    Link ids from `outside` on are the wires between ports and network: ``outside + 2 * port`` leads out, the next one in.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.kind = node.finder.kind
        self.outside = len(node.links)
        self.capacity = list(node.capacities)
        self.planned = [math.inf] * self.outside
        self.medium = [""] * self.outside
        for _, _, data in node.finder.edges():
            kind, link = data["link_kind"], data["link"]
            self.medium[data["id"]] = kind.medium
            if kind.medium != "memory":
                self.planned[data["id"]] = link.capacity * (kind.planning / kind.capacity)
        self._order = {vertex: number for number, vertex in enumerate(node.finder.kind)}
        self._direct: dict[tuple[int, int], Route | None] = {}
        self._host: dict[tuple[str, str], Route | None] = {}
        self._paths: dict[str, dict[str, list[str]]] = {}
        self._switches = [self._switch(gpu) for gpu in range(node.gpus)]

    def _switch(self, gpu: int) -> str:
        """The NVSwitch a GPU is plugged into; empty if none."""
        near = self.node.finder.adjacent[self.node.gpu_names[gpu]].items()
        return next((other for other, data in near if self.kind[other] == "nvswitch" and data["link_kind"].medium == "nvlink"), "")

    def switch_order(self, group: tuple[int, ...]) -> tuple[int, ...] | None:
        """The GPUs in index order, switch by switch, if all of them meet through NVSwitches only; else None."""
        names = self.node.gpu_names
        if any(not self._switches[gpu] for gpu in group):
            return None
        order = sorted(group, key=lambda gpu: (self._order[self._switches[gpu]], gpu))
        for a, b in zip(order, (*order[1:], order[0]), strict=True):
            edge = self.node.finder.adjacent[names[a]].get(names[b])
            if a != b and ((edge and self.medium[edge["id"]] == "nvlink") or not self.direct(a, b)):
                return None
        return tuple(order)

    def direct(self, a: int, b: int) -> Route | None:
        """NVLink from GPU to GPU: an edge, or through NVSwitches."""
        if (a, b) not in self._direct:
            source, target = self.node.gpu_names[a], self.node.gpu_names[b]
            edge = self.node.finder.adjacent[source].get(target)
            way = None
            if edge and edge["link_kind"].medium == "nvlink":
                way = self.node.finder.along([source, target], TIER_NVLINK)
            elif self._switches[a] and self._switches[b]:
                way = self.node.finder.nvlink(source, target)
            self._direct[a, b] = way
        return self._direct[a, b]

    def between(self, a: int, b: int, group: tuple[int, ...]) -> list[Route]:
        """Candidate routes between two GPUs of `group`, best tier first."""
        direct = self.direct(a, b)
        if direct is not None:
            return [direct]
        relayed = []
        for relay in group:
            first, second = (self.direct(a, relay), self.direct(relay, b)) if relay not in (a, b) else (None, None)
            if first and second:
                links, latency = first.links + second.links, first.latency + second.latency
                relayed.append(Route(links, first.coefficients + second.coefficients, latency, TIER_NEIGHBOUR))
        host = self.host(self.node.gpu_names[a], self.node.gpu_names[b])
        return relayed if host is None else [*relayed, host]

    def host(self, source: str, target: str) -> Route | None:
        """Over PCIe, CPUs and sockets; through host memory where the machine has no peer-to-peer."""
        if source == target:
            return NOWHERE
        if (source, target) not in self._host:
            self._host[source, target] = self._find_host(source, target)
        return self._host[source, target]

    def _find_host(self, source: str, target: str) -> Route | None:
        finder = self.node.finder
        path = self.paths(source).get(target)
        if path is None or not self.node.p2p:
            return self.node.route(source, target)
        tier = finder.tier(path)
        through = tier >= TIER_HOST and self.kind[source] == self.kind[target] == "gpu"
        route = finder.along(path, tier, overhead=through)
        if not through or self.node.cpu != "intel":
            return route
        loads = zip(route.links, route.coefficients, strict=True)
        heavy = tuple(max(load, INTEL_OVERHEAD) if self.medium[link] == "pcie" else load for link, load in loads)
        return Route(route.links, heavy, route.latency, tier, route.cap)

    def paths(self, source: str) -> dict[str, list[str]]:
        """Host paths from a vertex to every other: fewest hops, then widest, then in the order of the file."""
        if source not in self._paths:
            reached: dict[str, list[str]] = {}
            queue: list[tuple[int, float, tuple[int, ...], list[str]]] = [(0, -math.inf, (), [source])]
            adjacent = self.node.finder.adjacent
            while queue:
                hops, width, order, path = heapq.heappop(queue)
                vertex = path[-1]
                if vertex in reached:
                    continue
                reached[vertex] = path
                if hops and self.kind[vertex] not in ("pcie", "cpu"):
                    continue
                for neighbour, data in adjacent[vertex].items():
                    if neighbour not in reached and data["link_kind"].medium in ("pcie", "socket"):
                        narrow = max(width, -data["link"].capacity)
                        heapq.heappush(queue, (hops + 1, narrow, (*order, self._order[neighbour]), [*path, neighbour]))
            self._paths[source] = reached
        return self._paths[source]

    def socket(self, gpu: int) -> str:
        """The CPU vertex nearest to a GPU; empty if there is none."""
        above = self._above(gpu)
        return above[-1] if above else ""

    def _above(self, gpu: int) -> list[str]:
        """Switches above a GPU, bottom up, and its CPU."""
        paths = self.paths(self.node.gpu_names[gpu])
        cpus = [path for vertex, path in paths.items() if self.kind[vertex] == "cpu"]
        return min(cpus, key=lambda path: (len(path), self._order[path[-1]]))[1:] if cpus else []

    def depth_first(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """The GPUs by socket, then root port or switch, then index: no order crosses a tree edge less often."""
        if "cpu" not in self.kind.values():
            return self.node.pcie_order(group)
        branch = {gpu: tuple(self._order[vertex] for vertex in reversed(self._above(gpu))) for gpu in group}
        return tuple(sorted(group, key=lambda gpu: (branch[gpu], gpu)))

    # ports

    def to_port(self, gpu: int, port: int) -> Route | None:
        """From a GPU out to the network, with the wire of the port."""
        inner = self.host(self.node.gpu_names[gpu], self.node.ports[port])
        return self.wired(inner, port, 0) if inner else None

    def from_port(self, port: int, gpu: int) -> Route | None:
        """From the network in to a GPU, with the wire of the port."""
        inner = self.host(self.node.ports[port], self.node.gpu_names[gpu])
        return self.wired(inner, port, 1) if inner else None

    def wired(self, inner: Route, port: int, inwards: int) -> Route:
        """`inner` with the port's wire: link ``outside + 2 * port`` (+ 1 for inwards) behind, or before, its links."""
        wire = (self.outside + 2 * port + inwards,)
        links = wire + inner.links if inwards else inner.links + wire
        coefficients = (1.0, *inner.coefficients) if inwards else (*inner.coefficients, 1.0)
        tier = inner.tier if not inner.links else max(inner.tier, TIER_SWITCH)
        return Route(links, coefficients, inner.latency, tier, inner.cap)


def wiring(node: Node) -> MachineGraph:
    """The wiring of a machine; equal machines share one."""
    known = _shared.get(node.fingerprint)
    if known is None:
        known = _shared[node.fingerprint] = MachineGraph(node)
        if len(_shared) > _LARGEST_CACHE:
            _shared.popitem(last=False)
    return known
