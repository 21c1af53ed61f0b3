"""From a plan to a program: write every rank's passes, walk the schedule, stamp them.

What ranks do is written once per pipeline rank and role (`parsim.program.script`), made into a stamp for all lowered ranks of a
stage, so that a collective is one op in the lanes of all its members (`parsim.program.stamping`), and stamped per micro-batch in
the order of `parsim.program.slots`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parsim.kernel import Kernel
from parsim.parallel.plan import Plan
from parsim.program.groups import breakdown_axis
from parsim.program.groups import group as members_of
from parsim.program.passes import Item
from parsim.program.program import Collective, Lane, Program, StampBuilder
from parsim.program.script import Script, Scripts, write
from parsim.program.size import refuse_too_large
from parsim.program.slots import Slots
from parsim.program.stage import StagePasses
from parsim.program.stamping import Stamping

Ranks = tuple[int, ...]


class Lowering:
    """Builds the program of a plan for the ranks in `representatives` (all ranks, or one per class of equals).

    `represents` maps every rank to the representative that stands for it. `clock` turns a kernel into seconds. `scripts` are
    those of the plan, if they are written already.
    """

    def __init__(
        self,
        plan: Plan,
        clock: Callable[[Kernel], float],
        representatives: Sequence[int] | None = None,
        represents: Mapping[int, int] | None = None,
        scripts: Scripts | None = None,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.program = Program()
        ranks = list(range(plan.mesh.ranks)) if representatives is None else sorted(representatives)
        self._represents = represents
        self._ranks = tuple(ranks)
        self.stage_ranks: list[list[int]] = [[] for _ in range(plan.mesh.size("pipeline"))]
        for rank in ranks:
            self.stage_ranks[plan.mesh.coordinate(rank, "pipeline")].append(rank)
        self._scripts = scripts
        self._groups: dict[tuple[str, int], tuple[tuple[Ranks, Ranks], ...]] = {}
        self._meetings: dict[tuple[str, int], tuple[Ranks, Ranks]] = {}
        self._collectives: dict[tuple[str, str, Ranks, int], Collective] = {}
        self._lanes: dict[tuple[Ranks, tuple[str, ...]], tuple[Lane, ...]] = {}

    def run(self) -> Program:
        """The program. Raises `PlanError` for one that would not fit in memory."""
        refuse_too_large(self.plan, [len(ranks) for ranks in self.stage_ranks])
        self._declare()
        self._stamp({rank: self.script(rank).begin for rank in self._ranks}, 0)
        Slots(self).run()
        self._stamp({rank: self.script(rank).end for rank in self._ranks}, -1)
        self._describe()
        return self.program

    @property
    def scripts(self) -> Scripts:
        """What every pipeline rank does; written on first use."""
        if self._scripts is None:
            self._scripts = write(self.plan, self.clock)
        return self._scripts

    def script(self, rank: int) -> Script:
        """What a rank does."""
        return self.scripts[self.plan.mesh.coordinate(rank, "pipeline")][self.plan.role(rank)]

    def passes_of(self, pipeline_rank: int) -> StagePasses:
        """The passes of one pipeline rank (of any role)."""
        return next(iter(self.scripts[pipeline_rank].values())).passes

    def all_passes(self) -> list[StagePasses]:
        """One per pipeline rank."""
        return [self.passes_of(p) for p in range(len(self.scripts))]

    def _declare(self) -> None:
        """What the program knows about ranks before it has ops."""
        for rank in self._ranks:
            passes = self.script(rank).passes
            self.program.tensors[rank] = passes.table.rows
            self.program.resident[rank] = passes.resident
            self.program.slots[rank] = slots = self.plan.slots[self.plan.mesh.coordinate(rank, "pipeline")]
            self.program.begins[rank] = [-1] * len(slots)

    def _describe(self) -> None:
        """What it knows about its ops beyond what the engine needs."""
        speeds = {1.0, *self.plan.slow.values()}
        for by_role in self.scripts:
            for script in by_role.values():
                self.program.memory_bound.update(script.passes.memory_bound())
                for (name, seconds), work in script.passes.work().items():
                    self.program.work.update({(name, seconds / speed): work for speed in speeds})

    def _stamp(self, items: Mapping[int, Sequence[Item]], instance: int) -> None:
        stamp = StampBuilder(self.program)
        Stamping(self, stamp, items).run()
        self.program.stamp(stamp.finish(), instance)

    # -- shared objects -------------------------------------------------------------------------------------------

    def standing_for(self, rank: int) -> int:
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

    # -- groups ---------------------------------------------------------------------------------------------------

    def breakdown_axis(self, axis: str) -> str:
        """See `parsim.program.groups`."""
        return breakdown_axis(self.plan, axis)

    def meeting(self, axis: str, rank: int) -> tuple[Ranks, Ranks]:
        """Who meets a lowered rank along `axis`: the true members, and the lowered ranks that stand for them."""
        key = (axis, rank)
        if (found := self._meetings.get(key)) is None:
            found = self._meetings[key] = next(pair for pair in self._groups_of(axis, rank) if rank in pair[1])
        return found

    def _groups_of(self, axis: str, rank: int) -> tuple[tuple[Ranks, Ranks], ...]:
        """Groups along `axis` that touch the lowered ranks of `rank`'s stage."""
        stage = self.plan.mesh.coordinate(rank, "pipeline")
        key = (axis, stage)
        if (found := self._groups.get(key)) is None:
            groups: dict[Ranks, Ranks] = {}
            covered: set[int] = set()
            for member in self.stage_ranks[stage]:
                if member in covered:
                    continue
                group = members_of(self.plan, axis, member)
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
            return self._ranks
        return tuple(sorted(set(map(self._represents.__getitem__, group))))
