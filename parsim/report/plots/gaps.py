"""What a cut axis of time says: gaps with broken edges, which period is drawn once, how often it comes, and ticks at true times."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.markers import TICKDOWN
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from matplotlib.transforms import offset_copy

from parsim.report.plots import style
from parsim.report.plots.figure import extent
from parsim.report.quantities import TimeUnit
from parsim.report.shortened import Break, ShortAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TEETH = 9
"""corners of a broken edge per inch"""


def mark_gaps(ax: Axes, axis: ShortAxis, unit: TimeUnit, size: float, *, say: bool = True) -> None:
    """Dress axes whose times are those of `axis`, and `say` above them what the gaps are. `size` of the text [pt]."""
    _ticks(ax, axis, unit, size)
    for gap in axis.breaks:
        left, right = gap.left / unit.factor, gap.right / unit.factor
        hidden = Rectangle(
            (left, 0), right - left, 1, transform=ax.get_xaxis_transform(), facecolor=style.PAPER, edgecolor="none", zorder=6
        )
        ax.add_patch(hidden)
        for edge, way in ((left, 1.0), (right, -1.0)):
            _broken_edge(ax, edge, way * 0.12 * (right - left))
        if say:
            _say(ax, gap, unit, size)


def _ticks(ax: Axes, axis: ShortAxis, unit: TimeUnit, size: float) -> None:
    """Round times where they are drawn; fewer where they would touch."""
    points = ax.get_window_extent().width / ax.figure.dpi * 72.0
    shown = fsum(end - begin for begin, end in axis.shown) / unit.factor
    steps = np.diff(MaxNLocator(max(4, min(10, int(points / (5.0 * size)))), steps=[1, 2, 5, 10]).tick_values(0.0, shown))
    step = float(steps[0]) if len(steps) else shown
    digits = max(0, min(6, int(np.ceil(-np.log10(step) - 1e-9))))
    kept: list[tuple[float, str]] = []
    for time in axis.ticks(step * unit.factor):
        place, text = float(axis.at([time])[0]), f"{abs(time) / unit.factor:,.{digits}f}"
        if not kept or (place - kept[-1][0]) / axis.end * points > (0.62 * max(len(text), len(kept[-1][1])) + 0.6) * size:
            kept.append((place, text))
    ax.xaxis.set_major_locator(FixedLocator([place / unit.factor for place, _ in kept]))
    ax.xaxis.set_major_formatter(FixedFormatter([text for _, text in kept]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(0.0, axis.end / unit.factor)


def _broken_edge(ax: Axes, at: float, depth: float) -> None:
    height = ax.get_window_extent().height / ax.figure.dpi
    corners = max(4, 2 * round(_TEETH * height / 2)) + 1
    ys = np.linspace(0.0, 1.0, corners)
    xs = at + depth * (np.arange(corners) % 2)
    ax.plot(
        xs, ys, transform=ax.get_xaxis_transform(), color=style.GREY, linewidth=0.7, zorder=6.1, clip_on=False, scalex=False, scaley=False
    )


def _say(ax: Axes, gap: Break, unit: TimeUnit, size: float) -> None:
    """A bracket over the period that is drawn once, and the text above it, within the axes."""
    width = ax.get_window_extent().width / ax.figure.dpi
    low, high = ax.get_xlim()
    per_inch = (high - low) / width
    start = (gap.left if gap.begin is None else gap.begin) / unit.factor
    stop = (gap.right if gap.begin is None else gap.left) / unit.factor
    half = 0.55 * extent(gap.text, 0.833 * size) * per_inch
    middle = min(max((start + gap.right / unit.factor) / 2, low + half), high - half)
    ax.annotate(
        gap.text, (middle, 1.0), xytext=(0, 0.6 * size), xycoords=ax.get_xaxis_transform(), textcoords="offset points", ha="center",
        va="bottom", fontsize=0.833 * size, color=style.INK, annotation_clip=False,
    )  # fmt: skip
    if gap.begin is not None:
        above = offset_copy(ax.get_xaxis_transform(), fig=ax.get_figure(root=True), y=0.4 * size, units="points")
        ax.plot(
            [start, stop], [1.0, 1.0], transform=above, color=style.INK, linewidth=0.9, marker=TICKDOWN, markersize=0.3 * size,
            clip_on=False, scalex=False, scaley=False,
        )  # fmt: skip
