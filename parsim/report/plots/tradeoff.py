"""Two figures of merit of many runs in a plane, and the front of those that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from matplotlib.transforms import Bbox

from parsim.report.plots import style
from parsim.report.plots.figure import entries_of, legend, new_figure, plane, printed, round_ticks
from parsim.report.quantities import GIB, gib, number, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
        plane(ax, wide_label, high_label)
        for axis in (ax.xaxis, ax.yaxis):
            round_ticks(axis, 6)
        legend(figure, entries_of(ax), width, above)
    return figure


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
_LABEL_PLACES = (*_NEAR, *_FAR)
"""where a label may stand beside its point [pt], best first"""


class RunPoint(NamedTuple):
    """A run by its time and its peak memory."""

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
        _capacities(ax, places, unit.factor)
        plane(ax, f"{name} [{unit.name}]", "peak memory [GiB]")
        legend(figure, entries_of(ax), width, above)
        _label_points(figure, ax, places, unit.factor)
    return figure


def _capacities(ax: Axes, places: Sequence[RunPoint], factor: float) -> None:
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
        round_ticks(axis, 6)


def _label_points(figure: Figure, ax: Axes, places: Sequence[RunPoint], factor: float) -> None:
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
        for right, up, side in _LABEL_PLACES:
            text.set_position((right, up))
            text.set_horizontalalignment(side)
            box = text.get_window_extent()
            outside = box.x0 < frame.x0 or box.x1 > frame.x1 or box.y1 > frame.y1 or box.y0 < frame.y0
            hidden = math.fsum(_shared_area(box, other) for other in taken) + (1e6 if outside else 0.0)
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


def _shared_area(one: Bbox, other: Bbox) -> float:
    """Area that two boxes share."""
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    down = min(one.y1, other.y1) - max(one.y0, other.y0)
    return across * down if across > 0 and down > 0 else 0.0


_COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.YELLOW)
_NUMBER_PLACES = tuple(
    (across * out, up * out)
    for out in (1.0, 1.4, 1.9)
    for across, up in ((14, 8), (14, -8), (-14, 8), (-14, -8), (0, 12), (0, -12), (21, 0), (-21, 0))
)
"""where a number may stand beside its point [pt], best first"""
_BEST_PLACES = tuple((across, up) for up in (-16, 18, -28, 30, -42, 44, -58, 60) for across in (0, -50, 50))
"""where the name of the best may stand"""
_APART = 0.022
"""between machines of equally many GPUs, as a share of the axis"""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class Option(NamedTuple):
    """A configuration of a sizing question: how many GPUs, how long, what it costs."""

    machine: str
    gpus: int
    days: float
    value: float | None
    """cost, in the axis' unit"""
    band: tuple[float, float] | None = None
    """factors of the days"""
    possible: bool = True
    """meets deadline and budget"""
    front: bool = False
    """no other is better in both"""
    best: bool = False
    """the one that is recommended"""
    shift: float = 0.0
    """GPUs to the right, so that machines of equal size stand beside each other"""


class Limits(NamedTuple):
    """Deadline and budget."""

    days: float | None = None
    value: float | None = None


NO_LIMITS = Limits()


def time_cost_figure(options: Sequence[Option], unit: str, limits: Limits = NO_LIMITS, *, width: float = 7.0) -> Figure:
    """Days to the right, cost [unit] upwards, GPUs as numbers: lower left is better."""
    priced = [one for one in options if one.value is not None]
    return _sizing_figure(priced, "cost", f"cost [{unit}]", limits, width)


def gpus_time_figure(
    options: Sequence[Option], limits: Limits = NO_LIMITS, *, width: float = 7.0, bands: str = "likely range (80 %)"
) -> Figure:
    """GPUs to the right, days upwards, with the band of each where there is one; `bands` is what they are called."""
    return _sizing_figure(_side_by_side(options), "days", "time to train [days]", limits, width, bands)


def _side_by_side(options: Sequence[Option]) -> list[Option]:
    """Machines of equal numbers of GPUs are moved apart."""
    step = _APART * max((one.gpus for one in options), default=0)
    counts: dict[int, list[str]] = {}
    for one in options:
        counts.setdefault(one.gpus, []).append(one.machine)
    return [one._replace(shift=step * (counts[one.gpus].index(one.machine) - (len(counts[one.gpus]) - 1) / 2)) for one in options]


