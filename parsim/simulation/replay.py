"""Allocations and releases of one device in order, replayed through its allocator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from parsim.errors import ParsimError
from parsim.simulation.allocator import ROUNDING, Allocator, AllocatorError, ExpandableAllocator

Mode = Literal["segments", "expandable", "exact"]
"""how memory is reserved: PyTorch's segments, its expandable segments, or exactly what is allocated"""

Integers = NDArray[np.int64]

REMEMBERED = 50_000
"""events of a replay that is remembered, at most: those of short steps, many of which are asked for"""
LEAST = 10_000
"""events that are replayed at least before others are left out: most steps are replayed whole"""


@dataclass(frozen=True)
class Replay:
    """What an allocator did with a sequence of events."""

    mode: Mode
    blocks: Integers
    """per event the size of the block allocated (+) or released (-) [B]: with rounding and unsplit slack; without slack where
    the replay left the allocation out"""
    reserved_at: Integers
    """events that reserved memory"""
    reserved_to: Integers
    """reserved memory after each of these [B]"""
    out_of_memory: int | None
    """first event at which the capacity was exceeded, nothing being left to release"""
    replayed: int
    """events that went through the allocator; the others repeat a pattern"""

    @property
    def whole(self) -> bool:
        """Whether all events went through the allocator."""
        return self.replayed == len(self.blocks)

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

    def reserved_level(self) -> Integers:
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
    return replay_numbered(numbered(columns[:, 0], columns[:, 1]), mode, capacity)


def replay_numbered(
    events: Integers,
    mode: Mode = "segments",
    capacity: int | None = None,
    without: Repeats | None = None,
    streams: Integers | None = None,
) -> Replay:
    """Replay events in the form of `Allocator.run`, each of its stream (None: all of one).

    The events `without` do not go through the allocator, see `Repeats`: their blocks have no unsplit slack, and they are taken
    to reserve nothing. With mode exact nothing needs the allocator, and all is known.
    """
    if mode not in get_args(Mode):
        raise ParsimError(f"allocator (={mode}) must be one of {', '.join(get_args(Mode))}")
    if mode == "exact":
        blocks = _released(events, np.maximum(events, 0))
        level = np.cumsum(blocks)
        over = np.flatnonzero(level > capacity)[:1].tolist() if capacity is not None else []
        return Replay(mode, blocks, np.arange(len(blocks)), level, next(iter(over), None), len(blocks))
    rows, through, of = np.arange(len(events)), events, streams
    if without is not None:
        rows, through = np.delete(rows, slice(without.begin, without.end)), without.left_out(events)
        of = None if streams is None else np.delete(streams, slice(without.begin, without.end))
    play = _play if len(through) <= REMEMBERED else _play.__wrapped__
    columns = through.tobytes(), None if of is None else of.tobytes()
    played = play(*columns, mode, None)  # a capacity that is not reached changes nothing
    if capacity is not None and played.reserved_to.max(initial=0) > capacity:
        played = play(*columns, mode, capacity)
    blocks = played.blocks
    if without is not None:
        blocks = np.maximum(events, 0)
        blocks[rows] = played.blocks
        blocks = _released(events, blocks)
    out_of_memory = None if played.out_of_memory is None else int(rows[played.out_of_memory])
    return Replay(mode, blocks, rows[played.reserved_at], played.reserved_to, out_of_memory, len(rows))


class _Played(NamedTuple):
    """What an allocator did with the events that went through it; columns as of `Allocator`."""

    blocks: Integers
    reserved_at: Integers
    reserved_to: Integers
    out_of_memory: int | None


@lru_cache(maxsize=32)
def _play(events: bytes, streams: bytes | None, mode: Mode, capacity: int | None) -> _Played:
    """Let events, int64, through an allocator. Jobs that differ in times or in what else fills a device ask for the same over and over."""
    allocator = ExpandableAllocator(capacity) if mode == "expandable" else Allocator(capacity)
    allocator.run(_listed(events), () if streams is None else _listed(streams))
    blocks, at, to = (np.array(column, dtype=np.int64) for column in (allocator.blocks, allocator.reserved_at, allocator.reserved_to))
    return _Played(blocks, at, to, allocator.out_of_memory)


def _listed(column: bytes) -> list[int]:
    listed: list[int] = np.frombuffer(column, dtype=np.int64).tolist()
    return listed


def _released(events: Integers, blocks: Integers) -> Integers:
    """The blocks of all events [B], those of releases taken from the allocation of what they release."""
    released = np.flatnonzero(events < 0)
    blocks[released] = -blocks[~events[released]]
    return blocks


