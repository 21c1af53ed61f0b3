"""The longest chain of ops through a pass and through a schedule of passes, and the memory that is surely live meanwhile.

Both are lower bounds of what a simulation finds. A pass is a list of items; an item waits for the items it needs, for
the last item of each of its lanes and for the lanes it names. Nothing else is counted: no other rank is late, no link
is shared, no kernel is slowed by a collective beside it. All of those can only make ends later. Of a schedule, only the order
of its slots and the given times of its passes count.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from parsim.parallel.schedules import Schedule, Slot, grows, schedule
from parsim.parallel.schedules.slot import GRADIENTS_OF_INPUTS, GRADIENTS_OF_WEIGHTS
from parsim.program.host import LANE as LAUNCH
from parsim.program.pass_builder import Item
from parsim.program.program import COMPUTE, Tensor
from parsim.simulation.allocator import ROUNDING
from parsim.simulation.ledger import held_in

Price = Callable[[str, str, int], float]
"""(kind, axis, bytes) -> seconds of a collective alone on its links"""


@dataclass(frozen=True, slots=True)
class Chain:
    """The longest chain through a pass from its sources [s]; -inf: nothing depends on them."""

    compute: float
    """to the end of the compute lane"""
    busy: float
    """to the end of the last op there that takes time; what is left is a wait that the next pass or block would make"""
    whole: float
    """to the end of its last op in any lane"""
    lanes: Mapping[str, float]
    """to the end of each lane, those before the pass included"""


def longest(
    items: Sequence[Item], price: Price, sources: Mapping[str, float], *, speed: float = 1.0, arrival: float = -inf, host: bool = True
) -> Chain:
    """Follow a pass. `sources`: when each lane's last op before the pass ends (absent: -inf, it holds nothing up).

    `arrival` is what the first item of the compute lane waits for besides. `speed` divides kernel times. Without `host` launching
    takes no time.
    """
    lanes = dict(sources)
    begin = lanes.get(COMPUTE, -inf)
    ends: list[float] = []
    whole = busy = -inf
    for item in items:
        start = max((lanes.get(lane, -inf) for lane in item.lanes), default=-inf)
        for need in item.needs:
            start = max(start, ends[need])
        for tail in item.tails:
            start = max(start, begin if tail == COMPUTE else lanes.get(tail, -inf))
        if item.lanes[0] == COMPUTE:
            start, arrival = max(start, arrival), -inf
        seconds = item.duration / speed if item.collective is None else item.duration + price(*item.collective)
        end = start + (seconds if host or item.lanes[0] != LAUNCH else 0.0)
        if seconds and COMPUTE in item.lanes:
            busy = end
        ends.append(end)
        for lane in item.lanes:
            lanes[lane] = max(end, lanes.get(lane, -inf))
        whole = max(whole, end)
    return Chain(lanes.get(COMPUTE, -inf), busy, whole, lanes)


@dataclass(frozen=True, slots=True)
class Levels:
    """Live device memory of a pass relative to its beginning [B]."""

    net: int
    """at its end"""
    high: int
    """at its highest, not below 0"""


def rounded(size: int) -> int:
    """What the allocator hands out for `size` bytes at least [B]."""
    return -(-size // ROUNDING) * ROUNDING


def levels(items: Sequence[Item], tensors: Sequence[Tensor], *, without: Sequence[str] = ()) -> Levels:
    """Memory that is surely live, in the order of the compute lane, which no timing changes.

    A collective beside compute may begin late and end early: what it allocates is counted from the first compute op that waits
    for it (not at all if none does in this pass), what it frees is gone with the last compute op that it waits for. Categories
    in `without` are left out.
    """
    sizes = [rounded(t.bytes) if held_in(t.category) == "device" and t.category not in without else 0 for t in tensors]
    beside = [item for item in items if COMPUTE not in item.lanes]
    came = {effect.tensor for item in beside for effect in item.effects if effect.allocate}
    for tensor in came & {effect.tensor for item in beside for effect in item.effects if not effect.allocate}:
        sizes[tensor] = 0
    early = _early_frees(items)
    level = -sum(sizes[number] for number in early.get(-1, ()))
    high = 0
    pending: dict[int, list[int]] = {}
    """item beside compute -> tensors that it allocates, not counted yet"""
    for place, item in enumerate(items):
        if COMPUTE not in item.lanes:
            pending[place] = [effect.tensor for effect in item.effects if effect.allocate]
            continue
        for waited in _closure(place, items, pending):
            level += sum(sizes[number] for number in pending.pop(waited))
        high = max(high, level)
        for effect in item.effects:
            if effect.allocate:
                level += sizes[effect.tensor]
                high = max(high, level)
            elif (late := next((numbers for numbers in pending.values() if effect.tensor in numbers), None)) is not None:
                late.remove(effect.tensor)
            else:
                level -= sizes[effect.tensor]
        level -= sum(sizes[number] for number in early.get(place, ()))
    return Levels(level, high)


def _early_frees(items: Sequence[Item]) -> dict[int, list[int]]:
    """Place of a compute item (-1: the pass's beginning) -> tensors that collectives beside compute may free right behind it."""
    behind: list[int] = []
    frees: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        if COMPUTE in item.lanes:
            behind.append(place)
            continue
        behind.append(max((behind[need] for need in item.needs), default=-1))
        released = [effect.tensor for effect in item.effects if not effect.allocate]
        if released:
            frees.setdefault(behind[-1], []).extend(released)
    return frees


def _closure(place: int, items: Sequence[Item], pending: Mapping[int, object]) -> list[int]:
    """Pending items that an item waits for, directly or through others beside compute."""
    closure: dict[int, None] = {}
    stack = list(items[place].needs)
    while stack:
        need = stack.pop()
        if need in closure or need not in pending:
            continue
        closure[need] = None
        stack += items[need].needs
    return list(closure)


ENOUGH = 3
"""of p micro-batches, what a schedule needs to show its warm-up and its rules"""


def short(name: str, stages: int, micro_batches: int, virtual: int) -> Schedule:
    """The schedule with fewer micro-batches, as many modulo p: the same rules, and rows that begin as the whole schedule's do.

    The whole schedule where it does not grow so. Raises `PlanError` where the rules of the schedule refuse that many micro-batches.
    """
    least = ENOUGH * stages + micro_batches % stages if grows(name, stages, micro_batches) else micro_batches
    return _known(name, stages, min(micro_batches, least), virtual)


@lru_cache(maxsize=512)
def _known(name: str, stages: int, micro_batches: int, virtual: int) -> Schedule:
    return schedule(name, stages, micro_batches, virtual)


@dataclass(frozen=True)
class Walked:
    """A schedule in an order in which every slot comes after what it needs; empty if there is none."""

    ranks: array[int]
    """pipeline rank of each slot"""
    keys: array[int]
    """number of its (kind, stage, first of its kind on that stage)"""
    sources: array[int]
    """place of the slot whose message it waits for; -1: none"""
    names: tuple[tuple[str, int, bool], ...]
    """(kind, global stage, first) by number"""
    last_backward: dict[int, int]
    """global stage -> place of its last slot with weight gradients"""


def walk(rows: Schedule, stages: int) -> Walked:
    """Take slots as their producers allow. `stages`: global stages."""
    cursor = [0] * len(rows)
    ready: dict[tuple[str, int, int], int] = {}
    ranks, keys, sources = array("i"), array("i"), array("i")
    numbers: dict[tuple[str, int, bool], int] = {}
    last: dict[int, int] = {}
    left, moved = sum(map(len, rows)), True
    while left and moved:
        moved = False
        for p, row in enumerate(rows):
            at = cursor[p]
            while at < len(row):
                kind, stage, micro_batch = row[at]
                source = -1
                if kind == "F" and stage:
                    source = ready.get(("F", stage - 1, micro_batch), -2)
                elif kind in GRADIENTS_OF_INPUTS and stage < stages - 1:
                    source = ready.get(("B", stage + 1, micro_batch), -2)
                if source == -2:
                    break
                first = (kind, stage, True) not in numbers
                key = numbers.setdefault((kind, stage, first), len(numbers))
                if kind != "W":
                    ready["F" if kind == "F" else "B", stage, micro_batch] = len(ranks)
                if kind in GRADIENTS_OF_WEIGHTS:
                    last[stage] = len(ranks)
                ranks.append(p)
                keys.append(key)
                sources.append(source)
                at += 1
                left -= 1
                moved = True
            cursor[p] = at
    if left:
        return Walked(array("i"), array("i"), array("i"), (), {})
    return Walked(ranks, keys, sources, tuple(numbers), last)


@lru_cache(maxsize=12)
def walked(name: str, stages: int, micro_batches: int, virtual: int) -> Walked:
    """The walk of a named schedule; neighbours ask for the same one again and again."""
    return walk(schedule(name, stages, micro_batches, virtual), stages * virtual)


def ends(order: Walked, ranks: int, seconds: Sequence[float], travel: Sequence[float]) -> tuple[list[float], list[float]]:
    """When each rank's last slot ends, and when each slot of the walk does [s].

    Both by the numbers of `order.names`: what such a slot takes, and what the message that it waits for takes.
    """
    lanes = [0.0] * ranks
    done: list[float] = []
    for rank, key, source in zip(order.ranks, order.keys, order.sources, strict=True):
        time = lanes[rank]
        if source >= 0 and (arrival := done[source] + travel[key]) > time:
            time = arrival
        lanes[rank] = time = time + seconds[key]
        done.append(time)
    return lanes, done


def fullest(
    row: Sequence[Slot],
    net: Mapping[tuple[str, int], int],
    high: Mapping[tuple[str, int, bool], int],
    written: Mapping[int, tuple[int, int]],
    micro_batches: int,
) -> int:
    """The highest level that a rank's slots reach [B]: each adds `high` meanwhile (the first of its kind may differ) and `net` in the end.

    The first backward of every stage leaves its `written` gradients besides: those that stay, and those that the last of
    `micro_batches` backwards takes away again.
    """
    level = most = 0
    seen: Counter[tuple[str, int]] = Counter()
    for kind, stage, _ in row:
        seen[kind, stage] += 1
        count = seen[kind, stage]
        most = max(most, level + high[kind, stage, count == 1])
        level += net[kind, stage]
        if kind == "B" and count == 1:
            level += sum(written[stage])
        if kind == "B" and count == micro_batches:
            level -= written[stage][1]
    return max(most, level)
