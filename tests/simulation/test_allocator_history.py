"""The allocator's history beside its replay: the same blocks, the same segments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parsim.simulation.allocator_history import AllocatedBlock, AllocatorStep, Segment, history
from parsim.simulation.replay import replay

MIB = 2**20
sizes = st.sampled_from([1, 512, 513, MIB, MIB + 1, 3 * MIB, 10 * MIB, 11 * MIB, 64 * MIB])


@st.composite
def sequences(draw):
    events, live, number = [], [], 0
    for _ in range(draw(st.integers(1, 40))):
        if live and draw(st.booleans()):
            events.append((live.pop(draw(st.integers(0, len(live) - 1))), -1))
        else:
            events.append((number, draw(sizes)))
            live.append(number)
            number += 1
    return events


@given(sequences(), st.sampled_from(["segments", "expandable", "exact"]))
def test_a_history_has_the_peaks_of_the_replay(events, mode):
    sized = dict(event for event in events if event[1] > 0)
    signed = [(key, size if size > 0 else -sized[key]) for key, size in events]
    done, played = history(signed, mode), replay(signed, mode)
    assert done.peak_allocated == played.peak_allocated
    assert done.peak_reserved == played.peak_reserved
    assert [
        step.size if step.action == "alloc" else -step.size for step in done.steps if step.action in ("alloc", "free")
    ] == played.blocks.tolist()
    assert sum(segment.size for segment in done.segments) == played.reserved
    assert sum(block.size for block in done.blocks) == played.allocated


def test_a_small_history_by_hand():
    """1 MiB comes from a 2 MiB segment, 3 MiB from one of 20 MiB, and both are split."""
    done = history([(0, MIB), (1, 3 * MIB), (0, -MIB)])
    gap = 512
    assert done.steps == (
        AllocatorStep(0, "segment_alloc", 0, 2 * MIB),
        AllocatorStep(0, "alloc", 0, MIB),
        AllocatorStep(1, "segment_alloc", 2 * MIB + gap, 20 * MIB),
        AllocatorStep(1, "alloc", 2 * MIB + gap, 3 * MIB),
        AllocatorStep(2, "free", 0, MIB),
    )
    assert done.blocks == (AllocatedBlock(1, 2 * MIB + gap, 3 * MIB),)
    assert done.segments == (Segment(0, 2 * MIB, small=True), Segment(2 * MIB + gap, 20 * MIB, small=False))
