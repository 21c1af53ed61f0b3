"""A drawing of pipeline schedules as rectangles, texts and lines in inches, whatever draws them in the end.

Schedules stand under each other on one time axis. Laid out by hand, so that a figure has exactly the width that a column has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import floor, log10
from typing import Literal

from parsim.report.plots import style

POINT = 1 / 72.0
_DIGIT, _LETTER = 0.64, 0.56
"""widths of a digit and of a letter, in font sizes"""
_SMALLEST = 4.0
_ROW, _ROW_GAP = 0.165, 0.025
_CHUNK_SHADES = {"forward": 0.6}
_CHUNK_SHADE = 0.78
"""brightness of a rank's first chunk; the last has the plain colour. Backward stays lighter, so that its dark numbers can be read."""

Labels = Literal["number", "pass", "none"]


@dataclass(frozen=True)
class SlotBox:
    """One slot as it is drawn; times in the unit of the axis."""

    row: int
    name: str
    """``F0.3``: the slot's own name, whatever is written in the box"""
    kind: str
    """F | B | I | W"""
    number: int
    """micro-batch as it is written"""
    start: float
    end: float
    chunk: int = 0
    chunks: int = 1


@dataclass(frozen=True)
class Arrow:
    """A message from one row to another."""

    sender: int
    receiver: int
    start: float
    end: float


@dataclass(frozen=True)
class Panel:
    """The drawing of one schedule."""

    caption: str
    rows: tuple[str, ...]
    """what stands left of each row"""
    boxes: tuple[SlotBox, ...]
    end: float
    arrows: tuple[Arrow, ...] = ()
    blocking: bool = False
    """messages hold both rows up, and are drawn in them"""
    overlapped: tuple[tuple[int, float, float], ...] = ()
    """(row, start, end) of slots that run a forward and a backward at once: a frame around both boxes, as DeepSeek-V3's figure 5 has"""


@dataclass(frozen=True)
class Rect:
    """A rectangle; x and y are its lower left corner [inch]."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = ""
    hatch: bool = False
    name: str = ""


@dataclass(frozen=True)
class Lettering:
    """A line of text around (x, y) [inch]."""

    x: float
    y: float
    text: str
    size: float
    """[pt]"""
    align: Literal["left", "center", "right"] = "center"
    colour: str = style.INK
    bold: bool = False


@dataclass(frozen=True)
class Stroke:
    """A straight line [inch]."""

    x0: float
    y0: float
    x1: float
    y1: float
    colour: str
    width: float = 0.5


@dataclass(frozen=True)
class Scene:
    """Everything to draw, from back to front."""

    width: float
    height: float
    left: float
    """where time 0 is [inch]"""
    scale: float
    """inches per unit of time"""
    rects: tuple[Rect, ...]
    lines: tuple[Stroke, ...]
    texts: tuple[Lettering, ...]


@dataclass
class _Pen:
    """What is drawn so far, downwards from the top."""

    width: float
    font: float
    left: float
    scale: float
    y: float = 0.0
    rects: list[Rect] = field(default_factory=list)
    lines: list[Stroke] = field(default_factory=list)
    texts: list[Lettering] = field(default_factory=list)

    def at(self, time: float) -> float:
        return self.left + time * self.scale


def scene(panels: Sequence[Panel], *, width: float, unit: str, title: str = "", labels: Labels = "number") -> Scene:
    """Lay out `panels`, `width` inches wide; `unit` names the unit of the time axis."""
    font = 7.0 if width < 5.0 else 8.0
    end = max((panel.end for panel in panels), default=0.0) or 1.0
    longest = max((len(name) for panel in panels for name in panel.rows), default=0)
    left = (longest * _LETTER * font + 5) * POINT
    right = _LETTER * font * len(_tick_text(end)) / 2 * POINT + 0.02
    pen = _Pen(width, font, left, (width - left - right) / end, y=-0.03)
    if title:
        _text(pen, left, title, pen.font + 1, bold=True)
    for panel in panels:
        _panel(pen, panel, labels)
    _axis(pen, end, unit)
    _legend(pen, panels)
    return _upright(pen)


def brightness(role: str, chunk: int, chunks: int) -> float:
    """How bright a chunk's colour is: the first of a rank is darkest, as Narayanan et al. draw it."""
    first = _CHUNK_SHADES.get(role, _CHUNK_SHADE)
    return 1.0 if chunks < 2 else first + (1.0 - first) * chunk / (chunks - 1)


