"""Two figures of merit of many runs in a plane, and the front that nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.ticker import MaxNLocator

from parsim.report.plots import style
from parsim.report.plots.comparison import entries_of, legend, printed
from parsim.report.plots.figure import dress, new_figure
from parsim.report.quantities import GIB, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 12
"""points of the front that carry their number"""


class PlaneAxis(NamedTuple):
    """What an axis shows, in SI units or as the unit says."""

    title: str
    unit: str
    most: bool = False
    """more is better"""

    def scale(self, values: Sequence[float]) -> tuple[float, str]:
        """What a value is divided by, and the label."""
        if self.unit == "s":
            unit = time_unit(max(map(abs, values), default=1.0))
            return unit.factor, f"{self.title} [{unit.name}]"
        if self.unit == "B":
            return GIB, f"{self.title} [GiB]"
        if self.unit == "fraction":
            return 0.01, f"{self.title} [%]"
        return 1.0, self.title if self.unit in ("1", "") or self.unit == self.title else f"{self.title} [{self.unit}]"


class PlanePoint(NamedTuple):
    """One run; `label` begins with its number in the table."""

    label: str
    across: float
    up: float
    front: bool
    fits: bool = True


def tradeoff_figure(spots: Sequence[PlanePoint], across: PlaneAxis, up: PlaneAxis, *, width: float = 7.0) -> Figure:
    """The runs; the front is the stepped line, and its points carry their numbers."""
    wide, wide_label = across.scale([spot.across for spot in spots])
    high, high_label = up.scale([spot.up for spot in spots])
    front = sorted((spot for spot in spots if spot.front), key=lambda spot: (spot.across, spot.up))
    with printed("".join(spot.label for spot in spots)):
        above = 0.35 * width + 1.6
        figure = new_figure(width, above)
        ax = figure.add_subplot()
        ax.plot(
            [spot.across / wide for spot in front], [spot.up / high for spot in front], color=style.INK, linewidth=0.9, zorder=2,
            drawstyle="steps-pre" if across.most else "steps-post", label="front: nothing is better in both",
        )  # fmt: skip
        for name, marker, colour, size, chosen in (
            ("on the front", "o", style.BLUE, 6, [spot for spot in spots if spot.front and spot.fits]),
            ("off the front", "o", style.GREY, 4, [spot for spot in spots if not spot.front and spot.fits]),
            ("does not fit", "X", style.VERMILION, 5, [spot for spot in spots if not spot.fits]),
        ):
            if chosen:
                ax.plot(
                    [spot.across / wide for spot in chosen], [spot.up / high for spot in chosen], linestyle="none", marker=marker,
                    markersize=size, color=colour, markeredgecolor=style.INK, markeredgewidth=0.4, label=name, zorder=3,
                )  # fmt: skip
        step = max(1, -(-len(front) // _NAMED))
        for spot in front[::step]:
            ax.annotate(
                spot.label.partition(":")[0], (spot.across / wide, spot.up / high), textcoords="offset points", xytext=(5, 5),
                fontsize="small", color=style.INK, zorder=4,
            )  # fmt: skip
        ax.margins(0.08)
        ax.set_xlabel(wide_label)
        ax.set_ylabel(high_label)
        dress(ax)
        ax.spines["left"].set_visible(True)
        ax.spines["left"].set_color(style.INK)
        ax.grid(color=style.GRID, linewidth=0.5)
        ax.set_axisbelow(True)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        legend(figure, entries_of(ax), width, above)
    return figure
