"""Every rule of a legal program, broken once."""

from __future__ import annotations

import pytest

from parsim.program.check import check
from parsim.program.program import Collective, Effect, Lane, Program, Tensor

COMPUTE = Lane(0, "compute")
TABLE = [Tensor("weights", 8, "parameters"), Tensor("saved", 4, "activations", per_micro_batch=True)]


def memory(*effects):
    return ((0, tuple(Effect(*effect) for effect in effects)),)


def with_memory(*ops):
    """One op per entry: (instance, effects); one second each, in one lane."""
    program = Program(tensors={0: TABLE}, resident={0: (0,)})
    for instance, effects in ops:
        program.add("op", "compute", (COMPUTE,), duration=1.0, effects=memory(*effects), instance=instance)
    return program


def messages(program):
    return [finding.message for finding in check(program)]


def test_a_legal_program():
    program = with_memory((0, [(0.0, 1, True)]), (1, [(0.0, 1, True)]), (0, [(1.0, 1, False)]), (1, [(1.0, 1, False)]))
    assert check(program) == []
    assert check(Program()) == []


def test_a_tensor_may_live_again():
    assert check(with_memory((0, [(0.0, 1, True), (0.5, 1, False)]), (0, [(0.0, 1, True)]), (-1, [(0.0, 0, False), (1.0, 0, True)]))) == []


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ([(0, [(0.0, 1, True)]), (0, [(0.0, 1, False)]), (0, [(0.0, 1, False)])], "op 2 (op of micro-batch 0): frees what does not exist"),
        ([(0, [(0.0, 1, True)]), (1, [(0.0, 1, False)])], "op 1 (op of micro-batch 1): frees what does not exist"),
        ([(0, [(0.0, 0, True)])], "allocates what already exists: weights on rank 0"),
        ([(0, [(0.5, 1, True), (0.25, 1, False)])], "frees what does not exist"),
        ([(0, [(0.0, 2, True)])], "rank 0 has no tensor 2, its table has 2"),
        ([(0, [(1.5, 1, True)])], "1.5 s after the start of an op of 1.0 s"),
        ([(0, [(-0.5, 1, True)])], "-0.5 s after the start"),
        ([(0, [(float("nan"), 1, True)])], "nan s after the start"),
    ],
)
def test_lives_of_tensors(ops, words):
    assert any(words in message for message in messages(with_memory(*ops)))


def test_order_of_effects_follows_dependencies_not_indices():
    program = Program(tensors={0: TABLE})
    last = program.add("free", "compute", (Lane(0, "a"),), effects=memory((0.0, 1, False)))
    first = program.add("make", "compute", (Lane(0, "b"),), effects=memory((0.0, 1, True)))
    program.block(first.index, last.index)
    assert check(program) == []


def test_an_effect_at_the_end_of_a_collective():
    program = Program(tensors={0: TABLE})
    receive = Collective("send", "pipeline", (1, 0), 8)
    lanes = (Lane(1, "send"), Lane(0, "receive"))
    program.add("send", "pipeline_comm", lanes, collective=receive, effects=memory((0.0, 1, True), (float("inf"), 1, False)))
    assert check(program) == []
    program.add("compute", "compute", (COMPUTE,), duration=1.0, effects=memory((0.0, 1, True), (float("inf"), 1, False)))
    assert "inf s after the start of an op of 1.0 s" in messages(program)[0]


def test_a_circle_is_named():
    program = Program()
    first = program.add("one", "compute", (Lane(0, "compute"),))
    second = program.add("two", "compute", (Lane(1, "compute"),), (first,))
    program.add("three", "compute", (Lane(2, "compute"),), (second,))
    program.block(second.index, first.index)
    (finding,) = check(program)
    assert finding.message in ("2 ops wait for each other: 0 one -> 1 two -> 0 one", "2 ops wait for each other: 1 two -> 0 one -> 1 two")


def test_blockers_and_lanes():
    program = Program()
    first = program.add("one", "compute", (COMPUTE,))
    program.add("two", "compute", (COMPUTE,))
    program.blockers[1] = 2
    assert messages(program) == ["op 1 (two of micro-batch 0): 2 blockers are counted, but 1 ops point here"]
    program.blockers[1] = 0
    program.successors[first.index] = ()
    assert messages(program) == ["op 1 (two of micro-batch 0): does not follow op 0 in lane 0:compute"]
    program.blockers.append(0)
    assert messages(program) == ["2 ops, but 3 blocker counts"]


@pytest.mark.parametrize("duration", [-1.0, float("nan"), float("inf")])
def test_durations(duration):
    program = Program()
    program.add("one", "compute", (COMPUTE,), duration=duration)
    assert "its duration is" in messages(program)[0]


@pytest.mark.parametrize(
    ("collective", "ranks", "words"),
    [
        (Collective("all_reduce", "data", (0, 1), 8), (0, 1), None),
        (Collective("all_reduce", "data", (0, 1, 2, 3), 8), (0,), None),
        (Collective("all_reduce", "data", (0, 1), 8), (0, 2), "lanes of rank 2, which is not a member"),
        (Collective("all_reduce", "data", (0, 0), 8), (0,), "not distinct"),
        (Collective("all_reduce", "data", (0, 1), -8), (0, 1), "moves -8 B"),
        (Collective("gossip", "data", (0, 1), 8), (0, 1), "'gossip' is not a collective"),
        (Collective("send", "pipeline", (0, 1), 8), (0, 1), None),
        (Collective("send", "pipeline", (0, 1), 8), (0,), "a send needs lanes of its two ranks"),
        (Collective("send", "pipeline", (0, 1, 2), 8), (0, 1), "a send needs lanes of its two ranks"),
    ],
)
def test_collectives(collective, ranks, words):
    program = Program()
    program.add("move", "data_comm", tuple(Lane(rank, "data") for rank in ranks), collective=collective)
    found = messages(program)
    assert found == [] if words is None else any(words in message for message in found)


@pytest.mark.parametrize(
    ("rows", "words"), [((0, 5), "resident tensor 5 is not in its table of 2"), ((1,), "cannot be resident"), ((0, 0), "resident twice")]
)
def test_residents(rows, words):
    program = Program(tensors={0: TABLE}, resident={0: rows})
    assert any(words in message for message in messages(program))
