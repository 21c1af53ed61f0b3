"""The trace as PyTorch's profiler (Kineto) writes it: Chrome JSON, in the subset that Perfetto reads without complaint.

Times are microseconds with three decimals; start and end are rounded to ns first and the duration is their difference, so
that slices of a track nest and never overlap. Ids are integers, a counter has one value, flows begin and end inside slices, and
what names a process or thread stands before its first event. An op is one slice per rank: a collective for which compute waits is
on its communicator's stream, as NCCL's kernels are. Rows are written as text in batches: a million spans as dictionaries would
take a third of a gigabyte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import numpy as np

from parsim.report.communication import link_curves
from parsim.report.measured import MemoryCurve, ProfiledGpu
from parsim.report.quantities import GIB
from parsim.report.timeline import COMPUTE_LANE, Floats, Indices
from parsim.report.trace_slices import COMPUTE_STREAM, HOST_THREAD, SORT_STEP, SlicePlace, Slices, Track, micro, streams, thread_name
from parsim.report.verdict import rank_class
from parsim.version import __version__

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

MOST_RANKS = 16
MOST_SPANS = 60_000
_BATCH = 10_000
_SAMPLES = 2_000
"""memory levels per rank and category; the peak of the sum is one of them"""
OUTSIDE = ("context", "communicators")
"""device memory that the caching allocator does not see"""


@dataclass(frozen=True)
class WrittenTrace:
    """What a trace file holds and what was left out of it."""

    ranks: tuple[int, ...]
    spans: int
    """kernels, copies and work of the host; annotations and counters are not counted"""
    spans_left_out: int
    """slices of the written ranks beyond the cap, and those that take less than a nanosecond"""


def write_chrome_trace(
    report: Metrics, out: TextIO, ranks: Sequence[int] | None = None, most_ranks: int = MOST_RANKS, most_spans: int | None = MOST_SPANS
) -> WrittenTrace:
    """Write the trace of `ranks` (default: one per class, at most `most_ranks`) to an open text file.

    Raises ValueError if a rank was not simulated.
    """
    report = report.shown
    timeline = report.timeline
    if ranks is not None and (missing := [rank for rank in ranks if rank not in timeline.lanes]):
        message = f"rank {missing[0]} was not simulated; simulated ranks: {', '.join(map(str, timeline.ranks))}"
        raise ValueError(message)
    chosen = _choose(report, most_ranks) if ranks is None else list(dict.fromkeys(ranks))
    tracks = _tracks(report, chosen)
    total = sum(len(track.ops) for track in tracks)
    horizon = _horizon(report, tracks, most_spans)
    slices = Slices(report, horizon)
    rows = _Rows(out)
    devices = [report.measured.profiled.gpus.get(rank, ProfiledGpu("", 0, 0)).properties(rank) for rank in chosen]
    head = {"schemaVersion": 1, "deviceProperties": devices, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0}
    out.write(f'{json.dumps(head)[:-1]}, "traceEvents":[\n')
    for rank in chosen:
        rows.extend(_process(report, rank))
    for track in tracks:
        rows.extend(_thread(track.rank, track.number, thread_name(track.lane, track.number)))
    for rank in chosen:
        rows.extend(_step(report, rank))
    rows.extend(_marks(report, chosen))
    for track in tracks:
        rows.extend(slices.rows(track))
    rows.extend(_flows(report, slices.sends))
    for device in report.measured.memory.devices:
        if device.rank in chosen and device.curve is not None:
            rows.extend(_memory(device.rank, device.curve))
    rows.extend(_links(report))
    rows.flush()
    written = WrittenTrace(tuple(chosen), slices.written, total - slices.written)
    tail = {"distributedInfo": _distributed(report, chosen, slices), "otherData": _metadata(report, written)}
    out.write(f"\n],{json.dumps(tail, ensure_ascii=False)[1:-1]}}}\n")
    return written


class _Rows:
    """Events on their way to the file."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rows: list[str] = []
        self._begun = False

    def extend(self, rows: Iterable[str]) -> None:
        self._rows.extend(rows)
        if len(self._rows) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._out.write((",\n" if self._begun else "") + ",\n".join(self._rows))
            self._begun = True
            self._rows.clear()


