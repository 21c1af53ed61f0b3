"""A topology as a picture: the network between machines, and one machine in detail."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.direct import GraphFabric
from parsim.report.plots import style
from parsim.report.plots.fabric import draw_fabric
from parsim.report.plots.figure import fonts, new_figure
from parsim.report.plots.machine import draw_machine, lay_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        if handles:
            figure.legend(
                handles=handles, loc="outside lower center", ncols=min(3, len(handles)), frameon=False, fontsize="small",
                labelcolor=style.INK,
            )  # fmt: skip
    return figure


def _networks(cluster: Cluster) -> list[str]:
    """Switches of an explicit graph, which have names of their own."""
    if cluster.nodes == 1 or not isinstance(cluster.network, GraphFabric):
        return []
    return list(cluster.network.finder.graph)


def _height(vertices: int) -> float:
    return 1.6 if vertices == 1 else 4.2
