"""What the timeline figure draws: bars and numbered boxes per rank, as plain columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from parsim.report.communication import covered
from parsim.report.measured import MemoryCurve, RankClass
from parsim.report.plots.style import role
from parsim.report.timeline import KEYS, Floats, Indices, Timeline, sweep

if TYPE_CHECKING:
    from parsim.report.report import Report

MOST_RANKS = 60
"""lanes that a figure can show; beyond it some ranks stand for the others"""
_CHOSEN = 32

ROWS = ("tensor_comm", "expert_comm", "context_comm", "pipeline_comm", "data_comm", "offload", "optimizer")
"""Rows under a rank's compute, in this order where a rank has them."""

_SLOT_OF = {"forward": "F", "backward": "B", "recompute": "B", "weight": "W"}


@dataclass(frozen=True)
class Bars:
    """Intervals that are drawn alike [s]."""

    begin: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.begin)

    def coverage(self, edges: Floats) -> Floats:
        """Which part of each stretch between neighbouring `edges` [s] lies under a bar; bars may overlap."""
        order = np.argsort(self.begin, kind="stable")
        begin, end = self.begin[order], np.maximum.accumulate(self.end[order])
        begin = np.maximum(begin, np.concatenate((begin[:1], end[:-1])))
        return covered(begin, end, edges[:-1], edges[1:]) / np.diff(edges)


@dataclass(frozen=True)
class Box:
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


@dataclass(frozen=True)
class RankLanes:
    """The rows of one rank."""

    rank: int
    label: str
    compute: Mapping[str, Bars]
    """role -> bars"""
    boxes: tuple[Box, ...]
    beside: Mapping[str, Bars]
    """class -> one bar per collective or copy"""
    exposed: Mapping[str, Bars]
    """class -> the stretches of it under which no other op computes"""


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
    """peak of the device memory in use on that rank [B]"""
    capacity: int | None = None
    rows: tuple[str, ...] = field(default=())
    """the classes that any rank has beside its compute"""

    @property
    def bars(self) -> int:
        """How many intervals there are to draw."""
        return sum(len(bars) for lane in self.lanes for part in (lane.compute, lane.beside, lane.exposed) for bars in part.values())


def timeline_data(report: Report, ranks: Sequence[int] | None = None) -> TimelineData:
    """The figure's data for `ranks`; by default one rank per class, at most `MOST_RANKS` or a choice of them.

    Raises ValueError if a rank was not simulated.
    """
    timeline, measured = report.timeline, report.measured
    if ranks is not None and (missing := [rank for rank in ranks if rank not in timeline.lanes]):
        message = f"rank {missing[0]} was not simulated; simulated ranks: {', '.join(map(str, timeline.ranks))}"
        raise ValueError(message)
    classes = {group.rank: group for group in measured.classes}
    chosen = choose(report) if ranks is None else list(ranks)
    staged = measured.schedule.stages > 1
    lanes = tuple(rank_lanes(timeline, rank, report.begin, report.end, _label(rank, classes.get(rank), staged)) for rank in chosen)
    shown = sum(classes[rank].count if rank in classes else 1 for rank in chosen)
    note = f"{len(chosen)} of {len(classes)} classes of ranks" if ranks is None and len(chosen) < len(classes) else ""
    if not note and shown > len(chosen):
        note = f"{len(chosen)} of {shown} ranks; the others do the same as one of them"
    worst = report.worst_device
    return TimelineData(
        lanes=lanes,
        begin=report.begin,
        end=report.end,
        title=measured.name,
        note=note,
        memory=None if worst is None else worst.curve,
        memory_rank=None if worst is None else worst.rank,
        memory_used=None if worst is None else worst.device_used_bytes,
        capacity=None if worst is None else report.capacity(worst),
        rows=tuple(key for key in ROWS if any(key in lane.beside for lane in lanes)),
    )


def choose(report: Report) -> list[int]:
    """Representative ranks by stage; if there are too many the first, the last, the two that matter, and some between."""
    groups = sorted(report.measured.classes, key=lambda group: (group.stage or 0, group.rank))
    ranks = [group.rank for group in groups]
    if len(ranks) <= MOST_RANKS:
        return ranks
    places = {round(place) for place in np.linspace(0, len(ranks) - 1, _CHOSEN - 2)}
    places |= {ranks.index(report.breakdown_rank), ranks.index(report.bottleneck_rank)}
    return [ranks[place] for place in sorted(places)]


