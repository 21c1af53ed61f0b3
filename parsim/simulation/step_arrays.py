"""Many disturbed steps at once, as a longest path over arrays of replicas and runs.

Order, shared links and what communication takes from kernels are those of the undisturbed step; replicas wait for each other as they do.
What a segment of kernels takes is linear in a GPU's slowness: for a run its draws are summed up once, whatever the causes that are on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from parsim.simulation.draws import Floats
from parsim.simulation.factors import MEMORY_EXPONENT
from parsim.simulation.longest_path import Chains, Replicas, ends
from parsim.simulation.op_factors import Disturbance, GroupCollectives, Integers, Kernels, OpFactors
from parsim.simulation.slowest_rank import SlowestRank
from parsim.simulation.trace import Trace
from parsim.simulation.watched import WHOLE, Watched

MOST_NUMBERS = 2**25
"""numbers of one array: it says how many runs go together"""


class StepArrays:
    """A step whose disturbed variants are found as arrays. `columns`: how many replicas there are; `watched`: which ends are read."""

    def __init__(self, factors: OpFactors, columns: int, trace: Trace, watched: Sequence[Watched] = (WHOLE,)) -> None:
        self._factors, self._trace, self._watched = factors, trace, watched
        self._took = trace.ends - trace.starts
        meeting = [some.ops for some in factors.transfers if some.groups is not None]
        closing = frozenset(op for one in watched if one.ops is not None for op in one.ops.tolist())
        self._chains = Chains(factors.program, frozenset(np.concatenate(meeting).tolist()) if meeting else frozenset(), closing)
        self._order = self._chains.order()
        self._replicas = self._bound(columns)
        of = np.array(self._replicas.of)
        self._row: Integers = np.zeros(len(of), dtype=np.int64)
        """by node, its row in the array of its set of columns"""
        self._rows: list[int] = np.bincount(of, minlength=len(self._replicas.sets)).tolist()
        for number in range(len(self._rows)):
            self._row[of == number] = np.arange(self._rows[number])
        numbers = int(np.dot(self._rows, [len(some) for some in self._replicas.sets]))
        self._together = max(1, MOST_NUMBERS // max(1, numbers))

    def _bound(self, columns: int) -> Replicas:
        """Which columns have which node: those of its rank, or of the groups that meet in it."""
        known: dict[tuple[int, ...], int] = {tuple(range(columns)): 0}
        of = np.zeros(self._chains.count, dtype=np.int64)
        groups: dict[int, Integers] = {}
        for kernels in self._factors.kernels:
            have = tuple(self._factors.columns[kernels.rank].tolist())
            of[self._chains.node[kernels.ops]] = known.setdefault(have, len(known))
        for transfer in self._factors.transfers:
            nodes = self._chains.node[transfer.ops]
            of[nodes] = known.setdefault(tuple(transfer.columns.tolist()), len(known))
            if transfer.groups is not None:
                groups.update(dict.fromkeys(nodes.tolist(), transfer.groups))
        return Replicas([np.array(some, dtype=np.int64) for some in known], of.tolist(), groups)

    def steps(self, disturbances: Sequence[Disturbance]) -> list[tuple[Floats, SlowestRank]]:
        """(by watched, its end [s]; who was slowest) of each; those of one run share their draws."""
        order = sorted(range(len(disturbances)), key=lambda place: disturbances[place].run)
        found: dict[int, tuple[Floats, SlowestRank]] = {}
        for first in range(0, len(order), self._together):
            places = order[first : first + self._together]
            found.update(zip(places, self._some([disturbances[place] for place in places]), strict=True))
        return [found[place] for place in range(len(disturbances))]

    def _some(self, disturbances: Sequence[Disturbance]) -> list[tuple[Floats, SlowestRank]]:
        """As many as one array holds, in the order of their runs."""
        sets = self._replicas.sets
        arrays = [np.zeros((rows, len(disturbances), len(some))) for rows, some in zip(self._rows, sets, strict=True)]
        slowest = [SlowestRank(self._factors.plan.mesh.ranks) for _ in disturbances]
        for kernels in self._factors.kernels:
            self._add(arrays, kernels.ops[self._segments(kernels)], self._of_kernels(kernels, disturbances, slowest))
        for transfer in self._factors.transfers:
            self._add(arrays, transfer.ops, self._of_transfers(transfer, disturbances))
        of, row = self._replicas.of, self._row.tolist()
        ends(self._order, [arrays[number][place] for number, place in zip(of, row, strict=True)], self._replicas)
        latest = np.array([self._end(one, arrays) for one in self._watched])
        return list(zip(latest.T, slowest, strict=True))

    def _end(self, one: Watched, arrays: Sequence[Floats]) -> Floats:
        """The last end of what is watched, by run [s]."""
        found = np.zeros(arrays[0].shape[1])
        nodes = None if one.ops is None else np.unique(self._chains.node[one.ops])
        of = np.array(self._replicas.of)
        for number, (array, columns) in enumerate(zip(arrays, self._replicas.sets, strict=True)):
            some = array if nodes is None else array[self._row[nodes[of[nodes] == number]]]
            seen = some if one.columns is None else some[:, :, np.isin(columns, one.columns)]
            np.maximum(found, seen.max(axis=(0, 2), initial=0.0), out=found)
        return found

    def _add(self, arrays: Sequence[Floats], ops: Integers, seconds: Floats) -> None:
        """Add what ops of a lane take, shape (runs, columns, ops), to that of their nodes."""
        nodes = self._chains.node[ops]
        firsts = np.flatnonzero(np.r_[True, np.diff(nodes) != 0])
        rows = self._row[nodes[firsts]]
        arrays[self._replicas.of[nodes[0]]][rows] += np.add.reduceat(np.moveaxis(seconds, 2, 0), firsts, axis=0)

    def _segments(self, some: Kernels) -> Integers:
        """Where among the kernels of a lane the segments begin."""
        return np.flatnonzero(np.r_[True, np.diff(self._chains.segment[some.ops]) != 0])

    # -- kernels ------------------------------------------------------------------------------------------------------------

    def _of_kernels(self, some: Kernels, disturbances: Sequence[Disturbance], slowest: Sequence[SlowestRank]) -> Floats:
        """What the segments of a lane take in the slowest of those side by side, shape (runs, columns, segments) [s]."""
        members, segments = self._factors.members[some.rank], self._segments(some)
        found = np.empty((len(disturbances), len(members), len(segments)))
        rows = max(1, MOST_NUMBERS // 4 // (len(some.ops) * members.shape[1]))
        whole = float(self._took[some.ops].sum())
        for first in range(0, len(members), rows):
            part = slice(first, first + rows)
            for _, same in groupby(enumerate(disturbances), key=lambda one: one[1].run):
                for place, longest, own in self._of_run(some, part, segments, list(same)):
                    found[place, part] = longest
                    if some.cause != "host":
                        slowest[place].add(members[part], own, whole)
        return found

    def _of_run(
        self, some: Kernels, part: slice, segments: Integers, same: Sequence[tuple[int, Disturbance]]
    ) -> Iterator[tuple[int, Floats, Floats]]:
        """For one run with several sets of causes: its place, seconds of the segments in the slowest, and of each rank's kernels."""
        members = self._factors.members[some.rank][part]
        struck = self._struck(some, members, same[0][1], segments)
        felt = some.felt if struck else some.felt - {"pause"}
        drawn: dict[bool, tuple[Floats, Floats]] = {}
        known: dict[frozenset[str], tuple[Floats, Floats]] = {}
        for place, one in same:
            causes = one.causes & felt
            if causes not in known:
                jittered = some.cause in causes
                if jittered not in drawn:
                    drawn[jittered] = self._sums(some, part, segments, one if jittered else None)
                seconds = _slowed(some, one, members, *drawn[jittered])
                if "pause" in causes:
                    seconds = np.broadcast_to(seconds, (*members.shape, len(segments))).copy()
                    for where, segment, late in struck:
                        seconds[where][segment] += late
                known[causes] = seconds.max(axis=1), seconds.sum(axis=2)
            yield place, *known[causes]

    def _sums(self, some: Kernels, part: slice, segments: Integers, one: Disturbance | None) -> tuple[Floats, Floats]:
        """What segments take, but for the slowness of a GPU: (bound by arithmetic, waiting for HBM) [s].

        Shape (columns, side by side, segments); the first two are 1 where nothing is drawn (None).
        """
        seconds = self._took[some.ops][None, None]
        if one is not None:
            seconds = self._factors.jitter(some, one, part) * seconds
        memory = seconds * some.memory
        return np.add.reduceat(seconds - memory, segments, axis=2), np.add.reduceat(memory, segments, axis=2)

    def _struck(self, some: Kernels, members: Integers, one: Disturbance, segments: Integers) -> list[tuple[tuple[int, ...], int, float]]:
        """Pauses of hosts in a run: whose, in which segment, how long they hold it up [s]."""
        if not one.factors.variability.pause or "pause" not in some.felt:
            return []
        starts = self._trace.starts[some.ops]
        held = ((place, at, late) for place in np.ndindex(members.shape) for at, late in one.held_up(int(members[place]), starts))
        return [(place, int(np.searchsorted(segments, at, side="right")) - 1, late) for place, at, late in held]

    # -- collectives --------------------------------------------------------------------------------------------------------

    def _of_transfers(self, some: GroupCollectives, disturbances: Sequence[Disturbance]) -> Floats:
        """What collectives take in the slowest of the groups side by side, shape (runs, columns, ops) [s]."""
        found = np.empty((len(disturbances), len(some.columns), len(some.ops)))
        found[:] = self._took[some.ops]
        drawn: dict[int, Floats] = {}
        for place, one in enumerate(disturbances):
            if "collective" in one.causes:
                if one.run not in drawn:
                    drawn = {one.run: self._factors.of_transfers(some, one)}
                found[place] *= drawn[one.run]
        return found


def _slowed(some: Kernels, one: Disturbance, members: Integers, arithmetic: Floats, memory: Floats) -> Floats:
    """Seconds of segments on the GPUs of `members`."""
    if one.ranks is not None and some.cause != "host":
        times = one.ranks[members][..., None]
        arithmetic, memory = arithmetic * times, memory * times**MEMORY_EXPONENT
    seconds: Floats = arithmetic + memory
    return seconds * one.step if one.step != 1.0 and some.cause != "host" else seconds
