"""How many rings a group of GPUs can run at once on a mesh, and which.

The search follows the aim of NCCL's channel search (src/graph/search.cc): the largest number of rings times speed such
that no link is overbooked. Speeds are tried from the fastest link down; for each, rings are placed by negotiated
congestion (McMurchie and Ebeling, PathFinder, FPGA 1995): every ring is rerouted in turn at prices that rise on
overbooked links, until none is. The cheapest cyclic order comes from a table of all orders, so the result is
deterministic. Rings need not be node-disjoint: every GPU takes part in every ring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING, Any

from parsim.hardware.fabric.routes import Route

if TYPE_CHECKING:
    import numpy

LARGEST_EXHAUSTIVE = 9
_STOP = 0.49
_MOST_RINGS = 32
_EPSILON = 1e-9


_Entry = tuple[Any, Any, Route]
_Usable = dict[tuple[int, int], list[_Entry]]


@dataclass(frozen=True, slots=True)
class Ring:
    """One cyclic order of members (positions in the group) and the route of every hop."""

    order: tuple[int, ...]
    hops: tuple[Route, ...]
    """hops[i] leads from order[i] to order[i + 1]"""


class RingSearch:
    """Packs rings over `members` positions, given the candidate routes of every ordered pair."""

    def __init__(
        self,
        members: int,
        candidates: Callable[[int, int], Sequence[Route]],
        capacity: Callable[[int], float],
        unit: Callable[[int], float],
    ) -> None:
        import numpy

        self.np = numpy
        self.members = members
        self.pairs = [(a, b) for a in range(members) for b in range(members) if a != b]
        self.candidates = {pair: tuple(candidates(*pair)) for pair in self.pairs}
        edges = dict.fromkeys(link for routes in self.candidates.values() for route in routes for link in route.links)
        self.edge = {link: number for number, link in enumerate(edges)}
        self.capacity = numpy.array([capacity(link) for link in edges])
        self.unit = unit
        self.vectors = {
            pair: [
                (
                    numpy.array([self.edge[link] for link in route.links], dtype=numpy.intp),
                    numpy.array(route.coefficients),
                    route,
                )
                for route in routes
            ]
            for pair, routes in self.candidates.items()
        }
        self.tiers = sorted({route.tier for routes in self.candidates.values() for route in routes})

    def best(self) -> list[Ring]:
        """The rings of the best packing; empty where some pair cannot be joined at all."""
        found: list[Ring] = []
        count, speed, worst = 0, 0.0, math.inf
        for trial in self._speeds():
            if count and trial < _STOP * speed:
                break
            for tier in self.tiers:
                if count and tier > worst:
                    break
                low = math.floor(count * speed / trial + _EPSILON) + 1
                rings = self._most(trial, tier, low)
                if rings:
                    found, count, speed, worst = rings, len(rings), trial, tier
                    break
        return found

    def _speeds(self) -> list[float]:
        """What one ring could run at: an edge, or one of its parallel links, over its coefficient; fastest first."""
        speeds: set[float] = set()
        for routes in self.candidates.values():
            for route in routes:
                for link, coefficient in zip(route.links, route.coefficients, strict=True):
                    speeds |= {float(self.capacity[self.edge[link]]) / coefficient, self.unit(link) / coefficient}
        return sorted(speeds, reverse=True)

    def _most(self, speed: float, tier: int, low: int) -> list[Ring]:
        """The largest packing of at least `low` rings at `speed` with routes up to `tier`."""
        usable: _Usable = {}
        for pair, entries in self.vectors.items():
            usable[pair] = [entry for entry in entries if entry[2].tier <= tier and self._fits(entry, speed)]
        high = min(_MOST_RINGS, self._bound(usable, speed))
        if high < low or not self._pack(1, speed, usable, 5):
            return []
        if rings := self._pack(high, speed, usable, 24 if high % 2 else 10):
            return rings
        best: list[Ring] = []
        step = 1 if self.members == 2 else 2
        count = low if self.members == 2 else low + low % 2
        if low == 1:
            best = self._pack(1, speed, usable, 5)
        while count < high:
            rings = self._pack(count, speed, usable, 8)
            if not rings:
                break
            best, count = rings, count + step
        return best

    def _fits(self, entry: _Entry, speed: float) -> bool:
        edges, coefficients, _ = entry
        return bool((coefficients * speed <= self.capacity[edges] * (1 + _EPSILON)).all())

    def _bound(self, usable: _Usable, speed: float) -> int:
        """No more rings than whole multiples of `speed` leave, or enter, some member; and none if some cut has no route."""
        bound = _MOST_RINGS
        for member in range(self.members):
            for end in (0, 1):
                doors: dict[int, None] = {}
                for pair, entries in usable.items():
                    if pair[end] == member:
                        for edges, _, _ in entries:
                            doors[int(edges[0 if end == 0 else -1])] = None
                bound = min(bound, sum(int(self.capacity[door] / speed + _EPSILON) for door in doors))
        return bound if self._connected(usable) else 0

    def _connected(self, usable: _Usable) -> bool:
        for forward in (True, False):
            seen, open_ = {0}, [0]
            while open_:
                at = open_.pop()
                for (a, b), entries in usable.items():
                    here, there = (a, b) if forward else (b, a)
                    if entries and here == at and there not in seen:
                        seen.add(there)
                        open_.append(there)
            if len(seen) < self.members:
                return False
        return True

    def _pack(self, count: int, speed: float, usable: _Usable, rounds: int) -> list[Ring]:
        """Place `count` rings; pairs of a ring and its reverse where that works, else single rings."""
        if count % 2 == 0 and self.members > 2:
            paired = self._negotiate(count // 2, speed, usable, rounds, reverse=True)
            if paired:
                return paired
        return self._negotiate(count, speed, usable, rounds, reverse=False)

    def _negotiate(self, units: int, speed: float, usable: _Usable, rounds: int, reverse: bool) -> list[Ring]:
        np = self.np
        load = np.zeros(len(self.capacity))
        history = np.zeros(len(self.capacity))
        placed: list[list[Ring]] = [[] for _ in range(units)]
        for iteration in range(rounds):
            for unit in range(units):
                for ring in placed[unit]:
                    self._book(load, ring, -speed)
                over = np.maximum(load + speed - self.capacity * (1 + _EPSILON), 0.0) / speed
                price = (1 + history) * (1 + 2.0 ** min(iteration, 12) * over)
                placed[unit] = self._cheapest(usable, price, reverse)
                for ring in placed[unit]:
                    self._book(load, ring, speed)
            over = np.maximum(load - self.capacity * (1 + _EPSILON), 0.0)
            if not over.any():
                return [ring for unit in placed for ring in unit]
            history += over / speed
        return []

    def _book(self, load: numpy.ndarray[Any, Any], ring: Ring, amount: float) -> None:
        for hop in ring.hops:
            for link, coefficient in zip(hop.links, hop.coefficients, strict=True):
                load[self.edge[link]] += coefficient * amount

    def _cheapest(self, usable: _Usable, price: Any, reverse: bool) -> list[Ring]:
        np = self.np
        cost = np.full((self.members, self.members), 1e30)
        choice: dict[tuple[int, int], Route] = {}
        for pair, entries in usable.items():
            for edges, coefficients, route in entries:
                value = float((price[edges] * coefficients).sum())
                if value < cost[pair]:
                    cost[pair] = value
                    choice[pair] = route
        order = self._order(cost + cost.T if reverse else cost)
        orders = [order, (order[0], *reversed(order[1:]))] if reverse else [order]
        rings = []
        for members in orders:
            pairs = list(zip(members, (*members[1:], members[0]), strict=True))
            if any(pair not in choice for pair in pairs):
                return []
            rings.append(Ring(members, tuple(choice[pair] for pair in pairs)))
        return rings

    def _order(self, cost: Any) -> tuple[int, ...]:
        """Cheapest cyclic order; exact up to nine members, nearest neighbour beyond."""
        if self.members > LARGEST_EXHAUSTIVE:
            order, left = [0], list(range(1, self.members))
            while left:
                nearest = min(left, key=lambda member: (cost[order[-1], member], member))
                order.append(nearest)
                left.remove(nearest)
            return tuple(order)
        table = _orders(self.members)
        total = cost[table, self.np.roll(table, -1, axis=1)].sum(axis=1)
        return tuple(int(member) for member in table[int(total.argmin())])


@lru_cache(maxsize=8)
def _orders(members: int) -> Any:
    """All cyclic orders that begin with member 0, in lexicographic order."""
    import numpy

    return numpy.array([(0, *rest) for rest in permutations(range(1, members))], dtype=numpy.intp)
