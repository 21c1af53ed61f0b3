"""How far predictions are off, source by source: every row a dot, its source's middle a tick."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts, grid, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADE = 0.1
"""the shade: predictions off by less"""
_LEAST_SPAN = 0.6
"""of the axis, to both sides; farther errors make it longer"""


def errors_figure(panels: Mapping[str, Mapping[str, Sequence[float]]], width: float = 7.0) -> Figure:
    """A panel per title: a line per source of the first panel, with its errors (predicted over measured, less one) as dots."""
    sources = list(next(iter(panels.values())))
    largest = max((abs(error) for found in panels.values() for errors in found.values() for error in errors), default=0.0)
    span = 100 * max(_LEAST_SPAN, math.ceil(10 * largest) / 10)
    with fonts("".join(sources)):
        figure = new_figure(width if len(panels) == 1 else 1.4 * width, 1.0 + 0.21 * len(sources))
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for ax, (title, found) in zip(axes, panels.items(), strict=True):
            ax.axvspan(-100 * SHADE, 100 * SHADE, color=style.BUBBLE, lw=0)
            ax.axvline(0, color=style.INK, lw=0.8)
            for place, name in enumerate(sources):
                values = [100 * error for error in found.get(name, ())]
                ax.plot(
                    values,
                    [place] * len(values),
                    linestyle="none",
                    marker="o",
                    markersize=3,
                    markeredgewidth=0,
                    color=style.BLUE,
                    alpha=0.45,
                )
                if values:
                    ax.plot([median(values)] * 2, [place - 0.38, place + 0.38], color=style.VERMILION, lw=1.6)
            ax.set_xlim(-span, span)
            ax.set_title(title, loc="left", color=style.INK, fontsize="medium")
            ax.set_xlabel("predicted over measured, less one [%]", fontsize="small")
            grid(ax, "x", 0.6)
            dress(ax)
            ax.tick_params(axis="y", length=0)
        axes[0].set_yticks(
            range(len(sources)), [f"{name} ({len(next(iter(panels.values()))[name])})" for name in sources], fontsize="x-small"
        )
        axes[0].set_ylim(len(sources) - 0.5, -0.5)
    return figure
