"""The network as a fluid: flows share links by weighted max-min, and rates change only when something changes.

Flows of equal path, cap and weight are one :class:`Bundle` with one rate and one service counter, so finishing costs
O(classes) and not O(flows). A link whose demand (every flow at its cap) fits its capacity binds nobody: it is *slack*,
and only tight links connect flows into components that are solved together (`parsim.simulation.sharing`).

Every number may be a `fractions.Fraction`; then all times and rates are exact.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import fsum, inf, isfinite
from typing import Any

import simpy
from simpy.events import EventPriority

from parsim.errors import ParsimError
from parsim.simulation.sharing import SATURATED, Bundle, LoadedLink, Member, fill
from parsim.simulation.trace import LinkUse

AFTER_ALL_ELSE = EventPriority(2)
"""later than SimPy's NORMAL (1) at the same time"""


class Settle(simpy.Event):
    """Happens now, after everything else that happens now."""

    def __init__(self, env: simpy.Environment, then: Callable[[Any], None]) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.callbacks.append(then)
        env.schedule(self, AFTER_ALL_ELSE)


class Network:
    """Carries bytes over links while simulated time passes.

    `capacity` tells the capacity [B/s] of a link by its id; it is asked once per link. Links, bytes and times only:
    the network knows nothing about ranks.
    """

    def __init__(self, env: simpy.Environment, capacity: Callable[[int], float]) -> None:
        self.env = env
        self.events = 0
        """events put on the clock: ends and settles"""
        self._capacity = capacity
        self._links: dict[int, LoadedLink] = {}
        self._bundles: dict[tuple[tuple[tuple[int, float], ...], float, float], Bundle] = {}
        self._endless: list[tuple[Bundle, int, float]] = []
        """flows without an end: (bundle, how many, what it had served to each member before)"""
        self._serial = count(1)
        self._marked: dict[Bundle, None] = {}
        self._settling = False
        self._visit = 0
        self._stalls: list[tuple[frozenset[int], simpy.Event]] = []
        """links, and what happens when a flow waits for one of them"""

    def bundle(self, path: Sequence[tuple[int, float]], cap: float, weight: float = 1.0) -> Bundle:
        """The bundle of all flows with this path, cap [B/s] and weight; made on first use.

        A path is a sequence of (link id, bytes on that link per byte of progress), in any order. Raises ParsimError if the cap is
        not a finite number >= 0, or the weight or a coefficient not a finite number > 0.
        """
        coefficients: dict[int, float] = {}
        for link, coefficient in path:
            coefficients[link] = coefficients[link] + coefficient if link in coefficients else coefficient
        key = (tuple(sorted(coefficients.items())), cap, weight)
        bundle = self._bundles.get(key)
        if bundle is None:
            if not (isfinite(cap) and cap >= 0):
                raise ParsimError(f"cap of a flow (={cap}) must be finite and >= 0 [B/s]")
            if not all(isfinite(number) and number > 0 for number in (weight, *coefficients.values())):
                raise ParsimError(f"weight (={weight}) and coefficients of a flow must be finite and > 0: {key[0]}")
            links = tuple((self._link(link), coefficient) for link, coefficient in key[0])
            bundle = self._bundles[key] = Bundle(links, cap, weight)
        return bundle

    def start(self, bundle: Bundle, volume: float, then: Callable[[Any], None], argument: Any = None, *, members: int = 1) -> None:
        """Begin `members` equal flows of `volume` bytes each; `then(argument)` is called once, when they have all ended.

        Flows without bytes end at once and never enter the network; those of infinite volume never end, and keep no clock running.
        """
        if volume <= 0:
            then(argument)
            return
        now = self.env.now
        fresh = not bundle.size
        if fresh:
            bundle.served = bundle.rate = 0
        bundle.serve(now)
        insort(bundle.members, (bundle.served + volume, next(self._serial), members, then, argument))
        bundle.size += members
        if volume == inf:
            self._endless.append((bundle, members, bundle.served))
        else:
            bundle.carried += volume * members
        demand = bundle.cap * members
        tight = nearly = False
        for link, coefficient in bundle.path:
            if fresh:
                link.bundles[bundle] = coefficient
            link.demand = total = link.demand + coefficient * demand
            if total >= link.nearly:
                nearly = True
                if total > link.limit:
                    link.tight = tight = True
        if tight:
            bundle.promise = 0
            self._mark(bundle)
            return
        bundle.rate = bundle.cap
        if nearly:
            for link, _ in bundle.path:
                if link.demand >= link.nearly > 0 and not link.full:
                    link.gauge(len(link.bundles) == 1 or link.carried() >= link.nearly, now)
        self._promise(bundle)

    def set_capacity(self, link: int, capacity: float) -> None:
        """Change the capacity of a link [B/s] from now on; flows in flight feel it."""
        if not capacity >= 0:
            raise ParsimError(f"capacity of link {link} (={capacity}) must be >= 0 [B/s]")
        changed = self._link(link)
        tight = changed.tight
        changed.resize(capacity)
        if tight or changed.tight:
            for bundle in changed.bundles:
                self._mark(bundle)
        else:
            self._gauge((changed,))

    def stall(self, links: Iterable[int]) -> simpy.Event:
        """Happens when a flow that does not move crosses any of these links and that one has no capacity."""
        happens = self.env.event()
        self._stalls.append((frozenset(links), happens))
        for bundle in self._bundles.values():
            if bundle.size and not bundle.promise:
                self._stalled(bundle)
        return happens

    def _stalled(self, bundle: Bundle) -> None:
        """Tell whoever waits for it that a flow does not move."""
        dead = {link.identity for link, _ in bundle.path if not link.capacity}
        for links, happens in self._stalls:
            if not (happens.triggered or dead.isdisjoint(links)):
                happens.succeed()

    def rate(self, bundle: Bundle) -> float:
        """Present rate of each member [B/s]."""
        return bundle.rate if bundle.size else 0.0

    def use(self, until: float | None = None) -> dict[int, LinkUse]:
        """What each link carried so far, by link id; `until` is the time up to which it counts (default: now)."""
        now = self.env.now if until is None else until
        carried: dict[LoadedLink, float] = {}
        for bundle in self._bundles.values():
            moved = bundle.carried
            if bundle.size:
                served = bundle.served + bundle.rate * (now - bundle.since)
                moved -= fsum(members * max(0, end - served) for end, _, members, *_ in bundle.members if end < inf)
                moved += fsum(members * (served - before) for other, members, before in self._endless if other is bundle)
            if moved or bundle.size:
                for link, coefficient in bundle.path:
                    carried[link] = carried.get(link, 0) + coefficient * moved
        return {
            link.identity: LinkUse(total, link.saturated + (now - link.full_since if link.full else 0)) for link, total in carried.items()
        }

    def stuck(self) -> list[tuple[Bundle, list[Any]]]:
        """Bundles with members that will never finish (a link of theirs has no capacity), with their arguments."""
        return [
            (bundle, [argument for *_, argument in sorted(bundle.members, key=lambda member: member[1])])
            for bundle in self._bundles.values()
            if bundle.size and not bundle.promise
        ]

    def _link(self, identity: int) -> LoadedLink:
        link = self._links.get(identity)
        if link is None:
            capacity = self._capacity(identity)
            if not capacity >= 0:
                raise ParsimError(f"capacity of link {identity} (={capacity}) must be >= 0 [B/s]")
            link = self._links[identity] = LoadedLink(identity, capacity)
        return link

    def _mark(self, bundle: Bundle) -> None:
        """Solve the bundle's component once, after everything else that happens now."""
        self._marked[bundle] = None
        if not self._settling:
            self._settling = True
            self.events += 1
            Settle(self.env, self._settle)

    def _settle(self, _: Any) -> None:
        self._settling = False
        now = self.env.now
        seen: set[Bundle] = set()
        for first in self._marked:
            if first in seen or not first.size:
                continue
            bundles, links = self._reach(first, seen)
            for bundle, rate in fill(bundles, links).items():
                if rate != bundle.rate or not bundle.promise:
                    bundle.serve(now)
                    bundle.rate = rate
                    self._promise(bundle)
            for link in links:
                link.gauge(link.room <= (1 - SATURATED) * link.capacity and link.capacity > 0, now)
            self._gauge(link for bundle in bundles for link, _ in bundle.path if not link.tight)
        self._marked.clear()

    def _reach(self, first: Bundle, seen: set[Bundle]) -> tuple[list[Bundle], list[LoadedLink]]:
        """The bundles that share tight links with `first`, transitively, and those links."""
        self._visit += 1
        bundles, links = [first], []
        seen.add(first)
        for bundle in bundles:  # grows while it is walked
            for link, _ in bundle.path:
                if link.tight and link.visited != self._visit:
                    link.visited = self._visit
                    links.append(link)
                    for other in link.bundles:
                        if other not in seen:
                            seen.add(other)
                            bundles.append(other)
        return bundles, links

    def _gauge(self, links: Iterable[LoadedLink]) -> None:
        """Note which of these links are saturated; only those near their capacity are looked at."""
        now = self.env.now
        for link in links:
            if link.full or link.demand >= link.nearly:
                link.gauge(link.carried() >= link.nearly > 0, now)

    def _promise(self, bundle: Bundle) -> None:
        """Have the next member of a bundle end in its time, if its rate stays until then."""
        if bundle.rate > 0:
            bundle.promise = serial = next(self._serial)
            self.events += 1
            ends = bundle.since + (bundle.members[0][0] - bundle.served) / bundle.rate
            if ends < inf:
                self.env.timeout(max(0, ends - self.env.now), (bundle, serial)).callbacks.append(self._due)
        else:
            bundle.promise = 0
            if self._stalls:
                self._stalled(bundle)

    def _due(self, event: Any) -> None:
        """A member ends, unless its rate has changed since."""
        bundle, serial = event.value
        if serial == bundle.promise:
            for _, _, _, then, argument in self._finish(bundle):
                then(argument)

    def _finish(self, bundle: Bundle) -> list[Member]:
        """Take the members that end now out of a bundle."""
        end = bundle.members[0][0]
        bundle.served, bundle.since = end, self.env.now  # snapped: no drift is left behind
        over = [member for member in bundle.members if member[0] <= end]
        del bundle.members[: len(over)]
        members = bundle.members
        ended = sum(member[2] for member in over)
        bundle.size -= ended
        demand = bundle.cap * ended
        for link, coefficient in bundle.path:
            if members:
                link.demand -= coefficient * demand
            else:
                del link.bundles[bundle]
                link.demand = link.demand - coefficient * demand if link.bundles else 0
            if link.tight:
                link.tight = link.demand > link.limit
                if link.tight:
                    self._mark(next(iter(link.bundles)))
                    continue
                for other in link.bundles:
                    self._mark(other)
            if link.full:
                link.gauge(bool(link.bundles) and link.carried() >= link.nearly, bundle.since)
        if members:
            self._promise(bundle)
        else:
            bundle.promise = 0
        return over
