"""Allocations and releases of one device in order, replayed through its allocator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from parsim.errors import ParsimError
from parsim.simulation.allocator import ROUNDING, Allocator, ExpandableAllocator

Mode = Literal["segments", "expandable", "exact"]
"""how memory is reserved: PyTorch's segments, its expandable segments, or exactly what is allocated"""

SHIFTS = (*range(1, 17), 20, 24, 28, 32, 48, 64, 96, 128)
"""micro-batches after which a pattern may repeat"""
REPEAT_FROM = 10_000
"""events from which on a repeating pattern is sought"""
SNAPSHOTS = 128
"""states compared at most, one per repetition, before the search for a repeating state is given up"""


@dataclass(frozen=True)
class Replay:
    """What an allocator did with a sequence of events."""

    mode: Mode
    blocks: NDArray[np.int64]
    """per event the size of the block allocated (+) or released (-) [B]: with rounding and unsplit slack"""
    reserved_at: NDArray[np.int64]
    """events at which the reserved memory changed"""
    reserved_to: NDArray[np.int64]
    """reserved memory after each of these [B]"""
    out_of_memory: int | None
    """first event at which the capacity was exceeded, nothing being left to release"""
    replayed: int
    """events that went through the allocator; the others repeat a pattern"""

    @property
    def peak_allocated(self) -> int:
        """Highest sum of live blocks [B]."""
        return int(np.cumsum(self.blocks).max(initial=0))

    @property
    def peak_reserved(self) -> int:
        """Highest reserved memory [B]."""
        return int(self.reserved_to.max(initial=0))

    @property
    def allocated(self) -> int:
        """Live blocks after the last event [B]."""
        return int(self.blocks.sum())

    @property
    def reserved(self) -> int:
        """Reserved memory after the last event [B]."""
        return int(self.reserved_to[-1]) if len(self.reserved_to) else 0

    def reserved_level(self) -> NDArray[np.int64]:
        """Reserved memory after every event [B]."""
        level = np.zeros(len(self.blocks), dtype=np.int64)
        if len(self.reserved_at):
            level[self.reserved_at] = np.diff(self.reserved_to, prepend=0)
        return np.cumsum(level)


def replay(events: Iterable[tuple[int, int]], mode: Mode = "segments", capacity: int | None = None) -> Replay:
    """Replay (key, bytes) events: bytes > 0 allocate a block for the key, < 0 release it, 0 do nothing.

    With a `capacity` [B] cached segments are released before it is exceeded. Raises AllocatorError if a key is
    allocated twice or released without a block, ParsimError for an unknown mode.
    """
    columns = np.array(list(events), dtype=np.int64).reshape(-1, 2)
    return replay_columns(columns[:, 0], columns[:, 1], None, mode, capacity)


