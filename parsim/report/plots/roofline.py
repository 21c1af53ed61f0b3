"""Parts of a model under the two limits of a device: Williams, Waterman and Patterson's roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts, new_figure
from parsim.report.quantities import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.VERMILION, style.SKY)


class Dot(NamedTuple):
    """One part: FLOP/B, reached FLOP/s, and its share of the time."""

    label: str
    intensity: float
    rate: float
    share: float


def roofline_figure(title: str, dots: Sequence[Dot], peak: float, bandwidth: float, width: float = 7.0) -> Figure:
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
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if axis is ax.yaxis else (1.0,)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
            axis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("arithmetic intensity [FLOP/B]", fontsize="small")
        ax.set_ylabel("reached [TFLOP/s]", fontsize="small")
        ax.grid(color=style.GRID, lw=0.6)
        ax.set_axisbelow(True)
        dress(ax)
        ax.set_title(title, loc="left", color=style.INK, fontsize="medium")
        if known:
            legend = ax.legend(frameon=False, fontsize="x-small", labelcolor=style.INK, loc="center left", bbox_to_anchor=(1.0, 0.5),
                               title="part (share of the time)", title_fontsize="x-small")  # fmt: skip
            for handle in legend.legend_handles:
                handle.set_sizes([28])  # type: ignore[union-attr]
    return figure
