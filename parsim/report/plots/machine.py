"""The inside of a machine as tiers: host memory, CPUs, PCIe switches, GPUs and NICs, NVSwitches; wires by kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from parsim.hardware.fabric.node import Node
from parsim.report.plots import style
from parsim.report.quantities import rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ALIKE = 4
"""equal parts of a machine that are all drawn; of more, the first two and the last"""
_BOX = 0.8
_HEIGHT = 0.46
_KINDS = {
    "gpu": style.Style("#0072B2", "GPU"),
    "nic": style.Style("#CC79A7", "NIC"),
    "pcie": style.Style("#8a929c", "PCIe switch"),
    "cpu": style.Style("#1b1f24", "CPU"),
    "memory": style.Style("#e6e9ed", "host memory", "#111111"),
    "nvme": style.Style("#c9b458", "NVMe drive", "#111111"),
    "nvswitch": style.Style("#009E73", "NVSwitch"),
    "switch": style.Style("#5b636d", "switch"),
}
"""Vertices."""
_WIRES = {
    "nvlink": style.GREEN,
    "pcie": style.GREY,
    "socket": style.VERMILION,
    "memory": style.INK,
    "storage": style.INK,
    "network": style.PURPLE,
}
"""Links, by medium."""


@dataclass
class MachineLayout:
    """Where the vertices of a machine are drawn."""

    place: dict[str, tuple[float, float]] = field(default_factory=dict)
    width: float = 0.0
    """columns"""
    gaps: list[tuple[float, int]] = field(default_factory=list)
    """where equal parts are left out, and how many"""


def lay_out(machine: Node) -> MachineLayout:
    """Parts that PCIe and sockets hold together stand side by side; of many equal ones some are left out."""
    layout = MachineLayout()
    parts = _parts(machine)
    shapes = [tuple(machine.finder.kind[vertex] for vertex in part) for part in parts]
    alike = len(parts) > MOST_ALIKE and len(set(shapes)) == 1
    shown = [*parts[:2], parts[-1]] if alike else parts
    for number, part in enumerate(shown):
        if alike and number == 2:
            layout.gaps.append((layout.width + 0.5, len(parts) - 3))
            layout.width += 1.0
        _place(machine, part, layout)
    middle = (layout.width - 1) / 2
    for vertex, kind in machine.finder.kind.items():
        if kind == "nvswitch":
            layout.place[vertex] = (middle, -1.15)
        elif kind == "switch":
            layout.place[vertex] = (middle, 4.0)
    return layout


def _parts(machine: Node) -> list[list[str]]:
    """Vertices by what PCIe, sockets and host memory hold together, in the order of the file."""
    parts: list[list[str]] = []
    seen: set[str] = set()
    for start, kind in machine.finder.kind.items():
        if start in seen or kind in ("nvswitch", "switch"):
            continue
        part, todo = [], [start]
        seen.add(start)
        while todo:
            vertex = todo.pop(0)
            part.append(vertex)
            for other, data in machine.graph.adj[vertex].items():
                if other not in seen and data["link_kind"].medium in ("pcie", "socket", "memory", "storage"):
                    seen.add(other)
                    todo.append(other)
        order = {vertex: number for number, vertex in enumerate(machine.graph.nodes)}
        parts.append(sorted(part, key=lambda vertex: order[vertex]))
    return parts


def _place(machine: Node, part: Sequence[str], layout: MachineLayout) -> None:
    """CPUs side by side, under each its switches, under each of those GPUs and NICs; loose vertices at the end."""
    kinds = machine.finder.kind
    for cpu in [vertex for vertex in part if kinds[vertex] == "cpu"]:
        first = layout.width
        _below(machine, cpu, 2.0, layout)
        layout.width = max(layout.width, first + 1)
        layout.place[cpu] = ((first + layout.width - 1) / 2, 2.0)
    for vertex in part:
        if kinds[vertex] != "memory" and vertex not in layout.place:
            layout.place[vertex] = (layout.width, 0.0)
            layout.width += 1
    for vertex in part:
        if kinds[vertex] == "memory":
            above = next((layout.place[other] for other in machine.graph.adj[vertex] if other in layout.place), (layout.width, 2.0))
            layout.place[vertex] = (above[0], 3.0)


def _below(machine: Node, vertex: str, level: float, layout: MachineLayout) -> None:
    """Lay out what hangs under a CPU or a switch."""
    kinds = machine.finder.kind
    children = [
        other for other, data in machine.graph.adj[vertex].items()
        if other not in layout.place and data["link_kind"].medium == "pcie" and kinds[other] in ("pcie", "gpu", "nic")
    ]  # fmt: skip
    for child in children:
        if child in layout.place:
            continue
        if kinds[child] == "pcie":
            first = layout.width
            layout.place[child] = (first, max(level - 1.0, 0.75))  # so that a loop of switches ends
            _below(machine, child, level - 1.0, layout)
            layout.width = max(layout.width, first + 1)
            layout.place[child] = ((first + layout.width - 1) / 2, max(level - 1.0, 0.75))
        else:
            layout.place[child] = (layout.width, 0.0)
            layout.width += 1


def draw_machine(ax: Axes, machine: Node, title: str = "") -> dict[str, tuple[str, float]]:
    """Draw a machine; returns what its lines mean: label -> colour and width, in the order of the file."""
    layout = lay_out(machine)
    labels = _wires(ax, machine, layout)
    size = _letters(layout, ax)
    for vertex, (x, y) in layout.place.items():
        kind = machine.finder.kind[vertex]
        width = layout.width - 1 + _BOX if kind in ("nvswitch", "switch") else _BOX
        _box(ax, (x, y), width, kind, vertex, size)
    for x, count in layout.gaps:
        ax.text(x - 0.5, 0.9, f"… {count} more\nlike these", ha="center", va="center", fontsize="small", color=style.INK)
    top = max(y for _, y in layout.place.values())
    spare = max(0.0, 0.8 * _inches(ax) - layout.width) / 2  # boxes of few columns keep their shape
    ax.set_xlim(-0.7 - spare, max(layout.width, 1) - 0.3 + spare)
    ax.set_ylim(_bottom(machine, layout) - 0.4, top + 0.5)
    ax.set_axis_off()
    ax.set_title(title, loc="left", color=style.INK)
    return labels


def _letters(layout: MachineLayout, ax: Axes) -> float:
    """Size at which a name of eight letters fits into a box [pt]."""
    return max(4.5, min(9.0, 72.0 * _inches(ax) * _BOX / max(layout.width, 1.0) / 4.6))


def _inches(ax: Axes) -> float:
    """Width of the figure."""
    return float(ax.figure.get_figwidth()) if isinstance(ax.figure, Figure) else 12.0


def _box(ax: Axes, at: tuple[float, float], width: float, kind: str, name: str, size: float) -> None:
    look = _KINDS.get(kind, _KINDS["switch"])
    corner = (at[0] - width / 2, at[1] - _HEIGHT / 2)
    ax.add_patch(
        FancyBboxPatch(corner, width, _HEIGHT, boxstyle="round,pad=0,rounding_size=0.08", facecolor=look.colour, edgecolor=style.INK,
                       linewidth=0.5, zorder=3)
    )  # fmt: skip
    ax.text(*at, name, ha="center", va="center", fontsize=size, color=look.text, zorder=4, clip_on=True)


def _wires(ax: Axes, machine: Node, layout: MachineLayout) -> dict[str, tuple[str, float]]:
    """One line per edge; NVLink between GPUs as an arc below them."""
    labels: dict[str, tuple[str, float]] = {}
    drawn: set[frozenset[str]] = set()
    widest = max((data["link"].capacity for _, _, data in machine.graph.edges(data=True)), default=1.0)
    for a, b, data in machine.graph.edges(data=True):
        kind, link = data["link_kind"], data["link"]
        count = link.capacity / kind.capacity
        times = f"{count:.3g} x " if count != 1 else ""
        label = f"{times}{kind.name}, {rate(link.capacity)}{' both ways together' if link.duplex == 'half' else ' each way'}"
        width = 0.8 + 3.2 * math.sqrt(link.capacity / widest)
        labels.setdefault(label, (_WIRES[kind.medium], width))
        ends = frozenset((a, b))
        if ends in drawn or a not in layout.place or b not in layout.place:
            continue
        drawn.add(ends)
        _wire(ax, machine, layout, (a, b), _WIRES[kind.medium], width)
    return labels


def _wire(ax: Axes, machine: Node, layout: MachineLayout, ends: tuple[str, str], colour: str, width: float) -> None:
    kinds = [machine.finder.kind[end] for end in ends]
    (x, y), (u, v) = (layout.place[end] for end in ends)
    if "nvswitch" in kinds or "switch" in kinds:
        bar = 0 if kinds[0] in ("nvswitch", "switch") else 1
        if kinds[bar] != kinds[1 - bar]:
            x = u = (u, x)[bar]
    if kinds == ["gpu", "gpu"]:
        if x > u:
            x, u = u, x
        drop = _drop(u - x)
        arc = FancyArrowPatch(
            (x, y - _HEIGHT / 2), (u, v - _HEIGHT / 2), connectionstyle=f"arc3,rad={2 * drop / max(u - x, 1e-9):.4f}", arrowstyle="-",
            color=colour, linewidth=width, alpha=0.75, zorder=1,
        )  # fmt: skip
        ax.add_patch(arc)
        return
    ax.plot([x, u], [y, v], color=colour, linewidth=width, solid_capstyle="butt", zorder=2)


def _drop(distance: float) -> float:
    """How far an arc hangs below the GPUs."""
    return 0.35 + 0.16 * distance


def _bottom(machine: Node, layout: MachineLayout) -> float:
    """Lowest thing drawn."""
    lowest = min(y for _, y in layout.place.values()) - _HEIGHT / 2
    arcs = [
        abs(layout.place[a][0] - layout.place[b][0])
        for a, b in machine.graph.edges
        if machine.finder.kind[a] == machine.finder.kind[b] == "gpu" and a in layout.place and b in layout.place
    ]
    return min([lowest, *(-_HEIGHT / 2 - _drop(distance) for distance in arcs)])
