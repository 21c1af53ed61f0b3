"""Schedules whose passes run side by side or enter from both ends: orders as their authors' programs make them, times as published."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.parallel.schedules import check, directions, homes, overlapped, peak_in_flight, schedule
from parsim.parallel.schedules.bidirectional import pairs_of_ranks
from parsim.parallel.schedules.custom import read_table
from parsim.study.schedule import simulate
from parsim.study.schedule_inputs import entries, times
from parsim.theory import in_flight

TABLES = (Path(__file__).parents[1] / "data" / "overlapped-orders.txt").read_text(encoding="utf-8").split("\n## ")[1:]
ORDERS = {title: rows for title, _, rows in (table.partition("\n") for table in TABLES)}


def lab(name, p, m, v=1, passes="F=1,I=1,W=1", **options):
    (result,) = simulate(entries([name], p, m, [v]), times(passes, **options))
    return result


@pytest.mark.parametrize("title", ORDERS)
def test_orders_of_the_authors(title):
    name, *sizes = title.split()
    p, m = (int(size.partition("=")[2]) for size in sizes)
    table = read_table(ORDERS[title])
    v = 1 if name in ("dualpipe", "chimera") else 2
    assert schedule(name, p, m, v) == table.rows
    assert overlapped(name, p, m, v) == table.overlapped


def test_all_orders_are_compared():
    pairs = [f"{name} {sizes}" for sizes in ("p=4 m=8", "p=8 m=16") for name in ("dualpipev", "dualpipe", "combined-1f1b")]
    assert list(ORDERS) == [*pairs, "chimera p=4 m=8", "chimera p=4 m=16", "chimera p=8 m=16"]


@pytest.mark.parametrize(
    ("name", "v", "p", "m", "makespans"),
    [
        ("dualpipe", 1, 4, 8, (26, 24, 22)),
        ("dualpipe", 1, 8, 16, (54, 49, 44)),
        ("dualpipe", 1, 8, 20, (66, 59, 52)),
        ("dualpipev", 2, 4, 8, (27, 24.5, 22)),
        ("dualpipev", 2, 8, 16, (55, 49.5, 44)),
        ("combined-1f1b", 2, 4, 8, (28.5, 25.75, 23)),
        ("combined-1f1b", 2, 8, 16, (58.5, 52.75, 47)),
    ],
)
def test_makespans_of_pairs_that_gain_nothing_a_sixth_and_a_third(name, v, p, m, makespans):
    results = [lab(name, p, m, v, f"F=1,I=1,W=1,FB={pair}") for pair in (3, 2.5, 2)]
    assert tuple(result.makespan for result in results) == makespans
    assert all(result.makespan == pytest.approx(result.closed.makespan, rel=1e-12) for result in results)
    assert results[0].bubble_fraction == pytest.approx(results[0].closed.bubble, abs=1e-12)


def test_combined_1f1b_of_one_rank_and_pairs_of_which_nothing_is_said():
    assert lab("dualpipe", 4, 16).makespan == 50  # without FB a slot takes the sum
    assert lab("combined-1f1b", 1, 8, passes="F=1,B=2,FB=2.4").makespan == pytest.approx(19.8)
    assert [rank.in_flight for rank in lab("combined-1f1b", 1, 8, passes="F=1,B=2").ranks] == [2]


@pytest.mark.parametrize(
    ("name", "v", "p", "m", "chunks"),
    [
        ("dualpipe", 1, 4, 8, [5] * 4),
        ("dualpipe", 1, 8, 16, [9] * 8),
        ("dualpipev", 2, 4, 8, [9] * 4),
        ("dualpipev", 2, 8, 16, [17] * 8),
        ("combined-1f1b", 2, 4, 8, [12, 10, 8, 6]),
        ("combined-1f1b", 2, 8, 16, [24, 22, 20, 18, 16, 14, 12, 10]),
        ("chimera", 1, 4, 4, [3, 4, 4, 3]),
        ("chimera", 1, 8, 8, [5, 6, 7, 8, 8, 7, 6, 5]),
        ("chimera", 1, 8, 32, [5, 6, 7, 8, 8, 7, 6, 5]),
        ("chimera", 1, 8, 4, [3, 4, 4, 4, 4, 4, 4, 3]),
    ],
)
def test_in_flight(name, v, p, m, chunks):
    result = lab(name, p, m, v)
    assert [rank.in_flight_chunks for rank in result.ranks] == chunks
    assert [rank.in_flight for rank in result.ranks] == [count / v for count in chunks]


@pytest.mark.parametrize(("p", "makespan"), [(4, 16), (6, 26), (8, 36)])
def test_chimera(p, makespan):
    result = lab("chimera", p, p)
    assert (result.makespan, result.closed.makespan) == (makespan, makespan)
    assert makespan == 3 * p + 2 * (p - 2)
    assert homes(result.entry.rows) == (*range(p), *reversed(range(p)))
    assert list(pairs_of_ranks(4)) == [(0, 3), (1, 2)]


@pytest.mark.parametrize(("p", "units", "makespan"), [(4, 2, 30), (4, 3, 44), (8, 2, 66), (8, 4, 126)])
def test_chimera_in_units(p, units, makespan):
    """Direct concatenation (section 3.4): with F = B no bubbles between units, 2 m + p - 2; with B = 2 F a unit adds 4 p - 2."""
    result = lab("chimera", p, units * p)
    assert (result.makespan, result.closed.makespan) == (makespan, makespan)
    assert makespan == 3 * p + 2 * (p - 2) + (units - 1) * (4 * p - 2)
    even = lab("chimera", p, units * p, passes="F=1,I=0.5,W=0.5")
    assert even.makespan == even.closed.makespan == 2 * units * p + p - 2


def test_chimera_of_any_even_count():
    """What is left of a unit is the last one; fewer micro-batches than ranks are one unit, each half of them 1F1B."""
    for p, m in ((4, 2), (4, 6), (8, 12)):
        result = lab("chimera", p, m)
        assert check(result.entry.rows, homes(result.entry.rows), m, frozenset(), directions("chimera")) == []
        assert result.closed is None
    assert lab("chimera", 4, 2).makespan == 4 * 3  # one micro-batch each way, and nothing waits for the other


seconds = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0])


@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(0, 3), st.integers(2, 3), seconds, seconds, st.sampled_from([0, 0.25, 0.5, 1]))
def test_closed_forms_at_every_size(half, more, v, f, b, gain):
    """Orders are legal, and makespans and what is in flight as the formulas say, which hold for F = I = W or for any times."""
    p = 2 * half
    cases = [
        ("dualpipe", p, 2 * p + 2 * more, 1, f, 2 * f),
        ("dualpipev", half, 2 * half + more, 2, f, 2 * f),
        ("combined-1f1b", half, half * (more + 1), v, f, b),
        ("chimera", p, p * (more + 1), 1, f, b),
    ]
    for name, ranks, m, chunks, forward, backward in cases:
        pair = max(forward, backward) + gain * min(forward, backward)
        result = lab(name, ranks, m, chunks, f"F={forward},I={backward / 2},W={backward / 2},FB={pair}")
        rows, pairs = result.entry.rows, result.entry.overlapped
        assert check(rows, homes(rows), m, pairs, directions(name)) == []
        assert peak_in_flight(rows) == [in_flight(name, ranks, m, rank, chunks) for rank in range(ranks)]
        assert result.makespan == pytest.approx(result.closed.makespan, rel=1e-12)


def test_both_directions_must_be_whole():
    rows = schedule("dualpipe", 4, 8)
    less = (tuple(slot for slot in rows[0] if slot != ("F", 7, 5)), *rows[1:])
    (finding,) = check(less, homes(rows), 8, frozenset(), 2)
    assert finding.message == "F7.5 is missing"


def test_blocking_messages_are_refused():
    for name, m, words in (("dualpipe", 8, "overlap a forward"), ("chimera", 4, "sends both ways at once: not supported yet")):
        with pytest.raises(Exception, match=words):
            lab(name, 4, m, overlap=False)
