"""The chain of ops that decides how long the step takes, op by op and by cause: which kind of pass, collective or wait."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parsim.program.program import Op
from parsim.report.timeline import COMPUTE_LANE, KEYS, Floats, Indices, Timeline
from parsim.units import snapped

LAUNCH = "host launch time"


@dataclass(frozen=True)
class CriticalPath:
    """Seconds per class of time, and the pieces of the path as columns, the last piece first."""

    seconds: dict[str, float]
    ops: Indices
    begin: Floats
    """[s]"""
    end: Floats
    """[s]"""

    def __len__(self) -> int:
        return len(self.ops)

    def by_kind(self, timeline: Timeline) -> Iterator[tuple[int, float, int]]:
        """(kind of op, its seconds on the path, how many ops) of every kind on the path, in the order of the pieces."""
        columns = timeline.columns
        kinds, first, place, counts = np.unique(columns.kind[self.ops], return_index=True, return_inverse=True, return_counts=True)
        seconds = np.bincount(place, weights=self.end - self.begin, minlength=len(kinds))
        order = np.argsort(first)
        return zip(kinds[order].tolist(), seconds[order].tolist(), counts[order].tolist(), strict=True)


def critical_path(timeline: Timeline, begin: float = 0.0, end: float | None = None) -> CriticalPath:
    """Walk back from the last op in [begin, end], at each op to the blocker that ended last.

    On ties the op's own lanes go first (the compute lane before others). An op's duration belongs to its class, a
    gap before it to launch; the seconds sum to end - begin and bubble is 0.
    """
    end = timeline.makespan if end is None else end
    starts, ends = timeline.start, timeline.end
    binding = _Binding(timeline)
    ops: list[int] = []
    begins: list[float] = []
    stops: list[float] = []
    time, index, waited = end, _last(timeline, end), 0.0
    while index >= 0:
        stop = min(time, float(ends[index]))
        if stop <= begin:
            break
        waited += time - stop
        time = max(begin, min(stop, float(starts[index])))
        ops.append(index)
        begins.append(time)
        stops.append(stop)
        if time <= begin:
            break
        index = binding(index)
    path = np.array(ops, dtype=np.int64)
    spent = np.bincount(timeline.kind[path], weights=np.subtract(stops, begins), minlength=len(KEYS))
    seconds = dict(zip(KEYS, spent.tolist(), strict=True))
    seconds["launch"] += waited + max(0.0, time - begin)
    return CriticalPath(seconds, path, np.array(begins), np.array(stops))


def _last(timeline: Timeline, end: float) -> int:
    """The op that ends last in a window, preferring one that ends within it, then the compute lane, then the first; -1: none."""
    if not len(timeline.end):
        return -1
    inside = timeline.start <= end
    reach = np.where(inside, np.minimum(timeline.end, end), -np.inf)
    latest = np.flatnonzero(reach >= reach.max() - timeline.tolerance)
    ending = latest[timeline.end[latest] <= end + timeline.tolerance]
    candidates = ending if len(ending) else latest
    computes = timeline.columns.flags_of(candidates, lambda op: any(lane.name == COMPUTE_LANE for lane in op.lanes))
    return int(candidates[computes.argmax()])


class _Binding:
    """The blocker of an op that ended last; on ties the nearest, then the first; -1: the op waits for nobody."""

    def __init__(self, timeline: Timeline) -> None:
        self._ends, self._kinds, self._tolerance = timeline.end, timeline.columns.kind, timeline.tolerance
        self._offsets, self._sources = timeline.blockers
        self._distances = _Distances(timeline.columns.examples)

    def __call__(self, op: int) -> int:
        blockers = self._sources[self._offsets[op] : self._offsets[op + 1]]
        if len(blockers) < 2:
            return int(blockers[0]) if len(blockers) else -1
        ends = self._ends[blockers]
        tied = blockers[ends >= ends.max() - self._tolerance].tolist()
        if len(tied) == 1:
            return int(tied[0])
        kind = int(self._kinds[op])
        return int(min(tied, key=lambda index: (self._distances[kind, int(self._kinds[index])], index)))


def binding(timeline: Timeline) -> Indices:
    """For each op the blocker that ended last, as the critical path takes it; -1 for none."""
    offsets, sources = timeline.blockers
    counts = np.diff(offsets)
    result = np.full(len(counts), -1, dtype=np.int64)
    alone = np.flatnonzero(counts == 1)
    result[alone] = sources[offsets[alone]]
    waiting = np.flatnonzero(counts > 1)
    if not len(waiting):
        return result
    # The blockers of all ops that have several, one op's behind another's, and of these the ones that ended last.
    several = counts[waiting]
    behind = np.cumsum(several)
    sources = sources[np.repeat(offsets[waiting] - (behind - several), several) + np.arange(behind[-1])]
    ends = timeline.end[sources]
    latest = np.maximum.reduceat(ends, behind - several)
    tied = np.flatnonzero(ends >= np.repeat(latest, several) - timeline.tolerance)
    targets, sources = np.repeat(waiting, several)[tied], sources[tied]
    heads = np.flatnonzero(np.diff(targets, prepend=-1))
    result[targets[heads]] = sources[heads]
    # Where several did, the nearest of them, then the first.
    count = len(timeline.columns.examples)
    among = np.diff(heads, append=len(targets)) > 1
    chosen = np.repeat(among, np.diff(heads, append=len(targets)))
    targets, sources = targets[chosen], sources[chosen]
    if len(targets):
        distances, kinds = _Distances(timeline.columns.examples), timeline.columns.kind
        pairs, which = np.unique(kinds[targets] * count + kinds[sources], return_inverse=True)
        near = np.array([distances[divmod(pair, count)] for pair in pairs.tolist()], dtype=np.int64)[which]
        heads = np.flatnonzero(np.diff(targets, prepend=-1))
        result[targets[heads]] = np.minimum.reduceat(near * len(counts) + sources, heads) % len(counts)
    return result


class _Distances(dict[tuple[int, int], int]):
    """(kind of op, kind of its blocker) -> 0: they share a compute lane; 1: another lane; 2: none."""

    def __init__(self, examples: list[Op]) -> None:
        super().__init__()
        self._examples = examples

    def __missing__(self, pair: tuple[int, int]) -> int:
        shared = set(self._examples[pair[0]].lanes).intersection(self._examples[pair[1]].lanes)
        distance = self[pair] = 2 if not shared else int(all(lane.name != COMPUTE_LANE for lane in shared))
        return distance


_PASSES = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights", "R": "recomputation"}
_COLLECTIVES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "token_exchange": "token exchange",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "send": "send",
    "sendrecv": "ring exchange",
    "h2d": "copy to the device",
    "d2h": "copy to the host",
    "nvme_read": "read of the drives",
    "nvme_write": "write to the drives",
    "cpu_step": "optimizer step on the CPU",
}
_PASS = re.compile(r"([FBIWR])\d+\s+(.*)")


@dataclass(frozen=True, slots=True)
class CriticalCause:
    """A cause of time on the critical path."""

    kind: str
    """class of the breakdown"""
    name: str
    seconds: float
    """per step"""
    count: int
    """ops"""


def causes(timeline: Timeline, path: CriticalPath, stretch: float, step_time: float) -> list[CriticalCause]:
    """The critical path by cause, the longest first; the seconds sum to `step_time` [s], of which the path covers `stretch` [s]."""
    factor = step_time / stretch if stretch > 0 else 1.0
    spent: dict[tuple[str, str], float] = defaultdict(float)
    count: dict[tuple[str, str], int] = defaultdict(int)
    for kind, length, ops in path.by_kind(timeline):
        key = timeline.class_of(kind), cause_of(timeline.columns.examples[kind])
        spent[key] += length * factor
        count[key] += ops
    waits = step_time - math.fsum(spent.values())
    if waits > 1e-9 * step_time:
        spent["launch", LAUNCH] += waits
        count["launch", LAUNCH] += 1
    rows = [CriticalCause(kind, name, seconds, count[kind, name]) for (kind, name), seconds in spent.items() if seconds > 0]
    return sorted(rows, key=lambda row: (-snapped(row.seconds), row.name))


def cause_of(op: Op) -> str:
    """What an op is, without its number: ``backward of the layers``, ``AllGather among 8 data ranks``."""
    transfer = op.collective
    if transfer is not None:
        what = _COLLECTIVES.get(transfer.kind, transfer.kind)
        return what if transfer.axis == "offload" else f"{what} among {len(transfer.group)} {transfer.axis} ranks"
    if match := _PASS.fullmatch(op.name):
        part = re.sub(r"\s*\d+$", "s", match[2]) if re.search(r"\d+$", match[2]) else match[2]
        return f"{_PASSES[match[1]]} of the {part}"
    return {"optimizer": "optimizer step", "pipeline_comm": "send between stages"}.get(op.kind, op.name)
