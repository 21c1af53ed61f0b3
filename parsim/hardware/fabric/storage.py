"""Shared storage behind the fabric: a vertex to which every machine is connected, as far as writing to it is concerned."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.tree import Tree


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


def network_of(cluster: Cluster) -> float:
    """Bandwidth of a machine's links to the fabric [B/s]; infinite where the topology has no fabric, or an explicit graph of one."""
    kind = getattr(cluster.fabric, "link_kind", None)
    if kind is None:
        return inf
    return float(min(len(block.node.ports) for block in cluster.blocks) * kind.capacity)


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
