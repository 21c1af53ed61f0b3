"""Time against peak memory: which runs no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from parsim.report.plots import style
from parsim.report.plots.comparison import entries_of, legend, printed
from parsim.report.plots.figure import dress, new_figure
from parsim.report.quantities import GIB, gib, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Side = Literal["left", "right", "center"]
_ROOM = 0.12
"""margin around the points, as a share of their spread"""
_COMPARABLE = 1.6
"""a capacity beyond so many times the highest point is named, not drawn"""
_NEAR: tuple[tuple[int, int, Side], ...] = (
    (6, 3, "left"), (6, -9, "left"), (-6, 3, "right"), (-6, -9, "right"), (0, 7, "center"), (0, -14, "center"),
)  # fmt: skip
_WAYS: tuple[tuple[int, int, Side], ...] = (
    (1, 1, "left"), (1, -1, "left"), (-1, 1, "right"), (-1, -1, "right"), (2, 0, "left"), (0, 1, "center"),
)  # fmt: skip
_FAR = tuple((across * out, up * out + (0 if up > 0 else -8), side) for out in (14, 24, 36, 50, 66) for across, up, side in _WAYS)
_PLACES = (*_NEAR, *_FAR)
"""where a label may stand beside its point [pt], best first"""


class RunPoint(NamedTuple):
    """One run."""

    label: str
    time: float
    """[s], of a step or of a unit of work"""
    peak: int
    """[B]"""
    fits: bool
    capacity: int | None = None
    """[B]"""


def front(places: Sequence[RunPoint]) -> list[RunPoint]:
    """Those that fit and that no other fitting one beats in time or memory without losing in the other, by time."""
    kept: list[RunPoint] = []
    for place in sorted((one for one in places if one.fits), key=lambda one: (one.time, one.peak)):
        if not kept or place.peak < kept[-1].peak:
            kept.append(place)
    return kept


def pareto_figure(places: Sequence[RunPoint], *, name: str = "step time", width: float = 7.0) -> Figure:
    """Step time (or `name`) to the right, peak memory upwards: lower left is better; the front is the stepped line."""
    unit = time_unit(max((place.time for place in places), default=1.0))
    with printed("".join(place.label for place in places)):
        above = 0.35 * width + 1.6
        figure = new_figure(width, above)
        ax = figure.add_subplot()
        best = front(places)
        if len(best) > 1:
            ax.plot(
                [one.time / unit.factor for one in best], [one.peak / GIB for one in best], drawstyle="steps-post", color=style.INK,
                linewidth=0.9, label="front: nothing is better in both", zorder=1,
            )  # fmt: skip
        for fits, marker, colour, label in ((True, "o", style.BLUE, "fits"), (False, "X", style.VERMILION, "does not fit")):
            chosen = [place for place in places if place.fits is fits]
            if chosen:
                ax.plot(
                    [one.time / unit.factor for one in chosen], [one.peak / GIB for one in chosen], linestyle="none", marker=marker,
                    color=colour, markersize=6, markeredgecolor=style.INK, markeredgewidth=0.5, label=label, zorder=3,
                )  # fmt: skip
        _limits(ax, places, unit.factor)
        ax.set_xlabel(f"{name} [{unit.name}]")
        ax.set_ylabel("peak memory [GiB]")
        dress(ax)
        ax.spines["left"].set_visible(True)
        ax.spines["left"].set_color(style.INK)
        ax.grid(color=style.GRID, linewidth=0.5)
        ax.set_axisbelow(True)
        legend(figure, entries_of(ax), width, above)
        _labels(figure, ax, places, unit.factor)
    return figure


def _limits(ax: Axes, places: Sequence[RunPoint], factor: float) -> None:
    """Room around the points; the capacity where it is near, and all of memory below it."""
    times = [place.time / factor for place in places]
    peaks = [place.peak / GIB for place in places]
    spread = max(times) - min(times) or 0.2 * max(times) or 1.0
    ax.set_xlim(max(0.0, min(times) - _ROOM * spread), max(times) + 2.5 * _ROOM * spread)
    top = 1.15 * max(*peaks, 1e-9)
    capacities = {place.capacity / GIB for place in places if place.capacity is not None}
    for level in sorted(capacities):
        label = f"capacity {gib(level * GIB)} GiB"
        look: dict[str, Any] = {"color": style.CAPACITY, "linestyle": "--", "linewidth": 1.1}
        if level <= _COMPARABLE * max(peaks):
            ax.axhline(level, **look, label=label, zorder=1)
            top = max(top, 1.06 * level)
        else:
            ax.plot([], [], **look, label=f"{label}, far above")
    ax.set_ylim(0.0, top)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


def _labels(figure: Figure, ax: Axes, places: Sequence[RunPoint], factor: float) -> None:
    """Each label beside its point, where it covers no other."""
    figure.draw_without_rendering()
    point = figure.dpi / 72.0
    spots = [ax.transData.transform((place.time / factor, place.peak / GIB)) for place in places]
    taken = [Bbox.from_bounds(x - 4 * point, y - 4 * point, 8 * point, 8 * point) for x, y in spots]
    frame = ax.get_window_extent()
    for place in places:
        text = ax.annotate(
            place.label, (place.time / factor, place.peak / GIB), textcoords="offset points", xytext=(6, 4), va="bottom",
            color=style.INK if place.fits else style.CAPACITY, fontsize="small", zorder=4,
            bbox={"facecolor": (style.PAPER, 0.75), "edgecolor": "none", "pad": 0.4},
        )  # fmt: skip
        best: tuple[float, tuple[int, int, Side], Bbox] | None = None
        for right, up, side in _PLACES:
            text.set_position((right, up))
            text.set_horizontalalignment(side)
            box = text.get_window_extent()
            outside = box.x0 < frame.x0 or box.x1 > frame.x1 or box.y1 > frame.y1 or box.y0 < frame.y0
            hidden = math.fsum(_common(box, other) for other in taken) + (1e6 if outside else 0.0)
            if best is None or hidden < best[0]:
                best = (hidden, (right, up, side), box)
            if hidden == 0.0:
                break
        if best is not None:
            right, up, side = best[1]
            text.set_position((right, up))
            text.set_horizontalalignment(side)
            taken.append(best[2])
            if (right, up, side) in _FAR:
                ax.annotate(
                    "", (place.time / factor, place.peak / GIB), textcoords="offset points", xytext=(right, up + (0 if up > 0 else 8)),
                    arrowprops={"arrowstyle": "-", "color": style.GREY, "linewidth": 0.5}, zorder=2,
                )  # fmt: skip


def _common(one: Bbox, other: Bbox) -> float:
    """Area that two boxes share."""
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    down = min(one.y1, other.y1) - max(one.y0, other.y0)
    return across * down if across > 0 and down > 0 else 0.0
