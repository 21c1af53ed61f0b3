"""A pipeline schedule as numbers: in which order its slots can be walked, and when its ranks would be done.

Only order and given times count here; the times are lower bounds, and so are the ends.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from parsim.parallel.schedules import Schedule, Slot, schedule
from parsim.parallel.schedules.slot import GRADIENTS_OF_INPUTS, GRADIENTS_OF_WEIGHTS

ENOUGH = 3
"""of p micro-batches, what a schedule needs to show its warm-up and its rules"""


def short(name: str, stages: int, micro_batches: int, virtual: int) -> Schedule:
    """The schedule with fewer micro-batches, as many modulo p: the same rules, and rows that begin as the whole schedule's do.

    Raises `PlanError` where the rules of the schedule refuse that many micro-batches.
    """
    least = ENOUGH * stages + micro_batches % stages
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
