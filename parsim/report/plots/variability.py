"""How the step spreads over its runs: histograms with the undisturbed step and p95, and what each cause does alone and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parsim.report.plots import style
from parsim.report.plots.figure import dress, font_size, fonts, grid, heading, legend_below, new_figure, round_ticks
from parsim.report.quantities import TimeUnit, time_unit
from parsim.report.variability import RunStatistics
from parsim.report.variability_text import CAUSES, beyond

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = 1.9
"""height of a histogram [inch]"""


def variability_figure(varied: RunStatistics, title: str, width: float = 7.0) -> Figure:
    """Histograms over each other, over one axis of time, and below them a pair of bars per cause."""
    known = [one for one in (varied, varied.steps) if one is not None]
    causes = 0.6 + 0.3 * len(varied.causes) if len(varied.causes) > 1 else 0.0
    size = font_size(width)
    with fonts(title, size):
        figure = new_figure(width, 0.6 + _PANEL * len(known) + causes)
        heading(figure, title, size)
        heights = [_PANEL] * len(known) + [causes] * bool(causes)
        axes = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        unit = time_unit(max(one.step_times.bins()[0][-1] for one in known))
        for ax, one in zip(axes, known, strict=False):
            _histogram(ax, one, unit, size)
        limits = [ax.get_xlim() for ax in axes[: len(known)]]
        for ax in axes[: len(known)]:
            ax.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
        if causes:
            _tornado(axes[-1], varied, size)
        handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        legend_below(figure, list(handles.values()), list(handles), columns=3 if width >= 5.0 else 2)
    return figure


def _histogram(ax: Axes, varied: RunStatistics, unit: TimeUnit, size: float) -> None:
    times = varied.step_times
    edges, counts, far = times.bins()
    if edges[0] == edges[-1]:
        edges = [0.999 * edges[0], 1.001 * edges[-1]]
    ax.stairs(counts, [edge / unit.factor for edge in edges], fill=True, color=style.BLUE)
    ax.axvline(times.nominal / unit.factor, color=style.INK, lw=1.2, label="undisturbed")
    ax.axvline(times.mean / unit.factor, color=style.INK, lw=1.2, ls="--", label="mean")
    if (p95 := times.quantile(0.95)) is not None:
        ax.axvline(p95 / unit.factor, color=style.VERMILION, lw=1.2, ls=":", label="p95")
    more = f"; {words}" if (words := beyond(far)) else ""
    ax.set_xlabel(f"step time over {varied.runs:,} {varied.over} [{unit.name}]{more}")
    ax.set_ylabel("runs")
    grid(ax, "y")
    dress(ax, size)
    round_ticks(ax.xaxis, 7)
    round_ticks(ax.yaxis, 4)
    ax.tick_params(axis="y", length=0)


def _tornado(ax: Axes, varied: RunStatistics, size: float) -> None:
    nominal = varied.step_times.nominal or 1.0
    ordered = varied.causes[::-1]
    rows = range(len(ordered))
    alone = [100 * (one.alone_s / nominal - 1.0) for one in ordered]
    removed = [-100 * one.exposed_s / nominal for one in ordered]
    ax.barh(rows, alone, 0.7, color=style.VERMILION, label="cause alone")
    ax.barh(rows, removed, 0.7, color=style.GREEN, hatch="////", edgecolor=style.PAPER, linewidth=0, label="cause removed")
    ax.axvline(0, color=style.INK, lw=0.8)
    ax.set_yticks(rows, [CAUSES.get(one.cause, one.cause) for one in ordered])
    ax.set_xlabel("change of the mean step [% of the undisturbed one]")
    grid(ax, "x")
    dress(ax, size)
    ax.tick_params(axis="y", length=0)
