"""A training step as data: ops in lanes, with what blocks them and what they do to memory.

An op begins when every op before it in each of its lanes and every op it needs has ended. A collective stands in
the lanes of all its members, hence starts when all have arrived. A lane is not an object: it is a chain of
"my lane's previous op" edges, made while building. The program is read-only while it runs.

A program is columns: what an op is (`OpSpec`) stands once for all micro-batches that repeat it, and per op there are a number of
its spec, the ops that it blocks and how many block it. An `Op` is a view of one row, for texts, errors and tests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

COMPUTE = "compute"
"""name of the lane that runs kernels"""


class Lane(NamedTuple):
    """A queue of one rank: ``compute``, a communicator (``tensor``, ``data``, ``send``, ...), a stream beside it or a copy engine."""

    rank: int
    name: str


@dataclass(frozen=True, slots=True)
class Collective:
    """A transfer among ranks; shared by all ops that repeat it.

    `bytes` follows nccl-tests: all_reduce, broadcast, reduce: buffer per rank; all_gather, reduce_scatter: total
    buffer (n x shard); all_to_all: send buffer per rank; token_exchange: the tokens of a rank, each once; send: the message, from
    group[0] to group[1]; sendrecv: what each rank sends to the next of the group, the last to the first.
    """

    kind: str
    """all_reduce | all_gather | reduce_scatter | broadcast | reduce | all_to_all | token_exchange | sendrecv | send; of axis offload:
    d2h | h2d | nvme_read | nvme_write | cpu_step"""
    axis: str
    """tensor | context | expert | data | pipeline | offload: whose time it is in the breakdown"""
    group: tuple[int, ...]
    """the global ranks that take part (true members, also in a folded program)"""
    bytes: int


class Effect(NamedTuple):
    """One allocation (+) or release (-) inside an op, `offset` seconds after the op's start.

    `tensor` numbers a tensor within its rank's `tensors` table. A tensor with `per_micro_batch` exists once per
    micro-batch; an op's `instance` says which. Effects at equal times apply in list order.
    """

    offset: float
    tensor: int
    allocate: bool


class Tensor(NamedTuple):
    """One row of a rank's tensor table."""

    name: str
    bytes: int
    category: str
    """parameters | gradients | optimizer | activations | buffers | temporaries | workspace; ``host ...`` and ``nvme ...`` are elsewhere
    than on the device"""
    per_micro_batch: bool = False
    stream: str = ""
    """the stream whose memory it is taken from; empty: that of compute. What one stream has freed no other one gets"""


Effects = tuple[tuple[int, tuple[Effect, ...]], ...]
"""(rank, effects) pairs"""


class OpSpec(NamedTuple):
    """What an op is, wherever and however often it runs."""

    name: str
    """what, without where: ``F L3 attention``, ``all_reduce grads bucket 2``"""
    kind: str
    """breakdown class: compute | recompute | tensor_comm | data_comm | pipeline_comm | ... | optimizer"""
    lanes: tuple[Lane, ...]
    duration: float = 0.0
    """seconds; for a collective, time before its latency (normally 0)"""
    collective: Collective | None = None
    effects: Effects = ()
    """what it does to each rank's memory"""