def _choose(report: Metrics, most: int) -> list[int]:
    ranks = [group.rank for group in sorted(report.measured.classes, key=lambda group: (group.stage or 0, group.rank))]
    ranks = [rank for rank in ranks if rank in report.timeline.lanes]
    if len(ranks) <= most:
        return ranks
    wanted = [rank for rank in (report.breakdown_rank, report.bottleneck_rank) if rank in ranks]
    spread = [ranks[round(place)] for place in np.linspace(0, len(ranks) - 1, max(1, most - len(set(wanted))))]
    kept = set(spread) | set(wanted)
    return [rank for rank in ranks if rank in kept]


def _tracks(report: Metrics, ranks: Sequence[int]) -> list[Track]:
    """The threads of each rank, compute first; an op that holds several lanes of a rank is on the first beside compute."""
    timeline = report.timeline
    numbers = streams(name for lanes in timeline.lanes.values() for name in lanes)
    taken = np.zeros(len(timeline.start), dtype=bool)
    tracks: list[Track] = []
    for rank in ranks:
        own: dict[str, Indices] = {}
        for name, column in sorted(timeline.lanes[rank].items(), key=lambda item: (item[0] == COMPUTE_LANE, item[0])):
            own[name] = column[~taken[column]]
            taken[column] = True
        for column in own.values():
            taken[column] = False
        order = sorted(own, key=lambda name: (name != COMPUTE_LANE, name))
        tracks += [Track(rank, numbers[name], name, own[name]) for name in order if len(own[name])]
    return tracks


def _horizon(report: Metrics, tracks: Sequence[Track], most: int | None) -> float:
    """The start of the last slice within the cap [s]."""
    if most is None or sum(len(track.ops) for track in tracks) <= most:
        return float("inf")
    starts = np.concatenate([report.timeline.start[track.ops] for track in tracks])
    return float(np.partition(starts, most - 1)[most - 1])


def _named(kind: str, pid: int, tid: int, **args: object) -> str:
    return f'{{"ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"args":{json.dumps(args, ensure_ascii=False)}}}'


def _thread(pid: int, tid: int, name: str) -> Iterator[str]:
    yield _named("thread_name", pid, tid, name=name)
    yield _named("thread_sort_index", pid, tid, sort_index=tid)


def _process(report: Metrics, rank: int) -> Iterator[str]:
    group = rank_class(report.measured, rank)
    stage = "" if group.stage is None else f" · stage {group.stage}"
    same = f" · stands for ranks {group.ranks}" if group.count > 1 else ""
    yield _named("process_name", rank, 0, name=f"rank {rank}{stage}{same}")
    yield _named("process_labels", rank, 0, labels=f"GPU {rank}")
    yield _named("process_sort_index", rank, 0, sort_index=((group.stage or 0) * 1_000_000 + rank) * SORT_STEP)
    yield from _thread(rank, HOST_THREAD, f"thread {HOST_THREAD} (python)")


def _step(report: Metrics, rank: int) -> Iterator[str]:
    """The annotation that torch.profiler's step() leaves around what the report measures."""
    begin, end = round(report.begin * 1e9), round(report.end * 1e9)
    if end > begin:
        place = f'"pid":{rank},"tid":{HOST_THREAD},"ts":{micro(begin)},"dur":{micro(end - begin)}'
        yield f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#0",{place},"args":{{}}}}'


def _marks(report: Metrics, ranks: Sequence[int]) -> Iterator[str]:
    """What breaks, or is over, as instants of the whole trace, on the host thread of the first rank."""
    for time, text in report.measured.marks if ranks else ():
        place = f'"pid":{ranks[0]},"tid":{HOST_THREAD},"ts":{micro(round(time * 1e9))}'
        yield f'{{"ph":"i","s":"g","cat":"fault","name":{json.dumps(text, ensure_ascii=False)},{place},"args":{{}}}}'


