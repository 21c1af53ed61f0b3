"""What the page's scripts read: spans, their kinds and the memory of every rank, squeezed, and what was left out.

Budget: a page stays below a megabyte whatever the run. What does not fit is merged or left out, in an order that keeps the
shape of the step, and the page says so.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from parsim.columns import visible
from parsim.report.page.columns import Column, Integers, pack
from parsim.report.page.merged import merged
from parsim.report.page.spans import SpanKind, Spans, spans_of
from parsim.report.plots import style
from parsim.report.quantities import seconds
from parsim.report.verdict import rank_class, shortened

if TYPE_CHECKING:
    from parsim.report.measured import DeviceMemory
    from parsim.report.metrics import Metrics
    from parsim.report.repeats import Repeat

MOST_SPANS = 500_000
MANY_PASSES = 96
"""of a rank: a step of more cannot be read at once"""
MOST_TEXT = 600_000
"""bytes of compressed text for all runs of a page together [B]"""
MOST_RANKS = 64
FEW_RANKS = 16
CURVE_POINTS = 24_000
"""levels over time, all ranks of a page together"""
CURVE_MOST, CURVE_LEAST = 4_000, 500


@dataclass(frozen=True)
class Payload:
    """One run as the scripts read it."""

    facts: dict[str, Any]
    """names and tables"""
    packed: dict[str, Any]
    """columns"""
    note: str
    """what the page does not show, in words; empty: nothing"""
    repeats: str
    """how often the step repeats itself, in words; empty: not so often that it matters"""
    spans: int


def payload(report: Metrics, *, parts: int = 1) -> Payload:
    """The data of one run on a page of `parts` runs."""
    undisturbed, report = report, report.shown
    ranks = _simulated(report)
    chosen, most = _spread(report, ranks, MOST_RANKS), MOST_SPANS // parts
    if _count(report, chosen) > 8 * most:  # not worth merging them all
        chosen = _spread(report, ranks, FEW_RANKS)
    spans = spans_of(report, chosen)
    if simplified := len(spans) > most:
        spans = merged(spans)
    packed = pack(_columns(spans))
    if len(packed["blob"]) > MOST_TEXT // parts and not simplified:
        spans, simplified = merged(spans), True
        packed = pack(_columns(spans))
    if len(packed["blob"]) > MOST_TEXT // parts and len(chosen) > FEW_RANKS:
        chosen = _spread(report, ranks, FEW_RANKS)
        spans = merged(spans_of(report, chosen))
        packed = pack(_columns(spans))
    memory, curves = _memory(report, chosen, spans.ticks_per_second, parts)
    packed = pack(_columns(spans) | curves)
    place = {rank: number for number, rank in enumerate(chosen)}
    names = [field.name for field in fields(SpanKind)]
    facts = {
        "name": report.measured.name,
        "ticks_per_second": spans.ticks_per_second,
        "length": round((report.end - report.begin) * spans.ticks_per_second),
        "ranks": [_rank(report, rank) for rank in chosen],
        "rows": [[place[row.rank], row.kind, row.first, row.count, row.bare_first, row.bare_count] for row in spans.rows],
        "fields": names,
        "whats": list(map(attrgetter(*names), spans.whats)),
        "memory": memory,
    }
    passes = 2 * report.measured.ranks.micro_batches * report.measured.schedule.virtual_stages
    found = report.repeats if passes > MANY_PASSES else ()
    if found:
        facts["periods"] = [_ticks(report, spans, one) for one in found]
    if report.measured.marks:
        facts["marks"] = [[round((time - report.begin) * spans.ticks_per_second), text] for time, text in report.measured.marks]
    note = _note(report, ranks, chosen, simplified)
    if report is not undisturbed:
        note = f"Timeline and memory over time are those of the step with its faults; all else is the step without them. {note}".rstrip()
    return Payload(facts, packed, note, _repeats(found), len(spans))


def text(payloads: Sequence[Payload]) -> str:
    """The content of the page's data element; base64 inside, so that no name can end it."""
    facts = _visible({"runs": [item.facts for item in payloads], "styles": _styles()})
    plain = json.dumps(facts, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    squeezed = base64.b64encode(gzip.compress(plain, compresslevel=9, mtime=0)).decode("ascii")
    return json.dumps({"facts": squeezed, "columns": [item.packed for item in payloads]}, separators=(",", ":"))


def _visible(node: Any) -> Any:
    """Texts as they may be shown: the page writes them as they are."""
    if isinstance(node, str):
        return visible(node)
    if isinstance(node, dict):
        return {_visible(key): _visible(item) for key, item in node.items()}
    return [_visible(item) for item in node] if isinstance(node, (list, tuple)) else node


def _simulated(report: Metrics) -> list[int]:
    """Representative ranks by stage."""
    groups = sorted(report.measured.classes, key=lambda group: (group.stage or 0, group.rank))
    return [group.rank for group in groups if group.rank in report.timeline.lanes]


def _spread(report: Metrics, ranks: list[int], most: int) -> list[int]:
    """At most `most` of them: those that the report speaks of, and others between the first and the last."""
    if len(ranks) <= most:
        return ranks
    worst = report.worst_device
    wanted = {report.breakdown_rank, report.bottleneck_rank} | ({worst.rank} if worst is not None else set())
    places = np.linspace(0, len(ranks) - 1, most - len(wanted)).round().astype(int).tolist()
    kept = wanted | {ranks[place] for place in places}
    return [rank for rank in ranks if rank in kept]


def _ticks(report: Metrics, spans: Spans, one: Repeat) -> list[float]:
    """Begin and length of a period in ticks, and how often it comes."""
    return [round((one.begin - report.begin) * spans.ticks_per_second), one.period * spans.ticks_per_second, one.count]


def _repeats(found: Sequence[Repeat]) -> str:
    each = [f"{one.count:,} equal periods of {seconds(one.period)} from {seconds(one.begin)} to {seconds(one.end)}" for one in found]
    return " and ".join(each)


def _count(report: Metrics, ranks: Sequence[int]) -> int:
    """Spans of these ranks; those of two lanes count twice."""
    return sum(len(column) for rank in ranks for column in report.timeline.lanes[rank].values())


def _columns(spans: Spans) -> dict[str, Column]:
    """Differences instead of values: gap to the end before, length less the usual one, distance to the cause."""
    own = np.arange(len(spans), dtype=np.int64)
    usual = np.array([what.nominal for what in spans.whats], dtype=np.int64)
    heads = [row.first for row in spans.rows if row.count]
    bare_heads = [row.bare_first for row in spans.rows if row.bare_count]
    return {
        "gap": _gaps(spans.start, spans.end, heads),
        "length": spans.end - spans.start - (usual[spans.what] if len(usual) else 0),
        "what": spans.what,
        "instance": spans.instance + 1,
        "cause": np.where(spans.cause < 0, 0, own - spans.cause),
        "share": spans.share,
        "busy": 255 - spans.busy,
        "bare_gap": _gaps(spans.bare_start, spans.bare_end, bare_heads),
        "bare_length": spans.bare_end - spans.bare_start,
        "critical": np.diff(spans.critical, prepend=0),
    }


def _gaps(start: Column, end: Column, heads: list[int]) -> Column:
    """From the end before, or from 0 at the head of a row."""
    before = np.concatenate((np.zeros(min(1, len(end)), dtype=np.int64), end[:-1]))
    before[heads] = 0
    return start - before


def _rank(report: Metrics, rank: int) -> dict[str, Any]:
    group = rank_class(report.measured, rank)
    staged = report.measured.schedule.stages > 1 and group.stage is not None
    label = f"stage {group.stage}" if staged else f"rank {rank}"
    if staged and sum(other.stage == group.stage for other in report.measured.classes) > 1:
        label += f" · {rank}"
    stands_for = f"rank{'s' * (group.count > 1)} {shortened(group.ranks)}"
    return {"rank": rank, "label": label, "count": group.count, "ranks": stands_for, "stage": group.stage}


def _memory(report: Metrics, chosen: Sequence[int], per_second: int, parts: int) -> tuple[list[dict[str, Any]], dict[str, Column]]:
    """Levels over time of the ranks that have them; times and levels as differences, in units of `quantum` bytes."""
    devices = [device for device in report.measured.memory.devices if device.drawn is not None and device.rank in chosen]
    worst = report.worst_device
    devices.sort(key=lambda device: (worst is None or device.rank != worst.rank, chosen.index(device.rank)))
    points = min(CURVE_MOST, max(CURVE_LEAST, CURVE_POINTS // max(1, parts * len(devices))))
    tables: list[dict[str, Any]] = []
    columns: dict[str, Column] = {}
    for number, device in enumerate(devices):
        table, own = _levels(report, device, per_second, points)
        tables.append(table)
        columns |= {f"memory {number} {name}": column for name, column in own.items()}
    return tables, columns


def _levels(report: Metrics, device: DeviceMemory, per_second: int, points: int) -> tuple[dict[str, Any], dict[str, Integers]]:
    if device.curve is None:
        return {}, {}
    times, levels = device.curve.thinned(points)
    inside = (times <= report.end) & (times >= report.begin)
    before = np.flatnonzero(times < report.begin)[-1:]  # what holds when the stretch begins
    kept = np.concatenate((before, np.flatnonzero(inside)))
    ticks = np.rint(np.maximum(times[kept] - report.begin, 0.0) * per_second).astype(np.int64)
    whole = {name: np.rint(level[kept]).astype(np.int64) for name, level in levels.items() if level.any()}
    quantum = int(np.gcd.reduce(np.concatenate([np.empty(0, dtype=np.int64), *whole.values()]))) or 1
    table = {
        "rank": device.rank,
        "capacity": report.capacity(device),
        "peak": device.device_used_bytes,
        "peak_tick": None if device.peak_time_s is None else round((device.peak_time_s - report.begin) * per_second),
        "quantum": quantum,
        "categories": list(whole),
    }
    return table, {"time": np.diff(ticks, prepend=0)} | {name: np.diff(level // quantum, prepend=0) for name, level in whole.items()}


def _note(report: Metrics, ranks: Sequence[int], chosen: Sequence[int], simplified: bool) -> str:
    """What the timeline shows, and how to see the rest."""
    total, words = report.measured.ranks.total, []
    if len(chosen) < len(ranks):
        words.append(f"Showing {len(chosen)} of {len(ranks)} kinds of ranks")
    elif len(chosen) < total:
        words.append(f"Showing {len(chosen)} of {total:,} ranks: each of the others does the same as one of these")
    if simplified:
        words.append(f"{'passes' if words else 'Showing passes'} only, their kernels merged; a trace (--trace) has kernels of some ranks")
    return "; ".join(words) + "." if words else ""


def _styles() -> dict[str, Mapping[str, Any]]:
    roles = {name: {"colour": look.colour, "label": look.label, "text": look.text} for name, look in style.ROLES.items()}
    categories = {name: {"colour": look.colour, "label": look.label} for name, look in style.CATEGORIES.items()}
    return {"roles": roles, "categories": categories}
