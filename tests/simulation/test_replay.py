"""The replay of a rank: where its events repeat themselves, and that a replay without repeated periods tells what it reserves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import MIB, job

from parsim.parallel.training import Recompute
from parsim.simulation.replay import find_pattern, numbered, repeats, replay_numbered

SIZES = st.sampled_from([700, 5_000, 700_000, MIB, 3 * MIB, 11 * MIB, 24 * MIB])


def micro_batches(count, in_flight, alive, *, prologue=0, epilogue=()):
    """Columns tensor, instance, delta of a pipeline stage: a forward allocates `alive`, a backward releases it in reverse order.

    Before them come `prologue` temporary tensors, after them tensors of the given sizes that stay.
    """
    rows = []

    def forward(index):
        for number, size in enumerate(alive):
            rows.append((number, index, size))
            rows.extend(((100, -1, MIB), (100, -1, -MIB)))

    def backward(index):
        for number, size in reversed(list(enumerate(alive))):
            rows.extend(((101, -1, size // 2), (number, index, -size), (101, -1, -(size // 2))))

    for number in range(prologue):
        rows.extend(((200 + number, -1, 512), (200 + number, -1, -512)))
    for index in range(count):
        forward(index)
        if index >= in_flight:
            backward(index - in_flight)
    for index in range(count - in_flight, count):
        backward(index)
    rows.extend((300 + number, -1, size) for number, size in enumerate(epilogue))
    return tuple(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Steps of tests are short: one period is enough."""
    monkeypatch.setattr("parsim.simulation.replay.LEAST", 0)


def repeats_of(tensor, instance, delta):
    """What `repeats` finds, and the events in the form of the allocator."""
    events = numbered(tensor * 1000 + instance + 1, delta)
    return repeats(tensor, instance, delta, events, int(np.cumsum(delta).argmax()) if len(delta) else -1), events


def test_a_pattern_and_where_it_begins():
    """After 3 x 2 events and four forwards of 6, a period is a forward of 6 and a backward of 6; the last forwards are of the pattern."""
    tensor, instance, delta = micro_batches(60, 4, [4 * MIB, MIB], prologue=3)
    found = find_pattern(tensor, instance, delta)
    assert (found.period, found.shift) == (12, 1)
    assert 6 + 3 * 6 <= found.begin <= 6 + 4 * 6
    assert found.end + found.period >= 6 + 4 * 6 + 56 * 12


def test_what_is_left_out_changes_nothing_but_micro_batches():
    columns = micro_batches(60, 4, [4 * MIB, MIB], prologue=3, epilogue=(64 * MIB,))
    tensor, _, delta = columns
    found, events = repeats_of(*columns)
    assert (found.end - found.begin) % 12 == 0
    assert found.end - found.begin > 0.8 * len(events)
    rest = found.left_out(events)
    rows = np.delete(np.arange(len(events)), slice(found.begin, found.end))
    released = np.flatnonzero(rest < 0)
    moved = rest.copy()
    moved[released] = -rest[~rest[released]]
    assert np.cumsum(moved).tolist() == np.cumsum(delta)[rows].tolist()
    assert (rest[~rest[released]] > 0).all()
    assert len(set(rest[released].tolist())) == len(released)
    assert tensor[rows[~rest[released]]].tolist() == tensor[rows[released]].tolist()


def test_all_is_replayed_up_to_the_peak():
    """A peak after the pattern is replayed in any case."""
    tensor, instance, delta = micro_batches(60, 4, [4 * MIB, MIB])
    events = numbered(tensor * 1000 + instance + 1, delta)
    early, late, after = (repeats(tensor, instance, delta, events, peak) for peak in (0, 200, len(events) - 1))
    assert 200 < late.begin <= 200 + 1 + 12
    assert early.begin == after.begin < 200


