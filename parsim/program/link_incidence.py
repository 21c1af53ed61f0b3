"""Which groups hold which ranks and cross which links, in the whole cluster, as flat arrays; and their colour refinement.

See `parsim.program.folding` for what the colours mean.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parsim.hardware.flows import CollectiveCost
from parsim.hardware.interconnect import EqualTransfers, Interconnect, Numbers
from parsim.hardware.transfers import Background
from parsim.parallel.plan import Plan
from parsim.program.program import Collective

Colours = NDArray[np.uint64]
Ranks = tuple[int, ...]
Family = tuple[str, str, int, int, str]
"""kind, axis, pipeline rank, pipeline rank of the receiver or -1, algorithms"""
Families = Mapping[tuple[str, str, int, int], Collection[int | None]]
"""(kind, axis, pipeline rank, pipeline rank of the receiver or -1) -> sizes [B]; None: a measured time, no links"""
_ROUNDS = 64


class LinkIncidence:
    """The graph of ranks, groups, flows and links, for the `families` of transfers that a step makes.

    `changing`: links that change while it runs, and how; they may bind then, and are only like those that change alike.
    """

    def __init__(
        self,
        plan: Plan,
        interconnect: Interconnect,
        families: Families,
        background: Sequence[Background],
        changing: Mapping[int, Hashable] | None = None,
    ) -> None:
        self._named: list[tuple[str, str, int, Numbers]] = []
        """kind, axis, number of the first group, members: a row per group"""
        columns = _Columns()
        for kind, axis, ranks, own, alike in _transfers(plan, interconnect, families):
            members = ranks[alike.places]
            self._named.append((kind, axis, len(columns.own), members))
            columns.add(members, own[alike.places], alike)
        for number, stream in enumerate(background):  # each is a group of its own, without ranks
            columns.add_stream(number, stream)
        self._members, self._member_group = columns.of("members"), columns.of("member_group")
        self._group_own = columns.own.copy()
        self.used_links, self._links = _numbered(columns.of("links"))
        self._weights = np.round(columns.of("weights") * 2**20).astype(np.uint64)
        self._link_flow, self._flow_group = columns.of("link_flow"), columns.of("flow_group")
        self._flow_own = columns.flow_own.copy()
        slack = interconnect.slack(self.used_links)
        self._binding = slack == 0
        self._link_seed = interconnect.capacities(self.used_links).view(np.uint64) + mixed(slack.astype(np.uint64))
        for place, link in enumerate(self.used_links.tolist() if changing else ()):
            if changing and link in changing:
                self._binding[place] = True
                self._link_seed[place : place + 1] += _hashed("changes", changing[link])  # an array may overflow

    def groups_of(self, ranks: Collection[int]) -> Iterator[tuple[tuple[str, str, Ranks], int]]:
        """((kind, axis, members), number) of the groups that any of `ranks` is in."""
        asked = np.zeros(int(self._members.max(initial=-1)) + 1, dtype=bool)
        asked[[rank for rank in ranks if rank < len(asked)]] = True
        for kind, axis, first, members in self._named:
            for place in np.flatnonzero(asked[members].any(axis=1)).tolist():
                yield (kind, axis, tuple(members[place].tolist())), first + place

    def colour(self, ranks: Colours) -> tuple[Colours, Colours, Colours]:
        """Refine until no class splits: colours of ranks, used links and groups.

        What crosses a link that never binds tells nobody apart, so all such links of one capacity and direction stay one class: their
        loads differ, but folded as unfolded nobody ever waits for them.
        """
        ranks = mixed(ranks)
        links = mixed(self._link_seed)
        groups = mixed(self._group_own)
        classes = (0, 0, 0)
        for _ in range(_ROUNDS):
            flows = mixed(self._flow_own + _runs(self._weights * mixed(links)[self._links], self._link_flow, len(self._flow_own)))
            groups = mixed(
                self._group_own
                + _runs(mixed(ranks)[self._members], self._member_group, len(groups))
                + np.uint64(3) * _runs(flows, self._flow_group, len(groups))
            )
            flows = mixed(flows + groups[self._flow_group])
            crossed = mixed(links + _sums(self._weights * flows[self._link_flow], self._links, len(links)))
            links = np.where(self._binding, crossed, links)  # a link that never binds keeps its colour
            ranks = mixed(ranks + _sums(mixed(groups)[self._member_group], self._members, len(ranks)))
            before, classes = classes, (len(np.unique(ranks)), len(np.unique(links)), len(np.unique(groups)))
            if before == classes:
                break
        return ranks, links, groups


class _Columns:
    """The arrays of `LinkIncidence` while groups are added to them."""

    def __init__(self) -> None:
        self.own: Colours = np.zeros(0, dtype=np.uint64)
        self.flow_own: Colours = np.zeros(0, dtype=np.uint64)
        self._parts: dict[str, list[NDArray[np.generic]]] = {}

    def of(self, name: str) -> Numbers:
        """One array, of all groups added so far."""
        return np.concatenate([np.zeros(0, dtype=np.float64 if name == "weights" else np.int64), *self._parts.get(name, [])])

    def add(self, ranks: Numbers, own: Colours, alike: EqualTransfers) -> None:
        """One more group per row of `ranks`; `own` tells families apart."""
        cost, (count, members) = alike.cost, ranks.shape
        groups = np.arange(len(self.own), len(self.own) + count)
        self.own = np.concatenate((self.own, mixed(own + _hashed(cost.latency, members))))
        self._append(members=ranks.ravel(), member_group=np.repeat(groups, members))
        flows = [_hashed(flow.cap, flow.volume, flow.weight) for flow in cost.flows]
        self._flows(groups, flows, [flow.path for flow in cost.flows], alike.links)

    def add_stream(self, number: int, stream: Background) -> None:
        """Background traffic of another job, as a group without ranks."""
        group = len(self.own)
        self.own = np.append(self.own, _hashed("background", number))
        links = np.array([[link for link, _ in stream.path]], dtype=np.int64)
        self._flows(np.array([group]), [_hashed(stream.cap, stream.volume)], [stream.path], links)

    def _flows(self, groups: Numbers, own: Sequence[np.uint64], paths: Sequence[Sequence[tuple[int, float]]], links: Numbers) -> None:
        """The same flows for each of the groups, over its row of links."""
        count, flows, first = len(groups), len(own), len(self.flow_own)
        within = np.repeat(np.arange(flows), [len(path) for path in paths])
        self.flow_own = np.concatenate((self.flow_own, np.tile(np.array(own, dtype=np.uint64), count)))
        self._append(
            links=links.ravel(),
            weights=np.tile(np.array([coefficient for path in paths for _, coefficient in path], dtype=np.float64), count),
            link_flow=(first + np.arange(count)[:, None] * flows + within).ravel(),
            flow_group=np.repeat(groups, flows),
        )

    def _append(self, **columns: NDArray[np.generic]) -> None:
        for name, column in columns.items():
            self._parts.setdefault(name, []).append(column)


def _transfers(plan: Plan, interconnect: Interconnect, families: Families) -> Iterator[tuple[str, str, Numbers, Colours, EqualTransfers]]:
    """Every group of the whole cluster that makes a transfer: kind, breakdown axis, groups, hashes of their families, some of them.

    Sizes of one family for which the library chooses different algorithms for some group cross different links: one of each is looked
    at. What stages ask alike is asked once.
    """
    questions: dict[tuple[str, str, int, int], list[tuple[Family, Numbers]]] = {}
    for (kind, axis, source, target), sizes in families.items():
        whole = plan.groups.timed(axis)
        groups = plan.groups.sends(source, target) if kind == "send" else plan.groups.rows(axis, source)
        if None in sizes:  # sends that were measured: no links, but whoever receives waits for whoever sends
            own = np.full(len(groups), _hashed(kind, axis, source, target, "measured"))
            no_links = np.zeros((len(groups), 0), dtype=np.int64)
            yield kind, whole, groups, own, EqualTransfers(np.arange(len(groups)), CollectiveCost(0.0, ()), no_links)
        known = sorted(size for size in sizes if size is not None)
        for algorithms, size in _chosen(interconnect, kind, whole, groups, known).items():
            questions.setdefault((kind, whole, size, groups.shape[1]), []).append(((kind, axis, source, target, algorithms), groups))
    for (kind, whole, size, _), asked in questions.items():
        ranks = np.concatenate([groups for _, groups in asked])
        own = np.repeat(np.array([_hashed(*family) for family, _ in asked]), [len(groups) for _, groups in asked])
        for alike in interconnect.equal_transfers(kind, ranks, size):
            yield kind, whole, ranks, own, alike


def _chosen(interconnect: Interconnect, kind: str, axis: str, groups: Numbers, sizes: Sequence[int]) -> dict[str, int]:
    """What the library chooses for groups of every shape -> the largest size for which it does."""
    one_size = len(sizes) < 2  # nothing to tell apart
    examples = [tuple(groups[0].tolist())] if one_size else interconnect.examples(groups)
    return {"+".join(interconnect.cost(Collective(kind, axis, one, size)).algorithm for one in examples): size for size in sizes}


def _numbered(links: Numbers) -> tuple[Numbers, Numbers]:
    """The different links, ascending, and the place of each link among them."""
    seen = np.zeros(int(links.max(initial=-1)) + 1, dtype=bool)
    seen[links] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[links]


def _runs(values: Colours, into: Numbers, count: int) -> Colours:
    """As `_sums`, where `into` ascends."""
    total = np.zeros(count, dtype=np.uint64)
    if len(into):
        begins = np.flatnonzero(np.diff(into, prepend=-1))
        total[into[begins]] = np.add.reduceat(values, begins)
    return total


def _sums(values: Colours, into: Numbers, count: int) -> Colours:
    """Sums of hashes modulo 2^64: the same for the same multiset in any order."""
    total = np.zeros(count, dtype=np.uint64)
    np.add.at(total, into, values)
    return total


def _hashed(*values: object) -> np.uint64:
    return np.uint64(hash(values) & 0xFFFFFFFFFFFFFFFF)


def mixed(values: Colours) -> Colours:
    """splitmix64's finaliser, elementwise."""
    with np.errstate(over="ignore"):
        x = values + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)
