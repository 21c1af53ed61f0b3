"""The step as lanes: per rank its compute, under it communication and copies, below all the memory of one rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from parsim.columns import width
from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts, new_figure
from parsim.report.plots.memory import plot_memory
from parsim.report.quantities import TimeUnit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from parsim.report.lanes import Bars, Box, RankLanes, TimelineData
    from parsim.report.timeline import Floats

RASTERISE = 20_000
"""bars above which a figure holds pixels instead of paths"""

_COLUMNS = 2_400
"""pixels of a row then"""
_EDGES = 3_000
_TEXTS = 2_000
_SMALLEST = 4.5
_FEW = 8
_TITLE_ROOM = 95
"""characters of title and note that fit on one line"""
_COMPUTE, _BESIDE, _GAP = 1.0, 0.42, 0.45
_LABELS = {
    "tensor_comm": "tensor",
    "expert_comm": "expert",
    "context_comm": "context",
    "pipeline_comm": "pipeline",
    "data_comm": "data",
    "offload": "copies",
    "optimizer": "CPU step",
}


@dataclass(frozen=True)
class _Pen:
    """What all bars of a figure have in common."""

    ax: Axes
    unit: TimeUnit
    edge: float
    """line width of bar edges; 0 where they would cover the bars"""


def plot_timeline(data: TimelineData, ax: Axes | None = None) -> Axes:
    """Draw the lanes of `data`; a new figure unless `ax` is given.

    One row per rank for compute (micro-batch numbers in the boxes if they fit), and a thinner one under it per kind of
    communication: solid where it is exposed, pale and hatched where it runs under compute. Grey is bubble.
    """
    with fonts(data.title):
        if ax is None:
            ax = new_figure(12.0, _height(data)).add_subplot()
        pen = _Pen(ax, time_unit(data.end), 0.3 if data.bars <= _EDGES else 0.0)
        for number, lane in enumerate(data.lanes):
            _draw_rank(pen, lane, data, number * _pitch(data))
        _dress(pen, data)
        _legend(ax, data)
        _numbers(pen, data)
    return ax


def _pitch(data: TimelineData) -> float:
    """From one rank to the next."""
    return _COMPUTE + _BESIDE * len(data.rows) + _GAP


def _dress(pen: _Pen, data: TimelineData) -> None:
    ax, unit, pitch = pen.ax, pen.unit, _pitch(data)
    ax.set_yticks([number * pitch + _COMPUTE / 2 for number in range(len(data.lanes))], [lane.label for lane in data.lanes])
    ax.set_ylim(max(pitch * len(data.lanes) - _GAP, _COMPUTE), -0.2)
    ax.set_xlim(data.begin / unit.factor, max(data.end, data.begin + 1e-12) / unit.factor)
    ax.xaxis.set_major_locator(MaxNLocator(10))
    ax.set_xlabel(f"time [{unit.name}]")
    averaged = "spans thinner than a pixel are averaged" if data.bars > RASTERISE else ""
    note = "; ".join(filter(None, (data.note, averaged)))
    crowded = width(data.title) + width(note) > _TITLE_ROOM
    ax.set_title(data.title, loc="left", color=style.INK, pad=22 if note and crowded else None)
    if note:
        if crowded:  # a line of its own, under the title
            ax.annotate(note, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize="small", color=style.INK)
        else:
            ax.set_title(note, loc="right", fontsize="small", color=style.INK)
    dress(ax)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=style.GRID, linewidth=0.5)
    ax.set_axisbelow(True)
    for lane in range(len(data.lanes) if len(data.lanes) <= _FEW else 1):
        for number, key in enumerate(data.rows):
            middle = lane * pitch + _COMPUTE + _BESIDE * (number + 0.5)
            ax.annotate(
                _LABELS[key], (1.0, middle), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize="x-small", color=style.INK,
            )  # fmt: skip


def timeline_figure(data: TimelineData) -> Figure:
    """The lanes, and beneath them the memory of the fullest rank on the same time axis."""
    height = _height(data)
    with fonts(data.title):
        figure = new_figure(12.0, height + (2.2 if data.memory is not None else 0.0))
        if data.memory is None:
            plot_timeline(data, figure.add_subplot())
            return figure
        lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=(height, 2.0))
    # Numbers are placed by the width of boxes in pixels, so the layout must know the memory axis first.
    plot_memory(
        data.memory, memory, capacity=data.capacity, unit=time_unit(data.end), rank=data.memory_rank, until=data.end, used=data.memory_used
    )
    plot_timeline(data, lanes)
    lanes.set_xlabel("")
    lanes.tick_params(labelbottom=False)
    return figure


def _height(data: TimelineData) -> float:
    return float(np.clip(1.2 + 0.34 * len(data.lanes) * _pitch(data), 2.2, 18.0))


def _draw_rank(pen: _Pen, lane: RankLanes, data: TimelineData, top: float) -> None:
    """The rows of one rank, downwards from `top`."""
    if data.bars > RASTERISE:
        _draw_averages(pen, lane, data, top)
        return
    left, width = data.begin / pen.unit.factor, (data.end - data.begin) / pen.unit.factor
    pen.ax.add_patch(
        Rectangle(
            (left, top), width, _COMPUTE, facecolor=style.BUBBLE, edgecolor=style.BUBBLE_HATCH, hatch=style.BUBBLE_LINES, linewidth=0,
            zorder=1,
        )
    )  # fmt: skip
    for role, bars in lane.compute.items():
        _bars(pen, bars, top, _COMPUTE, style.ROLES[role].colour)
    for number, key in enumerate(data.rows):
        if key in lane.beside:
            at, colour = top + _COMPUTE + _BESIDE * number, style.ROLES[_look(key)].colour
            _bars(pen, lane.beside[key], at, _BESIDE, colour, hidden=True)
            _bars(pen, lane.exposed[key], at, _BESIDE, colour, edge=False)


def _draw_averages(pen: _Pen, lane: RankLanes, data: TimelineData, top: float) -> None:
    """The same as one strip of pixels per row, each the average of what lies under it.

    Bars thinner than a pixel would otherwise hide the bubbles between them.
    """
    edges = np.linspace(data.begin, data.end, _COLUMNS + 1)
    shares = [(bars.coverage(edges), (*to_rgb(style.ROLES[role].colour), 1.0)) for role, bars in lane.compute.items()]
    idle = np.clip(1.0 - sum((share for share, _ in shares), np.zeros(_COLUMNS)), 0.0, 1.0)
    _strip(pen, [*shares, (idle, (*to_rgb(style.BUBBLE), 1.0))], data, top, _COMPUTE)
    for number, key in enumerate(data.rows):
        if key in lane.beside:
            colour = to_rgb(style.ROLES[_look(key)].colour)
            exposed = lane.exposed[key].coverage(edges)
            hidden = np.clip(lane.beside[key].coverage(edges) - exposed, 0.0, 1.0)
            shares = [(exposed, (*colour, 1.0)), (hidden, (*colour, style.HIDDEN))]
            _strip(pen, shares, data, top + _COMPUTE + _BESIDE * number, _BESIDE)


def _strip(pen: _Pen, shares: Sequence[tuple[Floats, tuple[float, ...]]], data: TimelineData, top: float, height: float) -> None:
    """One row of pixels: colours weighted by their share of each pixel's time; what no share covers is transparent."""
    opacity = np.sum([share * colour[3] for share, colour in shares], axis=0)
    weighted = np.sum([np.outer(share * colour[3], colour[:3]) for share, colour in shares], axis=0)
    image = np.zeros((1, _COLUMNS, 4))
    image[0, :, :3] = np.clip(weighted / np.maximum(opacity, 1e-12)[:, None], 0.0, 1.0)
    image[0, :, 3] = np.clip(opacity, 0.0, 1.0)
    left, right = data.begin / pen.unit.factor, data.end / pen.unit.factor
    pen.ax.imshow(image, extent=(left, right, top + height, top), aspect="auto", interpolation="nearest", zorder=2)


