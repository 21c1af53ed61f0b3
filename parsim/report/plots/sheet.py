"""The timeline as a figure of a given width: names left, legends above and below, memory beneath on the same time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum
from textwrap import wrap
from typing import TYPE_CHECKING

from matplotlib.patches import Patch

from parsim.report.plots import style
from parsim.report.plots.figure import Picture, extent, font_size, fonts, new_figure
from parsim.report.plots.gaps import mark_gaps
from parsim.report.plots.memory import Look, highest_level, plot_memory
from parsim.report.plots.timeline import COMPUTE, GAP, TAGS, averaged, lane_pitch, legend_handles, plot_timeline
from parsim.report.quantities import time_unit
from parsim.report.shortened import short_axis, shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist

    from parsim.report.lanes import TimelineData

FEW = 8
"""lanes up to which each one says in lines of its own what it stands for"""
_TALLEST = 15.0
"""of all lanes [in]"""
_SMALL, _TINY = 0.833, 0.694
"""sizes of text, of the figure's"""
_HANDLE, _COLUMN = 2.9, 1.2
"""a legend's patch with its space, and the space between columns, in sizes of its text"""


@dataclass(frozen=True)
class _Legend:
    handles: Sequence[Artist]
    columns: int
    height: float
    """[in]"""


def timeline_figure(data: TimelineData, width: float = 12.0) -> Picture:
    """The lanes, and beneath them the memory of the fullest rank on the same time axis; `width` [in]."""
    size = font_size(width)
    with fonts(data.title, size):
        labels, row, pitch = _lanes(data, size)
        margin = 0.06
        left = max((1.03 * extent(line, _SMALL * size) for label in labels for line in label.split("\n")), default=0.0) + 0.08 + margin
        if data.memory is not None:
            left = max(left, 4.6 * size / 72.0)
        right = max((extent(TAGS[key], _TINY * size) for key in data.rows), default=0.0) + 0.08 + margin
        inner = width - left - right
        axis = short_axis(data, 72.0 * inner)
        unit = time_unit(data.end - data.begin)
        tensors = 0.0 if data.memory is None else highest_level(data.memory)
        if axis is not None:
            data = shortened(data, axis)
        dense = averaged(data, 72.0 * inner)
        heading = _heading(data, size, width - 2 * margin, dense=dense)
        top = _legend(legend_handles([data], dense=dense), size, width - 2 * margin)
        lanes = row * max(pitch * (len(data.lanes) - 1) + lane_pitch(data) - GAP + 0.15, COMPUTE)
        ticks = 3.4 * size / 72.0  # ticks and the name of the axis
        signs = 0.0 if axis is None else 1.9 * size / 72.0  # what the gaps of a cut axis stand for
        beneath, memory = None, 0.0
        if data.memory is not None:
            memory = 0.13 * width + 0.35 if width < 9.0 else 2.0
            names = [name for name, levels in data.memory.bytes.items() if any(levels)]
            beneath = _legend(_memory_handles(names), size, width - 2 * margin)
        between = 0.16 if width >= 5.0 else 3.9 * size / 72.0  # the lines of memory are named there
        lines = fsum(1.35 * points / 72.0 for _, points in heading)
        height = (
            margin
            + lines
            + top.height
            + signs
            + lanes
            + ticks
            + margin
            + (between + memory + beneath.height if beneath is not None else 0.0)
        )
        figure = new_figure(width, height, layout=False)
        y = height - margin
        for text, points in heading:
            y -= 1.35 * points / 72.0
            figure.text(
                margin / width, (y + 0.35 * points / 72.0) / height, text, fontsize=points, color=style.INK, ha="left", va="baseline"
            )
        _place(figure, top, margin, y - 0.25 * size / 72.0)
        y -= top.height + signs + lanes
        above = figure.add_axes((left / width, y / height, inner / width, lanes / height))
        if beneath is not None and data.memory is not None:
            y -= between + memory
            below = figure.add_axes((left / width, y / height, inner / width, memory / height), sharex=above)
            above_axes = 0.4 if width < 5.0 else 0.0
            look = Look(size, short=width < 9.0, most=round(36.0 * inner), legend=False, tensors=tensors, above=above_axes)
            plot_memory(
                data.memory, below, capacity=data.capacity, unit=unit, rank=data.memory_rank, until=data.end, used=data.memory_used,
                look=look,
            )  # fmt: skip
            _place(figure, beneath, margin, y - ticks)
        plot_timeline(data, above, size=size, pitch=pitch, labels=labels, legend=False, heading=False)
        if beneath is not None:
            above.set_xlabel("")
            above.tick_params(labelbottom=False)
        if axis is not None:
            for place, ax in enumerate(figure.axes):
                mark_gaps(ax, axis, unit, size, say=place == 0)
    return figure


