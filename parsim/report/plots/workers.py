"""A heat map of what each worker costs: stages of the pipeline downwards, replicas across."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from parsim.report.plots import style
from parsim.report.plots.figure import dress, font_size, fonts, heading, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parsim.report.workers import WorkerSlowdowns

_COLOURS = LinearSegmentedColormap.from_list("slowdown", [style.BUBBLE, style.ORANGE, style.VERMILION])
_ROW, _LEAST, _MOST = 0.32, 0.8, 5.0
"""height of a stage, and of all of them at least and at most [inch]"""
_NUMBER = 0.42
"""width of a cell in which a number can be read [inch]"""
_MARGIN = 2.0
"""what names, numbers and the scale take of the width [inch]"""
_BESIDE = 0.03
"""how far from a narrow cell its frame is [inch]"""


def workers_figure(workers: WorkerSlowdowns, title: str, width: float = 7.0) -> Figure:
    """A cell for each worker, the worst one framed; numbers in the cells where there is room."""
    values = 100 * np.maximum(0.0, np.array(workers.slowdown))
    most = float(values.max()) or 1.0
    size, across = font_size(width), (width - _MARGIN) / workers.replicas
    rows = min(_MOST, max(_LEAST, _ROW * workers.stages))
    with fonts(title, size):
        figure = new_figure(width, rows + 1.2)
        heading(figure, title, size)
        ax = figure.subplots()
        drawn = ax.imshow(values, cmap=_COLOURS, vmin=0.0, vmax=most, aspect="auto", interpolation="nearest")
        if across >= _NUMBER and rows / workers.stages >= 0.6 * _ROW:
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
        ax.xaxis.set_major_locator(MaxNLocator(min(16, int(4 * (width - _MARGIN)), workers.replicas), integer=True, min_n_ticks=1))
        if workers.stages > 1:
            ax.set_ylabel("pipeline stage")
            ax.yaxis.set_major_locator(MaxNLocator(min(16, workers.stages), integer=True, min_n_ticks=1))
        else:
            ax.set_yticks([])
        bar = figure.colorbar(drawn, ax=ax, pad=0.02, aspect=max(6.0, 8.0 * rows), fraction=0.08)
        bar.outline.set_visible(False)
        bar.set_label("longer by [%]", color=style.INK)
        bar.ax.tick_params(colors=style.INK, labelsize=0.833 * size)
        bar.locator = MaxNLocator(4)
    return figure
