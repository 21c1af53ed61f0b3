"""Runs side by side: where their steps go, what their memory is made of, what their collectives take, their timelines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Rectangle

from parsim.report.lanes import TimelineData
from parsim.report.measured import AT_PEAK
from parsim.report.plots import style
from parsim.report.plots.figure import PRINT_SIZE, dress, entries_of, font_size, grid, is_narrow, legend, new_figure, printed, round_ticks
from parsim.report.plots.timeline import plot_timeline
from parsim.report.quantities import GIB, gib, seconds, time_unit
from parsim.report.timeline import KEYS
from parsim.report.verdict import WORDS, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parsim.report.timeline import Floats

_BAR, _ROW = 0.74, 0.24
"""height of a bar in rows, and of a row [inch]"""
_GAP = 0.5
"""rows between the devices of one run and of the next"""
_FRAME = 0.75
"""axis and its label [inch]"""
_PALE = 0.45
"""opacity of what does not fit"""
_DEVICES = 32
"""bars of memory; beyond it only the fullest device of each run is shown"""
_COLLECTIVES = 6
"""kinds of collectives that are shown, the longest"""
_SHORTEST = 1e-3
"""bars of collectives shorter than this share of the longest have no ink"""
_COMPARABLE = 0.25
"""a capacity more than four times what is used would flatten the picture"""


@dataclass(frozen=True)
class ComparedRun:
    """One run: its report as JSON has it, or the reason why there is none."""

    label: str
    document: Mapping[str, Any] | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether it was simulated and fits."""
        return self.document is not None and bool(self.document["memory"]["fits"])

    def holds(self, device: Mapping[str, Any] | None) -> bool:
        """Whether one class of devices holds its peak; of a run that does not fit only some may be too small, or only the host."""
        if device is None or self.document is None:
            return self.fits
        memory = self.document["memory"]
        capacity = int(device.get("capacity_bytes", memory["capacity_bytes"]))  # of its own where GPUs differ
        return int(device["peak_bytes"]) <= capacity - int(memory["reserve_bytes"])

    @property
    def mark(self) -> str:
        """The label, with a cross where the run does not fit or could not be simulated."""
        return self.label if self.fits else f"{self.label} ✗"


def wrapped(label: str, width: float) -> str:
    """A label in lines that leave room for the bars."""
    return fill(label, 16 if is_narrow(width) else 28, break_on_hyphens=False)


def height(rows: float) -> float:
    """Of a figure with so many rows of bars, without its legend [inch]."""
    return _FRAME + _ROW * rows


def breakdown_figure(entries: Sequence[ComparedRun], *, width: float = 7.0) -> Figure:
    """Stacked: where the step of each run goes, on one time axis. Pale and crossed out: does not fit."""
    known = [entry.document["breakdown_s"] for entry in entries if entry.document is not None]
    keys = [key for key in KEYS if any(one[key] > 0 for one in known)]
    steps = [float(entry.document["step_time_s"]) for entry in entries if entry.document is not None]
    unit = time_unit(max(steps, default=1.0))
    labels = [wrapped(entry.mark, width) for entry in entries]
    with printed("".join(labels)):
        figure = new_figure(width, height(_lines(labels)))
        ax = figure.add_subplot()
        left = np.zeros(len(entries))
        for key in keys:
            values = np.array([0.0 if one.document is None else one.document["breakdown_s"][key] / unit.factor for one in entries])
            _stack(
                ax,
                np.arange(len(entries)),
                values,
                left,
                style.KEYS[key],
                style.KEY_HATCHES.get(key, ""),
                WORDS[key],
                [one.fits for one in entries],
            )
            left += values
        for place, entry in enumerate(entries):
            if entry.document is None:
                _refused(ax, place, entry, width)
            else:
                _total(ax, place, left[place], seconds(float(entry.document["step_time_s"])), fits=entry.fits)
        _axis(ax, labels, [entry.fits for entry in entries], f"step time [{unit.name}]", float(left.max(initial=0.0)))
        legend(figure, entries_of(ax), width, height(_lines(labels)))
    return figure


