"""Blocks: runs of items of a pass that nobody outside can change except by slowing compute, as one op each.

A pass is a small graph of items. A *cut point* is a place in it where everything before has ended when anything after
begins; between two cut points nothing is left over from one to the next, so the time between them depends on nothing but what
loads the device from outside. A block is a run of such segments with no edge from outside except into its beginning and none to
outside except from its end. What a pass shares with others (lanes that other passes leave open, transfers on links that
others load) stays outside blocks, as ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from parsim.program.passes import Item
from parsim.program.program import COMPUTE, Collective, Effects, Lane, Op, Pass, Program, Stamp


class Row(NamedTuple):
    """An item of a pass as far as blocks go."""

    lanes: tuple[str, ...]
    needs: tuple[int, ...]
    tails: tuple[str, ...]
    fixed: bool
    """not a transfer whose time others can change"""


@dataclass(frozen=True, slots=True)
class Segment:
    """Items between two cut points, by their places in the block; `after` and `blockers` count from `first`."""

    first: int
    last: int
    """one behind"""
    after: tuple[tuple[int, ...], ...]
    blockers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a pass is cut."""

    blocks: tuple[tuple[int, int, tuple[Segment, ...]], ...]
    """first item, one behind the last, segments"""
    left_open: frozenset[str]
    """lanes that may still be busy when the compute of the pass is over"""


Spec = tuple[str, str, int]
"""A transfer in a pass: (kind, axis, bytes)"""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What is in a block, on whichever rank."""

    items: tuple[Item, ...]
    segments: tuple[Segment, ...]
    uses: tuple[tuple[Spec, tuple[str, ...], int], ...]
    """transfers inside with their lanes, and how often"""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """What happens inside a block of one rank."""

    shape: Shape
    speed: float
    """of the rank's compute, 1 = as planned"""
    transfers: dict[Spec, Collective]
    uses: tuple[tuple[Collective, tuple[Lane, ...], int], ...]
    """distinct transfers with their lanes, and how often they run"""


@dataclass(frozen=True, slots=True)
class Part:
    """An op of a pass that is cut into blocks: an item, or a block."""

    item: Item
    """the (first) item"""
    shape: Shape | None
    lanes: tuple[str, ...]
    needs: tuple[int, ...]
    """places of parts"""


class CutPass(list[Stamp]):
    """A compiled pass in which blocks are one stamp each; `bodies` says what is in them."""

    bodies: list[Body | None]


@dataclass
class BlockProgram(Program):
    """A program some of whose ops stand for several."""

    bodies: list[Body | None] = field(default_factory=list)
    """by op index"""

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
        """See `Program.add`."""
        self.bodies.append(None)
        return super().add(name, kind, lanes, needs, duration, collective, effects, instance)

    def ready_made(self, rank: int, stamps: Sequence[Stamp], message: Stamp | None = None) -> Pass:
        """See `Program.ready_made`."""
        made = super().ready_made(rank, stamps, message)
        bodies = stamps.bodies if isinstance(stamps, CutPass) else []
        made.bodies = [*bodies, *[None] * (len(made.rows) - len(bodies))]
        return made

    def stamp(self, ready: Pass, instance: int, waits: Iterable[Op] = ()) -> Op | None:
        """See `Program.stamp`."""
        self.bodies += ready.bodies
        return Program.stamp(self, ready, instance, waits)

    def grown(self) -> None:
        """See `Program.grown`."""
        self.bodies += [None] * (len(self.ops) - len(self.bodies))

    def transfers(self) -> Iterator[tuple[Collective, tuple[Lane, ...]]]:
        """See `Program.transfers`; those inside blocks too."""
        yield from super().transfers()
        for body in dict.fromkeys(self.bodies):
            for collective, lanes, _ in body.uses if body is not None else ():
                yield collective, lanes

    @property
    def expanded(self) -> int:
        """How many ops it stands for."""
        return sum(1 if body is None else len(body.shape.items) for body in self.bodies)


def layout(rows: Sequence[Row], open_lanes: frozenset[str]) -> Layout:
    """Where the pass is cut. Lanes in `open_lanes` may be busy with something else when the pass begins."""
    outside = set(open_lanes)
    while True:
        inner = [row.fixed and outside.isdisjoint(row.lanes) for row in rows]
        graph = _Graph(rows, inner)
        busy = graph.left_open()
        if any(inner[i] for i in busy):
            outside.update(lane for i in busy for lane in rows[i].lanes)
            continue
        return Layout(tuple(_blocks(graph)), frozenset(lane for i in busy for lane in rows[i].lanes))


