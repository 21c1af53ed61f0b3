"""Folding: which ranks do the same work on equivalent links, so that one of them stands for all.

Ranks, groups and links form a graph; colour refinement (1-WL) finds its coarsest equitable partition: ranks of one
class belong to groups of the same classes, groups of one class cross links of the same classes with the same
coefficients, links of one class carry the same flows. Max-min rates are constant on such classes and solve the
quotient problem, in which a link of class L meets a flow of class G with coefficient

    (groups in G) x (sum of the flow's coefficients over L) / (links in L)

so one rank per class, on one link per class, behaves exactly as the whole (Berkholz, Bonsma, Grohe 2017 on colour
refinement; equitable partitions of linear programs: Grohe, Kersting, Mladenov, Selman 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from parsim.hardware.background import Background
from parsim.hardware.batches import Batch
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.kernel import Kernel
from parsim.parallel.plan import Plan
from parsim.program.lowering import Lowering
from parsim.program.program import Collective

Colours = NDArray[np.uint64]
Ranks = tuple[int, ...]
_ROUNDS = 64


class Interconnect(Protocol):
    """What transfers cost and what links can carry."""

    def cost(self, collective: Collective) -> CollectiveCost: ...
    def capacity(self, link: int) -> float: ...


@runtime_checkable
class Batching(Protocol):
    """Knows which transfers cost the same on other links."""

    def batches(self, kind: str, groups: Sequence[Ranks], size: int) -> Sequence[Batch]: ...


@dataclass(frozen=True)
class Classes:
    """The partition. `links` holds every link that any transfer crosses."""

    representatives: tuple[int, ...]
    represents: Mapping[int, int]
    """rank -> the representative of its class"""
    links: Mapping[int, int]
    """link -> the representative of its class"""
    link_counts: Mapping[int, int]
    """representative link -> links in its class"""
    group_counts: Mapping[tuple[str, str, Ranks], int]
    """(kind, axis, group) -> groups in its class"""

    def members(self, representative: int) -> tuple[int, ...]:
        """The ranks a representative stands for, ascending."""
        return tuple(rank for rank, other in self.represents.items() if other == representative)


class FoldedInterconnect:
    """An interconnect as the representatives see it: everybody else's load stands in the coefficients."""

    def __init__(self, whole: Interconnect, classes: Classes) -> None:
        self._whole = whole
        self._classes = classes
        self._known: dict[Collective, CollectiveCost] = {}

    def capacity(self, link: int) -> float:
        """Capacity of the (equal) links of a class [B/s]."""
        return self._whole.capacity(link)

    def cost(self, collective: Collective) -> CollectiveCost:
        """The cost of the representative's transfer, with the load of all its equals."""
        if (cost := self._known.get(collective)) is None:
            cost = self._known[collective] = self._fold(collective)
        return cost

    def _fold(self, collective: Collective) -> CollectiveCost:
        cost = self._whole.cost(collective)
        count = self._classes.group_counts[collective.kind, collective.axis, collective.group]
        merged: dict[tuple[tuple[tuple[int, float], ...], float, float, float], int] = {}
        for flow in cost.flows:
            path = self._path(flow.path, count)
            key = (path, flow.volume, flow.cap, flow.weight)
            merged[key] = merged.get(key, 0) + 1
        flows = tuple(
            Flow(tuple((link, times * coefficient) for link, coefficient in path), volume, cap, weight)
            for (path, volume, cap, weight), times in merged.items()
        )
        return CollectiveCost(cost.latency, flows, cost.algorithm, cost.protocol)

    def background(self, stream: Background) -> Background:
        """Another job's traffic, which is a class of its own, on the representative links."""
        return replace(stream, path=self._path(stream.path, 1))

    def _path(self, path: Sequence[tuple[int, float]], count: int) -> tuple[tuple[int, float], ...]:
        """The path of `count` equal flows on the links that stand for theirs."""
        sums: dict[int, float] = {}
        for link, coefficient in path:
            representative = self._classes.links[link]
            sums[representative] = sums.get(representative, 0.0) + coefficient
        return tuple((link, count * total / self._classes.link_counts[link]) for link, total in sorted(sums.items()))


Lowered = TypeVar("Lowered", bound=Lowering)
Lower = Callable[[Plan, Callable[[Kernel], float], Sequence[int], Mapping[int, int]], Lowered]


def fold(
    plan: Plan, interconnect: Interconnect, clock: Callable[[Kernel], float], background: Sequence[Background] = ()
) -> tuple[Classes, Lowering]:
    """The classes of a plan's ranks, and the finished lowering of their representatives; see `fold_with`."""
    return fold_with(Lowering, plan, interconnect, clock, background)


