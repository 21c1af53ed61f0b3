"""A long step made short for a picture: its beginning, one of each stretch of equal periods, and its end.

Times are put on an axis of their own, on which what is left out has a small gap. Where a period would be too narrow to be read it is
drawn larger than the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from parsim.report.lanes import FEW_PASSES, Bars, Boxes, RankLanes, TimelineData
from parsim.report.measured import MemoryCurve
from parsim.report.quantities import seconds, time_unit
from parsim.report.repeats import Repeat
from parsim.report.timeline import Floats

PASS = 8.0
"""a mean pass narrower than this is not readable [1/72 in]"""
_LEAST = 0.25
"""part of the step that must be saved, else all of it is drawn"""
_READABLE = 14.0
"""width of a pass in a period that is drawn once [1/72 in]"""
_WIDEST = 0.4
"""of all periods that are drawn once, as a part of the axis"""
_GAP = 0.03
"""width of a gap, as a part of the axis"""


@dataclass(frozen=True)
class Break:
    """A gap of the axis: from `left` to `right` on it, with the period from `begin` to `left` repeated `count` times."""

    left: float
    right: float
    text: str
    """``× 57, 1.83 s each``, or what is not drawn"""
    begin: float | None = None
    """where the period begins that is drawn once; None: there is none"""


@dataclass(frozen=True)
class ShortAxis:
    """Times of the step, and where they are drawn; between two pieces there may be a gap."""

    pieces: tuple[tuple[float, float], ...]
    """begin and end [s], in order"""
    places: tuple[tuple[float, float], ...]
    """of the same on the axis, which begins at 0"""
    breaks: tuple[Break, ...]
    note: str

    @property
    def end(self) -> float:
        """Length of the axis."""
        return self.places[-1][1]

    @property
    def shown(self) -> tuple[tuple[float, float], ...]:
        """Stretches of time without a gap [s]."""
        joined: list[tuple[float, float]] = []
        for begin, end in self.pieces:
            joined[-1:] = [(joined[-1][0], end)] if joined and joined[-1][1] == begin else [*joined[-1:], (begin, end)]
        return tuple(joined)

    def at(self, times: Floats | Sequence[float]) -> Floats:
        """Where times [s] are drawn."""
        return np.asarray(np.interp(times, np.ravel(self.pieces), np.ravel(self.places)), dtype=np.float64)

    def ticks(self, step: float) -> list[float]:
        """Round times that are drawn, `step` apart [s]."""
        return [
            float(time)
            for begin, end in self.shown
            for time in np.arange(np.ceil(begin / step - 1e-9), np.floor(end / step + 1e-9) + 1) * step
        ]


def short_axis(data: TimelineData, points: float) -> ShortAxis | None:
    """The axis for a figure whose lanes are `points` wide [1/72 in]; None where all of the step is readable."""
    passes = max((lane.boxes.passes for lane in data.lanes), default=0)
    span = data.end - data.begin
    if not data.is_whole or passes <= FEW_PASSES or passes * PASS <= points or span <= 0:
        return None
    wanted = points / PASS / passes * span  # seconds that are readable
    found = [one for one in data.repeats if one.count > 1]
    left_out = fsum((one.count - 1) * one.period for one in found)
    if left_out >= _LEAST * span:
        return _around(found, data, points, passes / span)
    if wanted >= (1.0 - _LEAST) * span:
        return None
    half = wanted / 2
    pieces = ((data.begin, data.begin + half), (data.end - half, data.end))
    gap = _GAP * wanted
    places = ((0.0, half), (half + gap, wanted + gap))
    missing = f"{seconds(data.begin + half)} to {seconds(data.end - half)}"
    note = f"cut: {missing} is not drawn; the step has no equal periods that could stand for it"
    return ShortAxis(pieces, places, (Break(half, half + gap, f"{seconds(span - wanted)} not drawn"),), note)


def _around(found: Sequence[Repeat], data: TimelineData, points: float, density: float) -> ShortAxis:
    """Everything but the second and later periods of each stretch; `density`: passes per second."""
    rest = (data.end - data.begin) - fsum(one.count * one.period for one in found)
    share = [min(_WIDEST / len(found), one.period * density * _READABLE / points) for one in found]
    # all periods together with the rest are 1; a period that has its share already is drawn to the scale of the rest
    scale = max(rest, 1e-3 * fsum(one.period for one in found)) / max(1e-9, 1.0 - fsum(share))
    widths = [max(one.period, part * scale) for one, part in zip(found, share, strict=True)]
    gap = _GAP * (rest + fsum(widths))
    pieces: list[tuple[float, float]] = []
    places: list[tuple[float, float]] = []
    breaks: list[Break] = []
    time, place = data.begin, 0.0
    for one, width in zip(found, widths, strict=True):
        if one.begin > time:
            pieces.append((time, one.begin))
            places.append((place, place + one.begin - time))
            place = places[-1][1]
        pieces.append((one.begin, one.begin + one.period))
        places.append((place, place + width))
        breaks.append(Break(place + width, place + width + gap, f"× {one.count:,}, {seconds(one.period)} each", place))
        time, place = one.end, place + width + gap
    if data.end > time:
        pieces.append((time, data.end))
        places.append((place, place + data.end - time))
    texts = []
    for one, width in zip(found, widths, strict=True):
        larger = f", {width / one.period:.2g} times as wide as the rest" if width > 1.05 * one.period else ""
        texts.append(f"of {one.count:,} equal periods from {seconds(one.begin)} to {seconds(one.end)} one is drawn{larger}")
    return ShortAxis(tuple(pieces), tuple(places), tuple(breaks), f"cut: {'; '.join(texts)}")


def shortened(data: TimelineData, axis: ShortAxis) -> TimelineData:
    """The same lanes with times as they stand on `axis`, without what is left out; only for drawing."""
    memory = None if data.memory is None else cut_curve(data.memory, axis)
    marks = tuple((float(axis.at([time])[0]), text) for time, text in data.marks)
    lanes = tuple(_lane(lane, axis) for lane in data.lanes)
    note = "; ".join(filter(None, (data.note, axis.note)))
    unit = time_unit(data.end - data.begin)
    cut = replace(data, lanes=lanes, begin=0.0, end=axis.end, unit=unit, repeats=(), is_whole=False)
    return replace(cut, note=note, memory=memory, marks=marks)


def _lane(lane: RankLanes, axis: ShortAxis) -> RankLanes:
    def cut(rows: Mapping[str, Bars]) -> dict[str, Bars]:
        return {key: _bars(bars, axis) for key, bars in rows.items()}

    return replace(
        lane, compute=cut(lane.compute), idle=cut(lane.idle), boxes=_boxes(lane.boxes, axis), beside=cut(lane.beside),
        exposed=cut(lane.exposed),
    )  # fmt: skip


def _bars(bars: Bars, axis: ShortAxis) -> Bars:
    begins, ends = [np.empty(0)], [np.empty(0)]
    for low, high in axis.shown:
        inside = (bars.end > low) & (bars.begin < high)
        begins.append(axis.at(np.maximum(bars.begin[inside], low)))
        ends.append(axis.at(np.minimum(bars.end[inside], high)))
    return Bars(np.concatenate(begins), np.concatenate(ends))


def _boxes(boxes: Boxes, axis: ShortAxis) -> Boxes:
    kept = []
    for low, high in axis.shown:
        for box in boxes:
            if box.end > low and box.begin < high:
                begin, end = axis.at([max(box.begin, low), min(box.end, high)]).tolist()
                kept.append(replace(box, begin=begin, end=end, cut=box.cut or box.begin < low or box.end > high))
    return Boxes.of(kept)


def cut_curve(curve: MemoryCurve, axis: ShortAxis) -> MemoryCurve:
    """Levels hold until the next; those within a gap are left out."""
    parts = [curve.within(low, high) for low, high in axis.shown]
    times = np.concatenate([axis.at(part.times) for part in parts]).tolist()
    return MemoryCurve(times, {name: [level for part in parts for level in part.bytes[name]] for name in curve.bytes})
