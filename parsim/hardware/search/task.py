"""One question to the channel search: which machine, which GPUs, which ports, which speeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from parsim.errors import Finding, TopologyError
from parsim.hardware.node import Node
from parsim.hardware.routes import RELAY_SHARE, TIER_NEIGHBOUR, TIER_NVLINK, Route, unreachable
from parsim.hardware.search.candidates import Wiring, wiring
from parsim.hardware.search.result import Found, Ring, make_ring
from parsim.hardware.search.speeds import distinct

Ports = float | Mapping[int, float] | None


@dataclass(frozen=True)
class Task:
    """What is searched; `ports` are the usable ports and what the network takes from each [B/s], or None inside one machine."""

    wiring: Wiring
    group: tuple[int, ...]
    speeds: tuple[float, ...]
    """the library's list, fastest first [B/s]; empty: the capacities on the way"""
    capability: float
    ports: tuple[tuple[int, float], ...] | None = None

    @property
    def node(self) -> Node:
        """The machine."""
        return self.wiring.node

    @cached_property
    def capacity(self) -> list[float]:
        """What every link moves, wires of ports included [B/s]."""
        return self.wiring.capacity + self._wires

    @cached_property
    def planned(self) -> list[float]:
        """What the library takes every link for, wires of ports included [B/s]."""
        return self.wiring.planned + self._wires

    @cached_property
    def _wires(self) -> list[float]:
        rate = dict(self.ports or ())
        return [rate.get(port, 0.0) for port in range(len(self.node.ports)) for _ in range(2)]

    @cached_property
    def owned(self) -> tuple[tuple[int, ...], ...]:
        """Per GPU of the machine: its share of the usable ports."""
        return self.node.owned(tuple(port for port, _ in self.ports or ()))

    def best(self, a: int, b: int) -> Route:
        """The library's route between two GPUs: NVLink, else PCIe, else NVLink through another member.

        Raises:
            TopologyError: there is none.
        """
        routes = self.wiring.between(a, b, self.group)
        if not routes:
            raise unreachable(self.node.gpu_names[a], self.node.gpu_names[b])
        return routes[0] if routes[0].tier == TIER_NVLINK else routes[-1]

    def to_port(self, gpu: int, port: int) -> Route:
        """From a GPU out to the network.

        Raises:
            TopologyError: there is no way.
        """
        route = self.wiring.to_port(gpu, port)
        if route is None:
            raise unreachable(self.node.gpu_names[gpu], self.node.ports[port])
        return route

    def from_port(self, port: int, gpu: int) -> Route:
        """From the network in to a GPU.

        Raises:
            TopologyError: there is no way.
        """
        route = self.wiring.from_port(port, gpu)
        if route is None:
            raise unreachable(self.node.ports[port], self.node.gpu_names[gpu])
        return route

    def trials(self, routes: Iterable[Route]) -> tuple[float, ...]:
        """The speeds to try: the list, or what the links of `routes` plan to carry, fastest first [B/s]."""
        if self.speeds:
            return self.speeds
        planned = self.planned
        return distinct(planned[link] / load for route in routes for link, load in zip(route.links, route.coefficients, strict=True))

    def result(self, rings: Iterable[Ring], speed: float, *, most: float = math.inf, evaluations: int = 0) -> Found:
        """The answer for rings whose hops still have the wires of ports; they carry what the links allow, at most `most` [B/s]."""
        found = tuple(rings)
        between = [hop for ring in found for hop in (ring.hops if ring.entry < 0 else ring.hops[1:-1])]
        capacity = list(self.capacity)
        for link in dict.fromkeys(link for hop in between if hop.tier == TIER_NEIGHBOUR for link in hop.links):
            capacity[link] *= RELAY_SHARE
        carried = min(most, len(found) * share(found, capacity), math.fsum(ring.cap for ring in found))
        if carried == 0:
            raise TopologyError(Finding(f"the rings of {self.group} have a link or a port without bandwidth", "cluster", list(self.group)))
        if carried == math.inf:
            problem, repair = f"nothing limits the rings of {self.group}", "give the rate of the ports"
            raise TopologyError(Finding(problem, "cluster", list(self.group), repair))
        kind = max((hop.tier for hop in between), default=0) <= TIER_NEIGHBOUR
        tier = max(ring.tier for ring in found)
        one_of_each: dict[tuple[tuple[int, ...], tuple[Route, ...]], Ring] = {}
        inner = []
        for ring in found:
            key = (ring.order, ring.hops)
            if key not in one_of_each:
                hops = [hop.up_to(self.wiring.outside) for hop in ring.hops]
                one_of_each[key] = ring if ring.entry < 0 else make_ring(ring.order, hops, ring.entry, ring.exit)
            inner.append(one_of_each[key])
        return Found(tuple(inner), len(found), speed, carried, tier, "nvlink" if kind else "pcie", evaluations)


def share(rings: Iterable[Ring], capacity: list[float]) -> float:
    """What each ring gets if all run at one rate: min of capacity over load [B/s]."""
    load: dict[int, float] = {}
    for ring in rings:
        for link, amount in ring.load:
            load[link] = load.get(link, 0.0) + amount
    return min((capacity[link] / amount for link, amount in load.items()), default=math.inf)


def make_task(node: Node, group: tuple[int, ...], speeds: tuple[float, ...], capability: float, ports: Ports, network: bool) -> Task:
    """A task; `ports` as in :func:`parsim.hardware.search.search`."""
    used = None
    if network:
        given = ports if isinstance(ports, Mapping) else dict.fromkeys(range(len(node.ports)), math.inf if ports is None else ports)
        used = tuple(sorted((port, rate) for port, rate in given.items() if rate > 0))
    return Task(wiring(node), tuple(sorted(group)), speeds, capability, used)
