"""What the page's timeline holds: rows of spans per rank, who each span waited for, and what is exposed of it.

A row is a queue: its spans are in order and do not overlap, so that one binary search finds what is visible. Times are
whole ticks; start and end are rounded first and the length is their difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from parsim.report.communication import exposed
from parsim.report.critical_path import binding
from parsim.report.lanes import ROWS
from parsim.report.page.columns import Column, Integers
from parsim.report.timeline import KEYS, Flags, Floats, Indices, sweep

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics


def visible(causes: Column, shown: Flags) -> Column:
    """For each op the nearest op on its chain of causes that is shown, -1 for none.

    Chains lead through ops that are not shown: of no length, or of ranks that are left out.
    """
    nowhere = len(causes)
    step = np.append(np.where(causes < 0, nowhere, causes), causes.dtype.type(nowhere))
    jump = np.where(np.append(shown, True), np.arange(nowhere + 1, dtype=causes.dtype), step)
    while True:
        further = jump[jump]
        if (further == jump).all():
            break
        jump = further
    nearest = jump[step[:-1]]
    return np.where(nearest == nowhere, -1, nearest)


FULL = 255
"""a share of one"""
_ROLE_OF = {"F": "forward", "B": "backward", "W": "weight"}
_COMPUTE = frozenset(KEYS.index(key) for key in ("compute", "recompute", "optimizer", "launch", "other"))


@dataclass(frozen=True)
class SpanKind:
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
class SpanRow:
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

    rows: tuple[SpanRow, ...]
    whats: tuple[SpanKind, ...]
    what: Column
    start: Column
    end: Column
    instance: Column
    """micro-batch, -1 for none"""
    cause: Column
    """the span that ended last among those it waited for, -1 for none"""
    share: Column
    """exposed part of communication, 0 to 255"""
    busy: Column
    """which part of a span is work, 0 to 255; below 255 only where ops were merged"""
    bare_start: Column
    bare_end: Column
    critical: Column
    """spans of the critical path, first to last"""
    ticks_per_second: int

    def __len__(self) -> int:
        return len(self.what)


def ticks_per_second(stretch: float) -> int:
    """Nanoseconds, or a power of ten finer where the whole step has fewer than a million of them."""
    return 10 ** max(9, 6 - math.floor(math.log10(stretch))) if stretch > 0 else 10**9


def spans_of(report: Metrics, ranks: Sequence[int]) -> Spans:
    """Every op of `ranks` that takes at least a tick within the measured stretch."""
    timeline = report.timeline
    per_second = ticks_per_second(report.end - report.begin)
    causes = binding(timeline).astype(np.int32)
    collected = _SpanRows(report, per_second, most=sum(len(timeline.lane(rank)) + len(timeline.beside(rank)) for rank in ranks))
    for rank in ranks:
        collected.add_rank(rank)
    columns = collected.columns
    op, starts = columns["op"], columns["start"]
    shown = np.zeros(len(timeline.start), dtype=bool)
    shown[op] = True
    waits = visible(causes, shown)
    path = report.path.ops[::-1]
    first = np.full(len(timeline.start), -1, dtype=np.int32)
    first[op[::-1]] = np.arange(len(op), dtype=np.int32)[::-1]
    return Spans(
        rows=tuple(collected.rows),
        whats=collected.whats,
        what=columns["what"],
        start=starts,
        end=columns["end"],
        instance=columns["instance"],
        cause=_own_first(waits[op], op, collected.rows, first),
        share=columns["share"],
        busy=np.broadcast_to(np.uint8(FULL), len(op)),
        bare_start=collected.bare("start"),
        bare_end=collected.bare("end"),
        critical=first[path][first[path] >= 0],
        ticks_per_second=per_second,
    )


def _own_first(wanted: Column, op: Column, rows: Sequence[SpanRow], first: Column) -> Column:
    """For each span the span of the wanted op on the same rank, else that on the first rank that has one."""
    spans = np.where(wanted < 0, -1, first[wanted])
    here = np.full_like(first, -1)
    for _, own_rows in groupby(rows, key=attrgetter("rank")):
        *_, last = found = list(own_rows)
        head, tail = found[0].first, last.first + last.count
        here[op[head:tail]] = np.arange(head, tail)
        own = here[wanted[head:tail]]
        spans[head:tail] = np.where((wanted[head:tail] >= 0) & (own >= 0), own, spans[head:tail])
        here[op[head:tail]] = -1
    return spans


class _SpanRows:
    """Rows of spans, rank by rank as they are added; at most `most` spans."""

    def __init__(self, report: Metrics, per_second: int, most: int) -> None:
        self.report = report
        self.timeline = report.timeline
        self.per_second = per_second
        self.rows: list[SpanRow] = []
        self._whats: dict[SpanKind, int] = {}
        self._columns: dict[str, Column] = {
            **{name: np.empty(most, dtype=np.int64) for name in ("start", "end")},
            **{name: np.empty(most, dtype=np.int32) for name in ("op", "what", "instance")},
            "share": np.empty(most, dtype=np.uint8),
        }
        self._bare: dict[str, list[Integers]] = {"start": [], "end": []}
        self._count = self._bare_count = 0
        examples = self.timeline.columns.examples
        kernels = [op.collective is None and op.kind in ("compute", "recompute") for op in examples]
        self._nameless = np.array(kernels, dtype=bool) & ~self.timeline.pass_kinds.staged
        """by kind of op: it belongs to a pass that its name does not tell"""
        self._of_kind = np.full(len(examples), -1, dtype=np.int64)
        """by kind of op: its number in `whats`, unless that depends on the pass"""
        self._marked = np.zeros(len(self.timeline.start), dtype=bool)

    @property
    def whats(self) -> tuple[SpanKind, ...]:
        return tuple(self._whats)

    @property
    def columns(self) -> dict[str, Column]:
        return {name: column[: self._count] for name, column in self._columns.items()}

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
        parts = []
        while len(ops):  # a row takes the first op, then the next that begins when that has ended, and so on
            following = [*np.searchsorted(start, end).tolist(), len(ops)]
            place, taken = 0, []
            while place < len(ops):
                taken.append(place)
                place = following[place]
            parts.append(ops[taken])
            left = np.ones(len(ops), dtype=bool)
            left[taken] = False
            ops, start, end = ops[left], start[left], end[left]
        return parts

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
        self.rows.append(SpanRow(rank, kind, self._count, len(ops), first, self._bare_count - first))
        place = slice(self._count, self._count + len(ops))
        self._count += len(ops)
        columns = {"op": ops, "what": self._numbered(ops), "start": start, "end": end, "share": share}
        columns["instance"] = np.maximum(-1, self.timeline.columns.instance[ops])
        for name, column in columns.items():
            self._columns[name][place] = column

    def _add_bare(self, rank: int, ops: Indices) -> None:
        """The stretches of `ops` under which the compute lane is empty."""
        if not len(ops):
            return
        timeline, lane = self.timeline, self.timeline.lane(rank)
        self._marked[ops] = True
        lane = lane[~self._marked[lane]]
        self._marked[ops] = False
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
        columns, slots = self.timeline.columns, self.timeline.pass_kinds
        kind, instance = columns.kind[ops], columns.instance[ops]
        fresh = slots.staged[kind] | (np.diff(instance, prepend=-1) != 0)
        begun = np.maximum.accumulate(np.where(fresh, np.arange(len(ops)), -1))
        # The pass is that of the kind of op with which it began; only kernels that do not name their own need it.
        passes = np.where(self._nameless[kind] & (begun >= 0), kind[begun], -1)
        whats = self._of_kind[kind]
        unknown = np.flatnonzero((whats < 0) | (passes >= 0))
        pairs, first, which = np.unique(
            kind[unknown] * (len(columns.examples) + 1) + passes[unknown] + 1, return_index=True, return_inverse=True
        )
        numbers = np.empty(len(pairs), dtype=np.int64)
        for place in np.argsort(first).tolist():
            number, within = divmod(int(pairs[place]), len(columns.examples) + 1)
            described = self._describe(number, within - 1)
            numbers[place] = self._whats.setdefault(described, len(self._whats))
            if not within:
                self._of_kind[number] = numbers[place]
        whats[unknown] = numbers[which]
        return whats

    def _describe(self, number: int, passes: int) -> SpanKind:
        """An op of this kind in the pass that the kind of op `passes` names (-1: its own, if it names one)."""
        op, slots = self.timeline.columns.examples[number], self.timeline.pass_kinds
        kind, duration = self.timeline.class_of(number), op.duration
        name, drawn = op.name, slots.roles[number]
        if (transfer := op.collective) is not None:
            return SpanKind(name, kind, drawn, "", bytes=transfer.bytes, transfer=transfer.kind, members=len(transfer.group))
        slot = ""
        if passes >= 0 or slots.staged[number]:
            named = number if passes < 0 else passes
            slot = slots.letters[named] + slots.stages[named]
        if kind in ("compute", "recompute") and slot and not slots.stages[number]:
            drawn = drawn if kind == "recompute" else _ROLE_OF[slot[0]]
            name = f"{slot} {name}"
        slot = slot if kind in ("compute", "recompute") else ""
        flop, moved = self.timeline.program.work.get((op.name, duration), (None, None))
        return SpanKind(name, kind, drawn, slot, round(duration * self.per_second), flop, moved)
