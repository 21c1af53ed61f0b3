"""A training step as data: ops in lanes, with what blocks them and what they do to memory.

An op begins when every op before it in each of its lanes and every op it needs has ended. A collective stands in
the lanes of all its members, hence starts when all have arrived. A lane is not an object: it is a chain of
"my lane's previous op" edges, made while building. The program is read-only while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

COMPUTE = "compute"
"""name of the lane that runs kernels"""
OFFLOAD = "offload"
"""axis of the transfers of one rank with its own host: copies over the host's links, and the optimizer step in host memory"""


class Lane(NamedTuple):
    """A queue of one rank: ``compute``, a communicator (``tensor``, ``data``, ``send``, ...) or a copy engine."""

    rank: int
    name: str


@dataclass(frozen=True, slots=True)
class Collective:
    """A transfer among ranks; shared by all ops that repeat it.

    `bytes` follows nccl-tests: all_reduce, broadcast, reduce: buffer per rank; all_gather, reduce_scatter: total
    buffer (n x shard); all_to_all: send buffer per rank; send: the message, from group[0] to group[1];
    sendrecv: what each rank sends to the next of the group, the last to the first.
    """

    kind: str
    """all_reduce | all_gather | reduce_scatter | broadcast | reduce | all_to_all | sendrecv | send; of axis offload: d2h | h2d |
    nvme_read | nvme_write | cpu_step"""
    axis: str
    """tensor | context | expert | data | pipeline | offload: whose time it is in the breakdown"""
    group: tuple[int, ...]
    """the global ranks that take part (true members, also in a folded program)"""
    bytes: int


@dataclass(frozen=True, slots=True)
class Effect:
    """One allocation (+) or release (-) inside an op, `offset` seconds after the op's start.

    `tensor` numbers a tensor within its rank's `tensors` table. A tensor with `per_micro_batch` exists once per
    micro-batch; an op's `instance` says which. Effects at equal times apply in list order.
    """

    offset: float
    tensor: int
    allocate: bool


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of a rank's tensor table."""

    name: str
    bytes: int
    category: str
    """parameters | gradients | optimizer | activations | buffers | temporaries | workspace; ``host ...`` and ``nvme ...`` are elsewhere
    than on the device"""
    per_micro_batch: bool = False


class Op:
    """One piece of work. Slotted and mutable: objects that exist by the million."""

    __slots__ = ("after", "collective", "duration", "effects", "index", "instance", "kind", "lanes", "name")

    def __init__(
        self,
        index: int,
        name: str,
        kind: str,
        lanes: tuple[Lane, ...],
        duration: float = 0.0,
        collective: Collective | None = None,
        effects: Effects = (),
        instance: int = 0,
    ) -> None:
        self.index = index
        self.name = name
        """what, without where: ``F L3 attention``, ``all_reduce grads bucket 2`` (shared string)"""
        self.kind = kind
        """breakdown class: compute | recompute | tensor_comm | data_comm | pipeline_comm | ... | optimizer"""
        self.lanes = lanes
        self.duration = duration
        """seconds; for a collective, time before its latency (normally 0)"""
        self.collective = collective
        self.effects = effects
        """(rank, effects) pairs: what this op does to each rank's memory"""
        self.instance = instance
        """micro-batch (0-based); -1 when the op belongs to no micro-batch"""
        self.after: list[Op] = []

    def __repr__(self) -> str:
        return f"<Op {self.index} {self.name}#{self.instance}>"


Effects = tuple[tuple[int, tuple[Effect, ...]], ...]
"""(rank, effects) pairs"""


class Stamp(NamedTuple):
    """One op of a pass that is added again and again: what `Program.add` is told, for whichever micro-batch."""

    name: str
    kind: str
    lanes: tuple[Lane, ...]
    duration: float
    collective: Collective | None
    effects: Effects
    needs: tuple[int, ...] = ()
    """places in the pass"""
    tails: tuple[Lane, ...] = ()
    """lanes whose last op it waits for (the compute lane of a pass: as it was before the pass)"""


Tail = list[Op]
"""the last op of a lane; empty while there is none"""


class Pass:
    """A pass of one rank that meets nobody else, ready for `Program.stamp`."""

    __slots__ = ("begin", "bodies", "first", "rows")

    def __init__(self, begin: Tail, first: int, rows: list[tuple[Any, ...]]) -> None:
        self.begin = begin
        """compute lane"""
        self.first = first
        """place of its first op on the compute lane, -1: none"""
        self.rows = rows
        """per op: what `Op` is told, tails of its lanes, places it needs, tails it waits for, whether it waits for `begin`"""
        self.bodies: Sequence[Any] = ()
        """what is in the ops of a program with blocks"""


