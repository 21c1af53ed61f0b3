"""The training over weeks as figures: its time by kind with a tick for every failure, and goodput against interval and size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from matplotlib.ticker import FuncFormatter, NullLocator

from parsim.report.page.training import COLOURS, WORDS
from parsim.report.plots import style
from parsim.report.plots.figure import dress, font_size, fonts, grid, heading, legend_below, new_figure, round_ticks
from parsim.report.quantities import number, percent, points, seconds
from parsim.report.training_run import CurvePoint, TrainingWeeks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 240
"""over the time; in each of them kinds stand on each other by their shares"""
_ROWS = 7
"""causes with a row of ticks of their own"""
_DAY = 86_400.0
_STEPS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 432000, 864000)
"""round times [s]"""
Mark = tuple[float, float, str, str]
"""a named point: where, its goodput, its words, its colour"""


def training_figure(weeks: TrainingWeeks, title: str, width: float = 7.0) -> Figure:
    """Shares of every stretch of the wall time, and beneath them the failures in a row per cause."""
    wall, causes = weeks.run.wall, weeks.by_cause(_ROWS)
    unit, name = (_DAY, "days") if wall >= 2 * _DAY else (3600.0, "hours")
    size = font_size(width)
    with fonts(title, size):
        ticks = 0.25 * len(causes) + 0.15 if causes else 0.0
        figure = new_figure(width, 2.4 + ticks)
        heading(figure, title, size)
        heights = [1.5, ticks] if causes else [1.5]
        axes = figure.subplots(len(heights), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})[:, 0]
        edges = [wall * column / _COLUMNS / unit for column in range(_COLUMNS + 1)]
        base = [0.0] * _COLUMNS
        for kind, shares in weeks.shares(_COLUMNS).items():
            if any(shares):
                tops = [low + 100 * share for low, share in zip(base, shares, strict=True)]
                label = f"{WORDS[kind]} {percent(weeks.run.spent(kind) / wall)}"  # type: ignore[arg-type]
                axes[0].stairs(tops, edges, baseline=base, fill=True, color=COLOURS[kind], label=label)
                base = tops
        axes[0].set_ylim(0, 100)
        axes[0].set_ylabel("share of the time [%]")
        for row, (_, times) in enumerate(causes):
            axes[-1].plot([at / unit for at in times], [row] * len(times), "|", color=style.INK, markersize=0.8 * size)
        if causes:
            axes[-1].set_yticks(range(len(causes)), [f"{cause} {len(times)}" for cause, times in causes])
            axes[-1].set_ylim(len(causes) - 0.5, -0.5)
        for ax in axes:
            dress(ax, size)
            ax.tick_params(axis="y", length=0)
        axes[-1].set_xlim(0, wall / unit)
        axes[-1].set_xlabel(f"wall time [{name}]")
        round_ticks(axes[-1].xaxis, 7)
        legend_below(figure, axes[0].get_legend_handles_labels()[0], columns=3 if width >= 5.0 else 2)
    return figure


def interval_figure(weeks: TrainingWeeks, title: str, width: float = 7.0) -> Figure:
    """Goodput against the time between checkpoints."""
    failures, own, best = weeks.failures, weeks.run.training.interval, weeks.failures.optimum
    marks = [] if best is None else [(best, failures.every(best).goodput, f"best: {seconds(best)}", style.GREEN)]
    marks.append((own, failures.goodput, f"this job: {seconds(own)}", style.VERMILION))
    marks.append((own, weeks.run.goodput, "this sample path", style.PURPLE))
    curve = weeks.by_interval()
    ticks = _few([float(at) for at in _STEPS if curve[0].at <= at <= curve[-1].at])
    return _curve(curve, marks, ticks, seconds, "time between checkpoints", title, width)


def size_figure(weeks: TrainingWeeks, title: str, width: float = 7.0) -> Figure:
    """Goodput against the number of GPUs, each at its best interval."""
    marks = [(float(weeks.gpus), weeks.failures.goodput, f"this job: {weeks.gpus:,} GPUs", style.VERMILION)]
    curve = weeks.by_size()
    ticks = _few([2.0**power for power in range(31) if curve[0].at <= 2.0**power <= curve[-1].at])
    return _curve(curve, marks, ticks, lambda at: f"{at:,.0f}", "GPUs, each number at its best interval", title, width)


def _curve(
    curve: Sequence[CurvePoint],
    marks: Sequence[Mark],
    ticks: Sequence[float],
    write: Callable[[float], str],
    across: str,
    title: str,
    width: float,
) -> Figure:
    """A line over a logarithmic axis, with named points on it."""
    size = font_size(width)
    with fonts(title, size):
        figure = new_figure(width, 2.9)
        heading(figure, title, size)
        ax = figure.subplots()
        ax.plot([point.at for point in curve], [100 * point.goodput for point in curve], color=style.BLUE, lw=1.5)
        for at, goodput, words, colour in marks:
            label = f"{words}, {points(goodput)} %"
            ax.plot([at], [100 * goodput], "o", color=colour, markersize=0.6 * size, label=label, clip_on=False, zorder=3)
        ax.set_xscale("log")
        ax.set_xlim(curve[0].at, curve[-1].at)
        ax.set_xticks(ticks)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda at, _: write(at)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        ax.set_xlabel(across)
        ax.set_ylabel("goodput [%]")
        grid(ax)
        dress(ax, size)
        round_ticks(ax.yaxis, 6)
        ax.tick_params(axis="y", length=0)
        legend_below(figure, ax.get_legend_handles_labels()[0], columns=3 if width >= 5.0 else 1)
    return figure


def _few(ticks: Sequence[float], most: int = 7) -> list[float]:
    """Every so many of them."""
    return list(ticks[:: max(1, -(-len(ticks) // most))])
