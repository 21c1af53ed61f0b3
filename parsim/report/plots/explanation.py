"""Pictures that explain a number: what changes do to it, how near parts are to the limits of a device, how far predictions are off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts, grid, log_ticks, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class ChangeBar(NamedTuple):
    """One change: from and to, as shares of the number now (-0.2: 20 % less)."""

    label: str
    low: float
    high: float
    note: str = ""


def tornado_figure(title: str, bars: Sequence[ChangeBar], quantity: str, width: float = 7.0) -> Figure:
    """A horizontal bar per change, sorted by reach; `quantity` names the axis, whose unit is per cent of now."""
    ordered = sorted(bars, key=lambda bar: max(abs(bar.low), abs(bar.high)))
    with fonts(title + "".join(bar.label for bar in bars)):
        figure = new_figure(width, 1.0 + 0.27 * max(1, len(ordered)))
        ax = figure.subplots()
        for row, bar in enumerate(ordered):
            for value in (bar.low, bar.high):
                if value:
                    colour, hatch = (style.GREEN, "") if value < 0 else (style.VERMILION, "////")
                    ax.barh(row, 100 * value, 0.72, color=colour, hatch=hatch, edgecolor=style.PAPER, linewidth=0)
            _labels(ax, row, bar)
        ax.axvline(0, color=style.INK, lw=0.8)
        ax.set_yticks(range(len(ordered)), [bar.label for bar in ordered])
        reach = max((max(abs(bar.low), abs(bar.high)) for bar in ordered), default=0.01) or 0.01
        low = min(0.0, *(bar.low for bar in ordered)) if ordered else 0.0
        high = max(0.0, *(bar.high for bar in ordered)) if ordered else 0.0
        ax.set_xlim(100 * (low - 0.22 * reach), 100 * (high + 0.22 * reach))
        ax.set_xlabel(f"{quantity}, change from now [%]", fontsize="small")
        ax.set_title(title, loc="left", color=style.INK, fontsize="medium")
        grid(ax, "x", 0.6)
        dress(ax)
        ax.tick_params(axis="y", length=0)
    return figure


def _labels(ax: object, row: int, bar: ChangeBar) -> None:
    for value, side in ((bar.low, "right"), (bar.high, "left")):
        if abs(value) >= 5e-4:
            shift = -3 if side == "right" else 3
            ax.annotate(  # type: ignore[attr-defined]
                f"{100 * value:+.1f}", (100 * value, row), (shift, 0), textcoords="offset points", ha=side, va="center", fontsize="x-small",
                color=style.INK,
            )  # fmt: skip


_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.VERMILION, style.SKY)


class RooflinePart(NamedTuple):
    """One part: FLOP/B, reached FLOP/s, and its share of the time."""

    label: str
    intensity: float
    rate: float
    share: float


def roofline_figure(title: str, dots: Sequence[RooflinePart], peak: float, bandwidth: float, width: float = 7.0) -> Figure:
    """Intensity [FLOP/B] against reached rate [TFLOP/s], both logarithmic; areas are proportional to time."""
    known = [dot for dot in dots if dot.intensity > 0 and dot.rate > 0]
    ridge = peak / bandwidth
    low = min([dot.intensity for dot in known] + [ridge]) / 3
    high = max([dot.intensity for dot in known] + [ridge]) * 3
    labels = [f"{dot.label} ({100 * dot.share:.0f} %)" for dot in known]
    with fonts(title + "".join(labels)):
        figure = new_figure(width, 0.62 * width)
        ax = figure.subplots()
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.plot([low, ridge, high], [low * bandwidth / 1e12, peak / 1e12, peak / 1e12], color=style.INK, lw=1.2)
        ax.axvline(ridge, color=style.INK, lw=0.6, ls=":")
        ax.annotate(f"ridge {ridge:,.0f} FLOP/B", (ridge, 0.02), (4, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
                    fontsize="x-small", color=style.INK)  # fmt: skip
        for place, dot in enumerate(known):
            ax.scatter(
                [dot.intensity], [dot.rate / 1e12], s=18 + 260 * dot.share, marker=_MARKERS[place % len(_MARKERS)],
                color=_COLOURS[place % len(_COLOURS)], edgecolors=style.INK, linewidths=0.5, alpha=0.85, label=labels[place],
            )  # fmt: skip
        ax.set_xlim(low, high)
        for axis in (ax.xaxis, ax.yaxis):
            log_ticks(axis, few=axis is ax.yaxis)
        ax.set_xlabel("arithmetic intensity [FLOP/B]", fontsize="small")
        ax.set_ylabel("reached [TFLOP/s]", fontsize="small")
        grid(ax, width=0.6)
        dress(ax)
        ax.set_title(title, loc="left", color=style.INK, fontsize="medium")
        if known:
            legend = ax.legend(frameon=False, fontsize="x-small", labelcolor=style.INK, loc="center left", bbox_to_anchor=(1.0, 0.5),
                               title="part (share of the time)", title_fontsize="x-small")  # fmt: skip
            for handle in legend.legend_handles:
                handle.set_sizes([28])  # type: ignore[union-attr]
    return figure


_SERIES_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY)
_SERIES_MARKERS = ("o", "D", "^", "s", "v", "P")
_COLUMNS = 3
_CROWDED = 6
"""series of a panel above which its legend is small"""


class PredictedValue(NamedTuple):
    """One measurement and its prediction."""

    series: str
    measured: float
    predicted: float


def scatter_figure(panels: Mapping[str, Sequence[PredictedValue]], unit: str, band: float) -> Figure:
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


def _panel(ax: Axes, title: str, points: Sequence[PredictedValue], unit: str, band: float) -> None:
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
            marker=_SERIES_MARKERS[place % len(_SERIES_MARKERS)],
            color=_SERIES_COLOURS[place % len(_SERIES_COLOURS)], markersize=3.5, markeredgewidth=0, alpha=0.7,
            label=f"{series} ({len(chosen)})",
        )  # fmt: skip
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        log_ticks(axis, few=high / low <= 30)
    grid(ax, width=0.6)
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
