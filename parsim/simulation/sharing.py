"""Who gets how much of a link: weighted max-min fair rates by progressive filling.

Rates rise together, each in proportion to its weight, until a cap or a link stops some of them; those are frozen and the others
rise on (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2). Water levels are absolute, so a rate is one
division and does not depend on the number of rounds. Every number may be a `fractions.Fraction`; then rates are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum, inf
from typing import Any

from parsim.hardware.flows import Flow

TOLERANCE = 1e-12
"""relative: two times, or two water levels, this close are equal"""
SATURATED = 0.999
"""share of its capacity at which a link counts as saturated"""


class LoadedLink:
    """A directed link: what it can carry [B/s], and which bundles cross it."""

    __slots__ = (
        "bundles", "capacity", "demand", "full", "full_since", "identity", "limit", "load", "nearly", "open", "room", "saturated",
        "tight", "visited",
    )  # fmt: skip

    def __init__(self, identity: int, capacity: float) -> None:
        self.identity = identity
        self.bundles: dict[Bundle, float] = {}
        """bundle -> bytes on this link per byte of progress"""
        self.demand: float = 0
        """sum of coefficient x cap x members: an upper bound on the load [B/s]"""
        self.tight = False
        """demand exceeds capacity"""
        self.full = False
        self.full_since: float = 0
        self.saturated: float = 0
        self.visited = 0
        self.room: float = 0
        self.load: float = 0
        self.open = 0
        self.resize(capacity)

    def resize(self, capacity: float) -> None:
        """Give the link another capacity [B/s]."""
        self.capacity = capacity
        self.limit = capacity * (1 + TOLERANCE)
        self.nearly = capacity * SATURATED
        self.tight = self.demand > self.limit

    def carried(self) -> float:
        """Present load [B/s]."""
        return fsum(coefficient * bundle.rate * bundle.size for bundle, coefficient in self.bundles.items())

    def gauge(self, full: bool, now: float) -> None:
        """Note that the link is saturated, or no longer, from `now` on."""
        if full is not self.full:
            if full:
                self.full_since = now
            else:
                self.saturated += now - self.full_since
            self.full = full


Member = tuple[float, int, int, Callable[[Any], None], Any]
"""flows of a bundle that end together: (served at which they end, serial, how many, then, its argument)"""


class Bundle:
    """Flows of one path, cap and weight: one rate, one counter of bytes served to each."""

    __slots__ = ("cap", "carried", "members", "path", "promise", "rate", "served", "since", "size", "weight")

    def __init__(self, path: tuple[tuple[LoadedLink, float], ...], cap: float, weight: float) -> None:
        self.path = path
        self.cap = cap
        self.weight = weight
        self.rate: float = 0
        self.served: float = 0
        """bytes given to each member since the bundle was last empty"""
        self.since: float = 0
        """time of `served`"""
        self.size = 0
        """members"""
        self.members: list[Member] = []
        """the next to end first"""
        self.promise = 0
        """serial of the clock's valid event for its next end; 0 = none"""
        self.carried: float = 0
        """bytes of progress of all members ever"""

    def serve(self, until: float) -> None:
        """Bring the counter up to date."""
        if self.size:
            self.served += self.rate * (until - self.since)
        self.since = until


def fill(bundles: Sequence[Bundle], links: Sequence[LoadedLink], tolerance: float = TOLERANCE) -> dict[Bundle, float]:
    """Weighted max-min fair rates [B/s] of the members of each bundle, by progressive filling.

    `links` are the tight links that the bundles cross; all bundles of those links must be given. Accepts any kind of
    number; with `tolerance=0` and Fractions the rates are exact.
    """
    for link in links:
        link.room, link.load, link.open = link.capacity, 0, 0
    for bundle in bundles:
        share = bundle.weight * bundle.size
        for link, coefficient in bundle.path:
            if link.tight:
                link.load += coefficient * share
                link.open += 1
    caps = sorted(bundles, key=lambda bundle: bundle.cap / bundle.weight, reverse=True)
    rates: dict[Bundle, float] = {}
    level: float = 0
    while len(rates) < len(bundles):
        links = [link for link in links if link.open]
        level = max(level, min((link.room / link.load for link in links), default=inf))
        frozen = []
        while caps and (caps[-1] in rates or caps[-1].cap / caps[-1].weight <= level):
            bundle = caps.pop()
            if bundle not in rates:
                rates[bundle] = bundle.cap
                frozen.append(bundle)
        if not frozen:
            edge = level * (1 + tolerance)
            for link in links:
                if link.room <= edge * link.load:
                    for bundle in link.bundles:
                        if bundle not in rates:
                            rates[bundle] = bundle.weight * level
                            frozen.append(bundle)
        for bundle in frozen:
            rate, share = rates[bundle] * bundle.size, bundle.weight * bundle.size
            for link, coefficient in bundle.path:
                if link.tight:
                    link.room -= coefficient * rate
                    link.load -= coefficient * share
                    link.open -= 1
    return rates


def fair_rates(flows: Sequence[Flow], capacity: Callable[[int], float], tolerance: float = TOLERANCE) -> list[float]:
    """Weighted max-min fair rate [B/s] of each flow if all of them are under way at once; volumes do not matter."""
    links: dict[int, LoadedLink] = {}
    bundles = []
    for flow in flows:
        for identity, _ in flow.path:
            links.setdefault(identity, LoadedLink(identity, capacity(identity)))
        bundle = Bundle(tuple((links[identity], coefficient) for identity, coefficient in flow.path), flow.cap, flow.weight)
        bundle.size = 1
        for link, coefficient in bundle.path:
            link.bundles[bundle] = coefficient
            link.demand += coefficient * bundle.cap
            link.tight = link.demand > link.limit
        bundles.append(bundle)
    rates = fill(bundles, [link for link in links.values() if link.tight], tolerance)
    return [rates[bundle] for bundle in bundles]