def numbered(keys: Integers, sizes: Integers) -> Integers:
    """Events as `Allocator.run` takes them: rounded sizes, and for a release ~(the event that allocated what it releases).

    Raises AllocatorError for the first event that allocates a live key, or releases one that is not.
    """
    rows = np.flatnonzero(sizes)
    rows = rows[np.argsort(keys[rows], kind="stable")]
    allocates = sizes[rows] > 0
    follows = np.zeros(len(rows), dtype=bool)  # the event before is of the same key, and allocates it
    follows[1:] = (keys[rows[1:]] == keys[rows[:-1]]) & allocates[:-1]
    if (wrong := rows[follows == allocates]).size:
        event = int(wrong.min())
        what = "is allocated twice" if sizes[event] > 0 else "is released but not live"
        raise AllocatorError(f"key {keys[event]} {what}")
    events = -(-sizes // ROUNDING) * ROUNDING
    released = np.flatnonzero(~allocates)
    events[rows[released]] = ~rows[released - 1]
    return events


@dataclass(frozen=True)
class Repeats:
    """Whole periods of a pattern that a replay may leave out, from event `begin` up to event `end`.

    What is live before and after them is the same, micro-batches renamed, and so is what each period allocates. That they
    reserve no more than the period before them is likely, not certain: best fit may go on to scatter what is free.
    """

    begin: int
    end: int
    before: Integers
    """events that allocate what is live before them and not after them"""
    after: Integers
    """in the same order those that allocate what is live after them and not before them"""

    def left_out(self, events: Integers) -> Integers:
        """The other events, in the form of `Allocator.run`: a release of what was allocated meanwhile is one of its counterpart."""
        place = np.arange(len(events))
        place[self.end :] -= self.end - self.begin
        place[self.after] = self.before
        rest = np.concatenate((events[: self.begin], events[self.end :]))
        released = rest < 0
        rest[released] = ~place[~rest[released]]
        return rest


def repeats(tensor: Integers, instance: Integers, delta: Integers, events: Integers, peak: int) -> Repeats | None:
    """The periods that a replay may leave out: all but those up to event `peak`, at which most is allocated, and one more, and
    as many as `LEAST` events take.

    None if there is no pattern, or what is live grows or shrinks with each period, as in GPipe. `events` are what tensors,
    instances and `delta` bytes are in the form of `Allocator.run`.
    """
    pattern = find_pattern(tensor, instance, delta)
    if pattern is None:
        return None
    last = pattern.end + pattern.period
    begin = max(pattern.begin, peak + 1 if peak < last else 0)
    begin += max(1, -(-(LEAST - begin) // pattern.period)) * pattern.period
    periods = (last - begin) // pattern.period
    end = begin + periods * pattern.period
    if periods <= 0:
        return None
    releases = np.flatnonzero(events < 0)
    allocated = ~events[releases]
    inside = (releases >= begin) & (releases < end)
    before = allocated[inside & (allocated < begin)]
    stays = np.zeros(len(events), dtype=bool)
    stays[begin:end] = events[begin:end] > 0
    stays[allocated[inside]] = False
    after = np.flatnonzero(stays)
    before, after = (rows[np.lexsort((instance[rows], tensor[rows]))] for rows in (before, after))
    further = pattern.shift * periods * (instance[before] >= 0)
    if not np.array_equal(tensor[before], tensor[after]) or not np.array_equal(instance[before] + further, instance[after]):
        return None
    return Repeats(begin, end, before, after)


@dataclass(frozen=True)
class Pattern:
    """Events from `begin` on equal those `period` events later, but for their micro-batches, up to event `end`."""

    begin: int
    end: int
    period: int
    shift: int
    """micro-batches from one period to the next"""


def find_pattern(tensor: Integers, instance: Integers, delta: Integers) -> Pattern | None:
    """The longest stretch of events that repeats itself; None if repetitions make up less than a quarter of all events.

    An event allocates or releases `delta` bytes for a tensor of a micro-batch (`instance`, -1: of none). It is repeated by one
    that does the same for the same tensor, c micro-batches further. Candidate periods are the distances between an
    allocation in the middle and those of the same tensor that follow.
    """
    allocations = np.flatnonzero((instance >= 0) & (delta > 0))
    if not len(allocations):
        return None
    later = allocations[len(allocations) // 2 :]
    middle = int(later[0])

    def repeated(begin: int, end: int) -> NDArray[np.bool_]:
        here, there = slice(begin, end), slice(begin + period, end + period)
        same = (tensor[there] == tensor[here]) & (delta[there] == delta[here])
        return np.asarray(same & (instance[there] - instance[here] == shift * (instance[here] >= 0)))

    best, saved = None, len(tensor) // 4
    for row in later[tensor[later] == tensor[middle]].tolist():
        period, shift = row - middle, int(instance[row] - instance[middle])
        last = len(tensor) - period
        if shift <= 0 or not all(repeated(middle, min(middle + length, last)).all() for length in (16, period)):
            continue
        breaks = np.flatnonzero(~repeated(0, last))
        after = int(np.searchsorted(breaks, middle))
        begin = int(breaks[after - 1]) + 1 if after else 0
        end = int(breaks[after]) if after < len(breaks) else last
        if end - begin - 2 * period > saved:
            best, saved = Pattern(begin, end, period, shift), end - begin - 2 * period
        if saved > len(tensor) // 2:
            break
    return best
