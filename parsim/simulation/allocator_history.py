"""What the caching allocator did, step by step: which block was where, and when segments came and went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from parsim.simulation.allocator import ROUNDING, SMALL, SMALL_SEGMENT, Allocator, ExpandableAllocator, first_address
from parsim.simulation.replay import Mode, numbered

Action = Literal["alloc", "free", "segment_alloc", "segment_free", "segment_map"]


@dataclass(frozen=True, slots=True)
class AllocatorStep:
    """One thing the allocator did."""

    event: int
    """number of the event that made it do so"""
    action: Action
    address: int
    size: int
    """of the block or segment [B]"""


@dataclass(frozen=True, slots=True)
class AllocatedBlock:
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
    stream: int = 0
    """number of the stream whose pool it is in"""


@dataclass(frozen=True)
class History:
    """Everything an allocator did with a sequence of events, and what is left."""

    steps: tuple[AllocatorStep, ...]
    blocks: tuple[AllocatedBlock, ...]
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


def _peak(steps: Iterable[AllocatorStep], more: tuple[str, ...], less: tuple[str, ...]) -> int:
    level = highest = 0
    for step in steps:
        level += step.size if step.action in more else -step.size if step.action in less else 0
        highest = max(highest, level)
    return highest


def history(events: Iterable[tuple[int, int]], mode: Mode = "segments", streams: Sequence[int] = ()) -> History:
    """Run (key, bytes) events through the allocator of `mode`: bytes > 0 allocate a block, < 0 release it, 0 do nothing.

    `streams`: the number of each event's stream; none: all are of one.
    No capacity, so nothing reserved is given back. Mode exact has no allocator: each block is a segment of its own.
    Raises AllocatorError as `parsim.simulation.replay.replay`.
    """
    columns = np.array(list(events), dtype=np.int64).reshape(-1, 2)
    keys, numbers = columns[:, 0].tolist(), numbered(columns[:, 0], columns[:, 1]).tolist()
    if mode == "exact":
        return _exact(keys, numbers)
    allocator = ExpandableAllocator() if mode == "expandable" else Allocator()
    allocator.run(numbers, streams)
    reserved = _segments(allocator, numbers, streams or [0] * len(numbers))
    come = dict(zip(allocator.reserved_at, reserved, strict=True))
    action: Action = "segment_map" if mode == "expandable" else "segment_alloc"
    steps: list[AllocatorStep] = []
    live: dict[int, AllocatedBlock] = {}
    for event, (key, number, address, size) in enumerate(zip(keys, numbers, allocator.addresses, allocator.blocks, strict=True)):
        if event in come:
            steps.append(AllocatorStep(event, action, come[event].address, come[event].size))
        if number > 0:
            steps.append(AllocatorStep(event, "alloc", address, size))
            live[address] = AllocatedBlock(key, address, size)
        elif number:
            steps.append(AllocatorStep(event, "free", address, -size))
            del live[address]
    segments = _joined(reserved) if mode == "expandable" else reserved
    return History(tuple(steps), tuple(live[address] for address in sorted(live)), tuple(segments))


def _segments(allocator: Allocator, numbers: Sequence[int], streams: Sequence[int]) -> list[Segment]:
    """What each reservation reserved: a segment, or what was mapped at the end of a pool's range (nothing is ever unmapped)."""
    if not isinstance(allocator, ExpandableAllocator):
        reserved_for = (streams[event] for event in allocator.reserved_at)
        known = zip(allocator.segments.items(), reserved_for, strict=True)
        return [Segment(address, size, size == SMALL_SEGMENT, stream) for (address, size), stream in known]
    found: list[Segment] = []
    ends: dict[tuple[int, bool], int] = {}
    before = 0
    for event, reserved in zip(allocator.reserved_at, allocator.reserved_to, strict=True):
        pool = stream, small = streams[event], numbers[event] <= SMALL
        address = ends.get(pool, first_address(stream, small=small))
        found.append(Segment(address, reserved - before, small, stream))
        ends[pool] = address + reserved - before
        before = reserved
    return found


def _joined(mapped: Sequence[Segment]) -> list[Segment]:
    """One segment per pool."""
    sizes: dict[tuple[int, bool], int] = {}
    for part in mapped:
        sizes[part.stream, not part.small] = sizes.get((part.stream, not part.small), 0) + part.size
    return [Segment(first_address(stream, small=not large), size, not large, stream) for (stream, large), size in sorted(sizes.items())]


def _exact(keys: Sequence[int], numbers: Sequence[int]) -> History:
    steps: list[AllocatorStep] = []
    placed: dict[int, AllocatedBlock] = {}
    free = 0
    for event, (key, number) in enumerate(zip(keys, numbers, strict=True)):
        if number > 0:
            placed[event] = AllocatedBlock(key, free, number)
            steps += [AllocatorStep(event, "segment_alloc", free, number), AllocatorStep(event, "alloc", free, number)]
            free += number + ROUNDING
        elif number:
            gone = placed.pop(~number)
            steps += [AllocatorStep(event, "free", gone.address, gone.size), AllocatorStep(event, "segment_free", gone.address, gone.size)]
    segments = tuple(Segment(block.address, block.size, block.size <= SMALL) for block in placed.values())
    return History(tuple(steps), tuple(placed.values()), segments)
