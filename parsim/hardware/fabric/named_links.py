"""Links and NICs by the names that a user gives them.

A link stands between two vertices: ``leaf0-spine`` is both directions, ``leaf0->spine`` one. What is in a machine carries its number:
``node3.gpu0-nvswitch``; with one machine the number may be left out, and at the second vertex. A NIC is ``node3/nic2``; its links are
the cables to the fabric. The link between two regions is named by the regions: ``east-west``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.tree import closest

if TYPE_CHECKING:
    import networkx

_ARROW = re.compile(r"<->|->|<-|-")
_OF_NODE = re.compile(r"node([0-9]{1,9})[./](.+)")
_MOST_NAMES = 4000
"""names that are looked through for one that was meant"""


class Nic(NamedTuple):
    """A port of a machine into the fabric."""

    name: str
    """``node3/nic2``"""
    node: int
    port: int


class NamedLinks:
    """The links of a cluster by name."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @cached_property
    def _outside(self) -> networkx.DiGraph[str]:
        """The links between machines."""
        return self._cluster.fabric_graph()

    def between(self, name: str) -> tuple[int, ...]:
        """Ids of the links that ``A-B`` (both directions), ``A->B`` or ``A<-B`` names, ascending.

        Raises:
            TopologyError: there is no such link; the finding has what may have been meant.
        """
        for arrow in _ARROW.finditer(name):
            a, b = (self._vertex(side) for side in (name[: arrow.start()], name[arrow.end() :]))
            forward, back = (self._edge(*ends) for ends in ((a, b), (b, a)))
            wanted = {"->": forward, "<-": back}.get(arrow[0], forward | back)
            if wanted:
                return tuple(sorted(wanted))
        hint = closest(name, islice(self._names(name), _MOST_NAMES)).split(", ")
        text = f"{self._cluster.name} has no link {name!r}"
        raise TopologyError(Finding(text, value=name, suggestion=", ".join(hint[:8]) + (" ..." if len(hint) > 8 else "")))

    def nic(self, name: str) -> Nic:
        """The NIC ``node3/nic2``.

        Raises:
            TopologyError: there is none of this name.
        """
        match = _OF_NODE.fullmatch(self._vertex(name))
        node = int(match[1]) if match else -1
        if match and node < self._cluster.nodes and match[2] in (ports := self._cluster.machine(node).ports):
            return Nic(f"node{node}/{match[2]}", node, ports.index(match[2]))
        place = node if 0 <= node < self._cluster.nodes else 0
        known = [f"node{place}/{port}" for port in self._cluster.machine(place).ports]
        text = f"{self._cluster.name} has no NIC {name!r}; its machines are node0 ... node{self._cluster.nodes - 1}"
        raise TopologyError(Finding(text, value=name, suggestion=closest(name, known)))

    def cables(self, nic: Nic) -> tuple[int, ...]:
        """Ids of the links between a NIC and the fabric, both directions, ascending."""
        vertex = nic.name.replace("/", ".")
        if vertex not in self._outside:
            return ()
        both = (*self._outside.out_edges(vertex, data="id"), *self._outside.in_edges(vertex, data="id"))
        return tuple(sorted({number for _, _, number in both}))

    def _vertex(self, name: str) -> str:
        """A vertex as the graph spells it."""
        name = name.strip().replace("/", ".")
        if self._cluster.nodes == 1 and name in self._cluster.machine(0).graph:
            return f"node0.{name}"
        core = f"core {name}"  # links between regions stand between their cores, and users name the regions
        return core if core in self._outside and name not in self._outside else name

    def _edge(self, a: str, b: str) -> set[int]:
        """The link from one vertex to another, if there is one."""
        data = self._outside.get_edge_data(a, b)
        if data is not None:
            return {data["id"]}
        ends = [_OF_NODE.fullmatch(vertex) for vertex in (a, b)]
        nodes = {int(end[1]) for end in ends if end}
        if len(nodes) != 1 or max(nodes) >= self._cluster.nodes:
            return set()
        node = nodes.pop()
        names = [end[2] if end else vertex for end, vertex in zip(ends, (a, b), strict=True)]
        data = self._cluster.machine(node).graph.get_edge_data(*names)
        return set() if data is None else {self._cluster.first_link(node) + data["id"]}

    def _names(self, name: str) -> Iterator[str]:
        """Names of links, those of the machine that `name` speaks of first."""
        match = _OF_NODE.match(name)
        node = int(match[1]) if match else 0
        if node < self._cluster.nodes and (match or not self._cluster.fabric):
            yield from (f"node{node}.{a}-{b}" for a, b in self._cluster.machine(node).graph.edges() if a < b)
        # switches first: a cable of a NIC is named by the NIC, too
        names = [f"{a}-{b}" for a, b in self._outside.edges() if not b.startswith("node") or a.startswith("node")]
        yield from sorted(names, key=lambda one: one.startswith("node"))
