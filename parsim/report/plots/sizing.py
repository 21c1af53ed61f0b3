"""What a training takes on one kind of machine or another: time against cost, GPUs against time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from parsim.report.plots import style
from parsim.report.plots.comparison import entries_of, legend, printed
from parsim.report.plots.figure import dress, new_figure
from parsim.report.quantities import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.YELLOW)
_PLACES = ((12, 8), (12, -8), (-12, 8), (-12, -8), (0, 11), (0, -11), (20, 0), (-20, 0), (20, 16), (-20, 16), (20, -16), (-20, -16))
"""where a number may stand beside its point [pt], best first"""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class Option(NamedTuple):
    """One configuration."""

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


class Limits(NamedTuple):
    """What may not be exceeded."""

    days: float | None = None
    value: float | None = None


NO_LIMITS = Limits()


def time_cost_figure(options: Sequence[Option], unit: str, limits: Limits = NO_LIMITS, *, width: float = 7.0) -> Figure:
    """Days to the right, cost [unit] upwards, GPUs as numbers: lower left is better."""
    priced = [one for one in options if one.value is not None]
    return _figure(priced, "cost", f"cost [{unit}]", limits, width)


def gpus_time_figure(options: Sequence[Option], limits: Limits = NO_LIMITS, *, width: float = 7.0) -> Figure:
    """GPUs to the right, days upwards, with the band of published runs where there is one."""
    return _figure(options, "days", "time to train [days]", limits, width)


def _figure(options: Sequence[Option], what: Literal["cost", "days"], name: str, limits: Limits, width: float) -> Figure:
    machines = list(dict.fromkeys(one.machine for one in options))
    with printed("".join(machines)):
        above = 0.5 * width + 0.4
        figure = new_figure(width, above)
        ax = figure.add_subplot()
        for place, machine in enumerate(machines):
            _series(ax, sorted((one for one in options if one.machine == machine), key=lambda one: one.gpus), place, what)
        _front(ax, options, what)
        _limits(ax, limits, what)
        ax.set_xlabel("time to train [days]" if what == "cost" else "GPUs")
        ax.set_ylabel(name)
        ax.set_xlim(left=0.0)
        ax.set_ylim(bottom=0.0)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
        dress(ax)
        ax.spines["left"].set_visible(True)
        ax.spines["left"].set_color(style.INK)
        ax.grid(color=style.GRID, linewidth=0.5)
        ax.set_axisbelow(True)
        ax.margins(0.12)
        ax.set_xlim(0.0, 1.12 * max([_at(one, what)[0] for one in options], default=1.0))
        ax.set_ylim(0.0, 1.15 * max([_top(one, what) for one in options], default=1.0))
        legend(figure, entries_of(ax), width, above)
        if what == "cost":
            _numbers(figure, ax, options)
    return figure


def _at(one: Option, what: str) -> tuple[float, float]:
    return (one.days, one.value or 0.0) if what == "cost" else (float(one.gpus), one.days)


def _top(one: Option, what: str) -> float:
    return (one.value or 0.0) if what == "cost" else one.days * (1.0 if one.band is None else max(1.0, one.band[1]))


def _series(ax: Axes, options: Sequence[Option], place: int, what: str) -> None:
    """A machine's configurations by number of GPUs; hollow: not within deadline and budget."""
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
        ax.plot([], [], color=style.GREY, linewidth=2.2, alpha=0.6, label="80 % of published runs alike")


def _numbers(figure: Figure, ax: Axes, options: Sequence[Option]) -> None:
    """GPUs beside the points, where they cover nothing."""
    figure.draw_without_rendering()
    half = 4.0 * figure.dpi / 72.0
    spots = [ax.transData.transform(_at(one, "cost")) for one in options]
    taken = [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in spots]
    for one in options:
        text = ax.annotate(
            number(one.gpus), _at(one, "cost"), xytext=_PLACES[0], textcoords="offset points", fontsize="x-small", color=style.INK,
            zorder=4, ha="center", va="center", bbox={"facecolor": (style.PAPER, 0.7), "edgecolor": "none", "pad": 0.2},
        )  # fmt: skip
        for place in _PLACES:
            text.set_position(place)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


def _front(ax: Axes, options: Sequence[Option], what: str) -> None:
    best = sorted((_at(one, what) for one in options if one.front), key=lambda point: point[0])
    if what == "cost" and len(best) > 1:
        ax.plot(
            [x for x, _ in best], [y for _, y in best], drawstyle="steps-post", color=style.INK, linewidth=0.9, zorder=1,
            label="front: nothing is better in both; numbers: GPUs",
        )  # fmt: skip


def _limits(ax: Axes, limits: Limits, what: str) -> None:
    if limits.days is not None:
        draw = ax.axvline if what == "cost" else ax.axhline
        draw(limits.days, color=style.CAPACITY, linestyle="--", linewidth=1.1, label=f"deadline {number(limits.days)} days", zorder=1)
    if limits.value is not None and what == "cost":
        ax.axhline(limits.value, color=style.CAPACITY, linestyle="-.", linewidth=1.1, label="budget", zorder=1)
