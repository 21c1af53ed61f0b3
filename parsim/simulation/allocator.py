"""PyTorch's CUDA caching allocator, block by block.

The algorithm of `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 2.x) with its defaults: sizes are rounded
to 512 B; requests up to 1 MiB are served from 2 MiB segments, requests under 10 MiB from 20 MiB segments, larger ones
from segments of their own, rounded to 2 MiB. Best fit, lowest address on ties; a block is split if what remains is
at least 512 B (small pool) or more than 1 MiB (large pool), else the whole block counts as allocated; free neighbours
within a segment coalesce. Segments stay reserved until memory runs out. A free block serves only the stream that it was
allocated on (BlockComparatorSize compares the stream first): each stream has pools of its own.

A step has tens of thousands of allocations on each rank, so everything here is a whole number: an event, an address, a
size; there are no objects for blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import groupby

from parsim.errors import ParsimError

ROUNDING = 512
"""kMinBlockSize: every allocation is a multiple of this [B]"""
SMALL = 1 << 20
"""kSmallSize: largest request of the small pool; a large block is split only if more than this remains [B]"""
SMALL_SEGMENT = 2 << 20
"""kSmallBuffer [B]"""
LARGE_SEGMENT = 20 << 20
"""kLargeBuffer [B]"""
OWN_SEGMENT = 10 << 20
"""kMinLargeAlloc: from this on a request gets a segment of its own [B]"""
SEGMENT_ROUNDING = 2 << 20
"""kRoundLarge [B]"""
RANGE = 1 << 50
"""distance of the address ranges of an expandable allocator's pools [B]; more than any device has"""


def first_address(stream: int, *, small: bool) -> int:
    """Where an expandable allocator's pool of a stream begins."""
    return (2 * stream + (1 if small else 2)) * RANGE


class AllocatorError(ParsimError):
    """An event that no program can cause: a key allocated twice, or released without being live."""


