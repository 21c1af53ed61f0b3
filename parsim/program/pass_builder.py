"""One pass (forward, backward, step) of one stage, written once and stamped per micro-batch and rank.

`PassBuilder` is the `Emitter` that strategies speak to: it turns kernels into seconds, fuses consecutive compute
into one item and records collectives, waits and memory effects relative to the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from parsim.kernel import Fixed, Kernel, Memory
from parsim.parallel.groups import OFFLOAD, stream_lane
from parsim.parallel.hooks import START, Emitter
from parsim.program.program import COMPUTE, Effect, Effects, Tensor


@dataclass
class TensorTable:
    """The tensors of one rank (shared by ranks that do the same work), by name."""

    rows: list[Tensor] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)

    def declare(self, name: str, size: int, category: str, *, per_micro_batch: bool, stream: str = "") -> int:
        """Number of the tensor `name`; the first declaration decides its size."""
        if (number := self.index.get(name)) is None:
            number = self.index[name] = len(self.rows)
            self.rows.append(Tensor(name, size, category, per_micro_batch, stream))
        return number


@dataclass(slots=True)
class Item:
    """One op of a pass: `needs` are items of the same pass, `tails` are lanes whose last op so far it waits for."""

    name: str
    kind: str
    lanes: tuple[str, ...]
    duration: float = 0.0
    memory_time: float = 0.0
    """the part of it in kernels that wait for HBM [s]"""
    flop: float = 0.0
    """what its kernels compute [FLOP]"""
    moved: float = 0.0
    """what its kernels read and write in device memory [B]"""
    collective: tuple[str, str, int] | None = None
    """(kind, axis, bytes)"""
    needs: list[int] = field(default_factory=list)
    tails: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    aside: bool = False
    """nothing that follows in its pass waits for it, but for what needs it"""
    waits: bool = False
    """it is a wait: the speed of the rank's compute does not change it"""
    turn: int = 0
    """which of the passes of a slot it belongs to (`parsim.program.side_by_side`)"""

    def runs(self, kernels: Sequence[Kernel], clock: Callable[[Kernel], float]) -> None:
        """Add kernels to what it does; `clock`: seconds of a kernel."""
        for kernel in kernels:
            seconds = clock(kernel)
            self.duration += seconds
            self.flop += kernel.flop
            self.moved += 0.0 if isinstance(kernel, Fixed) else kernel.bytes
            self.memory_time += seconds if isinstance(kernel, Memory) else 0.0

    def on(self, rank: int) -> Effects:
        """The effects on `rank`, as ops carry them."""
        return ((rank, tuple(self.effects)),)


