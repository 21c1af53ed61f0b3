"""What a cluster is wired with: parts and links of one machine, and the links between machines, counted by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from parsim.hardware.fabric.cluster import Cluster
from parsim.program.folding import Classes


@dataclass(frozen=True)
class Wires:
    """Links of one class."""

    name: str
    """``gpu->nvswitch``"""
    kind: str
    count: int
    capacity: float
    """of one link [B/s]"""


@dataclass(frozen=True)
class Wiring:
    """One machine (the first kind, where there are several) and the fabric."""

    machines: int
    parts: dict[str, int]
    """kind of vertex -> how many a machine has"""
    inside: tuple[Wires, ...]
    """links of one machine"""
    between: tuple[Wires, ...]
    """links of the fabric, all of them"""
    switches: dict[str, int]
    """kind of switch of the fabric -> how many"""
    fabric: str = ""
    """rail-optimised | fat-tree | ...; empty for one machine"""
    other_machines: int = 0
    """machines of other kinds"""
    alike: Mapping[int, Mapping[tuple[str, str], int]] = field(default_factory=dict)
    """link that stands for all that carry the same -> name and kind of these, and how many of them"""


def wiring_of(cluster: Cluster, classes: Classes | None = None) -> Wiring:
    """Count a cluster's parts. `classes`: which link stands for which others."""
    node, fabric = cluster.blocks[0].node, cluster.fabric
    inside = Counter((name, link.kind, link.capacity) for name, link in zip(node.classes, node.links, strict=True))
    between: Counter[tuple[str, str, float]] = Counter()
    if fabric is not None:
        for local, count in fabric.classes_of_links():
            between[fabric.link_class(local), fabric.link(local).kind, fabric.capacity(local)] += count
    groups: dict[int, list[int]] = {}
    for link, representative in (classes.links if classes is not None else {}).items():
        groups.setdefault(representative, []).append(link)
    alike = sum(block.count for block in cluster.blocks if block.node is node)
    return Wiring(
        machines=cluster.nodes,
        parts=dict(Counter(node.finder.kind.values())),
        inside=tuple(Wires(name, kind, count, capacity) for (name, kind, capacity), count in inside.items()),
        between=tuple(Wires(name, kind, count, capacity) for (name, kind, capacity), count in between.items()),
        switches={} if fabric is None else fabric.switches(),
        fabric="" if fabric is None else fabric.kind,
        other_machines=cluster.nodes - alike,
        alike={one: Counter((cluster.link_class_name(link), cluster.link(link).kind) for link in among) for one, among in groups.items()},
    )
