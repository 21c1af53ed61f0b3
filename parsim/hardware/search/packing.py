"""Packing rings on a mesh of GPUs, bridges and PCIe, and the network as one more member.

The aim is that of NCCL's channel search (NVIDIA/nccl src/graph/search.cc): the largest count x speed such that no link is
overbooked, with the best kind of path that allows any ring. Rings are placed by negotiated congestion (McMurchie and
Ebeling, PathFinder, FPGA 1995): each is rerouted in turn at prices that rise on overbooked links until none is left.
Nothing is random and nothing depends on time: effort is limited by counting look-ups of a cheapest ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from parsim.hardware.search.candidates import Candidate
from parsim.hardware.search.cuts import Bounds
from parsim.hardware.search.orders import LARGEST_TABLE, UNUSABLE, cheapest_order
from parsim.hardware.search.result import Found, Ring, make_ring
from parsim.hardware.search.shortcuts import one_ring
from parsim.hardware.search.speeds import EPSILON, STOP, times
from parsim.hardware.search.task import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_RINGS = 32
BUDGET, BUDGET_OF_NINE = 160, 30
"""look-ups of a cheapest ring after which a group with a solution is not searched any further: below nine members, and from nine"""
_ROUNDS, _ROUNDS_ODD, _ROUNDS_GROWING, _ROUNDS_ONE = 10, 24, 8, 5

Packed = list[tuple[tuple[int, ...], list[int]]]
"""per ring: its order of members and the number of the candidate taken for each hop"""


def pack_rings(task: Task) -> Found:
    """The channels of a group that has no closed form."""
    return Packing(task).found()


class Packing:
    """One search. Members are positions in the group; the last one is the network, if there is one."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.members = len(task.group) + (task.ports is not None)
        self.candidates = candidates(task)
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
        self.bounds = Bounds(task, self.candidates, self.members)

    def found(self) -> Found:
        """The best packing; the plain depth-first ring where nothing packs."""
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
        if not best:
            return one_ring(self.task)
        return self.task.result([self._ring(*one) for one in best], speed, evaluations=self.evaluations)

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
        if self.members >= LARGEST_TABLE:
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
        return self.solved and self.evaluations >= (BUDGET if self.members < LARGEST_TABLE else BUDGET_OF_NINE)

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


def candidates(task: Task) -> list[Candidate]:
    """Every route of every ordered pair of members, pair by pair, best tier first."""
    group, outside = task.group, len(task.group)
    found: list[Candidate] = []
    for a in range(outside + (task.ports is not None)):
        for b in range(outside + (task.ports is not None)):
            if a == b:
                continue
            if outside not in (a, b):
                routes = task.wiring.between(group[a], group[b], group)
            elif b == outside:
                routes = [route for port, _ in task.ports or () if (route := task.wiring.to_port(group[a], port))]
            else:
                routes = [route for port, _ in task.ports or () if (route := task.wiring.from_port(port, group[b]))]
            found += [Candidate(a, b, route) for route in routes]
    return found
