"""What the page's timeline holds: rows of spans per rank, who each span waited for, and what is exposed of it.

A row is a queue: its spans are in order and do not overlap, so that one binary search finds what is visible. Times are
whole ticks; start and end are rounded first and the length is their difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from parsim.report.communication import exposed
from parsim.report.critical_path import binding
from parsim.report.lanes import ROWS
from parsim.report.page.columns import Integers
from parsim.report.page.dependencies import visible
from parsim.report.timeline import KEYS, Floats, Indices, sweep

if TYPE_CHECKING:
    from parsim.report.report import Report

FULL = 255
"""a share of one"""
_ROLE_OF = {"F": "forward", "B": "backward", "W": "weight"}
_COMPUTE = frozenset(KEYS.index(key) for key in ("compute", "recompute", "optimizer", "launch", "other"))


@dataclass(frozen=True)
class What:
    """A kind of span: everything that its repetitions share."""

    name: str
    kind: str
    """class of time"""
    role: str
    """what it is drawn as"""
    slot: str
    """``F3``: forward of stage 3; empty outside of passes"""
    nominal: int = 0
    """ticks that it usually takes"""
    flop: float | None = None
    moved: float | None = None
    """read and written in device memory [B]"""
    bytes: int | None = None
    """of a transfer, by nccl-tests semantics"""
    transfer: str = ""
    members: int = 0
    """GPUs that take part"""
    merged: int = 0
    """how many ops one span stands for; 0: one"""
    again: float = 0.0
    """which part of a merged pass is recomputation"""


@dataclass(frozen=True)
class Row:
    """Where the spans of a row are: `count` of them from `first` on."""

    rank: int
    kind: str
    """compute, or a class of communication, offload, optimizer"""
    first: int
    count: int
    bare_first: int
    bare_count: int
    """its stretches that nothing hides, of spans that are exposed in parts"""


@dataclass(frozen=True)
class Spans:
    """All spans of a page, sorted by row and start, as columns."""

    rows: tuple[Row, ...]
    whats: tuple[What, ...]
    what: Integers
    start: Integers
    end: Integers
    instance: Integers
    """micro-batch, -1 for none"""
    cause: Integers
    """the span that ended last among those it waited for, -1 for none"""
    share: Integers
    """exposed part of communication, 0 to 255"""
    busy: Integers
    """which part of a span is work, 0 to 255; below 255 only where ops were merged"""
    bare_start: Integers
    bare_end: Integers
    critical: Integers
    """spans of the critical path, first to last"""
    ticks_per_second: int

    def __len__(self) -> int:
        return len(self.what)


def ticks_per_second(stretch: float) -> int:
    """Nanoseconds, or a power of ten finer where the whole step has fewer than a million of them."""
    return 10 ** max(9, 6 - math.floor(math.log10(stretch))) if stretch > 0 else 10**9


def spans_of(report: Report, ranks: Sequence[int]) -> Spans:
    """Every op of `ranks` that takes at least a tick within the measured stretch."""
    timeline = report.timeline
    per_second = ticks_per_second(report.end - report.begin)
    collected = _Collected(report, per_second)
    for rank in ranks:
        collected.add_rank(rank)
    columns = collected.columns()
    op, starts = columns["op"], columns["start"]
    shown = np.zeros(len(timeline.start), dtype=bool)
    shown[op] = True
    waits = visible(binding(timeline), shown)
    path = report.path.ops[::-1]
    first = np.full(len(timeline.start), -1, dtype=np.int64)
    first[op[::-1]] = np.arange(len(op))[::-1]
    return Spans(
        rows=tuple(collected.rows),
        whats=collected.whats,
        what=columns["what"],
        start=starts,
        end=columns["end"],
        instance=columns["instance"],
        cause=_own_first(waits[op], op, columns["rank"], first),
        share=columns["share"],
        busy=np.full(len(op), FULL, dtype=np.int64),
        bare_start=collected.bare("start"),
        bare_end=collected.bare("end"),
        critical=first[path][first[path] >= 0],
        ticks_per_second=per_second,
    )


def _own_first(wanted: Indices, op: Indices, rank: Indices, first: Indices) -> Integers:
    """For each span the span of the wanted op on the same rank, else that on the first rank that has one."""
    largest = int(rank.max(initial=0)) + 1
    keys = op * largest + rank
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted * largest + rank)
    place = np.minimum(place, max(0, len(order) - 1))
    found = order[place] if len(order) else place
    here = (op[found] == wanted) & (rank[found] == rank) if len(order) else np.empty(0, dtype=bool)
    return np.where(wanted < 0, -1, np.where(here, found, first[wanted])).astype(np.int64)


class _Collected:
    """Rows while they are being found."""

    def __init__(self, report: Report, per_second: int) -> None:
        self.report = report
        self.timeline = report.timeline
        self.per_second = per_second
        self.rows: list[Row] = []
        self._whats: dict[What, int] = {}
        self._parts: dict[str, list[Integers]] = {name: [] for name in ("op", "rank", "what", "start", "end", "instance", "share")}
        self._bare: dict[str, list[Integers]] = {"start": [], "end": []}
        self._count = self._bare_count = 0

    @property
    def whats(self) -> tuple[What, ...]:
        return tuple(self._whats)

    def columns(self) -> dict[str, Integers]:
        return {name: np.concatenate([np.empty(0, dtype=np.int64), *parts]) for name, parts in self._parts.items()}

    def bare(self, name: str) -> Integers:
        return np.concatenate([np.empty(0, dtype=np.int64), *self._bare[name]])

    def add_rank(self, rank: int) -> None:
        """The compute row, then the rows of each class beside it."""
        timeline = self.timeline
        lane = timeline.lane(rank)
        computes = np.isin(timeline.kind[lane], list(_COMPUTE))
        self._add_row(rank, "compute", lane[computes])
        beside = np.sort(np.concatenate((timeline.beside(rank), lane[~computes])))
        for key in (*ROWS, "launch", "other"):
            own = beside[timeline.kind[beside] == KEYS.index(key)]
            for part in self._apart(own):
                self._add_row(rank, key, part)

    def _apart(self, ops: Indices) -> list[Indices]:
        """Split ops into as few rows as are needed for none to overlap, each in the order of time."""
        start, end = self._times(ops)
        order = np.lexsort((end, start))
        order = order[end[order] > start[order]]
        ops, start, end = ops[order], start[order], end[order]
        if not len(ops) or (end[:-1] <= start[1:]).all():
            return [ops] if len(ops) else []
        free: list[int] = []
        parts: list[list[int]] = []
        for index, begin, stop in zip(ops.tolist(), start.tolist(), end.tolist(), strict=True):
            row = next((number for number, until in enumerate(free) if until <= begin), len(free))
            if row == len(free):
                free.append(0)
                parts.append([])
            free[row] = stop
            parts[row].append(index)
        return [np.array(part, dtype=np.int64) for part in parts]

    def _times(self, ops: Indices) -> tuple[Integers, Integers]:
        """Start and end in ticks within the measured stretch."""
        report, scale = self.report, self.per_second
        limits = report.begin, report.end
        start, end = (np.clip(column[ops], *limits) - report.begin for column in (self.timeline.start, self.timeline.end))
        return np.rint(start * scale).astype(np.int64), np.rint(end * scale).astype(np.int64)

    def _add_row(self, rank: int, kind: str, ops: Indices) -> None:
        start, end = self._times(ops)
        start = np.maximum(start, np.concatenate((start[:1], np.maximum.accumulate(end)[:-1])))  # rounding is no overlap
        kept = end > start
        ops, start, end = ops[kept], start[kept], end[kept]
        if not len(ops) and kind != "compute":
            return
        share = np.zeros(len(ops), dtype=np.int64)
        first = self._bare_count
        if kind not in ("compute", "launch", "other", "optimizer") and len(ops):
            length = self.timeline.end[ops] - self.timeline.start[ops]
            part = exposed(self.timeline, rank, ops) / np.maximum(length, 1e-300)
            share = np.clip(np.rint(part * FULL), 0, FULL).astype(np.int64)
            self._add_bare(rank, ops[(share > 0) & (share < FULL)])
        self.rows.append(Row(rank, kind, self._count, len(ops), first, self._bare_count - first))
        self._count += len(ops)
        for name, column in (("op", ops), ("start", start), ("end", end), ("share", share), ("rank", np.full(len(ops), rank))):
            self._parts[name].append(column)
        self._parts["what"].append(self._numbered(ops))
        self._parts["instance"].append(np.maximum(-1, self.timeline.columns.instance[ops]))

    def _add_bare(self, rank: int, ops: Indices) -> None:
        """The stretches of `ops` under which the compute lane is empty."""
        if not len(ops):
            return
        timeline, lane = self.timeline, np.setdiff1d(self.timeline.lane(rank), ops)
        layers: list[tuple[Floats, Floats]] = [(timeline.start[part], timeline.end[part]) for part in (lane, ops)]
        times, top = sweep(layers, self.report.begin, self.report.end)
        ticks = np.rint((times - self.report.begin) * self.per_second).astype(np.int64)
        wanted = np.flatnonzero((top == 1) & (np.diff(ticks) > 0))
        starts, ends = ticks[wanted], ticks[wanted + 1]
        fresh = np.concatenate(([True], starts[1:] > ends[:-1])) if len(starts) else np.empty(0, dtype=bool)
        last = np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(ends) - 1])) if len(ends) else np.empty(0, dtype=np.int64)
        self._bare["start"].append(starts[fresh])
        self._bare["end"].append(ends[last])
        self._bare_count += int(fresh.sum())

    def _numbered(self, ops: Indices) -> Integers:
        """The number of what each op of a row is; one without a name of its own belongs to the pass before it."""
        if not len(ops):
            return ops
        columns, slots = self.timeline.columns, self.timeline.slots
        kind, instance = columns.kind[ops], columns.instance[ops]
        fresh = slots.staged[kind] | (np.diff(instance, prepend=-1) != 0)
        begun = np.maximum.accumulate(np.where(fresh, np.arange(len(ops)), -1))
        passes = np.where(begun < 0, -1, kind[begun])  # the pass is that of this kind of op
        pairs = np.unique(kind * (len(columns.examples) + 1) + passes + 1, return_inverse=True)[1]
        lengths, length = self._lengths
        _, first, which = np.unique(pairs * len(lengths) + length[ops], return_index=True, return_inverse=True)
        numbers = np.empty(len(first), dtype=np.int64)
        for place in np.argsort(first).tolist():
            at = first[place]
            described = self._describe(int(kind[at]), int(passes[at]), float(columns.duration[ops[at]]))
            numbers[place] = self._whats.setdefault(described, len(self._whats))
        return numbers[which]

    @cached_property
    def _lengths(self) -> tuple[Floats, Integers]:
        """All durations of ops, and the number of each op's; transfers have none."""
        columns = self.timeline.columns
        known, number = np.unique(columns.duration, return_inverse=True)
        return known, np.where(columns.flags(lambda op: op.collective is not None), 0, number)

    def _describe(self, number: int, passes: int, duration: float) -> What:
        """An op of this kind and duration in the pass that the kind of op `passes` names (-1: none)."""
        op, slots = self.timeline.columns.examples[number], self.timeline.slots
        kind = op.kind if op.kind in KEYS else "other"
        name, drawn = op.name, slots.roles[number]
        if (transfer := op.collective) is not None:
            return What(name, kind, drawn, "", bytes=transfer.bytes, transfer=transfer.kind, members=len(transfer.group))
        slot = "" if passes < 0 else slots.letters[passes] + slots.stages[passes]
        if kind in ("compute", "recompute") and slot and not slots.stages[number]:
            drawn = drawn if kind == "recompute" else _ROLE_OF[slot[0]]
            name = f"{slot} {name}"
        slot = slot if kind in ("compute", "recompute") else ""
        flop, moved = self.timeline.program.work.get((op.name, duration), (None, None))
        return What(name, kind, drawn, slot, round(duration * self.per_second), flop, moved)
