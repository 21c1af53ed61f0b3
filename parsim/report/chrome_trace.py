"""The trace as Chrome JSON, in the subset that Perfetto reads without complaint.

Times are microseconds with three decimals; start and end are rounded to ns first and the duration is their difference, so
that slices of a track never overlap. Process and thread ids are integers, a counter has one value, and flows begin and end
inside slices. Rows are written as text in batches: a million spans as dictionaries would take a third of a gigabyte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import numpy as np

import parsim
from parsim.report.measured import MemoryCurve
from parsim.report.plots.style import role
from parsim.report.quantities import GIB
from parsim.report.timeline import COMPUTE_LANE, Indices
from parsim.report.verdict import rank_class

if TYPE_CHECKING:
    from parsim.program.program import Op
    from parsim.report.report import Report

MOST_RANKS = 16
MOST_SPANS = 60_000
_BATCH = 10_000
_SAMPLES = 20_000
"""memory levels per rank"""


@dataclass(frozen=True)
class Written:
    """What a trace file holds and what was left out of it."""

    ranks: tuple[int, ...]
    spans: int
    spans_left_out: int
    """slices of the written ranks beyond the cap, and those that take less than a nanosecond"""


def write_chrome_trace(
    report: Report, out: TextIO, ranks: Sequence[int] | None = None, most_ranks: int = MOST_RANKS, most_spans: int = MOST_SPANS
) -> Written:
    """Write the trace of `ranks` (default: one per class, at most `most_ranks`) to an open text file.

    Raises ValueError if a rank was not simulated.
    """
    timeline = report.timeline
    if ranks is not None and (missing := [rank for rank in ranks if rank not in timeline.lanes]):
        message = f"rank {missing[0]} was not simulated; simulated ranks: {', '.join(map(str, timeline.ranks))}"
        raise ValueError(message)
    chosen = _choose(report, most_ranks) if ranks is None else list(ranks)
    tracks = [(rank, number, name, column) for rank in chosen for number, (name, column) in enumerate(_tracks(report, rank))]
    total = sum(len(column) for *_, column in tracks)
    horizon = _horizon(report, [column for *_, column in tracks], most_spans)
    rows = _Rows(out)
    out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    for rank in chosen:
        rows.extend(_process(report, rank))
    slices: dict[int, list[tuple[int, int, int, int]]] = {}
    for rank, number, name, column in tracks:
        rows.add(f'{{"ph":"M","name":"thread_name","pid":{rank},"tid":{number},"args":{{"name":{json.dumps(name)}}}}}')
        rows.add(f'{{"ph":"M","name":"thread_sort_index","pid":{rank},"tid":{number},"args":{{"sort_index":{number}}}}}')
        rows.extend(_slices(report, rank, number, column[timeline.start[column] <= horizon], slices))
    spans = rows.slices
    rows.extend(_flows(report, slices))
    for device in report.measured.memory.devices:
        if device.rank in chosen and device.curve is not None:
            rows.extend(_counters(device.rank, device.curve))
    rows.flush()
    written = Written(tuple(chosen), spans, total - spans)
    out.write(f'\n],"otherData":{json.dumps(_metadata(report, written))}}}\n')
    return written


class _Rows:
    """Events on their way to the file."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rows: list[str] = []
        self._begun = False
        self.slices = 0

    def add(self, row: str) -> None:
        self._rows.append(row)
        self.slices += row.startswith('{"ph":"X"')
        if len(self._rows) >= _BATCH:
            self.flush()

    def extend(self, rows: Iterable[str]) -> None:
        for row in rows:
            self.add(row)

    def flush(self) -> None:
        if self._rows:
            self._out.write((",\n" if self._begun else "") + ",\n".join(self._rows))
            self._begun = True
            self._rows.clear()


def _choose(report: Report, most: int) -> list[int]:
    ranks = [group.rank for group in sorted(report.measured.classes, key=lambda group: (group.stage or 0, group.rank))]
    ranks = [rank for rank in ranks if rank in report.timeline.lanes]
    if len(ranks) <= most:
        return ranks
    wanted = [rank for rank in (report.breakdown_rank, report.bottleneck_rank) if rank in ranks]
    spread = [ranks[round(place)] for place in np.linspace(0, len(ranks) - 1, max(1, most - len(set(wanted))))]
    kept = set(spread) | set(wanted)
    return [rank for rank in ranks if rank in kept]


def _tracks(report: Report, rank: int) -> list[tuple[str, Indices]]:
    """The lanes of a rank, compute first."""
    lanes = report.timeline.lanes[rank]
    return sorted(lanes.items(), key=lambda item: (item[0] != COMPUTE_LANE, item[0]))


def _horizon(report: Report, columns: Sequence[Indices], most: int) -> float:
    """The start of the last slice within the cap [s]."""
    total = sum(map(len, columns))
    if total <= most:
        return float("inf")
    starts = np.concatenate([report.timeline.start[column] for column in columns])
    return float(np.partition(starts, most - 1)[most - 1])


