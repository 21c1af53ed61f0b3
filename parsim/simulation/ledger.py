"""The memory of a rank over time: what its ops allocate and release, by category, and when it is highest.

Sizes are rounded to 512 B as PyTorch's caching allocator does; on demand the events of a rank are replayed through
that allocator, and then "allocated" also counts blocks that it does not split, as `torch.cuda.memory_allocated` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parsim.errors import ParsimError
from parsim.program.program import Effect, Program, Tensor
from parsim.simulation.allocator import ROUNDING
from parsim.simulation.replay import Mode, Replay, repeats, replay_numbered
from parsim.simulation.trace import Trace

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers", "temporaries", "workspace")

Integers = NDArray[np.int64]
Where = Literal["device", "host", "nvme"]


def held_in(category: str) -> Where:
    """Which memory a tensor of this category is in."""
    return "host" if category.startswith("host ") else "nvme" if category.startswith("nvme ") else "device"


class LedgerError(ParsimError):
    """An op releases a tensor that is not live, or allocates one that is: an error in the program's construction."""


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory of one rank: one row per allocation or release, in order.

    Rows with op -1 are tensors that exist before the first op. At equal times an op that began earlier comes first (it
    ends as the other begins), then the order of ops and, within an op, of its list of effects decide.
    """

    rank: int
    tensors: tuple[Tensor, ...]
    """the rank's tensor table"""
    times: NDArray[np.float64]
    """time of each row [s]"""
    op: Integers
    """index of the op that did it; -1 = resident"""
    tensor: Integers
    """number in the tensor table"""
    instance: Integers
    """micro-batch of the tensor; -1 for tensors that exist once"""
    allocated_by: Integers
    """row that allocated what the row releases; the row itself where it allocates"""
    delta: Integers
    """change of allocated memory [B]"""
    level: Integers
    """allocated memory after each row [B]"""
    categories: tuple[str, ...]
    """the usual ones, and others that the table uses"""
    category: Integers
    """number of the tensor's category"""
    replay: Replay | None = field(default=None, repr=False)
    """what the allocator did, if it was asked"""

    @cached_property
    def peak_row(self) -> int:
        """First row at which the peak is reached; -1 if there are none."""
        return int(self.level.argmax()) if len(self.level) else -1

    @property
    def peak(self) -> int:
        """Highest allocated memory [B]."""
        return int(self.level[self.peak_row]) if len(self.level) else 0

    @property
    def peak_time(self) -> float:
        """When the peak is first reached [s]."""
        return float(self.times[self.peak_row]) if len(self.level) else 0.0

    @property
    def peak_op(self) -> int | None:
        """Index of the op in which it is reached; None if no op allocates more than what is resident."""
        return int(self.op[self.peak_row]) if len(self.level) and self.op[self.peak_row] >= 0 else None

    @property
    def peak_reserved(self) -> int | None:
        """Highest reserved memory [B]; None if the allocator was not asked."""
        return None if self.replay is None else self.replay.peak_reserved

    @cached_property
    def final(self) -> tuple[tuple[int, int], ...]:
        """Tensors left after the last row: (number, instance), in the order of their allocation."""
        left = self.allocated_by == np.arange(len(self.delta))
        left[self.allocated_by[~left]] = False
        return tuple(zip(self.tensor[left].tolist(), self.instance[left].tolist(), strict=True))

    def at_other_times(self, other: MemoryTimeline) -> MemoryTimeline:
        """The blocks of this one's replay, when `other` does the same in the same order."""
        return replace(self, rank=other.rank, times=other.times, op=other.op)

    def replayed(self, allocator: Mode, capacity: int | None = None, *, whole: bool = True) -> MemoryTimeline:
        """The same with the blocks of an allocator, see `Ledger.measure`."""
        releases = self.allocated_by != np.arange(len(self.delta))
        events = np.where(releases & (self.delta != 0), ~self.allocated_by, self.delta)
        without = None if whole else repeats(self.tensor, self.instance, self.delta, events, self.peak_row)
        return self.with_blocks(replay_numbered(events, allocator, capacity, without, self.streams))

    @cached_property
    def streams(self) -> Integers | None:
        """Number of the stream that each row's tensor belongs to, compute's is 0; None if there is no other."""
        names = dict.fromkeys(("", *(tensor.stream for tensor in self.tensors)))
        if len(names) == 1:
            return None
        number = {name: place for place, name in enumerate(names)}
        return np.array([number[tensor.stream] for tensor in self.tensors], dtype=np.int64)[self.tensor]

    def with_blocks(self, replay: Replay) -> MemoryTimeline:
        """The same with the blocks of a replay of it."""
        return replace(self, delta=replay.blocks, level=np.cumsum(replay.blocks), replay=replay)

    @cached_property
    def at_peak(self) -> dict[str, int]:
        """Allocated memory at the peak by category [B]; its sum is `peak`."""
        return self.composition(self.peak_row)

    @cached_property
    def resident(self) -> dict[str, int]:
        """What exists before the first op, by category [B]."""
        return self.composition(int(np.count_nonzero(self.op < 0)) - 1)

    def composition(self, row: int) -> dict[str, int]:
        """Allocated memory after a row by category [B]; row -1 is before the first."""
        total = np.bincount(self.category[: row + 1], weights=self.delta[: row + 1], minlength=len(self.categories))
        return {name: int(value) for name, value in zip(self.categories, total, strict=True)}

    @cached_property
    def levels(self) -> dict[str, Integers]:
        """Allocated memory after each row by category [B]; categories that never hold anything are left out."""
        return {
            name: np.cumsum(np.where(self.category == number, self.delta, 0))
            for number, name in enumerate(self.categories)
            if (self.category == number).any()
        }

    def live_at(self, row: int) -> list[tuple[Tensor, int, int]]:
        """Tensors live after a row as (tensor, instance, bytes), largest first."""
        live: dict[tuple[int, int], int] = {}
        columns = (self.tensor[: row + 1].tolist(), self.instance[: row + 1].tolist(), self.delta[: row + 1].tolist())
        for tensor, instance, delta in zip(*columns, strict=True):
            if (tensor, instance) in live:
                del live[tensor, instance]
            else:
                live[tensor, instance] = delta
        found = [(self.tensors[tensor], instance, size) for (tensor, instance), size in live.items()]
        return sorted(found, key=lambda row: -row[2])


