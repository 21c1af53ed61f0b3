"""Networks between machines. Link ids are arithmetic: nothing is stored per link or per port.

Port p = (machine, port of the machine) has link 2p into the network and 2p + 1 out of it; trunks follow. Switches above
the leaves are non-blocking. Traffic is sprayed over the trunk of a leaf, so a trunk is one link each way with the summed
capacity of its cables (adaptive routing, packet spraying, SRD); or it is hashed (ECMP): each cable is a link, and a pair of
ports keeps to one of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from parsim.hardware.fabric.links import Link, LinkKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


TRUNK_LATENCY = 0.3e-6
"""one more switch hop [s]; InfiniBand switches forward in 0.2-0.3 us"""


_WORD = (1 << 64) - 1


def _mixed(value: int) -> int:
    """splitmix64's finaliser."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


class Port(NamedTuple):
    """A plug of a machine into the fabric: the machine and which of its ports."""

    node: int
    port: int


class Fabric:
    """One non-blocking switch, and the base of the other shapes.

    `ports_per_node` lists how many ports each block of equal machines has: (machines, ports) pairs.
    """

    kind = "single-switch"
    rail_bound = False
    """a message must leave and arrive on the same rail (port number) to avoid extra hops"""

    def __init__(self, link: LinkKind, blocks: Sequence[tuple[int, int]]) -> None:
        self.link_kind = link
        self.blocks = tuple(blocks)
        self.nodes = sum(count for count, _ in self.blocks)
        self.ports = sum(count * ports for count, ports in self.blocks)
        self.message_latency = link.message_latency
        self.handshake = link.handshake
        self._half = link.duplex == "half"
        self._ports_each = self.blocks[0][1] if len(self.blocks) == 1 else 0

    @property
    def link_count(self) -> int:
        """Directed links of the fabric."""
        return 2 * self.ports

    def index(self, port: Port) -> int:
        """Number of the port among all ports."""
        if self._ports_each:
            return port.node * self._ports_each + port.port
        node, first = port.node, 0
        for count, ports in self.blocks:
            if node < count:
                return first + node * ports + port.port
            node -= count
            first += count * ports
        raise IndexError(port)

    def route(self, source: Port, target: Port) -> tuple[int, ...]:
        """Local link ids from one port to another."""
        return (self._into(source), *self._across(source, target), self._out(target))

    def loads(self, source: Port, target: Port) -> tuple[tuple[int, float], ...]:
        """(local link id, bytes on it for each byte from one port to another)."""
        return tuple([(link, 1.0) for link in self.route(source, target)])

    def hashed_anew(self, seed: int) -> Fabric:
        """The same network with another hash; itself where nothing is hashed."""
        return self

    @property
    def machines_per_leaf(self) -> int:
        """How many consecutive machines share their leaf switches; 0 where links depend on more than that."""
        return self.nodes if self._ports_each else 0

    def shifted(self, links: Numbers, machines: Numbers, leaves: Numbers) -> Numbers:
        """Local link ids of the same links so many machines and leaves further on: a row for each."""
        by: Numbers = 2 * machines * self._ports_each
        return links[None, :] + by[:, None]

    def _into(self, port: Port) -> int:
        return 2 * self.index(port)

    def _out(self, port: Port) -> int:
        return 2 * self.index(port) + (0 if self._half else 1)

    def _across(self, source: Port, target: Port) -> tuple[int, ...]:
        return ()

    def to_core(self, port: Port) -> tuple[int, ...]:
        """Local link ids from a port to where other networks are joined: above all switches."""
        return (self._into(port),)

    def from_core(self, port: Port) -> tuple[int, ...]:
        """Local link ids from there to a port."""
        return (self._out(port),)

    def port_kind(self, node: int) -> LinkKind:
        """The kind of link that a machine plugs in."""
        return self.link_kind

    def leaf_of(self, port: Port) -> int:
        """Which leaf switch the port plugs into."""
        return 0

    def link(self, local: int) -> Link:
        """Link by local id."""
        node, port = self._owner(local // 2)
        name = f"node{node}.port{port}" + ("<->leaf" if self._half else "->leaf" if local % 2 == 0 else "<-leaf")
        return Link(self.link_kind.name, self.link_kind.capacity, self.link_kind.latency, name, self.link_kind.duplex)

    def capacity(self, local: int) -> float:
        """Capacity by local id [B/s]."""
        return self.link_kind.capacity

    def capacities(self, local: Numbers) -> NDArray[np.float64]:
        """Capacities by local ids [B/s]."""
        import numpy as np

        return np.full(len(local), self.link_kind.capacity)

    def slack(self, local: Numbers) -> Numbers:
        """Links that can never be full before others on every path through them are, by local ids: 1 up, 2 down; 0: any other."""
        import numpy as np

        return np.zeros(len(local), dtype=np.int64)

    def latency(self, local: int) -> float:
        """Latency of one hop by local id [s]."""
        return self.link_kind.latency

    def link_class(self, local: int) -> str:
        """What the link connects."""
        return "nic<->leaf" if self._half else "nic->leaf" if local % 2 == 0 else "leaf->nic"

    def classes_of_links(self) -> Iterator[tuple[int, int]]:
        """One link of every class by local id, and how many links the class has."""
        if self._half:
            yield 0, 2 * self.ports
        else:
            yield 0, self.ports
            yield 1, self.ports

    def switches(self) -> dict[str, int]:
        """Kind of switch -> how many there are."""
        return {"leaf": 1}

    def ends(self, local: int) -> tuple[str, str]:
        """Vertex names at both ends of a link, for the graph; ports are ``node<k>.port<p>``."""
        port = self._owner(local // 2)
        leaf = self._leaf_name(self.leaf_of(Port(*port)))
        ends = (f"node{port[0]}.port{port[1]}", leaf)
        return ends if local % 2 == 0 else (ends[1], ends[0])

    def _leaf_name(self, leaf: int) -> str:
        return f"leaf{leaf}"

    def _owner(self, index: int) -> tuple[int, int]:
        node = 0
        for count, ports in self.blocks:
            if index < count * ports:
                return node + index // ports, index % ports
            index -= count * ports
            node += count
        raise IndexError(index)


class FatTree(Fabric):
    """Leaf switches of `leaf_ports` plugs under a non-blocking core; trunks thinner by `oversubscription`.

    `hashed`: every leaf has ``leaf_ports / oversubscription`` cables, cable u to spine switch u, and all that goes from one port
    to another takes the same spine switch, chosen by a hash of both and `seed` (RFC 2992: a flow keeps its path). With several
    `queue_pairs` between two ports each carries an equal part of that, on a path of its own.
    """

    kind = "fat-tree"

    def __init__(
        self,
        link: LinkKind,
        blocks: Sequence[tuple[int, int]],
        leaf_ports: int,
        oversubscription: float,
        *,
        hashed: bool = False,
        seed: int = 0,
        queue_pairs: int = 1,
    ) -> None:
        super().__init__(link, blocks)
        self.leaf_ports = leaf_ports
        self.oversubscription = oversubscription
        widest = max(ports for _, ports in self.blocks)
        self.nodes_per_leaf = leaf_ports // widest
        self.trunk_capacity = leaf_ports * link.capacity / oversubscription
        self.hashed = hashed
        self.seed = seed
        self.queue_pairs = queue_pairs
        self.uplinks = round(leaf_ports / oversubscription) if hashed else 1
        """links of a leaf to the core, each way"""
        self.uplink_capacity = link.capacity if hashed else self.trunk_capacity

    @cached_property
    def leaves(self) -> int:
        """Leaf switches."""
        return math.ceil(self.nodes / self.nodes_per_leaf) if self.nodes_per_leaf else math.ceil(self.ports / self.leaf_ports)

    @property
    def link_count(self) -> int:
        return 2 * self.ports + 2 * self.leaves * self.uplinks

    def leaf_of(self, port: Port) -> int:
        return port.node // self.nodes_per_leaf if self.nodes_per_leaf else self.index(port) // self.leaf_ports

    def hashed_anew(self, seed: int) -> Fabric:
        if not self.hashed:
            return self
        other = copy(self)
        other.seed = seed
        return other

    def uplink(self, source: Port, target: Port, queue_pair: int = 0) -> int:
        """Which of the leaf's uplinks carries what `source` sends to `target` over one of their queue pairs."""
        if self.uplinks == 1:
            return 0
        found = _mixed(_mixed(_mixed(self.seed) ^ self.index(source)) ^ self.index(target))
        return (_mixed(found ^ queue_pair) if queue_pair else found) % self.uplinks

    def loads(self, source: Port, target: Port) -> tuple[tuple[int, float], ...]:
        if self.queue_pairs == 1 or not self.hashed:
            return super().loads(source, target)
        taken = Counter(link for pair in range(self.queue_pairs) for link in self._across(source, target, pair))
        across = [(link, count / self.queue_pairs) for link, count in taken.items()]
        return ((self._into(source), 1.0), *across, (self._out(target), 1.0))

    def _across(self, source: Port, target: Port, queue_pair: int = 0) -> tuple[int, ...]:
        up, down = self.leaf_of(source), self.leaf_of(target)
        if up == down:
            return ()
        spine, first = self.uplink(source, target, queue_pair), 2 * self.ports
        return (first + 2 * (up * self.uplinks + spine), first + 2 * (down * self.uplinks + spine) + 1)

    def to_core(self, port: Port) -> tuple[int, ...]:
        spine, first = self.uplink(port, port), 2 * self.ports
        return (self._into(port), first + 2 * (self.leaf_of(port) * self.uplinks + spine))

    def from_core(self, port: Port) -> tuple[int, ...]:
        spine, first = self.uplink(port, port), 2 * self.ports
        return (first + 2 * (self.leaf_of(port) * self.uplinks + spine) + 1, self._out(port))

    @property
    def machines_per_leaf(self) -> int:
        return 0 if self.hashed or not self._ports_each else self.nodes_per_leaf

    def shifted(self, links: Numbers, machines: Numbers, leaves: Numbers) -> Numbers:
        trunk = links >= 2 * self.ports
        return ~trunk * super().shifted(links, machines, leaves) + trunk * (links[None, :] + 2 * leaves[:, None])

    def _trunk_ends(self, trunk: int) -> tuple[str, str]:
        """Leaf and spine of a link above the leaves, counted from the first of them."""
        leaf, spine = divmod(trunk // 2, self.uplinks)
        return self._leaf_name(leaf), f"spine{spine}" if self.hashed else "spine"

    def link(self, local: int) -> Link:
        trunk = local - 2 * self.ports
        if trunk < 0:
            return super().link(local)
        leaf, spine = self._trunk_ends(trunk)
        name = f"{leaf}->{spine}" if trunk % 2 == 0 else f"{spine}->{leaf}"
        return Link(f"{self.link_kind.name}-{'uplink' if self.hashed else 'trunk'}", self.uplink_capacity, TRUNK_LATENCY, name)

    def capacity(self, local: int) -> float:
        return self.link_kind.capacity if local < 2 * self.ports else self.uplink_capacity

    def capacities(self, local: Numbers) -> NDArray[np.float64]:
        trunk = local >= 2 * self.ports
        return ~trunk * self.link_kind.capacity + trunk * self.uplink_capacity

    def slack(self, local: Numbers) -> Numbers:
        """A trunk as thick as all cables to the leaf together: whatever crosses it crosses one of those, too."""
        thick = not self.hashed and self.trunk_capacity >= self.leaf_ports * self.link_kind.capacity
        return (local >= 2 * self.ports) * thick * (1 + local % 2)

    def latency(self, local: int) -> float:
        return self.link_kind.latency if local < 2 * self.ports else TRUNK_LATENCY

    def link_class(self, local: int) -> str:
        if local < 2 * self.ports:
            return super().link_class(local)
        name = "leaf->spine" if local % 2 == 0 else "spine->leaf"
        return f"{name} (one cable)" if self.hashed else name

    def classes_of_links(self) -> Iterator[tuple[int, int]]:
        yield from super().classes_of_links()
        for way in (0, 1):
            yield 2 * self.ports + way, self.leaves * self.uplinks

    def switches(self) -> dict[str, int]:
        return {"leaf": self.leaves, "spine": self.uplinks}

    def ends(self, local: int) -> tuple[str, str]:
        trunk = local - 2 * self.ports
        if trunk < 0:
            return super().ends(local)
        leaf, spine = self._trunk_ends(trunk)
        return (leaf, spine) if trunk % 2 == 0 else (spine, leaf)


class RailOptimised(FatTree):
    """Leaf (r, pod) connects port r of every machine of a pod of `leaf_ports` machines; other pairs cross the spine."""

    kind = "rail-optimised"
    rail_bound = True

    @cached_property
    def pods(self) -> int:
        """Groups of machines that share leaves."""
        return math.ceil(self.nodes / self.leaf_ports)

    @cached_property
    def leaves(self) -> int:
        return max(ports for _, ports in self.blocks) * self.pods

    def leaf_of(self, port: Port) -> int:
        return port.port * self.pods + port.node // self.leaf_ports

    @property
    def machines_per_leaf(self) -> int:
        return 0 if self.hashed or not self._ports_each else self.leaf_ports

    def _leaf_name(self, leaf: int) -> str:
        return f"rail{leaf // self.pods}.leaf{leaf % self.pods}"