def _lanes(data: TimelineData, size: float) -> tuple[list[str], float, float]:
    """Names of the lanes, height of a compute row [in], and the pitch in such heights."""
    pitch = lane_pitch(data)
    few = len(data.lanes) <= FEW
    row = 0.030 * size if few else 0.022 * size
    row = min(row, _TALLEST / (pitch * max(1, len(data.lanes))))
    if not few:
        return [f"{lane.who.name} (×{lane.who.equal})" if lane.who.equal > 1 else lane.who.name for lane in data.lanes], row, pitch
    labels = ["\n".join((lane.who.name, *lane.who.facts)) for lane in data.lanes]
    # The name is centred on the compute row; below it there must be room for what the rank stands for.
    lines = max((label.count("\n") + 1 for label in labels), default=1)
    needed = lines * 1.25 * _SMALL * size / 72.0 / row
    return labels, row, max(pitch, needed + 0.1)


def _heading(data: TimelineData, size: float, width: float, *, dense: bool) -> list[tuple[str, float]]:
    """Lines above the figure with their sizes [pt]."""
    many = [lane.who.label for lane in data.lanes if lane.who.notes] if len(data.lanes) > FEW else []
    notes = [data.note, *many, "spans too thin to draw are averaged" if dense else ""]
    note = "; ".join(filter(None, notes))
    lines = []
    for text, points in ((data.title, 1.1 * size if width > 5.0 else size), (note, _SMALL * size)):
        if text:
            mean = extent(text, points) / len(text)
            lines += [(line, points) for line in wrap(text, max(20, int(0.93 * width / mean)))]
    return lines


def _legend(handles: Sequence[Artist], size: float, width: float) -> _Legend:
    """As many columns as fit; every column is taken to be as wide as the widest."""
    points = _SMALL * size
    widths = [extent(str(handle.get_label()), points) + _HANDLE * points / 72.0 for handle in handles]
    columns = max((n for n in range(1, len(handles) + 1) if _wide(widths, n, points) <= width), default=1)
    rows = ceil(len(handles) / columns) if handles else 0
    columns = ceil(len(handles) / rows) if rows else 1
    return _Legend(handles, columns, (rows * 1.42 + 0.9) * points / 72.0 if rows else 0.0)


def _wide(widths: Sequence[float], columns: int, points: float) -> float:
    """Width of a legend [in]: matplotlib fills it column by column, the first ones one longer where it does not divide."""
    rows, longer = divmod(len(widths), columns)
    total, place = (columns - 1) * _COLUMN * points / 72.0, 0
    for column in range(columns):
        count = rows + (column < longer)
        total += max(widths[place : place + count], default=0.0)
        place += count
    return total


def _place(figure: Picture, legend: _Legend, x: float, y: float) -> None:
    """Put a legend on the figure, its upper left corner at (x, y) [in]."""
    width, height = figure.get_size_inches()
    if legend.handles:
        figure.legend(
            handles=list(legend.handles), loc="upper left", bbox_to_anchor=(x / width, y / height), ncols=legend.columns, frameon=False,
            fontsize=_SMALL * font_size(float(width)), labelcolor=style.INK, borderaxespad=0.0, borderpad=0.0, labelspacing=0.35,
            handlelength=1.8, handleheight=0.8, handletextpad=0.5, columnspacing=_COLUMN,
        )  # fmt: skip


def _memory_handles(names: Sequence[str]) -> list[Artist]:
    return [
        Patch(facecolor=(look.colour, 0.8), edgecolor=look.colour, hatch=look.hatch or None, linewidth=0.4, label=look.label)
        for look in (style.memory_style(name) for name in dict.fromkeys((*style.CATEGORIES, *names)) if name in names)
    ]
