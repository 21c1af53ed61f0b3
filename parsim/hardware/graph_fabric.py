"""A network between machines that is given switch by switch and cable by cable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric import Fabric, Port
from parsim.hardware.links import Link
from parsim.hardware.routes import PathFinder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from parsim.hardware.fabric import Numbers


class GraphFabric(Fabric):
    """Switches and cables given one by one; ports are vertices of that graph."""

    kind = "graph"

    def __init__(self, finder: PathFinder, links: Sequence[Link], classes: Sequence[str], ports: Sequence[Sequence[str]]) -> None:
        self.finder = finder
        self.links = tuple(links)
        self.classes = tuple(classes)
        self.port_names = tuple(tuple(names) for names in ports)
        self.nodes = len(self.port_names)
        self.ports = sum(len(names) for names in self.port_names)
        self.blocks = tuple((1, len(names)) for names in self.port_names)
        self.message_latency = max((data["link_kind"].message_latency for _, _, data in finder.edges()), default=0.0)
        self._routes: dict[tuple[Port, Port], tuple[int, ...]] = {}

    @property
    def machines_per_leaf(self) -> int:
        return 0

    @property
    def link_count(self) -> int:
        return len(self.links)

    def route(self, source: Port, target: Port) -> tuple[int, ...]:
        key = (source, target)
        if key not in self._routes:
            a, b = self.port_names[source.node][source.port], self.port_names[target.node][target.port]
            found = self.finder.network(a, b)
            if found is None:
                raise TopologyError(Finding(f"no path from {a} to {b}", "edges", f"{a} -> {b}", "connect them with an edge"))
            self._routes[key] = found.links
        return self._routes[key]

    def link(self, local: int) -> Link:
        return self.links[local]

    def capacity(self, local: int) -> float:
        return self.links[local].capacity

    def capacities(self, local: Numbers) -> NDArray[np.float64]:
        import numpy as np

        return np.array([link.capacity for link in self.links], dtype=np.float64)[local]

    def latency(self, local: int) -> float:
        return self.links[local].latency

    def link_class(self, local: int) -> str:
        return self.classes[local]
