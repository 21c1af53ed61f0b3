"""The trace, indexed by rank and lane, and where the time of one rank goes.

Every function here is pure: a :class:`Timeline` in, numbers out. Times are seconds from the start of the step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from parsim.report.pass_kinds import PassKinds
from parsim.simulation.op_columns import OpColumns
from parsim.simulation.trace import Trace

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

KEYS = (
    "compute",
    "recompute",
    "tensor_comm",
    "data_comm",
    "pipeline_comm",
    "context_comm",
    "expert_comm",
    "optimizer",
    "offload",
    "launch",
    "bubble",
    "other",
)
"""Classes of time, in the order of the report."""

COMMUNICATION = ("tensor_comm", "data_comm", "pipeline_comm", "context_comm", "expert_comm")

COMPUTE_LANE = "compute"

_BESIDE_COMPUTE = (
    "tensor_comm",
    "expert_comm",
    "context_comm",
    "pipeline_comm",
    "data_comm",
    "offload",
    "optimizer",
    "compute",
    "recompute",
    "other",
    "launch",
)
"""Which class an instant has when the compute lane is empty and several other lanes are busy: the first of these.
Only then may the host be blamed (launch); with nothing at all it is a bubble."""

TIE = 1e-12
"""Times closer than this, relative to the step, are the same time (a folded and an unfolded run differ by as much)."""

_CODE = {key: code for code, key in enumerate(KEYS)}


class Timeline:
    """Columns of a trace: start and end [s] and class per op, and per rank and lane the ops in order."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.program = trace.program
        self.start: Floats = np.asarray(trace.start, dtype=np.float64)
        self.end: Floats = np.asarray(trace.end, dtype=np.float64)
        self.columns = trace.columns
        codes = defaultdict(lambda: _CODE["other"], _CODE)
        self._codes = [codes[op.kind] for op in self.columns.examples]
        self.kind: NDArray[np.int8] = np.array(self._codes, dtype=np.int8)[self.columns.kind]
        self.unknown_kinds: tuple[str, ...] = tuple(sorted(set(codes) - set(KEYS)))
        """op classes that the report does not know; their time is `other`"""
        self._kinds = _kinds_by_lane(self.columns)
        self.lanes: dict[int, dict[str, Indices]] = {
            rank: {name: self.columns.of(kinds) for name, kinds in lanes.items()} for rank, lanes in self._kinds.items()
        }
        self._known: dict[tuple[int, tuple[tuple[bool, bool], ...]], Indices] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were simulated, ascending."""
        return tuple(self.lanes)

    @cached_property
    def pass_kinds(self) -> PassKinds:
        """The passes that kinds of ops belong to."""
        return PassKinds(self.columns.examples)

    @cached_property
    def makespan(self) -> float:
        """End of the last op [s]."""
        return float(self.end.max(initial=0.0))

    @property
    def tolerance(self) -> float:
        """Times this close are equal [s]."""
        return TIE * self.makespan

    @cached_property
    def blockers(self) -> tuple[Indices, Indices]:
        """Who each op waits for, as compressed rows: those of op i are ``sources[offsets[i]:offsets[i + 1]]``."""
        before, after = self.program.edges()
        sources = before[np.argsort(after, kind="stable")]
        offsets = np.concatenate(([0], np.cumsum(np.bincount(after, minlength=len(self.start))))).astype(np.int64)
        return offsets, sources

    def class_of(self, kind: int) -> str:
        """The class of time of a kind of op."""
        return KEYS[self._codes[kind]]

    def lane(self, rank: int, name: str = COMPUTE_LANE) -> Indices:
        """The ops of one lane in order; empty if the rank has no such lane."""
        return self.lanes.get(rank, {}).get(name, np.empty(0, dtype=np.int64))

    def of_rank(self, rank: int) -> Indices:
        """All ops that stand in a lane of `rank`, ascending, each once."""
        return self._of(rank, ((True, True), (True, False), (False, True), (False, False)))

    def computing(self, rank: int) -> Indices:
        """The ops of the compute lane that are no collectives, in order."""
        return self._of(rank, ((True, False),))

    def transferring(self, rank: int) -> Indices:
        """The transfers that hold the compute lane, in order."""
        return self._of(rank, ((True, True),))

    def not_computing(self, rank: int) -> Indices:
        """All ops of `rank` but those, ascending."""
        return self._of(rank, ((True, True), (False, True), (False, False)))

    def beside(self, rank: int) -> Indices:
        """The ops of `rank` that hold a lane but not its compute lane."""
        return self._of(rank, ((False, True), (False, False)))

    def _of(self, rank: int, wanted: tuple[tuple[bool, bool], ...]) -> Indices:
        """Ops of a rank by whether they stand in its compute lane, and whether they are transfers."""
        if (found := self._known.get((rank, wanted))) is None:
            lanes, examples = self._kinds.get(rank, {}), self.columns.examples
            computes = set(lanes.get(COMPUTE_LANE, ()))
            kinds = dict.fromkeys(chain.from_iterable(lanes.values()))
            chosen = [kind for kind in kinds if (kind in computes, examples[kind].collective is not None) in wanted]
            found = self._known[rank, wanted] = self.columns.of(chosen)
        return found

    def holding(self, ops: Indices, rank: int, name: str | None = None) -> Flags:
        """Which of `ops` stand in that lane of `rank`, or in any of its lanes."""
        lanes = self._kinds.get(rank, {})
        kinds = lanes.get(name, []) if name is not None else list(chain.from_iterable(lanes.values()))
        holds = np.zeros(len(self.columns.examples), dtype=bool)
        holds[kinds] = True
        return np.asarray(holds[self.columns.kind[ops]])


def _kinds_by_lane(columns: OpColumns) -> dict[int, dict[str, list[int]]]:
    """Rank -> lane -> kinds of ops that stand in it; ranks and lanes in order."""
    found: dict[int, dict[str, list[int]]] = {}
    for kind, example in enumerate(columns.examples):
        for lane in dict.fromkeys(example.lanes):
            found.setdefault(lane.rank, {}).setdefault(lane.name, []).append(kind)
    return {rank: dict(sorted(found[rank].items())) for rank in sorted(found)}


def sweep(layers: Sequence[tuple[Floats, Floats]], begin: float, end: float) -> tuple[Floats, Indices]:
    """Cut [begin, end] where a layer begins or ends, and say for each piece which layer is on top.

    `layers` are (starts, ends) [s], the first on top; intervals may overlap. Returns the cut points (one more than
    pieces) and per piece the index of the first layer that covers it, -1 for none.
    """
    unions = [union(np.clip(starts, begin, end), np.clip(ends, begin, end)) for starts, ends in layers]
    sizes = [len(starts) for starts, _ in unions]
    times = np.concatenate([np.empty(0), *(starts for starts, _ in unions), *(ends for _, ends in unions)])
    order = np.argsort(times, kind="stable")
    owner = np.tile(np.repeat(np.arange(len(layers)), sizes), 2)[order]
    sign = np.repeat(np.array([1, -1]), sum(sizes))[order]
    top = np.full(len(times) + 1, -1, dtype=np.int64)
    for layer in range(len(layers) - 1, -1, -1):
        covered = np.cumsum(np.where(owner == layer, sign, 0)) > 0
        top[1:][covered] = layer
    return np.concatenate(([begin], times[order], [end])), top


def union(starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """The same stretches of time as few intervals, ascending; those that touch or overlap become one."""
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    fresh = np.flatnonzero(np.append(True, starts[1:] > reach[:-1])[: len(starts)])
    return starts[fresh], reach[np.append(fresh[1:], len(starts))[: len(fresh)] - 1]


def breakdown(timeline: Timeline, rank: int, begin: float = 0.0, end: float | None = None) -> dict[str, float]:
    """Seconds of each class of time on `rank` within [begin, end]; they sum to end - begin.

    An op on the compute lane gives its class; else an own collective or copy that moves data gives its class
    (tensor, expert, context, pipeline, data, offload, in that order); else launch if only the host is late; else
    bubble. An op starts when all its members have arrived, so waiting for them is bubble.
    """
    end = timeline.makespan if end is None else end
    lane = timeline.lane(rank)
    lasting = np.clip(timeline.end[lane], begin, end) - np.clip(timeline.start[lane], begin, end)
    result = dict(zip(KEYS, np.bincount(timeline.kind[lane], weights=lasting, minlength=len(KEYS)).tolist(), strict=True))
    beside = _by_class(timeline, timeline.beside(rank), _BESIDE_COMPUTE)
    spans = [(timeline.start[chosen], timeline.end[chosen]) for chosen in (lane, *beside.values())]
    times, top = sweep(spans, begin, end)
    seconds = np.bincount(top + 1, weights=np.diff(times), minlength=len(spans) + 1).tolist()
    result["bubble"] += seconds[0]
    for key, value in zip(beside, seconds[2:], strict=True):
        result[key] += value
    return result


def idle_stretches(timeline: Timeline, rank: int, begin: float, end: float) -> dict[str, tuple[Floats, Floats]]:
    """When nothing computes on `rank` within [begin, end]: class of the breakdown -> begins and ends [s], neighbours merged.

    The bubble here is as long as the bubble of :func:`breakdown`; the other classes are what the idle compute lane waits for.
    """
    waiting = _by_class(timeline, timeline.transferring(rank), KEYS)
    beside = _by_class(timeline, timeline.beside(rank), _BESIDE_COMPUTE)
    layers = [timeline.computing(rank), *waiting.values(), *beside.values()]
    times, top = sweep([(timeline.start[chosen], timeline.end[chosen]) for chosen in layers], begin, end)
    names = ["bubble", "", *waiting, *beside]
    codes = np.array([names.index(key) for key in names], dtype=np.int64)[top + 1]
    lasting = np.diff(times) > 0.0
    codes, starts, ends = codes[lasting], times[:-1][lasting], times[1:][lasting]
    fresh = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1]))) if len(codes) else np.empty(0, dtype=np.int64)
    codes, starts, ends = codes[fresh], starts[fresh], ends[np.concatenate((fresh[1:], [len(ends)]))[: len(fresh)] - 1]
    return {names[code]: (starts[codes == code], ends[codes == code]) for code in np.unique(codes).tolist() if names[code]}


def _by_class(timeline: Timeline, ops: Indices, order: Sequence[str]) -> dict[str, Indices]:
    """The ops of each class that there is, in this order of classes."""
    kinds = timeline.kind[ops]
    there = np.bincount(kinds, minlength=len(KEYS))
    return {key: ops[kinds == _CODE[key]] for key in order if there[_CODE[key]]}


def bubble_fraction(breakdowns: Mapping[int, Mapping[str, float]], counts: Mapping[int, int]) -> float | None:
    """Mean over ranks of bubble / step time; `counts` says how many equal ranks each one stands for.

    For GPipe and 1F1B without communication this is (p - 1) / (m + p - 1) (Huang et al., 2019; Narayanan et al., 2021).
    """
    bubble, total = _bubble_and_total(breakdowns, counts)
    return bubble / total if total > 0.0 else None


def bubble_over_ideal(breakdowns: Mapping[int, Mapping[str, float]], counts: Mapping[int, int]) -> float | None:
    """The papers' other ratio: bubble time over the time in which ranks do something, (p - 1) / m for 1F1B."""
    bubble, total = _bubble_and_total(breakdowns, counts)
    return bubble / (total - bubble) if total - bubble > TIE * total else None