def rounded(size: int) -> int:
    """What an allocation of `size` bytes occupies at least [B]; an empty tensor occupies nothing."""
    return -(-size // ROUNDING) * ROUNDING


def segment_size(size: int) -> int:
    """Segment that is reserved for a request of `size` rounded bytes [B]."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING


class BlockPool:
    """Free blocks of one size class, found by best fit.

    `bins` holds addresses by size. An entry is stale unless the allocator's `free_at` says that a free block of that
    size begins there; stale entries are dropped when met.
    """

    __slots__ = ("bins", "first", "page", "rest", "sizes")

    def __init__(self, rest: int, page: int, first: int) -> None:
        self.bins: dict[int, list[int]] = {}
        self.sizes: list[int] = []
        """sizes that have a bin, ascending"""
        self.rest = rest
        """a block is split if at least this remains [B]"""
        self.page = page
        """memory is mapped in multiples of this (expandable only) [B]"""
        self.first = first
        """first address of the pool's range (expandable only)"""

    def remember(self, address: int, size: int) -> None:
        """Enter a free block."""
        if size in self.bins:
            heappush(self.bins[size], address)
        else:
            self.bins[size] = [address]
            insort(self.sizes, size)


class Allocator:
    """One device's caching allocator, and what it did with the events that it was given.

    `capacity`: bytes that may be reserved; before they are exceeded, cached segments are released, as PyTorch does. If
    that does not help, `out_of_memory` is set and the run goes on beyond the capacity. None = no limit.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.reserved = 0
        """bytes of segments"""
        self.blocks: list[int] = []
        """per event the size of the block allocated (+) or released (-) [B]"""
        self.addresses: list[int] = []
        """per event the address of that block; 0 for an empty tensor"""
        self.reserved_at: list[int] = []
        """events at which the reserved memory changed"""
        self.reserved_to: list[int] = []
        """reserved memory after each of these [B]"""
        self.out_of_memory: int | None = None
        """first event at which the capacity was exceeded although nothing was left to release"""
        self.segments: dict[int, int] = {}
        """address -> size of each segment, in the order of their reservation"""
        self.holes: dict[int, int] = {}
        """address -> size of what is not mapped (expandable only)"""
        self.free_at: dict[int, int] = {}
        """address -> size of each free block"""
        self._free_end: dict[int, int] = {}
        """end of each free block -> its address"""
        self._of_stream: dict[int, tuple[BlockPool, BlockPool]] = {}
        self._next = 0

    def _pools(self, stream: int) -> tuple[BlockPool, BlockPool]:
        """New pools for small and large requests of a stream."""
        return BlockPool(ROUNDING, 0, 0), BlockPool(SMALL + 1, 0, 0)

    def run(self, events: Sequence[int], streams: Sequence[int] = ()) -> None:
        """Allocate and release, event by event.

        An event is a size > 0 [B], a multiple of 512, to be allocated; or ~i < 0, which releases what event i allocated; or 0,
        an empty tensor. Events are numbered from the first one that this allocator was given. `streams` = the stream of each, a
        number; none: all are of stream 0. Nothing is checked.
        """
        if not streams:
            self._run(events, 0)
            return
        begin = 0
        for stream, alike in groupby(streams):
            end = begin + sum(1 for _ in alike)
            self._run(events[begin:end], stream)
            begin = end

    def _run(self, events: Iterable[int], stream: int) -> None:
        """The same for events of one stream."""
        if stream not in self._of_stream:
            self._of_stream[stream] = self._pools(stream)
        blocks, addresses, free_at, free_end = self.blocks, self.addresses, self.free_at, self._free_end
        small, large = self._of_stream[stream]
        segment, find = self._segment, self._find
        for event in events:
            if event > 0:
                pool = small if event <= SMALL else large
                sizes, bins = pool.sizes, pool.bins
                if pool.page:
                    address, size = find(pool, event)
                else:  # best fit: the smallest free block that is large enough, at the lowest address
                    place = bisect_left(sizes, event)
                    while place < len(sizes):
                        size = sizes[place]
                        same = bins[size]
                        while same and free_at.get(same[0]) != size:
                            heappop(same)
                        if same:
                            address = heappop(same)
                            del free_at[address], free_end[address + size]
                            break
                        del sizes[place], bins[size]
                    else:
                        address, size = segment(event)
                rest = size - event
                if rest >= pool.rest:
                    begin = address + event
                    free_at[begin] = rest
                    free_end[begin + rest] = begin
                    if rest in bins:
                        heappush(bins[rest], begin)
                    else:
                        bins[rest] = [begin]
                        insort(sizes, rest)
                    size = event
                blocks.append(size)
                addresses.append(address)
            elif event:
                address, size = addresses[~event], blocks[~event]
                blocks.append(-size)
                addresses.append(address)
                pool = small if size <= SMALL else large
                end = address + size
                end += free_at.pop(end, 0)  # coalesces with a free block behind it
                begin = free_end.pop(address, address)  # and with one before it
                size = end - begin
                free_at[begin] = size
                free_end[end] = begin
                if size in pool.bins:
                    heappush(pool.bins[size], begin)
                else:
                    pool.bins[size] = [begin]
                    insort(pool.sizes, size)
            else:
                blocks.append(0)
                addresses.append(0)

    def _put(self, pool: BlockPool, address: int, size: int) -> None:
        """Remember a free block; its neighbours are not free."""
        self.free_at[address] = size
        self._free_end[address + size] = address
        pool.remember(address, size)

    def _forget(self, address: int, size: int) -> None:
        """Drop a free block; its entry in a bin grows stale."""
        del self.free_at[address]
        del self._free_end[address + size]

    def _find(self, pool: BlockPool, wanted: int) -> tuple[int, int]:
        """Take a block of a pool that grows, see `ExpandableAllocator`: (address, size)."""
        raise NotImplementedError

    def _segment(self, wanted: int) -> tuple[int, int]:
        """Reserve a new segment: (address, size)."""
        size = segment_size(wanted)
        if self._exceeds(size):
            self._release()
        self._reserve(size)
        address = self._next
        self._next += size + ROUNDING  # a gap, so that blocks of two segments are never neighbours
        self.segments[address] = size
        return address, size

    def _exceeds(self, size: int) -> bool:
        """Whether `size` bytes more are beyond the capacity."""
        return self.capacity is not None and self.reserved + size > self.capacity

    def _reserve(self, size: int) -> None:
        """Count `size` bytes more as reserved by the event at hand."""
        event = len(self.blocks)
        if self.out_of_memory is None and self._exceeds(size):
            self.out_of_memory = event
        self.reserved += size
        self.reserved_at.append(event)
        self.reserved_to.append(self.reserved)

    def _release(self) -> None:
        """Give segments that are wholly free back to the device."""
        for address, size in list(self.segments.items()):
            if self.free_at.get(address) == size:
                self._forget(address, size)
                del self.segments[address]
                self.reserved -= size


class ExpandableAllocator(Allocator):
    """The same with expandable segments: one range of addresses per stream and pool, mapped in pages of 2 MiB and 20 MiB.

    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. Blocks are always split. When memory runs out, whole pages of
    free blocks are unmapped; the holes can be mapped again. The ranges are taken as endless (PyTorch: 9/8 of the device).
    """

    def _pools(self, stream: int) -> tuple[BlockPool, BlockPool]:
        small, large = (first_address(stream, small=small) for small in (True, False))
        pools = BlockPool(ROUNDING, SMALL_SEGMENT, small), BlockPool(ROUNDING, LARGE_SEGMENT, large)
        self.holes |= {pool.first: RANGE // 2 for pool in pools}
        return pools

    def _find(self, pool: BlockPool, wanted: int) -> tuple[int, int]:
        """Take the best free block, or map more memory at the end of a free block.

        A free block before unmapped memory counts as large as it could grow, so others are preferred to it.
        """
        holes, free_at, sizes = self.holes, self.free_at, pool.sizes
        passed: list[tuple[int, int]] = []
        best, room = (-1, 0), 0
        place = bisect_left(sizes, wanted)
        while place < len(sizes):
            size = sizes[place]
            same = pool.bins[size]
            if not same:
                del sizes[place], pool.bins[size]
                continue
            address = heappop(same)
            if free_at.get(address) != size or (address, size) == best:  # one that left and came back is in its bin twice
                continue
            passed.append((address, size))
            could_be = size + holes.get(address + size, 0)
            if best[0] >= 0 and could_be >= room:
                break
            best, room = (address, size), could_be
            if could_be == size:
                break
        for address, size in passed:
            if address != best[0]:
                pool.remember(address, size)
        if best[0] < 0:
            return self._map(pool, wanted)
        self._forget(*best)
        return best

    def _map(self, pool: BlockPool, wanted: int) -> tuple[int, int]:
        """Map memory until a free block of at least `wanted` bytes exists, and take it: (address, size)."""
        begin, pieces = self._room(pool, wanted)
        if self._exceeds(sum(size for _, size in pieces)):
            self._release()
            begin, pieces = self._room(pool, wanted)
        self._reserve(sum(size for _, size in pieces))
        for address, size in pieces:
            rest = self.holes.pop(address) - size
            if rest:
                self.holes[address + size] = rest
        end = begin
        mapped = dict(pieces)
        while end - begin < wanted or end in self.free_at:
            if end in mapped:
                end += mapped[end]
            else:
                size = self.free_at[end]
                self._forget(end, size)
                end += size
        return begin, end - begin

    def _room(self, pool: BlockPool, wanted: int) -> tuple[int, list[tuple[int, int]]]:
        """Lowest run of free and unmapped memory that begins at a hole or the free block before it, and is long enough.

        Returns its address and what must be mapped of its holes: (address, size), whole pages.
        """
        for hole in sorted(address for address in self.holes if pool.first <= address < pool.first + RANGE):
            begin = end = self._free_end.get(hole, hole)
            pieces: list[tuple[int, int]] = []
            while end - begin < wanted:
                if end in self.free_at:
                    end += self.free_at[end]
                elif end in self.holes:
                    missing = -(-(wanted - (end - begin)) // pool.page) * pool.page
                    pieces.append((end, min(missing, self.holes[end])))
                    end += pieces[-1][1]
                else:
                    break
            else:
                return begin, pieces
        raise AllocatorError(f"no range of {wanted} B")  # unreachable: the last hole has no end

    def _release(self) -> None:
        """Unmap the whole pages of all free blocks."""
        for pool in (pool for pools in self._of_stream.values() for pool in pools):
            inside = [(a, s) for a, s in self.free_at.items() if pool.first <= a < pool.first + RANGE]
            for address, size in inside:
                first = -(-(address - pool.first) // pool.page) * pool.page + pool.first
                last = (address + size - pool.first) // pool.page * pool.page + pool.first
                if first >= last:
                    continue
                self._forget(address, size)
                if address < first:
                    self._put(pool, address, first - address)
                if last < address + size:
                    self._put(pool, last, address + size - last)
                self.reserved -= last - first
                hole = last - first
                if last in self.holes:
                    hole += self.holes.pop(last)
                before = next((a for a, s in self.holes.items() if a + s == first), None)
                if before is None:
                    self.holes[first] = hole
                else:
                    self.holes[before] += hole
