"""A topology as a picture: the network between machines as tiers (core, leaf switches, machines), and one machine in detail."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.direct import FullMesh, GraphFabric, Torus
from parsim.hardware.fabric.joined import JoinedFabric
from parsim.hardware.fabric.switches import Fabric, FatTree, Port, RailOptimised
from parsim.report.plots import style
from parsim.report.plots.figure import fonts, legend_below, new_figure
from parsim.report.plots.machine import draw_machine, lay_out
from parsim.report.quantities import rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 100.0
"""of the drawing; machines and leaves are spread over it"""
MOST_MACHINES = 400
"""machines of a group that are drawn one by one"""
MOST_GROUPS = 12
"""groups that are all drawn; of more, the first four and the last"""
_FEW = 16
"""machines up to which every cable to a leaf is a line of its own"""
_CORE, _LEAF, _MACHINE = 3.0, 1.6, 0.0
_LEAVES = "#5b636d"
_ROWS = 4
"""rows in which the machines of a group stand at most"""


@dataclass(frozen=True)
class LeafGroup:
    """Machines that plug into the same leaves."""

    machines: tuple[int, ...]
    leaves: tuple[int, ...]
    cables: int
    """of one machine to one leaf"""


def blocks(cluster: Cluster) -> list[LeafGroup]:
    """Machines by the leaves they plug into."""
    fabric = cluster.network
    machines: dict[tuple[int, ...], list[int]] = {}
    cables: dict[tuple[int, ...], int] = {}
    for node in range(cluster.nodes):
        plugs = [fabric.leaf_of(Port(node, port)) for port in range(len(cluster.machine(node).ports))]
        leaves = tuple(dict.fromkeys(plugs))
        machines.setdefault(leaves, []).append(node)
        cables[leaves] = max(len(plugs) // max(len(leaves), 1), 1)
    return [LeafGroup(tuple(nodes), leaves, cables[leaves]) for leaves, nodes in machines.items()]


def draw_fabric(ax: Axes, cluster: Cluster, title: str = "") -> dict[str, str]:
    """Draw the network of a cluster of several machines; returns label -> colour of its links."""
    fabric = cluster.network
    draw = _draw_graph if isinstance(fabric, (Torus, FullMesh, GraphFabric)) else _draw_tiers
    labels = draw(ax, cluster, fabric)
    ax.set_axis_off()
    ax.set_title(title, loc="left", color=style.INK)
    return labels


def _draw_tiers(ax: Axes, cluster: Cluster, fabric: Fabric) -> dict[str, str]:
    groups = blocks(cluster)
    left_out = 0
    if len(groups) > MOST_GROUPS:
        left_out = len(groups) - 5
        groups = [*groups[:4], groups[-1]]
    trunks = isinstance(fabric, JoinedFabric) or (isinstance(fabric, FatTree) and fabric.leaves > 1)
    labels = {_cable(fabric, groups): style.PURPLE}
    leaves = list(dict.fromkeys(leaf for group in groups for leaf in group.leaves))
    order = sorted(leaves, key=lambda leaf: next(number for number, group in enumerate(groups) if leaf in group.leaves))
    places = len(order) + 2 * bool(left_out)
    place = {leaf: WIDTH * (number + 0.5 + 2 * (left_out > 0 and leaf in groups[-1].leaves)) / places for number, leaf in enumerate(order)}
    width = min(8.0, 0.82 * WIDTH / places)
    if trunks and isinstance(fabric, FatTree):
        trunk = f"{fabric.uplinks} hashed uplinks of a leaf, together" if fabric.hashed else "trunk of a leaf,"
        labels[f"{trunk} {rate(fabric.trunk_capacity)} each way"] = style.INK
        _bar(ax, _CORE, "core (does not block)", style.INK)
    if isinstance(fabric, JoinedFabric):
        regions = [*dict.fromkeys(fabric.regions)]
        between = f", regions {' and '.join(regions)} joined by links of their own" if len(regions) > 1 else ""
        _bar(ax, _CORE, f"core (does not block){between}", style.INK)
    if len(order) == 1:
        _bar(ax, _LEAF, "one switch (does not block)", _LEAVES)
    else:
        _draw_leaves(ax, fabric, place, width, trunks=trunks)
    begin = 0.0
    gap = 10.0 if left_out else 0.0
    shown = sum(len(group.machines) for group in groups)
    for number, group in enumerate(groups):
        share = (WIDTH - gap) * len(group.machines) / shown
        if left_out and number == len(groups) - 1:
            ax.text(
                begin + gap / 2,
                _MACHINE - 0.12,
                f"… {left_out} groups\nlike these",
                ha="center",
                va="center",
                fontsize="small",
                color=style.INK,
            )
            begin += gap
        middle = begin + share / 2
        machines = _machines(ax, group, begin, share)
        for leaf in group.leaves:
            for x in machines if cluster.nodes <= _FEW else [middle]:
                top = x if len(order) == 1 else place[leaf]
                ax.plot([top, x], [_LEAF, _MACHINE + 0.3], color=style.PURPLE, linewidth=1.0, alpha=0.7, zorder=1)
        begin += share
    ax.set_xlim(-1.0, WIDTH + 1.0)
    ax.set_ylim(_MACHINE - 1.05, (_CORE if trunks else _LEAF) + 0.35)
    return labels


def _cable(fabric: Fabric, groups: list[LeafGroup]) -> str:
    """What the lines between machines and leaves are."""
    counts = dict.fromkeys(group.cables for group in groups)
    each = "" if len(counts) > 1 else f", {next(iter(counts))} from a machine to a leaf" if next(iter(counts)) > 1 else ""
    kinds = [island.link_kind for island in fabric.islands] if isinstance(fabric, JoinedFabric) else [fabric.link_kind]
    names = dict.fromkeys(f"{kind.name}, {rate(kind.capacity)} each way" for kind in kinds)
    return f"{' or '.join(names)}{each}"


def _bar(ax: Axes, y: float, name: str, colour: str) -> None:
    ax.add_patch(Rectangle((0.0, y - 0.15), WIDTH, 0.3, facecolor=colour, edgecolor=style.INK, linewidth=0.5, zorder=3))
    ax.text(WIDTH / 2, y, name, ha="center", va="center", fontsize="small", color=style.PAPER, zorder=4)


def _draw_leaves(ax: Axes, fabric: Fabric, place: dict[int, float], width: float, *, trunks: bool) -> None:
    """A box per leaf, numbered (by rail where there are rails) if the numbers fit."""
    pods = fabric.pods if isinstance(fabric, RailOptimised) else 0
    for leaf, x in place.items():
        if trunks:
            ax.plot([x, x], [_LEAF, _CORE], color=style.INK, linewidth=1.2, zorder=1)
        corner = (x - width / 2, _LEAF - 0.14)
        ax.add_patch(Rectangle(corner, width, 0.28, facecolor=_LEAVES, edgecolor=style.INK, linewidth=0.5, zorder=3))
        if width >= 1.2:
            name = str(leaf // pods if pods else leaf)
            ax.text(x, _LEAF, name, ha="center", va="center", fontsize="x-small", color=style.PAPER, zorder=4)
    text = f"{fabric.leaves if isinstance(fabric, FatTree) else len(place)} leaves" + (
        ", numbered by rail" if pods and width >= 1.2 else ""
    )
    ax.annotate(
        text, (0.0, _LEAF + 0.17), xytext=(2, 2), textcoords="offset points", ha="left", va="bottom", fontsize="small", color=style.INK,
        bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.0}, zorder=5,
    )  # fmt: skip


def _machines(ax: Axes, group: LeafGroup, begin: float, share: float) -> list[float]:
    """A frame, in it a square per machine, below it their numbers; returns where the squares are."""
    margin = min(0.5, 0.1 * share)
    left, width = begin + margin, share - 2 * margin
    ax.add_patch(Rectangle((left, _MACHINE - 0.55), width, 0.85, facecolor="#f3f5f7", edgecolor=style.INK, linewidth=0.7, zorder=2))
    count = len(group.machines)
    middles = [begin + share / 2]
    if count <= MOST_MACHINES:
        rows = min(_ROWS, max(1, round((count / max(width, 1.0)) ** 0.5 * 1.2)))
        columns = -(-count // rows)
        pitch, height = width / columns, 0.8 / rows
        wide = min(0.7 * pitch, 5.0)
        middles = [left + (column + 0.5) * pitch for column in range(min(columns, count))]
        for number in range(count):
            row, column = divmod(number, columns)
            corner = (middles[column] - wide / 2, _MACHINE + 0.28 - (row + 0.88) * height)
            ax.add_patch(Rectangle(corner, wide, 0.76 * height, facecolor=style.BLUE, edgecolor="none", zorder=3))
    first, last = group.machines[0], group.machines[-1]
    name = str(first) if first == last else f"{first}-{last}"
    if share >= 2.2 or first == 0:
        text = f"machine{'s' * (count > 1)} {name}" if share > 14 else name
        ax.text(begin + share / 2, _MACHINE - 0.62, text, ha="center", va="top", fontsize="small", color=style.INK)
    return middles


def _draw_graph(ax: Axes, cluster: Cluster, fabric: Fabric) -> dict[str, str]:
    """Torus, full mesh or explicit graph: machines in rows, switches above them, every cable a line."""
    place = _grid(cluster, fabric)
    pitch = WIDTH / (fabric.dims[0] if isinstance(fabric, Torus) else min(cluster.nodes, 24))
    labels: dict[str, str] = {}
    drawn: set[frozenset[str]] = set()
    for local in range(fabric.link_count):
        link = fabric.link(local)
        a, b = _ends(fabric, local)
        if a == b or a not in place or b not in place:
            continue
        labels.setdefault(f"{link.kind}, {rate(link.capacity)} each way", style.PURPLE)
        if frozenset((a, b)) in drawn:
            continue
        drawn.add(frozenset((a, b)))
        (x, y), (u, v) = place[a], place[b]
        bend = _bend((x, y), (u, v), pitch)
        ax.annotate(
            "", (u, v), (x, y), zorder=1,
            arrowprops={"arrowstyle": "-", "color": style.PURPLE, "alpha": 0.7, "connectionstyle": f"arc3,rad={bend}"},
        )  # fmt: skip
    for name, (x, y) in place.items():
        machine = name.startswith("node")
        ax.plot([x], [y], marker="s", markersize=13 if len(place) <= 64 else 6, color=style.BLUE if machine else _LEAVES, zorder=3)
        if machine and len(place) <= 64:
            ax.text(x, y, name.removeprefix("node"), ha="center", va="center", fontsize=6, color=style.PAPER, zorder=4)
        elif len(place) <= 64:
            ax.annotate(name, (x, y), (0, 8), textcoords="offset points", ha="center", fontsize="x-small", color=style.INK, zorder=4)
    ys = [y for _, y in place.values()]
    ax.set_xlim(-0.06 * WIDTH, 1.06 * WIDTH)
    ax.set_ylim(min(ys) - 0.8, max(ys) + 0.8)
    if isinstance(fabric, Torus) and len(fabric.dims) > 2:
        planes = fabric.nodes // (fabric.dims[0] * fabric.dims[1])
        ax.text(0, max(ys) + 0.6, f"one of {planes} planes", fontsize="small", color=style.INK)
    return labels


def _ends(fabric: Fabric, local: int) -> tuple[str, str]:
    """Machines (without their ports) or switches at the ends of a cable."""
    if isinstance(fabric, GraphFabric):
        owner = {name: f"node{node}" for node, names in enumerate(fabric.port_names) for name in names}
        a, b = next((a, b) for a, b, data in fabric.finder.graph.edges(data=True) if data["id"] == local)
        return owner.get(a, a), owner.get(b, b)
    a, b = fabric.ends(local)
    return a.partition(".")[0], b.partition(".")[0]


def _grid(cluster: Cluster, fabric: Fabric) -> dict[str, tuple[float, float]]:
    """Machines in rows (of a torus its first plane), switches of an explicit graph above them by their distance."""
    columns = fabric.dims[0] if isinstance(fabric, Torus) else min(cluster.nodes, 24)
    shown = cluster.nodes
    if isinstance(fabric, Torus):
        shown = min(shown, fabric.dims[0] * (fabric.dims[1] if len(fabric.dims) > 1 else 1))
    place = {f"node{node}": (WIDTH * (node % columns + 0.5) / columns, -float(node // columns)) for node in range(shown)}
    if isinstance(fabric, GraphFabric):
        for level, switches in enumerate(_levels(fabric), 1):
            place |= {name: (WIDTH * (number + 0.5) / len(switches), 1.2 * level) for number, name in enumerate(switches)}
    return place


def _levels(fabric: GraphFabric) -> list[list[str]]:
    """Switches by how many cables they are away from the nearest machine."""
    near = [name for names in fabric.port_names for name in names]
    seen = dict.fromkeys(near)
    levels: list[list[str]] = []
    while near:
        further = dict.fromkeys(other for name in near for other in fabric.finder.graph.adj[name] if other not in seen)
        near = list(further)
        seen |= further
        if near:
            levels.append(near)
    return levels


def _bend(start: tuple[float, float], end: tuple[float, float], pitch: float) -> float:
    """Cables that would run through other machines swing around them."""
    (x, y), (u, v) = start, end
    if y == v and abs(x - u) > 1.1 * pitch:
        return -0.1 if x < u else 0.1
    return 0.15 if x == u and abs(y - v) > 1.1 else 0.0


MOST_KINDS = 3
"""kinds of machines that are drawn"""


def topology_figure(cluster: Cluster) -> Figure:
    """The tiers of the fabric above one machine; a machine of each kind where there are several."""
    kinds = {tuple(zip(block.node.classes, block.node.capacities, strict=True)): block.node for block in reversed(cluster.blocks)}
    machines = list(kinds.values())[::-1][:MOST_KINDS]
    widest = max(lay_out(machine).width for machine in machines)
    inches = min(24.0, max(8.0, 0.72 * widest))
    several = cluster.nodes > 1
    heights = [3.6] * several + [_height(machine.graph.number_of_nodes()) for machine in machines]
    named = [cluster.name, *(vertex for machine in machines for vertex in machine.graph), *_networks(cluster)]
    with fonts("".join(named)):
        figure = new_figure(max(inches, 11.0) if several else inches, math.fsum(heights) + 0.9)
        panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        labels: dict[str, tuple[str, float]] = {}
        if several:
            gpus = f"{cluster.nodes} machines, {cluster.installed_gpus} GPUs, {cluster.network.kind}"
            cables = draw_fabric(panels[0], cluster, f"{cluster.name}: {gpus}")
            labels |= {label: (colour, 1.5) for label, colour in cables.items()}
        for ax, machine in zip(panels[several:], machines, strict=True):
            what = "one of the machines" if several else f"{cluster.name}: {machine.gpus} GPU{'s' * (machine.gpus > 1)}"
            labels |= draw_machine(ax, machine, what)
        handles = [Line2D([], [], color=colour, linewidth=width, label=label) for label, (colour, width) in labels.items()]
        legend_below(figure, handles, columns=min(3, len(handles)))
    return figure


def _networks(cluster: Cluster) -> list[str]:
    """Switches of an explicit graph, which have names of their own."""
    if cluster.nodes == 1 or not isinstance(cluster.network, GraphFabric):
        return []
    return list(cluster.network.finder.graph)


def _height(vertices: int) -> float:
    return 1.6 if vertices == 1 else 4.2
