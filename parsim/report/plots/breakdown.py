"""Where the step goes, rank by rank: one bar per representative rank, split into the classes of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parsim.report.plots import style
from parsim.report.plots.figure import Picture, dress, font_size, fonts, heading, new_figure
from parsim.report.quantities import time_unit


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
        figure.legend(loc="outside lower center", ncols=2 if width < 5.0 else 4, frameon=False, fontsize="small", labelcolor=style.INK)
    return figure
