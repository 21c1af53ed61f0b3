"""From a plan to a program: walk every rank's schedule, ask the strategies, stamp the passes.

Each pass (a kind of slot on a stage) is written once per variant (first, middle, last micro-batch) by
`parsim.program.stage.StagePasses` and stamped per micro-batch for all lowered ranks of the stage together, so that
a collective is one op in the lanes of all its members. Slots are taken in an order in which producers precede
consumers; a schedule for which no such order exists is lowered all the same, and deadlocks when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from parsim.kernel import Kernel
from parsim.parallel.plan import Plan
from parsim.parallel.schedules.blocking import Exchange, Step, blocking_order
from parsim.parallel.schedules.slot import Slot
from parsim.program.groups import breakdown_axis
from parsim.program.groups import group as members_of
from parsim.program.passes import Item, Passes
from parsim.program.program import COMPUTE, OFFLOAD, Collective, Effect, Lane, Op, Program, Stamp
from parsim.program.size import refuse_too_large
from parsim.program.stage import StagePasses
from parsim.program.stamping import Stamping

BACKWARD = ("B", "I")
Ranks = tuple[int, ...]


_Message = tuple[int, str, tuple[Lane, ...], float, Collective | None, tuple[tuple[int, tuple[Effect, ...]], ...]]
"""Receiver, and of the op: name, lanes, duration [s], transfer, effects"""


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
        self._clock = clock
        self.program = self.new_program()
        ranks = list(range(plan.mesh.ranks)) if representatives is None else sorted(representatives)
        self._represents = represents
        self._ranks = tuple(ranks)
        self._stage_ranks: list[list[int]] = [[] for _ in range(plan.mesh.size("pipeline"))]
        for rank in ranks:
            self._stage_ranks[plan.mesh.coordinate(rank, "pipeline")].append(rank)
        self._roles = {rank: plan.role(rank) for rank in ranks}
        self._passes: list[dict[str, Passes]] = []
        for p, members in enumerate(self._stage_ranks):
            roles = dict.fromkeys(self._roles[r] for r in members)
            self._passes.append({role: self.new_passes(p, role) for role in roles})
        self._groups: dict[tuple[str, int], tuple[tuple[Ranks, Ranks], ...]] = {}
        self._collectives: dict[tuple[str, str, Ranks, int], Collective] = {}
        self._joint: dict[tuple[str, Ranks, int], Op] = {}
        self._arrivals: dict[tuple[str, int, int], dict[int, Op]] = {}
        self._awaited: dict[tuple[str, int, int], list[Op]] = {}
        self._holds: dict[int, list[Op]] = {}
        self._done: dict[tuple[str, int], int] = {}
        self._ready_made: dict[tuple[int, int], tuple[Sequence[Item], list[Stamp] | None]] = {}
        self._cursor = [0] * len(plan.slots)
        self._blocking = not plan.parallelism.pipeline.overlap_sends
        self._stretched: dict[tuple[int, int], tuple[Item, tuple[Effect, ...]]] = {}
        self._lanes: dict[tuple[int, tuple[str, ...]], tuple[Lane, ...]] = {}
        self._messages: dict[tuple[int, str, int, int, bool], _Message] = {}
        self._send_lanes: dict[tuple[int, int, str], tuple[Lane, ...]] = {}
        self._shared_lanes: dict[tuple[Ranks, tuple[str, ...]], tuple[Lane, ...]] = {}
        self.families: dict[tuple[str, str, int, int], dict[int, None]] = {}
        """(kind, axis, pipeline rank, pipeline rank of the receiver or -1) -> sizes [B]: every kind of transfer in the program"""

    def new_program(self) -> Program:
        """What is filled."""
        return Program()

    def new_passes(self, pipeline_rank: int, role: str) -> Passes:
        """The passes of a pipeline rank's ranks of one role."""
        return StagePasses(self.plan, pipeline_rank, role, self._clock)

    def passes_of(self, pipeline_rank: int) -> StagePasses:
        """The passes of one pipeline rank (of any role)."""
        return cast("StagePasses", next(iter(self._passes[pipeline_rank].values())))

    def all_passes(self) -> list[StagePasses]:
        """One per pipeline rank."""
        return [self.passes_of(p) for p in range(len(self._passes))]

    def run(self) -> Program:
        """The program. Raises `PlanError` for one that would not fit in memory."""
        refuse_too_large(self.plan, [len(ranks) for ranks in self._stage_ranks])
        self.declare()
        for p, ranks in enumerate(self._stage_ranks):
            self._stamp(ranks, {role: passes.begin() for role, passes in self._passes[p].items()}, 0)
        if self._blocking:
            self._take(self._blocking_order())
            self._blocking = False  # slots that are left are in a deadlock, which their messages must show
        self._walk_slots()
        if not self.plan.asynchronous:
            for p, ranks in enumerate(self._stage_ranks):
                self._stamp(ranks, {role: passes.end() for role, passes in self._passes[p].items()}, -1)
        self.describe()
        return self.program

    def declare(self) -> None:
        """What the program knows about ranks before it has ops."""
        for p, ranks in enumerate(self._stage_ranks):
            for rank in ranks:
                passes = self._passes[p][self._roles[rank]]
                self.program.tensors[rank] = passes.table.rows
                self.program.resident[rank] = passes.resident
                self.program.slots[rank] = self.plan.slots[p]

    def describe(self) -> None:
        """What it knows about its ops beyond what the engine needs."""
        for by_role in self._passes:
            for passes in by_role.values():
                self.program.memory_bound.update(passes.memory_bound())
                for (name, seconds), work in passes.work().items():
                    self.program.work.update({(name, seconds / speed): work for speed in {1.0, *self.plan.slow.values()}})

    # -- slots ----------------------------------------------------------------------------------------------------

    def _blocking_order(self) -> Sequence[Step]:
        """Where blocking sends stand between slots depends on who is free first, hence on how long passes take."""
        seconds: dict[tuple[str, int], float] = {}
        for p in range(len(self._stage_ranks)):
            probe = StagePasses(self.plan, p, self.plan.role(self._stage_ranks[p][0]), self._clock)
            for stage in probe.chunks:
                for kind in {slot.kind: None for slot in self.plan.slots[p]}:
                    seconds[kind, stage] = sum(item.duration for item in probe.template(kind, stage, False, False))
        return blocking_order(self.plan.slots, lambda slot: seconds[slot.kind, slot.stage])

    def _take(self, order: Sequence[Step]) -> None:
        for step in order:
            if isinstance(step, Slot):
                p = self.plan.chunks[step.stage].pipeline_rank
                self._slot(p, step)
                self._cursor[p] += 1
            else:
                self._exchange(step)

    def _exchange(self, exchange: Exchange) -> None:
        """One message or two that cross; both ranks wait until it is over."""
        ends = (exchange.sender, exchange.receiver)
        held: list[tuple[tuple[int, int], Op]] = []
        for slot, origin, target in zip(exchange.slots, ends, reversed(ends), strict=False):
            step = 1 if slot.kind == "F" else -1
            arrivals: dict[int, Op] = {}
            for rank in self._stage_ranks[origin]:
                receiver = self._standing_for(self.plan.mesh.move(rank, "pipeline", target))
                busy = [op for r in (rank, receiver) if (op := self.program.last(Lane(r, COMPUTE))) is not None]
                arrivals |= (sent := self._transfer(rank, slot, target, busy))
                held += [((rank, receiver), op) for op in sent.values()]
            self._arrivals["F" if slot.kind == "F" else "B", slot.stage + step, slot.micro_batch] = arrivals
        for ranks, op in held:
            for rank in ranks:
                self._holds.setdefault(rank, []).append(op)

    def _walk_slots(self) -> None:
        """Take slots as their producers allow; where nothing can move, take one all the same (it will deadlock)."""
        rows, cursor = self.plan.slots, self._cursor
        left = sum(map(len, rows)) - sum(cursor)
        force = False
        while left:
            moved = False
            for p, row in enumerate(rows):
                while cursor[p] < len(row) and (force or self._ready(row[cursor[p]])):
                    self._slot(p, row[cursor[p]])
                    cursor[p] += 1
                    left -= 1
                    moved = True
                    force = False
            force = not moved

    def _source(self, slot: Slot) -> tuple[str, int, int] | None:
        """The transfer a slot waits for, named by its producer's kind, its consumer's stage and the micro-batch."""
        if slot.kind == "F" and slot.stage > 0:
            return ("F", slot.stage, slot.micro_batch)
        if slot.kind in BACKWARD and slot.stage < self.plan.stages - 1:
            return ("B", slot.stage, slot.micro_batch)
        return None

    def _ready(self, slot: Slot) -> bool:
        source = self._source(slot)
        return source is None or source in self._arrivals

    def _slot(self, p: int, slot: Slot) -> None:
        count = self._done[slot.kind, slot.stage] = self._done.get((slot.kind, slot.stage), 0) + 1
        first = count == 1 or self.plan.asynchronous
        last = count == self.plan.training.micro_batches or self.plan.asynchronous
        ranks = self._stage_ranks[p]
        partial = self.plan.partial(slot.micro_batch)
        templates = {role: passes.template(slot.kind, slot.stage, first, last, partial) for role, passes in self._passes[p].items()}
        waits: dict[int, list[Op]] = {rank: self._holds.pop(rank, []) for rank in ranks}
        source = self._source(slot)
        if source is not None and source in self._arrivals:
            for rank, op in self._arrivals[source].items():
                waits[rank].append(op)
        starts = self._stamp(ranks, templates, slot.micro_batch, waits)
        if source is not None and source not in self._arrivals:
            self._awaited.setdefault(source, []).extend(starts.values())
        if self.plan.asynchronous:
            self._versions(p, slot)
        if slot.kind == "F" and slot.stage < self.plan.stages - 1:
            self._send(p, slot, slot.stage + 1)
        elif slot.kind in BACKWARD and slot.stage > 0:
            self._send(p, slot, slot.stage - 1)

    def _send(self, p: int, slot: Slot, to_stage: int) -> None:
        """Hand a stage's result to the rank that holds the next stage; blocking sends wait for their exchange."""
        key = ("F" if slot.kind == "F" else "B", to_stage, slot.micro_batch)
        target = self.plan.chunks[to_stage].pipeline_rank
        if self._blocking:
            return
        arrivals: dict[int, Op] = {}
        for rank in self._stage_ranks[p]:
            produced = self.program.last(Lane(rank, COMPUTE))
            arrivals.update(self._transfer(rank, slot, target, [produced] if produced is not None else []))
        self._arrivals[key] = arrivals
        for consumer in self._awaited.pop(key, []):
            for op in arrivals.values():
                self.program.block(op, consumer)

    def _transfer(self, rank: int, slot: Slot, target: int, needs: Sequence[Op]) -> dict[int, Op]:
        """The message of one rank: {receiver: op}."""
        key = (rank, slot.kind, slot.stage, target, self.plan.partial(slot.micro_batch))
        if (message := self._messages.get(key)) is None:
            message = self._messages[key] = self._message(*key)
        receiver, name, lanes, duration, collective, effects = message
        return {receiver: self.program.add(name, "pipeline_comm", lanes, needs, duration, collective, effects, slot.micro_batch)}

    def _message(self, rank: int, kind: str, stage: int, target: int, partial: bool) -> _Message:
        """What a rank sends after such a slot; called when that is known, behind the slot's pass."""
        mesh = self.plan.mesh
        here, other = mesh.coordinate(rank, "pipeline"), mesh.move(rank, "pipeline", target)
        receiver = self._standing_for(other)
        size, held, duration = self._passes[here][self._roles[rank]].sends(kind, stage, partial)
        collective = None
        if size is not None:
            collective = self.transfer("send", "pipeline", (rank, other), size)
            self.note("send", "pipeline", here, target, size)
        way = "forward" if kind == "F" else "backward"
        if (lanes := self._send_lanes.get((rank, receiver, way))) is None:
            lanes = self._send_lanes[rank, receiver, way] = (Lane(rank, f"send {way}"), Lane(receiver, f"receive {way}"))
        return receiver, f"send {kind}{stage}", lanes, duration, collective, ((rank, held),) if held else ()

    def _versions(self, p: int, slot: Slot) -> None:
        """PipeDream's weight stash: zero-length ops that allocate and free weight versions."""
        stashed = {role: passes.stash(slot.kind, slot.micro_batch) for role, passes in self._passes[p].items()}
        for rank in self._stage_ranks[p]:
            last = self.program.last(Lane(rank, COMPUTE))
            lanes = self.lane_tuple(rank, ("versions",))
            for version, effects in stashed[self._roles[rank]]:
                self.program.add("weight version", "compute", lanes, [last] if last else (), 0.0, None, ((rank, effects),), -2 - version)

    # -- stamping -------------------------------------------------------------------------------------------------

    def _standing_for(self, rank: int) -> int:
        return rank if self._represents is None else self._represents[rank]

    def lane_tuple(self, rank: int, names: tuple[str, ...]) -> tuple[Lane, ...]:
        key = (rank, names)
        if (lanes := self._lanes.get(key)) is None:
            lanes = self._lanes[key] = tuple(Lane(rank, name) for name in names)
        return lanes

    def _all_lanes(self, ranks: Ranks, names: tuple[str, ...]) -> tuple[Lane, ...]:
        """The named lanes of several ranks, one shared tuple."""
        key = (ranks, names)
        if (lanes := self._shared_lanes.get(key)) is None:
            lanes = self._shared_lanes[key] = tuple(Lane(rank, name) for rank in ranks for name in names)
        return lanes

    def _stamp(
        self,
        ranks: Sequence[int],
        templates: Mapping[str, Sequence[Item]],
        instance: int,
        waits: Mapping[int, list[Op]] | None = None,
    ) -> dict[int, Op]:
        """Add one pass for all `ranks`; returns each rank's first op on the compute lane.

        Ranks of different roles have different templates with the same collectives in the same order.
        """
        if len(ranks) == 1:
            rank = ranks[0]
            items = templates[self._roles[rank]]
            if (compiled := self.compiled(rank, items)) is not None:
                start = self.program.stamp(rank, compiled, instance, waits[rank] if waits else [])
                return {rank: start} if start is not None else {}
        stamps = [Stamping(self, rank, templates[self._roles[rank]], instance, list(waits[rank]) if waits else []) for rank in ranks]
        if len(stamps) == 1:
            stamps[0].all()
        else:
            while any(list(map(Stamping.to_collective, stamps))):
                self._together(stamps)
        return {stamp.rank: stamp.start for stamp in stamps if stamp.start is not None}

    def compiled(self, rank: int, items: Sequence[Item]) -> Sequence[Stamp] | None:
        """A pass ready for `Program.stamp`; None if other lowered ranks take part in one of its collectives."""
        key = (rank, id(items))
        if key not in self._ready_made:
            self._ready_made[key] = (items, self._compile(rank, items))
        return self._ready_made[key][1]

    def _compile(self, rank: int, items: Sequence[Item]) -> list[Stamp] | None:
        speed = self.plan.slow.get(rank, 1.0)
        compiled: list[Stamp] = []
        for item in items:
            collective, kind = None, item.kind
            if item.collective is not None:
                what, axis, size = item.collective
                group, members = self.groups(axis, rank)[0]
                if members != (rank,) or (len(group) == 1 and axis != OFFLOAD):
                    return None
                whole = self.breakdown_axis(axis)
                kind = item.kind if axis == OFFLOAD else f"{whole}_comm"
                collective = self.transfer(what, whole, group, size)
                self.note(what, axis, self.plan.mesh.coordinate(rank, "pipeline"), -1, size)
            effects: tuple[tuple[int, tuple[Effect, ...]], ...] = ()
            if item.effects:
                effects = item.stamped(rank) if speed == 1.0 or collective else ((rank, self.stretched(rank, item, speed)),)
            duration = item.duration / speed
            tails = tuple(Lane(rank, tail) for tail in item.tails)
            compiled.append((item.name, kind, self.lane_tuple(rank, item.lanes), duration, collective, effects, tuple(item.needs), tails))
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
        lanes = self._all_lanes(members if len(members) == len(stamps) else tuple(stamp.rank for stamp in stamps), item.lanes)
        needs: list[Op] = []
        effects: tuple[tuple[int, tuple[Effect, ...]], ...] = ()
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

    def note(self, kind: str, axis: str, source: int, target: int, size: int) -> None:
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
            for member in self._stage_ranks[stage]:
                if member in covered:
                    continue
                group = self.group(axis, member)
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

    def stretched(self, rank: int, item: Item, speed: float) -> tuple[Effect, ...]:
        """Effects of an item on a rank whose compute runs at `speed`."""
        key = (rank, id(item))
        if key not in self._stretched:
            self._stretched[key] = (item, tuple(Effect(e.offset / speed, e.tensor, e.allocate) for e in item.effects))
        return self._stretched[key][1]
