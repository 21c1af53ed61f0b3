"""What the timeline figure draws: bars and numbered boxes per rank, as plain columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from parsim.parallel.groups import OFFLOAD, TIMED
from parsim.report.communication import covered
from parsim.report.measured import DeviceMemory, MemoryCurve
from parsim.report.quantities import TimeUnit
from parsim.report.repeats import Repeat, groups_of, repeats
from parsim.report.selection import FEW_LANES, Representative, Window, choose, named, window_of
from parsim.report.timeline import KEYS, Floats, Indices, Timeline, idle_stretches, sweep

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

MOST_RANKS = 60
"""lanes that a figure can show; beyond it some ranks stand for the others"""

FEW_PASSES = 24
"""passes of a rank that are readable in any figure"""

ROWS = (*(f"{axis}_comm" for axis in TIMED), OFFLOAD, "optimizer")
"""Rows under a rank's compute, in this order where a rank has them."""


@dataclass(frozen=True)
class Bars:
    """Intervals that are drawn alike [s]."""

    begin: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def seconds(self) -> float:
        """Their lengths together [s]; what overlaps counts twice."""
        return float((self.end - self.begin).sum())

    def coverage(self, edges: Floats) -> Floats:
        """Which part of each stretch between neighbouring `edges` [s] lies under a bar; bars may overlap."""
        order = np.argsort(self.begin, kind="stable")
        begin, end = self.begin[order], np.maximum.accumulate(self.end[order])
        begin = np.maximum(begin, np.concatenate((begin[:1], end[:-1])))
        return covered(begin, end, edges[:-1], edges[1:]) / np.diff(edges)


@dataclass(frozen=True)
class PassBox:
    """One pass of a micro-batch through a stage, as wide as it lasts; recomputation belongs to its backward."""

    begin: float
    end: float
    kind: str
    """F | B | W"""
    role: str
    """of its largest part"""
    micro_batch: int
    solid: bool
    """one colour without gaps"""
    chunk: int = 0
    """which of the model chunks of an interleaved pipeline"""
    cut: bool = False
    """it goes on outside the figure"""


class Boxes(Sequence[PassBox]):
    """The boxes of a rank as columns, in the order of `PassBox`'s fields; a box is made when it is asked for."""

    def __init__(self, *columns: Sequence[Any]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, index: int) -> PassBox: ...
    @overload
    def __getitem__(self, index: slice) -> Boxes: ...
    def __getitem__(self, index: int | slice) -> PassBox | Boxes:
        row: list[Any] = [column[index] for column in self._columns]
        return Boxes(*row) if isinstance(index, slice) else PassBox(*row)

    @classmethod
    def of(cls, boxes: Sequence[PassBox]) -> Boxes:
        """These boxes as columns."""
        return cls(*([getattr(box, field.name) for box in boxes] for field in fields(PassBox)))

    def moved(self, by: float) -> Boxes:
        """The same boxes `by` seconds earlier."""
        begin, end, *others = self._columns
        return Boxes([time - by for time in begin], [time - by for time in end], *others)

    @property
    def passes(self) -> int:
        """How many passes they belong to: one that is interrupted by another has several boxes."""
        return len({(box.kind, box.micro_batch, box.chunk) for box in self})

    @property
    def whole(self) -> int:
        """How many boxes lie wholly within the figure."""
        return self._columns[-1].count(False)


@dataclass(frozen=True)
class RankLanes:
    """Everything that is drawn of one rank: its compute row, and the rows beneath it."""

    who: Representative
    compute: Mapping[str, Bars]
    """role -> bars"""
    idle: Mapping[str, Bars]
    """class of the breakdown -> where nothing computes: "bubble", or what is waited for"""
    boxes: Boxes
    beside: Mapping[str, Bars]
    """class -> one bar per collective or copy"""
    exposed: Mapping[str, Bars]
    """class -> the stretches of it under which no other op computes"""

    @property
    def rank(self) -> int:
        """The rank's number in the job, whichever rank was simulated in its place."""
        return self.who.rank

    def earlier(self, by: float) -> RankLanes:
        """The same rows `by` seconds earlier."""

        def moved(rows: Mapping[str, Bars]) -> dict[str, Bars]:
            return {key: Bars(bars.begin - by, bars.end - by) for key, bars in rows.items()}

        return replace(
            self,
            compute=moved(self.compute),
            idle=moved(self.idle),
            boxes=self.boxes.moved(by),
            beside=moved(self.beside),
            exposed=moved(self.exposed),
        )