def _label(rank: int, group: RankClass | None, staged: bool) -> str:
    name = f"rank {rank}"
    if staged and group is not None and group.stage is not None:
        name = f"stage {group.stage} · {name}"
    return f"{name} (×{group.count})" if group is not None and group.count > 1 else name


def rank_lanes(timeline: Timeline, rank: int, begin: float, end: float, label: str = "") -> RankLanes:
    """The bars of one rank within [begin, end]."""
    lane = _within(timeline, timeline.lane(rank), begin, end)
    communicates = np.fromiter((timeline.program.ops[index].collective is not None for index in lane.tolist()), dtype=bool, count=len(lane))
    computing = lane[~communicates]
    compute, boxes = _compute(timeline, computing, begin, end)
    beside, exposed = {}, {}
    others = _within(timeline, np.union1d(timeline.beside(rank), lane[communicates]), begin, end)
    for key in ROWS:
        code = KEYS.index(key)
        own = others[timeline.kind[others] == code]
        if len(own):
            cover = lane[timeline.kind[lane] != code]
            beside[key] = _clipped(timeline, own, begin, end)
            exposed[key] = _uncovered(timeline, own, cover, begin, end)
    return RankLanes(rank, label or f"rank {rank}", compute, boxes, beside, exposed)


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


def _compute(timeline: Timeline, ops: Indices, begin: float, end: float) -> tuple[dict[str, Bars], tuple[Box, ...]]:
    """Bars by role, one per stretch of equal work without a gap, and the boxes they make up."""
    if not len(ops):
        return {}, ()
    roles, keys = _labels(timeline, ops)
    bars = _clipped(timeline, ops, begin, end)
    names = {name: code for code, name in enumerate(dict.fromkeys(roles))}
    role_codes = np.array([names[name] for name in roles])
    key_codes = np.array(keys)
    changes = key_codes[1:] != key_codes[:-1]
    apart = bars.begin[1:] > bars.end[:-1] + timeline.tolerance
    first = np.flatnonzero(np.concatenate(([True], changes | apart | (role_codes[1:] != role_codes[:-1]))))
    last = np.concatenate((first[1:] - 1, [len(ops) - 1]))
    merged = Bars(bars.begin[first], bars.end[last])
    compute = {name: Bars(merged.begin[role_codes[first] == code], merged.end[role_codes[first] == code]) for name, code in names.items()}
    return compute, tuple(_boxes(timeline, ops, merged, [roles[place] for place in first], key_codes[first], first))


def _labels(timeline: Timeline, ops: Indices) -> tuple[list[str], list[int]]:
    """Role of each op, and a number that changes where the box does."""
    known: dict[tuple[str, str], tuple[str, tuple[str, str]]] = {}
    numbers: dict[tuple[str, str, int], int] = {}
    roles, keys = [], []
    for index in ops.tolist():
        op = timeline.program.ops[index]
        if (found := known.get((op.kind, op.name))) is None:
            name = role(op.kind, op.name)
            stage = op.name.split(" ", 1)[0][1:] if name in _SLOT_OF else ""
            found = known[op.kind, op.name] = (name, (_SLOT_OF.get(name, name), stage if stage.isdigit() else ""))
        roles.append(found[0])
        keys.append(numbers.setdefault((*found[1], op.instance), len(numbers)))
    return roles, keys


def _boxes(timeline: Timeline, ops: Indices, merged: Bars, roles: Sequence[str], keys: Indices, places: Indices) -> list[Box]:
    """Group neighbouring bars of one pass."""
    boxes = []
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    stops = np.concatenate((starts[1:], [len(keys)]))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        op = timeline.program.ops[int(ops[places[start]])]
        kind = _SLOT_OF.get(roles[start])
        if kind is None or op.instance < 0:
            continue
        lengths = merged.end[start:stop] - merged.begin[start:stop]
        largest = roles[start + int(lengths.argmax())]
        boxes.append(Box(float(merged.begin[start]), float(merged.end[stop - 1]), kind, largest, op.instance, stop == start + 1))
    return boxes