@dataclass
class Program:
    """Ops in the order they were added, and how many blockers each has."""

    ops: list[Op] = field(default_factory=list)
    blockers: list[int] = field(default_factory=list)
    tensors: dict[int, list[Tensor]] = field(default_factory=dict)
    """rank -> its tensor table"""
    resident: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """rank -> tensors that exist before the first op (parameters, optimizer state, ...)"""
    memory_bound: dict[str, float] = field(default_factory=dict)
    """name of a compute op -> share of its time in kernels that wait for HBM (0 if absent); for interference"""
    work: dict[tuple[str, float], tuple[float, float]] = field(default_factory=dict)
    """(name, duration) of a compute op -> what its kernels compute [FLOP] and move in device memory [B]; for pictures"""
    slots: dict[int, Sequence[tuple[str, int, int]]] = field(default_factory=dict)
    """rank -> its schedule as (kind, stage, micro_batch), for the text form and figures"""
    _tails: dict[Lane, Tail] = field(default_factory=dict, repr=False)
    _tails_of: dict[int, tuple[tuple[Lane, ...], tuple[Tail, ...]]] = field(default_factory=dict, repr=False)
    """id of a tuple of lanes -> it and their tails: most ops share their tuples"""

    def add(
        self,
        name: str,
        kind: str,
        lanes: tuple[Lane, ...],
        needs: Iterable[Op] = (),
        duration: float = 0.0,
        collective: Collective | None = None,
        effects: Effects = (),
        instance: int = 0,
    ) -> Op:
        """Append an op behind the last op of each of its lanes and behind `needs`."""
        op = Op(len(self.ops), name, kind, lanes, duration, collective, effects, instance)
        count = 0
        known = self._tails_of.get(id(lanes))
        for tail in known[1] if known is not None else self._bound(lanes):
            if tail:
                tail[0].after.append(op)
                count += 1
                tail[0] = op
            else:
                tail.append(op)
        for other in needs:
            other.after.append(op)
            count += 1
        self.ops.append(op)
        self.blockers.append(count)
        return op

    def ready_made(self, rank: int, stamps: Sequence[Stamp], message: Stamp | None = None) -> Pass:
        """A pass of one rank for `stamp`. A `message` leaves when the pass is over; its compute tail is the pass's end."""
        rows: list[tuple[Any, ...]] = []
        first = -1
        for name, kind, lanes, duration, collective, effects, needs, tails in stamps:
            if first < 0 and lanes[0].name == COMPUTE:
                first = len(rows)
            others = tuple(self.tail(lane) for lane in tails if lane.name != COMPUTE)
            row = (name, kind, lanes, duration, collective, effects, self._bound(lanes), needs, others, len(others) < len(tails))
            rows.append(row)
        if message is not None:
            name, kind, lanes, duration, collective, effects, _, tails = message
            rows.append((name, kind, lanes, duration, collective, effects, self._bound(lanes), (), tuple(map(self.tail, tails)), False))
        return Pass(self.tail(Lane(rank, COMPUTE)), first, rows)

    def stamp(self, ready: Pass, instance: int, waits: Iterable[Op] = ()) -> Op | None:
        """Append a pass; returns its first op on the compute lane, which begins behind `waits`.

        The same as calling `add` for every entry, without the calls: programs have a million ops.
        """
        ops, blockers = self.ops, self.blockers
        begin = ready.begin[0] if ready.begin else None
        origin = index = len(ops)
        for name, kind, lanes, duration, collective, effects, tails, needs, others, behind in ready.rows:
            op = Op(index, name, kind, lanes, duration, collective, effects, instance)
            index += 1
            count = 0
            for tail in tails:
                if tail:
                    tail[0].after.append(op)
                    count += 1
                    tail[0] = op
                else:
                    tail.append(op)
            for need in needs:
                ops[origin + need].after.append(op)
                count += 1
            for tail in others:
                if tail and tail[0] is not op:
                    tail[0].after.append(op)
                    count += 1
            if behind and begin is not None:
                begin.after.append(op)
                count += 1
            ops.append(op)
            blockers.append(count)
        if ready.first < 0:
            return None
        start = ops[origin + ready.first]
        for other in waits:
            other.after.append(start)
            blockers[start.index] += 1
        return start

    def join(self, op: Op, lanes: tuple[Lane, ...], needs: Iterable[Op] = (), effects: Effects = ()) -> None:
        """More members take part in `op` (a collective across stages that are lowered one after the other)."""
        for lane in lanes:
            tail = self.tail(lane)
            for last in tail:
                self.block(last, op)
            tail[:] = [op]
        for other in needs:
            self.block(other, op)
        op.lanes += lanes
        op.effects += effects

    def grown(self) -> None:
        """Ops have been appended to `ops` directly, with their `blockers`."""

    def block(self, before: Op, after: Op) -> None:
        """Make `after` wait for `before`; needed where a dependency points to an op added earlier."""
        before.after.append(after)
        self.blockers[after.index] += 1

    def last(self, lane: Lane) -> Op | None:
        """The op added last to `lane`."""
        tail = self._tails.get(lane)
        return tail[0] if tail else None

    def tail(self, lane: Lane) -> Tail:
        """The end of a lane: the same list always."""
        if (tail := self._tails.get(lane)) is None:
            tail = self._tails[lane] = []
        return tail

    def tails(self) -> dict[Lane, Op]:
        """The last op of every lane."""
        return {lane: tail[0] for lane, tail in self._tails.items() if tail}

    def _bound(self, lanes: tuple[Lane, ...]) -> tuple[Tail, ...]:
        tails = tuple(map(self.tail, lanes))
        self._tails_of[id(lanes)] = (lanes, tails)
        return tails

    def transfers(self) -> Iterator[tuple[Collective, tuple[Lane, ...]]]:
        """Every transfer with the lanes it holds, once for ops that have the same objects."""
        known = {(id(found), id(op.lanes)): (found, op.lanes) for op in self.ops if (found := op.collective) is not None}
        yield from known.values()