@dataclass(frozen=True)
class TimelineData:
    """Everything in the figure; times from `begin` to `end` [s]."""

    lanes: tuple[RankLanes, ...]
    begin: float
    end: float
    title: str = ""
    note: str = ""
    """what was left out"""
    memory: MemoryCurve | None = None
    memory_rank: int | None = None
    memory_used: int | None = None
    """peak of the device memory in use on that rank [B]; None if it is not in the window"""
    capacity: int | None = None
    rows: tuple[str, ...] = field(default=())
    """the classes that any rank has beside its compute"""
    chunks: int = 1
    """model chunks per rank of an interleaved pipeline"""
    marks: tuple[tuple[float, str], ...] = ()
    """moments with a text [s]: something breaks, or is over"""
    repeats: tuple[Repeat, ...] = ()
    """stretches in which all of these lanes repeat themselves, of a step of many passes"""
    is_whole: bool = False
    """nobody asked for a part of the step: it may be shortened"""
    unit: TimeUnit | None = None
    """of the axis, where it was shortened"""

    def from_zero(self) -> TimelineData:
        """The same lanes with times from the beginning of what is measured; its memory is left out."""
        if self.begin == 0.0:
            return self
        marks = tuple((time - self.begin, text) for time, text in self.marks)
        lanes = tuple(lane.earlier(self.begin) for lane in self.lanes)
        return replace(self, lanes=lanes, begin=0.0, end=self.end - self.begin, memory=None, marks=marks)

    @property
    def bars(self) -> int:
        """How many intervals there are to draw."""
        return sum(len(bars) for lane in self.lanes for part in (lane.compute, lane.beside, lane.exposed) for bars in part.values())

    @property
    def densest(self) -> int:
        """Number of intervals in the fullest row."""
        rows = [sum(map(len, lane.compute.values())) for lane in self.lanes]
        rows += [len(lane.beside[key]) + len(lane.exposed[key]) for lane in self.lanes for key in lane.beside]
        return max(rows, default=0)


NO_BOXES = Boxes(*([[]] * len(fields(PassBox))))


def most_lanes(report: Metrics) -> int:
    """How many lanes a picture nobody asked more of should have: few where each has many passes, so that it can be read."""
    return FEW_LANES if report.measured.ranks.micro_batches > FEW_PASSES else MOST_RANKS


def timeline_data(
    report: Metrics, ranks: Sequence[int] | None = None, window: Window | None = None, *, most: int = MOST_RANKS, memory: bool = True
) -> TimelineData:
    """The figure's data for `ranks`; by default at most `most` that stand for the others.

    Raises:
        InputError: there is no such rank, or the window is not within the step.
    """
    report = report.shown
    timeline, measured = report.timeline, report.measured
    begin, end = window_of(report, window)
    chosen = named(report, choose(report, most) if ranks is None else ranks)
    chunks = measured.schedule.virtual_stages
    lanes = tuple(rank_lanes(timeline, who, begin, end, measured.schedule.stages if chunks > 1 else 0) for who in chosen)
    shown = {who.simulated for who in chosen}
    total = sum(group.count for group in measured.classes)
    kinds = sum(group.rank in shown for group in measured.classes)
    note = ""
    if len(measured.classes) > 1 and kinds < len(measured.classes):
        note = f"{kinds} of {len(measured.classes)} classes of equal ranks"
    elif total > len(chosen):
        note = f"{len(chosen)} of {total} ranks; the others do the same as one of them"
    data = TimelineData(
        lanes=lanes,
        begin=begin,
        end=end,
        title=measured.name,
        note=note,
        rows=tuple(key for key in ROWS if any(key in lane.beside for lane in lanes)),
        chunks=chunks,
        marks=tuple(mark for mark in measured.marks if begin <= mark[0] <= end),
        repeats=_repeats(report, lanes) if window is None else (),
        is_whole=window is None,
    )
    device = _fullest(report, shown) if memory else None
    if device is None or device.curve is None:
        return data
    peak = device.peak_time_s
    return replace(
        data,
        memory=device.curve.within(begin, end),
        memory_rank=next((who.rank for who in chosen if who.simulated == device.rank), device.rank),
        memory_used=device.device_used_bytes if window is None or (peak is not None and begin <= peak <= end) else None,
        capacity=report.capacity(device),
    )


