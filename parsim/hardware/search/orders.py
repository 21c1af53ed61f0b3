"""The cheapest cyclic order of a few members."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[numpy.float64]

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
        found = None
        for member in order[1:]:
            rest = [other for other in order if other != member]
            for place in range(1, len(order)):
                trial = [*rest[:place], member, *rest[place:]]
                length = _length(cost, trial)
                if length < best * (1 - 1e-12):
                    best, found = length, trial
        if found is None:
            return order
        order = found
    return order


def _length(cost: Rows, order: list[int]) -> float:
    return math.fsum([cost[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)])
