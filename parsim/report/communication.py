"""What moved: one row per kind of collective and per class of link, and how much of each kind of link is in use over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parsim.hardware.flows import CollectiveCost
from parsim.parallel.groups import TIMED
from parsim.program.program import Collective
from parsim.report.timeline import COMPUTE_LANE, Floats, Indices, Timeline
from parsim.simulation.trace import LinkUse
from parsim.units import snapped


@dataclass(frozen=True)
class CollectiveRow:
    """All collectives of one (kind, axis, group size, bytes) on one rank, per step."""

    kind: str
    axis: str
    group_size: int
    count: int
    bytes: int
    """of one collective, by nccl-tests semantics"""
    busy_s: float
    """sum of end - last arrival"""
    exposed_s: float
    """the part of busy_s with no other op on the compute lane"""
    wait_s: float
    """sum of last arrival - own arrival"""
    algorithm: str | None
    protocol: str | None
    algbw_Bps: float | None
    busbw_Bps: float | None


@dataclass(frozen=True)
class LinkClass:
    """Links that play the same part: one direction, one capacity."""

    name: str
    """``gpu->nvswitch``"""
    kind: str
    count: int
    """physical links of the class (in a folded run more than were simulated)"""
    capacity: float
    """of one link [B/s]"""
    number: int = 0
    """keeps classes apart that differ only in what they carry"""
    binds: bool = True
    """not a trunk as thick as all cables behind it, which never holds anything up"""


@dataclass(frozen=True)
class LinkRow:
    """What one link of a class carried per step; where members differ, the busiest one, of trunks that never bind the mean."""

    link: str
    kind: str
    count: int
    capacity_Bps: float
    bytes: float
    utilisation: float
    """bytes / (capacity x step time)"""
    saturated_s: float
    """time at >= 99.9 % of capacity"""


def busbw_factor(kind: str, group_size: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): the wire speed a ring would need."""
    n = group_size
    if kind == "all_reduce":
        return 2 * (n - 1) / n
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n
    return 1.0


def collective_rows(
    timeline: Timeline,
    rank: int,
    costs: Callable[[Collective], CollectiveCost] | None = None,
    begin: float = 0.0,
    end: float | None = None,
    scale: float = 1.0,
) -> list[CollectiveRow]:
    """The collectives of `rank` that start in [begin, end), grouped; counts and times are multiplied by `scale`.

    `costs` (an interconnect's ``cost``) names algorithm and protocol.
    """
    indices = timeline.of_rank(rank)
    if end is not None:
        tolerance = timeline.tolerance
        started = timeline.start[indices]
        indices = indices[(started >= begin - tolerance) & (started < end - tolerance)]
    merged: dict[tuple[str, str, int, int], list[Indices]] = {}
    methods: dict[tuple[str, str, int, int], list[CollectiveCost]] = {}
    for members in by_transfer(timeline, indices):
        collective = timeline.program.ops[members[0]].collective
        if collective is None:
            continue
        key = (collective.kind, collective.axis, len(collective.group), collective.bytes)
        merged.setdefault(key, []).append(members)
        if costs is not None:
            methods.setdefault(key, []).append(costs(collective))
    rows = [_row(timeline, rank, key, np.concatenate(parts), methods.get(key, []), scale) for key, parts in merged.items()]
    return sorted(rows, key=lambda row: (_axis_order(row.axis), row.axis, row.kind, row.group_size, -row.bytes))


def by_transfer(timeline: Timeline, ops: Indices) -> list[Indices]:
    """Ops of one transfer, then those of the next, as they first come."""
    if not len(ops):
        return []
    number = timeline.columns.grouped(lambda op: op.collective)[ops]
    order = np.argsort(number, kind="stable")
    groups = np.split(ops[order], np.flatnonzero(np.diff(number[order])) + 1)
    return sorted(groups, key=lambda group: int(group[0]))


def _axis_order(axis: str) -> int:
    return TIMED.index(axis) if axis in TIMED else len(TIMED)