def _repeats(report: Metrics, lanes: Sequence[RankLanes]) -> tuple[Repeat, ...]:
    """Where these lanes repeat themselves; of few passes nobody need know."""
    if max((lane.boxes.passes for lane in lanes), default=0) <= FEW_PASSES:
        return ()
    facts, ranks = report.measured.schedule, [lane.who.simulated for lane in lanes]
    if set(ranks) <= set(choose(report, FEW_LANES)):
        return report.repeats
    return repeats(report.timeline, ranks, report.begin, report.end, groups_of(facts.stages, facts.virtual_stages))


def _fullest(report: Metrics, shown: set[int]) -> DeviceMemory | None:
    """The shown rank with the least memory left; any rank if none of them has a curve."""
    devices = [device for device in report.measured.memory.devices if device.rank in shown and device.drawn is not None]
    return min(devices, key=lambda device: report.capacity(device) - device.device_used_bytes, default=report.worst_device)


def rank_lanes(timeline: Timeline, who: Representative, begin: float, end: float, stages: int = 0) -> RankLanes:
    """The bars of one rank within [begin, end]; `stages` of the pipeline where a rank holds several model chunks, else 0."""
    rank = who.simulated
    lane = _within(timeline, timeline.lane(rank), begin, end)
    computing = _within(timeline, timeline.computing(rank), begin, end)
    compute, boxes = _compute(timeline, computing, begin, end, stages)
    beside, exposed = {}, {}
    others = _within(timeline, timeline.not_computing(rank), begin, end)
    for key in ROWS:
        code = KEYS.index(key)
        own = others[timeline.kind[others] == code]
        if len(own):
            cover = lane[timeline.kind[lane] != code]
            beside[key] = _clipped(timeline, own, begin, end)
            exposed[key] = _uncovered(timeline, own, cover, begin, end)
    idle = {key: Bars(*spans) for key, spans in idle_stretches(timeline, rank, begin, end).items()}
    return RankLanes(who, compute, idle, boxes, beside, exposed)


def _within(timeline: Timeline, ops: Indices, begin: float, end: float) -> Indices:
    start, stop = timeline.start[ops], timeline.end[ops]
    return ops[(stop > begin) & (start < end) & (stop > start)]


def _clipped(timeline: Timeline, ops: Indices, begin: float, end: float) -> Bars:
    return Bars(np.maximum(timeline.start[ops], begin), np.minimum(timeline.end[ops], end))


def _uncovered(timeline: Timeline, ops: Indices, cover: Indices, begin: float, end: float) -> Bars:
    """Where `ops` run and `cover` does not, neighbours merged."""
    layers = [(timeline.start[part], timeline.end[part]) for part in (cover, ops)]
    times, top = sweep(layers, begin, end)
    wanted = np.flatnonzero((top == 1) & (np.diff(times) > 0))
    starts, ends = times[wanted], times[wanted + 1]
    fresh = np.concatenate(([True], starts[1:] > ends[:-1])) if len(starts) else np.empty(0, dtype=bool)
    return Bars(starts[fresh], ends[np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(ends) - 1]))] if len(ends) else ends)