class _Graph:
    """The items of a pass with who waits for whom."""

    def __init__(self, rows: Sequence[Row], inner: Sequence[bool]) -> None:
        self.rows = rows
        self.inner = inner
        self.before: list[list[int]] = []
        """per item: the items of the pass it waits for"""
        self.ancestors: list[int] = []
        """per item: a bit for every item that has ended when it begins"""
        self.enters = [False] * len(rows)
        """something outside the blocks holds this item back"""
        self.leaves = [False] * len(rows)
        """something outside the blocks waits for this item"""
        self.compute = -1
        tail: dict[str, int] = {}
        for i, row in enumerate(rows):
            before = dict.fromkeys(row.needs)
            before |= dict.fromkeys(tail[lane] for lane in row.lanes if lane in tail)
            for lane in row.tails:
                if lane in tail and lane != COMPUTE:
                    before[tail[lane]] = None
                elif lane != COMPUTE:
                    self.enters[i] = True
            if row.lanes[0] == COMPUTE and self.compute < 0:
                self.enters[i] = True  # what a pass receives arrives here
            found = 0
            for j in before:
                found |= self.ancestors[j] | 1 << j
                if inner[j] and not inner[i]:
                    self.leaves[j] = True
                if inner[i] and not inner[j]:
                    self.enters[i] = True
            self.before.append(list(before))
            self.ancestors.append(found)
            for lane in row.lanes:
                tail[lane] = i
            if COMPUTE in row.lanes:
                self.compute = i

    def left_open(self) -> list[int]:
        """Items that may go on when the last compute has ended."""
        done = self.ancestors[self.compute] | 1 << self.compute if self.compute >= 0 else 0
        return [i for i in range(len(self.rows)) if not done >> i & 1]

    def cuts(self) -> list[int]:
        """Places k such that every inner item before k has ended when any from k on begins; the ends of the pass are."""
        count = len(self.rows)
        covered = [0] * (count + 1)
        seen = 0
        for j in range(count):
            if not self.inner[j]:
                continue
            if missing := seen & ~self.ancestors[j]:
                covered[(missing & -missing).bit_length()] += 1  # from behind the first missing one to j
                covered[j + 1] -= 1
            seen |= 1 << j
        found, depth = [], 0
        for k in range(count):
            depth += covered[k]
            if not depth:
                found.append(k)
        return [*found, count]

    def segment(self, first: int, last: int, origin: int) -> Segment:
        """The items from `first` to before `last` of a block that begins at `origin`."""
        after: list[list[int]] = [[] for _ in range(first, last)]
        blockers = []
        for i in range(first, last):
            inside = [j for j in self.before[i] if j >= first]
            for j in inside:
                after[j - first].append(i - first)
            blockers.append(len(inside))
        return Segment(first - origin, last - origin, tuple(map(tuple, after)), tuple(blockers))

    def usable(self, first: int, last: int) -> bool:
        """The segment is all inner, and edges from and to outside touch its one first and its one last item only."""
        whole = range(first, last)
        if not all(self.inner[i] for i in whole):
            return False
        if last - first == 1:
            return True
        rest = (1 << last) - (1 << first)
        for i in whole:
            if self.enters[i] and any(j != i and not self.ancestors[j] >> i & 1 for j in whole):
                return False
            if self.leaves[i] and rest & ~(1 << i) & ~self.ancestors[i]:
                return False
        return True


def _blocks(graph: _Graph) -> Iterator[tuple[int, int, tuple[Segment, ...]]]:
    """Runs of usable segments, of two items or more, with compute."""
    runs: list[list[tuple[int, int]]] = [[]]
    cuts = graph.cuts()
    for first, last in pairwise(cuts):
        if not graph.usable(first, last):
            runs.append([])
            continue
        if any(graph.enters[first:last]):
            runs.append([])
        runs[-1].append((first, last))
        if any(graph.leaves[first:last]):
            runs.append([])
    for run in runs:
        if not run:
            continue
        origin, end = run[0][0], run[-1][1]
        if end - origin > 1 and any(COMPUTE in graph.rows[i].lanes for i in range(origin, end)):
            yield origin, end, tuple(graph.segment(first, last, origin) for first, last in run)


def parts(items: Sequence[Item], cut: Layout) -> list[Part]:
    """A pass as it is cut."""
    found: list[Part] = []
    place: list[int] = []
    begins = {first: (last, segments) for first, last, segments in cut.blocks}
    i = 0
    while i < len(items):
        last, segments = begins.get(i, (i + 1, ()))
        inside = tuple(items[i:last])
        needs = tuple(dict.fromkeys(place[need] for item in inside for need in item.needs if need < i))
        if segments:
            lanes = dict.fromkeys(lane for item in inside for lane in item.lanes)
            uses = Counter((item.collective, item.lanes) for item in inside if item.collective is not None)
            shape = Shape(inside, segments, tuple((spec, lanes, count) for (spec, lanes), count in uses.items()))
            found.append(Part(items[i], shape, tuple(sorted(lanes, key=lambda lane: lane != COMPUTE)), needs))
        else:
            found.append(Part(items[i], None, items[i].lanes, needs))
        place += [len(found) - 1] * (last - i)
        i = last
    return found
