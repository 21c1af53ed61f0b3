"""Named schedules: their orders as published, their laws, and the rules they state."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import PlanError
from parsim.parallel.schedules import (
    BIDIRECTIONAL,
    INTERLEAVED,
    NAMES,
    OVERLAPPING,
    SPLIT,
    Slot,
    check,
    chunks,
    homes,
    peak_in_flight,
    schedule,
    to_text,
)
from parsim.parallel.schedules.classic import endless, pipedream, staleness, weight_versions
from parsim.theory import in_flight, pipedream_staleness, pipedream_versions

sizes = st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(1, 4))

PLAIN = [name for name in NAMES if name not in (*OVERLAPPING, *BIDIRECTIONAL)]
"""schedules of any size, without passes side by side"""


def words(row: tuple[Slot, ...], stages: int | None = None) -> str:
    """Papers' notation: F3 is micro-batch 3; with chunks F3a is micro-batch 3 on chunk a."""
    return " ".join(f"{s.kind}{s.micro_batch}" + ("" if stages is None else "abcd"[s.stage // stages]) for s in row)


def test_one_f_one_b_order():
    rows = schedule("1f1b", 4, 8)
    assert words(rows[0]) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"
    assert words(rows[3]) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"


def test_interleaved_order():
    rows = schedule("interleaved", 4, 8, 2)
    assert words(rows[0], 4) == (
        "F0a F1a F2a F3a F0b F1b F2b F3b F4a F5a F6a B0b F7a B1b F4b B2b F5b B3b F6b B0a F7b B1a B2a B3a B4b B5b B6b B7b B4a B5a B6a B7a"
    )
    assert words(rows[3], 4) == (
        "F0a F1a F2a F3a F0b B0b F1b B1b F2b B2b F3b B3b F4a B0a F5a B1a F6a B2a F7a B3a F4b B4b F5b B5b F6b B6b F7b B7b B4a B5a B6a B7a"
    )


def test_looped_breadth_first_order():
    """As ScheduleLoopedBFS of torch.distributed.pipelining: micro-batches ascend in forwards and descend in backwards."""
    assert to_text(schedule("looped-bfs", 2, 3, 2)) == (
        "F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 B2.2 B2.1 B2.0 B0.2 B0.1 B0.0\nF1.0 F1.1 F1.2 F3.0 F3.1 F3.2 B3.2 B3.1 B3.0 B1.2 B1.1 B1.0"
    )


def test_gpipe_and_naive_order():
    assert to_text(schedule("gpipe", 2, 3)) == "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2\nF1.0 F1.1 F1.2 B1.0 B1.1 B1.2"
    assert to_text(schedule("naive", 2, 2)) == "F0.0 B0.0 F0.1 B0.1\nF1.0 B1.0 F1.1 B1.1"


@pytest.mark.parametrize(
    ("name", "virtual", "peaks"),
    [
        ("naive", 1, [1, 1, 1, 1]),
        ("gpipe", 1, [8, 8, 8, 8]),
        ("1f1b", 1, [4, 3, 2, 1]),
        ("pipedream", 1, [4, 3, 2, 1]),
        ("interleaved", 2, [11, 9, 7, 5]),
        ("interleaved", 4, [19, 17, 15, 13]),
        ("looped-bfs", 2, [16, 16, 16, 16]),
    ],
)
def test_peak_in_flight(name, virtual, peaks):
    assert peak_in_flight(schedule(name, 4, 8, virtual)) == peaks


@given(sizes, st.sampled_from(PLAIN))
def test_every_schedule_is_legal_and_as_theory_says(size, name):
    p, rounds, v = size
    m = p * rounds
    v = max(v, 1 + (name in SPLIT)) if name in INTERLEAVED else chunks(name)
    rows = schedule(name, p, m, v)
    assert check(rows, homes(rows), m) == []
    assert [len(row) for row in rows] == [(3 if name in SPLIT else 2) * m * v] * p
    assert peak_in_flight(rows) == [in_flight(name, p, m, s, v) for s in range(p)]


@given(st.integers(1, 8), st.integers(1, 4))
def test_interleaved_with_one_chunk_is_one_f_one_b(p, rounds):
    assert schedule("interleaved", p, p * rounds, 1) == schedule("1f1b", p, p * rounds)


@given(st.integers(1, 8), st.integers(0, 20))
def test_pipedream_order_is_one_f_one_b_without_a_flush(p, extra):
    m = p + extra
    assert pipedream(p, m) == schedule("1f1b", p, m)
    longer = pipedream(p, m + 1)
    assert tuple(tuple(slot for slot in row if slot.micro_batch < m) for row in longer) == pipedream(p, m)
    for rank, row in enumerate(longer):
        ahead = list(islice(endless(rank, p), 2 * m + 1 - (p - 1 - rank)))
        assert ahead == list(row[: len(ahead)])


@given(st.integers(1, 8), st.integers(0, 12))
def test_pipedream_versions_and_staleness(p, extra):
    rows = schedule("pipedream", p, 2 * p + extra)
    for s, row in enumerate(rows):
        assert weight_versions(row) == pipedream_versions(p, s)
        assert set(staleness(row)[p:]) == {pipedream_staleness(p, s)}


def test_pipedream_four_stages():
    rows = schedule("pipedream", 4, 8)
    assert [weight_versions(row) for row in rows] == [4, 3, 2, 1]
    assert [staleness(row)[-1] for row in rows] == [3, 2, 1, 0]


def test_homes():
    assert homes(schedule("1f1b", 4, 8)) == (0, 1, 2, 3)
    assert homes(schedule("interleaved", 2, 4, 3)) == (0, 1, 0, 1, 0, 1)
    assert homes(schedule("zb-v", 3, 4, 2)) == (0, 1, 2, 2, 1, 0)


def test_aliases_and_spelling():
    assert schedule("PipeDream-Flush", 4, 8) == schedule("1F1B", 4, 8)
    assert schedule("interleaved_zero_bubble", 4, 8, 2) == schedule("interleaved-zb", 4, 8, 2)
    assert schedule("V_Half", 4, 8, 2) == schedule("v-half", 4, 8, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("interleaved", 4, 6, 2), "6 % 4 = 2"),
        (("pipedream", 4, 3), "3 < 4"),
        (("1f1b", 4, 8, 2), "virtual_stages = 2"),
        (("1f1b", 0, 8), "0 pipeline stages"),
        (("gpipe", 4, 0), "0 micro-batches"),
        (("interleaved", 4, 8, 0), "0 virtual stages"),
        (("zb_v", 4, 8), "zb-v runs 2 stages per rank, but virtual_stages = 1"),
        (("zb-h1", 4, 8, 2), "zb-h1 runs one stage per rank, but virtual_stages = 2"),
        (("v-half", 4, 8), "v-half runs 2 stages per rank, but virtual_stages = 1; use schedule interleaved, or virtual_stages: 2"),
        (("v-min", 4, 8, 3), "v-min runs 2 stages per rank, but virtual_stages = 3; use schedule interleaved, or virtual_stages: 2"),
        (
            ("interleaved-zb", 4, 8),
            "interleaved-zb needs at least 2 stages per rank, but virtual_stages = 1; use virtual_stages: 2 or more",
        ),
        (("interleaved-zb", 4, 9, 2), "9 in 2 groups leave 1; use 8 or 10 micro-batches"),
        (("dualpipe", 4, 6), "m >= 2 p), but 6 < 2 x 4; use at least 8 micro-batches, or schedule zb-h1"),
        (("dualpipe", 3, 9), "3 ranks cannot be halved; use 4 ranks"),
        (("dualpipev", 4, 7, 2), "m >= 2 p), but 7 < 2 x 4; use at least 8 micro-batches, or schedule zb-v"),
        (("dualpipev", 4, 8), "dualpipev runs 2 stages per rank, but virtual_stages = 1"),
        (("combined-1f1b", 4, 8), "at least 2 stages per rank where there are several ranks, but virtual_stages = 1 on 4 ranks"),
        (("combined-1f1b", 4, 6, 2), "6 % 4 = 2"),
        (("chimera", 4, 9), "9 micro-batches cannot be halved; use 10 micro-batches"),
        (("chimera", 3, 3), "3 micro-batches cannot be halved; use 4 micro-batches"),
        (("pipedream-2bw", 4, 3), "3 < 4"),
        (("hanayo", 4, 8), "not supported yet"),
        (("1f2b", 4, 8), "did you mean 1f1b?"),
        (("custom", 4, 8), "path of a schedule file"),
    ],
)
def test_rules_are_stated_with_their_arithmetic(arguments, words):
    with pytest.raises(PlanError) as caught:
        schedule(*arguments)
    assert words in str(caught.value)
    assert all(finding.path and finding.message for finding in caught.value.findings)


def test_interleaved_offers_the_nearest_legal_counts():
    with pytest.raises(PlanError, match="4 or 8 micro-batches"):
        schedule("interleaved", 4, 6, 2)
