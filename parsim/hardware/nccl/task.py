"""One question to the ring search, and its answer: which machine, which GPUs, which ports, which speeds; rings, how many, how fast.

Lists of speeds: NVIDIA/nccl 2.30, src/graph/search.cc (speedArrayIntra, speedArrayInter and their sm90 and sm100 forms).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.routes import RELAY_SHARE, TIER_NEIGHBOUR, TIER_NVLINK, Route, unreachable
from parsim.hardware.nccl.wiring import CandidateRoute, MachineGraph, wiring

# the question


Ports = float | Mapping[int, float] | None


@dataclass(frozen=True)
class Task:
    """What is searched; `ports` are the usable ports and what the network takes from each [B/s], or None inside one machine."""

    wiring: MachineGraph
    group: tuple[int, ...]
    speeds: tuple[float, ...]
    """the library's list, fastest first [B/s]; empty: the capacities on the way"""
    capability: float
    ports: tuple[tuple[int, float], ...] | None = None
    cross: bool = True
    """whether a ring may leave by another port than it came by"""

    @property
    def patient(self) -> bool:
        """Whether packing goes on until nothing better is left to try, however long that takes."""
        return False

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
        routes = self.between(a, b)
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

    def between(self, a: int, b: int) -> list[Route]:
        """Routes that a hop between two GPUs of the group may take, best tier first."""
        return self.wiring.between(a, b, self.group)

    def candidates(self) -> list[CandidateRoute]:
        """Every route of every ordered pair of members, pair by pair; the network is the last member, if there is one."""
        group, outside = self.group, len(self.group)
        members = range(outside + (self.ports is not None))
        routed: list[CandidateRoute] = []
        for a, b in ((a, b) for a in members for b in members if a != b):
            if outside not in (a, b):
                routes = self.between(group[a], group[b])
            elif b == outside:
                routes = [route for port, _ in self.ports or () if (route := self.wiring.to_port(group[a], port))]
            else:
                routes = [route for port, _ in self.ports or () if (route := self.wiring.from_port(port, group[b]))]
            routed += [CandidateRoute(a, b, route) for route in routes]
        return routed

    def trials(self, routes: Iterable[Route]) -> tuple[float, ...]:
        """The speeds to try: the list, or what the links of `routes` plan to carry, fastest first [B/s]."""
        if self.speeds:
            return self.speeds
        planned = self.planned
        return distinct(planned[link] / load for route in routes for link, load in zip(route.links, route.coefficients, strict=True))

    def result(self, rings: Iterable[Ring], speed: float, *, most: float = math.inf, evaluations: int = 0) -> MachineRings:
        """The answer for rings whose hops still have the wires of ports; they carry what the links allow, at most `most` [B/s]."""
        channels = tuple(rings)
        between = [hop for ring in channels for hop in (ring.hops if ring.entry < 0 else ring.hops[1:-1])]
        capacity = list(self.capacity)
        for link in dict.fromkeys(link for hop in between if hop.tier == TIER_NEIGHBOUR for link in hop.links):
            capacity[link] *= RELAY_SHARE
        carried = min(most, len(channels) * share(channels, capacity), math.fsum(ring.cap for ring in channels))
        if carried == 0:
            raise TopologyError(Finding(f"the rings of {self.group} have a link or a port without bandwidth", "cluster", list(self.group)))
        if carried == math.inf:
            problem, repair = f"nothing limits the rings of {self.group}", "give the rate of the ports"
            raise TopologyError(Finding(problem, "cluster", list(self.group), repair))
        kind = max((hop.tier for hop in between), default=0) <= TIER_NEIGHBOUR
        tier = max(ring.tier for ring in channels)
        one_of_each: dict[tuple[tuple[int, ...], tuple[Route, ...]], Ring] = {}
        inner = []
        for ring in channels:
            key = (ring.order, ring.hops)
            if key not in one_of_each:
                hops = [hop.up_to(self.wiring.outside) for hop in ring.hops]
                one_of_each[key] = ring if ring.entry < 0 else make_ring(ring.order, hops, ring.entry, ring.exit)
            inner.append(one_of_each[key])
        return MachineRings(tuple(inner), len(channels), speed, carried, tier, "nvlink" if kind else "pcie", evaluations)


def share(rings: Iterable[Ring], capacity: list[float]) -> float:
    """What each ring gets if all run at one rate: min of capacity over load [B/s]."""
    load: dict[int, float] = {}
    for ring in rings:
        for link, amount in ring.load:
            load[link] = load.get(link, 0.0) + amount
    return min((capacity[link] / amount for link, amount in load.items()), default=math.inf)


def make_task(
    node: Node, group: tuple[int, ...], speeds: tuple[float, ...], capability: float, ports: Ports, network: bool, cross: bool = True
) -> Task:
    """A task; `ports` as in :func:`parsim.hardware.nccl.search.search`."""
    used = None
    if network:
        given = ports if isinstance(ports, Mapping) else dict.fromkeys(range(len(node.ports)), math.inf if ports is None else ports)
        used = tuple(sorted((port, rate) for port, rate in given.items() if rate > 0))
    return Task(wiring(node), tuple(sorted(group)), speeds, capability, used, cross)