def memory_figure(entries: Sequence[ComparedRun], *, width: float = 7.0) -> Figure:
    """Stacked: what the peak of each device class of each run is made of, with what a device has."""
    rows = _devices(entries)
    categories = [key for key in AT_PEAK if any(device is not None and device["at_peak"][key] for _, _, device in rows)]
    labels = [wrapped(label, width) for label, _, _ in rows]
    owners = [entry for _, entry, _ in rows]
    fits = [entry.holds(device) for _, entry, device in rows]
    with printed("".join(labels)):
        places = _apart(owners)
        above = height(_lines(labels) + places[-1] - len(rows) + 1)
        figure = new_figure(width, above)
        ax = figure.add_subplot()
        left = np.zeros(len(rows))
        for key in categories:
            look = style.memory_style(key)
            values = np.array([0.0 if device is None else device["at_peak"][key] / GIB for _, _, device in rows])
            _stack(ax, places, values, left, look.colour, look.hatch, look.label, fits)
            left += values
        for place, end, good, (_, entry, device) in zip(places, left, fits, rows, strict=True):
            if device is None:
                _refused(ax, place, entry, width)
            else:
                _total(ax, place, end, f"{gib(device['peak_bytes'])} GiB", fits=good)
        highest = _capacities(ax, places, owners, float(left.max(initial=0.0)))
        _axis(ax, labels, fits, "memory at the peak of a device [GiB]", highest, places)
        legend(figure, entries_of(ax), width, above)
    return figure


def collectives_figure(entries: Sequence[ComparedRun], *, width: float = 7.0) -> Figure:
    """By kind and axis of parallelism, a bar for each run: solid is exposed, pale and hatched runs under compute."""
    groups, cut = _collectives(entries)
    unit = time_unit(max((busy for group in groups.values() for _, busy, _ in group), default=1.0))
    texts: list[str] = []
    with printed("".join(entry.label for entry in entries)):
        lines = math.fsum(len(group) + 1.3 for group in groups.values())
        figure = new_figure(width, height(lines))
        ax = figure.add_subplot()
        place, ticks, end = 0.0, [], 0.0
        for (kind, axis), group in groups.items():
            ax.annotate(
                f"{_spoken(kind)}, {axis}", (0.0, place), xycoords=("axes fraction", "data"), fontweight="bold", va="center",
                color=style.INK, fontsize=PRINT_SIZE,
            )  # fmt: skip
            colour = style.PURPLE if axis == "pipeline" else style.VERMILION
            for entry, busy, shown in group:
                place += 1.0
                _communication(ax, place, busy / unit.factor, shown / unit.factor, colour)
                beside = f", {seconds(shown)} exposed" if shown > 0 else ", hidden"
                text = seconds(busy) + ("" if is_narrow(width) else beside)
                _total(ax, place, busy / unit.factor, text, fits=entry.fits)
                ticks.append(place)
                texts.append(wrapped(entry.mark, width).replace("\n", " ") if not is_narrow(width) else entry.mark)
                end = max(end, busy / unit.factor)
            place += 1.3
        fits = [entry.fits for group in groups.values() for entry, _, _ in group]
        _axis(ax, texts, fits, f"time per step on one rank [{unit.name}]", end, ticks)
        if cut:
            ax.set_title("less than 0.1 % of the longest bar is left out", loc="right", fontsize="x-small", color=style.INK)
        legend(figure, entries_of(ax), width, height(lines))
    return figure


def _lines(labels: Sequence[str]) -> float:
    """Rows of bars; a label of three lines needs more than its bar."""
    return math.fsum(max(1.0, 0.52 * (label.count("\n") + 1)) for label in labels)


def _stack(ax: Axes, places: Any, values: Any, left: Any, colour: str, hatch: str, label: str, fits: Sequence[bool]) -> None:
    """One class of all bars; an empty bar carries the legend where every bar is pale."""
    ax.barh([0], [0], facecolor=colour, edgecolor=style.INK, hatch=hatch or None, linewidth=0.4, label=label)
    for pale in (False, True):
        rows = [row for row, good in enumerate(fits) if good is not pale and values[row] > 0]
        if rows:
            ax.barh(
                places[rows], values[rows], left=left[rows], height=_BAR, facecolor=(colour, _PALE if pale else 1.0),
                edgecolor=style.INK, hatch=hatch or None, linewidth=0.4,
            )  # fmt: skip


def _communication(ax: Axes, place: float, busy: float, shown: float, colour: str) -> None:
    word = "point-to-point" if colour == style.PURPLE else "communication"
    ax.barh([place], [shown], height=_BAR, facecolor=colour, edgecolor=style.INK, linewidth=0.4, label=f"{word}, exposed")
    ax.barh(
        [place], [busy - shown], left=[shown], height=_BAR, facecolor=(colour, style.HIDDEN), edgecolor=colour,
        hatch=style.HIDDEN_HATCH, linewidth=0.4, label=f"{word}, hidden",
    )  # fmt: skip


def _total(ax: Axes, place: float, end: float, text: str, *, fits: bool) -> None:
    ax.annotate(
        text if fits else f"{text}, does not fit", (end, place), xytext=(3, 0), textcoords="offset points", va="center",
        color=style.INK if fits else style.CAPACITY, fontsize=PRINT_SIZE,
        bbox={"facecolor": (style.PAPER, 0.8), "edgecolor": "none", "pad": 0.3},
    )  # fmt: skip