def _flows(report: Metrics, sends: dict[int, list[SlicePlace]]) -> Iterator[str]:
    """An arrow per send that is on two written ranks, from inside its slice on the sender to inside that on the receiver."""
    columns = report.timeline.columns
    for index, places in sorted(sends.items()):
        sender = columns.examples[columns.kind[index]].lanes[0].rank
        by_rank = {place.rank: place for place in reversed(places)}
        if sender not in by_rank or len(by_rank) < 2:
            continue
        ends = by_rank[sender], next(place for rank, place in by_rank.items() if rank != sender)
        if min(place.end - place.begin for place in ends) < 4:
            continue
        for letter, place, part in zip("sf", ends, (1, 3), strict=True):
            at = micro(place.begin + (place.end - place.begin) * part // 4)
            bind = '"bp":"e",' if letter == "f" else ""
            yield f'{{"ph":"{letter}",{bind}"id":{index},"name":"send","cat":"p2p","pid":{place.rank},"tid":{place.number},"ts":{at}}}'


def _counter(name: str, unit: str, pid: int, tid: int, stamps: Indices, values: Floats) -> Iterator[str]:
    """One value per event, where it changes; of those at one time the highest, so that a peak stays, and the last, which holds on."""
    if not len(stamps):
        return
    begins = np.flatnonzero(np.append(True, stamps[1:] != stamps[:-1]))
    group = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(stamps)))
    reached = np.flatnonzero(values == np.maximum.reduceat(values, begins)[group])
    highest = reached[np.unique(group[reached], return_index=True)[1]]
    kept = np.unique(np.concatenate((highest, begins[1:] - 1, [len(stamps) - 1])))
    stamps, values = stamps[kept], values[kept]
    changed = np.append(True, values[1:] != values[:-1])
    begin = f'{{"ph":"C","name":{json.dumps(name, ensure_ascii=False)},"pid":{pid},"tid":{tid},"ts":'
    for at, value in zip(stamps[changed].tolist(), values[changed].tolist(), strict=True):
        yield f'{begin}{micro(at)},"args":{{"{unit}":{value!r}}}}}'


def _stamps(times: Floats) -> Indices:
    """Seconds as whole nanoseconds."""
    return np.rint(times * 1e9).astype(np.int64)


def _memory(rank: int, curve: MemoryCurve) -> Iterator[str]:
    """Counters of memory: allocated, reserved, and each category. Bytes / 2^30 is exact, so a peak can be compared to the byte."""
    times, levels = curve.thinned(_SAMPLES)
    stamps = _stamps(times)
    allocated = np.zeros(len(times))
    for category, volume in levels.items():
        allocated = allocated if category in OUTSIDE else allocated + volume
    yield from _counter("memory allocated", "GiB", rank, COMPUTE_STREAM, stamps, allocated / GIB)
    changes = np.array(curve.reserved, dtype=np.float64).reshape(-1, 2)
    yield from _counter("memory reserved", "GiB", rank, COMPUTE_STREAM, _stamps(changes[:, 0]), changes[:, 1] / GIB)
    for category, volume in levels.items():
        yield from _counter(f"memory: {category}", "GiB", rank, COMPUTE_STREAM, stamps, volume / GIB)


def _links(report: Metrics) -> Iterator[str]:
    """A process for the network behind the last rank, with one counter per kind of link: its mean use in % of capacity."""
    measured = report.measured
    if measured.profiled.loads is None:
        return
    curves = link_curves(report.timeline, measured.profiled.loads, measured.links, report.timeline.makespan)
    pid = measured.ranks.total
    if curves:
        yield _named("process_name", pid, 0, name="links of all ranks")
        yield _named("process_sort_index", pid, 0, sort_index=10**12)
    for curve in curves:
        percent = np.append(np.round(np.maximum(curve.share, 0.0) * 100.0, 6), 0.0)
        yield from _counter(f"use of {curve.name}", "%", pid, 0, _stamps(curve.edges), percent)


def _distributed(report: Metrics, ranks: Sequence[int], slices: Slices) -> dict[str, object]:
    """What torch.distributed says of the job; the first written rank speaks."""
    world = report.measured.ranks.total
    listed = [("default_pg", "default_pg", range(world)), *((name, one.axis, one.group) for name, one in sorted(slices.groups.items()))]
    return {
        "backend": "nccl",
        "rank": ranks[0] if ranks else 0,
        "world_size": world,
        "pg_count": len(listed),
        "pg_config": [
            {"pg_name": name, "pg_desc": axis, "backend_config": "cuda:nccl", "pg_size": len(group), "ranks": list(group)}
            for name, axis, group in listed
        ],
        "nccl_version": "unknown",
    }


def _metadata(report: Metrics, written: WrittenTrace) -> dict[str, object]:
    return {
        "parsim": __version__,
        "scenario": report.measured.name,
        "ranks_written": list(written.ranks),
        "ranks_simulated": len(report.timeline.ranks),
        "ranks_total": report.measured.ranks.total,
        "spans_written": written.spans,
        "spans_left_out": written.spans_left_out,
        "note": "ranks that do the same are represented by one; spans left out start after the last written one or take less than 1 ns",
    }
