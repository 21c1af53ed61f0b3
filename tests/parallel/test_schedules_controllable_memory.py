"""V-Half, V-Min and interleaved zero bubble: orders as their authors' programs make them, legal at every size."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import PlanError
from parsim.parallel.schedules import V_SHAPED, check, homes, peak_in_flight, schedule
from parsim.parallel.schedules.controllable_memory import v_half, v_min
from parsim.parallel.schedules.custom import from_text
from parsim.parallel.schedules.repetition import repetitions
from parsim.parallel.schedules.slot import SlotKind
from parsim.parallel.schedules.zero_bubble import interleaved_zb, zb_h1
from parsim.theory import in_flight

V = {"v-half": v_half, "v-min": v_min}
TABLES = (Path(__file__).parents[1] / "data" / "schedule-orders.txt").read_text(encoding="utf-8").split("\n## ")[1:]
ORDERS = {title: rows for title, _, rows in (table.partition("\n") for table in TABLES)}


def words(row):
    return " ".join(f"{slot.kind}{slot.micro_batch}{'' if slot.stage < 4 else 'b'}" for slot in row)


@pytest.mark.parametrize("title", ORDERS)
def test_orders_of_the_authors(title):
    name, *sizes = title.split()
    p, m = (int(size.partition("=")[2]) for size in sizes)
    assert schedule(name, p, m, 2) == from_text(ORDERS[title])


def test_all_orders_are_compared():
    assert list(ORDERS) == [f"{name} {sizes}" for sizes in ("p=4 m=8", "p=8 m=16") for name in ("v-half", "v-min", "interleaved-zb")]


def test_first_rank_of_four_with_eight_micro_batches():
    """b: the second chunk."""
    assert words(v_half(4, 8)[0]) == (
        "F0 F1 F2 F3 F4 F0b I0b W0b F1b I1b W1b F2b I0 I2b W2b F3b W0 F5 I1 I3b W3b F4b W1 F6 I2 I4b W4b F5b W2 F7 I3 I5b W5b F6b I6b W6b "
        "I4 W3 W4 F7b I7b I5 W7b I6 W5 W6 I7 W7"
    )
    assert words(v_min(4, 8)[0]) == (
        "F0 F1 F2 F0b I0b W0b F1b I1b W1b I0 W0 F3 F2b I2b I1 W2b W1 F4 F3b I3b I2 W3b W2 F5 F4b I4b I3 W4b W3 F6 F5b I5b I4 W5b W4 "
        "F7 F6b I6b I5 W6b W5 F7b I7b I6 W7b W6 I7 W7"
    )
    assert words(interleaved_zb(4, 8, 2)[0]) == (
        "F0 F1 F2 F3 F0b F1b F2b F3b I0b W0b F4 I1b W1b F5 I2b W2b F6 I3b W3b F7 I0 W0 F4b I1 W1 F5b I2 W2 F6b I3 W3 F7b "
        "I4b W4b I5b W5b I6b W6b I7b W7b I4 W4 I5 W5 I6 W6 I7 W7"
    )


@pytest.mark.parametrize("name", V)
def test_two_stages_in_a_v(name):
    assert homes(schedule(name, 3, 4, 2)) == (0, 1, 2, 2, 1, 0)


@pytest.mark.parametrize(
    ("name", "v", "peaks"), [("v-half", 2, (6, 10)), ("v-min", 2, (4, 8)), ("interleaved-zb", 2, (8, 16)), ("interleaved-zb", 4, (16, 32))]
)
def test_in_flight(name, v, peaks):
    """Chunks of 1/v of a rank, for 4 ranks with 8 micro-batches and 8 with 16; ZB-V holds 8 and 16 halves."""
    assert tuple(max(peak_in_flight(schedule(name, p, m, v))) for p, m in ((4, 8), (8, 16))) == peaks


def test_the_first_of_eight_ranks_holds_less_under_v_min():
    assert peak_in_flight(v_min(8, 16)) == [7, *[8] * 7]


@given(st.sampled_from(sorted(V)), st.integers(1, 10), st.integers(1, 40))
def test_legal_at_every_size(name, p, m):
    rows = schedule(name, p, m, 2)
    assert check(rows, homes(rows), m) == []
    assert [len(row) for row in rows] == [6 * m] * p
    for row in rows:
        for stage in {slot.stage for slot in row}:
            for kind in (SlotKind.FORWARD, SlotKind.BACKWARD_INPUT, SlotKind.BACKWARD_WEIGHT):
                assert [slot.micro_batch for slot in row if slot[:2] == (kind, stage)] == list(range(m))


@given(st.sampled_from([name for name in V_SHAPED if name != "dualpipev"]), st.integers(1, 16), st.integers(0, 40))
def test_in_flight_is_as_theory_says(name, p, extra):
    m = p + extra if name == "v-min" else 1 + extra
    assert peak_in_flight(schedule(name, p, m, 2)) == [in_flight(name, p, m, s) for s in range(p)]


def test_v_min_has_no_formula_for_few_micro_batches():
    with pytest.raises(KeyError):
        in_flight("v-min", 5, 4, 0)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(2, 4))
def test_interleaved_zero_bubble_goes_round_in_equal_groups(p, m, v):
    rounds = max(1, m // p)
    if m % rounds:
        with pytest.raises(PlanError, match=rf"but {m} in {rounds} groups leave {m % rounds}"):
            schedule("interleaved-zb", p, m, v)
        return
    rows = schedule("interleaved-zb", p, m, v)
    assert check(rows, tuple(range(p)) * v, m) == []
    assert [len(row) for row in rows] == [3 * m * v] * p
    assert peak_in_flight(rows) == [in_flight("interleaved-zb", p, m, s, v) for s in range(p)]
    assert set(peak_in_flight(rows)) == {min(m * v, (v - 1) * m // rounds + p)}


@given(st.integers(1, 8), st.integers(1, 20))
def test_interleaved_zero_bubble_of_one_chunk_would_be_zb_h1(p, m):
    if m % max(1, m // p) == 0:
        assert interleaved_zb(p, m, 1) == zb_h1(p, m)


def test_the_nearest_legal_counts_are_offered():
    with pytest.raises(PlanError) as caught:
        schedule("interleaved-zb", 4, 11, 3)
    (finding,) = caught.value.findings
    assert finding.path == "parallel.pipeline.schedule"
    assert finding.message == "interleaved-zb needs micro-batches in equal groups of at least 4, but 11 in 2 groups leave 1"
    assert finding.suggestion == "use 10 or 12 micro-batches, or schedule zb-h1"


@pytest.mark.parametrize("name", V)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 8, 9])
def test_longer_steps_are_shorter_ones_with_more_periods(name, p):
    """What a step of few micro-batches says about a long one: the same cuts make it any number of micro-batches longer."""
    for rest in (0, p - 1):
        short = 5 * p + rest
        rows, longer, far = (schedule(name, p, m, 2) for m in (short, short + 2 * p, short + 12 * p))
        found = repetitions(rows, longer)
        assert found
        assert repetitions(rows, far).items() >= found.items()
