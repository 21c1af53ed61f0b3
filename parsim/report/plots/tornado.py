"""What changes do to a number, as a tornado: bars to both sides of where it stands now, the longest on top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Bar(NamedTuple):
    """One change: from and to, as shares of the number now (-0.2: 20 % less)."""

    label: str
    low: float
    high: float
    note: str = ""


def tornado_figure(title: str, bars: Sequence[Bar], quantity: str, width: float = 7.0) -> Figure:
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
        ax.grid(axis="x", color=style.GRID, lw=0.6)
        ax.set_axisbelow(True)
        dress(ax)
        ax.tick_params(axis="y", length=0)
    return figure


def _labels(ax: object, row: int, bar: Bar) -> None:
    for value, side in ((bar.low, "right"), (bar.high, "left")):
        if abs(value) >= 5e-4:
            shift = -3 if side == "right" else 3
            ax.annotate(  # type: ignore[attr-defined]
                f"{100 * value:+.1f}", (100 * value, row), (shift, 0), textcoords="offset points", ha=side, va="center", fontsize="x-small",
                color=style.INK,
            )  # fmt: skip
