"""The ranks that are lowered, who they stand for, and whom they meet: what all parts of a lowering share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parsim.parallel.groups import PIPELINE
from parsim.parallel.plan import Plan
from parsim.program.program import Collective, Lane

Ranks = tuple[int, ...]


class LoweredRanks:
    """The `representatives` of a plan's ranks (all ranks, or one per class of equals); `represents` maps every rank to its own."""

    def __init__(self, plan: Plan, representatives: Sequence[int] | None = None, represents: Mapping[int, int] | None = None) -> None:
        self.plan = plan
        self.all: Ranks = tuple(range(plan.mesh.ranks) if representatives is None else sorted(representatives))
        self.of_stage: list[list[int]] = [[] for _ in range(plan.mesh.size(PIPELINE))]
        """by pipeline rank"""
        for rank in self.all:
            self.of_stage[plan.mesh.coordinate(rank, PIPELINE)].append(rank)
        self._represents = represents
        self._groups: dict[tuple[str, int], tuple[tuple[Ranks, Ranks], ...]] = {}
        self._meetings: dict[tuple[str, int], tuple[Ranks, Ranks]] = {}
        self._collectives: dict[tuple[str, str, Ranks, int], Collective] = {}
        self._lanes: dict[tuple[Ranks, tuple[str, ...]], tuple[Lane, ...]] = {}

    def representative_of(self, rank: int) -> int:
        """The lowered rank that does what `rank` does."""
        return rank if self._represents is None else self._represents[rank]

    def lane_tuple(self, ranks: Ranks, names: tuple[str, ...]) -> tuple[Lane, ...]:
        """The named lanes of some ranks, one shared tuple."""
        key = (ranks, names)
        if (lanes := self._lanes.get(key)) is None:
            lanes = self._lanes[key] = tuple(Lane(rank, name) for rank in ranks for name in names)
        return lanes

    def transfer(self, kind: str, axis: str, group: Ranks, size: int) -> Collective:
        """The one object for such a transfer."""
        key = (kind, axis, group, size)
        if (collective := self._collectives.get(key)) is None:
            collective = self._collectives[key] = Collective(kind, axis, group, size)
        return collective

    def meeting(self, axis: str, rank: int) -> tuple[Ranks, Ranks]:
        """Who meets a lowered rank along `axis`: the true members, and the lowered ranks that stand for them."""
        key = (axis, rank)
        if (found := self._meetings.get(key)) is None:
            found = self._meetings[key] = next(pair for pair in self._groups_of(axis, rank) if rank in pair[1])
        return found

    def _groups_of(self, axis: str, rank: int) -> tuple[tuple[Ranks, Ranks], ...]:
        """Groups along `axis` that touch the lowered ranks of `rank`'s stage."""
        stage = self.plan.mesh.coordinate(rank, PIPELINE)
        key = (axis, stage)
        if (found := self._groups.get(key)) is None:
            groups: dict[Ranks, Ranks] = {}
            covered: set[int] = set()
            for member in self.of_stage[stage]:
                if member in covered:
                    continue
                group = self.plan.groups.members(axis, member)
                lowered = self._lowered(group)
                covered.update(lowered)
                groups[group] = lowered
            found = self._groups[key] = tuple(groups.items())
        return found

    def _lowered(self, group: Ranks) -> Ranks:
        """The lowered ranks that stand for a group."""
        if self._represents is None:
            return group
        if len(group) == self.plan.mesh.ranks:
            return self.all
        return tuple(sorted(set(map(self._represents.__getitem__, group))))