def _sizing_figure(
    options: Sequence[Option], what: Literal["cost", "days"], name: str, limits: Limits, width: float, bands: str = ""
) -> Figure:
    machines = list(dict.fromkeys(one.machine for one in options))
    with printed("".join(machines)):
        above = 0.5 * width + 0.4
        figure = new_figure(width, above)
        ax = figure.add_subplot()
        for place, machine in enumerate(machines):
            _draw_machine(ax, sorted((one for one in options if one.machine == machine), key=lambda one: one.gpus), place, what, bands)
        _draw_front(ax, options, what)
        _draw_limits(ax, limits, what)
        for axis in (ax.xaxis, ax.yaxis):
            round_ticks(axis, 7)
        plane(ax, "time to train [days]" if what == "cost" else "GPUs", name)
        ax.margins(0.12)
        ax.set_xlim(0.0, 1.12 * max([_at(one, what)[0] for one in options], default=1.0))
        ax.set_ylim(0.0, 1.15 * max([_top(one, what) for one in options], default=1.0))
        legend(figure, entries_of(ax), width, above)
        _label_options(figure, ax, options, what)
    return figure


def _at(one: Option, what: str) -> tuple[float, float]:
    return (one.days, one.value or 0.0) if what == "cost" else (one.gpus + one.shift, one.days)


def _top(one: Option, what: str) -> float:
    return (one.value or 0.0) if what == "cost" else one.days * (1.0 if one.band is None else max(1.0, one.band[1]))


def _draw_machine(ax: Axes, options: Sequence[Option], place: int, what: str, bands: str) -> None:
    """A machine's configurations by number of GPUs; hollow: not within deadline and budget; ringed: the best."""
    colour, marker = _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]
    points = [_at(one, what) for one in options]
    ax.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=0.8, linestyle=":", zorder=1)
    for one, (x, y) in zip(options, points, strict=True):
        if what == "days" and one.band is not None:
            ax.plot(
                [x, x],
                [one.days * one.band[0], one.days * one.band[1]],
                color=colour,
                linewidth=2.2,
                alpha=0.45,
                solid_capstyle="butt",
                zorder=2,
            )
        ax.plot(
            [x], [y], linestyle="none", marker=marker, markersize=6, color=colour, markerfacecolor=colour if one.possible else style.PAPER,
            markeredgecolor=style.INK if one.possible else colour, markeredgewidth=0.5 if one.possible else 1.2, zorder=3,
            label=one.machine if one.possible else f"{one.machine}, not within the limits",
        )  # fmt: skip
    if what == "days" and any(one.band is not None for one in options):
        ax.plot([], [], color=style.GREY, linewidth=2.2, alpha=0.6, label=bands)


def _label_options(figure: Figure, ax: Axes, options: Sequence[Option], what: Literal["cost", "days"]) -> None:
    """The best by its name, and beside points of time and cost their GPUs, where they cover nothing: what finds no room is left out."""
    figure.draw_without_rendering()
    half = 4.5 * figure.dpi / 72.0
    spots = [ax.transData.transform(_at(one, what)) for one in options]
    taken = [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in spots]
    frame = ax.get_window_extent()
    for one in sorted(options, key=lambda option: (not option.best, not option.front)):
        if one.best:
            ax.plot(
                *([value] for value in _at(one, what)), linestyle="none", marker="o", markersize=13, markerfacecolor="none",
                markeredgecolor=style.INK, markeredgewidth=1.4, zorder=4,
            )  # fmt: skip
        elif what == "days":
            continue
        text = ax.annotate(
            f"best: {one.machine}, {number(one.gpus)} GPUs" if one.best else number(one.gpus), _at(one, what), xytext=(0, 0),
            textcoords="offset points", fontsize="small" if one.best else "x-small", weight="bold" if one.best else "normal",
            color=style.INK, zorder=5, ha="center", va="center", bbox={"facecolor": (style.PAPER, 0.7), "edgecolor": "none", "pad": 0.2},
        )  # fmt: skip
        for place in _BEST_PLACES if one.best else _NUMBER_PLACES:
            text.set_position(place)
            box = text.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            text.remove()


def _draw_front(ax: Axes, options: Sequence[Option], what: str) -> None:
    best = sorted((_at(one, what) for one in options if one.front), key=lambda point: point[0])
    if what == "cost" and len(best) > 1:
        ax.plot(
            [x for x, _ in best], [y for _, y in best], drawstyle="steps-post", color=style.INK, linewidth=0.9, zorder=1,
            label="front: nothing is better in both; numbers: GPUs",
        )  # fmt: skip


def _draw_limits(ax: Axes, limits: Limits, what: str) -> None:
    if limits.days is not None:
        draw = ax.axvline if what == "cost" else ax.axhline
        draw(limits.days, color=style.CAPACITY, linestyle="--", linewidth=1.1, label=f"deadline {number(limits.days)} days", zorder=1)
    if limits.value is not None and what == "cost":
        ax.axhline(limits.value, color=style.CAPACITY, linestyle="-.", linewidth=1.1, label="budget", zorder=1)