def _compute(timeline: Timeline, ops: Indices, begin: float, end: float, stages: int) -> tuple[dict[str, Bars], Boxes]:
    """Bars by role, one per stretch of equal work without a gap, and the boxes they make up."""
    if not len(ops):
        return {}, NO_BOXES
    roles, role_codes, key_codes = _labels(timeline, ops)
    bars = _clipped(timeline, ops, begin, end)
    changes = key_codes[1:] != key_codes[:-1]
    apart = bars.begin[1:] > bars.end[:-1] + timeline.tolerance
    first = np.flatnonzero(np.concatenate(([True], changes | apart | (role_codes[1:] != role_codes[:-1]))))
    last = np.concatenate((first[1:] - 1, [len(ops) - 1]))
    merged = Bars(bars.begin[first], bars.end[last])
    codes = role_codes[first]
    compute = {name: Bars(merged.begin[codes == code], merged.end[codes == code]) for code, name in enumerate(roles)}
    boxes = _boxes(timeline, ops, merged, [roles[code] for code in codes.tolist()], key_codes[first], first, stages)
    return compute, boxes


def _labels(timeline: Timeline, ops: Indices) -> tuple[list[str], Indices, Indices]:
    """The roles as they come, the number of each op's role, and a number that changes where the box does."""
    columns, known = timeline.columns, timeline.pass_kinds
    kind, instance = columns.kind[ops], columns.instance[ops]
    slot, backward, unnamed = known.of[kind], known.backward[kind], known.unnamed[kind]
    # Recomputation within a block does not say which stage it is of: it belongs to the backward before it.
    goes_on = np.zeros(len(ops), dtype=bool)
    goes_on[1:] = unnamed[1:] & backward[:-1] & (instance[1:] == instance[:-1])
    named = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(ops))))
    lowest = int(instance.min())
    keys = slot[named] * (int(instance.max()) - lowest + 1) + instance[named] - lowest
    _, first, roles = np.unique(known.role[kind], return_index=True, return_inverse=True)
    turn = np.argsort(first)
    return [known.roles[number] for number in kind[first[turn]].tolist()], np.argsort(turn)[roles], keys


def _boxes(timeline: Timeline, ops: Indices, merged: Bars, roles: Sequence[str], keys: Indices, places: Indices, stages: int) -> Boxes:
    """Group neighbouring bars of one pass."""
    columns, known = timeline.columns, timeline.pass_kinds
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    stops = np.append(starts[1:], len(keys))
    head, tail = ops[places[starts]], ops[np.append(places, len(ops))[stops] - 1]
    begins, ends = merged.begin[starts], merged.end[stops - 1]
    cut = (timeline.start[head] < begins) | (timeline.end[tail] > ends)
    largest = starts + _first_largest(merged.end - merged.begin, starts)
    kinds, instances = columns.kind[head], columns.instance[head]
    shown = known.lettered[kinds] & (instances >= 0)
    kind = kinds[shown].tolist()
    return Boxes(
        begins[shown].tolist(), ends[shown].tolist(), [known.letters[one] for one in kind], [roles[one] for one in largest[shown].tolist()],
        instances[shown].tolist(), (stops == starts + 1)[shown].tolist(), [_chunk(known.stages[one], stages) for one in kind],
        cut[shown].tolist(),
    )  # fmt: skip


def _first_largest(values: Floats, starts: Indices) -> Indices:
    """In each stretch that begins at one of `starts`, the place of the largest value, counted from its start."""
    stretch = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    reached = np.flatnonzero(values == np.maximum.reduceat(values, starts)[stretch])
    return reached[np.unique(stretch[reached], return_index=True)[1]] - starts


def _chunk(stage: str, stages: int) -> int:
    """The model chunk of a pass: its virtual stage over the stages."""
    return int(stage) // stages if stages and stage else 0
