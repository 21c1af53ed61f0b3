"""Fewer spans where there are too many: the kernels of a pass become one span, and so does the communication beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parsim.report.page.columns import Column, Integers
from parsim.report.page.spans import FULL, SpanKind, SpanRow, Spans
from parsim.report.timeline import Floats, Indices

_KEPT = ("pipeline_comm",)
"""rows whose spans already are one per pass"""


def merged(spans: Spans) -> Spans:
    """One span per pass on compute rows, and one per pass and row of communication; `busy` says how much of each is work."""
    heads = np.concatenate([np.empty(0, dtype=np.int64), *_heads(spans)])
    tails = np.append(heads[1:], len(spans)) - 1
    group = np.repeat(np.arange(len(heads), dtype=np.int32), tails + 1 - heads)
    length = (spans.end - spans.start).astype(np.float64)
    total = _sums(length, heads)
    start, end = spans.start[heads], spans.end[tails]
    cause = spans.cause[heads]
    critical = group[spans.critical]
    fresh = np.ones(len(critical), dtype=bool)
    fresh[1:] = critical[1:] != critical[:-1]
    whats = _MergedKinds(spans, heads, tails, length)
    return replace(
        spans,
        rows=tuple(_row(row, heads) for row in spans.rows),
        what=whats.column,
        whats=tuple(whats.known),
        start=start,
        end=end,
        instance=spans.instance[heads],
        cause=np.where(cause < 0, -1, group[cause]),
        share=np.rint(_sums(length * spans.share, heads) / np.maximum(total, 1.0)).astype(np.int64),
        busy=np.clip(np.rint(FULL * total / np.maximum(end - start, 1)), 0, FULL).astype(np.int64),
        critical=critical[fresh],
    )


def _sums(values: Floats, heads: Indices) -> Floats:
    return np.add.reduceat(values, heads) if len(heads) else np.empty(0)


def _row(row: SpanRow, heads: Indices) -> SpanRow:
    first, last = np.searchsorted(heads, (row.first, row.first + row.count))
    return replace(row, first=int(first), count=int(last - first))


def _heads(spans: Spans) -> list[Integers]:
    """Per row the spans with which a new group begins."""
    slots = {slot: number for number, slot in enumerate(dict.fromkeys(what.slot for what in spans.whats), 1) if slot}
    slot_of = np.array([slots.get(what.slot, 0) for what in spans.whats], dtype=np.int64)
    heads: list[Integers] = []
    passes: Column = np.empty(0, dtype=np.int64)
    for row in spans.rows:
        place = np.arange(row.first, row.first + row.count)
        if row.kind == "compute":
            slot, instance = slot_of[spans.what[place]], spans.instance[place]
            new = (slot[1:] != slot[:-1]) | (instance[1:] != instance[:-1]) | (slot[1:] == 0)
        else:
            window = np.searchsorted(passes, spans.start[place], side="right")
            new = (window[1:] != window[:-1]) | (row.kind in _KEPT)
        own = place[np.concatenate(([True], new))] if len(place) else place
        if row.kind == "compute":
            passes = spans.start[own]
        heads.append(own)
    return heads


@dataclass
class _MergedKinds:
    """The kinds of the merged spans, each once, and the kind of every span."""

    spans: Spans
    heads: Integers
    tails: Integers
    length: Floats
    """of every span [ticks]"""

    def __post_init__(self) -> None:
        self.known: dict[SpanKind, int] = {}
        spans, heads, numbers = self.spans, self.heads, self.spans.what
        repeated = np.array([what.role == "recompute" for what in spans.whats], dtype=bool)[numbers]
        again = _sums(self.length * repeated, heads) / np.maximum(_sums(self.length, heads), 1.0)
        facts = (
            numbers[heads], self.tails - heads + 1, self._total("flop"), self._total("moved"), self._total("bytes"), np.round(again, 2)
        )  # fmt: skip
        first, self.column = _distinct(facts)
        of_first = [self._number(spans.whats[row[0]], *row[1:]) for row in zip(*(fact[first].tolist() for fact in facts), strict=True)]
        self.column = np.array(of_first, dtype=np.int64)[self.column]

    def _total(self, fact: str) -> Floats:
        """What the spans of each group have of a fact together."""
        of_kind = np.array([getattr(what, fact) or 0 for what in self.spans.whats], dtype=np.float64)
        return _sums(of_kind[self.spans.what], self.heads)

    def _number(self, what: SpanKind, count: float, flop: float, moved: float, size: float, again: float) -> int:
        if count > 1:
            kind = "backward" if what.slot.startswith("B") else what.role
            name = what.slot or f"{what.kind.removesuffix('_comm')} communication"
            what = SpanKind(
                name, what.kind, kind, what.slot, flop=flop or None, moved=moved or None, bytes=round(size) or None, members=what.members,
                merged=int(count), again=again,
            )  # fmt: skip
        return self.known.setdefault(what, len(self.known))


def _distinct(columns: Sequence[np.ndarray[tuple[int], Any]]) -> tuple[Indices, Indices]:
    """Where each distinct row of these columns first is, in the order in which they come, and per row the number of its like."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        number = np.unique(number * len(values) + place, return_inverse=True)[1]
    _, first = np.unique(number, return_index=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[number]
