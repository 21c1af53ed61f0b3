"""Packing rings on a mesh of GPUs, bridges and PCIe, and the network as one more member.

The aim is that of NCCL's channel search (NVIDIA/nccl src/graph/search.cc): the largest count x speed such that no link is
overbooked, with the best kind of path that allows any ring. Rings are placed by negotiated congestion (McMurchie and
Ebeling, PathFinder, FPGA 1995): each is rerouted in turn at prices that rise on overbooked links until none is left.
Nothing is random and nothing depends on time: effort is limited by counting look-ups of a cheapest ring.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy

from parsim.hardware.fabric.routes import TIER_NEIGHBOUR
from parsim.hardware.nccl.task import EPSILON, STOP, MachineRings, Ring, Task, make_ring, times
from parsim.hardware.nccl.wiring import CandidateRoute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[numpy.float64]


MOST_RINGS = 32
BUDGET, BUDGET_OF_NINE = 160, 30
"""look-ups of a cheapest ring after which a group with a solution is not searched any further: below nine members, and from nine"""
_ROUNDS, _ROUNDS_ODD, _ROUNDS_GROWING, _ROUNDS_ONE = 10, 24, 8, 5

Packed = list[tuple[tuple[int, ...], list[int]]]
"""per ring: its order of members and the number of the candidate taken for each hop"""


def pack_rings(task: Task) -> MachineRings | None:
    """The channels of a group that has no closed form; None where nothing packs."""
    packing = Packing(task)
    rings, speed = packing.best()
    return task.result(rings, speed, evaluations=packing.evaluations) if rings else None


class Packing:
    """One search. Members are positions in the group; the last one is the network, if there is one."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.members = len(task.group) + (task.ports is not None)
        self.candidates = task.candidates()
        routes = [candidate.route for candidate in self.candidates]
        self.links = list(dict.fromkeys(link for route in routes for link in route.links))
        self.capacity = numpy.array([task.planned[link] for link in self.links])
        self.limit = self.capacity * (1 + EPSILON)
        self.evaluations = 0
        self.solved = False
        number = {link: at for at, link in enumerate(self.links)}
        longest = max(len(route.links) for route in routes)
        # one row per step of a route; routes shorter than the longest end on a column of price 0
        self.steps = numpy.full((longest, len(routes)), len(self.links), dtype=numpy.intp)
        self.load = numpy.zeros((longest, len(routes)))
        self.incidence = numpy.zeros((len(routes), len(self.links)))
        for at, route in enumerate(routes):
            for step, (link, amount) in enumerate(zip(route.links, route.coefficients, strict=True)):
                self.steps[step, at] = number[link]
                self.load[step, at] = amount
                self.incidence[at, number[link]] += amount
        with numpy.errstate(divide="ignore"):
            self.fastest = (self.limit / self.incidence).min(axis=1)
        self.tier = numpy.array([route.tier for route in routes])
        self.pair = numpy.array([candidate.source * self.members + candidate.target for candidate in self.candidates])
        self.bounds = RingBounds(task, self.candidates, self.members)

    def best(self) -> tuple[list[Ring], float]:
        """The rings of the best packing, wires of ports among their links, and the speed of each; none where nothing packs."""
        best: Packed = []
        speed, worst = 0.0, 0
        tiers = sorted({candidate.route.tier for candidate in self.candidates})
        for trial in self.task.trials(candidate.route for candidate in self.candidates):
            if best and trial < STOP * speed:
                break
            for tier in tiers:
                if best and tier > worst:
                    break
                low = times(len(best) * speed, trial) + 1
                packed = self._most(trial, tier, low)
                if packed:
                    best, speed, worst = packed, trial, tier
                    self.solved = True
                    break
        return [self._ring(*one) for one in best], speed

    def _most(self, speed: float, tier: int, low: int) -> Packed:
        """The largest packing found of at least `low` rings at `speed` over routes up to `tier`."""
        usable = numpy.flatnonzero((self.tier <= tier) & (self.fastest >= speed))
        high = min(MOST_RINGS, self.bounds.most(usable.tolist(), speed))
        if high < low or self._spent():
            return []
        alone = self._negotiate(1, speed, usable, _ROUNDS_ONE, both_ways=False)
        if not alone:
            return []
        if high == 1:
            return alone
        rounds = _ROUNDS_ODD if high % 2 else _ROUNDS
        if self.members >= LARGEST_TABLE and not self.task.patient:
            rounds = min(rounds, max(2, BUDGET_OF_NINE // high))
        packed = self._pack(high, speed, usable, rounds)
        if packed:
            return packed
        best = alone if low == 1 else []
        step = 1 if self.members == 2 else 2
        count = max(low, 2) if step == 1 else low + low % 2
        while count < high:
            packed = self._pack(count, speed, usable, _ROUNDS_GROWING)
            if not packed:
                break
            best, count = packed, count + step
        return best

    def _pack(self, count: int, speed: float, usable: NDArray[Any], rounds: int) -> Packed:
        """`count` rings: pairs of a ring and its reverse where that works, else single ones."""
        if count % 2 == 0 and self.members > 2:
            packed = self._negotiate(count // 2, speed, usable, rounds, both_ways=True)
            if packed:
                return packed
        return self._negotiate(count, speed, usable, rounds, both_ways=False)

    def _spent(self) -> bool:
        return self.solved and not self.task.patient and self.evaluations >= (BUDGET if self.members < LARGEST_TABLE else BUDGET_OF_NINE)

    def _negotiate(self, units: int, speed: float, usable: NDArray[Any], rounds: int, *, both_ways: bool) -> Packed:
        """Place `units` rings (or pairs of a ring and its reverse); empty if some link stays overbooked."""
        history = numpy.zeros(len(self.links))
        usage = numpy.zeros((units, len(self.links)))
        placed: list[Packed] = [[] for _ in range(units)]
        for turn in range(rounds):
            for unit in range(units):
                if self._spent():
                    return []
                usage[unit] = 0.0
                over = numpy.maximum(usage.sum(axis=0) * speed + speed - self.limit, 0.0) / speed
                price = (1 + history) * (1 + 2.0 ** min(turn, 12) * over)
                rings = self._cheapest(usable, price, both_ways)
                if not rings:
                    return []
                placed[unit] = rings
                usage[unit] = self.incidence[[route for _, hops in rings for route in hops]].sum(axis=0)
            over = numpy.maximum(usage.sum(axis=0) * speed - self.limit, 0.0)
            if not over.any():
                return [ring for rings in placed for ring in rings]
            history += over / speed
        return []

    def _cheapest(self, usable: NDArray[Any], price: NDArray[Any], both_ways: bool) -> Packed:
        """The cheapest ring at these prices of links, with its reverse if `both_ways`."""
        self.evaluations += 1
        prices = (numpy.append(price, 0.0)[self.steps[:, usable]] * self.load[:, usable]).sum(axis=0)
        cost = numpy.full(self.members * self.members, UNUSABLE)
        # ties go to the first candidate: later ones are written first
        ranked = numpy.lexsort((-numpy.arange(len(usable)), -prices))
        cost[self.pair[usable[ranked]]] = prices[ranked]
        choice = dict(zip(self.pair[usable[ranked]].tolist(), usable[ranked].tolist(), strict=True))
        matrix = cost.reshape(self.members, self.members)
        order = cheapest_order(matrix + matrix.T if both_ways else matrix, symmetric=both_ways)
        if order is None:
            return []
        rings: Packed = []
        for members in (order, (order[0], *order[:0:-1])) if both_ways else (order,):
            pairs = zip(members, (*members[1:], members[0]), strict=True)
            rings.append((members, [choice[a * self.members + b] for a, b in pairs]))
        return rings

    def _ring(self, order: tuple[int, ...], chosen: list[int]) -> Ring:
        hops = [self.candidates[number].route for number in chosen]
        group = self.task.group
        if self.task.ports is None:
            return make_ring([group[member] for member in order], hops)
        at = order.index(self.members - 1)
        members = [group[member] for member in order[at + 1 :] + order[:at]]
        hops = hops[at:] + hops[:at]
        outside = self.task.wiring.outside
        return make_ring(members, hops, (hops[0].links[0] - outside) // 2, (hops[-1].links[-1] - outside) // 2)


# the cheapest cyclic order of a few members


Rows = list[list[float]]
LARGEST_TABLE = 9
"""members up to which every order is priced"""
UNUSABLE = 1e30
"""price of a pair without a route"""


def cheapest_order(cost: Matrix, *, symmetric: bool = False) -> tuple[int, ...] | None:
    """The cheapest cyclic order, from member 0; None where every order needs an unusable pair.

    Exact up to nine members, and the first in lexicographic order among equals; beyond, nearest neighbour improved by
    moving single members. `symmetric`: an order costs the same as its reverse, so one of the two is priced.
    """
    members = len(cost)
    if members > LARGEST_TABLE:
        rows = cost.tolist()
        order = _improved(rows, _nearest_neighbours(rows))
        return None if _length(rows, order) >= UNUSABLE else tuple(order)
    orders, steps = _table(members, symmetric and members > 2)
    total = cost.ravel().take(steps, mode="clip").sum(axis=0)
    at = int(total.argmin())
    return None if total[at] >= UNUSABLE else tuple(int(member) for member in orders[at])


@lru_cache(maxsize=32)
def _table(members: int, half: bool) -> tuple[Any, Any]:
    """All orders that begin with member 0, in lexicographic order, and the flat matrix index of each of their steps [step, order]."""
    rest = numpy.zeros((1, 0), dtype=numpy.intp)
    for count in range(1, members):
        # each member in turn in front of all orders of the others, which keep their ranks
        first = numpy.repeat(numpy.arange(count, dtype=numpy.intp), len(rest))[:, None]
        others = numpy.tile(rest, (count, 1))
        rest = numpy.hstack([first, others + (others >= first)])
    orders = numpy.hstack([numpy.zeros((len(rest), 1), dtype=numpy.intp), rest + 1])
    if half:
        orders = orders[orders[:, 1] < orders[:, -1]]
    steps = orders * members + numpy.roll(orders, -1, axis=1)
    return orders, numpy.ascontiguousarray(steps.T)


def _nearest_neighbours(cost: Rows) -> list[int]:
    order, left = [0], list(range(1, len(cost)))
    while left:
        nearest = min(left, key=lambda member: (cost[order[-1]][member], member))
        order.append(nearest)
        left.remove(nearest)
    return order


def _improved(cost: Rows, order: list[int]) -> list[int]:
    """Move one member at a time to where it saves most, until nothing does."""
    best = _length(cost, order)
    for _ in range(4 * len(order)):
        better = None
        for member in order[1:]:
            rest = [other for other in order if other != member]
            for place in range(1, len(order)):
                trial = [*rest[:place], member, *rest[place:]]
                length = _length(cost, trial)
                if length < best * (1 - 1e-12):
                    best, better = length, trial
        if better is None:
            return order
        order = better
    return order


def _length(cost: Rows, order: list[int]) -> float:
    return math.fsum([cost[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)])


# how many rings can run at most: what leaves and enters parts of the group


class RingBounds:
    """Upper bounds on the number of rings over a set of candidate routes: every ring enters and leaves every part of the group."""

    def __init__(self, task: Task, candidates: Sequence[CandidateRoute], members: int) -> None:
        self.planned = task.planned
        self.members = members
        self.pairs = [(candidate.source, candidate.target) for candidate in candidates]
        self.tiers = [candidate.route.tier for candidate in candidates]
        steps = [list(zip(candidate.route.links, candidate.route.coefficients, strict=True)) for candidate in candidates]
        self.first = [route[0] for route in steps]
        self.last = [route[-1] for route in steps]
        self.narrowest = [min(route, key=lambda step: self.planned[step[0]] / step[1]) for route in steps]
        self.single = [len(route) == 1 for route in steps]
        outside = task.wiring.outside
        self.crossing = [
            next(((link, load) for link, load in route if link < outside and task.wiring.medium[link] == "socket"), None) for route in steps
        ]
        sockets: dict[str, int] = {}
        for member, gpu in enumerate(task.group):
            name = task.wiring.socket(gpu)
            sockets[name] = sockets.get(name, 0) | 1 << member
        self.sockets = list(sockets.values()) if len(sockets) > 1 else []

    def most(self, usable: list[int], speed: float) -> int:
        """No more rings than this fit at `speed`; 0 if the routes do not connect all members both ways."""
        if not self._connected(usable):
            return 0
        if all(self.single[number] for number in usable) and self.members <= LARGEST_TABLE:
            return self._bipartitions(usable, speed)
        bound = min(self._around(1 << member, usable, speed) for member in range(self.members))
        for island in self._islands(usable):
            bound = min(bound, self._around(island, usable, speed))
        for socket in self.sockets:
            bound = min(bound, self._around(socket, usable, speed))
        return bound

    def _connected(self, usable: list[int]) -> bool:
        near = [0] * self.members
        far = [0] * self.members
        for number in usable:
            a, b = self.pairs[number]
            near[a] |= 1 << b
            far[b] |= 1 << a
        return all(_reached(steps) == (1 << self.members) - 1 for steps in (near, far))

    def _bipartitions(self, usable: list[int], speed: float) -> int:
        """The narrowest of all cuts, both ways, where every pair has an edge of its own."""
        fits = numpy.zeros((self.members, self.members), dtype=numpy.int64)
        for number in usable:
            link, load = self.first[number]
            fits[self.pairs[number]] = times(self.planned[link], speed * load)
        inside = (numpy.arange(1, 2**self.members - 1)[:, None] >> numpy.arange(self.members)) & 1
        return int(((inside @ fits) * (1 - inside)).sum(axis=1).min())

    def _around(self, part: int, usable: list[int], speed: float) -> int:
        """What leaves and what enters the members of the bit mask `part`."""
        leaving: list[int] = []
        entering: list[int] = []
        for number in usable:
            a, b = self.pairs[number]
            starts, ends = part >> a & 1, part >> b & 1
            if starts != ends:
                (leaving if starts else entering).append(number)
        # any choice of one link per route is a cut
        cuts = [(leaving, self.first), (entering, self.last), (leaving, self.narrowest), (entering, self.narrowest)]
        bound = min(self._sum((steps[number] for number in routes), speed) for routes, steps in cuts)
        if part in self.sockets:
            for routes in (leaving, entering):
                bound = min(bound, self._sum((self.crossing[number] or self.first[number] for number in routes), speed))
        return bound

    def _sum(self, steps: Iterable[tuple[int, float]], speed: float) -> int:
        cut: dict[int, float] = {}
        for link, load in steps:
            cut[link] = min(load, cut.get(link, load))
        return sum(times(self.planned[link], speed * load) for link, load in cut.items())

    def _islands(self, usable: Iterable[int]) -> list[int]:
        """Members joined by NVLink, as bit masks; none if that is everyone or nobody."""
        near = [0] * self.members
        for number in usable:
            if self.tiers[number] <= TIER_NEIGHBOUR:
                a, b = self.pairs[number]
                near[a] |= 1 << b
                near[b] |= 1 << a
        islands: list[int] = []
        for member in range(self.members):
            if near[member] and not any(island >> member & 1 for island in islands):
                islands.append(_reached(near, member))
        return [island for island in islands if island != (1 << self.members) - 1]


def _reached(near: list[int], start: int = 0) -> int:
    """Bit mask of the members that can be reached from `start`."""
    seen, fresh = 1 << start, [start]
    while fresh:
        new = near[fresh.pop()] & ~seen
        seen |= new
        fresh += [member for member in range(len(near)) if new >> member & 1]
    return seen