def _refused(ax: Axes, place: float, entry: ComparedRun, width: float) -> None:
    lines = wrap(f"not simulated: {entry.reason}", 44 if is_narrow(width) else 96, max_lines=2, placeholder=" …")
    ax.annotate(
        "\n".join(lines), (0.0, place), xytext=(3, 0), textcoords="offset points", va="center", color=style.CAPACITY,
        fontsize="x-small", style="italic", annotation_clip=False,
    )  # fmt: skip


def _axis(ax: Axes, labels: Sequence[str], fits: Sequence[bool], name: str, end: float, ticks: Iterable[float] | None = None) -> None:
    places = list(range(len(labels))) if ticks is None else list(ticks)
    ax.set_yticks(places, labels)
    for text, good in zip(ax.get_yticklabels(), fits, strict=True):
        text.set_color(style.INK if good else style.CAPACITY)
    ax.set_ylim(max(places, default=0) + 0.6, -0.6)
    ax.set_xlim(0.0, 1.02 * end or 1.0)
    round_ticks(ax.xaxis, 6)
    ax.set_xlabel(name)
    dress(ax)
    for text, good in zip(ax.get_yticklabels(), fits, strict=True):
        text.set_color(style.INK if good else style.CAPACITY)
    ax.tick_params(axis="y", length=0)
    grid(ax, "x")


def _devices(entries: Sequence[ComparedRun]) -> list[tuple[str, ComparedRun, Mapping[str, Any] | None]]:
    """Rows of the memory figure: every device class, or of too many the fullest of each run."""
    count = sum(1 if entry.document is None else len(entry.document["memory"]["devices"]) for entry in entries)
    rows: list[tuple[str, ComparedRun, Mapping[str, Any] | None]] = []
    for entry in entries:
        devices = [] if entry.document is None else list(entry.document["memory"]["devices"])
        if len(devices) > 1 and count > _DEVICES:
            devices = [max(devices, key=lambda device: int(device["peak_bytes"]))]
        if not devices:
            rows.append((entry.mark, entry, None))
        staged = entry.document is not None and entry.document["schedule"]["stages"] > 1
        for device in devices:
            place = f"stage {device['stage']}" if staged and device["stage"] is not None else f"rank {shortened(device['ranks'], 12)}"
            alone = len(devices) == 1 and entry.document is not None and len(entry.document["memory"]["devices"]) == 1
            held = entry.holds(device) and any(not entry.holds(other) for other in devices)
            rows.append((entry.mark if alone else f"{entry.label if held else entry.mark} · {place}", entry, device))
    return rows


def _apart(owners: Sequence[ComparedRun]) -> Floats:
    """Where the bars stand: the devices of a run together, a gap before the next run that has several."""
    several = {entry.label for number, entry in enumerate(owners) if entry in owners[:number]}
    places = [0.0]
    for before, entry in pairwise(owners):
        gap = _GAP if entry is not before and {entry.label, before.label} & several else 0.0
        places.append(places[-1] + 1.0 + gap)
    return np.array(places)


def _capacities(ax: Axes, places: Floats, owners: Sequence[ComparedRun], highest: float) -> float:
    """One line where all devices have as much, else a mark on each bar; returns where the axis should end [GiB]."""
    levels = [
        None if entry.document is None else (entry.document["memory"]["capacity_bytes"] - entry.document["memory"]["reserve_bytes"]) / GIB
        for entry in owners
    ]
    known = {level for level in levels if level is not None}
    near = {level for level in known if highest >= _COMPARABLE * level}
    look: dict[str, Any] = {"color": style.CAPACITY, "linestyle": "--", "linewidth": 1.1}
    if len(known) == 1 and near:
        level = known.pop()
        ax.axvline(level, **look, label=f"capacity {gib(level * GIB)} GiB")
    elif near:
        for place, level in zip(places, levels, strict=True):
            if level in near and level is not None:
                ax.plot([level, level], [place - 0.48, place + 0.48], **look, label="capacity")
    if far := sorted(known - near):
        ax.plot([], [], **look, label=f"capacity {', '.join(gib(level * GIB) for level in far)} GiB, far above")
    return max(highest, *near) if near else highest


