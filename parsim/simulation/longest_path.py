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

from parsim.program.program import Program

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
    """The nodes of a program: ops, and runs of kernels of a lane where each waits for the one before it only, which nobody else waits for."""

    def __init__(self, program: Program) -> None:
        specs, spec, successors, blockers = program.specs, program.spec, program.successors, program.blockers
        node = [-1] * len(spec)
        count = 0
        for index, offsets in enumerate(successors):
            if node[index] < 0:
                node[index] = count
                count += 1
            if len(offsets) != 1 or offsets[0] <= 0 or blockers[following := index + offsets[0]] != 1:
                continue
            own, other = specs[spec[index]], specs[spec[following]]
            if own.collective is None and other.collective is None and own.lanes[:1] == other.lanes[:1]:
                node[following] = node[index]
        self.node: Integers = np.array(node, dtype=np.int64)
        """by op, its node"""
        self.count = count
        before, after = program.edges()
        pairs = np.unique(np.stack((self.node[before], self.node[after]), axis=1), axis=0)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        self._edges = pairs

    def order(self) -> list[tuple[int, list[int]]]:
        """(node, the nodes that block it), every one behind its blockers."""
        blockers: list[list[int]] = [[] for _ in range(self.count)]
        blocked: list[list[int]] = [[] for _ in range(self.count)]
        for before, after in self._edges.tolist():
            blockers[after].append(before)
            blocked[before].append(after)
        left = list(map(len, blockers))
        ready = [node for node, waits in enumerate(left) if not waits]
        for node in ready:  # grows while it is walked
            for after in blocked[node]:
                left[after] -= 1
                if not left[after]:
                    ready.append(after)
        return [(node, blockers[node]) for node in ready]


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
