"""Illegal schedules are named: the slot, its rank, its position and the rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.parallel.schedules import Slot, check, deadlock, schedule
from parsim.parallel.schedules.blocking import MessageExchange, blocking_order
from parsim.parallel.schedules.check import circle
from parsim.parallel.schedules.custom import from_text
from parsim.parallel.schedules.slot import run_in_order

GOOD = "F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("F0.0 F0.1 B0.0\nF1.0 B1.0 F1.1 B1.1", "B0.1 is missing (or I and W)"),
        ("F0.0 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1", "F0.1 is missing"),
        ("F0.0 F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1", "rank 0 position 1, F0.0: occurs twice, first at rank 0 position 0"),
        ("F0.0 F0.1 B0.0 B0.1 F1.1\nF1.0 B1.0 B1.1", "rank 1 position 0, F1.0: stage 1 is on rank 0"),
        ("F0.0 F0.1 B0.0 B0.1\nB1.0 F1.0 F1.1 B1.1", "rank 1 position 0, B1.0: comes before F1.0 at position 1"),
        ("F0.0 F0.1 B0.0 B0.1\nF1.0 I1.0 F1.1 B1.1", "W1.0 is missing beside I1.0"),
        ("F0.0 F0.1 B0.0 B0.1\nF1.0 W1.0 F1.1 B1.1", "I1.0 is missing beside W1.0"),
        ("F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 I1.0 F1.1 B1.1", "rank 1 position 2, I1.0: stands beside B1.0 at rank 1 position 1"),
        ("F0.0 F0.1 B0.0 B0.1\nF1.0 W1.0 I1.0 F1.1 B1.1", "rank 1 position 1, W1.0: comes before I1.0 at position 2"),
        ("F0.0 B0.0 F0.1 B0.1\nF1.1 F1.0 B1.0 B1.1", "rank 0 position 1, B0.0: deadlock: waits for B1.0, which is at rank 1 position 2"),
    ],
)
def test_the_offending_slot_is_named(text, message):
    assert check(from_text(GOOD)) == []
    assert message in [finding.message for finding in check(from_text(text))]


def test_counts_are_compared_with_the_plan():
    rows = from_text(GOOD)
    assert check(rows, placement=(0, 1), micro_batches=2) == []
    assert "F0.2 is missing" in str(check(rows, micro_batches=3)[0])
    assert "there are 1 micro-batches" in str(check(rows, micro_batches=1)[0])
    assert any("F2.0 is missing" in str(finding) for finding in check(rows, placement=(0, 1, 0)))
    assert "stage 0 is on rank 1" in str(check(rows, placement=(1, 0))[0])
    assert check(((), ()))[0].message == "the schedule has no slots"
    assert "not a kind" in check(((Slot("X", 0, 0),),))[0].message
    assert "numbered from 0" in check(((Slot("F", -1, 0),),))[0].message


def test_both_ranks_of_a_deadlock_are_named():
    rows = from_text("F0.0 B0.0 F0.1 B0.1\nF1.1 F1.0 B1.0 B1.1")
    first, second = deadlock(rows)
    assert "rank 0 position 1" in first.message
    assert second.message == "rank 1 position 0, F1.1: deadlock: waits for F0.1, which is at rank 0 position 2"


def test_a_split_backward_is_legal():
    assert check(from_text("F0.0 F0.1 I0.0 W0.0 I0.1 W0.1\nF1.0 I1.0 F1.1 I1.1 W1.0 W1.1")) == []
    assert check(from_text("F0.0 F0.1 B0.0 B0.1\nF1.0 I1.0 F1.1 I1.1 W1.0 W1.1")) == []


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_list_order_decides_whether_a_schedule_runs(first, second):
    slots = [[Slot(kind, stage, i) for kind in "FB" for i in range(4)] for stage in range(2)]
    rows = tuple(tuple(row[i] for i in order) for row, order in zip(slots, (first, second), strict=True))
    order, reached = run_in_order(rows)
    assert (reached == [8, 8]) == (len(order) == 16) == (not deadlock(rows))
    steps = blocking_order(rows)
    assert {step for step in steps if not isinstance(step, MessageExchange)} == set(order)


@given(st.sampled_from(["naive", "gpipe", "1f1b", "interleaved"]), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_blocking_messages_deliver_every_input_once(name, p, rounds, v):
    v = v if name == "interleaved" else 1
    rows = schedule(name, p, p * rounds, v)
    home = {slot: rank for rank, row in enumerate(rows) for slot in row}
    delivered: set[tuple[Slot, int]] = set()
    seen: list[Slot] = []
    for step in blocking_order(rows):
        if isinstance(step, MessageExchange):
            pairs = ((step.sender, step.receiver), (step.receiver, step.sender))
            for slot, (sender, receiver) in zip(step.slots, pairs, strict=False):
                assert home[slot] == sender
                assert slot in seen
                assert (slot, receiver) not in delivered
                delivered.add((slot, receiver))
        else:
            source = Slot(step.kind, step.stage + (-1 if step.kind == "F" else 1), step.micro_batch)
            if source in home and home[source] != home[step]:
                assert (source, home[step]) in delivered
            seen.append(step)
    assert [[slot for slot in seen if home[slot] == rank] for rank in range(p)] == [list(row) for row in rows]


def test_the_circle_of_a_deadlock():
    rows = from_text("F0.0 B0.0 F0.1 B0.1\nF1.1 F1.0 B1.0 B1.1")
    assert [(rank, position, str(slot), str(need)) for rank, position, slot, need in circle(rows)] == [
        (0, 1, "B0.0", "B1.0"),
        (1, 0, "F1.1", "F0.1"),
    ]
    assert circle(from_text(GOOD)) == []


def test_a_rank_outside_the_circle_is_left_out():
    rows = from_text("F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1\nB2.0 F2.0 F2.1 B2.1")
    assert [rank for rank, *_ in circle(rows)] == [2]


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_every_deadlock_has_a_circle(first, second):
    slots = [[Slot(kind, stage, i) for kind in "FB" for i in range(4)] for stage in range(2)]
    rows = tuple(tuple(row[i] for i in order) for row, order in zip(slots, (first, second), strict=True))
    ring = circle(rows)
    assert bool(ring) == bool(deadlock(rows))
    home = {slot: rank for rank, row in enumerate(rows) for slot in row}
    for number, (_, _, _, need) in enumerate(ring):
        assert home[need] == ring[(number + 1) % len(ring)][0]
