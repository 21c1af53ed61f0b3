"""A collective over message size: time and bus bandwidth, both logarithmic, with measurements on top."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts, grid, legend_below, log_ticks, new_figure
from parsim.report.quantities import seconds
from parsim.report.quantities import size as size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "ring": style.BLUE,
    "tree": style.GREEN,
    "nvls": style.VERMILION,
    "nvls_tree": style.PURPLE,
    "collnet_direct": style.ORANGE,
    "collnet_chain": style.YELLOW,
    "pat": style.SKY,
}
"""Algorithms; others are grey."""
DASHES = {"simple": "-", "ll128": "--", "ll": ":"}
"""Protocols."""
_MARKERS = {False: "o", True: "D"}
_TICKS = 12
"""labels of the size axis"""


class PredictedSize(NamedTuple):
    """Predicted time and bandwidth of one message size."""

    bytes: int
    time: float
    """[s]"""
    busbw: float
    """[B/s]"""
    algorithm: str
    protocol: str


class MeasuredSize(NamedTuple):
    """Measured time and bandwidth of one message size."""

    bytes: int
    time: float
    """[s]"""
    busbw: float
    """[B/s]"""
    in_place: bool = False


def collective_figure(dots: Sequence[PredictedSize], marks: Sequence[MeasuredSize] = (), *, title: str = "") -> Figure:
    """Time above bus bandwidth over size. The line's colour is the algorithm, its dashes are the protocol; rings are measured.

    Sizes of 0 B are not drawn: the axis is logarithmic.
    """
    dots = sorted(dot for dot in dots if dot.bytes > 0 and dot.time > 0)
    marks = [mark for mark in marks if mark.bytes > 0 and mark.time > 0]
    with fonts(title):
        figure = new_figure(9.0, 7.2)
        above, below = figure.subplots(2, 1, sharex=True)
        _panel(above, dots, marks, lambda one: one.time, "time")
        _panel(below, dots, marks, lambda one: one.busbw / 1e9, "bus bandwidth [GB/s]")
        above.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
        _sizes(below, [*(dot.bytes for dot in dots), *(mark.bytes for mark in marks)])
        above.tick_params(labelbottom=False)
        above.set_title(title, loc="left", color=style.INK)
        handles, labels = below.get_legend_handles_labels()
        legend_below(figure, handles, labels, columns=min(5, max(1, len(handles))))
    return figure


def _panel(
    ax: Axes,
    dots: Sequence[PredictedSize],
    marks: Sequence[MeasuredSize],
    value: Callable[[PredictedSize | MeasuredSize], float],
    label: str,
) -> None:
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for first, last in _runs(dots):
        dot = dots[first]
        chosen = dots[first : last + 1]
        name = f"{dot.algorithm.replace('_', '-')} {dot.protocol}"
        known = name in ax.get_legend_handles_labels()[1]
        ax.plot(
            [one.bytes for one in chosen], [value(one) for one in chosen], color=COLOURS.get(dot.algorithm, style.GREY),
            linestyle=DASHES.get(dot.protocol, "-"), marker=".", markersize=5, linewidth=1.6, label=None if known else name, zorder=2,
        )  # fmt: skip
        if last + 1 < len(dots):  # where the choice changes, so that the line has no gap
            bridge = dots[last : last + 2]
            ax.plot([one.bytes for one in bridge], [value(one) for one in bridge], color=style.GRID, linewidth=1.2, zorder=1)
    for in_place in (False, True):
        chosen_marks = [mark for mark in marks if mark.in_place is in_place]
        if chosen_marks:
            ax.plot(
                [one.bytes for one in chosen_marks], [value(one) for one in chosen_marks], linestyle="none", marker=_MARKERS[in_place],
                markersize=6, markerfacecolor="none", markeredgecolor=style.INK, label=f"measured, {'in' if in_place else 'out of'} place",
                zorder=3,
            )  # fmt: skip
    values = [*map(value, dots), *map(value, marks)]
    _decades(ax, values)
    ax.set_ylabel(label)
    dress(ax)
    grid(ax)


def _runs(dots: Sequence[PredictedSize]) -> list[tuple[int, int]]:
    """First and last of neighbours that use the same algorithm and protocol."""
    runs: list[tuple[int, int]] = []
    for number_, dot in enumerate(dots):
        if runs and (dots[number_ - 1].algorithm, dots[number_ - 1].protocol) == (dot.algorithm, dot.protocol):
            runs[-1] = (runs[-1][0], number_)
        else:
            runs.append((number_, number_))
    return runs


def _decades(ax: Axes, values: Sequence[float]) -> None:
    """Labels at 1, 2 and 5 where there are few decades, at powers of ten otherwise."""
    if not values:
        return
    span = math.log10(max(values) / min(values)) if min(values) > 0 else 1.0
    log_ticks(ax.yaxis, few=span <= 3.0, most=20)


def _sizes(ax: Axes, sizes: Sequence[int]) -> None:
    """Powers of two as labels, at most a dozen."""
    if not sizes:
        return
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = max(1, math.ceil((high - low + 1) / _TICKS))
    ax.xaxis.set_major_locator(FixedLocator([float(2**power) for power in np.arange(low, high + 1, step)]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
    ax.set_xlabel("size")