def _look(key: str) -> str:
    return {"pipeline_comm": "pipeline", "offload": "offload", "optimizer": "optimizer"}.get(key, "communication")


def _bars(pen: _Pen, bars: Bars, top: float, height: float, colour: str, *, hidden: bool = False, edge: bool = True) -> None:
    if not len(bars):
        return
    spans = np.column_stack((bars.begin, bars.end - bars.begin)) / pen.unit.factor
    drawn = pen.ax.broken_barh(
        [(float(begin), float(width)) for begin, width in spans],
        (top, height),
        facecolor=(colour, style.HIDDEN) if hidden else colour,
        edgecolor=(colour, 1.0) if hidden else _darker(colour),
        linewidth=pen.edge if edge else 0.0,
        zorder=2,
    )
    if hidden:
        drawn.set_hatch(style.HIDDEN_HATCH)


def _darker(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"#{int(red * 0.6):02x}{int(green * 0.6):02x}{int(blue * 0.6):02x}"


def _legend(ax: Axes, data: TimelineData) -> None:
    used = {role for lane in data.lanes for role, bars in lane.compute.items() if len(bars)}
    handles = [
        Patch(facecolor=look.colour, edgecolor=_darker(look.colour), label=look.label) for name, look in style.ROLES.items() if name in used
    ]
    for name in dict.fromkeys(map(_look, data.rows)):
        look = style.ROLES[name]
        axes = " / ".join(_LABELS[key] for key in data.rows if _look(key) == name) if name == "communication" else ""
        label = f"{axes} {look.label}".strip()
        handles.append(Patch(facecolor=look.colour, edgecolor=_darker(look.colour), label=f"{label}, exposed"))
        pale = (look.colour, style.HIDDEN)
        handles.append(Patch(facecolor=pale, edgecolor=look.colour, hatch=style.HIDDEN_HATCH, label=f"{label}, hidden"))
    handles.append(Patch(facecolor=style.BUBBLE, edgecolor=style.BUBBLE_HATCH, hatch=style.BUBBLE_LINES, label="bubble"))
    figure = ax.figure
    if isinstance(figure, Figure) and figure.get_layout_engine() is not None:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False, fontsize="small", labelcolor=style.INK
        )
    else:
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.06, 1.0), frameon=False, fontsize="small", labelcolor=style.INK)