def shaded(colour: str, factor: float) -> str:
    """`colour` darkened; six-digit hexadecimal."""
    return "#" + "".join(f"{round(int(colour[place : place + 2], 16) * factor):02X}" for place in (1, 3, 5))


def label(box: SlotBox, labels: Labels) -> str:
    """The text in a box: nothing, the micro-batch, or the letter of the pass and the micro-batch."""
    return "" if labels == "none" else str(box.number) if labels == "number" else f"{box.kind}{box.number}"


def ticks(end: float, most: int) -> list[float]:
    """Round numbers from 0 to `end`, at most `most` + 1 of them.

    >>> ticks(33.0, 8)
    [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    """
    raw = end / max(1, most)
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    return [step * number for number in range(floor(end / step * (1 + 1e-9)) + 1)]


def _tick_text(value: float) -> str:
    return f"{value:.6g}"


def _text(pen: _Pen, x: float, text: str, size: float, *, bold: bool = False) -> None:
    """Add a line of text below what is drawn."""
    height = 1.35 * size * POINT
    pen.texts.append(Lettering(x, pen.y - height / 2, text, size, "left", bold=bold))
    pen.y -= height


def _label_size(pen: _Pen, panel: Panel, labels: Labels) -> tuple[float, set[str]]:
    """Size of a schedule's numbers [pt], and the kinds of boxes that they fit into: all of a kind, or none."""
    wanted: dict[str, float] = {}
    for box in panel.boxes:
        characters = len(label(box, labels))
        if characters and box.end > box.start:
            room = (box.end - box.start) * pen.scale / POINT - 0.4
            wanted[box.kind] = min(wanted.get(box.kind, 99.0), room / (_DIGIT * characters))
    largest = min(pen.font - 0.5, 0.62 * _ROW / POINT)
    fitting = {kind for kind, size in wanted.items() if size >= _SMALLEST}
    return min((largest, *(wanted[kind] for kind in fitting))), fitting


def _panel(pen: _Pen, panel: Panel, labels: Labels) -> None:
    size, fitting = _label_size(pen, panel, labels)
    if panel.caption:
        _text(pen, pen.left, panel.caption, pen.font)
        pen.y -= 0.015
    pitch = _ROW + _ROW_GAP
    tops = [pen.y - number * pitch for number in range(len(panel.rows))]
    for name, top in zip(panel.rows, tops, strict=True):
        pen.texts.append(Lettering(pen.left - 3 * POINT, top - _ROW / 2, name, pen.font, "right"))
        pen.rects.append(Rect(pen.left, top - _ROW, panel.end * pen.scale, _ROW, style.BUBBLE, style.BUBBLE_HATCH, hatch=True))
    for box in panel.boxes:
        look = style.ROLES[style.role("compute", box.name)]
        colour = shaded(look.colour, brightness(style.role("compute", box.name), box.chunk, box.chunks))
        left, width, top = pen.at(box.start), (box.end - box.start) * pen.scale, tops[box.row]
        pen.rects.append(Rect(left, top - _ROW, width, _ROW, colour, shaded(look.colour, 0.6 if box.chunks < 2 else 0.45), name=box.name))
        if box.kind in fitting and (text := label(box, labels)):
            pen.texts.append(Lettering(left + width / 2, top - _ROW / 2, text, size, colour=look.text))
    for row, start, end in panel.overlapped:
        _frame(pen, pen.at(start), pen.at(end), tops[row])
    _arrows(pen, panel, tops)
    pen.y -= len(panel.rows) * pitch + 0.05


def _frame(pen: _Pen, left: float, right: float, top: float) -> None:
    corners = [(left, top), (right, top), (right, top - _ROW), (left, top - _ROW), (left, top)]
    pen.lines += [Stroke(*one, *other, style.INK, 1.0) for one, other in pairwise(corners)]


