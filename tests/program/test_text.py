"""A program and its text are inverse, to the last bit; what cannot be read is refused with its line."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import PlanError
from parsim.parallel.schedules import BIDIRECTIONAL, INTERLEAVED, NAMES, OVERLAPPING, SPLIT, chunks, schedule
from parsim.program.program import Collective, Effect, Lane, Program, Tensor
from parsim.program.text import HEADER, from_text, grid, ranges, to_text
from parsim.program.unit_times import unit_program
from parsim.simulation.engine import Engine

PLAIN = [name for name in NAMES if name not in (*OVERLAPPING, *BIDIRECTIONAL)]
"""schedules of any size, without passes side by side"""


class NoWire:
    """Unit programs have no collectives, so nobody asks."""

    def cost(self, collective):
        raise AssertionError(collective)

    def capacity(self, link):
        raise AssertionError(link)


def content(program):
    """Everything that a program is, as plain values; `after` in its order."""
    ops = [
        (op.index, op.name, op.kind, op.lanes, op.duration, op.collective, op.effects, op.instance, [other.index for other in op.after])
        for op in program.ops
    ]
    slots = {rank: [tuple(slot) for slot in row] for rank, row in program.slots.items()}
    tails = {lane: program.last(lane).index for op in program.ops for lane in op.lanes}
    return ops, list(program.blockers), dict(program.tensors), dict(program.resident), slots, tails


words = st.text(max_size=8) | st.sampled_from(["F L3 attention", 'a "quoted" name', "a,b:c;d=e", "back\\slash", "two\nlines", "0-7", "#1"])
numbers = st.floats(0, 1e6, allow_nan=False) | st.sampled_from([0.0, 0.1, 1 / 3, 5e-324])
ranks = st.integers(0, 9)
lanes = st.lists(st.builds(Lane, ranks, st.sampled_from(["compute", "data", "send 3", ""])), max_size=3, unique=True).map(tuple)
effects = st.lists(
    st.tuples(ranks, st.lists(st.builds(Effect, numbers, st.integers(0, 5), st.booleans()), max_size=3).map(tuple)), max_size=2
).map(tuple)
groups = st.lists(st.integers(0, 100), min_size=1, max_size=6, unique=True).map(tuple) | st.builds(
    lambda first, step, count: tuple(range(first, first + step * count, step)), ranks, st.integers(1, 9), st.integers(1, 20)
)
collectives = st.none() | st.builds(Collective, words, words, groups, st.integers(0, 2**50))
tables = st.dictionaries(ranks, st.lists(st.builds(Tensor, words, st.integers(0, 2**40), words, st.booleans()), max_size=3), max_size=3)
slots = st.tuples(st.sampled_from("FBIW"), st.integers(0, 9), st.integers(0, 99))


@st.composite
def programs(draw):
    program = Program(
        tensors=draw(tables),
        resident=draw(st.dictionaries(ranks, st.lists(st.integers(0, 9), max_size=5).map(tuple), max_size=2)),
        slots=draw(st.dictionaries(ranks, st.lists(slots, max_size=5), max_size=2)),
    )
    for _ in range(draw(st.integers(0, 12))):
        needs = draw(st.lists(st.sampled_from(program.ops), max_size=3)) if program.ops else []
        arguments = [draw(kind) for kind in (words, words, lanes)]
        rest = [draw(kind) for kind in (numbers, collectives, effects, st.integers(-1, 99))]
        program.add(*arguments, needs, *rest)
        if draw(st.booleans()):
            program.block(draw(st.sampled_from(program.ops)).index, draw(st.sampled_from(program.ops)).index)
    return program


@settings(max_examples=40)
@given(programs())
def test_text_both_ways(program):
    text = to_text(program)
    again = from_text(text)
    assert content(again) == content(program)
    assert to_text(again) == text


@given(st.sampled_from(PLAIN), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_a_program_read_back_runs_the_same(name, p, rounds, v, overlap):
    rows = schedule(name, p, p * rounds, max(v, 1 + (name in SPLIT)) if name in INTERLEAVED else chunks(name))
    program = unit_program(rows, 1 / 3, 0.7, weight=0.3 if name in SPLIT else None, latency=0.1, overlap_sends=overlap, activation=7)
    first, second = (Engine(each, NoWire()).run() for each in (program, from_text(to_text(program))))
    assert list(first.start) == list(second.start)
    assert list(first.end) == list(second.end)


def test_one_op_per_line():
    program = Program(tensors={0: [Tensor("activations F0", 1024, "activations", per_micro_batch=True)]}, resident={0: ()})
    first = program.add("F0.0", "compute", (Lane(0, "compute"),), duration=0.0015, effects=((0, (Effect(0.0, 0, allocate=True),)),))
    gather = Collective("all_gather", "data", (*range(0, 64, 8), 3), 4096)
    program.add("all_gather unit 1", "data_comm", (Lane(0, "data"), Lane(8, "data")), (first,), collective=gather, instance=-1)
    program.add("B0.0", "compute", (Lane(0, "compute"),), (first, program.ops[1]), 0.003)
    assert to_text(program) == (
        f"{HEADER}\n"
        "tensors 0 1\n"
        'tensor 0.0 "activations F0" activations 1024 per_micro_batch\n'
        "resident 0\n"
        "op 0 F0.0 compute lanes=0:compute time=0.0015 memory=0:+0@0.0\n"
        'op 1 "all_gather unit 1" data_comm lanes=0:data,8:data needs=0 micro_batch=-1 moves=all_gather:data:0-56/8,3:4096\n'
        "op 2 B0.0 compute lanes=0:compute needs=1 time=0.003\n"
    )


def test_equal_collectives_and_effects_are_shared_after_reading():
    lines = [HEADER, *(f"op {i} AR data_comm lanes=0:data moves=all_reduce:data:0-7:64 memory=0:+0@0.0" for i in range(2))]
    first, second = from_text("\n".join(lines)).ops
    assert first.collective is second.collective
    assert first.effects is second.effects
    assert first.lanes is second.lanes


@given(
    st.lists(st.integers(0, 60), max_size=12)
    | st.builds(lambda a, b, c: list(range(a, b, c)), ranks, st.integers(0, 99), st.integers(1, 9))
)
def test_ranges_keep_order(values):
    program = Program(resident={0: tuple(values)})
    assert from_text(to_text(program)).resident == {0: tuple(values)}
    assert ranges(values).count(",") < max(len(values), 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("op 1 F0.0 compute", "op 1 is out of order, 0 was expected"),
        ("op 0 F0.0 compute colour=red", "unknown fields colour"),
        ("op 0 F0.0 compute red", "not key=value"),
        ("op 0 F0.0 compute needs=3", "cannot be read"),
        ("op 0 F0.0 compute memory=0:3@0.0", "is not an effect"),
        ("op 0 F0.0 compute moves=send:0,1:3", "cannot be read"),
        ("op 0 F0.0 compute time=fast", "could not convert"),
        ('op 0 "F0.0 compute', "Unterminated string"),
        ('op 0 F0.0 compute "', "not key=value"),
        ("slots 0 F0.0 X", "'X' is not a slot"),
        ("tensor 0.0 a b 1", "cannot be read"),
        ("tensors 0 1\ntensor 0.1 a b 1", "tensor 0.1 is out of order"),
        ("op 0 A compute\nafter 0 0", "after 0 does not list"),
        ("what is this", "unknown line 'what is this'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(line, words):
    with pytest.raises(PlanError, match="program text:") as caught:
        from_text(f"{HEADER}\n# comment\n\n{line}")
    assert words in str(caught.value)
    assert caught.value.findings[0].line == 4 + line.count("\n")


@given(st.text(alphabet='op 01F.,:;"=@+-\nlanes'))
def test_noise_is_refused_or_read(text):
    with suppress(PlanError):
        from_text(f"{HEADER}\n{text}")


def test_a_text_says_what_it_is():
    with pytest.raises(PlanError, match="first line is not"):
        from_text("op 0 F0.0 compute")
    assert content(from_text(HEADER)) == content(Program())


def test_grid():
    program = unit_program(schedule("1f1b", 2, 2), 1, 2)
    assert grid(program).splitlines()[:2] == ["rank 0 compute | F0.0 F0.1 B0.0 B0.1", "rank 0 send 0  | send_F0.0 send_B1.0"]
    times = Engine(program, NoWire()).run()
    assert grid(program, times).splitlines()[0] == "rank 0 compute | F0.0@0-1 F0.1@1-2 B0.0@4-6 B0.1@7-9"
    assert "F0.1!" in grid(program, blocked={1})
    assert grid(Program()) == ""


def test_grid_names_the_micro_batch_of_shared_names():
    program = Program()
    program.add("F L3", "compute", (Lane(0, "compute"),), instance=2)
    program.add("step", "optimizer", (Lane(0, "compute"),), instance=-1)
    assert grid(program) == "rank 0 compute | F_L3#2 step"