class PassBuilder(Emitter):
    """Collects the items of one pass.

    `prefix` keeps the tensor names of several chunks on one rank apart, but for those that chunks have in common (`handed`).
    """

    def __init__(
        self,
        clock: Callable[[Kernel], float],
        table: TensorTable,
        *,
        first: bool,
        last: bool,
        prefix: str = "",
        handed: frozenset[str] = frozenset(),
    ) -> None:
        self.clock = clock
        self.table = table
        self._first = first
        self._last = last
        self.depends_on: set[str] = set()
        """which of `first` and `last` was asked: the pass of another micro-batch with the same answers is the same"""
        self.prefix = prefix
        self._began = START
        """what `START` stands for: the begin of all, or that of a pass behind another one"""
        self._handed = handed
        self.items: list[Item] = []
        self.segment: Item | None = None
        """the compute item that is being written"""
        self.called = self.named = ("", COMPUTE)
        """name and kind of the compute that is being written, and of the compute that was named last"""
        self.waits: list[int] = []
        self.tails: list[str] = []
        """what the next compute waits for"""
        self.last_compute = START
        self.deferred: Callable[[], None] | None = None
        """writes operators that are put off until something else is written (`parsim.program.block_templates`)"""

    @property
    def first(self) -> bool:
        """See `Emitter.first`."""
        self.depends_on.add("first")
        return self._first

    @property
    def last(self) -> bool:
        """See `Emitter.last`."""
        self.depends_on.add("last")
        return self._last

    @contextmanager
    def one_of_several(self, *, first: bool, last: bool) -> Iterator[None]:
        """Speak of a gradient that several stages of the rank write: only one of them has its `first` pass, and one its `last`."""
        self.settle()
        own = self._first, self._last
        self._first, self._last = self.first and first, self.last and last
        yield
        self._first, self._last = own

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Compute that the rest of the pass does not wait for, in an item of its own."""
        self._close()
        yield
        if self.segment is not None:
            self.segment.aside = True
        self._close()

    @contextmanager
    def under(self, prefix: str) -> Iterator[None]:
        """A pass, perhaps behind another one, with tensors whose names begin with `prefix`; it begins where the compute so far ends."""
        own, self._began = (self.prefix, self._began), self.mark()
        self.prefix = prefix + self.prefix
        yield
        self.settle()
        self.prefix, self._began = own

    # -- what the lowering calls ----------------------------------------------------------------------------------

    def label(self, name: str, kind: str) -> None:
        """Following compute without a name of its own is called `name` and counts as `kind`."""
        self.settle()
        self.named = (name, kind)
        self._relabel(name, kind)

    def finish(self) -> list[Item]:
        """The items; waits that nothing follows become an empty compute item."""
        self.settle()
        if self.waits or self.tails:
            self._open(*self.called)
        self._close()
        return self.items

    def allocate(self, number: int) -> None:
        """Allocate a tensor of the rank's table at this point of the pass."""
        self.settle()
        segment = self.segment or self._open(*self.called)
        segment.effects.append(Effect(segment.duration, number, allocate=True))

    def settle(self) -> None:
        """Write the operators that were put off (`deferred`)."""
        if (write := self.deferred) is not None:
            self.deferred = None
            write()

    # -- Emitter --------------------------------------------------------------------------------------------------

    def tensor(self, name: str, size: int, category: str, *, per_micro_batch: bool = False, stream: str = "") -> str:
        """See `Emitter.tensor`."""
        full = self.full(name)
        if full not in self.table.index:
            self.table.declare(full, size, category, per_micro_batch=per_micro_batch, stream=stream)
        return name

    def compute(self, name: str, kind: str, kernels: Sequence[Kernel], allocates: Sequence[str] = (), frees: Sequence[str] = ()) -> None:
        """See `Emitter.compute`. An empty name continues what was named last; recomputed inside ``B0 layer 3`` is ``R0 layer 3``."""
        self.settle()
        kind = kind or self.called[1]
        if name:
            self.label(name, kind)
        elif kind == self.named[1]:
            self._relabel(*self.named)
        elif kind != self.called[1]:
            self._relabel(f"{kind[0].upper()}{self.named[0][1:]}", kind)
        segment = self.segment
        if segment is None or self.waits or self.tails:
            self._close()
            segment = self._open(*self.called)
        for tensor in allocates:
            segment.effects.append(Effect(segment.duration, self.number(tensor), allocate=True))
        segment.runs(kernels, self.clock)
        for tensor in frees:
            segment.effects.append(Effect(segment.duration, self.number(tensor), allocate=False))

    def collective(  # noqa: PLR0913
        self,
        kind: str,
        axis: str,
        size: int,
        name: str,
        *,
        lane: str = "",
        blocking: bool = False,
        after: Sequence[int] | None = None,
        allocates: Sequence[str] = (),
        frees: Sequence[str] = (),
    ) -> int:
        """See `Emitter.collective`."""
        self.settle()
        lane = lane or axis
        item = Item(f"{kind} {name}", f"{axis}_comm", (COMPUTE, lane) if blocking else (lane,), collective=(kind, axis, size))
        if blocking:
            self._close()
            item.needs, item.tails = self.waits, self.tails
            self.waits, self.tails = [], []
        else:
            self._follow(item, [self.mark()] if after is None else after)
        item.effects = [Effect(0.0, self.number(t), allocate=True) for t in allocates]
        item.effects += [Effect(inf, self.number(t), allocate=False) for t in frees]
        self.items.append(item)
        if blocking:
            self.last_compute = len(self.items) - 1
        return len(self.items) - 1

    def copy(
        self,
        kind: str,
        size: int,
        name: str,
        *,
        after: Sequence[int] | None = None,
        behind: Sequence[str] = (),
        allocates: Sequence[str] = (),
        frees: Sequence[str] = (),
    ) -> int:
        """See `Emitter.copy`."""
        handle = self.collective(kind, OFFLOAD, size, name, lane=kind, after=after, allocates=allocates, frees=frees)
        item = self.items[handle]
        item.kind = "optimizer" if kind == "cpu_step" else OFFLOAD
        item.tails += [lane for lane in behind if lane != COMPUTE]
        return handle

    def beside(
        self, name: str, kernels: Sequence[Kernel], *, stream: str, after: Sequence[int] | None = None, kind: str = "data_comm"
    ) -> int:
        """See `Emitter.beside`."""
        self.settle()
        item = Item(name, kind, (stream_lane(stream),))
        self._follow(item, [self.mark()] if after is None else after)
        item.runs(kernels, self.clock)
        self.items.append(item)
        return len(self.items) - 1

    def wait(self, *handles: int) -> None:
        """See `Emitter.wait`."""
        self.settle()
        self.waits += [handle for handle in handles if handle != START and handle not in self.waits]

    def wait_for_lane(self, lane: str) -> None:
        """See `Emitter.wait_for_lane`."""
        self.settle()
        if lane not in self.tails:
            self.tails.append(lane)

    def mark(self) -> int:
        """See `Emitter.mark`."""
        self.settle()
        self._close()
        return self.last_compute

    def anchor(self) -> None:
        """Put an empty op on the compute lane, behind everything that the next compute waits for."""
        self.idle(*self.called, 0.0)

    def idle(self, name: str, kind: str, seconds: float) -> None:
        """The device does nothing for `seconds`, between the compute so far and what follows."""
        self.settle()
        self._close()
        self.items.append(Item(name, kind, (COMPUTE,), seconds, needs=self.waits, tails=self.tails))
        self.waits, self.tails = [], []
        self.last_compute = len(self.items) - 1

    # -- segments -------------------------------------------------------------------------------------------------

    def full(self, name: str) -> str:
        """A tensor's name on its rank."""
        return name if name in self._handed else self.prefix + name

    def number(self, name: str) -> int:
        return self.table.index[self.full(name)]

    def _relabel(self, name: str, kind: str) -> None:
        if (name, kind) != self.called:
            self._close()
            self.called = (name, kind)

    def _open(self, name: str, kind: str) -> Item:
        self.segment = Item(name, kind, (COMPUTE,), needs=self.waits, tails=self.tails)
        self.waits, self.tails = [], []
        return self.segment

    def holds(self, segment: Item) -> bool:
        """The item does something even if it takes no time."""
        return bool(segment.effects or segment.needs or segment.tails)

    def _follow(self, item: Item, handles: Sequence[int]) -> None:
        """The item starts when these have ended."""
        for handle in handles:
            if (real := self._began if handle == START else handle) == START:
                item.tails.append(COMPUTE)
            else:
                item.needs.append(real)

    def _close(self) -> None:
        segment = self.segment
        if segment is None:
            return
        self.segment = None
        if segment.duration or self.holds(segment):
            self.items.append(segment)
            self.last_compute = len(self.items) - 1
