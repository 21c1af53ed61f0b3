"""Shared storage behind the fabric: a vertex to which every machine is connected, over its NICs and all switches above them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from parsim.hardware.fabric.links import Link
from parsim.hardware.flows import Flow

if TYPE_CHECKING:
    import networkx

    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.tree import Tree

VERTEX = "storage"
"""of a cluster's graph; and the kind of its link, and its link's name"""
_DIRECT = ("full-mesh", "torus", "graph")
"""fabrics without a core above all ports: machines reach the storage over links that the topology does not have"""


@dataclass(frozen=True)
class Storage:
    """What a topology file says under ``storage``."""

    bandwidth: float
    """of all writers together [B/s]"""
    per_node: float = inf
    """of one machine [B/s]; its links to the network count besides"""
    latency: float = 0.0
    """[s]"""

    def rate(self, cluster: Cluster, writers: int) -> float:
        """What so many machines write together [B/s]: the least cut between them and the storage, on a network that does not block."""
        return min(self.bandwidth, writers * min(self.per_node, network_of(cluster)))

    def laid_over(self, stated: Mapping[str, Any]) -> Storage:
        """The same with what a scenario states."""
        return Storage(**({**vars(self), **stated}))


def stated_storage(known: Storage | None, stated: Mapping[str, Any]) -> Storage | None:
    """The topology's storage under what a scenario states of it; None where neither says anything."""
    if known is None and not stated:
        return None
    return (known or Storage(inf)).laid_over(stated)


def network_of(cluster: Cluster) -> float:
    """Bandwidth of a machine's links to the fabric [B/s]; infinite where the topology has no fabric, or an explicit graph of one."""
    kind = getattr(cluster.fabric, "link_kind", None)
    if kind is None:
        return inf
    return float(min(len(block.node.ports) for block in cluster.blocks) * kind.capacity)


class Writing(NamedTuple):
    """All that the machines of a job write at once."""

    flows: tuple[Flow, ...]
    """machines on equal links share one: its coefficients say how many there are"""
    latency: float


def storage_link(cluster: Cluster) -> int:
    """Number of the link into the storage: behind all others of the cluster."""
    return cluster.link_count


def writing(cluster: Cluster, storage: Storage, volumes: Mapping[int, float]) -> Writing:
    """What machines write to a storage, `volumes` [B] each: over all NICs alike, through the switches above them.

    Equal NICs under one switch move alike, so one flow stands for them; shared links carry it as often as there are. Of a fabric
    without a core the NICs count, but no switch.
    """
    groups: dict[tuple[tuple[int, ...], float, float], list[int]] = {}
    for node, volume in volumes.items():
        for cable, above, share, cap in _ways(cluster, storage, node, volume):
            groups.setdefault((above, share, cap), []).append(cable)
    flows = []
    for (above, share, cap), cables in groups.items():
        count = float(len(cables))
        own = ((cables[0], 1.0),) if cables[0] >= 0 else ()
        shared = tuple((link, count) for link in (*above, storage_link(cluster)))
        rate = min(cap, storage.bandwidth / count)
        if isfinite(rate):  # else it takes no time
            flows.append(Flow((*own, *shared), share, rate))
    return Writing(tuple(flows), storage.latency)


def written_links(cluster: Cluster, volumes: Mapping[int, float]) -> dict[int, tuple[float, int]]:
    """Link -> (what crosses it [B], how many flows) of all links that machines write over, the storage's aside."""
    found: dict[int, tuple[float, int]] = {}
    for node, volume in volumes.items():
        for cable, above, share, _ in _ways(cluster, Storage(inf), node, volume):
            for link in (cable, *above) if cable >= 0 else above:
                size, count = found.get(link, (0.0, 0))
                found[link] = (size + share, count + 1)
    return found


def behind(cluster: Cluster, links: Collection[int], nodes: Iterable[int]) -> list[int]:
    """Of some machines those that reach the core of the fabric over one of these links, in either direction."""
    if cluster.fabric is None or cluster.fabric.kind in _DIRECT:
        return []
    ends, first = cluster.fabric.ends, cluster.first_fabric_link
    wanted = {frozenset(ends(link - first)) for link in links if link >= first}
    return [node for node in nodes if any(frozenset(ends(link - first)) in wanted for link in written_links(cluster, {node: 1.0}))]


def _ways(cluster: Cluster, storage: Storage, node: int, volume: float) -> list[tuple[int, tuple[int, ...], float, float]]:
    """Of every NIC of a machine: its cable (-1: none), the links above, what goes over it [B], and how fast at most [B/s]."""
    from parsim.hardware.fabric.switches import Port

    fabric = cluster.fabric
    if fabric is None or fabric.kind in _DIRECT or not cluster.machine(node).ports:
        return [(-1, (), volume, min(storage.per_node, network_of(cluster)))]
    ports, first = len(cluster.machine(node).ports), cluster.first_fabric_link
    found = []
    for number in range(ports):
        cable, *above = (first + link for link in fabric.to_core(Port(node, number)))
        found.append((cable, tuple(above), volume / ports, min(cluster.capacity(cable), storage.per_node / ports)))
    return found


def add_storage(whole: networkx.DiGraph[str], cluster: Cluster, storage: Storage) -> None:
    """Put the storage into a cluster's graph: beside the switches at the core, else beside the machines' NICs or GPUs."""
    from parsim.hardware.fabric.switches import Port

    fabric, link = cluster.fabric, Link(VERTEX, storage.bandwidth, storage.latency, VERTEX, "half")
    beside: dict[str, None] = {}
    for node in range(cluster.nodes):
        machine = cluster.machine(node)
        if fabric is None or fabric.kind in _DIRECT:
            beside |= dict.fromkeys(f"node{node}.{name}" for name in machine.ports or machine.gpu_names)
            continue
        beside |= dict.fromkeys(fabric.ends(fabric.to_core(Port(node, number))[-1])[1] for number in range(len(machine.ports)))
    whole.add_node(VERTEX, kind=VERTEX)
    for vertex in beside:
        whole.add_edge(vertex, VERTEX, id=storage_link(cluster), link=link)
        whole.add_edge(VERTEX, vertex, id=storage_link(cluster), link=link)


def read_storage(top: Tree) -> Storage | None:
    """The section ``storage`` of a topology tree; findings go to the tree's."""
    if not top.has("storage"):
        return None
    tree = top.child("storage")
    storage = Storage(
        tree.quantity("bandwidth", "rate"), tree.quantity("per_node", "rate", inf), tree.quantity("latency", "time", 0.0, positive=False)
    )
    tree.close()
    return storage
