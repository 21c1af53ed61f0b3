"""A program as a longest path: times of many replicas and many runs at once, one array per op instead of one event.

Where the order of ops is fixed and nobody waits for a share of a link, the end of an op is the latest end of what blocks it plus its
own time: max and plus, for as many columns at once as one likes (Baccelli, Cohen, Olsder, Quadrat, Synchronization and Linearity, 1992).
What links and loads do to ops is taken from a run by events, in which they are known.

Runs of kernels that nobody else waits for are one node. Each column is one replica in one run; a collective among replicas makes
its columns wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parsim.program.program import Lane, Program

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Meeting:
    """How the columns of one run are bound in a node."""

    present: NDArray[np.bool_] | None = None
    """the columns that have the node; None: all of them"""
    groups: Integers | None = None
    """by column, the place of its group: those of a group begin together; None: each by itself"""

    def begin(self, start: Floats) -> Floats:
        """When the columns begin, shape (runs, columns), each of which could at `start`."""
        if self.present is not None:
            start = np.where(self.present, start, 0.0)
        if self.groups is not None:
            order = np.argsort(self.groups, kind="stable")
            bounds = np.flatnonzero(np.r_[True, np.diff(self.groups[order]) > 0])
            start = np.maximum.reduceat(start[:, order], bounds, axis=1)[:, self.groups]
        return start


class Chains:
    """The nodes of a program: ops, and runs of kernels of a lane where each waits only for the one before, and nobody else for that."""

    def __init__(self, program: Program) -> None:
        specs, spec = program.specs, program.spec
        blockers = _blockers(program)
        blocks = [0] * len(spec)
        for before in blockers:
            for one in before:
                blocks[one] += 1
        node = [-1] * len(spec)
        count = 0
        for index, before in enumerate(blockers):
            if len(before) == 1 and before[0] < index and blocks[before[0]] == 1:
                own, other = specs[spec[index]], specs[spec[before[0]]]
                if own.collective is None and other.collective is None and own.lanes[:1] == other.lanes[:1]:
                    node[index] = node[before[0]]
                    continue
            node[index] = count
            count += 1
        self.node: Integers = np.array(node, dtype=np.int64)
        """by op, its node"""
        self.count = count
        self._blockers: list[dict[int, None]] = [{} for _ in range(count)]
        for index, before in enumerate(blockers):
            self._blockers[node[index]].update(dict.fromkeys(node[one] for one in before if node[one] != node[index]))

    def order(self) -> list[tuple[int, list[int]]]:
        """(node, the nodes that block it), every one behind its blockers."""
        blockers = list(map(list, self._blockers))
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


def _blockers(program: Program) -> list[list[int]]:
    """By op, the ops that block it, but for those which an op of a common lane in between waits for already."""
    specs, spec = program.specs, program.spec
    found: list[list[int]] = [[] for _ in spec]
    for blocker, offsets in enumerate(program.successors):
        for offset in offsets:
            found[blocker + offset].append(blocker)
    last: dict[Lane, int] = {}
    for index, before in enumerate(found):
        lanes = specs[spec[index]].lanes
        if len(before) > 1:
            nearest = {last[lane] for lane in lanes if lane in last}
            found[index] = [one for one in before if one in nearest or set(lanes).isdisjoint(specs[spec[one]].lanes)]
        for lane in lanes:
            last[lane] = index
    return found


def ends(order: Sequence[tuple[int, Sequence[int]]], seconds: Floats, meetings: dict[int, Meeting]) -> Floats:
    """When every node ends in every column of every run [s], written over how long each takes, shape (nodes, runs, columns)."""
    for node, blockers in order:
        own = seconds[node]
        meeting = meetings.get(node)
        if len(blockers) == 1:
            start = seconds[blockers[0]]
        elif blockers:
            start = np.maximum(seconds[blockers[0]], seconds[blockers[1]])
            for blocker in blockers[2:]:
                np.maximum(start, seconds[blocker], out=start)
        else:
            continue
        own += start if meeting is None else meeting.begin(start)
    return seconds