def _bubble_and_total(breakdowns: Mapping[int, Mapping[str, float]], counts: Mapping[int, int]) -> tuple[float, float]:
    bubble = math.fsum(count * breakdowns[rank]["bubble"] for rank, count in counts.items())
    total = math.fsum(count * math.fsum(breakdowns[rank].values()) for rank, count in counts.items())
    return bubble, total


def bottleneck_rank(breakdowns: Mapping[int, Mapping[str, float]]) -> int:
    """The rank with the most compute, recomputation included (ties: the lowest)."""
    return _largest({rank: _work(row) for rank, row in breakdowns.items()})[0]


def breakdown_rank(timeline: Timeline, breakdowns: Mapping[int, Mapping[str, float]], begin: float = 0.0, end: float | None = None) -> int:
    """The rank whose optimizer step ends last (ties: most compute, then lowest).

    Without an optimizer step (forward only, profiling) the rank whose last op ends last.
    """
    end = timeline.makespan if end is None else end
    last: dict[int, float] = {}
    fallback: dict[int, float] = {}
    for rank in sorted(breakdowns):
        ops = timeline.of_rank(rank)
        ops = ops[(timeline.end[ops] > begin) & (timeline.end[ops] <= end + timeline.tolerance)]
        fallback[rank] = float(timeline.end[ops].max(initial=begin))
        steps = ops[timeline.kind[ops] == _CODE["optimizer"]]
        if len(steps):
            last[rank] = float(timeline.end[steps].max())
    candidates = _largest(last or fallback)
    return _largest({rank: _work(breakdowns[rank]) for rank in candidates})[0]


def _work(row: Mapping[str, float]) -> float:
    return row["compute"] + row["recompute"]


def _largest(values: Mapping[int, float]) -> list[int]:
    """The ranks whose value is the largest, up to rounding, ascending."""
    highest = max(values.values())
    return sorted(rank for rank, value in values.items() if value >= highest - 1e-9 * abs(highest))
