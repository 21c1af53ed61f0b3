"""Timelines of several runs under each other, on one time axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from matplotlib.patches import Rectangle

from parsim.report.lanes import Bars, RankLanes, TimelineData
from parsim.report.plots import style
from parsim.report.plots.comparison import is_narrow, legend, printed
from parsim.report.plots.figure import font_size, new_figure, round_ticks
from parsim.report.plots.timeline import plot_timeline
from parsim.report.quantities import seconds, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.16
"""height of one row of a rank [inch]"""
_HEAD = 0.34
_FOOT = 0.55
_LEGEND = 1.5
_ABOVE_BARS = 2.5
"""drawn over bars and under numbers"""


def timelines_figure(entries: Sequence[tuple[str, TimelineData, bool]], *, width: float = 7.0) -> Figure:
    """Label, lanes and whether it fits, one panel each; all begin at 0 and the longest sets the axis.

    Of a schedule without a flush its steady window is drawn.
    """
    data = [_from_zero(lanes) for _, lanes, _ in entries]
    longest = max((one.end for one in data), default=1.0)
    heights = [_HEAD + _ROW * math.fsum(_rows(one)) for one in data]
    with printed("".join(label for label, _, _ in entries)):
        # numbers are placed by sizes on paper, so there must be room for a legend before it is known
        figure = new_figure(width, math.fsum(heights) + _FOOT + _LEGEND)
        axes = list(figure.subplots(len(data), 1, height_ratios=heights, squeeze=False).flat)
        handles: dict[str, Any] = {}
        for ax, one, (label, _, fits) in zip(axes, data, entries, strict=True):
            # all panels get the longest one's end: the same unit, ticks and room for numbers; what is too much is covered
            names = [lane.who.name for lane in one.lanes]  # what each rank stands for would take the width of the bars
            plot_timeline(replace(one, title="", note="", end=longest), ax, size=font_size(width), labels=names)
            handles |= _legend_of(ax, figure)
            _cover(ax, one.end, longest)
            _title(ax, label, one.end - one.begin, fits=fits)
            _small(ax, last=ax is axes[-1], narrow=is_narrow(width))
        legend(figure, handles, width, math.fsum(heights) + _FOOT)
    return figure


def _rows(data: TimelineData) -> list[float]:
    return [1.45 + 0.42 * len(data.rows) for _ in data.lanes]


def _from_zero(data: TimelineData) -> TimelineData:
    """The same lanes with times from the beginning of what is measured."""
    if data.begin == 0.0:
        return data
    lanes = tuple(_moved(lane, data.begin) for lane in data.lanes)
    return replace(data, lanes=lanes, begin=0.0, end=data.end - data.begin)


def _moved(lane: RankLanes, by: float) -> RankLanes:
    def moved(bars: Bars) -> Bars:
        return Bars(bars.begin - by, bars.end - by)

    return replace(
        lane,
        compute={key: moved(bars) for key, bars in lane.compute.items()},
        boxes=lane.boxes.moved(by),
        beside={key: moved(bars) for key, bars in lane.beside.items()},
        exposed={key: moved(bars) for key, bars in lane.exposed.items()},
    )


def _legend_of(ax: Axes, figure: Figure) -> dict[str, Any]:
    """Remove the legend of a panel and return its entries, label -> handle."""
    own = ax.get_legend()
    handles: dict[str, Any] = {}
    for one in [*figure.legends, *([] if own is None else [own])]:
        handles |= {text.get_text(): handle for text, handle in zip(one.get_texts(), one.legend_handles, strict=True)}
        one.remove()
    return handles


def _cover(ax: Axes, end: float, longest: float) -> None:
    """Paper over what lies behind the end of a shorter run: it is no bubble."""
    factor = time_unit(longest).factor
    low, high = sorted(ax.get_ylim())
    if end < longest:
        ax.add_patch(
            Rectangle((end / factor, low), (longest - end) / factor, high - low, facecolor=style.PAPER, linewidth=0, zorder=_ABOVE_BARS)
        )
    ax.axvline(end / factor, color=style.INK, linewidth=0.9, zorder=_ABOVE_BARS)


def _title(ax: Axes, label: str, duration: float, *, fits: bool) -> None:
    colour = style.INK if fits else style.CAPACITY
    text = f"{label}: {seconds(duration)}" if fits else f"{label}: {seconds(duration)}, does not fit"
    ax.set_title(text, loc="left", color=colour, fontsize="medium", fontweight="bold", pad=3)
    ax.set_title("", loc="right")


def _small(ax: Axes, *, last: bool, narrow: bool) -> None:
    round_ticks(ax.xaxis, 5 if narrow else 10)
    ax.tick_params(axis="y", labelsize="x-small" if narrow else "small")
    if not last:
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False, bottom=False)
        ax.spines["bottom"].set_visible(False)
