"""A program as a longest path: times of many replicas and many runs at once, one array per op instead of one event.

Where the order of ops is fixed and nobody waits for a share of a link, the end of an op is the latest end of what blocks it plus its
own time: max and plus, for as many columns at once as one likes (Baccelli, Cohen, Olsder, Quadrat, Synchronization and Linearity, 1992).
What links and loads do to ops is taken from a run by events, in which they are known.

A chain of ops of one rank, each of which waits only for the one before and nobody else for that, is one node. Each column is one
replica; a collective among replicas makes its columns wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parsim.program.program import Lane, Program

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Replicas:
    """Which columns have which node, and which of them wait for each other there."""

    sets: Sequence[Integers]
    """sets of columns, each ascending"""
    of: Sequence[int]
    """by node, the number of its set"""
    groups: Mapping[int, Integers] = field(default_factory=dict)
    """node -> by column of it, the number of its group: those of a group begin together. The others: each by itself"""
    _common: dict[tuple[int, int], tuple[Integers, Integers]] = field(default_factory=dict)

    def seen(self, ends: Floats, of: int, here: int) -> Floats:
        """What the columns of set `here` see of ends in those of set `of`, shape (runs, columns); 0 where these are not."""
        if (places := self._common.get((of, here))) is None:
            places = self._common[of, here] = np.intersect1d(self.sets[of], self.sets[here], return_indices=True)[1:]
        found = np.zeros((len(ends), len(self.sets[here])))
        found[:, places[1]] = ends[:, places[0]]
        return found

    def together(self, node: int, start: Floats) -> Floats:
        """When the columns of a node begin, each of which could at `start`."""
        groups = self.groups.get(node)
        if groups is None:
            return start
        order = np.argsort(groups, kind="stable")
        new = np.r_[True, np.diff(groups[order]) > 0]
        latest = np.maximum.reduceat(start[:, order], np.flatnonzero(new), axis=1)
        found = np.empty_like(start)
        found[:, order] = latest[:, np.cumsum(new) - 1]
        return found


class Chains:
    """The nodes of a program, chains of the ops of one rank.

    `meeting` are ops in which columns wait for each other: each is a node of its own. A node ends with each of `closing`. A node has
    segments: kernels between two collectives, or a collective. Between two segments a rank waits for those that it stands for.
    """

    def __init__(self, program: Program, meeting: Collection[int] = frozenset(), closing: Collection[int] = frozenset()) -> None:
        specs, spec = program.specs, program.spec
        lanes: list[Hashable] = [specs[number].lanes[:1] if specs[number].collective is None else op for op, number in enumerate(spec)]
        self.segment, blockers = _chained(_blockers(program), lanes, closing)
        """by op, its segment"""
        del lanes  # of programs of millions of ops
        firsts = np.unique(self.segment, return_index=True)[1].tolist()
        ranks = (-1 if op in meeting else _only_rank(specs[spec[op]].lanes) for op in firsts)
        owner = [rank if rank >= 0 else -1 - op for op, rank in zip(firsts, ranks, strict=True)]
        node, self._blockers = _chained(_needed(blockers, owner), owner, {int(self.segment[op]) for op in closing})
        self.node: Integers = node[self.segment]
        """by op, its node"""
        self.count = len(self._blockers)

    def order(self) -> list[tuple[int, tuple[int, ...]]]:
        """(node, the nodes that block it), every one behind its blockers."""
        blockers = self._blockers
        blocked: list[list[int]] = [[] for _ in range(self.count)]
        for after, before in enumerate(blockers):
            for one in before:
                blocked[one].append(after)
        left = list(map(len, blockers))
        ready = [node for node, waits in enumerate(left) if not waits]
        for node in ready:  # grows while it is walked
            for after in blocked[node]:
                left[after] -= 1
                if not left[after]:
                    ready.append(after)
        return [(node, blockers[node]) for node in ready]


def _only_rank(lanes: Sequence[Lane]) -> int:
    """The rank of all lanes; -1 for several, or none."""
    found = {lane.rank for lane in lanes}
    return found.pop() if len(found) == 1 else -1


def _chained(
    blockers: Sequence[Sequence[int]], owner: Sequence[Hashable], closing: Collection[int]
) -> tuple[Integers, list[tuple[int, ...]]]:
    """(by item, the number of its chain; by chain, the chains that block it).

    An item joins the one before it of the same owner where it waits only for that one, and nobody else does,
    unless that one closes its chain.
    """
    blocks = [0] * len(blockers)
    for before in blockers:
        for one in before:
            blocks[one] += 1
    number = [-1] * len(blockers)
    firsts: list[Sequence[int]] = []
    """by chain, what blocks its first item: the others wait for each other"""
    for item, before in enumerate(blockers):
        alone = len(before) == 1 and before[0] < item and blocks[before[0]] == 1 and owner[item] == owner[before[0]]
        if alone and before[0] not in closing:
            number[item] = number[before[0]]
        else:
            number[item] = len(firsts)
            firsts.append(before)
    return np.array(number, dtype=np.int64), [tuple(dict.fromkeys(number[one] for one in before)) for before in firsts]


def _needed(blockers: Sequence[Sequence[int]], owner: Sequence[int]) -> list[Sequence[int]]:
    """Blockers but for those that another one of the same owner waits for already."""
    found = list(blockers)
    for item, before in enumerate(blockers):
        if len(before) > 1:
            implied = {one for other in before if owner[other] == owner[item] for one in blockers[other] if owner[one] == owner[item]}
            found[item] = tuple(one for one in before if one not in implied)
    return found


def _blockers(program: Program) -> list[tuple[int, ...]]:
    """By op, the ops that block it, but for those which an op of a common lane in between waits for already."""
    specs, spec = program.specs, program.spec
    found: list[tuple[int, ...]] = [()] * len(spec)
    for blocker, offsets in enumerate(program.successors):
        for offset in offsets:
            found[blocker + offset] += (blocker,)
    last: dict[Lane, int] = {}
    for index, before in enumerate(found):
        lanes = specs[spec[index]].lanes
        if len(before) > 1:
            nearest = {last[lane] for lane in lanes if lane in last}
            found[index] = tuple(one for one in before if one in nearest or set(lanes).isdisjoint(specs[spec[one]].lanes))
        for lane in lanes:
            last[lane] = index
    return found


def ends(order: Sequence[tuple[int, Sequence[int]]], seconds: Sequence[Floats], replicas: Replicas | None = None) -> None:
    """Write over how long every node takes [s], by node an array (runs, columns), when it ends. Without `replicas` columns are alike."""
    for node, blockers in order:
        if not blockers:
            continue
        if replicas is None:
            before = [seconds[one] for one in blockers]
        else:
            here, of = replicas.of[node], replicas.of
            before = [seconds[one] if of[one] == here else replicas.seen(seconds[one], of[one], here) for one in blockers]
        start = before[0]
        if len(before) > 1:
            start = np.maximum(start, before[1])
            for one in before[2:]:
                np.maximum(start, one, out=start)
        own = seconds[node]
        own += start if replicas is None else replicas.together(node, start)