def test_at_least_so_many_events_are_replayed(monkeypatch):
    columns = micro_batches(60, 4, [4 * MIB, MIB])
    monkeypatch.setattr("parsim.simulation.replay.LEAST", 300)
    assert 300 <= repeats_of(*columns)[0].begin < 312
    monkeypatch.setattr("parsim.simulation.replay.LEAST", len(columns[0]))
    assert repeats_of(*columns)[0] is None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(SIZES, st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=40),
    st.sampled_from(["segments", "expandable"]),
)
def test_streams_share_nothing(tensors, mode):
    """Tensors of several streams, in any order, reserve what each stream's own would reserve alone."""
    events, streams, live = [], [], []
    for size, stream, lives in tensors:
        events.append(-(-size // 512) * 512)
        streams.append(stream)
        live.append((len(events) - 1, stream))
        for born, of in live[:lives]:
            events.append(~born)
            streams.append(of)
        live = live[lives:]
    columns, of = np.array(events), np.array(streams)
    whole = replay_numbered(columns, mode, streams=of)
    alone = []
    for stream in set(streams):
        rows = np.flatnonzero(of == stream)
        place = np.cumsum(of == stream) - 1
        own = columns[rows]
        own[own < 0] = ~place[~own[own < 0]]
        alone.append(replay_numbered(own, mode))
    assert whole.reserved == sum(one.reserved for one in alone)
    assert whole.allocated == sum(one.allocated for one in alone)


def test_what_does_not_repeat_itself_is_replayed_whole():
    tensor, instance, delta = micro_batches(60, 3, [4 * MIB, MIB])
    shuffled = np.random.default_rng(7).permutation(tensor)
    assert find_pattern(shuffled, instance, delta) is None
    assert find_pattern(tensor, np.full_like(instance, -1), delta) is None
    assert repeats_of(*(column[:0] for column in (tensor, instance, delta)))[0] is None


def test_where_each_period_keeps_more_nothing_is_left_out():
    """GPipe: all forwards, then all backwards."""
    columns = micro_batches(60, 60, [4 * MIB, MIB])
    assert find_pattern(*columns) is not None
    assert repeats_of(*columns)[0] is None


def test_what_is_recomputed_is_allocated_twice_in_a_period():
    """The allocation in the middle is the second one of its micro-batch, and the next one of the tensor is a first one."""
    rows = []
    for index in range(200):
        rows += [(0, index, MIB), (1, index, 5 * MIB), (1, index, -5 * MIB)]
        if index >= 2:
            rows += [(1, index - 2, 5 * MIB), (1, index - 2, -5 * MIB), (0, index - 2, -MIB)]
    found = find_pattern(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))
    assert (found.period, found.begin) == (6, 6)


@pytest.mark.parametrize("mode", ["segments", "expandable"])
@given(in_flight=st.integers(1, 7), alive=st.lists(SIZES, min_size=1, max_size=6), late=st.lists(SIZES, max_size=3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_shortened_replay_begins_and_ends_as_the_whole_one(mode, in_flight, alive, late):
    """Up to what is left out blocks and reserved memory are the same; no block changes its size while it is live."""
    columns = micro_batches(60, in_flight, alive, epilogue=late)
    found, events = repeats_of(*columns)
    full, part = replay_numbered(events, mode), replay_numbered(events, mode, without=found)
    assert full.whole
    assert part.replayed == len(events) - (0 if found is None else found.end - found.begin)
    begin = len(events) if found is None else found.begin
    assert part.blocks[:begin].tolist() == full.blocks[:begin].tolist()
    assert part.reserved_level()[:begin].tolist() == full.reserved_level()[:begin].tolist()
    released = np.flatnonzero(events < 0)
    assert (part.blocks[released] == -part.blocks[~events[released]]).all()
    assert (np.abs(part.blocks) >= np.abs(columns[2])).all()


FULL = Recompute("full")
STAGES = {"pipeline": 4, "micro_batches": 32}
SCHEDULES = {
    "1f1b": STAGES | {"pipeline_settings": {"schedule": "1f1b"}},
    "1f1b with recomputation": STAGES | {"pipeline_settings": {"schedule": "1f1b"}, "recompute": FULL},
    "interleaved": STAGES | {"pipeline_settings": {"schedule": "interleaved", "virtual_stages": 3}},
    "interleaved, recomputation": STAGES | {"pipeline_settings": {"schedule": "interleaved", "virtual_stages": 3}, "recompute": FULL},
    "gpipe": STAGES | {"pipeline_settings": {"schedule": "gpipe"}},
    "zero3": {"data": 4, "micro_batches": 16, "data_settings": {"strategy": "zero3"}},
}


@pytest.mark.parametrize("mode", ["segments", "expandable"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_shortened_replay_has_the_peaks_of_the_whole_one(name, mode):
    wires = {"tensor": 1e-5, "data": 1e-4, "pipeline": 1e-5}
    run = job("gpt2", wires=wires, one_per_stage=True, sequence_length=1024, micro_batch=4, **SCHEDULES[name])
    for rank in run.ledger.ranks:
        full, part = run.memory(rank, allocator=mode), run.memory(rank, allocator=mode, whole=False)
        assert (part.peak_reserved, part.peak, part.peak_row, part.at_peak) == (full.peak_reserved, full.peak, full.peak_row, full.at_peak)
        assert part.replay.whole if name == "gpipe" else part.replay.replayed < 0.55 * len(full.op)
