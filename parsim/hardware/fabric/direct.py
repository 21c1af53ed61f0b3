"""Networks without leaf switches in rows: a full mesh, a torus, and one given switch by switch and cable by cable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.links import Link, LinkKind
from parsim.hardware.fabric.routes import PathFinder
from parsim.hardware.fabric.switches import Fabric, Port

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from parsim.hardware.fabric.switches import Numbers


class FullMesh(Fabric):
    """A cable from every machine to every other, one per rail."""

    kind = "full-mesh"
    rail_bound = True

    def __init__(self, link: LinkKind, blocks: Sequence[tuple[int, int]]) -> None:
        super().__init__(link, blocks)
        self.rails = max(ports for _, ports in self.blocks)

    @property
    def machines_per_leaf(self) -> int:
        return 0

    @property
    def link_count(self) -> int:
        return self.nodes * self.nodes * self.rails

    def route(self, source: Port, target: Port) -> tuple[int, ...]:
        first, second = source.node, target.node
        if self._half and first > second:
            first, second = second, first
        return ((first * self.nodes + second) * self.rails + source.port,)

    def link(self, local: int) -> Link:
        source, target = self.ends(local)
        return Link(self.link_kind.name, self.link_kind.capacity, self.link_kind.latency, f"{source}->{target}", self.link_kind.duplex)

    def link_class(self, local: int) -> str:
        return "nic->nic"

    def classes_of_links(self) -> Iterator[tuple[int, int]]:
        yield 0, self.link_count

    def switches(self) -> dict[str, int]:
        return {}

    def ends(self, local: int) -> tuple[str, str]:
        pair, rail = divmod(local, self.rails)
        source, target = divmod(pair, self.nodes)
        return f"node{source}.port{rail}", f"node{target}.port{rail}"


class Torus(Fabric):
    """Machines at the points of a torus, one link each way to both neighbours along every dimension.

    A message travels dimension by dimension, the shorter way round. Half way round both are as short: machines at even coordinates take
    the positive way and the others the negative, so that an exchange among all loads both ways alike.
    """

    kind = "torus"

    def __init__(self, link: LinkKind, blocks: Sequence[tuple[int, int]], dims: tuple[int, ...]) -> None:
        super().__init__(link, blocks)
        self.dims = dims

    @property
    def machines_per_leaf(self) -> int:
        return 0

    @property
    def link_count(self) -> int:
        return self.nodes * 2 * len(self.dims)

    def position(self, node: int) -> list[int]:
        """Coordinates of a machine, first dimension fastest."""
        place: list[int] = []
        for size in self.dims:
            node, at = divmod(node, size)
            place.append(at)
        return place

    def at(self, place: Sequence[int]) -> int:
        """Machine at the coordinates."""
        node = 0
        for at, size in zip(reversed(place), reversed(self.dims), strict=True):
            node = node * size + at
        return node

    def route(self, source: Port, target: Port) -> tuple[int, ...]:
        here, there = self.position(source.node), self.position(target.node)
        links: list[int] = []
        for axis, size in enumerate(self.dims):
            forward = (there[axis] - here[axis]) % size
            tie = 2 * forward == size
            step = 1 if (here[axis] % 2 == 0 if tie else 2 * forward < size) else -1
            while here[axis] != there[axis]:
                links.append((self.at(here) * len(self.dims) + axis) * 2 + (0 if step > 0 else 1))
                here[axis] = (here[axis] + step) % size
        return tuple(links)

    def link(self, local: int) -> Link:
        source, target = self.ends(local)
        return Link(self.link_kind.name, self.link_kind.capacity, self.link_kind.latency, f"{source}->{target}", "full")

    def link_class(self, local: int) -> str:
        axis, way = divmod(local % (2 * len(self.dims)), 2)
        return f"torus {'xyzuvw'[axis]}{'+-'[way]}"

    def classes_of_links(self) -> Iterator[tuple[int, int]]:
        return ((direction, self.nodes) for direction in range(2 * len(self.dims)))

    def switches(self) -> dict[str, int]:
        return {}

    def ends(self, local: int) -> tuple[str, str]:
        node, rest = divmod(local, 2 * len(self.dims))
        axis, way = divmod(rest, 2)
        place = self.position(node)
        place[axis] = (place[axis] + (1 if way == 0 else -1)) % self.dims[axis]
        return f"node{node}.port0", f"node{self.at(place)}.port0"


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
        kinds = [data["link_kind"] for _, _, data in finder.edges()]
        self.message_latency = max((kind.message_latency for kind in kinds), default=0.0)
        self.handshake = max((kind.handshake for kind in kinds), default=0.0)
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
            way = self.finder.network(a, b)
            if way is None:
                raise TopologyError(Finding(f"no path from {a} to {b}", "edges", f"{a} -> {b}", "connect them with an edge"))
            self._routes[key] = way.links
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

    def classes_of_links(self) -> Iterator[tuple[int, int]]:
        return ((local, 1) for local in range(len(self.links)))

    def switches(self) -> dict[str, int]:
        names: dict[str, set[str]] = {}
        for local, name in enumerate(self.classes):
            kinds = name.partition(" (")[0].replace("<->", "->").split("->")
            for kind, end in zip(kinds, self.ends(local), strict=False):
                if len(kinds) == 2 and kind != "nic":
                    names.setdefault(kind, set()).add(end)
        return {kind: len(switches) for kind, switches in names.items()}
