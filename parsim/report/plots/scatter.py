"""Predicted over measured values, both logarithmic: a panel for each device or grade."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts, new_figure
from parsim.report.quantities import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY)
_MARKERS = ("o", "D", "^", "s", "v", "P")
_COLUMNS = 3
_CROWDED = 6
"""series of a panel above which its legend is small"""


class Point(NamedTuple):
    """One measurement and its prediction."""

    series: str
    measured: float
    predicted: float


def scatter_figure(panels: Mapping[str, Sequence[Point]], unit: str, band: float) -> Figure:
    """A scatter plot per panel, in `unit`. The line is a perfect prediction, the shade a share `band` to either side."""
    columns = max(1, min(_COLUMNS, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    with fonts():
        figure = new_figure(4.2 * columns, 4.2 * rows + 0.4)
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax, (title, points) in zip(axes.flat, panels.items(), strict=False):
            _panel(ax, title, points, unit, band)
        for ax in list(axes.flat)[len(panels) :]:
            ax.set_visible(False)
    return figure


def _panel(ax: Axes, title: str, points: Sequence[Point], unit: str, band: float) -> None:
    values = [value for point in points for value in point[1:]]
    low, high = min(values) / 1.3, max(values) * 1.3
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.fill_between([low, high], [low / (1 + band), high / (1 + band)], [low * (1 + band), high * (1 + band)], color=style.BUBBLE, lw=0)
    ax.plot([low, high], [low, high], color=style.INK, lw=0.8)
    names = list(dict.fromkeys(point.series for point in points))
    for place, series in enumerate(names):
        chosen = [point for point in points if point.series == series]
        ax.plot(
            [point.measured for point in chosen], [point.predicted for point in chosen], linestyle="none",
            marker=_MARKERS[place % len(_MARKERS)], color=_COLOURS[place % len(_COLOURS)], markersize=3.5, markeredgewidth=0, alpha=0.7,
            label=f"{series} ({len(chosen)})",
        )  # fmt: skip
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 30 else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axis.set_minor_formatter(NullFormatter())
    ax.grid(color=style.GRID, lw=0.6)
    ax.set_axisbelow(True)
    dress(ax)
    ax.set_title(title, loc="left", color=style.INK, fontsize="medium")
    ax.set_xlabel(f"measured [{unit}]", fontsize="small")
    ax.set_ylabel(f"predicted [{unit}]", fontsize="small")
    ax.legend(
        frameon=False,
        fontsize="small" if place < _CROWDED else "x-small",
        labelcolor=style.INK,
        loc="upper left",
        markerscale=1.5,
        handletextpad=0.2,
    )
