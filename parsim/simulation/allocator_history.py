"""What the caching allocator did, step by step: which block was where, and when segments came and went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from parsim.simulation.allocator import RANGE, ROUNDING, SMALL, SMALL_SEGMENT, Allocator, ExpandableAllocator, rounded
from parsim.simulation.replay import Mode

Action = Literal["alloc", "free", "segment_alloc", "segment_free", "segment_map"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing the allocator did."""

    event: int
    """number of the event that made it do so"""
    action: Action
    address: int
    size: int
    """of the block or segment [B]"""


@dataclass(frozen=True, slots=True)
class Block:
    """A live block after the last event."""

    key: int
    address: int
    size: int
    """[B]"""


@dataclass(frozen=True, slots=True)
class Segment:
    """Reserved memory after the last event."""

    address: int
    size: int
    """[B]"""
    small: bool
    """of the pool for requests up to 1 MiB"""


@dataclass(frozen=True)
class History:
    """Everything an allocator did with a sequence of events, and what is left."""

    steps: tuple[Step, ...]
    blocks: tuple[Block, ...]
    """by address"""
    segments: tuple[Segment, ...]
    """by address"""

    @property
    def peak_allocated(self) -> int:
        """Highest sum of live blocks [B]."""
        return _peak(self.steps, ("alloc",), ("free",))

    @property
    def peak_reserved(self) -> int:
        """Highest reserved memory [B]."""
        return _peak(self.steps, ("segment_alloc", "segment_map"), ("segment_free",))


def _peak(steps: Iterable[Step], more: tuple[str, ...], less: tuple[str, ...]) -> int:
    level = highest = 0
    for step in steps:
        level += step.size if step.action in more else -step.size if step.action in less else 0
        highest = max(highest, level)
    return highest


def history(events: Iterable[tuple[int, int]], mode: Mode = "segments") -> History:
    """Run (key, bytes) events through the allocator of `mode`: bytes > 0 allocate a block, < 0 release it, 0 do nothing.

    No capacity, so nothing reserved is given back. Mode exact has no allocator: each block is a segment of its own.
    """
    if mode == "exact":
        return _exact(events)
    allocator = ExpandableAllocator() if mode == "expandable" else Allocator()
    steps: list[Step] = []
    reserved, held = 0, _mapped(allocator)
    for number, (key, size) in enumerate(events):
        if size > 0:
            allocator.allocate(key, size)
            if allocator.reserved != reserved:
                reserved = allocator.reserved
                if isinstance(allocator, ExpandableAllocator):
                    before, held = held, _mapped(allocator)
                    steps += [Step(number, "segment_map", address, length) for address, length in _grown(before, held)]
                else:
                    address = next(reversed(allocator.segments))
                    steps.append(Step(number, "segment_alloc", address, allocator.segments[address]))
            steps.append(Step(number, "alloc", *allocator.live[key]))
        elif size < 0:
            steps.append(Step(number, "free", *allocator.live[key]))
            allocator.free(key)
    blocks = sorted((address, size, key) for key, (address, size) in allocator.live.items())
    if isinstance(allocator, ExpandableAllocator):
        segments = tuple(Segment(address, size, address < 2 * RANGE) for address, size in held if size)
    else:
        segments = tuple(Segment(address, size, size == SMALL_SEGMENT) for address, size in allocator.segments.items())
    return History(tuple(steps), tuple(Block(key, address, size) for address, size, key in blocks), segments)


def _exact(events: Iterable[tuple[int, int]]) -> History:
    steps: list[Step] = []
    live: dict[int, tuple[int, int]] = {}
    free = 0
    for number, (key, size) in enumerate(events):
        if size > 0:
            block = live[key] = free, rounded(size)
            steps += [Step(number, "segment_alloc", *block), Step(number, "alloc", *block)]
            free += block[1] + ROUNDING
        elif size < 0:
            block = live.pop(key)
            steps += [Step(number, "free", *block), Step(number, "segment_free", *block)]
    segments = tuple(Segment(address, size, size <= SMALL) for address, size in live.values())
    return History(tuple(steps), tuple(Block(key, *block) for key, block in live.items()), segments)


def _mapped(allocator: Allocator) -> list[tuple[int, int]]:
    """(address, size) of the mapped part of each pool's range: it grows at its end, for nothing is unmapped."""
    if not isinstance(allocator, ExpandableAllocator):
        return []
    holes = sorted(allocator.segments)
    return [(pool, next(hole for hole in holes if hole >= pool) - pool) for pool in (RANGE, 2 * RANGE)]


def _grown(before: list[tuple[int, int]], now: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(address, size) of what was mapped."""
    pairs = zip(before, now, strict=True)
    return [(address + old, size - old) for (_, old), (address, size) in pairs if size > old]