def fold_with(
    lower: Lower[Lowered],
    plan: Plan,
    interconnect: Interconnect,
    clock: Callable[[Kernel], float],
    background: Sequence[Background] = (),
) -> tuple[Classes, Lowered]:
    """The classes of a plan's ranks, and the finished lowering, made by `lower`, of their representatives.

    `background` is traffic of other jobs, which makes ranks unequal whose links it crosses.

    Starts from "one class per stage, role and speed", lowers that, looks at which transfers it makes, refines, and
    lowers again if the refinement split a class.
    """
    first: dict[tuple[int, str, float], int] = {}
    represents = {}
    for rank in range(plan.mesh.ranks):
        key = (plan.mesh.coordinate(rank, "pipeline"), plan.role(rank), plan.slow.get(rank, 1.0))
        represents[rank] = first.setdefault(key, rank)
    while True:
        lowering = lower(plan, clock, tuple(dict.fromkeys(represents.values())), represents)
        lowering.run()
        classes = refine(plan, interconnect, lowering, represents, background)
        if len(classes.representatives) == len(set(represents.values())):
            return classes, lowering
        represents = dict(classes.represents)


def refine(
    plan: Plan, interconnect: Interconnect, lowering: Lowering, represents: Mapping[int, int], background: Sequence[Background] = ()
) -> Classes:
    """The coarsest equitable partition at least as fine as `represents`, for the transfers the program makes."""
    incidence = _Incidence(plan, interconnect, lowering, background)
    seed = np.array([represents[rank] for rank in range(plan.mesh.ranks)], dtype=np.uint64)
    ranks, links, groups = incidence.colour(_mix(seed))
    representative_of = _first_of_each(ranks)
    link_of = _first_of_each(links)
    group_of = _first_of_each(groups)
    group_sizes = np.bincount(group_of, minlength=len(groups)) if len(groups) else np.zeros(0, dtype=np.int64)
    used = incidence.used_links
    link_map = dict(zip(used.tolist(), used[link_of].tolist(), strict=True))
    counts: dict[int, int] = {}
    for other in link_map.values():
        counts[other] = counts.get(other, 0) + 1
    return Classes(
        representatives=tuple(np.unique(representative_of).tolist()),
        represents=dict(enumerate(representative_of.tolist())),
        links=link_map,
        link_counts=counts,
        group_counts=dict(zip(incidence.keys, group_sizes[group_of].tolist(), strict=False)),
    )


class _Incidence:
    """Which groups hold which ranks and cross which links, as flat arrays."""

    def __init__(self, plan: Plan, interconnect: Interconnect, lowering: Lowering, background: Sequence[Background]) -> None:
        self.keys: list[tuple[str, str, Ranks]] = []
        columns = _Columns()
        for keys, family, batch in _groups(plan, interconnect, lowering):
            chosen = [keys[place] for place in batch.places.tolist()]
            columns.add(len(self.keys), np.array([key[2] for key in chosen], dtype=np.int64), family, batch)
            self.keys += chosen
        for number, stream in enumerate(background):  # each is a group of its own, without ranks
            columns.add_stream(len(self.keys) + number, number, stream)
        self._members, self._member_group = columns.of("members"), columns.of("member_group")
        self._group_own = _unsigned(columns.own)
        self.used_links, self._links = np.unique(columns.of("links"), return_inverse=True)
        self._weights = np.round(columns.of("weights") * 2**20).astype(np.uint64)
        self._link_flow, self._flow_group = columns.of("link_flow"), columns.of("flow_group")
        self._flow_own = _unsigned(columns.flow_own)
        self._link_seed = _unsigned([hash(interconnect.capacity(link)) for link in self.used_links.tolist()])

    def colour(self, ranks: Colours) -> tuple[Colours, Colours, Colours]:
        """Refine until no class splits: colours of ranks, used links and groups."""
        links = _mix(self._link_seed)
        groups = _mix(self._group_own)
        classes = (0, 0, 0)
        for _ in range(_ROUNDS):
            flows = _mix(self._flow_own + self._sum(self._weights * _mix(links[self._links]), self._link_flow, len(self._flow_own)))
            groups = _mix(
                self._group_own
                + self._sum(_mix(ranks[self._members]), self._member_group, len(groups))
                + np.uint64(3) * self._sum(flows, self._flow_group, len(groups))
            )
            flows = _mix(flows + groups[self._flow_group])
            links = _mix(links + self._sum(self._weights * flows[self._link_flow], self._links, len(links)))
            ranks = _mix(ranks + self._sum(_mix(groups[self._member_group]), self._members, len(ranks)))
            found = (len(np.unique(ranks)), len(np.unique(links)), len(np.unique(groups)))
            if found == classes:
                break
            classes = found
        return ranks, links, groups

    @staticmethod
    def _sum(values: Colours, into: NDArray[np.int64], count: int) -> Colours:
        """Sums of hashes modulo 2^64: the same for the same multiset in any order."""
        total = np.zeros(count, dtype=np.uint64)
        np.add.at(total, into, values)
        return total