def _arrows(pen: _Pen, panel: Panel, tops: Sequence[float]) -> None:
    look = style.ROLES["pipeline"]
    for arrow in panel.arrows:
        if panel.blocking:
            for row in (arrow.sender, arrow.receiver):
                width = (arrow.end - arrow.start) * pen.scale
                pen.rects.append(Rect(pen.at(arrow.start), tops[row] - _ROW, width, _ROW, look.colour, shaded(look.colour, 0.6)))
            continue
        down = arrow.receiver > arrow.sender
        begin = tops[arrow.sender] - (_ROW if down else 0.0)
        finish = tops[arrow.receiver] - (0.0 if down else _ROW)
        pen.lines.append(Stroke(pen.at(arrow.start), begin, pen.at(arrow.end), finish, look.colour))


def _axis(pen: _Pen, end: float, unit: str) -> None:
    y = pen.y + 0.02
    pen.lines.append(Stroke(pen.left, y, pen.at(end), y, style.INK))
    room = end * pen.scale / (_DIGIT * pen.font * POINT * (len(_tick_text(end)) + 2))
    for value in ticks(end, min(12, max(1, int(room)))):
        x = pen.at(value)
        pen.lines.append(Stroke(x, y, x, y - 0.03, style.INK))
        pen.texts.append(Lettering(x, y - 0.035 - 0.6 * pen.font * POINT, _tick_text(value), pen.font - 0.5))
    pen.y = y - 0.035 - 1.25 * pen.font * POINT
    height = 1.3 * pen.font * POINT
    pen.texts.append(Lettering(pen.at(end / 2), pen.y - height / 2, f"time [{unit}]", pen.font))
    pen.y -= height + 0.03


def legend_entries(panels: Iterable[Panel]) -> list[tuple[str, str, bool]]:
    """(name, colour, hatched) of everything that is drawn."""
    boxes = [box for panel in panels for box in panel.boxes]
    kinds = {box.kind for box in boxes}
    roles = style.ROLES
    entries = [(roles["forward"].label, roles["forward"].colour, False)] if "F" in kinds else []
    if kinds & {"B", "I"}:
        words = {"B": "backward", "I": "backward input", "BI": "backward, or its input part"}["".join(sorted(kinds & {"B", "I"}))]
        entries.append((words, roles["backward"].colour, False))
    if "W" in kinds:
        entries.append((roles["weight"].label, roles["weight"].colour, False))
    if any(panel.arrows for panel in panels):
        entries.append(("message", roles["pipeline"].colour, False))
    entries.append(("idle", style.BUBBLE, True))
    if any(panel.overlapped for panel in panels):
        entries.append(("(framed: overlapped, both end together)", "", False))
    if max((box.chunks for box in boxes), default=1) > 1:
        entries.append(("(darker: earlier chunk)", "", False))
    return entries


def _legend(pen: _Pen, panels: Sequence[Panel]) -> None:
    size = pen.font - 0.5
    height, swatch = 1.5 * size * POINT, 1.1 * size * POINT
    x = pen.left
    for name, colour, hatch in legend_entries(panels):
        width = (swatch + 3 * POINT if colour else 0.0) + len(name) * _LETTER * size * POINT + 8 * POINT
        if x > pen.left and x + width > pen.width:
            x = pen.left
            pen.y -= height
        if colour:
            edge = style.BUBBLE_HATCH if hatch else shaded(colour, 0.6)
            pen.rects.append(Rect(x, pen.y - height / 2 - 0.35 * size * POINT, swatch, 0.7 * size * POINT, colour, edge, hatch=hatch))
        offset = swatch + 3 * POINT if colour else 0.0
        pen.texts.append(Lettering(x + offset, pen.y - height / 2, name, size, "left"))
        x += width
    pen.y -= height


def _upright(pen: _Pen) -> Scene:
    """The drawing with its lower left corner at (0, 0)."""
    height = -pen.y + 0.02
    rects = tuple(Rect(r.x, r.y + height, r.width, r.height, r.fill, r.edge, r.hatch, r.name) for r in pen.rects)
    lines = tuple(Stroke(one.x0, one.y0 + height, one.x1, one.y1 + height, one.colour, one.width) for one in pen.lines)
    texts = tuple(Lettering(t.x, t.y + height, t.text, t.size, t.align, t.colour, t.bold) for t in pen.texts)
    return Scene(pen.width, height, pen.left, pen.scale, rects, lines, texts)