def _row(
    timeline: Timeline,
    rank: int,
    key: tuple[str, str, int, int],
    members: Indices,
    costs: list[CollectiveCost],
    scale: float,
) -> CollectiveRow:
    kind, axis, size, volume = key
    start, end = timeline.start[members], timeline.end[members]
    busy = float((end - start).sum()) * scale
    count = round(len(members) * scale)
    algbw = volume * count / busy if busy > 0.0 else None
    return CollectiveRow(
        kind=kind,
        axis=axis,
        group_size=size,
        count=count,
        bytes=volume,
        busy_s=busy,
        exposed_s=float(exposed(timeline, rank, members).sum()) * scale,
        wait_s=float((start - own_arrival(timeline, rank, members)).sum()) * scale,
        algorithm="+".join(dict.fromkeys(cost.algorithm for cost in costs)) or None,
        protocol="+".join(dict.fromkeys(cost.protocol for cost in costs)) or None,
        algbw_Bps=algbw,
        busbw_Bps=None if algbw is None else algbw * busbw_factor(kind, size),
    )


def exposed(timeline: Timeline, rank: int, members: Indices) -> Floats:
    """Seconds of each op of `members` during which no *other* op holds the compute lane of `rank`.

    An op that itself holds the compute lane is exposed from start to end.
    """
    start, end = timeline.start[members], timeline.end[members]
    lane = timeline.lane(rank)
    hidden = covered(timeline.start[lane], timeline.end[lane], start, end)
    return np.where(timeline.holding(members, rank, COMPUTE_LANE), end - start, np.maximum(0.0, end - start - hidden))


def covered(starts: Floats, ends: Floats, begin: Floats, end: Floats) -> Floats:
    """How much of each [begin, end] lies under the disjoint, ascending intervals (starts, ends) [s]."""
    if not len(starts):
        return np.zeros_like(begin)
    knots = np.column_stack((starts, ends)).ravel()
    elapsed = np.repeat(np.concatenate(([0.0], np.cumsum(ends - starts))), 2)[1:-1]
    return np.asarray(np.interp(end, knots, elapsed) - np.interp(begin, knots, elapsed))


def own_arrival(timeline: Timeline, rank: int, members: Indices) -> Floats:
    """When `rank` itself was ready for each op of `members`: the last end among its own blockers [s].

    Who merely receives a send does not wait for it before it starts: only a blocker on its compute lane makes a rank arrive.
    """
    offsets, sources = timeline.blockers
    counts = offsets[members + 1] - offsets[members]
    row = np.repeat(np.arange(len(members)), counts)
    place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    blockers = sources[offsets[members][row] + place]
    own = timeline.holding(blockers, rank)
    arrival = np.zeros(len(members))
    np.maximum.at(arrival, row[own], timeline.end[blockers[own]])
    computed = np.zeros(len(members), dtype=bool)
    computed[row[own & timeline.holding(blockers, rank, COMPUTE_LANE)]] = True
    sent = timeline.columns.flags_of(members, lambda op: op.collective is not None and op.collective.kind == "send")
    arrival[sent & ~computed] = np.inf
    return np.minimum(arrival, timeline.start[members])


def link_rows(uses: Mapping[int, LinkUse], classes: Mapping[int, LinkClass], step_time: float, scale: float = 1.0) -> list[LinkRow]:
    """One row per class of link, in the order of `classes` (link id -> class); `scale` = steps per simulated run.

    Where links of a class differ, the busiest; of trunks that never hold anything up the mean, and no time of saturation.
    """
    carried: dict[LinkClass, list[float]] = {link_class: [] for link_class in classes.values()}
    saturated = dict.fromkeys(classes.values(), 0.0)
    for link, link_class in classes.items():
        use = uses.get(link)
        carried[link_class].append(0.0 if use is None else use.bytes * scale)
        if use is not None and link_class.binds:
            saturated[link_class] = max(saturated[link_class], use.saturated * scale)
    bytes_ = {one: max(each) if one.binds else math.fsum(each) / len(each) for one, each in carried.items()}
    return [
        LinkRow(
            link=link_class.name,
            kind=link_class.kind,
            count=link_class.count,
            capacity_Bps=link_class.capacity,
            bytes=volume,
            utilisation=volume / (link_class.capacity * step_time) if link_class.capacity * step_time > 0 else 0.0,
            saturated_s=saturated[link_class],
        )
        for link_class, volume in bytes_.items()
    ]


def busiest(rows: Sequence[LinkRow]) -> list[LinkRow]:
    """One row per name, kind and capacity: the busiest class of them, with the links of all; the busiest first."""
    rows_of: dict[tuple[str, str, float], LinkRow] = {}
    for row in rows:
        key = (row.link, row.kind, row.capacity_Bps)
        before = rows_of.get(key, row)
        count = row.count if before is row else before.count + row.count
        rows_of[key] = replace(max(before, row, key=lambda candidate: snapped(candidate.utilisation)), count=count)
    return sorted(rows_of.values(), key=lambda row: -snapped(row.utilisation))