def _process(report: Report, rank: int) -> Iterator[str]:
    group = rank_class(report.measured, rank)
    stage = "" if group.stage is None else f" · stage {group.stage}"
    same = f" · stands for ranks {group.ranks}" if group.count > 1 else ""
    name = json.dumps(f"rank {rank}{stage}{same}", ensure_ascii=False)
    yield f'{{"ph":"M","name":"process_name","pid":{rank},"args":{{"name":{name}}}}}'
    yield f'{{"ph":"M","name":"process_sort_index","pid":{rank},"args":{{"sort_index":{(group.stage or 0) * 1_000_000 + rank}}}}}'


def _micro(nanoseconds: int) -> str:
    """Microseconds with three decimals, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _slices(report: Report, rank: int, number: int, column: Indices, sends: dict[int, list[tuple[int, int, int, int]]]) -> Iterator[str]:
    """The complete events of one track; remembers where sends are, for the flows."""
    timeline = report.timeline
    starts = np.rint(timeline.start[column] * 1e9).astype(np.int64).tolist()
    ends = np.rint(timeline.end[column] * 1e9).astype(np.int64).tolist()
    texts: dict[tuple[str, str, int], str] = {}
    free = 0
    for index, begin, end in zip(column.tolist(), starts, ends, strict=True):
        start = max(begin, free)
        if end <= start:
            continue
        free = end
        op = timeline.program.ops[index]
        key = (op.name, op.kind, id(op.collective))
        if (text := texts.get(key)) is None:
            text = texts[key] = _text(op, number)
        if op.collective is not None and op.collective.kind == "send":
            sends.setdefault(index, []).append((rank, number, start, end))
        instance = f',"micro-batch":{op.instance}' if op.instance >= 0 else ""
        yield (f'{{"ph":"X","pid":{rank},"tid":{number},"ts":{_micro(start)},"dur":{_micro(end - start)},{text}"op":{index}{instance}}}}}')


def _text(op: Op, number: int) -> str:
    """The part of an event that is the same for all repetitions; keys of communication as PyTorch's profiler writes them."""
    parts = [f'"stream":{number}', f'"class":{json.dumps(op.kind)}']
    if op.collective is not None:
        transfer = op.collective
        parts += [
            f'"Collective name":{json.dumps(transfer.kind)}',
            f'"Group size":{len(transfer.group)}',
            f'"axis":{json.dumps(transfer.axis)}',
            f'"bytes":{transfer.bytes}',
        ]
    category = "kernel" if op.kind in ("compute", "recompute", "optimizer") or op.collective is not None else role(op.kind, op.name)
    return f'"name":{json.dumps(op.name, ensure_ascii=False)},"cat":"{category}","args":{{{",".join(parts)},'


def _flows(report: Report, sends: dict[int, list[tuple[int, int, int, int]]]) -> Iterator[str]:
    """An arrow per send that is on two written ranks, from inside its slice on the sender to inside that on the receiver."""
    ops = report.timeline.program.ops
    for index, places in sorted(sends.items()):
        collective = ops[index].collective
        by_rank = {place[0]: place for place in reversed(places)}
        if collective is None or len(by_rank) < 2:
            continue
        first = by_rank.get(collective.group[0], places[0])
        last = next(place for rank, place in by_rank.items() if rank != first[0])
        if min(first[3] - first[2], last[3] - last[2]) < 4:
            continue
        for letter, (rank, number, begin, end), part in (("s", first, 1), ("f", last, 3)):
            at = _micro(begin + (end - begin) * part // 4)
            bind = '"bp":"e",' if letter == "f" else ""
            yield f'{{"ph":"{letter}",{bind}"id":{index},"name":"send","cat":"p2p","pid":{rank},"tid":{number},"ts":{at}}}'


def _counters(rank: int, curve: MemoryCurve) -> Iterator[str]:
    """One counter per memory category, in GiB, where it changes."""
    times, levels = curve.thinned(_SAMPLES)
    stamps = np.rint(times * 1e9).astype(np.int64)
    final = np.concatenate((stamps[1:] != stamps[:-1], [True])) if len(stamps) else np.empty(0, dtype=bool)
    for category, volume in levels.items():
        label, last = json.dumps(f"memory: {category}"), None
        for at, amount in zip(stamps[final].tolist(), volume[final].tolist(), strict=True):
            if amount != last:
                last = amount
                yield f'{{"ph":"C","name":{label},"pid":{rank},"ts":{_micro(at)},"args":{{"GiB":{amount / GIB:.9g}}}}}'


def _metadata(report: Report, written: Written) -> dict[str, object]:
    return {
        "parsim": parsim.__version__,
        "scenario": report.measured.name,
        "ranks_written": list(written.ranks),
        "ranks_simulated": len(report.timeline.ranks),
        "ranks_total": report.measured.ranks.total,
        "spans_written": written.spans,
        "spans_left_out": written.spans_left_out,
        "note": "ranks that do the same are represented by one; spans left out start after the last written one or take less than 1 ns",
    }
