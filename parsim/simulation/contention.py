"""Transfers that meet on a link: as long as they cannot fill it together, none of them notices.

A transfer whose links are not full needs no network: it takes its idle-fabric time. The first moment at which those under way on a
link ask for all that it carries, all of them are given to the network, which shares it; the network keeps them to their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from math import fsum, inf

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective
from parsim.simulation.contention_free import Uncontended, uncontended
from parsim.simulation.devices import LoadedDevice
from parsim.simulation.sharing import SATURATED, Bundle

Sides = tuple[tuple[LoadedDevice, int, int], ...]
"""devices that a transfer loads: (device, number of the load, the private link that kernels there slow, 0: none)"""


class LinkContention(dict[int, "Transfer"]):
    """The transfers under way that cross a link, by op index; those that the network carries are only added up."""

    __slots__ = ("carried", "given", "link", "most", "nearly")

    def __init__(self, link: int, capacity: float) -> None:
        super().__init__()
        self.link = link
        self.nearly = SATURATED * capacity
        self.most = 0.0
        """what any transfer asks of the link at most [B/s]"""
        self.given = 0
        """how many the network carries"""
        self.carried = 0.0
        """what these ask of the link [B/s]"""

    def full(self, over: Collection[int] = ()) -> bool:
        """Whether several ask for as much as the link carries, at their caps; those in `over` do no longer."""
        if (len(self) + self.given) * self.most < self.nearly:
            return False
        asked = [transfer.demand[self.link] for i, transfer in self.items() if i not in over]
        return len(asked) + self.given > 1 and fsum((self.carried, *asked)) >= self.nearly

    def give(self, index: int) -> None:
        """The network carries it from now on."""
        self.given += 1
        self.carried += self.pop(index).demand[self.link]

    def leave(self, transfer: Transfer) -> None:
        """The network has carried it."""
        self.given -= 1
        self.carried = self.carried - transfer.demand[self.link] if self.given else 0.0


class Transfer:
    """What ops of one spec do: a collective in its lanes."""

    __slots__ = ("collective", "contentions", "demand", "flows", "free", "latency", "runs", "scale", "seconds", "sides", "waits")

    def __init__(self, collective: Collective, waits: float, latency: float, free: Uncontended | None, sides: Sides) -> None:
        self.collective = collective
        self.waits = waits
        """time before the latency [s]"""
        self.latency = latency
        self.free = free
        """what it does to its links with nobody else on them; None if the network has to carry it in any case"""
        self.seconds = waits + free.time if free is not None else inf
        """how long it takes then [s]"""
        self.sides = sides
        self.demand: dict[int, float] = {}
        """link that others may cross, too -> what the transfer asks of it [B/s]"""
        self.contentions: tuple[LinkContention, ...] = ()
        """the same links"""
        self.flows: tuple[tuple[Bundle, float, int], ...] | None = None
        """(bundle, bytes, equal flows) as the network carries them; made on first use"""
        self.runs = 0
        """how often it ran without the network"""
        self.scale = 1.0
        """how many times its bytes the network carries"""


class Transfers:
    """The transfers of a run.

    `apart` are links that carry other traffic, or change; with `lazy` off the network carries all but the `contention_free`.
    """

    def __init__(
        self,
        cost: Callable[[Collective], CollectiveCost],
        capacity: Callable[[int], float],
        contention_free: dict[Collective, Uncontended],
        apart: frozenset[int],
        *,
        lazy: bool,
    ) -> None:
        self._cost = cost
        self._capacity = capacity
        self._contention_free = contention_free
        self._apart = apart
        self._lazy = lazy
        self._made: list[Transfer] = []
        self._contentions: dict[int, LinkContention] = {}

    def of(self, collective: Collective, waits: float, sides: Sides) -> Transfer:
        """The transfer of ops of one spec, which `waits` before its latency [s]; `sides` says which devices it loads."""
        cost = self._cost(collective)
        demand: dict[int, float] = {}
        free = self._contention_free.get(collective)
        if free is None:
            for flow in cost.flows:
                for link, coefficient in flow.path if flow.volume else ():
                    demand[link] = demand.get(link, 0.0) + coefficient * flow.cap
            if self._lazy and self._apart.isdisjoint(demand):
                free = uncontended(cost, self._capacity)
        elif not self._lazy and sides:
            free = None  # kernels slow it
        made = Transfer(collective, waits, cost.latency, free, sides)
        if self._lazy:
            made.demand = demand
            made.contentions = tuple(self._contention(link, asked) for link, asked in demand.items())
        self._made.append(made)
        return made

    def scaled(self, transfer: Transfer, factor: float) -> Transfer:
        """One that takes `factor` times as long alone: its waiting, its latency and its bytes, at the same rates."""
        free = transfer.free
        if free is not None:
            free = Uncontended(free.time * factor, tuple((link, size * factor, full * factor) for link, size, full in free.loads))
        made = Transfer(transfer.collective, transfer.waits * factor, transfer.latency * factor, free, transfer.sides)
        made.demand, made.contentions, made.scale = transfer.demand, transfer.contentions, factor
        self._made.append(made)
        return made

    def _contention(self, link: int, asked: float) -> LinkContention:
        if (found := self._contentions.get(link)) is None:
            found = self._contentions[link] = LinkContention(link, self._capacity(link))
        found.most = max(found.most, asked)
        return found

    def ran(self) -> Iterator[tuple[Uncontended, int]]:
        """What transfers did to their links without the network, and how often."""
        return ((made.free, made.runs) for made in self._made if made.free is not None and made.runs)