def _collectives(entries: Sequence[ComparedRun]) -> tuple[dict[tuple[str, str], list[tuple[ComparedRun, float, float]]], bool]:
    """(Kind, axis) -> runs with the seconds they are busy and exposed, the longest kinds first; whether short ones are left out."""
    runs: dict[tuple[str, str], list[tuple[ComparedRun, float, float]]] = {}
    for entry in entries:
        sums: dict[tuple[str, str], list[float]] = {}
        for row in () if entry.document is None else entry.document["collectives"]:
            total = sums.setdefault((row["kind"], row["axis"]), [0.0, 0.0])
            total[0] += row["busy_s"]
            total[1] += row["exposed_s"]
        for key, (busy, shown) in sums.items():
            if busy > 0:
                runs.setdefault(key, []).append((entry, busy, shown))
    least = _SHORTEST * max((busy for rows in runs.values() for _, busy, _ in rows), default=0.0)
    kept = {key: long for key, rows in runs.items() if (long := [row for row in rows if row[1] >= least])}
    longest = sorted(kept, key=lambda key: -max(busy for _, busy, _ in kept[key]))[:_COLLECTIVES]
    return {key: kept[key] for key in longest}, sum(map(len, kept.values())) < sum(map(len, runs.values()))


def _spoken(kind: str) -> str:
    return {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_to_all": "AllToAll"}.get(
        kind, kind.replace("_", " ").capitalize()
    )


_LANE_ROW = 0.16
"""height of one row of a rank [inch]"""
_PANEL_HEAD = 0.34
_PANEL_FOOT = 0.55
_LEGEND_ROOM = 1.5
_ABOVE_BARS = 2.5
"""drawn over bars and under numbers"""


def timelines_figure(entries: Sequence[tuple[str, TimelineData, bool]], *, width: float = 7.0) -> Figure:
    """Label, lanes and whether it fits, one panel each; all begin at 0 and the longest sets the axis.

    Of a schedule without a flush its steady window is drawn.
    """
    data = [lanes.from_zero() for _, lanes, _ in entries]
    longest = max((one.end for one in data), default=1.0)
    heights = [_PANEL_HEAD + _LANE_ROW * math.fsum(_row_heights(one)) for one in data]
    with printed("".join(label for label, _, _ in entries)):
        # numbers are placed by sizes on paper, so there must be room for a legend before it is known
        figure = new_figure(width, math.fsum(heights) + _PANEL_FOOT + _LEGEND_ROOM)
        axes = list(figure.subplots(len(data), 1, height_ratios=heights, squeeze=False).flat)
        handles: dict[str, Any] = {}
        for ax, one, (label, _, fits) in zip(axes, data, entries, strict=True):
            # all panels get the longest one's end: the same unit, ticks and room for numbers; what is too much is covered
            names = [lane.who.name for lane in one.lanes]  # what each rank stands for would take the width of the bars
            plot_timeline(replace(one, title="", note="", end=longest), ax, size=font_size(width), labels=names)
            handles |= _legend_of(ax, figure)
            _cover(ax, one.end, longest)
            _title(ax, label, one.end - one.begin, fits=fits)
            _small(ax, last=ax is axes[-1], narrow=is_narrow(width))
        legend(figure, handles, width, math.fsum(heights) + _PANEL_FOOT)
    return figure


def _row_heights(data: TimelineData) -> list[float]:
    return [1.45 + 0.42 * len(data.rows) for _ in data.lanes]


def _legend_of(ax: Axes, figure: Figure) -> dict[str, Any]:
    """Remove the legend of a panel and return its entries, label -> handle."""
    own = ax.get_legend()
    handles: dict[str, Any] = {}
    for one in [*figure.legends, *([] if own is None else [own])]:
        handles |= {text.get_text(): handle for text, handle in zip(one.get_texts(), one.legend_handles, strict=True)}
        one.remove()
    return handles


def _cover(ax: Axes, end: float, longest: float) -> None:
    """Paper over what lies behind the end of a shorter run: it is no bubble."""
    factor = time_unit(longest).factor
    low, high = sorted(ax.get_ylim())
    if end < longest:
        ax.add_patch(
            Rectangle((end / factor, low), (longest - end) / factor, high - low, facecolor=style.PAPER, linewidth=0, zorder=_ABOVE_BARS)
        )
    ax.axvline(end / factor, color=style.INK, linewidth=0.9, zorder=_ABOVE_BARS)


def _title(ax: Axes, label: str, duration: float, *, fits: bool) -> None:
    colour = style.INK if fits else style.CAPACITY
    text = f"{label}: {seconds(duration)}" if fits else f"{label}: {seconds(duration)}, does not fit"
    ax.set_title(text, loc="left", color=colour, fontsize="medium", fontweight="bold", pad=3)
    ax.set_title("", loc="right")


def _small(ax: Axes, *, last: bool, narrow: bool) -> None:
    round_ticks(ax.xaxis, 5 if narrow else 10)
    ax.tick_params(axis="y", labelsize="x-small" if narrow else "small")
    if not last:
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False, bottom=False)
        ax.spines["bottom"].set_visible(False)
