"""The caching allocator: published figures, and a naive second implementation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import ParsimError
from parsim.simulation.allocator import Allocator, AllocatorError, ExpandableAllocator, rounded, segment_size
from parsim.simulation.replay import replay

MIB = 1 << 20
INFINITE = 1 << 45


def test_one_small_tensor_reserves_2_mib_and_a_second_shares_them():
    one = replay([(0, 4)])
    assert (one.peak_allocated, one.peak_reserved) == (512, 2_097_152)
    two = replay([(0, 4), (1, 4)])
    assert (two.peak_allocated, two.peak_reserved) == (1024, 2_097_152)


def bert_base():
    """Bytes of bert-base-uncased (fp32) in the order in which `Module.to` moves them: parameters and two int64 buffers."""
    h, layers = 768, 12
    tensors = [30522 * h, 512 * h, 2 * h, h, h, 1024, 1024]  # embeddings and their norm; position and type ids of 8 x 512 B
    for _ in range(layers):
        tensors += [h * h, h] * 4 + [h, h] + [4 * h * h, 4 * h, 4 * h * h, h] + [h, h]
    return [4 * elements for elements in [*tensors, h * h, h]]


def test_bert_base_on_a_device():
    """418.7295 MB is what torch.cuda.memory_allocated shows for BERT-base (Hugging Face), 472 MiB reserved."""
    tensors = bert_base()
    assert sum(tensors) == 437_928_960 + 2 * 4096
    moved = replay(enumerate(tensors))
    assert moved.peak_allocated == moved.allocated == 439_069_696
    assert moved.peak_reserved == 472 * MIB
    expandable = replay(enumerate(tensors), "expandable")
    assert expandable.peak_allocated == sum(map(rounded, tensors)) == 437_937_152
    assert expandable.peak_reserved == 422 * MIB  # 20 pages of 20 MiB and 11 of 2 MiB
    exact = replay(enumerate(tensors), "exact")
    assert exact.peak_allocated == exact.peak_reserved == 437_937_152


def test_training_an_mlp_peaks_at_360_mib():
    """1024-1024-1024-2048, batch 10,240, fp32: parameters 16.015625 MiB, input 40; peak 360.2744140625 in the last layer's backward."""
    weights = [1024 * 1024, 1024, 1024 * 1024, 1024, 1024 * 2048, 2048]
    workspace = 2 * 4096 * 1024 + 8 * 16 * 1024
    sizes = [*(4 * elements for elements in weights), 40 * MIB, workspace, 40 * MIB, 40 * MIB, 80 * MIB, 4, 4, 80 * MIB, workspace]
    sizes += [40 * MIB, 8 * MIB, 8192]
    done = replay(enumerate(sizes))
    assert done.peak_allocated / MIB == 360.2744140625
    assert done.peak_reserved >= done.peak_allocated


@pytest.mark.parametrize(
    ("size", "segment"),
    [(512, 2), (MIB, 2), (MIB + 512, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 512, 12), (21 * MIB, 22)],
)
def test_segments(size, segment):
    assert segment_size(size) == segment * MIB
    assert replay([(0, size)]).reserved == segment * MIB


@pytest.mark.parametrize(
    ("request_bytes", "allocated"),
    [
        (19 * MIB - 512, 19 * MIB - 512),  # 1 MiB + 512 B remain: split
        (19 * MIB, 20 * MIB),  # exactly 1 MiB remains: not split
        (19 * MIB + 512, 20 * MIB),
    ],
)
def test_a_large_block_is_split_only_if_more_than_1_mib_remains(request_bytes, allocated):
    first = replay([(0, 20 * MIB), (0, -20 * MIB), (1, request_bytes)])
    assert (first.allocated, first.reserved) == (allocated, 20 * MIB)
    assert replay([(0, 20 * MIB), (0, -20 * MIB), (1, request_bytes)], "expandable").allocated == request_bytes


