"""The step as lanes: per rank its compute, and under it communication and copies. The same drawing for every figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from parsim.report.lanes import timeline_data
from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts
from parsim.report.quantities import TimeUnit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from parsim.report.lanes import Bars, PassBox, RankLanes, TimelineData
    from parsim.report.metrics import Metrics
    from parsim.report.selection import Window
    from parsim.report.timeline import Floats

RASTERISE = 6_000
"""bars above which a figure holds averages instead of bars"""
DENSE = 2.0
"""bars per point (1/72 in) of a row from which on it is averaged"""
COMPUTE, BESIDE, GAP = 1.0, 0.42, 0.45
"""Heights of a row of compute, of one of communication, and of the space between ranks, in units of the first."""

_COLUMNS_PER_POINT = 2.0
_STEPS = 16
"""heights of communication in a thin row that are told apart"""
_EDGES = 3_000
_TEXTS = 2_000
_SMALLEST = 4.5
_FEW = 8
_MARK_LINES = 4
"""texts of marks beneath each other"""
TAGS = {
    "tensor_comm": "tensor",
    "expert_comm": "expert",
    "context_comm": "context",
    "pipeline_comm": "p2p",
    "data_comm": "data",
    "offload": "copies",
    "optimizer": "CPU step",
}
"""Names of the thin rows."""


@dataclass(frozen=True)
class _Pen:
    """What all bars of a figure have in common."""

    ax: Axes
    unit: TimeUnit
    edge: float
    """line width of bar edges; 0 where they would cover the bars"""
    size: float
    """of text [pt]"""
    pitch: float
    """from one rank to the next"""
    columns: int
    """stretches of time to average over; 0: draw every bar"""


def draw_timeline(
    ax: Axes,
    report: Metrics,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    *,
    span: tuple[float, float] | None = None,
    size: float = 9.0,
    legend: bool = False,
) -> TimelineData:
    """Draw lanes of a report's step on the caller's axes; returns what was drawn, for `legend_handles`.

    `window` is the part of the step [s]; `span` what the axis shows [s] where several axes share one. One row per rank for compute
    (micro-batch numbers in the boxes if they fit), a thinner one under it per kind of communication: solid where it is
    exposed, pale and hatched where it runs under compute. Hatched grey is bubble.

    Raises:
        InputError: there is no such rank, or the window is not within the step.
    """
    data = timeline_data(report, ranks, window)
    plot_timeline(data, ax, span=span, size=size, legend=legend)
    return data


def plot_timeline(
    data: TimelineData,
    ax: Axes,
    *,
    span: tuple[float, float] | None = None,
    size: float = 10.0,
    pitch: float | None = None,
    labels: Sequence[str] | None = None,
    legend: bool = True,
    heading: bool = True,
) -> Axes:
    """Draw the lanes of `data` on `ax`; `labels` instead of the names of ranks, `heading`: title and note above."""
    begin, end = span or (data.begin, data.end)
    with fonts(data.title, size):
        points = _points(ax)
        dense = averaged(data, points)
        columns = max(100, round(_COLUMNS_PER_POINT * points)) if dense else 0
        edge = 0.3 if data.densest <= _EDGES and data.densest < 0.5 * points else 0.0
        pen = _Pen(ax, data.unit or time_unit(end - begin), edge, size, lane_pitch(data) if pitch is None else pitch, columns)
        ax.set_autoscale_on(False)  # the limits are set below; until then nobody need look for them
        for number, lane in enumerate(data.lanes):
            _draw_rank(pen, lane, data, number * pen.pitch)
        _dress(pen, data, (begin, end), [lane.who.label for lane in data.lanes] if labels is None else labels)
        if data.marks:
            _marks(pen, data)
        if heading:
            _heading(pen, data)
        if legend:
            _legend(ax, data)
        _numbers(pen, data)
    return ax


def lane_pitch(data: TimelineData) -> float:
    """From one rank to the next, in heights of a compute row."""
    return COMPUTE + BESIDE * len(data.rows) + GAP


def averaged(data: TimelineData, points: float) -> bool:
    """Whether an axis of this width [1/72 in] is too narrow for the bars."""
    return data.bars > RASTERISE or data.densest > DENSE * points


def _points(ax: Axes) -> float:
    """How wide the axes are [1/72 in]; before they are laid out, roughly."""
    figure = ax.figure
    dpi = figure.dpi if isinstance(figure, Figure) else 100.0
    return float(ax.get_window_extent().width) / dpi * 72.0


def _dress(pen: _Pen, data: TimelineData, span: tuple[float, float], labels: Sequence[str]) -> None:
    ax, unit, pitch = pen.ax, pen.unit, pen.pitch
    ax.set_yticks([number * pitch + COMPUTE / 2 for number in range(len(data.lanes))], labels)
    ax.set_ylim(max(pitch * (len(data.lanes) - 1) + lane_pitch(data) - GAP, COMPUTE), -0.15)
    ax.set_xlim(span[0] / unit.factor, max(span[1], span[0] + 1e-12) / unit.factor)
    ax.xaxis.set_major_locator(MaxNLocator(max(4, min(10, int(_points(ax) / (5.0 * pen.size))))))
    ax.set_xlabel(f"time [{unit.name}]")
    dress(ax, pen.size)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=style.GRID, linewidth=0.5)
    ax.set_axisbelow(True)
    for lane in range(len(data.lanes) if len(data.lanes) <= _FEW else 1):
        for number, key in enumerate(data.rows):
            middle = lane * pitch + COMPUTE + BESIDE * (number + 0.5)
            ax.annotate(
                TAGS[key], (1.0, middle), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
                va="center", fontsize="x-small", color=style.INK, annotation_clip=False,
            )  # fmt: skip


def _marks(pen: _Pen, data: TimelineData) -> None:
    """A line where something breaks or is over, with its text beside; texts of neighbours do not cover each other."""
    ax, unit = pen.ax, pen.unit
    for number, (time, text) in enumerate(data.marks):
        ax.axvline(time / unit.factor, color=style.INK, linewidth=0.8, linestyle=(0, (4, 2)), zorder=4.0)
        right = time > (data.begin + data.end) / 2  # towards the middle
        ax.annotate(
            text, (time / unit.factor, 1.0), xycoords=("data", "axes fraction"), textcoords="offset points",
            xytext=(-3 if right else 3, -1 - pen.size * (number % _MARK_LINES)), va="top", ha="right" if right else "left",
            fontsize="xx-small", color=style.INK, zorder=5.0, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.4},
        )  # fmt: skip


def _heading(pen: _Pen, data: TimelineData) -> None:
    pen.ax.set_title(data.title, loc="left", color=style.INK, pad=1.9 * pen.size if data.note else None)
    if data.note:  # a line of its own, under the title
        pen.ax.annotate(
            data.note, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize="small", color=style.INK
        )  # fmt: skip


def _draw_rank(pen: _Pen, lane: RankLanes, data: TimelineData, top: float) -> None:
    """The rows of one rank, downwards from `top`."""
    if pen.columns:
        _draw_averages(pen, lane, data, top)
        return
    for key, bars in lane.idle.items():
        look = idle_style(key)
        _bars(pen, bars, top, COMPUTE, look, edge=0.0, zorder=1.0)
    for role, bars in lane.compute.items():
        _bars(pen, bars, top, COMPUTE, style.ROLES[role])
    for chunk in range(1, data.chunks):
        _shade(pen, [box for box in lane.boxes if box.chunk == chunk], top, chunk / data.chunks)
    for number, key in enumerate(data.rows):
        if key in lane.beside:
            at, look = top + COMPUTE + BESIDE * number, style.beside(key)
            _bars(pen, lane.beside[key], at, BESIDE, hidden_style(look), edge=min(pen.edge, 0.3))
            _bars(pen, lane.exposed[key], at, BESIDE, look, edge=0.0, zorder=2.1)


def idle_style(key: str) -> style.Style:
    """How the compute row looks while nothing computes, by class of the breakdown."""
    if key == "bubble":
        return style.Style(style.BUBBLE, "bubble", hatch=style.BUBBLE_LINES, line=style.BUBBLE_HATCH)
    return (
        style.ROLES["launch"]
        if key == "launch"
        else style.Style(style.WAITING, "waits for comm. or copies", hatch="..", line=style.BUBBLE_HATCH)
    )


def hidden_style(look: style.Style) -> style.Style:
    """The same communication where compute hides it: pale, and hatched in its own colour."""
    red, green, blue = (round(255 * (style.HIDDEN * part + 1.0 - style.HIDDEN)) for part in to_rgb(look.colour))
    return style.Style(f"#{red:02x}{green:02x}{blue:02x}", f"{look.label}, hidden", look.text, style.HIDDEN_HATCH, look.colour)


def _bars(pen: _Pen, bars: Bars, top: float, height: float, look: style.Style, *, edge: float | None = None, zorder: float = 2.0) -> None:
    if not len(bars):
        return
    spans = np.column_stack((bars.begin, bars.end - bars.begin)) / pen.unit.factor
    drawn = pen.ax.broken_barh(
        [(float(begin), float(width)) for begin, width in spans],
        (top, height),
        facecolor=look.colour,
        edgecolor=look.stroke,
        linewidth=pen.edge if edge is None else edge,
        zorder=zorder,
        label=f"_{look.label}",
    )
    if look.hatch:
        drawn.set_hatch(look.hatch)


def _shade(pen: _Pen, boxes: Sequence[PassBox], top: float, share: float) -> None:
    """The lower part of boxes of a later model chunk, lighter."""
    if boxes:
        spans = [(box.begin / pen.unit.factor, (box.end - box.begin) / pen.unit.factor) for box in boxes]
        height = 0.5 * COMPUTE * share
        pen.ax.broken_barh(
            spans, (top + COMPUTE - height, height), facecolor=(style.PAPER, 0.55), edgecolor="none", zorder=2.2, label="_later chunk"
        )


def _draw_averages(pen: _Pen, lane: RankLanes, data: TimelineData, top: float) -> None:
    """Compute as one strip of pixels, each the average of what lies under it; communication as high as its share of the time.

    Bars thinner than a pixel would otherwise hide the bubbles between them.
    """
    edges = np.linspace(data.begin, data.end, pen.columns + 1)
    coarse = np.linspace(data.begin, data.end, round(pen.columns / _COLUMNS_PER_POINT / 2) + 1)  # outlines cost more than pixels
    shares = [(bars.coverage(edges), to_rgb(style.ROLES[role].colour)) for role, bars in lane.compute.items()]
    shares += [(bars.coverage(edges), to_rgb(idle_style(key).colour)) for key, bars in lane.idle.items() if len(bars)]
    covered = np.sum([np.zeros(pen.columns), *(share for share, _ in shares)], axis=0)
    nothing = np.clip(1.0 - covered, 0.0, 1.0)  # within a gap of a cut axis
    image = np.sum([np.outer(share, colour) for share, colour in (*shares, (nothing, to_rgb(style.PAPER)))], axis=0)[None, :, :]
    left, right = data.begin / pen.unit.factor, data.end / pen.unit.factor
    pen.ax.imshow(np.clip(image, 0.0, 1.0), extent=(left, right, top + COMPUTE, top), aspect="auto", interpolation="nearest", zorder=2)
    for number, key in enumerate(data.rows):
        if key in lane.beside:
            at, look = top + COMPUTE + BESIDE * number, style.beside(key)
            exposed = np.clip(lane.exposed[key].coverage(coarse), 0.0, 1.0)
            both = np.clip(np.maximum(lane.beside[key].coverage(coarse), exposed), 0.0, 1.0)
            _shares(pen, coarse, at, np.zeros_like(exposed), exposed, look)
            _shares(pen, coarse, at, exposed, both, hidden_style(look))


def _shares(pen: _Pen, edges: Floats, top: float, low: Floats, high: Floats, look: style.Style) -> None:
    """The area from `low` to `high` (shares of a row, a value between two edges), downwards from `top`; nothing where it is empty."""
    low, high = np.round(_STEPS * low) / _STEPS, np.round(_STEPS * high) / _STEPS  # a smaller part of a thin row cannot be seen
    if not (high > low).any():
        return
    times = edges / pen.unit.factor
    outline = np.concatenate((_steps(times, top + BESIDE * low), _steps(times, top + BESIDE * high)[::-1]))
    area = PolyCollection(
        [outline], facecolor=look.colour, edgecolor=look.stroke, hatch=look.hatch or None, linewidth=0.0, zorder=2, label=f"_{look.label}"
    )
    pen.ax.add_collection(area, autolim=False)


def _steps(edges: Floats, values: Floats) -> Floats:
    """The corners (x, y) of a line of steps; a value is between two edges."""
    first = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    last = np.append(first[1:], len(values))
    return np.column_stack((np.column_stack((edges[first], edges[last])).ravel(), np.repeat(values[first], 2)))


def legend_handles(datas: Sequence[TimelineData], *, dense: bool = False) -> list[Patch]:
    """What the colours and hatches of these timelines mean, each once."""
    used = {role for data in datas for lane in data.lanes for role, bars in lane.compute.items() if len(bars)}
    idle = {key for data in datas for lane in data.lanes for key, bars in lane.idle.items() if len(bars)}
    rows = [key for key in TAGS if any(key in data.rows for data in datas)]
    handles = [_patch(look, look.label) for name, look in style.ROLES.items() if name in used]
    if any(data.chunks > 1 for data in datas) and not dense:
        handles.append(Patch(facecolor=style.GRID, edgecolor="none", label="lighter below: later model chunk"))
    for name in dict.fromkeys(style.COMMUNICATION.get(key, "communication") for key in rows):
        keys = [key for key in rows if style.COMMUNICATION.get(key, "communication") == name]
        label = "/".join(TAGS[key] for key in keys)
        label = f"{label} comm." if name == "communication" else label
        for shown, look in (("exposed", style.ROLES[name]), ("hidden", hidden_style(style.ROLES[name]))):
            if any(_lasts(lane, key, shown) for data in datas for lane in data.lanes for key in keys if key in lane.beside):
                handles.append(_patch(look, f"{label}, {shown}"))
    looks = {idle_style(key).label: idle_style(key) for key in sorted(idle, key=lambda key: (key in ("bubble", "launch"), key))}
    return handles + [_patch(look, look.label) for look in reversed(looks.values())]


def _lasts(lane: RankLanes, key: str, shown: str) -> bool:
    """Whether a rank has exposed, or hidden, communication of this class."""
    exposed, whole = lane.exposed[key], lane.beside[key]
    if shown == "exposed":
        return len(exposed) > 0
    edges = np.unique(np.concatenate((whole.begin, whole.end)))
    hidden = (np.minimum(whole.coverage(edges), 1.0) - exposed.coverage(edges)) @ np.diff(edges) if len(edges) > 1 else 0.0
    return bool(hidden > 1e-9 * whole.seconds)


def _patch(look: style.Style, label: str) -> Patch:
    return Patch(facecolor=look.colour, edgecolor=look.stroke, hatch=look.hatch or None, linewidth=0.4, label=label)


def _legend(ax: Axes, data: TimelineData) -> None:
    handles = legend_handles([data])
    look = {"frameon": False, "fontsize": "small", "labelcolor": style.INK}
    figure = ax.figure
    if isinstance(figure, Figure) and figure.get_layout_engine() is not None:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)), **look)
    else:
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.06, 1.0), **look)


def _numbers(pen: _Pen, data: TimelineData) -> None:
    """Write micro-batch numbers into the boxes: for all boxes of a kind or for none."""
    figure = pen.ax.figure
    if not 0 < sum(lane.boxes.whole for lane in data.lanes) <= _TEXTS or not isinstance(figure, Figure):
        return
    widths: dict[str, list[float]] = defaultdict(list)
    for lane in data.lanes:
        for box in lane.boxes:
            if not box.cut:
                widths[box.kind].append((box.end - box.begin) / pen.unit.factor)
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # places the axes, whose size in pixels decides
    frame, point = pen.ax.get_window_extent(), figure.dpi / 72.0
    low, high = pen.ax.get_ylim()
    size = min(0.9 * pen.size, 0.75 * frame.height / abs(high - low) / point)
    if size < _SMALLEST:
        return
    longest = max(len(str(box.micro_batch)) for lane in data.lanes for box in lane.boxes)
    wanted = (0.65 * longest + 0.2) * size * point
    left, right = pen.ax.get_xlim()
    per_unit = frame.width / (right - left)
    fitting = {kind for kind, values in widths.items() if median(values) * per_unit >= wanted}
    for number, lane in enumerate(data.lanes):
        for box in lane.boxes:
            if box.kind in fitting and not (box.cut and (box.end - box.begin) / pen.unit.factor * per_unit < wanted):
                _number(pen, box, number * pen.pitch + COMPUTE / 2, size)


def _number(pen: _Pen, box: PassBox, middle: float, size: float) -> None:
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
        # Across a gap or averages the number needs ground of its own.
        bbox=None if box.solid and not pen.columns else {"facecolor": look.colour, "edgecolor": "none", "pad": 0.8},
        zorder=3,
    )
