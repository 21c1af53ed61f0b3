"""What a link between regions adds to the latency of a collective: how often the bytes that arrive last pass it, one after the other.

A ring's chunk goes round almost once in a gather or a reduce-scatter, almost twice in an all-reduce, and passes every edge of the ring
as often, whatever the number of members. In a tree the bytes go up to the root and down again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.joined import JoinedFabric
from parsim.hardware.nccl.lanes import double_tree


def region_delay(cluster: Cluster, group: Sequence[int], algorithm: str, kind: str) -> float:
    """Latency of the links between regions on the longest way of a chunk [s]; 0 inside one region."""
    fabric = cluster.fabric
    if not isinstance(fabric, JoinedFabric) or len(set(fabric.regions)) == 1:
        return 0.0
    nodes = list(dict.fromkeys(map(cluster.node_of, group)))
    if len({fabric.region_of(node) for node in nodes}) == 1:
        return 0.0
    if algorithm in ("ring", "pat", "direct") or kind not in ("all_reduce", "barrier"):
        return _around(
            fabric, [cluster.node_of(gpu) for gpu in _by_machine(cluster, group)], rounds=2 if kind in ("all_reduce", "barrier") else 1
        )
    return 2 * max(_to_root(fabric, nodes, tree) for tree in double_tree(len(nodes)))


def _by_machine(cluster: Cluster, group: Sequence[int]) -> list[int]:
    """The group in the order of its rings: machine by machine."""
    nodes: dict[int, list[int]] = {}
    for gpu in group:
        nodes.setdefault(cluster.node_of(gpu), []).append(gpu)
    return [gpu for members in nodes.values() for gpu in members]


def _around(fabric: JoinedFabric, nodes: Sequence[int], rounds: int) -> float:
    """The longest way of a chunk of a ring over members on these machines: all turns but one edge of each."""
    edges = [fabric.region_latency(one, other) for one, other in zip(nodes, (*nodes[1:], nodes[0]), strict=True)]
    spared = min(edges) if rounds == 1 else min(one + other for one, other in zip(edges, (*edges[1:], edges[0]), strict=True))
    return rounds * math.fsum(edges) - spared


def _to_root(fabric: JoinedFabric, nodes: Sequence[int], tree: Sequence[tuple[int, int]]) -> float:
    """The longest way from a machine to the root of a tree."""
    parent = dict(tree)
    longest = 0.0
    for place in range(len(nodes)):
        way, at = 0.0, place
        while at in parent:
            way += fabric.region_latency(nodes[at], nodes[parent[at]])
            at = parent[at]
        longest = max(longest, way)
    return longest
