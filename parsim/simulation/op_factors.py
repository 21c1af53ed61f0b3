"""Which draws meet which op of a lowered program, whoever is folded in it.

A lowered rank stands for others. Those of its tensor-parallel group wait for each other between operators: the slowest of them between two
meetings is the one that counts, and the same holds for equal collectives that they do side by side. All others are columns:
replicas that differ by their draws. See `docs/variability.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parsim.parallel.groups import PIPELINE, TENSOR
from parsim.parallel.plan import Plan
from parsim.program.folding import Classes
from parsim.program.program import COMPUTE, Program
from parsim.simulation.draws import Floats, Place, lane_number
from parsim.simulation.factors import MEMORY_EXPONENT, Factors

Integers = NDArray[np.int64]
Ranks = tuple[int, ...]
HOST = "launch"
"""kind of the ops in which the host launches kernels"""


class Columns:
    """The replicas of a step: ranks that differ along other axes than those of a tensor-parallel group and of a pipeline."""

    def __init__(self, plan: Plan) -> None:
        mesh = plan.mesh
        numbers = np.zeros(mesh.ranks, dtype=np.int64)
        self.count = 1
        for axis in mesh.order:
            if axis not in (TENSOR, PIPELINE):
                numbers += self.count * np.array(mesh.coordinates(axis), dtype=np.int64)
                self.count *= mesh.size(axis)
        self.of: Integers = numbers
        """by rank"""


@dataclass(frozen=True)
class Kernels:
    """The ops of one lane of a lowered rank that are no collectives."""

    rank: int
    lane: int
    on_compute: bool
    cause: str
    """of their jitter: kernel | host"""
    ops: Integers
    seconds: Floats
    """alone [s]"""
    memory: Floats
    """share of that in kernels that wait for HBM"""

    @property
    def felt(self) -> frozenset[str]:
        """The causes that change them."""
        if self.cause == "host":
            return frozenset({"host"})
        return frozenset({"kernel", "gpus", "slow_nodes", "step", *(["pause"] if self.on_compute else [])})


@dataclass(frozen=True)
class GroupCollectives:
    """The collectives of one group of lowered ranks, of one lane and axis."""

    ops: Integers
    columns: Integers
    """those that have them, ascending"""
    places: tuple[tuple[Place, ...], ...]
    """by column of these, the addresses of the groups that do them side by side"""

    @property
    def groups(self) -> Integers | None:
        """By column of these, the number of the group that meets; None: no two meet."""
        numbers: dict[Place, int] = {}
        found = [numbers.setdefault(places[0], len(numbers)) for places in self.places]
        return np.array(found) if len(numbers) < len(found) else None


class OpFactors:
    """Factors of the ops of a lowered program.

    `classes` says whom its ranks stand for, None: nobody else.
    """

    def __init__(self, plan: Plan, program: Program, classes: Classes | None, columns: Columns) -> None:
        self.plan = plan
        self.program = program
        self.members: dict[int, Integers] = {}
        """lowered rank -> the ranks that it stands for, shape (its columns, side by side)"""
        self.columns: dict[int, Integers] = {}
        """lowered rank -> its columns, ascending"""
        for rank, stands_for in self._stand_ins(classes).items():
            ranks = np.array(stands_for, dtype=np.int64)
            ranks = ranks[np.argsort(columns.of[ranks], kind="stable")]
            found, firsts, counts = np.unique(columns.of[ranks], return_index=True, return_counts=True)
            # where fewer are side by side in one column than in another, the last of them stands there twice: it changes no maximum
            places = firsts[:, None] + np.minimum(np.arange(counts.max()), counts[:, None] - 1)
            self.members[rank], self.columns[rank] = ranks[places], found
        self.kernels: list[Kernels] = []
        self.transfers: list[GroupCollectives] = []
        self._sort()

    def _stand_ins(self, classes: Classes | None) -> Mapping[int, Sequence[int]]:
        if classes is None:
            return {rank: (rank,) for rank in range(self.plan.mesh.ranks)}
        found: dict[int, list[int]] = {}
        for rank, other in classes.represents.items():
            found.setdefault(other, []).append(rank)
        return found

    def _sort(self) -> None:
        """Tell lanes and groups apart."""
        lanes: dict[tuple[int, str, str], list[int]] = {}
        groups: dict[tuple[Ranks, str, str, Ranks], list[int]] = {}
        specs = self.program.specs
        for index, number in enumerate(self.program.spec):
            spec = specs[number]
            if not spec.lanes:
                continue
            if spec.collective is None:
                if spec.duration:
                    cause = "host" if spec.kind == HOST else "kernel"
                    lanes.setdefault((spec.lanes[0].rank, spec.lanes[0].name, cause), []).append(index)
                continue
            ranks = tuple(dict.fromkeys(lane.rank for lane in spec.lanes))
            groups.setdefault((ranks, spec.lanes[0].name, spec.collective.axis, spec.collective.group), []).append(index)
        for (rank, lane, cause), ops in lanes.items():
            of = [specs[self.program.spec[index]] for index in ops]
            seconds = np.array([spec.duration for spec in of])
            memory = np.array([self.program.memory_bound.get(spec.name, 0.0) for spec in of])
            self.kernels.append(Kernels(rank, lane_number(lane), lane == COMPUTE, cause, np.array(ops), seconds, memory))
        for (ranks, lane, axis, group), ops in groups.items():
            places = self._places(ranks, lane_number(f"{axis} {lane}"), group)
            columns = sorted(places)
            rows = tuple(tuple(places[column]) for column in columns)
            self.transfers.append(GroupCollectives(np.array(ops), np.array(columns, dtype=np.int64), rows))

    def _places(self, ranks: Ranks, what: int, group: Ranks) -> dict[int, dict[Place, None]]:
        """By column, where the draws of the groups of those whom `ranks` stand for belong."""
        owner = next((rank for rank in ranks if rank in group), ranks[0])
        known = self.plan.groups
        name = next((kind for kind in known.table if known.members(kind, owner) == group), None)
        place_of: dict[int, Place] = {}
        found: dict[int, dict[Place, None]] = {}
        for rank in ranks if name is not None else (owner,):
            for column, row in zip(self.columns[rank].tolist(), self.members[rank].tolist(), strict=True):
                for member in row:
                    if name is None:
                        here = [other - owner + member for other in group]
                        place = here[0], here[-1] << 24 | len(group), what
                    elif member not in place_of:
                        members = known.members(name, member)
                        place = members[0], members[-1] << 24 | len(group), what
                        place_of.update(dict.fromkeys(members, place))
                    else:
                        place = place_of[member]
                    found.setdefault(column, {})[place] = None
        return found

    def of_kernels(self, some: Kernels, disturbance: Disturbance) -> Floats:
        """Factors, shape (columns, side by side, ops), of those of a lane."""
        members = self.members[some.rank]
        factors = np.ones((*members.shape, len(some.ops)))
        if some.cause in disturbance.causes:
            factors = self.jitter(some, disturbance, slice(None))
        if some.cause == "host":
            return factors
        if disturbance.ranks is not None:
            times = disturbance.ranks[members][..., None]
            factors *= (1.0 - some.memory) * times + some.memory * times**MEMORY_EXPONENT
        return factors * disturbance.step if disturbance.step != 1.0 else factors

    def jitter(self, some: Kernels, disturbance: Disturbance, rows: slice) -> Floats:
        """Those that each op draws, in some of its rank's columns."""
        members = self.members[some.rank][rows]
        factors = np.empty((*members.shape, len(some.ops)))
        for place in np.ndindex(members.shape):
            factors[place] = disturbance.jitter(some.cause, (int(members[place]), some.lane, 0), len(some.ops))
        return factors

    def of_transfers(self, some: GroupCollectives, disturbance: Disturbance) -> Floats:
        """Factors, shape (columns, ops): those of the slowest of the groups side by side."""
        count = len(some.ops)
        known: dict[Place, Floats] = {}
        for places in some.places:
            for place in places:
                if place not in known:
                    known[place] = disturbance.jitter("collective", place, count)
        return np.array([np.max([known[place] for place in places], axis=0) for places in some.places])


@dataclass(frozen=True)
class Disturbance:
    """What one run does to a step."""

    factors: Factors
    run: int
    """the number that its draws have; those of the cluster are in `ranks`"""
    causes: frozenset[str]
    ranks: Floats | None
    """by rank, how many times as long compute-bound kernels take on its GPU; None: all the same"""
    step: float
    """factor of all kernels"""
    spans: Sequence[tuple[float, float]]
    """begin and end of every step of the program [s]"""

    def jitter(self, cause: str, place: Place, count: int) -> Floats:
        """See `Factors.jitter`."""
        return self.factors.jitter(self.run, cause, place, count)

    def held_up(self, rank: int, starts: Floats) -> list[tuple[int, float]]:
        """Which of a rank's kernels, that begin at `starts`, pauses of its host hold up, and how long [s]; one pause a step at most."""
        found = []
        for number, (begin, end) in enumerate(self.spans):
            if (share := self.factors.pause(self.run, rank, number)) is None:
                continue
            moment = begin + share * (end - begin)
            struck = min(int(np.searchsorted(starts, moment)), len(starts) - 1)
            if (late := moment + self.factors.variability.pause - max(moment, float(starts[struck]))) > 0:
                found.append((struck, late))
        return found
