"""The memory ledger: laws on random programs against plain bookkeeping, order at equal times, errors that name the culprit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Effect, Lane, Program, Tensor
from parsim.simulation.engine import Engine
from parsim.simulation.ledger import CATEGORIES, Ledger, LedgerError, measure


class Nothing:
    """An interconnect that nobody asks."""

    def cost(self, collective):
        return CollectiveCost(0.0, ())

    def capacity(self, link):
        return 1.0


def run(program):
    return Engine(program, Nothing()).run()


def take(tensor, offset=0.0):
    return Effect(offset, tensor, allocate=True)


def drop(tensor, offset=0.0):
    return Effect(offset, tensor, allocate=False)


def compute(rank=0):
    return (Lane(rank, "compute"),)


def program_with(*tensors, resident=()):
    program = Program()
    program.tensors[0] = list(tensors)
    program.resident[0] = resident
    return program


def test_levels_peak_and_what_is_left():
    program = program_with(
        Tensor("weights", 1000, "parameters"),
        Tensor("saved", 600, "activations", per_micro_batch=True),
        Tensor("scratch", 5000, "temporaries"),
        resident=(0,),
    )
    forward = ((0, (take(1), take(2, 0.25), drop(2, 1.0))),)
    backward = ((0, (take(2), drop(2, 0.5), drop(1, 0.5))),)
    for index in (0, 1):
        program.add("F", "compute", compute(), duration=1.0, effects=forward, instance=index)
    program.add("B", "compute", compute(), duration=2.0, effects=backward, instance=0)
    memory = measure(program, run(program), 0)
    assert memory.times.tolist() == [0.0, 0.0, 0.25, 1.0, 1.0, 1.25, 2.0, 2.0, 2.5, 2.5]
    assert memory.level.tolist() == [1024, 2048, 7168, 2048, 3072, 8192, 3072, 8192, 3072, 2048]
    assert memory.op.tolist() == [-1, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert memory.instance.tolist() == [-1, 0, -1, -1, 1, -1, -1, -1, -1, 0]
    assert (memory.peak, memory.peak_time, memory.peak_op) == (8192, 1.25, 1)
    assert memory.at_peak == {**dict.fromkeys(CATEGORIES, 0), "parameters": 1024, "activations": 2048, "temporaries": 5120}
    assert memory.resident == {**dict.fromkeys(CATEGORIES, 0), "parameters": 1024}
    assert memory.final == ((0, -1), (1, 1))
    assert set(memory.levels) == {"parameters", "activations", "temporaries"}
    assert memory.levels["activations"].tolist() == [0, 1024, 1024, 1024, 2048, 2048, 2048, 2048, 2048, 1024]
    assert [(tensor.name, instance, size) for tensor, instance, size in memory.live_at(memory.peak_row)] == [
        ("scratch", -1, 5120),
        ("weights", -1, 1024),
        ("saved", 0, 1024),
        ("saved", 1, 1024),
    ]
    assert memory.peak_reserved is None


def test_effects_stay_within_their_op():
    program = program_with(Tensor("a", 512, "buffers"))
    program.add("x", "compute", compute(), duration=1.0)
    program.add("x", "compute", compute(), duration=1.0, effects=((0, (take(0, -5.0), drop(0, 9.0))),))
    assert measure(program, run(program), 0).times.tolist() == [1.0, 2.0]


def test_at_one_time_list_order_decides_within_an_op_and_op_order_between_ops():
    program = program_with(Tensor("a", 512, "buffers"), Tensor("b", 512, "buffers"))
    program.add("x", "compute", (Lane(0, "one"),), effects=((0, (take(0), take(1), drop(0))),))
    program.add("y", "compute", (Lane(0, "two"),), effects=((0, (take(0), drop(0), drop(1))),))
    assert measure(program, run(program), 0).level.tolist() == [512, 1024, 512, 1024, 512, 0]


def test_what_an_op_does_at_its_end_comes_before_what_the_next_does_at_its_start():
    # the op that comes later was added first, as collectives across stages are
    program = program_with(Tensor("gradients", 4096, "gradients"))
    reduce = program.add("reduce", "data_comm", (), duration=1.0, effects=((0, (drop(0),)),))
    backward = program.add("B", "compute", compute(), duration=1.0, effects=((0, (take(0, 1.0),)),))
    program.block(backward.index, reduce.index)
    memory = measure(program, run(program), 0)
    assert memory.op.tolist() == [backward.index, reduce.index]
    assert memory.level.tolist() == [4096, 0]


def test_a_peak_inside_an_op_counts_what_other_lanes_hold_at_that_time():
    # highest prefix of x alone is 8 at t=8, but the copy releases 6 at t=5: the peak is at t=1
    program = program_with(*(Tensor(name, size * 512, "buffers") for name, size in (("a", 5), ("b", 3), ("copied", 6))), resident=(2,))
    program.add("x", "compute", compute(), duration=10.0, effects=((0, (take(0, 1.0), take(1, 8.0), drop(0, 9.0), drop(1, 9.0))),))
    program.add("copy", "offload", (Lane(0, "copy"),), duration=5.0, effects=((0, (drop(2, 5.0),)),))
    memory = measure(program, run(program), 0)
    assert (memory.peak, memory.peak_time) == (11 * 512, 1.0)


def test_a_rank_without_tensors_is_empty():
    program = Program()
    program.add("x", "compute", compute(), duration=1.0)
    memory = measure(program, run(program), 0)
    assert (memory.peak, memory.peak_time, memory.peak_op, memory.final) == (0, 0.0, None, ())
    assert sum(memory.at_peak.values()) == 0
    assert memory.levels == {}


def test_only_what_is_resident():
    program = program_with(Tensor("w", 700, "parameters"), Tensor("odd", 1, "cache"), resident=(0, 1))
    memory = measure(program, run(program), 0)
    assert (memory.peak, memory.peak_op) == (1536, None)
    assert memory.at_peak["cache"] == 512
    assert memory.resident == memory.at_peak


def test_several_ranks_share_lists_of_effects():
    program = Program()
    effects = (take(0), drop(0, 1.0))
    for rank in (0, 1):
        program.tensors[rank] = [Tensor("a", 512 * (rank + 1), "buffers")]
    program.add("both", "compute", (Lane(0, "compute"), Lane(1, "compute")), duration=1.0, effects=((0, effects), (1, effects)))
    ledger = Ledger(program, run(program))
    assert ledger.ranks == [0, 1]
    assert [ledger.measure(rank).peak for rank in ledger.ranks] == [512, 1024]
    assert Ledger(program, run(program), ranks=[1]).ranks == [1]


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        ((take(0), take(0, 1.0)), r"rank 0: <Op 0 F#3> allocates tensor 0 'saved' of micro-batch 3, which is live already"),
        ((drop(0),), r"rank 0: <Op 0 F#3> releases tensor 0 'saved' of micro-batch 3, which is not live"),
        ((take(1),), r"rank 0: <Op 0 F#3> allocates tensor 1 'weights', which is live already"),
        ((drop(1), drop(1, 0.5)), r"rank 0: <Op 0 F#3> releases tensor 1 'weights', which is not live"),
        ((take(2),), r"rank 0: tensors 1 to 2 are not all in its table of 2"),
    ],
)
def test_errors_name_op_and_tensor(effects, message):
    program = program_with(Tensor("saved", 8, "activations", per_micro_batch=True), Tensor("weights", 8, "parameters"), resident=(1,))
    program.add("F", "compute", compute(), duration=1.0, effects=((0, effects),), instance=3)
    with pytest.raises(LedgerError, match=message):
        measure(program, run(program), 0)


def test_the_first_error_in_time_is_told():
    program = program_with(Tensor("a", 8, "buffers"), Tensor("b", 8, "buffers"))
    program.add("late", "compute", (Lane(0, "one"),), duration=5.0, effects=((0, (drop(0, 5.0),)),))
    program.add("early", "compute", (Lane(0, "two"),), duration=1.0, effects=((0, (drop(1, 1.0),)),))
    with pytest.raises(LedgerError, match="early"):
        measure(program, run(program), 0)
    program = program_with(Tensor("a", 8, "buffers"), resident=(0, 0))
    with pytest.raises(LedgerError, match="the table of resident tensors allocates tensor 0 'a'"):
        measure(program, run(program), 0)


TENSORS = tuple(
    Tensor(f"t{number}", size, category, per_micro_batch=number % 2 == 0)
    for number, (size, category) in enumerate(
        [
            (100, "activations"),
            (5000, "gradients"),
            (3 << 20, "activations"),
            (11 << 20, "temporaries"),
            (0, "buffers"),
            (1 << 20, "workspace"),
        ]
    )
)


@st.composite
def programs(draw):
    """A lane of ops with legal effects: what is live is released, what is not is allocated."""
    program = program_with(*TENSORS, resident=tuple(draw(st.sets(st.sampled_from([1, 3, 5])))))
    live = {(tensor, -1) for tensor in program.resident[0]}
    for _ in range(draw(st.integers(0, 20))):
        instance = draw(st.integers(0, 3))
        duration = draw(st.sampled_from([0.0, 1.0, 2.5]))
        effects = []
        for tensor in draw(st.lists(st.integers(0, len(TENSORS) - 1), max_size=5)):
            key = (tensor, instance if TENSORS[tensor].per_micro_batch else -1)
            offset = max([effect.offset for effect in effects], default=0.0)
            offset = draw(st.sampled_from([offset, duration]))
            effects.append(Effect(offset, tensor, allocate=key not in live))
            live ^= {key}
        program.add("op", "compute", compute(), duration=duration, effects=((0, tuple(effects)),), instance=instance)
    return program


def plain(program, trace):
    """Events in order by plain sorting and a dictionary: (time, level, live) after each."""
    rows = [(-1.0, -1, order, tensor, -1, True) for order, tensor in enumerate(program.resident[0])]
    for op in program.ops:
        for _, effects in op.effects:
            for order, effect in enumerate(effects):
                instance = op.instance if TENSORS[effect.tensor].per_micro_batch else -1
                rows.append((trace.start[op.index] + effect.offset, op.index, order, effect.tensor, instance, effect.allocate))
    live, told = {}, []
    for time, _, _, tensor, instance, allocate in sorted(rows, key=lambda row: row[:3]):
        if allocate:
            live[tensor, instance] = -(-TENSORS[tensor].bytes // 512) * 512
        else:
            del live[tensor, instance]
        told.append((max(time, 0.0), sum(live.values()), dict(live)))
    return told


@given(programs())
@settings(max_examples=150, deadline=None)
def test_laws_of_the_ledger(program):
    trace = run(program)
    memory = measure(program, trace, 0)
    told = plain(program, trace)
    assert memory.times.tolist() == [time for time, _, _ in told]
    assert memory.level.tolist() == [level for _, level, _ in told]
    assert (memory.level >= 0).all()
    assert memory.peak == max((level for _, level, _ in told), default=0)
    assert sum(memory.at_peak.values()) == memory.peak
    assert sum(memory.levels.values(), start=np.zeros(len(told), dtype=np.int64)).tolist() == memory.level.tolist()
    left = told[-1][2] if told else {}
    assert set(memory.final) == set(left)
    for row, (_, level, live) in enumerate(told):
        assert sum(memory.composition(row).values()) == level
        found = memory.live_at(row)
        assert sorted((tensor.name, instance, size) for tensor, instance, size in found) == sorted(
            (TENSORS[tensor].name, instance, size) for (tensor, instance), size in live.items()
        )


@given(programs())
@settings(max_examples=100, deadline=None)
def test_the_allocator_only_adds_slack(program):
    trace = run(program)
    bare = measure(program, trace, 0)
    exact = measure(program, trace, 0, allocator="exact")
    segments = measure(program, trace, 0, allocator="segments")
    expandable = measure(program, trace, 0, allocator="expandable")
    assert exact.level.tolist() == expandable.level.tolist() == bare.level.tolist()
    assert (segments.level >= bare.level).all()
    assert exact.peak_reserved == bare.peak
    for memory in (segments, expandable):
        assert memory.peak == memory.replay.peak_allocated
        assert memory.peak_reserved >= memory.peak
        assert sum(memory.at_peak.values()) == memory.peak
        assert memory.level.tolist() == np.cumsum(memory.replay.blocks).tolist()


def test_unsplit_slack_belongs_to_its_tensor():
    program = program_with(Tensor("w", 19 << 20, "parameters"), resident=(0,))
    memory = measure(program, run(program), 0, allocator="segments", capacity=10 << 20)
    assert memory.at_peak["parameters"] == 20 << 20
    assert memory.replay.out_of_memory == 0


def test_ranks_that_do_the_same_at_other_times_are_told_apart():
    program = Program()
    for rank, bytes_ in ((0, 3_000_000), (1, 3_000_000), (2, 4_000_000)):
        program.tensors[rank] = [Tensor("a", bytes_, "buffers"), Tensor("b", 700_000, "buffers")]
        effects = ((rank, (take(0), take(1, 0.5), drop(0, 1.0))),)
        program.add("wait", "compute", compute(rank), duration=float(rank))
        program.add("x", "compute", compute(rank), duration=2.0, effects=effects)
    trace = run(program)
    together = Ledger(program, trace)
    for rank in (0, 1, 2):
        found, alone = together.measure(rank), measure(program, trace, rank)
        assert found.rank == rank
        for name in ("times", "op", "tensor", "instance", "allocated_by", "delta", "level", "category"):
            assert getattr(found, name).tolist() == getattr(alone, name).tolist()
        assert (found.peak_time, found.peak_op, found.final) == (rank + 0.5, 2 * rank + 1, ((1, -1),))
    assert together.measure(1).delta is together.measure(0).delta
    assert together.measure(2).delta is not together.measure(1).delta
