"""Networks of several kinds of machines joined at their top: every run of equal machines keeps its own network, an island.

Islands of one region meet in a core that blocks nothing; two regions are joined by one link each way, which all traffic between
them shares. Local link ids: island by island in the order of the machines, then the links between regions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.links import Link, LinkKind
from parsim.hardware.fabric.switches import Fabric, Port

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from parsim.hardware.fabric.switches import Numbers

REGION_LINK = "region-link"
"""kind of the links between regions"""
_MACHINE = re.compile(r"node(\d+)\.")


@dataclass(frozen=True, slots=True)
class RegionLink:
    """The link between two regions, the same each way."""

    bandwidth: float
    """[B/s]"""
    latency: float
    """one way [s]"""


class JoinedFabric(Fabric):
    """Islands, the region of each, and the links between pairs of regions."""

    kind = "joined"

    def __init__(
        self, islands: Sequence[Fabric], regions: Sequence[str] = (), links: Mapping[tuple[str, str], RegionLink] | None = None
    ) -> None:
        fastest = max(islands, key=lambda island: island.link_kind.capacity)
        super().__init__(fastest.link_kind, [block for island in islands for block in island.blocks])
        self.islands = tuple(islands)
        self.regions = tuple(regions) or ("",) * len(self.islands)
        """of every island"""
        self.message_latency = max(island.message_latency for island in islands)
        self.handshake = max(island.handshake for island in islands)
        self.rail_bound = all(island.rail_bound for island in islands)
        self._first_node = [0, *accumulate(island.nodes for island in islands)]
        self._first_link = [0, *accumulate(island.link_count for island in islands)]
        self._island_of_node = [number for number, island in enumerate(islands) for _ in range(island.nodes)]
        self._between: list[tuple[str, str]] = []
        self._region_links: list[RegionLink] = []
        for (one, other), link in (links or {}).items():
            self._between += [(one, other), (other, one)]
            self._region_links += [link, link]
        self._numbers = {pair: number for number, pair in enumerate(self._between)}

    @property
    def link_count(self) -> int:
        return self._first_link[-1] + len(self._between)

    @property
    def machines_per_leaf(self) -> int:
        return 0

    def check_regions(self) -> None:
        """Raise `TopologyError` where two regions have no link between them."""
        present = dict.fromkeys(self.regions)
        for one in present:
            for other in present:
                if one != other:
                    self._number(one, other)

    def region_of(self, node: int) -> str:
        """The region of a machine."""
        return self.regions[self._island_of_node[node]]

    def region_latency(self, source: int, target: int) -> float:
        """What the link between the regions of two machines adds, one way [s]."""
        one, other = self.region_of(source), self.region_of(target)
        return 0.0 if one == other else self._region_links[self._number(one, other)].latency

    def port_kind(self, node: int) -> LinkKind:
        return self.islands[self._island_of_node[node]].link_kind

    def route(self, source: Port, target: Port) -> tuple[int, ...]:
        one, other = self._island_of_node[source.node], self._island_of_node[target.node]
        away, home = self._in_island(source, one), self._in_island(target, other)
        if one == other:
            return tuple(link + self._first_link[one] for link in self.islands[one].route(away, home))
        up = tuple(link + self._first_link[one] for link in self.islands[one].to_core(away))
        down = tuple(link + self._first_link[other] for link in self.islands[other].from_core(home))
        regions = (self.regions[one], self.regions[other])
        across = (self._first_link[-1] + self._number(*regions),) if regions[0] != regions[1] else ()
        return (*up, *across, *down)

    def _number(self, one: str, other: str) -> int:
        number = self._numbers.get((one, other))
        if number is None:
            known = " and ".join(f"{a}-{b}" for a, b in self._between[::2]) or "none"
            text = f"regions {one} and {other} exchange bytes, but no link joins them (links: {known})"
            hint = f"add {{between: [{one}, {other}], bandwidth: 1 Gb/s, latency: 30 ms}}"
            raise TopologyError(Finding(text, "cluster.regions", None, hint))
        return number

    def _in_island(self, port: Port, island: int) -> Port:
        return Port(port.node - self._first_node[island], port.port)

    def to_core(self, port: Port) -> tuple[int, ...]:
        island = self._island_of_node[port.node]
        own = self.islands[island].to_core(self._in_island(port, island))
        return tuple(link + self._first_link[island] for link in own)

    def leaf_of(self, port: Port) -> int:
        island = self._island_of_node[port.node]
        before = sum(one.switches().get("leaf", 1) for one in self.islands[:island])
        return before + self.islands[island].leaf_of(self._in_island(port, island))

    def _place(self, local: int) -> tuple[int, int]:
        """Island and its own link id; (-1, number) for a link between regions."""
        if local >= self._first_link[-1]:
            return -1, local - self._first_link[-1]
        island = next(number for number in range(len(self.islands)) if local < self._first_link[number + 1])
        return island, local - self._first_link[island]

    def link(self, local: int) -> Link:
        island, own = self._place(local)
        if island < 0:
            one, link = self._between[own], self._region_links[own]
            return Link(REGION_LINK, link.bandwidth, link.latency, f"region {one[0]}->region {one[1]}")
        found = self.islands[island].link(own)
        return found._replace(
            name=f"{self._named(found.name, island)}" if found.name.startswith("node") else f"island{island}.{found.name}"
        )

    def _named(self, name: str, island: int) -> str:
        """A name of an island as it is in the whole; what stands on top of it is the core of its region."""
        first = self._first_node[island]
        if (machine := _MACHINE.match(name)) is not None:
            return f"node{int(machine[1]) + first}.{name[machine.end() :]}"
        top = "spine" in self.islands[island].switches()
        return f"core {self.regions[island]}".rstrip() if name == "spine" or not top else f"island{island}.{name}"

    def capacity(self, local: int) -> float:
        island, own = self._place(local)
        return self._region_links[own].bandwidth if island < 0 else self.islands[island].capacity(own)

    def _each(self, local: Numbers) -> Iterator[tuple[Fabric, NDArray[np.bool_], int]]:
        """Islands, which of the links are theirs, and the first link of each."""
        for number, island in enumerate(self.islands):
            first = self._first_link[number]
            yield island, (local >= first) & (local < first + island.link_count), first

    def capacities(self, local: Numbers) -> NDArray[np.float64]:
        import numpy as np

        rates = np.zeros(len(local))
        for island, mine, first in self._each(local):
            rates[mine] = island.capacities(local[mine] - first)
        for place in np.flatnonzero(local >= self._first_link[-1]).tolist():
            rates[place] = self._region_links[int(local[place]) - self._first_link[-1]].bandwidth
        return rates

    def slack(self, local: Numbers) -> Numbers:
        import numpy as np

        found = np.zeros(len(local), dtype=np.int64)
        for island, mine, first in self._each(local):
            found[mine] = island.slack(local[mine] - first)
        return found

    def latency(self, local: int) -> float:
        island, own = self._place(local)
        return self._region_links[own].latency if island < 0 else self.islands[island].latency(own)

    def link_class(self, local: int) -> str:
        island, own = self._place(local)
        if island < 0:
            return "{}->{}".format(*self._between[own])
        return self.islands[island].link_class(own)

    def classes_of_links(self) -> Iterator[tuple[int, int]]:
        for number, island in enumerate(self.islands):
            yield from ((own + self._first_link[number], count) for own, count in island.classes_of_links())
        yield from ((self._first_link[-1] + number, 1) for number in range(len(self._between)))

    def switches(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for island in self.islands:
            for kind, count in island.switches().items():
                found[kind] = found.get(kind, 0) + count
        return found | {"core": len(set(self.regions))}

    def ends(self, local: int) -> tuple[str, str]:
        island, own = self._place(local)
        if island < 0:
            return tuple(f"core {region}".rstrip() for region in self._between[own])  # type: ignore[return-value]
        one, other = self.islands[island].ends(own)
        return self._named(one, island), self._named(other, island)
