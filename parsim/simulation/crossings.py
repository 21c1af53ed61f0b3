"""Transfers that meet on a link: as long as they cannot fill it together, none of them notices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from math import fsum, inf

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective, Lane
from parsim.simulation.devices import Device
from parsim.simulation.serial import Serial, alone
from parsim.simulation.sharing import SATURATED

Sides = tuple[tuple[Device, int], ...]


class Crossing(dict[int, "Transfer"]):
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
    """A collective in its lanes."""

    __slots__ = ("crossings", "demand", "free", "latency", "runs", "seconds", "sides")

    def __init__(self, latency: float, seconds: float, free: Serial | None, sides: Sides) -> None:
        self.latency = latency
        self.seconds = seconds
        """latency and transfer with nobody else on its links [s]"""
        self.free = free
        """what it does to its links then; None if the network has to carry it in any case"""
        self.sides = sides
        """devices that it loads, and the number of the load"""
        self.demand: dict[int, float] = {}
        """link that others may cross, too -> what the transfer asks of it [B/s]"""
        self.crossings: tuple[Crossing, ...] = ()
        """the same links"""
        self.runs = 0
        """how often it ran without the network"""


class Transfers:
    """The transfers of a run. `apart` are links that carry other traffic, or change."""

    def __init__(
        self,
        cost: Callable[[Collective], CollectiveCost],
        capacity: Callable[[int], float],
        serial: dict[int, Serial],
        apart: frozenset[int],
    ) -> None:
        self._cost = cost
        self._capacity = capacity
        self._serial = serial
        self._apart = apart
        self.known: dict[int, dict[int, Transfer]] = {}
        """id of a collective -> id of its lanes -> transfer; the program keeps both alive"""
        self._crossings: dict[int, Crossing] = {}

    def of(self, collective: Collective, lanes: tuple[Lane, ...], sides: Callable[[Collective, tuple[Lane, ...]], Sides]) -> Transfer:
        """The transfer of a collective in these lanes; `sides` says which devices it loads."""
        if (known := self.known.get(id(collective))) is None:
            known = self.known[id(collective)] = {}
        if (found := known.get(id(lanes))) is None:
            found = known[id(lanes)] = self._make(collective, sides(collective, lanes))
        return found

    def _make(self, collective: Collective, sides: Sides) -> Transfer:
        cost = self._cost(collective)
        if (serial := self._serial.get(id(collective))) is not None:
            return Transfer(cost.latency, serial.time, serial, sides)
        demand: dict[int, float] = {}
        for flow in cost.flows:
            for link, coefficient in flow.path if flow.volume else ():
                demand[link] = demand.get(link, 0.0) + coefficient * flow.cap
        free = alone(cost, self._capacity) if self._apart.isdisjoint(demand) else None
        found = Transfer(cost.latency, inf if free is None else free.time, free, sides)
        found.demand = demand
        found.crossings = tuple(self._crossing(link, asked) for link, asked in demand.items())
        return found

    def _crossing(self, link: int, asked: float) -> Crossing:
        if (found := self._crossings.get(link)) is None:
            found = self._crossings[link] = Crossing(link, self._capacity(link))
        found.most = max(found.most, asked)
        return found

    def ran(self) -> list[Serial]:
        """What transfers did to links that others cross, too, without the network; the others count where they are known."""
        found = []
        for transfer in self:
            if transfer.free is None:
                continue
            transfer.free.runs += transfer.runs
            if transfer.crossings:
                found.append(transfer.free)
        return found

    @property
    def ends(self) -> int:
        """How many transfers on such links ended without the network."""
        return sum(transfer.runs for transfer in self if transfer.crossings)

    def __iter__(self) -> Iterator[Transfer]:
        return (transfer for known in self.known.values() for transfer in known.values())
