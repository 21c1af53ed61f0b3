"""Flows hashed onto equal links (ECMP): how often they collide, how loaded the worst link is, and what other jobs' flows cost.

m flows choose among k links independently and uniformly: balls into bins (Raab and Steger, "Balls into Bins", 1998, for large numbers).
A collective in lockstep waits for its slowest flow, so its slowdown is the largest load over the mean.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import comb, perm


def no_collision_probability(flows: int, links: int) -> Fraction:
    """Probability that all flows take different links: k!/((k - m)! k^m).

    >>> [round(float(no_collision_probability(m, k)), 8) for m, k in ((4, 8), (8, 8), (16, 64))]
    [0.41015625, 0.00240326, 0.12901153]
    """
    return Fraction(perm(links, flows), links**flows)


@cache
def largest_load_below(flows: int, links: int, load: int) -> Fraction:
    """P(largest load <= c), exactly: m!/k^m times the coefficient of x^m in (sum over j <= c of x^j/j!)^k.

    >>> [str(largest_load_below(4, 4, c)) for c in range(5)]
    ['0', '3/32', '51/64', '63/64', '1']
    """
    # ways to send the first m flows to the links so far, each with at most `load`: whole numbers, so nothing is rounded
    ways = [1] + [0] * flows
    for _ in range(links):
        ways = [sum(comb(m, j) * ways[m - j] for j in range(min(m, load) + 1)) for m in range(flows + 1)]
    return Fraction(ways[flows], links**flows)


def mean_largest_load(flows: int, links: int, leaves: int = 1) -> Fraction:
    """E[largest load] over independent leaves, each with that many flows on that many links: sum over c of 1 - P(<= c)^leaves.

    >>> str(mean_largest_load(8, 8)), round(float(mean_largest_load(8, 8)), 6)
    ('680849/262144', 2.597233)
    >>> round(float(mean_largest_load(8, 8, leaves=8)), 6)
    3.606961
    """
    return sum((1 - largest_load_below(flows, links, load) ** leaves for load in range(flows)), Fraction(0))


def hashing_slowdown(flows: int, links: int, connections: int = 1, leaves: int = 1) -> Fraction:
    """Mean slowdown of a synchronous collective: largest over mean load; q connections (queue pairs) per flow make q m smaller flows.

    Of flows that together fill the links; fewer flows than links have their own rate as floor: at least 1.

    >>> [round(float(hashing_slowdown(8, 8, q)), 6) for q in (1, 4)]
    [2.597233, 1.761946]
    """
    balls = flows * connections
    if flows >= links:
        return mean_largest_load(balls, links, leaves) * Fraction(links, balls)
    # a link carries one flow at its full rate: load c of parts of 1/q takes max(1, c/q)
    loads = range(1, balls + 1)
    chance = {c: largest_load_below(balls, links, c) ** leaves - largest_load_below(balls, links, c - 1) ** leaves for c in loads}
    return sum((share * max(Fraction(1), Fraction(load, connections)) for load, share in chance.items()), Fraction(0))


def background_slowdown(flows: int, duty: float, *, fast: bool) -> float:
    """Mean slowdown of a flow that shares its link with b equal flows of other jobs, on for a share u of the time.

    Slow compared with the transfer: 1 + u b, on the average over when it begins; fast: 1/(1 - u b/(1 + b)). Max-min shares.

    >>> background_slowdown(1, 0.5, fast=False), round(background_slowdown(1, 0.5, fast=True), 6)
    (1.5, 1.333333)
    """
    return 1 / (1 - duty * flows / (1 + flows)) if fast else 1 + duty * flows
