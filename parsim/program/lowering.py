"""From a plan to a program: walk every rank's schedule, ask the strategies, stamp the passes.

Each pass (a kind of slot on a stage) is written once per variant (first, middle, last micro-batch) by
`parsim.program.stage.StagePasses` and stamped per micro-batch for all lowered ranks of the stage together, so that
a collective is one op in the lanes of all its members. The order is that of `parsim.program.slots`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from parsim.kernel import Kernel
from parsim.parallel.plan import Plan
from parsim.program.groups import breakdown_axis
from parsim.program.groups import group as members_of
from parsim.program.passes import Item, Passes
from parsim.program.program import OFFLOAD, Collective, Effect, Effects, Lane, Op, Pass, Program, Stamp
from parsim.program.size import refuse_too_large
from parsim.program.slots import Slots
from parsim.program.stage import StagePasses
from parsim.program.stamping import Stamping
from parsim.program.together import Together

Ranks = tuple[int, ...]


class Lowering:
    """Builds the program of a plan for the ranks in `representatives` (all ranks, or one per class of equals).

    `represents` maps every rank to the representative that stands for it. `clock` turns a kernel into seconds.
    """

    def __init__(
        self,
        plan: Plan,
        clock: Callable[[Kernel], float],
        representatives: Sequence[int] | None = None,
        represents: Mapping[int, int] | None = None,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.program = self.new_program()
        ranks = list(range(plan.mesh.ranks)) if representatives is None else sorted(representatives)
        self._represents = represents
        self._ranks = tuple(ranks)
        self.stage_ranks: list[list[int]] = [[] for _ in range(plan.mesh.size("pipeline"))]
        for rank in ranks:
            self.stage_ranks[plan.mesh.coordinate(rank, "pipeline")].append(rank)
        self.roles = {rank: plan.role(rank) for rank in ranks}
        self.passes: list[dict[str, Passes]] = []
        for p, members in enumerate(self.stage_ranks):
            roles = dict.fromkeys(self.roles[r] for r in members)
            self.passes.append({role: self.new_passes(p, role) for role in roles})
        self._groups: dict[tuple[str, int], tuple[tuple[Ranks, Ranks], ...]] = {}
        self._collectives: dict[tuple[str, str, Ranks, int], Collective] = {}
        self._joint: dict[tuple[str, Ranks, int], Op] = {}
        self._compiled: dict[tuple[int, int], tuple[Sequence[Item], list[Stamp] | None]] = {}
        self._ensembles: dict[tuple[int, int], tuple[Sequence[Item], Together | None]] = {}
        self._ready_made: dict[int, tuple[Sequence[Stamp], Pass]] = {}
        self._stretched: dict[tuple[int, int], tuple[Item, tuple[Effect, ...]]] = {}
        self._lanes: dict[tuple[int, tuple[str, ...]], tuple[Lane, ...]] = {}
        self._shared_lanes: dict[tuple[Ranks, tuple[str, ...]], tuple[Lane, ...]] = {}
        self.conditions: dict[int, object] = {}
        """rank -> what `compiled` depends on besides the items: while it is the same object, the answer is"""
        self.families: dict[tuple[str, str, int, int], dict[int | None, None]] = {}
        """(kind, axis, pipeline rank, pipeline rank of the receiver or -1) -> sizes [B]: every kind of transfer in the program;
        None: one that takes a measured time and crosses no links"""

    def new_program(self) -> Program:
        """What is filled."""
        return Program()

    def new_passes(self, pipeline_rank: int, role: str) -> Passes:
        """The passes of a pipeline rank's ranks of one role."""
        return StagePasses(self.plan, pipeline_rank, role, self.clock)

    def passes_of(self, pipeline_rank: int) -> StagePasses:
        """The passes of one pipeline rank (of any role)."""
        return cast("StagePasses", next(iter(self.passes[pipeline_rank].values())))

    def all_passes(self) -> list[StagePasses]:
        """One per pipeline rank."""
        return [self.passes_of(p) for p in range(len(self.passes))]

    def run(self) -> Program:
        """The program. Raises `PlanError` for one that would not fit in memory."""
        refuse_too_large(self.plan, [len(ranks) for ranks in self.stage_ranks])
        self.declare()
        for p, ranks in enumerate(self.stage_ranks):
            self.stamp(ranks, {role: passes.begin() for role, passes in self.passes[p].items()}, 0)
        Slots(self).run()
        if not self.plan.asynchronous:
            for p, ranks in enumerate(self.stage_ranks):
                self.stamp(ranks, {role: passes.end() for role, passes in self.passes[p].items()}, -1)
        self.describe()
        return self.program

    def declare(self) -> None:
        """What the program knows about ranks before it has ops."""
        for p, ranks in enumerate(self.stage_ranks):
            for rank in ranks:
                passes = self.passes[p][self.roles[rank]]
                self.program.tensors[rank] = passes.table.rows
                self.program.resident[rank] = passes.resident
                self.program.slots[rank] = self.plan.slots[p]

    def describe(self) -> None:
        """What it knows about its ops beyond what the engine needs."""
        for by_role in self.passes:
            for passes in by_role.values():
                self.program.memory_bound.update(passes.memory_bound())
                for (name, seconds), work in passes.work().items():
                    self.program.work.update({(name, seconds / speed): work for speed in {1.0, *self.plan.slow.values()}})

    # -- stamping -------------------------------------------------------------------------------------------------

    def standing_for(self, rank: int) -> int:
        """The lowered rank that does what `rank` does."""
        return rank if self._represents is None else self._represents[rank]

    def lane_tuple(self, rank: int, names: tuple[str, ...]) -> tuple[Lane, ...]:
        """The named lanes of a rank, one shared tuple."""
        key = (rank, names)
        if (lanes := self._lanes.get(key)) is None:
            lanes = self._lanes[key] = tuple(Lane(rank, name) for name in names)
        return lanes

    def all_lanes(self, ranks: Ranks, names: tuple[str, ...]) -> tuple[Lane, ...]:
        """The named lanes of several ranks, one shared tuple."""
        key = (ranks, names)
        if (lanes := self._shared_lanes.get(key)) is None:
            lanes = self._shared_lanes[key] = tuple(Lane(rank, name) for rank in ranks for name in names)
        return lanes

    def stamp(
        self,
        ranks: Sequence[int],
        templates: Mapping[str, Sequence[Item]],
        instance: int,
        waits: Mapping[int, list[Op]] | None = None,
    ) -> dict[int, Op]:
        """Add one pass for all `ranks`; returns each rank's first op on the compute lane.

        Ranks of different roles have different templates with the same collectives in the same order.
        """
        if len(ranks) == 1 or self.apart(templates):
            compiled = [self.compiled(rank, templates[self.roles[rank]]) for rank in ranks]
            if all(stamps is not None for stamps in compiled):
                return self._each(ranks, cast("Sequence[Sequence[Stamp]]", compiled), instance, waits)
        if len(ranks) > 1 and len(templates) == 1:
            items = next(iter(templates.values()))
            if (together := self._together_of(ranks, items)) is not None:
                return together.add(instance, waits or {})
        stamps = [Stamping(self, rank, templates[self.roles[rank]], instance, list(waits[rank]) if waits else []) for rank in ranks]
        if len(stamps) == 1:
            stamps[0].all()
        else:
            while any(list(map(Stamping.to_collective, stamps))):
                self._together(stamps)
        return {stamp.rank: stamp.start for stamp in stamps if stamp.start is not None}

    def apart(self, templates: Mapping[str, Sequence[Item]]) -> bool:
        """Ranks that meet nobody in such a pass are stamped one after the other; without transfers that is no other order."""
        return any(item.collective is not None for items in templates.values() for item in items)

    def _each(
        self, ranks: Sequence[int], compiled: Sequence[Sequence[Stamp]], instance: int, waits: Mapping[int, list[Op]] | None
    ) -> dict[int, Op]:
        """The pass of ranks that meet no other lowered rank in it."""
        starts = {}
        for rank, stamps in zip(ranks, compiled, strict=True):
            if id(stamps) not in self._ready_made:
                self._ready_made[id(stamps)] = (stamps, self.program.ready_made(rank, stamps))
            start = self.program.stamp(self._ready_made[id(stamps)][1], instance, waits[rank] if waits else ())
            if start is not None:
                starts[rank] = start
        return starts

    def _together_of(self, ranks: Sequence[int], items: Sequence[Item]) -> Together | None:
        key = (ranks[0], id(items))
        if key not in self._ensembles:
            possible = Together.possible(self, ranks, items)
            self._ensembles[key] = (items, Together(self, ranks, items) if possible else None)
        return self._ensembles[key][1]

    def compiled(self, rank: int, items: Sequence[Item]) -> Sequence[Stamp] | None:
        """A pass ready for `Program.stamp`; None if other lowered ranks take part in one of its collectives."""
        key = (rank, id(items))
        if key not in self._compiled:
            self._compiled[key] = (items, self._compile(rank, items))
        return self._compiled[key][1]

    def _compile(self, rank: int, items: Sequence[Item]) -> list[Stamp] | None:
        speed = self.plan.slow.get(rank, 1.0)
        compiled: list[Stamp] = []
        for item in items:
            collective, kind = None, item.kind
            if item.collective is not None:
                what, axis, size = item.collective
                group, members = self.meeting(axis, rank)
                if members != (rank,) or (len(group) == 1 and axis != OFFLOAD):
                    return None
                whole = self.breakdown_axis(axis)
                kind = item.kind if axis == OFFLOAD else f"{whole}_comm"
                collective = self.transfer(what, whole, group, size)
                self.note(what, axis, self.plan.mesh.coordinate(rank, "pipeline"), -1, size)
            effects: Effects = ()
            if item.effects:
                effects = item.stamped(rank) if speed == 1.0 or collective else ((rank, self.stretched(rank, item, speed)),)
            duration = item.duration / speed
            tails = tuple(Lane(rank, tail) for tail in item.tails)
            lanes = self.lane_tuple(rank, item.lanes)
            compiled.append(Stamp(item.name, kind, lanes, duration, collective, effects, tuple(item.needs), tails))
        return compiled

    def _together(self, stamps: Sequence[Stamping]) -> None:
        """Every stamp stands at its next collective: make one op per group."""
        axis = next(stamp.item for stamp in stamps).collective[1]  # type: ignore[index]
        by_rank = {stamp.rank: stamp for stamp in stamps}
        for group, members in self.groups(axis, stamps[0].rank):
            present = [by_rank[m] for m in members if m in by_rank]
            if present:
                self.join(present, group, members)
        for stamp in stamps:
            stamp.position += 1

    def join(self, stamps: Sequence[Stamping], group: Ranks, members: Ranks) -> None:
        """One collective op for the stamps that stand at it; ranks of other stages join the op later."""
        item = stamps[0].item
        kind, axis, size = item.collective  # type: ignore[misc]
        if len(group) == 1 and axis != OFFLOAD:
            for stamp in stamps:
                stamp.skip()
            return
        lanes = self.all_lanes(members if len(members) == len(stamps) else tuple(stamp.rank for stamp in stamps), item.lanes)
        needs: list[Op] = []
        effects: Effects = ()
        for stamp in stamps:
            own = stamp.item
            needs += stamp.needs(own)
            if own.effects:
                effects += ((stamp.rank, tuple(own.effects)),)
        whole = self.breakdown_axis(axis)
        joint = (item.name, group, stamps[0].instance)
        if (op := self._joint.get(joint)) is not None:
            self.program.join(op, lanes, needs, effects)
        else:
            collective = self.transfer(kind, whole, group, size)
            self.note(kind, axis, self.plan.mesh.coordinate(stamps[0].rank, "pipeline"), -1, size)
            whose = item.kind if axis == OFFLOAD else f"{whole}_comm"
            op = self.program.add(item.name, whose, lanes, needs, 0.0, collective, effects, stamps[0].instance)
            if len(members) > len(stamps):
                self._joint[joint] = op
        for stamp in stamps:
            stamp.record(op)

    def transfer(self, kind: str, axis: str, group: Ranks, size: int) -> Collective:
        """The one object for such a transfer."""
        key = (kind, axis, group, size)
        if (collective := self._collectives.get(key)) is None:
            collective = self._collectives[key] = Collective(kind, axis, group, size)
        return collective

    def note(self, kind: str, axis: str, source: int, target: int, size: int | None) -> None:
        """Such transfers are made: see `families`."""
        key = (kind, axis, source, target)
        self.families.setdefault(key, {})[size] = None

    # -- groups ---------------------------------------------------------------------------------------------------

    def breakdown_axis(self, axis: str) -> str:
        """See `parsim.program.groups`."""
        return breakdown_axis(self.plan, axis)

    def group(self, axis: str, rank: int) -> Ranks:
        """See `parsim.program.groups`."""
        return members_of(self.plan, axis, rank)

    def groups(self, axis: str, rank: int) -> tuple[tuple[Ranks, Ranks], ...]:
        """Groups along `axis` that touch the lowered ranks of `rank`'s stage: (true members, lowered ranks that stand for them)."""
        stage = self.plan.mesh.coordinate(rank, "pipeline")
        key = (axis, stage)
        if (found := self._groups.get(key)) is None:
            groups: dict[Ranks, Ranks] = {}
            covered: set[int] = set()
            for member in self.stage_ranks[stage]:
                if member in covered:
                    continue
                group = self.group(axis, member)
                lowered = self._lowered(group)
                covered.update(lowered)
                groups[group] = lowered
            found = self._groups[key] = tuple(groups.items())
        return found

    def meeting(self, axis: str, rank: int) -> tuple[Ranks, Ranks]:
        """The one of `groups` that a lowered rank is in."""
        return next(found for found in self.groups(axis, rank) if rank in found[1])

    def _lowered(self, group: Ranks) -> Ranks:
        """The lowered ranks that stand for a group."""
        if self._represents is None:
            return group
        if len(group) == self.plan.mesh.ranks:
            return self._ranks
        return tuple(sorted(set(map(self._represents.__getitem__, group))))

    def stretched(self, rank: int, item: Item, speed: float) -> tuple[Effect, ...]:
        """Effects of an item on a rank whose compute runs at `speed`."""
        key = (rank, id(item))
        if key not in self._stretched:
            self._stretched[key] = (item, tuple(Effect(e.offset / speed, e.tensor, e.allocate) for e in item.effects))
        return self._stretched[key][1]
