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

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.interconnect import Interconnect, Numbers
from parsim.hardware.transfers import Background
from parsim.kernel import Kernel
from parsim.parallel.groups import PIPELINE
from parsim.parallel.plan import Plan, Role
from parsim.program.link_incidence import Colours, LinkIncidence, Ranks
from parsim.program.lowering import Lowering
from parsim.program.program import Collective
from parsim.program.script import Scripts, families, write

Path = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Classes:
    """The partition."""

    representatives: tuple[int, ...]
    represents: Mapping[int, int]
    """rank -> the representative of its class"""
    used_links: Numbers
    """every link that any transfer crosses, ascending"""
    links_like: Numbers
    """place among them of the representative of each one's class"""
    group_counts: Mapping[tuple[str, str, Ranks], int]
    """(kind, axis, group) -> groups in its class, for the groups of representatives"""

    @cached_property
    def links(self) -> Mapping[int, int]:
        """Link -> the representative of its class."""
        return dict(zip(self.used_links.tolist(), self.used_links[self.links_like].tolist(), strict=True))

    @cached_property
    def link_counts(self) -> Mapping[int, int]:
        """Representative link -> links in its class."""
        counts = np.bincount(self.links_like)
        places = np.flatnonzero(counts)
        return dict(zip(self.used_links[places].tolist(), counts[places].tolist(), strict=True))

    def path(self, path: Path, times: int) -> Path:
        """What `times` equal flows over a path put on each of the links that stand for theirs."""
        if not path:
            return ()
        numbers, coefficients = np.array(path, dtype=np.float64).T
        places = self.links_like[np.searchsorted(self.used_links, numbers.astype(np.int64))]
        sums = np.bincount(places, coefficients)
        links = np.flatnonzero(np.bincount(places))
        counts = self.link_counts
        return tuple(
            (link, times * total / counts[link]) for link, total in zip(self.used_links[links].tolist(), sums[links].tolist(), strict=True)
        )

    def members(self, representative: int) -> tuple[int, ...]:
        """The ranks a representative stands for, ascending."""
        return tuple(rank for rank, other in self.represents.items() if other == representative)


class FoldedInterconnect:
    """An interconnect as the representatives see it: everybody else's load stands in the coefficients."""

    def __init__(self, whole: Interconnect, classes: Classes) -> None:
        self._whole = whole
        self._classes = classes
        self._known: dict[Collective, CollectiveCost] = {}
        self._paths: dict[tuple[Path, int], Path] = {}

    def capacity(self, link: int) -> float:
        """Capacity of the (equal) links of a class [B/s]."""
        return self._whole.capacity(link)

    def cost(self, collective: Collective) -> CollectiveCost:
        """The cost of the representative's transfer, with the load of all its equals."""
        if (known := self._known.get(collective)) is None:
            known = self._known[collective] = self._fold(collective)
        return known

    def _fold(self, collective: Collective) -> CollectiveCost:
        cost = self._whole.cost(collective)
        count = self._classes.group_counts[collective.kind, collective.axis, collective.group]
        merged: dict[tuple[Path, float, float, float], int] = {}
        for flow in cost.flows:
            key = (self._path(flow.path, count), flow.volume, flow.cap, flow.weight)
            merged[key] = merged.get(key, 0) + 1
        flows = tuple(
            Flow(tuple((link, times * coefficient) for link, coefficient in path), volume, cap, weight)
            for (path, volume, cap, weight), times in merged.items()
        )
        return CollectiveCost(cost.latency, flows, cost.algorithm, cost.protocol, cost.blocks)

    def _path(self, path: Path, count: int) -> Path:
        """See `Classes.path`; transfers of a group share their paths."""
        key = (path, count)
        if (found := self._paths.get(key)) is None:
            found = self._paths[key] = self._classes.path(path, count)
        return found

    def background(self, stream: Background) -> Background:
        """Another job's traffic, which is a class of its own, on the representative links."""
        return replace(stream, path=self._classes.path(tuple(stream.path), 1))


def fold(
    plan: Plan, interconnect: Interconnect, clock: Callable[[Kernel], float], background: Sequence[Background] = ()
) -> tuple[Classes, Lowering]:
    """The classes of a plan's ranks, and the finished lowering of their representatives.

    `background` is traffic of other jobs, which makes ranks unequal whose links it crosses.
    """
    scripts = write(plan, clock)
    classes = classes_of(plan, interconnect, scripts, background)
    return classes, lower(plan, clock, scripts, classes)


def lower(plan: Plan, clock: Callable[[Kernel], float], scripts: Scripts, classes: Classes | None) -> Lowering:
    """The finished lowering of one rank per class; without classes, of all ranks."""
    ranks, represents = (None, None) if classes is None else (classes.representatives, classes.represents)
    lowering = Lowering(plan, clock, ranks, represents, scripts)
    lowering.run()
    return lowering


def classes_of(
    plan: Plan,
    interconnect: Interconnect,
    scripts: Scripts,
    background: Sequence[Background] = (),
    apart: Sequence[int] = (),
    changing: Mapping[int, Hashable] | None = None,
) -> Classes:
    """The coarsest equitable partition at least as fine as "one class per stage, role and speed".

    `apart`: a number per rank; ranks of different numbers are told apart, too. `changing`: see `LinkIncidence`.
    """
    first: dict[tuple[int, Role, float, int], int] = {}
    kinds = zip(plan.mesh.coordinates(PIPELINE), plan.roles(), plan.speeds(), apart or [0] * plan.mesh.ranks, strict=True)
    seed = np.array([first.setdefault(kind, rank) for rank, kind in enumerate(kinds)], dtype=np.uint64)
    incidence = LinkIncidence(plan, interconnect, families(scripts), background, changing)
    ranks, links, groups = incidence.colour(seed)
    representative_of = _first_of_each(ranks)
    representatives = np.unique(representative_of).tolist()
    group_of = _first_of_each(groups)
    group_sizes = np.bincount(group_of, minlength=len(groups))
    return Classes(
        representatives=tuple(representatives),
        represents=dict(enumerate(representative_of.tolist())),
        used_links=incidence.used_links,
        links_like=_first_of_each(links),
        group_counts={key: int(group_sizes[group_of[number]]) for key, number in incidence.groups_of(representatives)},
    )


def _first_of_each(colours: Colours) -> Numbers:
    """For every element the place of the first one with its colour."""
    kinds = np.unique(colours)
    kind = np.searchsorted(kinds, colours)
    first = np.zeros(len(kinds), dtype=np.int64)
    first[kind[::-1]] = np.arange(len(colours))[::-1]
    return first[kind]