# the answer


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """One channel inside a machine, in local link ids: closed, or in by a port, past the members and out by a port.

    Equal rings of one search are one object, so a ring is compared and hashed by identity.
    """

    order: tuple[int, ...]
    """local GPU indices in ring order; with a network, from the GPU where the ring comes in to the last one before it leaves"""
    hops: tuple[Route, ...]
    """closed: hops[i] leads from order[i] to order[i + 1]; with a network: port to first GPU, member to member, last GPU to port"""
    load: tuple[tuple[int, float], ...]
    """(directed link, times the ring crosses it)"""
    tier: int
    """worst path of a hop, those to and from the ports included (see `parsim.hardware.fabric.routes`)"""
    cap: float = math.inf
    """rate limit besides the links [B/s]"""
    entry: int = -1
    """port by which the ring comes in; -1 for a closed ring"""
    exit: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class MachineRings:
    """The channels of a group of GPUs of one machine; kept per question, so compared and hashed by identity."""

    channels: tuple[Ring, ...]
    count: int
    """channels; a ring that is run twice is listed twice"""
    speed: float
    """what the library plans for each [B/s]; count x speed ranks algorithms"""
    carried: float
    """what all channels together move, not rounded to a list of speeds [B/s]"""
    tier: int
    """worst path of any hop"""
    kind: Literal["nvlink", "pcie"]
    """worst wire between members; nvlink where there is none"""
    evaluations: int = 0
    """look-ups of a cheapest ring that the search took; 0 for closed forms"""

    @property
    def bandwidth(self) -> float:
        """Planned bandwidth of all channels [B/s]."""
        return self.count * self.speed

    @property
    def rate(self) -> float:
        """What each channel moves while all run [B/s]."""
        return self.carried / self.count


@dataclass(frozen=True, slots=True)
class NvlsChannels:
    """Channels of an all-reduce inside the NVSwitch: every GPU is the head of one."""

    count: int
    speed: float
    """of one head, from the list [B/s]; 0 where every entry is too fast"""
    unquantised: float
    """NVLink bandwidth of a GPU / (heads + 1) [B/s]"""


def make_ring(order: Sequence[int], hops: Sequence[Route], entry: int = -1, leave: int = -1) -> Ring:
    """A ring over the GPUs `order` by the routes `hops`."""
    load: dict[int, float] = {}
    for hop in hops:
        for link, coefficient in zip(hop.links, hop.coefficients, strict=True):
            load[link] = load.get(link, 0.0) + coefficient
    tier = max((hop.tier for hop in hops), default=0)
    cap = min((hop.cap for hop in hops), default=math.inf)
    return Ring(tuple(order), tuple(hops), tuple(load.items()), tier, cap, entry, leave)


# the speeds that the search tries


GB = 1e9
STOP = 0.49
"""a speed below this share of the best one's is not tried any more"""
EPSILON = 1e-9
"""relative tolerance of "fits": capacities are products of decimal fractions"""

_WITHIN = {
    0.0: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    9.0: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    10.0: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
_BETWEEN = {
    0.0: (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    9.0: (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    10.0: (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
}


def speed_list(capability: float, *, network: bool) -> tuple[float, ...]:
    """Speeds of a ring, fastest first [B/s]; empty if `capability` is 0: then the capacities on the way are the speeds.

    `capability` is the lowest CUDA compute capability of the group.
    """
    if not capability:
        return ()
    table = _BETWEEN if network else _WITHIN
    newest = max(first for first in table if capability >= first)
    return tuple(speed * GB for speed in table[newest])


def times(capacity: float, amount: float) -> int:
    """How often `amount` goes into `capacity`; at most one million."""
    ratio = capacity / amount
    return math.floor(ratio * (1 + EPSILON) + EPSILON) if ratio < 1e6 else 1_000_000


def distinct(capacities: Iterable[float]) -> tuple[float, ...]:
    """Different finite capacities, largest first [B/s]."""
    largest_first: list[float] = []
    for capacity in sorted((value for value in capacities if 0 < value < math.inf), reverse=True):
        if not largest_first or capacity < largest_first[-1] * (1 - EPSILON):
            largest_first.append(capacity)
    return tuple(largest_first)


def largest_product(capacity: float, speeds: Iterable[float]) -> tuple[int, float]:
    """The count x speed nearest below `capacity`, the faster speed where two are equal; (0, 0.0) if nothing fits."""
    count, best = 0, 0.0
    for speed in speeds:
        if count and speed < STOP * best:
            break
        trial = times(capacity, speed)
        if trial * speed > count * best * (1 + EPSILON):
            count, best = trial, speed
    return count, best


def split(count: int, speed: float, capability: float) -> tuple[int, float]:
    """Fast channels in two halves each (NVIDIA/nccl src/graph/search.cc, ncclTopoDupChannels)."""
    if not capability or speed < 25 * GB or (capability > 8.0 and speed < 50 * GB and count > 4):
        return count, speed
    return 2 * count, speed / 2


def head_speed(bandwidth: float, heads: int, speeds: Iterable[float]) -> float:
    """The fastest listed speed of an in-switch head: every GPU link carries one per head, and its own twice [B/s]."""
    return next((speed for speed in speeds if (heads + 1) * speed <= bandwidth * (1 + EPSILON)), 0.0)