class Op:
    """One row of a program."""

    __slots__ = ("index", "program")

    def __init__(self, program: Program, index: int) -> None:
        self.program = program
        self.index = index

    @property
    def spec(self) -> OpSpec:
        """What it is."""
        return self.program.specs[self.program.spec[self.index]]

    @property
    def name(self) -> str:
        """See `OpSpec`."""
        return self.spec.name

    @property
    def kind(self) -> str:
        """See `OpSpec`."""
        return self.spec.kind

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """See `OpSpec`."""
        return self.spec.lanes

    @property
    def duration(self) -> float:
        """See `OpSpec` [s]."""
        return self.spec.duration

    @property
    def collective(self) -> Collective | None:
        """See `OpSpec`."""
        return self.spec.collective

    @property
    def effects(self) -> Effects:
        """See `OpSpec`."""
        return self.spec.effects

    @property
    def instance(self) -> int:
        """Micro-batch (0-based); -1 when the op belongs to no micro-batch."""
        return self.program.instance(self.index)

    @property
    def after(self) -> list[Op]:
        """The ops that wait for this one."""
        return [Op(self.program, self.index + offset) for offset in self.program.successors[self.index]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self.index == other.index and self.program is other.program

    def __hash__(self) -> int:
        return hash(self.index)

    def __repr__(self) -> str:
        return f"<Op {self.index} {self.name}#{self.instance}>"


class Ops(Sequence[Op]):
    """The ops of a program as views."""

    __slots__ = ("_program",)

    def __init__(self, program: Program) -> None:
        self._program = program

    def __len__(self) -> int:
        return len(self._program.spec)

    @overload
    def __getitem__(self, index: int) -> Op: ...
    @overload
    def __getitem__(self, index: slice) -> list[Op]: ...
    def __getitem__(self, index: int | slice) -> Op | list[Op]:
        places = range(len(self))[index]
        return Op(self._program, places) if isinstance(places, int) else [Op(self._program, place) for place in places]

    def __iter__(self) -> Iterator[Op]:
        return (Op(self._program, index) for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class Stamp:
    """Rows that are added to a program again and again, relative to the first of them; see `StampBuilder`."""

    spec: list[int]
    successors: list[tuple[int, ...]]
    blockers: list[int]
    entries: tuple[tuple[int, int], ...]
    """(lane number, row): the row waits for the lane's last op before the stamp"""
    exits: tuple[tuple[int, int], ...]
    """(lane number, row): the row is the lane's last op behind the stamp"""
    first: dict[int, int]
    """rank -> its first row on the compute lane"""
    turns: tuple[tuple[int, int], ...] = ()
    """(row, place among the stamp's micro-batches): whose are the rows from there on; empty: all of the only one"""


class StampBuilder:
    """Writes a stamp row by row."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._spec: list[int] = []
        self._successors: list[list[int]] = []
        self._blockers: list[int] = []
        self._entries: dict[tuple[int, int], None] = {}
        self._last: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self.turn = 0
        """which of several micro-batches the next rows belong to"""
        self._turns: list[tuple[int, int]] = []

    def add(self, spec: OpSpec, needs: Iterable[int] = (), behind: Iterable[Lane] = (), before: Iterable[Lane] = ()) -> int:
        """Append a row behind the last row of each of its lanes, and return its place.

        `needs` are places of rows it waits for, `behind` lanes whose last op so far it waits for, `before` lanes whose last op
        before the stamp it waits for.
        """
        row = len(self._spec)
        if self.turn != (self._turns[-1][1] if self._turns else 0):
            self._turns.append((row, self.turn))
        own = [self._program.lane_number(lane) for lane in spec.lanes]
        blockers = dict.fromkeys(needs)
        for number in (*own, *map(self._program.lane_number, behind)):
            if (last := self._last.get(number)) is None:
                self._entries[number, row] = None
            else:
                blockers[last] = None
        for lane in before:
            self._entries[self._program.lane_number(lane), row] = None
        for blocker in blockers:
            self._successors[blocker].append(row - blocker)
        for number, lane in zip(own, spec.lanes, strict=True):
            self._last[number] = row
            if lane.name == COMPUTE:
                self._first.setdefault(lane.rank, row)
        self._spec.append(self._program.specify(spec))
        self._successors.append([])
        self._blockers.append(len(blockers))
        return row

    def last(self, lane: Lane) -> int | None:
        """The last row of a lane so far."""
        return self._last.get(self._program.lane_number(lane))

    def finish(self) -> Stamp:
        """The stamp."""
        successors = list(map(tuple, self._successors))
        return Stamp(
            self._spec, successors, self._blockers, tuple(self._entries), tuple(self._last.items()), self._first, tuple(self._turns)
        )


@dataclass
class Program:
    """Ops in the order they were added, as columns."""

    specs: list[OpSpec] = field(default_factory=list)
    spec: list[int] = field(default_factory=list)
    """by op index: number of its spec"""
    successors: list[tuple[int, ...]] = field(default_factory=list)
    """by op index: the ops it blocks, as offsets from it"""
    blockers: list[int] = field(default_factory=list)
    """by op index: how many ops block it"""
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
    begins: dict[int, list[int]] = field(default_factory=dict)
    """rank -> by slot of its schedule, the first op on its compute lane; -1: the slot has none"""
    _numbers: dict[Lane, int] = field(default_factory=dict, repr=False)
    _tails: list[int] = field(default_factory=list, repr=False)
    """by lane number: the op added last, -1: none"""
    _begins: list[int] = field(default_factory=list, repr=False)
    """where runs of ops of one instance begin"""
    _instances: list[int] = field(default_factory=list, repr=False)
    _known: dict[OpSpec, int] = field(default_factory=dict, repr=False)

    @property
    def ops(self) -> Ops:
        """The ops as views."""
        return Ops(self)

    # -- adding -------------------------------------------------------------------------------------------------------

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
        spec = OpSpec(name, kind, lanes, duration, collective, effects)
        if (known := self._known.get(spec)) is None:
            known = self._known[spec] = self.specify(spec)
        index = len(self.spec)
        self._instance(instance)
        self.spec.append(known)
        self.successors.append(())
        self.blockers.append(0)
        numbers = [self.lane_number(lane) for lane in lanes]
        for before in dict.fromkeys([*(self._tails[number] for number in numbers), *(op.index for op in needs)]):
            if before >= 0:
                self.successors[before] += (index - before,)
                self.blockers[index] += 1
        for number in numbers:
            self._tails[number] = index
        return Op(self, index)

    def specify(self, spec: OpSpec) -> int:
        """Number of a spec from now on."""
        self.specs.append(spec)
        return len(self.specs) - 1

    def stamp(self, stamp: Stamp, instance: int, other: int = -1) -> int:
        """Append the rows of a stamp; returns the index of the first. The same as calling `add` for each of them.

        `other`: the micro-batch that some rows belong to instead (`Stamp.turns`).
        """
        origin = len(self.spec)
        successors, blockers, tails = self.successors, self.blockers, self._tails
        self._instance(instance)
        for row, turn in stamp.turns:
            self._begins.append(origin + row)
            self._instances.append(other if turn else instance)
        self.spec += stamp.spec
        successors += stamp.successors
        blockers += stamp.blockers
        for lane, row in stamp.entries:
            if (before := tails[lane]) >= 0 and (offset := origin + row - before) not in successors[before]:
                successors[before] += (offset,)
                blockers[origin + row] += 1
        for lane, row in stamp.exits:
            tails[lane] = origin + row
        return origin

    def with_durations(self, seconds: Sequence[float]) -> Program:
        """The same program with other durations, by op index [s]; it is not lowered again, and shares all else."""
        specs: dict[tuple[int, float], int] = {}
        numbers = [specs.setdefault(pair, len(specs)) for pair in zip(self.spec, seconds, strict=True)]
        return replace(self, spec=numbers, specs=[self.specs[spec]._replace(duration=duration) for spec, duration in specs], _known={})

    def block(self, before: int, after: int) -> None:
        """Make op `after` wait for op `before`, which may have been added later."""
        if after - before not in self.successors[before]:
            self.successors[before] += (after - before,)
            self.blockers[after] += 1

    def _instance(self, instance: int) -> None:
        if not self._instances or self._instances[-1] != instance:
            self._begins.append(len(self.spec))
            self._instances.append(instance)

    # -- lanes --------------------------------------------------------------------------------------------------------

    def lane_number(self, lane: Lane) -> int:
        """The lane's place in the column of last ops."""
        if (number := self._numbers.get(lane)) is None:
            number = self._numbers[lane] = len(self._tails)
            self._tails.append(-1)
        return number

    def last(self, lane: Lane) -> Op | None:
        """The op added last to `lane`."""
        number = self._numbers.get(lane)
        return None if number is None or self._tails[number] < 0 else Op(self, self._tails[number])

    # -- columns ------------------------------------------------------------------------------------------------------

    def instance(self, index: int) -> int:
        """See `Op.instance`."""
        return self._instances[bisect_right(self._begins, index) - 1]

    def instances(self) -> NDArray[np.int64]:
        """`Op.instance` of every op."""
        return np.repeat(np.array(self._instances, dtype=np.int64), np.diff([*self._begins, len(self.spec)]))

    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(op, op that it blocks) of every edge, ascending by the first."""
        counts = np.fromiter(map(len, self.successors), dtype=np.int64, count=len(self.successors))
        before = np.repeat(np.arange(len(counts)), counts)
        offsets = np.fromiter(chain.from_iterable(self.successors), dtype=np.int64, count=len(before))
        return before, before + offsets

    def transfers(self) -> Iterator[tuple[Collective, tuple[Lane, ...]]]:
        """Every transfer with the lanes it holds, once."""
        seen: dict[tuple[Collective, tuple[Lane, ...]], None] = {}
        for spec in self.specs:
            if spec.collective is not None:
                seen[spec.collective, spec.lanes] = None
        yield from seen