class _Columns:
    """Arrays while they grow."""

    def __init__(self) -> None:
        self.own: list[int] = []
        self.flow_own: list[int] = []
        self._parts: dict[str, list[NDArray[np.generic]]] = {}

    def of(self, name: str) -> NDArray[np.int64]:
        """One column."""
        return np.concatenate([np.zeros(0, dtype=np.float64 if name == "weights" else np.int64), *self._parts.get(name, [])])

    def add(self, number: int, ranks: NDArray[np.int64], family: tuple[object, ...], batch: Batch) -> None:
        """Groups from `number` on, a row of `ranks` each."""
        cost, (count, members) = batch.cost, ranks.shape
        groups = np.arange(number, number + count)
        self.own += [hash((family, cost.latency, members))] * count
        self._append(members=ranks.ravel(), member_group=np.repeat(groups, members))
        self._flows(
            groups, [hash((flow.cap, flow.volume, flow.weight)) for flow in cost.flows], [flow.path for flow in cost.flows], batch.links
        )

    def add_stream(self, group: int, number: int, stream: Background) -> None:
        """Traffic of others."""
        self.own.append(hash(("background", number)))
        links = np.array([[link for link, _ in stream.path]], dtype=np.int64)
        self._flows(np.array([group]), [hash((stream.cap, stream.volume))], [stream.path], links)

    def _flows(
        self, groups: NDArray[np.int64], own: Sequence[int], paths: Sequence[Sequence[tuple[int, float]]], links: NDArray[np.int64]
    ) -> None:
        """The same flows for each of the groups, over its row of links."""
        count, flows, first = len(groups), len(own), len(self.flow_own)
        within = np.repeat(np.arange(flows), [len(path) for path in paths])
        self.flow_own += list(own) * count
        self._append(
            links=links.ravel(),
            weights=np.tile(np.array([coefficient for path in paths for _, coefficient in path], dtype=np.float64), count),
            link_flow=(first + np.arange(count)[:, None] * flows + within).ravel(),
            flow_group=np.repeat(groups, flows),
        )

    def _append(self, **columns: NDArray[np.generic]) -> None:
        for name, column in columns.items():
            self._parts.setdefault(name, []).append(column)


def _groups(
    plan: Plan, interconnect: Interconnect, lowering: Lowering
) -> Iterator[tuple[list[tuple[str, str, Ranks]], tuple[object, ...], Batch]]:
    """Every group of the whole cluster that makes a transfer: (kind, breakdown axis, ranks) of each, their family, their costs in batches.

    Sizes of one family for which the library chooses different algorithms cross different links: one of each is looked at.
    """
    mesh = plan.mesh
    for (kind, axis, source, target), sizes in lowering.families.items():
        whole = lowering.breakdown_axis(axis)
        groups: dict[Ranks, None] = {}
        along = {axis: 0} if axis in mesh.order and kind != "send" else {}
        for rank in mesh.at(pipeline=source, **along):
            groups[(rank, mesh.move(rank, "pipeline", target)) if kind == "send" else lowering.group(axis, rank)] = None
            if axis == "world":
                break
        first = next(iter(groups))
        chosen = {interconnect.cost(Collective(kind, whole, first, size)).algorithm: size for size in sorted(sizes)}
        keys = [(kind, whole, group) for group in groups]
        for algorithm, size in chosen.items():
            family = (kind, axis, source, target, algorithm)
            for equal in _equal_sizes(list(groups)):
                for batch in _priced(interconnect, kind, whole, [keys[place][2] for place in equal], size):
                    yield keys, family, replace(batch, places=np.array(equal, dtype=np.int64)[batch.places])


def _equal_sizes(groups: Sequence[Ranks]) -> list[list[int]]:
    """Places of groups with equally many members."""
    found: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        found.setdefault(len(group), []).append(place)
    return list(found.values())


def _priced(interconnect: Interconnect, kind: str, axis: str, groups: Sequence[Ranks], size: int) -> Sequence[Batch]:
    if isinstance(interconnect, Batching):
        return interconnect.batches(kind, groups, size)
    costs = [interconnect.cost(Collective(kind, axis, group, size)) for group in groups]
    links = [[link for flow in cost.flows for link, _ in flow.path] for cost in costs]
    return [
        Batch(np.array([place]), cost, np.array([row], dtype=np.int64)) for place, (cost, row) in enumerate(zip(costs, links, strict=True))
    ]


def _first_of_each(colours: Colours) -> NDArray[np.int64]:
    """For every element the index of the first one with its colour."""
    if not len(colours):
        return np.zeros(0, dtype=np.int64)
    _, first, inverse = np.unique(colours, return_index=True, return_inverse=True)
    return np.asarray(first[inverse], dtype=np.int64)


def _unsigned(values: list[int]) -> Colours:
    return np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], dtype=np.uint64)


def _mix(values: Colours) -> Colours:
    """splitmix64's finaliser, elementwise."""
    with np.errstate(over="ignore"):
        x = values + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)