def unused_links(uses: Mapping[int, LinkUse], classes: Mapping[int, LinkClass]) -> int:
    """How many physical links carried nothing; a folded link stands for the others of its class."""
    simulated, idle = dict.fromkeys(classes.values(), 0), dict.fromkeys(classes.values(), 0)
    for link, link_class in classes.items():
        simulated[link_class] += 1
        if link not in uses or uses[link].bytes == 0:
            idle[link_class] += 1
    return sum(round(link_class.count * idle[link_class] / simulated[link_class]) for link_class in simulated)


STEPS = 1000
"""values per curve at most"""


@dataclass(frozen=True)
class LinkCurve:
    """Mean use of all links of one name and kind."""

    name: str
    """``gpu->nvswitch (nvlink3)``"""
    capacity: float
    """of all of them together [B/s]"""
    edges: Floats
    """[s]"""
    share: Floats
    """of the capacity, one value between two edges"""

    @property
    def bytes(self) -> float:
        """Bytes that the links carried over all of `edges` [B]."""
        return float((self.share * np.diff(self.edges)).sum()) * self.capacity


def link_curves(
    timeline: Timeline, loads: Callable[[Collective], CollectiveCost], classes: Mapping[int, LinkClass], end: float, steps: int = STEPS
) -> list[LinkCurve]:
    """A curve per name and kind of link from 0 to `end` [s]; links that carry nothing are left out."""
    if end <= 0.0:
        return []
    copies: dict[LinkClass, int] = {}
    for link_class in classes.values():
        copies[link_class] = copies.get(link_class, 0) + 1
    pieces: dict[tuple[str, str], list[tuple[Floats, Floats, Floats]]] = {}
    transfers = np.flatnonzero(timeline.columns.flags(lambda op: op.collective is not None))
    for column in by_transfer(timeline, transfers):
        if (collective := timeline.program.ops[column[0]].collective) is None:
            continue
        cost = loads(collective)
        for sort, volume in _carried(cost, classes, copies).items():
            begins = np.minimum(timeline.start[column] + cost.latency, timeline.end[column])
            pieces.setdefault(sort, []).append((begins, timeline.end[column], np.full(len(column), volume)))
    edges = np.linspace(0.0, end, steps + 1)
    totals: dict[tuple[str, str], float] = {}
    for link_class in copies:
        key = link_class.name, link_class.kind
        totals[key] = totals.get(key, 0.0) + link_class.count * link_class.capacity
    curves = []
    for (name, kind), parts in sorted(pieces.items()):
        begins, ends, volumes = (np.concatenate(column) for column in zip(*parts, strict=True))
        share = np.diff(_moved(begins, ends, volumes, edges)) / (totals[name, kind] * np.diff(edges))
        curves.append(LinkCurve(f"{name} ({kind})", totals[name, kind], edges, share))
    return curves


def _carried(cost: CollectiveCost, classes: Mapping[int, LinkClass], copies: Mapping[LinkClass, int]) -> dict[tuple[str, str], float]:
    """Bytes of one transfer on all links of each name and kind; a simulated link stands for several."""
    carried: dict[tuple[str, str], float] = {}
    for flow in cost.flows:
        for link, coefficient in flow.path:
            if (link_class := classes.get(link)) is not None:
                stands_for = link_class.count / copies[link_class]
                kind = link_class.name, link_class.kind
                carried[kind] = carried.get(kind, 0.0) + flow.volume * coefficient * stands_for
    return carried


def _moved(begins: Floats, ends: Floats, volumes: Floats, at: Floats) -> Floats:
    """Bytes moved up to each time, if each volume moves evenly from its begin to its end."""
    length = ends - begins
    at_once = length <= 0.0
    safe = np.where(at_once, 1.0, length)
    rate = np.where(at_once, 0.0, volumes / safe)
    times = np.concatenate((begins, ends))
    order = np.argsort(times, kind="stable")
    rates = np.cumsum(np.concatenate((rate, -rate))[order])
    times = times[order]
    knots = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(times))))
    moved = np.interp(at, times, knots)
    if at_once.any():
        sudden = np.argsort(ends[at_once], kind="stable")
        totals = np.concatenate(([0.0], np.cumsum(volumes[at_once][sudden])))
        moved = moved + totals[np.searchsorted(ends[at_once][sudden], at, side="right")]
    return np.asarray(moved)
