"""The walk through the schedule: every slot is stamped, and its result sent to the pipeline rank that needs it.

Slots are taken in an order in which producers precede consumers; a schedule for which no such order exists is lowered all the
same, and deadlocks when it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from parsim.kernel import Kernel, on_kind
from parsim.parallel.groups import PIPELINE
from parsim.parallel.schedules.blocking import MessageExchange, SlotOrExchange, blocking_order
from parsim.parallel.schedules.slot import Slot, SlotKind
from parsim.program.lowered_ranks import LoweredRanks
from parsim.program.program import COMPUTE, Collective, Effects, Lane, OpSpec, Program, Stamp, StampBuilder
from parsim.program.script import Message, Scripts, SlotPass, receiver, script_of
from parsim.program.side_by_side import side_by_side
from parsim.program.stage_passes import StagePasses
from parsim.program.stamping import Stamping


class _Arrivals:
    """The messages to one stage in one direction."""

    __slots__ = ("awaiting", "sent")

    def __init__(self) -> None:
        self.sent: dict[int, list[tuple[int, int]]] = {}
        """micro-batch -> (receiver, message's op)"""
        self.awaiting: dict[int, list[int]] = {}
        """micro-batch -> ops that were added before the message they wait for"""


class _Way(NamedTuple):
    """Where the slots of one kind on one stage have their input from, and where their result goes."""

    source: _Arrivals | None
    """None: they wait for nobody"""
    to: _Arrivals | None
    """None: nobody waits for them"""
    target: int
    """pipeline rank that receives"""


class _Prepared(NamedTuple):
    """A slot of all lowered ranks of a stage."""

    stamp: Stamp
    messages: tuple[tuple[tuple[int, int], ...], ...]
    """by pass: (receiver, row of the message)"""


class ScheduleLowering:
    """Walks the schedule of a plan once, and stamps the slots' passes into `program`."""

    def __init__(self, ranks: LoweredRanks, program: Program, scripts: Scripts, clock: Callable[[Kernel], float]) -> None:
        self._ranks = ranks
        self._plan = plan = ranks.plan
        self._program = program
        self._by_role = scripts
        self._clock = clock
        self._arrivals: dict[tuple[str, int], _Arrivals] = {}
        self._pairs = dict(plan.overlapped)
        self._ways = {key: self._way(*key) for key in dict.fromkeys((slot.kind, slot.stage) for row in plan.slots for slot in row)}
        self._scripts = [list(by_role.values()) for by_role in scripts]
        self._prepared: dict[tuple[SlotPass, ...], _Prepared] = {}
        self._holds: dict[int, list[int]] = {}
        """rank -> blocking messages that its next compute waits for"""
        self._cursor = [0] * len(plan.slots)
        self._places = [{slot: at for at, slot in enumerate(row)} for row in plan.slots]
        self._blocking = not plan.parallelism.pipeline.overlap_sends

    def run(self) -> None:
        """Add all passes and messages."""
        if self._blocking:
            for step in self._blocking_order():
                if isinstance(step, Slot):
                    self._slot(self._plan.chunks[step.stage].pipeline_rank, step)
                else:
                    self._exchange(step)
            self._blocking = False  # slots that are left are in a deadlock, which their messages must show
            self._prepared.clear()
        self._walk()

    def _way(self, kind: str, stage: int) -> _Way:
        source = to = None
        step = 1 if kind == SlotKind.FORWARD else -1
        way = SlotKind.FORWARD if kind == SlotKind.FORWARD else SlotKind.FULL_BACKWARD
        producer = stage - step
        if kind != SlotKind.BACKWARD_WEIGHT and 0 <= producer < self._plan.stages and receiver(self._plan, kind, producer) is not None:
            source = self._arrivals.setdefault((way, stage), _Arrivals())
        if (target := receiver(self._plan, kind, stage)) is not None:
            to = self._arrivals.setdefault((way, stage + step), _Arrivals())
        return _Way(source, to, -1 if target is None else target)

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
        row, ways, cursor, pairs = self._plan.slots[p], self._ways, self._cursor, self._pairs
        begun = cursor[p]
        while cursor[p] < len(row):
            slot = row[cursor[p]]
            source = ways[slot.kind, slot.stage].source
            arrived = force or source is None or slot.micro_batch in source.sent
            if pairs and (other := pairs.get(slot)) is not None:
                source = ways[other.kind, other.stage].source
                if not (force or (arrived and (source is None or other.micro_batch in source.sent))):
                    break
                self._slot(p, slot, other)
            elif arrived:
                self._slot(p, slot)
            else:
                break
            force = False
        return cursor[p] - begun

    def _blocking_order(self) -> Sequence[SlotOrExchange]:
        """Where blocking sends stand between slots depends on who is free first, hence on how long passes take."""
        seconds: dict[tuple[str, int], float] = {}
        for p, by_role in enumerate(self._by_role):
            for role in by_role:  # whoever is slowest decides
                probe = StagePasses(self._plan, p, role.central, on_kind(self._clock, role.kind))
                for stage in probe.chunks:
                    for kind in {slot.kind: None for slot in self._plan.slots[p]}:
                        took = math.fsum(item.duration for item in probe.template(kind, stage, False, False))
                        seconds[kind, stage] = max(took, seconds.get((kind, stage), 0.0))
        return blocking_order(self._plan.slots, lambda slot: seconds[slot.kind, slot.stage])

    # -- one slot -------------------------------------------------------------------------------------------------

    def _slot(self, p: int, slot: Slot, other: Slot | None = None) -> None:
        """Stamp the next pass of a stage's ranks, or two that overlap, with the messages that they send."""
        at, program = self._cursor[p], self._program
        slots = (slot,) if other is None else (slot, other)
        self._cursor[p] = at + len(slots)
        passes = tuple([script.slots[at] for script in self._scripts[p]])
        if other is not None:
            passes += tuple([script.slots[at + 1] for script in self._scripts[p]])
        prepared = self._prepared.get(passes) or self._prepare(p, slots, passes)
        origin = program.stamp(prepared.stamp, slot.micro_batch, -1 if other is None else other.micro_batch)
        first = prepared.stamp.first
        for rank in self._ranks.of_stage[p]:
            program.begins[rank][at : self._cursor[p]] = [origin + first[rank] if rank in first else -1] * len(slots)
        for rank, row in first.items() if self._holds else ():
            for op in self._holds.pop(rank, ()):
                program.block(op, origin + row)
        if self._plan.asynchronous:
            self._versions(p, at)
        for one, messages in zip(slots, prepared.messages, strict=True):
            way = self._ways[one.kind, one.stage]
            if way.source is not None:
                self._await(way.source, one.micro_batch, first, origin)
            if way.to is not None and not self._blocking:
                self._arrived(way.to, one.micro_batch, [(rank, origin + row) for rank, row in messages])

    def _await(self, source: _Arrivals, micro_batch: int, first: dict[int, int], origin: int) -> None:
        """A pass begins when its input has arrived; `first`: its first row by rank, from `origin`."""
        if (arrived := source.sent.get(micro_batch)) is None:
            source.awaiting.setdefault(micro_batch, []).extend(origin + row for row in first.values())
            return
        for rank, op in arrived:
            if rank in first:
                self._program.block(op, origin + first[rank])

    def _arrived(self, to: _Arrivals, micro_batch: int, arrivals: list[tuple[int, int]]) -> None:
        to.sent[micro_batch] = arrivals
        for consumer in to.awaiting.pop(micro_batch, ()):
            for _, op in arrivals:
                self._program.block(op, consumer)

    def _prepare(self, p: int, slots: Sequence[Slot], passes: tuple[SlotPass, ...]) -> _Prepared:
        """The stamp of a pass, or of two that overlap; where sends do not block, their messages leave behind it."""
        stamp = StampBuilder(self._program)
        roles = list(self._by_role[p])
        each = [dict(zip(roles, passes[begin : begin + len(roles)], strict=True)) for begin in range(0, len(passes), len(roles))]
        items = {role: each[0][role].items if len(each) == 1 else side_by_side(*[one[role].items for one in each]) for role in roles}
        Stamping(self._ranks, stamp, {rank: items[self._plan.role(rank)] for rank in self._ranks.of_stage[p]}).run()
        sent = []
        for stamp.turn, (slot, by_role) in enumerate(zip(slots, each, strict=True)):
            messages = []
            for rank in self._ranks.of_stage[p] if not self._blocking else ():
                if (message := by_role[self._plan.role(rank)].message) is not None:
                    target, spec = self._message(rank, slot, message)
                    messages.append((target, stamp.add(spec, behind=(Lane(rank, COMPUTE),))))
            sent.append(tuple(messages))
        prepared = self._prepared[passes] = _Prepared(stamp.finish(), tuple(sent))
        return prepared

    # -- messages -------------------------------------------------------------------------------------------------

    def _message(self, rank: int, slot: Slot, message: Message) -> tuple[int, OpSpec]:
        """(lowered receiver, message) of a rank behind such a slot."""
        mesh, target = self._plan.mesh, self._ways[slot.kind, slot.stage].target
        here, other = mesh.coordinate(rank, PIPELINE), mesh.move(rank, PIPELINE, target)
        to = self._ranks.representative_of(other)
        collective: Collective | None = None
        if message.size is not None:
            collective = self._ranks.transfer("send", PIPELINE, (rank, other), message.size)
        way = "forward" if slot.kind == SlotKind.FORWARD else "backward"
        # where messages of one way go to two neighbours, or come from two, they need not wait for each other
        whither, whence = (f" to {target}", f" from {here}") if self._plan.branches else ("", "")
        lanes = (Lane(rank, f"send {way}{whither}"), Lane(to, f"receive {way}{whence}"))
        effects: Effects = ((rank, message.effects),) if message.effects else ()
        return to, OpSpec(f"send {slot.kind}{slot.stage}", "pipeline_comm", lanes, message.duration, collective, effects)

    def _exchange(self, exchange: MessageExchange) -> None:
        """One blocking message or two that cross; both ranks wait until it is over."""
        ends = (exchange.sender, exchange.receiver)
        held: list[tuple[tuple[int, int], int]] = []
        for slot, origin in zip(exchange.slots, ends, strict=False):
            arrivals: list[tuple[int, int]] = []
            at = self._places[origin][slot]
            for rank in self._ranks.of_stage[origin]:
                message = script_of(self._by_role, self._plan, rank).slots[at].message
                if message is None:
                    continue
                target, spec = self._message(rank, slot, message)
                busy = [op for r in (rank, target) if (op := self._program.last(Lane(r, COMPUTE))) is not None]
                sent = self._program.add(*spec[:3], busy, *spec[3:], instance=slot.micro_batch).index
                arrivals.append((target, sent))
                held.append(((rank, target), sent))
            to = self._ways[slot.kind, slot.stage].to
            if to is not None:
                to.sent[slot.micro_batch] = arrivals
        for ranks, message_op in held:
            for rank in ranks:
                self._holds.setdefault(rank, []).append(message_op)

    def _versions(self, p: int, at: int) -> None:
        """PipeDream's weight stash: zero-length ops that allocate and free weight versions."""
        for rank in self._ranks.of_stage[p]:
            last = self._program.last(Lane(rank, COMPUTE))
            lanes = self._ranks.lane_tuple((rank,), ("versions",))
            for version, effects in script_of(self._by_role, self._plan, rank).versions[at]:
                needs = [] if last is None else [last]
                self._program.add("weight version", "compute", lanes, needs, 0.0, None, ((rank, effects),), -2 - version)
