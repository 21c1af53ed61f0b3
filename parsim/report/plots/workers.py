"""A heat map of what each worker costs: stages of the pipeline downwards, replicas across."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from parsim.report.plots import style
from parsim.report.plots.figure import dress, font_size, fonts, heading, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parsim.report.workers import WorkerSlowdowns

_COLOURS = LinearSegmentedColormap.from_list("slowdown", [style.BUBBLE, style.ORANGE, style.VERMILION])
_ROW, _LEAST, _MOST = 0.32, 0.8, 5.0
"""height of a stage, and of all of them at least and at most [inch]"""
_ROUND = 0.8
"""what stands above and below a map [inch]"""
_NUMBER = 0.42
"""width of a cell in which a number can be read [inch]"""
_MARGIN = 2.0
"""what names, numbers and the scale take of the width [inch]"""
_BESIDE = 0.03
"""how far from a narrow cell its frame is [inch]"""


def workers_figure(workers: WorkerSlowdowns, title: str, width: float = 7.0) -> Figure:
    """A cell for each worker, the worst one framed; numbers in the cells where there is room."""
    return workers_figures([("", workers)], title, width)


def workers_figures(maps: Sequence[tuple[str, WorkerSlowdowns]], title: str, width: float = 7.0) -> Figure:
    """Heat maps of several jobs over each other, each with its name."""
    size = font_size(width)
    heights = [min(_MOST, max(_LEAST, _ROW * workers.stages)) for _, workers in maps]
    with fonts(title, size):
        figure = new_figure(width, 0.4 + fsum(heights) + _ROUND * len(maps))
        heading(figure, title, size)
        axes = figure.subplots(len(maps), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for ax, (name, workers), height in zip(axes, maps, heights, strict=True):
            ax.set_title(name, loc="left", fontsize=size, color=style.INK)
            _heat_map(ax, workers, width - _MARGIN, height, size)
    return figure


def _heat_map(ax: Axes, workers: WorkerSlowdowns, width: float, height: float, size: float) -> None:
    """One of them, so many inches large."""
    values = 100 * np.maximum(0.0, np.array(workers.slowdown))
    across = width / workers.replicas
    drawn = ax.imshow(values, cmap=_COLOURS, vmin=0.0, vmax=float(values.max()) or 1.0, aspect="auto", interpolation="nearest")
    if across >= _NUMBER and height / workers.stages >= 0.6 * _ROW:
        for (stage, replica), value in np.ndenumerate(values):
            said = f"{value:.3g}" if value else "0"
            ax.text(replica, stage, said, ha="center", va="center", color=style.INK, fontsize=0.8 * size)
    if (worst := workers.worst) is not None:
        off = _BESIDE / across if across < 6 * _BESIDE else 0.0
        corner = (worst[1] - 0.5 - off, worst[0] - 0.5)
        ax.add_patch(Rectangle(corner, 1 + 2 * off, 1, fill=False, ec=style.INK, lw=1.0 if off else 1.4, clip_on=False))
    ax.set_xlabel("replica")
    dress(ax, size)
    ax.spines["bottom"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(min(16, int(4 * width), workers.replicas), integer=True, min_n_ticks=1))
    if workers.stages > 1:
        ax.set_ylabel("pipeline stage")
        ax.yaxis.set_major_locator(MaxNLocator(min(16, workers.stages), integer=True, min_n_ticks=1))
    else:
        ax.set_yticks([])
    bar = ax.figure.colorbar(drawn, ax=ax, pad=0.02, aspect=max(6.0, 8.0 * height), fraction=0.08)
    bar.outline.set_visible(False)
    bar.set_label("longer by [%]", color=style.INK)
    bar.ax.tick_params(colors=style.INK, labelsize=0.833 * size)
    bar.locator = MaxNLocator(4)
