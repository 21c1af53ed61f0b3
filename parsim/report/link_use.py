"""How much of each kind of link is in use over time.

A transfer moves its bytes evenly between the end of its latency and its own end. That is exact for a transfer whose rate does not
change; where rates change under contention it is the mean, and the bytes are exact in every case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective
from parsim.report.communication import LinkClass, by_transfer
from parsim.report.timeline import Floats, Timeline

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
        """What they carried [B]."""
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
    found: dict[tuple[str, str], float] = {}
    for flow in cost.flows:
        for link, coefficient in flow.path:
            if (link_class := classes.get(link)) is not None:
                stands_for = link_class.count / copies[link_class]
                kind = link_class.name, link_class.kind
                found[kind] = found.get(kind, 0.0) + flow.volume * coefficient * stands_for
    return found


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
