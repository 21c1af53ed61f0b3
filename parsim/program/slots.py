"""The walk through the schedule: every slot is stamped, and its result sent to the stage that needs it.

Slots are taken in an order in which producers precede consumers; a schedule for which no such order exists is lowered all the
same, and deadlocks when it runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from parsim.parallel.schedules.blocking import Exchange, Step, blocking_order
from parsim.parallel.schedules.slot import Slot
from parsim.program.passes import Item
from parsim.program.program import COMPUTE, Collective, Effects, Lane, Op, Pass, Stamp
from parsim.program.stage import StagePasses

if TYPE_CHECKING:
    from parsim.program.lowering import Lowering

_Arrivals = dict[int, dict[int, Op]]
"""micro-batch -> receiver -> message"""
_Known = tuple[object, Pass, int]
"""the rank's condition that a pass was made for, the pass with its message, the receiver"""


class _Count:
    """Passes so far that say which micro-batch of a stage is its first and which its last."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0


class _Way:
    """What all micro-batches of one kind of slot on one stage have in common."""

    __slots__ = ("count", "known", "source", "target", "to")

    def __init__(self, source: _Arrivals | None, to: _Arrivals | None, target: int, count: _Count) -> None:
        self.source = source
        """what arrives; None: the slot waits for nobody"""
        self.to = to
        """what others receive from it; None: nobody does"""
        self.target = target
        """pipeline rank that receives"""
        self.count = count
        self.known: dict[int, _Known] = {}
        """how to repeat it: by 1 for the first, 2 for the last, 4 for the smaller micro-batch, added"""


class Slots:
    """Walks the schedule of a plan once, for one lowering."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        self._plan = plan = lowering.plan
        self._program = lowering.program
        self._arrivals: dict[tuple[str, int], _Arrivals] = {}
        self._counts: dict[tuple[str, int], _Count] = {}
        """B and W count together: a table may mix them, and either writes the first gradient or completes the last"""
        self._ways = {key: self._way_of(*key) for key in dict.fromkeys((slot.kind, slot.stage) for row in plan.slots for slot in row)}
        self._awaited: dict[tuple[int, int], list[Op]] = {}
        """(id of arrivals, micro-batch) -> ops that were added before the message they wait for"""
        self._holds: dict[int, list[Op]] = {}
        self._cursor = [0] * len(plan.slots)
        self._blocking = not plan.parallelism.pipeline.overlap_sends
        self._repeats = not (self._blocking or plan.asynchronous)
        self._smaller = plan.training.micro_batches - 1 if plan.training.last_micro_batch else -1
        self._messages: dict[tuple[int, str, int, int, bool], tuple[int, Stamp]] = {}
        self._send_lanes: dict[tuple[int, int, str], tuple[Lane, ...]] = {}

    def run(self) -> None:
        """Add all passes and messages."""
        if self._blocking:
            self._take(self._blocking_order())
            self._blocking = False  # slots that are left are in a deadlock, which their messages must show
        self._walk()

    def _way_of(self, kind: str, stage: int) -> _Way:
        source = to = None
        step = 1 if kind == "F" else -1
        way = "F" if kind == "F" else "B"
        before, after = (stage - 1, stage) if kind == "F" else (stage, stage - 1)  # the boundaries it has its input from, and hands on
        if kind != "W" and 0 <= stage - step < self._plan.stages and not self._plan.stays(before):
            source = self._arrivals.setdefault((way, stage), {})
        if kind != "W" and 0 <= stage + step < self._plan.stages and not self._plan.stays(after):
            to = self._arrivals.setdefault((way, stage + step), {})
        count = self._counts.setdefault(("W" if kind in "BW" else kind, stage), _Count())
        return _Way(source, to, -1 if to is None else self._plan.chunks[stage + step].pipeline_rank, count)

    # -- order ----------------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        """Take slots as their producers allow; where nothing can move, take one all the same (it will deadlock)."""
        rows, cursor = self._plan.slots, self._cursor
        left = sum(map(len, rows)) - sum(cursor)
        force = False
        while left:
            before = left
            for p in range(len(rows)):
                taken = self._advance(p, force)
                left -= taken
                force = force and not taken
            force = left == before

    def _advance(self, p: int, force: bool) -> int:
        """Take slots of one pipeline rank while they are ready; `force`: the first one in any case. How many were taken."""
        row, ways, begun = self._plan.slots[p], self._ways, self._cursor[p]
        conditions, rank = self._lowering.conditions, self._lowering.stage_ranks[p][0]
        last, smaller = self._plan.training.micro_batches, self._smaller
        at = begun
        while at < len(row):
            kind, stage, micro_batch = row[at]
            way = ways[kind, stage]
            if way.source is not None and micro_batch not in way.source and not force:
                break
            force = False
            taken = way.count.taken + 1
            known = way.known.get((taken == 1) | (taken == last) << 1 | (micro_batch == smaller) << 2)
            if known is not None and known[0] is conditions.get(rank):
                way.count.taken = taken
                self._repeat(micro_batch, way, known)
            else:
                self._slot(p, row[at], way)
            at += 1
        self._cursor[p] = at
        return at - begun

    def _blocking_order(self) -> Sequence[Step]:
        """Where blocking sends stand between slots depends on who is free first, hence on how long passes take."""
        seconds: dict[tuple[str, int], float] = {}
        for p, ranks in enumerate(self._lowering.stage_ranks):
            probe = StagePasses(self._plan, p, self._plan.role(ranks[0]), self._lowering.clock)
            for stage in probe.chunks:
                for kind in {slot.kind: None for slot in self._plan.slots[p]}:
                    seconds[kind, stage] = math.fsum(item.duration for item in probe.template(kind, stage, False, False))
        return blocking_order(self._plan.slots, lambda slot: seconds[slot.kind, slot.stage])

    def _take(self, order: Sequence[Step]) -> None:
        for step in order:
            if isinstance(step, Slot):
                p = self._plan.chunks[step.stage].pipeline_rank
                self._slot(p, step, self._ways[step.kind, step.stage])
                self._cursor[p] += 1
            else:
                self._exchange(step)

    def _exchange(self, exchange: Exchange) -> None:
        """One message or two that cross; both ranks wait until it is over."""
        ends = (exchange.sender, exchange.receiver)
        held: list[tuple[tuple[int, int], Op]] = []
        for slot, origin, target in zip(exchange.slots, ends, reversed(ends), strict=False):
            arrivals: dict[int, Op] = {}
            for rank in self._lowering.stage_ranks[origin]:
                receiver, message = self._message(rank, slot, target)
                busy = [op for r in (rank, receiver) if (op := self._program.last(Lane(r, COMPUTE))) is not None]
                arrivals[receiver] = op = self._send(message, busy, slot.micro_batch)
                held.append(((rank, receiver), op))
            to = self._ways[slot.kind, slot.stage].to
            if to is not None:
                to[slot.micro_batch] = arrivals
        for ranks, op in held:
            for rank in ranks:
                self._holds.setdefault(rank, []).append(op)

    # -- one slot -------------------------------------------------------------------------------------------------

    def _slot(self, p: int, slot: Slot, way: _Way) -> None:
        """Stamp the pass for the ranks of a stage, and send what it makes."""
        plan, micro_batch = self._plan, slot.micro_batch
        way.count.taken += 1
        first = way.count.taken == 1 or plan.asynchronous
        last = way.count.taken == plan.training.micro_batches or plan.asynchronous
        partial = plan.partial(micro_batch)
        ranks, passes = self._lowering.stage_ranks[p], self._lowering.passes[p]
        templates = {role: passes[role].template(slot.kind, slot.stage, first, last, partial) for role in passes}
        if self._repeats and len(ranks) == 1:
            known = self._learn(ranks[0], slot, way, templates, first | last << 1 | partial << 2)
            if known is not None:
                self._repeat(micro_batch, way, known)
                return
        waits: dict[int, list[Op]] = {rank: self._holds.pop(rank, []) for rank in ranks}
        arrived = None if way.source is None else way.source.get(micro_batch)
        for rank, op in (arrived or {}).items():
            waits[rank].append(op)
        starts = self._lowering.stamp(ranks, templates, micro_batch, waits)
        if way.source is not None and arrived is None:
            self._awaited.setdefault((id(way.source), micro_batch), []).extend(starts.values())
        if plan.asynchronous:
            self._versions(p, slot)
        if way.to is not None and not self._blocking:
            arrivals: dict[int, Op] = {}
            for rank in ranks:
                receiver, message = self._message(rank, slot, way.target)
                produced = self._program.last(Lane(rank, COMPUTE))
                arrivals[receiver] = self._send(message, [produced] if produced is not None else [], micro_batch)
            self._arrived(way.to, micro_batch, arrivals)

    def _arrived(self, to: _Arrivals, micro_batch: int, arrivals: dict[int, Op]) -> None:
        to[micro_batch] = arrivals
        for consumer in self._awaited.pop((id(to), micro_batch), ()):
            for op in arrivals.values():
                self._program.block(op, consumer)

    def _learn(self, rank: int, slot: Slot, way: _Way, templates: Mapping[str, Sequence[Item]], variant: int) -> _Known | None:
        """The pass of a stage with one lowered rank, for `_repeat`; None if others take part in it, or if it may change."""
        lowering, program = self._lowering, self._program
        role = lowering.roles[rank]
        condition = lowering.conditions.get(rank)
        stamps = lowering.compiled(rank, templates[role])
        if stamps is None or not lowering.passes[self._plan.chunks[slot.stage].pipeline_rank][role].fixed:
            return None
        receiver, message = self._message(rank, slot, way.target) if way.to is not None else (-1, None)
        known = (condition, program.ready_made(rank, stamps, message), receiver)
        way.known[variant] = known
        return known

    def _repeat(self, micro_batch: int, way: _Way, known: _Known) -> None:
        """Take a slot of which all is known: the same as `_slot`, in few words."""
        source, to = way.source, way.to
        arrived = None if source is None else source.get(micro_batch)
        start = self._program.stamp(known[1], micro_batch, arrived.values() if arrived is not None else ())
        if source is not None and arrived is None and start is not None:
            self._awaited.setdefault((id(source), micro_batch), []).append(start)
        if to is not None:
            to[micro_batch] = arrivals = {known[2]: self._program.ops[-1]}
            if self._awaited:
                self._arrived(to, micro_batch, arrivals)

    # -- messages -------------------------------------------------------------------------------------------------

    def _send(self, message: Stamp, needs: Sequence[Op], micro_batch: int) -> Op:
        name, kind, lanes, duration, collective, effects, _, _ = message
        return self._program.add(name, kind, lanes, needs, duration, collective, effects, micro_batch)

    def _message(self, rank: int, slot: Slot, target: int) -> tuple[int, Stamp]:
        """(receiver, message) of a rank after such a slot; asked when it is known, behind the slot's pass."""
        key = (rank, slot.kind, slot.stage, target, self._plan.partial(slot.micro_batch))
        if (message := self._messages.get(key)) is None:
            message = self._messages[key] = self._written(*key)
        return message

    def _written(self, rank: int, kind: str, stage: int, target: int, partial: bool) -> tuple[int, Stamp]:
        lowering, mesh = self._lowering, self._plan.mesh
        here, other = mesh.coordinate(rank, "pipeline"), mesh.move(rank, "pipeline", target)
        receiver = lowering.standing_for(other)
        size, held, duration = lowering.passes[here][lowering.roles[rank]].sends(kind, stage, partial)
        collective: Collective | None = None
        if size is not None:
            collective = lowering.transfer("send", "pipeline", (rank, other), size)
        lowering.note("send", "pipeline", here, target, size)
        way = "forward" if kind == "F" else "backward"
        if (lanes := self._send_lanes.get((rank, receiver, way))) is None:
            # where messages of one way go to two neighbours, or come from two, they need not wait for each other
            to, by = (f" to {target}", f" from {here}") if self._plan.branches else ("", "")
            lanes = self._send_lanes[rank, receiver, way] = (Lane(rank, f"send {way}{to}"), Lane(receiver, f"receive {way}{by}"))
        effects: Effects = ((rank, held),) if held else ()
        return receiver, Stamp(f"send {kind}{stage}", "pipeline_comm", lanes, duration, collective, effects, (), (Lane(rank, COMPUTE),))

    def _versions(self, p: int, slot: Slot) -> None:
        """PipeDream's weight stash: zero-length ops that allocate and free weight versions."""
        lowering = self._lowering
        stashed = {role: passes.stash(slot.kind, slot.micro_batch) for role, passes in lowering.passes[p].items()}
        for rank in lowering.stage_ranks[p]:
            last = self._program.last(Lane(rank, COMPUTE))
            lanes = lowering.lane_tuple(rank, ("versions",))
            for version, effects in stashed[lowering.roles[rank]]:
                self._program.add("weight version", "compute", lanes, [last] if last else (), 0.0, None, ((rank, effects),), -2 - version)
