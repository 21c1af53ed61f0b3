"""Where the step goes, rank by rank, and what moved: collectives by the time they are exposed and hidden, links by use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.patches import Patch

from parsim.report.communication import CollectiveRow, LinkRow
from parsim.report.plots import style
from parsim.report.plots.figure import Picture, dress, font_size, fonts, heading, legend_below, new_figure
from parsim.report.plots.timeline import hidden_style
from parsim.report.quantities import percent, rate, time_unit
from parsim.report.quantities import size as volume

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def breakdown_figure(rows: Sequence[tuple[str, Mapping[str, float]]], width: float, *, title: str = "") -> Picture:
    """A stacked bar per row (name, class -> seconds per step), first row on top."""
    size = font_size(width)
    unit = time_unit(max((math.fsum(row.values()) for _, row in rows), default=0.0))
    with fonts(title, size):
        figure = new_figure(width, (0.9 + 0.34 * len(rows) + (0.9 if width < 5.0 else 0.5)) * size / 10.0 + 0.2)
        axes = figure.add_subplot()
        left = [0.0] * len(rows)
        for key, colour in style.KEYS.items():
            values = [row.get(key, 0.0) / unit.factor for _, row in rows]
            if not any(values):
                continue
            axes.barh(
                range(len(rows)), values, left=left, height=0.7, facecolor=colour, edgecolor=style.darker(colour), linewidth=0.4,
                hatch=style.KEY_HATCHES.get(key), label=key.replace("_comm", " communication"),
            )  # fmt: skip
            left = [begin + value for begin, value in zip(left, values, strict=True)]
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel(f"time per step [{unit.name}]")
        dress(axes, size)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.0)
        heading(figure, title, size)
        legend_below(figure, *axes.get_legend_handles_labels(), columns=2 if width < 5.0 else 4)
    return figure


MOST_ROWS = 16
"""bars of a figure; the rest is in the tables"""


def collectives_figure(rows: Sequence[CollectiveRow], width: float, *, title: str = "") -> Picture:
    """A bar per kind and size: seconds per step that are exposed (solid) and hidden under compute (pale, hatched)."""
    shown = sorted(rows, key=lambda row: (-row.exposed_s, -row.busy_s))[:MOST_ROWS]
    unit = time_unit(max((row.busy_s for row in shown), default=0.0))
    with fonts(title, font_size(width)):
        names = [f"{row.axis} {row.kind.replace('_', '-')}\n{row.count:,} × {volume(row.bytes)}, {row.group_size} ranks" for row in shown]
        figure, axes = _bars(width, names, title, f"time per step [{unit.name}]")
        looks = {row.axis: style.beside(f"{row.axis}_comm") for row in shown}
        for place, row in enumerate(shown):
            exposed, hidden = row.exposed_s / unit.factor, max(0.0, row.busy_s - row.exposed_s) / unit.factor
            for left, length, look in ((0.0, exposed, looks[row.axis]), (exposed, hidden, hidden_style(looks[row.axis]))):
                if length > 0.0:
                    axes.barh(
                        [place], [length], left=left, height=0.6, facecolor=look.colour, edgecolor=look.stroke, hatch=look.hatch or None,
                        linewidth=0.4,
                    )  # fmt: skip
        handles = []
        for look in dict.fromkeys(looks.values()):
            for name, patch in (("exposed", look), ("hidden", hidden_style(look))):
                handles.append(
                    Patch(
                        facecolor=patch.colour, edgecolor=patch.stroke, hatch=patch.hatch or None, linewidth=0.4,
                        label=f"{look.label}, {name}",
                    )
                )  # fmt: skip
        legend_below(figure, handles, columns=2)
    return figure


def links_figure(rows: Sequence[LinkRow], width: float, *, title: str = "") -> Picture:
    """A bar per class of links, the busiest first: bytes of a step over what it could carry [%]."""
    shown = list(rows[:MOST_ROWS])
    with fonts(title, font_size(width)):
        names = [f"{row.link}\n{row.count:,} × {rate(row.capacity_Bps)}" for row in shown]
        figure, axes = _bars(width, names, title, "used over the step [%]")
        axes.barh(
            range(len(shown)), [100.0 * row.utilisation for row in shown], height=0.6, facecolor=style.BLUE,
            edgecolor=style.darker(style.BLUE), linewidth=0.4,
        )  # fmt: skip
        for place, row in enumerate(shown):
            axes.annotate(
                percent(row.utilisation), (100.0 * row.utilisation, place), xytext=(3, 0), textcoords="offset points", va="center",
                fontsize="small", color=style.INK,
            )  # fmt: skip
        axes.set_xlim(0.0, 1.18 * max((100.0 * row.utilisation for row in shown), default=1.0) or 1.0)
    return figure


def _bars(width: float, names: Sequence[str], title: str, axis: str) -> tuple[Picture, Axes]:
    """An empty bar chart with names; where nothing moved it says so."""
    size = font_size(width)
    figure = new_figure(width, 1.2 * size / 10.0 + 0.045 * size * max(1, len(names)))
    axes = figure.add_subplot()
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axes.set_xlabel(axis)
    heading(figure, title, size)
    dress(axes, size)
    axes.tick_params(axis="y", length=0)
    if not names:
        axes.text(0.5, 0.5, "nothing moved", transform=axes.transAxes, ha="center", va="center", color=style.INK)
    return figure, axes