def replay_columns(
    keys: NDArray[np.int64],
    sizes: NDArray[np.int64],
    moving: NDArray[np.bool_] | None = None,
    mode: Mode = "segments",
    capacity: int | None = None,
    repeat_from: int = REPEAT_FROM,
) -> Replay:
    """The same from columns, and faster where a long sequence repeats itself.

    `moving` tells which keys stand for a tensor of one micro-batch, key + 1 being that of the next. From `repeat_from`
    events on, a stretch is sought in which each event equals the one a period earlier with moving keys c further. Once
    the allocator's state (free and live blocks, segments) at the end of a period is an earlier one with moving keys
    shifted, all later whole periods must do the same at the same addresses, and are copied instead of replayed. The result
    is the same as without.
    """
    if mode not in get_args(Mode):
        raise ParsimError(f"allocator (={mode}) must be one of {', '.join(get_args(Mode))}")
    if mode == "exact":
        blocks = np.sign(sizes) * (-(-np.abs(sizes) // ROUNDING) * ROUNDING)
        level = np.cumsum(blocks)
        over = np.flatnonzero(level > capacity)[:1].tolist() if capacity is not None else []
        return Replay(mode, blocks, np.arange(len(blocks)), level, next(iter(over), None), len(blocks))
    run = _Run(keys, sizes, ExpandableAllocator(capacity) if mode == "expandable" else Allocator(capacity))
    pattern = find_pattern(keys, sizes, moving) if moving is not None and len(keys) >= repeat_from else None
    if pattern is not None and moving is not None:
        run.repeat(pattern, set(np.unique(keys[moving]).tolist()))
    run.until(len(keys))
    return Replay(
        mode,
        np.fromiter(run.blocks, dtype=np.int64, count=len(run.blocks)),
        np.array(run.reserved_at, dtype=np.int64),
        np.array(run.reserved_to, dtype=np.int64),
        run.out_of_memory,
        run.replayed,
    )


@dataclass(frozen=True)
class Pattern:
    """Events from `begin` on repeat with `period`, moving keys `shift` further each time, up to event `end`."""

    begin: int
    end: int
    period: int
    shift: int


class _Run:
    """A replay under way."""

    def __init__(self, keys: NDArray[np.int64], sizes: NDArray[np.int64], allocator: Allocator) -> None:
        self.keys: Sequence[int] = keys.tolist()
        self.sizes: Sequence[int] = sizes.tolist()
        self.allocator = allocator
        self.blocks: list[int] = []
        self.reserved_at: list[int] = []
        self.reserved_to: list[int] = []
        self.out_of_memory: int | None = None
        self.replayed = 0

    def until(self, end: int) -> None:
        """Replay up to event `end`, without it."""
        allocator, blocks = self.allocator, self.blocks
        allocate, free, append = allocator.allocate, allocator.free, blocks.append
        begin = len(blocks)
        reserved = allocator.reserved
        for key, size in zip(self.keys[begin:end], self.sizes[begin:end], strict=True):
            if size > 0:
                append(allocate(key, size))
                if allocator.reserved != reserved:
                    reserved = allocator.reserved
                    self.reserved_at.append(len(blocks) - 1)
                    self.reserved_to.append(reserved)
                    if allocator.out_of_memory and self.out_of_memory is None:
                        self.out_of_memory = len(blocks) - 1
            elif size:
                append(-free(key))
            else:
                append(0)
        self.replayed += end - begin

    def repeat(self, pattern: Pattern, moving: set[int]) -> None:
        """Replay until a state of the pattern comes back, and copy the whole periods that remain."""
        self.until(pattern.begin)
        seen: dict[int, tuple[int, dict[int, tuple[int, int]], dict[int, int], dict[int, int]]] = {}
        for number in range(min(SNAPSHOTS, (pattern.end - pattern.begin) // pattern.period)):
            back = number * pattern.shift
            allocator = self.allocator
            live = {key - back if key in moving else key: block for key, block in allocator.live.items()}
            state = live, dict(allocator.free_at), dict(allocator.segments)
            mark = hash((frozenset(live.items()), frozenset(state[1].items()), frozenset(state[2].items())))
            if mark in seen and seen[mark][1:] == state:
                self._copy(pattern, number - seen[mark][0], moving)
                return
            seen[mark] = (number, *state)
            self.until(len(self.blocks) + pattern.period)

    def _copy(self, pattern: Pattern, periods: int, moving: set[int]) -> None:
        """Copy the last `periods` periods as often as they fit before the end of the pattern."""
        here, length = len(self.blocks), periods * pattern.period
        times = (pattern.end - here) // length
        if times < 1 or (self.reserved_at and self.reserved_at[-1] >= here - length):
            return
        self.blocks += self.blocks[here - length :] * times
        forward = times * periods * pattern.shift
        live = self.allocator.live
        self.allocator.live = {key + forward if key in moving else key: block for key, block in live.items()}


def find_pattern(keys: NDArray[np.int64], sizes: NDArray[np.int64], moving: NDArray[np.bool_]) -> Pattern | None:
    """The stretch of events that repeats itself and saves most; None if none is worth the search.

    Candidate periods are the distances between the allocation of a moving key and of the one `shift` further on.
    """
    first = np.flatnonzero(moving & (sizes > 0))
    if not len(first):
        return None
    middle = first[len(first) // 2]
    place = {int(keys[event]): int(event) for event in first[len(first) // 2 :][::-1]}
    best, saved = None, len(keys) // 4
    for shift in SHIFTS:
        period = place.get(int(keys[middle]) + shift, 0) - int(middle)
        if period <= 0:
            continue
        same = (keys[period:] - keys[:-period] == shift * moving[:-period]) & (sizes[period:] == sizes[:-period])
        same &= moving[period:] == moving[:-period]
        breaks = np.flatnonzero(~same)
        after = np.searchsorted(breaks, middle)
        begin = int(breaks[after - 1]) + 1 if after else 0
        end = int(breaks[after]) if after < len(breaks) else len(same)
        if end - begin - 2 * period > saved:
            best, saved = Pattern(begin, end + period, period, shift), end - begin - 2 * period
        if saved > len(keys) // 2:
            break
    return best