def _numbers(pen: _Pen, data: TimelineData) -> None:
    """Write micro-batch numbers into the boxes: for all boxes of a kind or for none."""
    widths: dict[str, list[float]] = defaultdict(list)
    for lane in data.lanes:
        for box in lane.boxes:
            widths[box.kind].append((box.end - box.begin) / pen.unit.factor)
    figure = pen.ax.figure
    if not 0 < sum(map(len, widths.values())) <= _TEXTS or not isinstance(figure, Figure):
        return
    figure.draw_without_rendering()  # places the axes, whose size in pixels decides
    frame, point = pen.ax.get_window_extent(), figure.dpi / 72.0
    size = min(9.0, 0.75 * frame.height / (len(data.lanes) * _pitch(data)) / point)
    if size < _SMALLEST:
        return
    longest = max(len(str(box.micro_batch)) for lane in data.lanes for box in lane.boxes)
    wanted = (0.65 * longest + 0.2) * size * point
    per_unit = frame.width / max(1e-12, (data.end - data.begin) / pen.unit.factor)
    fitting = {kind for kind, values in widths.items() if median(values) * per_unit >= wanted}
    for number, lane in enumerate(data.lanes):
        for box in lane.boxes:
            if box.kind in fitting:
                _number(pen, box, number * _pitch(data) + _COMPUTE / 2, size)


def _number(pen: _Pen, box: Box, middle: float, size: float) -> None:
    look = style.ROLES[box.role]
    pen.ax.text(
        (box.begin + box.end) / 2 / pen.unit.factor,
        middle,
        str(box.micro_batch),
        ha="center",
        va="center",
        fontsize=size,
        color=look.text,
        clip_on=True,
        # Across a gap the number needs ground of its own.
        bbox=None if box.solid else {"facecolor": look.colour, "edgecolor": "none", "pad": 0.8},
        zorder=3,
    )
