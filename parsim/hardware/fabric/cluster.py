"""The cluster: machines on a fabric, with a number for every GPU and every directed link.

A cluster stores one graph per kind of machine; everything else is arithmetic, so 16,384 GPUs cost no more than eight.
Link ids: machine by machine in the order of the machine's own edges, then the fabric's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Literal, NamedTuple

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import Device
from parsim.hardware.fabric.library import DEFAULTS, Library
from parsim.hardware.fabric.links import Link
from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.routes import NOWHERE, TIER_NETWORK, Route, join, shift, unreachable
from parsim.hardware.fabric.storage import Storage, add_storage
from parsim.hardware.fabric.switches import Fabric, Port
from parsim.hardware.fabric.topology import GpuPrice

if TYPE_CHECKING:
    import networkx
    import numpy as np
    from numpy.typing import NDArray


Placement = Literal["packed", "scattered"] | Sequence[int]


@dataclass(frozen=True, slots=True)
class MachineRange:
    """A run of equal machines and where their numbers begin."""

    node: Node
    count: int
    first_node: int
    first_gpu: int
    first_link: int


class RouteEnds(NamedTuple):
    """The local ends of a route between machines."""

    out: Route
    port: int
    landing: int
    into: Route


class Cluster:
    """All devices and links of a job.

    GPUs are numbered machine by machine from 0. `gpus`, and `per_node` of every machine, may be fewer than are installed:
    the rest are idle.
    """

    def __init__(
        self,
        name: str,
        machines: Sequence[tuple[Node, int]],
        fabric: Fabric | None = None,
        *,
        gpus: int | None = None,
        per_node: int | Sequence[int] | None = None,
        placement: Placement = "packed",
        price: GpuPrice | None = None,
        library: Library = DEFAULTS,
    ) -> None:
        self.name = name
        self.price = price
        self.storage: Storage | None = None
        """where checkpoints go"""
        self.library = library
        """what the machines set for the library of collectives"""
        self.fabric = fabric
        blocks: list[MachineRange] = []
        nodes = total = links = 0
        for node, count in machines:
            blocks.append(MachineRange(node, count, nodes, total, links))
            nodes += count
            total += count * node.gpus
            links += count * len(node.links)
        self.blocks = tuple(blocks)
        self.nodes = nodes
        self.installed_gpus = total
        self.first_fabric_link = links
        self.link_count = links + (fabric.link_count if fabric else 0)
        self._gpu_starts = [block.first_gpu for block in blocks]
        self._node_starts = [block.first_node for block in blocks]
        self._link_starts = [block.first_link for block in blocks]
        each = self.gpus_per_node if per_node is None else per_node if isinstance(per_node, int) else max(per_node)
        if each > self.gpus_per_node:
            text = f"{each} GPUs of every machine requested, {name} has {self.gpus_per_node} in each"
            raise TopologyError(Finding(text, "cluster.gpus_per_node", each, f"use at most {self.gpus_per_node}"))
        limits = [each] * len(blocks) if per_node is None or isinstance(per_node, int) else per_node
        self._used = tuple(min(block.node.gpus, limit) for block, limit in zip(blocks, limits, strict=True))
        """GPUs that are used of every machine of each block"""
        usable = sum(block.count * used for block, used in zip(blocks, self._used, strict=True))
        if gpus is not None and not 1 <= gpus <= usable:
            text = f"{gpus} GPUs wanted, {name} has {nodes} x {usable // nodes} = {usable}"
            raise TopologyError(Finding(text, "cluster.gpus", gpus, f"use cluster.gpus {usable}, or more nodes"))
        self.gpus = usable if gpus is None else gpus
        self._placement = placement
        if not isinstance(placement, str):
            self._check_placement(placement)

    # GPUs

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the largest machine."""
        return max(block.node.gpus for block in self.blocks)

    def device(self, gpu: int) -> Device:
        """The device in slot `gpu`."""
        block = self._block(gpu)
        return block.node.devices[(gpu - block.first_gpu) % block.node.gpus]

    def node_of(self, gpu: int) -> int:
        """Machine that holds `gpu`."""
        block = self._block(gpu)
        return block.first_node + (gpu - block.first_gpu) // block.node.gpus

    def local(self, gpu: int) -> int:
        """Index of `gpu` inside its machine."""
        block = self._block(gpu)
        return (gpu - block.first_gpu) % block.node.gpus

    def by_machine(self, group: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Machine -> ascending local indices of its members; machines in the order in which the group names them."""
        members: dict[int, list[int]] = {}
        if len(self.blocks) == 1 and group and min(group) >= 0 and max(group) < self.installed_gpus:
            each = self.blocks[0].node.gpus
            for gpu in group:
                node, local = divmod(gpu, each)
                members.setdefault(node, []).append(local)
        else:
            for gpu in group:
                members.setdefault(self.node_of(gpu), []).append(self.local(gpu))
        return {node: tuple(sorted(locals_)) for node, locals_ in members.items()}

    def gpu(self, node: int, local: int) -> int:
        """GPU number of machine `node`, slot `local`."""
        block = self._block_of_node(node)
        return block.first_gpu + (node - block.first_node) * block.node.gpus + local

    def machine(self, node: int) -> Node:
        """The kind of machine `node` is."""
        return self._block_of_node(node).node

    def placement(self, ranks: int) -> tuple[int, ...]:
        """The GPU of each of `ranks` ranks: packed fills machines one after the other, scattered deals round-robin.

        Raises:
            TopologyError: more ranks than GPUs.
        """
        chosen = self._placement
        if not isinstance(chosen, str):
            if len(chosen) < ranks:
                raise TopologyError(Finding(f"the placement names {len(chosen)} GPUs for {ranks} ranks", "cluster.placement", list(chosen)))
            return tuple(chosen[:ranks])
        if ranks > self.gpus:
            raise TopologyError(Finding(f"{ranks} ranks need {ranks} GPUs, {self.name} has {self.gpus}", "cluster.gpus", self.gpus))
        if chosen not in ("packed", "scattered"):
            raise TopologyError(Finding("expected packed, scattered or a list of GPUs", "cluster.placement", chosen))
        if chosen == "packed" and all(used == block.node.gpus for used, block in zip(self._used, self.blocks, strict=True)):
            return tuple(range(ranks))
        each = max(self._used)
        every = product(range(self.nodes), range(each))
        places = every if chosen == "packed" else ((node, local) for local, node in product(range(each), range(self.nodes)))
        used = [used for used, block in zip(self._used, self.blocks, strict=True) for _ in range(block.count)]
        gpus = (self.gpu(node, local) for node, local in places if local < used[node])
        return tuple(islice(gpus, ranks))

    def _check_placement(self, placement: Sequence[int]) -> None:
        findings = []
        seen: dict[int, int] = {}
        for rank, gpu in enumerate(placement):
            if type(gpu) is not int or not 0 <= gpu < self.installed_gpus:
                findings.append(Finding(f"rank {rank}: GPU {gpu!r} is not in 0 ... {self.installed_gpus - 1}", "cluster.placement", gpu))
            elif gpu in seen:
                findings.append(Finding(f"ranks {seen[gpu]} and {rank} are both on GPU {gpu}", "cluster.placement", gpu))
            seen.setdefault(gpu, rank)
        if findings:
            raise TopologyError(findings)

    def _block(self, gpu: int) -> MachineRange:
        if not 0 <= gpu < self.installed_gpus:
            raise TopologyError(Finding(f"GPU {gpu} is not in 0 ... {self.installed_gpus - 1} of {self.name}", "cluster.gpus", gpu))
        return self.blocks[bisect_right(self._gpu_starts, gpu) - 1] if len(self.blocks) > 1 else self.blocks[0]

    def _block_of_node(self, node: int) -> MachineRange:
        return self.blocks[bisect_right(self._node_starts, node) - 1] if len(self.blocks) > 1 else self.blocks[0]

    # links

    def link(self, number: int) -> Link:
        """Link by id, with a name that is unique in the cluster, e.g. ``node3.gpu0->nvswitch``."""
        if number >= self.first_fabric_link:
            return self.network.link(number - self.first_fabric_link)
        node, machine, local = self._local_link(number)
        link = machine.links[local]
        return Link(link.kind, link.capacity, link.latency, f"node{node}.{link.name}", link.duplex)

    def capacity(self, number: int) -> float:
        """Effective bandwidth of link `number` [B/s]."""
        if number >= self.first_fabric_link:
            return self.network.capacity(number - self.first_fabric_link)
        if len(self.blocks) == 1:
            capacities = self.blocks[0].node.capacities
            return capacities[number % len(capacities)]
        _, machine, local = self._local_link(number)
        return machine.capacities[local]

    def capacities(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Effective bandwidth of many links [B/s]."""
        import numpy as np

        rates = np.empty(len(numbers))
        outside = numbers >= self.first_fabric_link
        if outside.any():
            rates[outside] = self.network.capacities(numbers[outside] - self.first_fabric_link)
        for block in self.blocks:
            each = np.array(block.node.capacities, dtype=np.float64)
            here = (numbers >= block.first_link) & (numbers < block.first_link + block.count * len(each))
            rates[here] = each[(numbers[here] - block.first_link) % max(len(each), 1)]
        return rates

    def slack(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Links that can never be full before others on every path through them are: 1 up, 2 down; 0: any other."""
        import numpy as np

        directions = np.zeros(len(numbers), dtype=np.int64)
        outside = numbers >= self.first_fabric_link
        if outside.any():
            directions[outside] = self.network.slack(numbers[outside] - self.first_fabric_link)
        return directions

    def link_class_name(self, number: int) -> str:
        """What the link connects, the same for all equal links: ``gpu->nvswitch``, ``leaf->spine``."""
        if number >= self.first_fabric_link:
            return self.network.link_class(number - self.first_fabric_link)
        _, machine, local = self._local_link(number)
        return machine.classes[local]

    def first_link(self, node: int) -> int:
        """Id of the first link inside machine `node`."""
        block = self._block_of_node(node)
        return block.first_link + (node - block.first_node) * len(block.node.links)

    def machine_of_link(self, number: int) -> int:
        """Machine in which link `number` is; -1: between machines."""
        return -1 if number >= self.first_fabric_link else self._local_link(number)[0]

    @property
    def network(self) -> Fabric:
        """The fabric of a cluster that has one."""
        if self.fabric is None:
            raise IndexError("no such link")
        return self.fabric

    def _local_link(self, number: int) -> tuple[int, Node, int]:
        block = self.blocks[bisect_right(self._link_starts, number) - 1] if len(self.blocks) > 1 else self.blocks[0]
        node, local = divmod(number - block.first_link, len(block.node.links))
        return block.first_node + node, block.node, local

    # routes

    def route(self, a: int, b: int) -> Route:
        """Directed links from GPU `a` to GPU `b`.

        Between machines the bytes leave by the sender's own NIC. On rails that end elsewhere than at the receiver's NIC
        they first hop over NVLink to the GPU that owns the receiver's rail (PXN); without NVLink they take the spine.

        Raises:
            TopologyError: no path; names both GPUs.
        """
        if a == b:
            return NOWHERE
        source, target = self.node_of(a), self.node_of(b)
        if source == target:
            inside = self.machine(source).between(self.local(a), self.local(b))
            if inside is not None:
                return shift(inside, self.first_link(source))
        one = self.crossing(a, b)
        away, home = shift(one.out, self.first_link(source)), shift(one.into, self.first_link(target))
        return join((away, self.cross(source, one.port, target, one.landing), home))

    def crossing(self, a: int, b: int) -> RouteEnds:
        """How bytes from GPU `a` get out of its machine and into that of GPU `b`, in local link ids.

        Raises:
            TopologyError: no NIC, or no fabric; names both GPUs.
        """
        source, target = self.node_of(a), self.node_of(b)
        machine, other = self.machine(source), self.machine(target)
        local, end = self.local(a), self.local(b)
        landing = other.owned_ports[end]
        if self.fabric is None or not landing or not machine.owned_ports[local]:
            raise unreachable(f"GPU {a}", f"GPU {b}")
        port, out = machine.way_out(local, landing[0] if self.fabric.rail_bound else None)
        arrival = port if self.fabric.kind == "full-mesh" else landing[0]
        return RouteEnds(out, port, arrival, other.from_port(arrival, end))

    def cross(self, source: int, port: int, target: int, other: int) -> Route:
        """The fabric's part of a route between ports of two machines."""
        fabric, first = self.network, self.first_fabric_link
        ends = Port(source, port), Port(target, other)
        loads = fabric.loads(*ends)
        latency = math.fsum(fabric.latency(link) for link in fabric.route(*ends))
        return Route(tuple(link + first for link, _ in loads), tuple(load for _, load in loads), latency, TIER_NETWORK)

    def hashed_anew(self, seed: int) -> Cluster:
        """The same machines on a network whose flows are hashed by another seed."""
        other = copy(self)
        other.fabric = None if self.fabric is None else self.fabric.hashed_anew(seed)
        return other

    @property
    def hashes(self) -> bool:
        """Whether flows keep to one path by a hash."""
        return bool(getattr(self.fabric, "hashed", False))

    # the whole graph

    def graph(self) -> networkx.DiGraph[str]:
        """Everything as one networkx graph: vertices ``node<k>.<name>``, edges with ``id`` and ``link``. Built anew."""
        import networkx

        whole: networkx.DiGraph[str] = networkx.DiGraph(name=self.name)
        for node in range(self.nodes):
            machine, first = self.machine(node), self.first_link(node)
            for vertex, data in machine.graph.nodes(data=True):
                whole.add_node(f"node{node}.{vertex}", kind=data["kind"], node=node)
            for a, b, data in machine.graph.edges(data=True):
                number = first + data["id"]
                whole.add_edge(f"node{node}.{a}", f"node{node}.{b}", id=number, link=self.link(number))
        if self.fabric is not None:
            self._add_fabric(whole)
        if self.storage is not None:
            add_storage(whole, self, self.storage)
        return whole

    def fabric_graph(self) -> networkx.DiGraph[str]:
        """The links between machines alone, as in `graph`."""
        import networkx

        outside: networkx.DiGraph[str] = networkx.DiGraph(name=self.name)
        if self.fabric is not None:
            self._add_fabric(outside)
        return outside

    def _add_fabric(self, whole: networkx.DiGraph[str]) -> None:
        from parsim.hardware.fabric.direct import FullMesh, GraphFabric

        fabric = self.network
        if isinstance(fabric, GraphFabric):
            port = {name: f"node{node}.{name}" for node, names in enumerate(fabric.port_names) for name in names}
            for a, b, data in fabric.finder.graph.edges(data=True):
                for vertex in (a, b):
                    if vertex not in port:
                        whole.add_node(vertex, kind="switch")
                number = self.first_fabric_link + data["id"]
                whole.add_edge(port.get(a, a), port.get(b, b), id=number, link=self.link(number))
            return
        port = {}
        for node in range(self.nodes):
            port |= {f"node{node}.port{number}": f"node{node}.{name}" for number, name in enumerate(self.machine(node).ports)}
        for local in range(fabric.link_count):
            a, b = fabric.ends(local)
            if a == b or (isinstance(fabric, FullMesh) and a.partition(".")[0] == b.partition(".")[0]):
                continue
            for vertex in (a, b):
                if vertex not in port:
                    whole.add_node(vertex, kind="switch")
            link = self.link(self.first_fabric_link + local)
            whole.add_edge(port.get(a, a), port.get(b, b), id=self.first_fabric_link + local, link=link)
            if link.duplex == "half":
                whole.add_edge(port.get(b, b), port.get(a, a), id=self.first_fabric_link + local, link=link)

    def __repr__(self) -> str:
        return f"<Cluster {self.name}: {self.nodes} nodes, {self.gpus} GPUs, {self.link_count} links>"