def test_best_fit_takes_the_smallest_block_and_then_the_lowest_address():
    allocator = Allocator()
    allocator.run([30 * MIB, 12 * MIB, 20 * MIB, 12 * MIB, ~3, ~0, ~1, ~2])
    first = allocator.addresses[:4]
    allocator.run([23 * MIB // 2, 12 * MIB, 12 * MIB])
    assert allocator.addresses[8:] == [first[1], first[3], first[2]]
    assert allocator.blocks[8:] == [12 * MIB, 12 * MIB, 12 * MIB]
    assert allocator.free_at[first[2] + 12 * MIB] == 8 * MIB


def test_neighbours_coalesce_within_a_segment_only():
    allocator = Allocator()
    allocator.run([5 * MIB] * 6 + [~event for event in (0, 2, 1, 4, 5, 3)])
    assert sorted(allocator.free_at.values()) == [20 * MIB, 20 * MIB]
    assert allocator.reserved == 40 * MIB


def test_an_empty_tensor_is_nothing():
    assert replay([(0, 0), (0, 0)]).peak_reserved == 0
    assert replay([]).peak_allocated == 0
    assert rounded(0) == 0
    assert (rounded(1), rounded(512), rounded(513)) == (512, 512, 1024)


def test_cached_segments_are_released_before_memory_runs_out():
    events = [(0, 12 * MIB), (1, 12 * MIB), (0, -1), (2, 30 * MIB)]
    free, tight, full = replay(events), replay(events, capacity=42 * MIB), replay(events, capacity=41 * MIB)
    assert (free.reserved, free.out_of_memory) == (54 * MIB, None)
    assert (tight.reserved, tight.out_of_memory) == (42 * MIB, None)
    assert (full.reserved, full.out_of_memory) == (42 * MIB, 3)
    assert list(full.reserved_level() // MIB) == [12, 24, 24, 42]


@pytest.mark.parametrize("mode", ["segments", "expandable"])
@pytest.mark.parametrize(("events", "message"), [([(0, 4), (0, 4)], "allocated twice"), ([(3, -4)], "key 3 is released but not live")])
def test_events_that_cannot_be(mode, events, message):
    with pytest.raises(AllocatorError, match=message):
        replay(events, mode)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ParsimError, match="segments, expandable, exact"):
        replay([], "magic")


class Naive:
    """The same allocator as lists of [size, state, address] per segment; states: free, unmapped, or the key that lives there."""

    def __init__(self, expandable, capacity):
        self.expandable, self.capacity = expandable, capacity
        self.segments = [[pool, [[INFINITE, "unmapped"]]] for pool in (0, 1)] if expandable else []
        self.reserved = 0
        self.out_of_memory = False

    def allocate(self, key, size):
        size = (size + 511) // 512 * 512
        pool = 0 if size <= MIB else 1
        spot = self.find(pool, size)
        if spot is None:
            spot = self.grow(pool, size)
        blocks, index = spot
        rest = blocks[index][0] - size
        if rest >= 512 if self.expandable or pool == 0 else rest > MIB:
            blocks[index][0] = size
            blocks.insert(index + 1, [rest, "free"])
        blocks[index][1] = key
        return blocks[index][0]

    def free(self, key):
        for _, blocks in self.segments:
            for block in blocks:
                if block[1] == key and not isinstance(block[1], str):
                    size = block[0]
                    block[1] = "free"
                    self.merge(blocks, "free")
                    return size
        raise KeyError(key)

    @staticmethod
    def merge(blocks, state):
        index = 0
        while index + 1 < len(blocks):
            if blocks[index][1] == blocks[index + 1][1] == state:
                blocks[index][0] += blocks.pop(index + 1)[0]
            else:
                index += 1

    def find(self, pool, size):
        candidates = []
        for number, (where, blocks) in enumerate(self.segments):
            for index, (have, state) in enumerate(blocks):
                if where == pool and state == "free" and have >= size:
                    after = blocks[index + 1] if index + 1 < len(blocks) else [0, ""]
                    could_be = have + (after[0] if after[1] == "unmapped" else 0)
                    candidates.append((have, number, index, could_be))
        candidates.sort()
        if not candidates:
            return None
        place = 0
        while place + 1 < len(candidates) and candidates[place + 1][3] < candidates[place][3]:
            place += 1
        _, number, index, _ = candidates[place]
        return self.segments[number][1], index

    def grow(self, pool, size):
        if not self.expandable:
            segment = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
            self.room_for(lambda: segment)
            self.reserved += segment
            self.segments.append([pool, [[segment, "free"]]])
            return self.segments[-1][1], 0
        self.room_for(lambda: self.map(pool, size, dry=True))
        self.map(pool, size, dry=False)
        return self.find(pool, size)

    def room_for(self, needed):
        if self.capacity is not None and self.reserved + needed() > self.capacity:
            self.release()
            if self.reserved + needed() > self.capacity:
                self.out_of_memory = True

    def map(self, pool, size, *, dry):
        """Map pages so that a free block of the size exists at the first place that has room; returns bytes mapped."""
        page = (2, 20)[pool] * MIB
        blocks = self.segments[pool][1]
        for hole in [index for index, block in enumerate(blocks) if block[1] == "unmapped"]:
            begin = hole - 1 if hole and blocks[hole - 1][1] == "free" else hole
            missing, mapped, index = size, 0, begin
            plan = []
            while missing > 0 and index < len(blocks) and blocks[index][1] in ("free", "unmapped"):
                have = blocks[index][0]
                if blocks[index][1] == "unmapped":
                    have = min(have, (missing + page - 1) // page * page)
                    plan.append((index, have))
                    mapped += have
                missing -= have
                index += 1
            if missing > 0:
                continue
            if not dry:
                for at, have in reversed(plan):
                    rest = blocks[at][0] - have
                    blocks[at : at + 1] = [[have, "free"]] + ([[rest, "unmapped"]] if rest else [])
                self.merge(blocks, "free")
                self.reserved += mapped
            return mapped
        raise AssertionError

    def release(self):
        if not self.expandable:
            gone = [segment for segment in self.segments if len(segment[1]) == 1 and segment[1][0][1] == "free"]
            self.reserved -= sum(segment[1][0][0] for segment in gone)
            self.segments = [segment for segment in self.segments if segment not in gone]
            return
        for pool, blocks in self.segments:
            page = (2, 20)[pool] * MIB
            fresh, address = [], 0
            for size, state in blocks:
                first, last = (address + page - 1) // page * page, (address + size) // page * page
                if state == "free" and first < last:
                    self.reserved -= last - first
                    pieces = [[first - address, "free"], [last - first, "unmapped"], [address + size - last, "free"]]
                    fresh += [piece for piece in pieces if piece[0]]
                else:
                    fresh.append([size, state])
                address += size
            blocks[:] = fresh
            self.merge(blocks, "unmapped")


sizes = st.one_of(
    st.integers(1, 3000),
    st.integers(1, 3).map(lambda n: n * 512 * 1024),
    st.integers(MIB, 12 * MIB),
    st.integers(9, 45).map(lambda n: n * MIB),
)


@st.composite
def event_lists(draw):
    events, live = [], []
    for key in range(draw(st.integers(1, 40))):
        while live and draw(st.integers(0, 2)) == 0:
            events.append((live.pop(draw(st.integers(0, len(live) - 1))), -1))
        events.append((key, draw(sizes)))
        live.append(key)
    return events


CAPACITIES = st.one_of(st.none(), st.integers(20, 200).map(lambda n: n * MIB))


@given(events=event_lists(), capacity=CAPACITIES)
@settings(max_examples=150, deadline=None)
def test_equals_a_naive_allocator(events, capacity):
    check_against_naive("segments", events, capacity)


@given(events=event_lists(), capacity=CAPACITIES)
@settings(max_examples=150, deadline=None)
def test_equals_a_naive_allocator_that_expands(events, capacity):
    check_against_naive("expandable", events, capacity)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="ExpandableAllocator._find ends at a block that is in its bin twice")
def test_a_block_that_was_released_and_came_back_with_its_size():
    """Key 17 belongs into the 9 MiB, which cannot grow; the 2 MiB before a hole of 20 MiB are in their bin twice."""
    sizes = [33, 45, 31, 2.001, 3, (2, 0), 44, 1.5, 3, (7, 0), 16, 6.001]
    events = [(key, int(size * MIB)) if not isinstance(size, tuple) else (size[0], -1) for key, size in enumerate(sizes)]
    check_against_naive("expandable", events, 20 * MIB)


@pytest.mark.parametrize("mode", ["segments", "expandable"])
@pytest.mark.parametrize("seed", range(6))
def test_equals_a_naive_allocator_over_long_runs(mode, seed):
    source = random.Random(seed)
    palette = [int(10 ** source.uniform(2, 7.7)) for _ in range(12)]
    events, live = [], []
    for key in range(500):
        if len(live) > 25 or (live and source.random() < 0.45):
            events.append((live.pop(source.randrange(len(live))), -1))
        else:
            events.append((key, source.choice(palette) if source.random() < 0.8 else int(10 ** source.uniform(2, 7.7))))
            live.append(key)
    check_against_naive(mode, events, source.choice([None, 150 * MIB, 250 * MIB]))


def check_against_naive(mode, events, capacity):
    found = replay(events, mode, capacity)
    naive = Naive(mode == "expandable", capacity)
    blocks, reserved, first_failure = [], [], None
    for index, (key, size) in enumerate(events):
        blocks.append(naive.allocate(key, size) if size > 0 else -naive.free(key))
        reserved.append(naive.reserved)
        if naive.out_of_memory and first_failure is None:
            first_failure = index
    assert found.blocks.tolist() == blocks
    assert found.reserved_level().tolist() == reserved
    assert found.out_of_memory == first_failure
    assert found.peak_reserved == max(reserved)
    assert found.allocated == sum(blocks)
    assert found.peak_allocated >= sum(rounded(size) for key, size in events if size > 0 and (key, -1) not in events)


def test_out_of_memory_in_exact_mode():
    assert replay([(0, 600), (0, -600), (1, 1024), (2, 1)], "exact", capacity=1024).out_of_memory == 3
    assert replay([(0, 600)], "exact", capacity=1024).out_of_memory is None


def test_the_two_allocators_start_empty():
    for allocator in (Allocator(), ExpandableAllocator()):
        assert (allocator.reserved, allocator.blocks, allocator.out_of_memory) == (0, [], None)
