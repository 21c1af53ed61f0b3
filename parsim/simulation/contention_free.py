"""Collectives that can never meet another on a link: they need no network, only their idle-fabric time.

Two ops that share a lane never run together. So if all ops that cross a link share one lane, at most one of them uses
it at any time; a collective whose links are all of that kind, and whose own flows fit on them, runs exactly at its caps.
Tensor-parallel groups inside an NVSwitch are the common case, and most of a large program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.trace import LinkUse

_FITS = 1 + 1e-9
_FULL = 0.999


@dataclass(frozen=True, slots=True)
class Uncontended:
    """What one such collective takes."""

    time: float
    """latency + transfer on an idle fabric [s]"""
    loads: tuple[tuple[int, float, float], ...]
    """per link: its id, bytes [B] and time at >= 99.9 % of capacity [s] of one run"""


def contention_free(
    program: Program, cost: Callable[[Collective], CollectiveCost], capacity: Callable[[int], float], shared: Iterable[int] = ()
) -> dict[Collective, Uncontended]:
    """Time and loads of the collectives that never share a link. `shared` are links that carry other traffic as well."""
    common: dict[int, set[Lane]] = {link: set() for link in shared}
    links: dict[Collective, frozenset[int]] = {}
    for collective, lanes in program.transfers():
        if collective not in links:
            links[collective] = frozenset(link for flow in cost(collective).flows if flow.volume for link, _ in flow.path)
        for link in links[collective]:
            if link in common:
                common[link].intersection_update(lanes)
            else:
                common[link] = set(lanes)
    found = {}
    for collective, crossed in links.items():
        if all(common[link] for link in crossed) and (one := uncontended(cost(collective), capacity)) is not None:
            found[collective] = one
    return found


def uncontended(cost: CollectiveCost, capacity: Callable[[int], float]) -> Uncontended | None:
    """The collective alone on its links; None if its own flows compete."""
    demand: dict[int, float] = {}
    carried: dict[int, float] = {}
    busy: dict[int, list[tuple[float, float]]] = {}
    for flow in cost.flows:
        if not flow.volume:
            continue
        if not flow.cap > 0:
            return None
        for link, coefficient in flow.path:
            demand[link] = demand.get(link, 0.0) + coefficient * flow.cap
            carried[link] = carried.get(link, 0.0) + coefficient * flow.volume
            busy.setdefault(link, []).append((flow.volume / flow.cap, coefficient * flow.cap))
    for link, load in demand.items():
        if load > capacity(link) * _FITS:
            return None
    return Uncontended(cost.time, tuple((link, size, _full(busy[link], _FULL * capacity(link))) for link, size in carried.items()))


def _full(flows: list[tuple[float, float]], nearly: float) -> float:
    """How long flows of (time, rate) that begin together carry `nearly` or more [s]."""
    load = 0.0
    for time, rate in sorted(flows, reverse=True):
        load += rate
        if load >= nearly:
            return time
    return 0.0


def add_uses(uses: dict[int, LinkUse], ran: Iterable[tuple[Uncontended, int]]) -> None:
    """Add what collectives did to their links without the network, each as often as it ran."""
    for one, runs in ran:
        for link, size, full in one.loads:
            before = uses.get(link)
            carried, saturated = (before.bytes, before.saturated) if before is not None else (0.0, 0.0)
            uses[link] = LinkUse(carried + size * runs, saturated + full * runs)
