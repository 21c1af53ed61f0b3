"""Ops as slices of a trace: what runs on a stream of the GPU, and around it which pass of which micro-batch it belongs to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from parsim.report.plots.style import role
from parsim.report.profiled import COPIES, collective_args, element, is_copy, kernel_name, on_host
from parsim.report.timeline import COMPUTE_LANE, Indices

if TYPE_CHECKING:
    from parsim.program.program import Collective, Op
    from parsim.report.metrics import Metrics

_PASSES = {"forward": "forward", "backward": "backward", "recompute": "backward", "weight": "weight gradient"}
"""role -> the pass it belongs to"""


class Track(NamedTuple):
    """One thread of one rank."""

    rank: int
    number: int
    """thread id"""
    lane: str
    ops: Indices


class Place(NamedTuple):
    """Where a slice is [ns]."""

    rank: int
    number: int
    begin: int
    end: int


class _Text(NamedTuple):
    """What is the same for all repetitions of an op."""

    begin: str
    args: str
    passes: str
    """name of the pass, empty for none"""
    copied: int
    """bytes of a copy, else 0"""
    send: bool
    """a message from one rank to another"""


def micro(nanoseconds: int) -> str:
    """Microseconds with three decimals, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


class Slices:
    """Turns tracks into rows, and remembers what else the trace must tell."""

    def __init__(self, report: Metrics, horizon: float) -> None:
        self._report = report
        self._horizon = horizon
        self.written = 0
        self.sends: dict[int, list[Place]] = {}
        """op -> its slices"""
        self._collectives: dict[int, Collective] = {}

    @property
    def collectives(self) -> list[Collective]:
        """Transfers that were written, copies left out."""
        return list(self._collectives.values())

    def rows(self, track: Track) -> list[str]:
        """The complete events of one track, in order of time; annotations stand before what they enclose."""
        timeline = self._report.timeline
        column = track.ops[timeline.start[track.ops] <= self._horizon]
        starts = np.rint(timeline.start[column] * 1e9).astype(np.int64)
        ends = np.rint(timeline.end[column] * 1e9).astype(np.int64)
        begins = np.maximum(starts, np.concatenate(([0], np.maximum.accumulate(ends)[:-1])) if len(ends) else ends)
        kept = ends > begins
        self.written += int(kept.sum())
        return self._written(track, column[kept], begins[kept], ends[kept])

    def _written(self, track: Track, ops: Indices, begins: Indices, ends: Indices) -> list[str]:
        """Slices of `ops` [ns]; on the compute lane in annotations of the pass and micro-batch that they belong to."""
        columns = self._report.timeline.columns
        kinds, instances = columns.kind[ops], columns.instance[ops]
        texts = {kind: self._text(columns.examples[kind], track) for kind in dict.fromkeys(kinds.tolist())}
        place = f'"pid":{track.rank},"tid":{track.number},"ts":'
        annotated = track.lane == COMPUTE_LANE
        rows: list[str] = []
        current, head, since, until = ("", -1), 0, 0, 0  # the pass under way, the row of its annotation, and its times
        table = zip(ops.tolist(), kinds.tolist(), instances.tolist(), begins.tolist(), ends.tolist(), strict=True)
        for index, kind, instance, begin, end in table:
            text = texts[kind]
            if annotated and (text.passes or instance != current[1]):  # an op without a pass stays in that of its micro-batch
                belongs = (text.passes, instance) if text.passes and instance >= 0 else ("", -1)
                if belongs != current:
                    if current[0]:
                        rows[head] = _annotation(track, current, since, until)
                    current, head, since = belongs, len(rows), begin
                    if current[0]:
                        rows.append("")
            until = end
            if text.send:
                self.sends.setdefault(index, []).append(Place(track.rank, track.number, begin, end))
            micro_batch = f',"micro-batch":{instance}' if instance >= 0 else ""
            speed = f',"memory bandwidth (GB/s)":{text.copied / (end - begin):.6g}' if text.copied else ""
            length = end - begin
            rows.append(
                f'{text.begin}{place}{begin // 1000}.{begin % 1000:03d},"dur":{length // 1000}.{length % 1000:03d},'
                f'{text.args}{speed},"correlation":{index + 1}{micro_batch}}}}}'
            )
        if current[0]:
            rows[head] = _annotation(track, current, since, until)
        return rows

    def _text(self, op: Op, track: Track) -> _Text:
        """Name, category and arguments of an op, with the profiler's keys."""
        collective = op.collective
        name, category = op.name, "kernel"
        args: dict[str, object] = {"device": track.rank, "context": 1, "stream": track.number, "class": op.kind}
        if on_host(track.lane):
            category, args = "cpu_op", {"class": op.kind}
        elif collective is not None and is_copy(collective):
            name, category = COPIES[collective.kind], "gpu_memcpy"
            args |= {"op": op.name, "bytes": collective.bytes}
        elif collective is not None:
            self._collectives[id(collective)] = collective
            dtype, count = element(collective, self._report.measured.profiled.types)
            costs = self._report.measured.costs
            cost = costs(collective) if costs is not None else None
            name = kernel_name(collective, dtype, cost.algorithm if cost is not None else "ring")
            sends = op.lanes[0].rank == track.rank and op.lanes[0].name == track.lane
            args |= {"op": op.name, "bytes": collective.bytes, **collective_args(collective, dtype, count, sends=sends)}
            if cost is not None:
                args |= {"algorithm": cost.algorithm, "protocol": cost.protocol}
        text = json.dumps(args, ensure_ascii=False, separators=(",", ":"))
        begin = f'{{"ph":"X","cat":"{category}","name":{json.dumps(name, ensure_ascii=False)},'
        copied = collective.bytes if collective is not None and category == "gpu_memcpy" else 0
        return _Text(
            begin,
            f'"args":{text[:-1]}',
            _PASSES.get(role(op.kind, op.name), ""),
            copied,
            collective is not None and collective.kind == "send",
        )


def _annotation(track: Track, belongs: tuple[str, int], begin: int, end: int) -> str:
    name, micro_batch = belongs
    place = f'"pid":{track.rank},"tid":{track.number},"ts":{micro(begin)},"dur":{micro(end - begin)}'
    return f'{{"ph":"X","cat":"gpu_user_annotation","name":"{name} micro-batch {micro_batch}",{place},"args":{{}}}}'