@dataclass(frozen=True)
class _Events:
    """What a rank does to its memory, in order."""

    where: Where
    table: list[Tensor]
    tensor: Integers
    instance: Integers
    sign: Integers

    def equal(self, other: _Events) -> bool:
        """Whether both do the same in the same order."""
        columns = ((self.tensor, other.tensor), (self.instance, other.instance), (self.sign, other.sign))
        return self.where == other.where and all(np.array_equal(*pair) for pair in columns) and self.table == other.table


class Ledger:
    """Memory of all ranks of one run; the kinds of ops are walked once, then each rank costs what its own events cost."""

    def __init__(self, program: Program, trace: Trace, ranks: Iterable[int] | None = None) -> None:
        self.program = program
        self.trace = trace
        wanted = {*program.tensors, *program.resident} if ranks is None else set(ranks)
        found: dict[int, dict[int, tuple[Effect, ...]]] = {rank: {} for rank in wanted}
        for kind, example in enumerate(trace.columns.examples):
            for rank, effects in example.effects:
                if rank in wanted or ranks is None:
                    own = found.setdefault(rank, {})
                    own[kind] = own.get(kind, ()) + effects
        self._effects = found
        self._transfers = np.array([example.collective is not None for example in trace.columns.examples], dtype=bool)
        """of each kind of ops"""
        self._last: tuple[_Events, MemoryTimeline] | None = None
        """what the last rank did in which order: the next one is often of the same stage, and does the same at other times"""
        self.ranks: list[int] = sorted(found)
        """ranks that can be measured"""

    def measure(
        self, rank: int, *, allocator: Mode | None = None, capacity: int | None = None, whole: bool = True, where: Where = "device"
    ) -> MemoryTimeline:
        """Memory of one rank over time: of its device, or what it keeps in host memory or on drives.

        An event happens at the start of its op + its offset, but within the op; ties go by the start of the op, the order
        of ops and that of the effects in an op. With an `allocator` all events are replayed through it; `delta`, `level`
        and the peak are then the allocator's blocks, and `replay` tells what was reserved; `capacity` is what the allocator
        may reserve [B]. Not `whole`: what `parsim.simulation.replay.repeats` names is left out of the replay. Raises
        LedgerError if a tensor is released that is not live or allocated twice, naming op and tensor.
        """
        table = self.program.tensors.get(rank, [])
        op, tensor, instance, sign, time = self._events(rank)
        if len(tensor) and not 0 <= tensor.min() <= tensor.max() < len(table):
            raise LedgerError(f"rank {rank}: tensors {tensor.min()} to {tensor.max()} are not all in its table of {len(table)}")
        there = {category: held_in(category) == where for category in dict.fromkeys(row.category for row in table)}
        here = np.array([there[row.category] for row in table], dtype=bool)[tensor]
        events = _Events(where, table, tensor, instance, sign)
        if self._last is None or not events.equal(self._last[0]):
            self._last = events, self._ordered(events, op, here, rank)
        timeline = replace(self._last[1], rank=rank, times=time[here], op=op[here])
        return timeline if allocator is None else timeline.replayed(allocator, capacity, whole=whole)

    def _ordered(self, events: _Events, op: Integers, here: NDArray[np.bool_], rank: int) -> MemoryTimeline:
        """A timeline in which only times and ops are wanting."""
        table = events.table
        repeated = np.array([row.per_micro_batch for row in table], dtype=bool)
        sizes = np.array([row.bytes for row in table], dtype=np.int64)
        instance = np.where(repeated[events.tensor], events.instance, -1)
        allocated_by = self._turns(op, events.tensor, instance, events.sign, table, rank)
        tensor = events.tensor[here]
        delta = events.sign[here] * (-(-sizes[tensor] // ROUNDING) * ROUNDING)
        own = (category for category in dict.fromkeys(row.category for row in table) if held_in(category) == events.where)
        categories = tuple(dict.fromkeys((*CATEGORIES, *own)))
        number = {name: position for position, name in enumerate(categories)}
        return MemoryTimeline(
            rank=rank,
            tensors=tuple(table),
            times=np.empty(0),
            op=np.empty(0, dtype=np.int64),
            tensor=tensor,
            instance=instance[here],
            allocated_by=(np.cumsum(here) - 1)[allocated_by[here]],
            delta=delta,
            level=np.cumsum(delta),
            categories=categories,
            category=np.array([number.get(row.category, -1) for row in table], dtype=np.int64)[tensor],
        )

    def _events(self, rank: int) -> tuple[Integers, Integers, Integers, Integers, NDArray[np.float64]]:
        """Columns op, tensor, instance, sign (+1 allocates) and time of all events in order, resident tensors first."""
        columns, own = self.trace.columns, self._effects.get(rank, {})
        templates = list(own.values())
        lengths = np.array([len(effects) for effects in templates], dtype=np.int64)
        begins = np.cumsum(lengths) - lengths
        offsets = np.array([effect.offset for effects in templates for effect in effects], dtype=np.float64)
        tensors = np.array([effect.tensor for effects in templates for effect in effects], dtype=np.int64)
        signs = np.array([1 if effect.allocate else -1 for effects in templates for effect in effects], dtype=np.int64)
        index = columns.of(list(own))
        number = np.zeros(len(columns.examples), dtype=np.int64)
        number[list(own)] = np.arange(len(own))
        template = number[columns.kind[index]]
        counts = lengths[template]
        place = np.repeat(np.arange(len(index)), counts)
        row = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts) + begins[template][place]
        op = index[place]
        start, end = self.trace.starts[op], self.trace.ends[op]
        passed = offsets[row]
        if self.trace.stretched:  # kernels slowed by communication reach everything in proportion
            nominal = columns.duration[op]
            kernel = (nominal > 0) & ~self._transfers[columns.kind[op]]
            passed[kernel] = passed[kernel] * (end - start)[kernel] / nominal[kernel]
        time = np.clip(start + passed, start, end)
        order = np.lexsort((start, time))  # stable: ties keep the order of ops and of their effects
        resident = np.array(self.program.resident.get(rank, ()), dtype=np.int64)
        none = np.full(len(resident), -1)
        return (
            np.concatenate((none, op[order])),
            np.concatenate((resident, tensors[row][order])),
            np.concatenate((none, columns.instance[op[order]])),
            np.concatenate((-none, signs[row][order])),
            np.concatenate((np.zeros(len(resident)), time[order])),
        )

    def _turns(self, op: Integers, tensor: Integers, instance: Integers, sign: Integers, table: list[Tensor], rank: int) -> Integers:
        """The row that allocated what each row releases: each tensor must be allocated and released in turn, allocation first."""
        order = np.lexsort((instance, tensor))
        turn = sign[order]
        after = np.zeros(len(order), dtype=bool)  # the row before is of the same tensor, and allocates it
        after[1:] = (np.diff(tensor[order]) == 0) & (np.diff(instance[order]) == 0) & (turn[:-1] > 0)
        allocated_by = np.arange(len(order))
        allocated_by[order[1:][after[1:]]] = order[:-1][after[1:]]
        wrong = order[after == (turn > 0)]
        if not wrong.size:
            return allocated_by
        event = int(wrong.min())
        name = table[tensor[event]].name
        which = f" of micro-batch {instance[event]}" if instance[event] >= 0 else ""
        who = repr(self.program.ops[op[event]]) if op[event] >= 0 else "the table of resident tensors"
        what = "allocates" if sign[event] > 0 else "releases"
        rule = "is live already" if sign[event] > 0 else "is not live"
        raise LedgerError(f"rank {rank}: {who} {what} tensor {tensor[event]} {name!r}{which}, which {rule}")


def measure(
    program: Program, trace: Trace, rank: int, *, allocator: Mode | None = None, capacity: int | None = None, whole: bool = True
) -> MemoryTimeline:
    """Memory of one rank over time; for several ranks make one :class:`Ledger`, see `Ledger.measure`."""
    return Ledger(program, trace, [rank]).measure(rank, allocator=allocator, capacity=capacity, whole=whole)
