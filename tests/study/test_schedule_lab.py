"""`parsim schedule`: numbers of the papers, their drawings box for box, tables of the user's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.cli import execute
from parsim.errors import PlanError
from parsim.parallel.schedules import BIDIRECTIONAL, NAMES, OVERLAPPING, SPLIT, Slot, schedule
from parsim.parallel.schedules.custom import read_table
from parsim.simulation.engine import Engine
from parsim.simulation.no_interconnect import NoInterconnect
from parsim.study.schedule import ScheduleDeadlockError, simulate, stage_times
from parsim.study.schedule_inputs import LabSchedule, entries, times
from parsim.study.schedule_text import drawing, show, table_text, text, unit_of
from parsim.study.schedule_theory import largest_cycle_mean, period, step_matrix

UNITS = times()

PLAIN = [name for name in NAMES if name not in (*OVERLAPPING, *BIDIRECTIONAL)]
"""schedules of any size, without passes side by side"""


def lab(name, p=4, m=8, v=1, passes=None, **options):
    (result,) = simulate(entries([name], p, m, [v]), times(passes, **options))
    return result


SIZES = [(4, 8), (4, 4), (4, 16), (8, 16), (2, 4)]
MAKESPANS = {
    # arXiv 1811.06965 section 2.3, arXiv 2104.04473 section 2.2, SOSP 2019, arXiv 2401.10241; tF = tI = tW = 1
    ("naive", 1): [96, 48, 192, 384, 24],
    ("gpipe", 1): [33, 21, 57, 69, 15],
    ("1f1b", 1): [33, 21, 57, 69, 15],
    ("pipedream", 1): [33, 21, 57, 69, 15],
    ("interleaved", 2): [28.5, 16.5, 52.5, 58.5, 13.5],
    ("interleaved", 4): [26.25, 14.25, 50.25, 53.25, 12.75],
    ("looped-bfs", 2): [28.5, 16.5, 52.5, 58.5, 13.5],
    ("looped-bfs", 4): [26.25, 14.25, 50.25, 53.25, 12.75],
    ("zb-h1", 1): [27, 15, 51, 55, 13],
    ("zb-h2", 1): [27, None, 51, 55, 13],
    ("zb-v", 1): [25.5, 15, 49.5, 51.5, 12.5],
    # the orders of github.com/sail-sg/zero-bubble-pipeline-parallelism (arXiv 2405.15362) and of torch.distributed.pipelining
    ("v-half", 1): [26.5, 17, 50.5, 56.5, 12.5],
    ("v-min", 1): [29.5, 17.5, 53.5, 61.5, 13.5],
    ("interleaved-zb", 2): [25.5, 13.5, 49.5, 51.5, 12.5],
    ("interleaved-zb", 4): [24.75, 12.75, 48.75, 49.75, 12.25],
}
PERIODS = {"pipedream": 3, "zb-h2": 3, "zb-v": 3}
"""per micro-batch, of schedules that do not fill and drain in every step (m >= 2p - 1)"""
ROWS = [(*key, *size, value) for key, values in MAKESPANS.items() for size, value in zip(SIZES, values, strict=True) if value is not None]


@pytest.mark.parametrize(("name", "v", "p", "m", "makespan"), ROWS)
def test_makespan_period_and_bubble(name, v, p, m, makespan):
    result = lab(name, p, m, v)
    assert result.makespan == makespan
    assert result.bubble_over_ideal == pytest.approx(makespan / (3 * m) - 1, rel=1e-12)
    assert result.bubble_fraction == pytest.approx(1 - 3 * m / makespan, rel=1e-12)
    if name not in PERIODS:
        assert result.period == makespan
    elif m >= 2 * p - 1 or name == "pipedream":
        assert result.period == PERIODS[name] * m
        assert result.steady_bubble == 0


@pytest.mark.parametrize(
    ("name", "v", "fraction", "in_flight"),
    [
        ("naive", 1, 0.75, [1, 1, 1, 1]),
        ("gpipe", 1, 0.2727, [8, 8, 8, 8]),
        ("1f1b", 1, 0.2727, [4, 3, 2, 1]),
        ("pipedream", 1, 0.2727, [4, 3, 2, 1]),
        ("interleaved", 2, 0.1579, [5.5, 4.5, 3.5, 2.5]),
        ("interleaved", 4, 0.0857, [4.75, 4.25, 3.75, 3.25]),
        ("looped-bfs", 2, 0.1579, [8, 8, 8, 8]),
        ("zb-h1", 1, 0.1111, [4, 4, 4, 4]),
        ("zb-h2", 1, 0.1111, [7, 7, 7, 7]),
        ("zb-v", 1, 0.0588, [4, 4, 4, 4]),
        ("v-half", 1, 0.0943, [3, 3, 3, 3]),
        ("v-min", 1, 0.1864, [2, 2, 2, 2]),
        ("interleaved-zb", 2, 0.0588, [4, 4, 4, 4]),
        ("interleaved-zb", 4, 0.0303, [4, 4, 4, 4]),
    ],
)
def test_bubble_and_in_flight_of_four_ranks_and_eight_micro_batches(name, v, fraction, in_flight):
    result = lab(name, v=v)
    assert round(result.bubble_fraction, 4) == fraction
    assert [rank.in_flight for rank in result.ranks] == in_flight


@pytest.mark.parametrize(
    ("name", "v", "until_input"),
    [
        ("zb-h1", 1, [4, 3, 2, 1]),
        ("zb-h2", 1, [7, 5, 3, 1]),
        ("1f1b", 1, [4, 3, 2, 1]),
        ("v-half", 1, [3, 3, 3, 3]),
        ("v-min", 1, [2, 2, 2, 2]),
        ("interleaved-zb", 2, [4, 3.5, 3, 2.5]),
    ],
)
def test_in_flight_until_the_input_gradient(name, v, until_input):
    assert [rank.in_flight_until_input for rank in lab(name, v=v).ranks] == until_input


@pytest.mark.parametrize(
    ("name", "v", "ends"),
    [
        ("gpipe", 1, [33, 31, 29, 27]),
        ("1f1b", 1, [33, 31, 29, 27]),
        ("interleaved", 2, [28.5, 27.5, 26.5, 25.5]),
        ("zb-h1", 1, [27, 27, 27, 27]),
        ("zb-h2", 1, [24, 25, 26, 27]),
        ("v-half", 1, [26.5, 26, 26.5, 26.5]),
        ("v-min", 1, [29.5, 29, 28.5, 28.5]),
        ("interleaved-zb", 2, [25.5, 25.5, 25.5, 25.5]),
    ],
)
def test_ends_of_the_ranks(name, v, ends):
    assert [rank.end for rank in lab(name, v=v).ranks] == ends


@pytest.mark.parametrize(
    ("name", "v", "makespans"),
    [
        ("gpipe", 1, [33.6, 34.5, 36]),
        ("1f1b", 1, [34.6, 37, 41]),
        ("interleaved", 2, [29.9, 32, 35.5]),
        ("zb-h1", 1, [28.2, 30, 33]),
        ("zb-h2", 1, [27.3, 27.75, 28.5]),
    ],
)
def test_communication_that_holds_up_no_compute(name, v, makespans):
    found = [lab(name, v=v, communication=c).makespan for c in ("0.1", "0.25", "0.5")]
    assert found == pytest.approx(makespans, rel=1e-12)


def test_communication_limits_the_window_of_1f1b():
    assert [lab("1f1b", 4, m, communication="0.5").makespan for m in (8, 16, 32)] == [41, 71, 131]
    assert lab("pipedream", 4, 8, communication="0.5").period == 8 * 3.75


def test_blocking_messages_stand_in_both_ranks():
    result = lab("1f1b", communication="0.5", overlap=False)
    assert result.makespan == 43
    assert result.closed is None
    for rank in range(4):
        spans = [(box.start, box.end) for box in result.boxes if box.rank == rank]
        spans += {(one.start, one.end) for one in result.messages if rank in (one.sender, one.receiver)}
        assert all(end <= start for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False))


@pytest.mark.parametrize(
    ("passes", "name", "makespan"),
    [
        ("F=1:1:2:1,B=2:2:4:2", "1f1b", 55),
        ("F=1:1:2:1,B=2:2:4:2", "gpipe", 57),
        ("F=1:1:1:1.5,B=2:2:2:3", "1f1b", 45),
        ("F=1:1:1:1.5,B=2:2:2:3", "gpipe", 45),
        ("F=1,B=3", "gpipe", 44),  # full recomputation
        ("F=1,B=3", "1f1b", 44),
        ("F=1,I=1.2,W=0.8", "zb-h1", 28.2),
        ("F=1,I=1.4,W=0.6", "zb-h1", 29.4),
        ("F=1,I=0.8,W=1.2", "zb-h1", 27),
        ("F=1,I=1.2,W=0.8", "v-half", 27.9),
        ("F=1,I=1.4,W=0.6", "v-half", 29.6),
        ("F=1,I=1.2,W=0.8", "v-min", 34.4),
        ("F=1,I=1.4,W=0.6", "v-min", 39.3),
        ("F=1,I=1.2,W=0.8", "interleaved-zb", 26.1),
        ("F=1,I=1.4,W=0.6", "interleaved-zb", 26.7),
    ],
)
def test_other_times(passes, name, makespan):
    assert lab(name, v=2, passes=passes).makespan == pytest.approx(makespan, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "passes", "span"),
    [("zb-h2", "F=1,I=1.2,W=0.8", 25.8), ("zb-h2", "F=1,I=1.4,W=0.6", 27.6), ("zb-h1", "F=1,I=0.8,W=1.2", 26.4)],
)
def test_spans_of_the_zero_bubble_schedules(name, passes, span):
    """The period is the longest span of a rank."""
    result = lab(name, passes=passes)
    assert max(rank.end - rank.begin for rank in result.ranks) == pytest.approx(span, rel=1e-12)
    assert result.period == pytest.approx(span, rel=1e-12)


def test_a_straggler():
    assert lab("1f1b", stage_times="1,1,1.2,1").makespan == pytest.approx(37.2, rel=1e-12)
    assert lab("1f1b", stage_times="1,1,2,1").makespan == lab("1f1b", passes="F=1:1:2:1,B=2:2:4:2").makespan == 55


def test_values_per_global_stage_are_of_that_stage_alone():
    assert lab("interleaved", v=2, passes=f"F={':'.join(['0.5'] * 8)},B={':'.join(['1'] * 8)}").makespan == 28.5
    assert lab("interleaved", v=2, passes="F=1:1:1:1,B=2:2:2:2").makespan == 28.5


def test_pipedream_versions_and_staleness():
    result = lab("pipedream")
    assert (result.makespan, result.period) == (33, 24)
    assert result.versions == (4, 3, 2, 1)
    assert result.staleness == (3, 2, 1, 0)
    assert "weight versions by rank 4 3 2 1" in text([result], UNITS)


def test_activations():
    (result,) = simulate(entries(["interleaved"], 4, 8, [2]), UNITS, activation=2**30)
    assert [rank.activation for rank in result.ranks] == [round(count * 2**30) for count in (5.5, 4.5, 3.5, 2.5)]
    assert "5.5 GiB 4.5 GiB 3.5 GiB 2.5 GiB" in text([result], UNITS)


# -- closed forms ---------------------------------------------------------------------------------------------------

sizes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
seconds = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0])


@settings(max_examples=60)
@given(sizes, st.sampled_from(PLAIN), seconds, seconds, seconds, st.sampled_from([0, 0.25, 0.5, 2]))
def test_a_closed_form_is_what_the_engine_finds(size, name, f, i, w, c):
    """Wherever a formula is shown its conditions hold: simulation and literature agree."""
    p, rounds, v = size
    m = p * rounds
    v = max(v, 2) if name == "interleaved-zb" else v
    result = lab(name, p, m, v, passes=f"F={f},I={i},W={w}", communication=str(c))
    closed = result.closed
    if closed is None:
        assert c or name in SPLIT
        assert c or f < w or i < w or name != "interleaved-zb"
        return
    if closed.makespan is not None:
        assert result.makespan == pytest.approx(closed.makespan, rel=1e-12)
        assert result.bubble_fraction == pytest.approx(closed.bubble, abs=1e-12)
        assert closed.over_ideal is None or result.bubble_over_ideal == pytest.approx(closed.over_ideal, abs=1e-9)
    if closed.period is not None:
        assert result.period == pytest.approx(closed.period, rel=1e-9)
    assert closed.makespan is not None or closed.period is not None
    assert closed.citation


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 4), seconds, seconds)
def test_looped_breadth_first_with_any_number_of_micro_batches(p, m, v, f, b):
    result = lab("looped-bfs", p, m, v, passes=f"F={f},B={b}")
    assert result.makespan == pytest.approx(result.closed.makespan, rel=1e-12)
    assert result.makespan == pytest.approx(((v - 1) * max(m, p) + m + p - 1) * (f + b) / v, rel=1e-12)
    assert [rank.in_flight_chunks for rank in result.ranks] == [m * v] * p


def test_no_closed_form_where_its_conditions_do_not_hold():
    assert lab("1f1b", stage_times="1,1,2,1").closed is None
    assert lab("interleaved", v=2, communication="0.5").closed is None
    assert lab("zb-h1", passes="F=1,I=0.8,W=1.2").closed is None
    assert lab("zb-h2", 4, 6).closed is None
    assert lab("v-half").closed is None
    assert lab("v-min").closed is None
    assert lab("interleaved-zb", 4, 3, 2).closed is None
    assert lab("interleaved-zb", v=2, passes="F=1,I=0.8,W=1.2").closed is None


@settings(max_examples=60)
@given(st.integers(1, 8), st.integers(0, 24), st.integers(2, 4), seconds, seconds, seconds)
def test_the_bubble_of_interleaved_zero_bubble_is_zb_h1s_divided_by_the_chunks(p, extra, v, w, f, i):
    m = p + extra - (p + extra) % max(1, (p + extra) // p)  # equal groups, at times of more than p
    result = lab("interleaved-zb", p, m, v, passes=f"F={w + f},I={w + i},W={w}")
    assert result.period == pytest.approx(result.makespan, rel=1e-12)
    assert result.makespan == pytest.approx(m * (3 * w + f + i) + (p - 1) / v * (w + f + i), rel=1e-12)
    assert result.closed.makespan == pytest.approx(result.makespan, rel=1e-12)


# -- the period -----------------------------------------------------------------------------------------------------


def repeated(entry, count):
    """The lists of `count` steps one behind the other."""
    rows = tuple(
        tuple(Slot(kind, stage, i + step * entry.micro_batches) for step in range(count) for kind, stage, i in row) for row in entry.rows
    )
    return LabSchedule("custom", "", rows, entry.micro_batches * count)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([name for name in PLAIN if name != "pipedream"]),
    st.integers(2, 4),
    st.integers(1, 2),
    st.lists(seconds, min_size=3, max_size=3),
    st.lists(st.sampled_from([0.5, 1, 1, 2]), min_size=4, max_size=4),
    st.sampled_from([0, 0.5, 1]),
)
def test_the_period_is_what_many_steps_in_a_row_take(name, p, rounds, passes, factors, c):
    f, i, w = passes
    asked = times(f"F={f},I={i},W={w}", communication=str(c), stage_times=",".join(map(str, factors[:p])))
    (entry,) = entries([name], p, p * rounds, [2])
    found = period(stage_times(entry, asked).program(entry), p)
    longer = repeated(entry, 36)
    program = stage_times(longer, asked).program(longer)
    trace = Engine(program, NoInterconnect()).run()
    # circuits of up to p ranks: after the transient 12 steps take 12 periods
    before = max(trace.end[op.index] for op in program.ops if op.instance < 24 * entry.micro_batches)
    assert (trace.makespan - before) / 12 == pytest.approx(found, rel=1e-9)


def test_cycle_means():
    assert largest_cycle_mean([[1.0, 5.0], [4.0, 2.0]]) == 4.5
    assert largest_cycle_mean([[3.0, 9.0], [-inf, 2.0]]) == 3
    assert largest_cycle_mean([[-inf]]) == -inf


def test_a_step_is_a_matrix():
    """One micro-batch on two ranks: 1 + 1 + 2 + 2 and, from rank 1's own point of view, 1 + 2."""
    (entry,) = entries(["1f1b"], 2, 1)
    assert step_matrix(stage_times(entry, UNITS).program(entry), 2) == [[6, 5], [4, 3]]


# -- the classical drawings -----------------------------------------------------------------------------------------

GPIPE = """
F1 F2 F3 F4 F5 F6 F7 F8 .  .  .  .  .  .  .  .  .  B1 B1 B2 B2 B3 B3 B4 B4 B5 B5 B6 B6 B7 B7 B8 B8
.  F1 F2 F3 F4 F5 F6 F7 F8 .  .  .  .  .  .  B1 B1 B2 B2 B3 B3 B4 B4 B5 B5 B6 B6 B7 B7 B8 B8 .  .
.  .  F1 F2 F3 F4 F5 F6 F7 F8 .  .  .  B1 B1 B2 B2 B3 B3 B4 B4 B5 B5 B6 B6 B7 B7 B8 B8 .  .  .  .
.  .  .  F1 F2 F3 F4 F5 F6 F7 F8 B1 B1 B2 B2 B3 B3 B4 B4 B5 B5 B6 B6 B7 B7 B8 B8 .  .  .  .  .  .
"""
"""Narayanan et al. 2021, figure 3: a backward takes twice as long as a forward."""
ONE_F_ONE_B = """
F1 F2 F3 F4 .  .  .  .  .  .  B1 B1 F5 B2 B2 F6 B3 B3 F7 B4 B4 F8 B5 B5 .  B6 B6 .  B7 B7 .  B8 B8
.  F1 F2 F3 .  .  .  .  B1 B1 F4 B2 B2 F5 B3 B3 F6 B4 B4 F7 B5 B5 F8 B6 B6 .  B7 B7 .  B8 B8 .  .
.  .  F1 F2 .  .  B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 F6 B5 B5 F7 B6 B6 F8 B7 B7 .  B8 B8 .  .  .  .
.  .  .  F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 F6 B6 B6 F7 B7 B7 F8 B8 B8 .  .  .  .  .  .
"""
"""Narayanan et al. 2021, figure 4 top."""
INTERLEAVED = """
F1a F2a F3a F4a F1b F2b F3b F4b F5a F6a F7a .   .   .   B1b B1b F8a B2b B2b .   F5b B3b B3b F6b B4b B4b F7b B1a B1a
F8b B2a B2a B3a B3a .   B4a B4a .   B5b B5b .   B6b B6b .   B7b B7b .   B8b B8b B5a B5a B6a B6a B7a B7a B8a B8a /
.   F1a F2a F3a F4a F1b F2b F3b F4b F5a .   .   B1b B1b F6a B2b B2b F7a B3b B3b F8a B4b B4b F5b B1a B1a F6b B2a B2a
F7b B3a B3a F8b B4a B4a .   B5b B5b .   B6b B6b .   B7b B7b .   B8b B8b B5a B5a B6a B6a B7a B7a B8a B8a .   .   /
.   .   F1a F2a F3a F4a F1b F2b F3b .   B1b B1b F4b B2b B2b F5a B3b B3b F6a B4b B4b F7a B1a B1a F8a B2a B2a F5b B3a
B3a F6b B4a B4a F7b B5b B5b F8b B6b B6b .   B7b B7b .   B8b B8b B5a B5a B6a B6a B7a B7a B8a B8a .   .   .   .   /
.   .   .   F1a F2a F3a F4a F1b B1b B1b F2b B2b B2b F3b B3b B3b F4b B4b B4b F5a B1a B1a F6a B2a B2a F7a B3a B3a F8a
B4a B4a F5b B5b B5b F6b B6b B6b F7b B7b B7b F8b B8b B8b B5a B5a B6a B6a B7a B7a B8a B8a .   .   .   .   .   .
"""
"""Narayanan et al. 2021, figure 4 bottom: a and b are a device's chunks; columns of half a unit, devices end with a slash."""
PIPEDREAM = """
F1 F2 F3 F4 .  .  .  .  .  .  B1 B1 F5 B2 B2 F6 B3 B3 F7 B4 B4 F8 B5 B5
.  F1 F2 F3 .  .  .  .  B1 B1 F4 B2 B2 F5 B3 B3 F6 B4 B4 F7 B5 B5 F8 B6
.  .  F1 F2 .  .  B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 F6 B5 B5 F7 B6 B6 F8
.  .  .  F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 F6 B6 B6 F7 B7 B7
"""
"""PipeDream, SOSP 2019, figure 4: start-up, then a steady state in which no worker idles."""
HUANG = """
F0 F1 F2 F3 .  .  .  .  .  .  B3 B2 B1 B0
.  F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0 .
.  .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .  .
.  .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .  .
"""
"""Huang et al. 2019, figure 2c: equal boxes, backwards in reverse order."""


def grid(drawn: str) -> list[list[str]]:
    lines = drawn.replace("\n", " ").split("/") if "/" in drawn else drawn.strip().splitlines()
    return [line.split() for line in lines]


def spans(rows: list[list[str]], step: float) -> dict[tuple[str, int], tuple[float, float]]:
    """(cell, rank) -> from where to where it is drawn."""
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for rank, row in enumerate(rows):
        for column, cell in enumerate(row):
            if cell != ".":
                begin, _ = found.get((cell, rank), (column * step, 0))
                found[cell, rank] = (begin, (column + 1) * step)
    return found


def boxes(result, first: int) -> dict[tuple[str, int], tuple[float, float]]:
    chunked = len(result.entry.homes) > result.entry.ranks
    return {
        (f"{box.slot.kind}{box.slot.micro_batch + first}{'abcd'[box.chunk] if chunked else ''}", box.rank): (box.start, box.end)
        for box in result.boxes
    }


@pytest.mark.parametrize(
    ("name", "v", "drawn", "step"),
    [("gpipe", 1, GPIPE, 1.0), ("1f1b", 1, ONE_F_ONE_B, 1.0), ("interleaved", 2, INTERLEAVED, 0.5)],
    ids=["GPipe", "1F1B", "interleaved"],
)
def test_the_figures_of_narayanan_box_for_box(name, v, drawn, step):
    result = lab(name, v=v)
    rows = grid(drawn)
    assert {len(row) for row in rows} == {round(result.makespan / step)}
    assert boxes(result, 1) == spans(rows, step)
    letters = [line.partition("| ")[2].split() for line in drawing(result, 1).splitlines()]
    assert letters == rows


def test_the_figure_of_pipedream_box_for_box():
    rows = grid(PIPEDREAM)
    found = boxes(lab("pipedream", 4, 12), 1)
    expected = spans(rows, 1.0)
    until = {key: (begin, min(end, 24.0)) for key, (begin, end) in found.items() if begin < 24}
    assert until == expected
    for rank, row in enumerate(rows):
        assert "." not in row[2 * (4 - rank) + 2 :]


def test_the_figure_of_huang_box_for_box():
    """parsim's GPipe runs backwards in ascending order, as torch does; with the paper's order the numbers are the paper's too."""
    paper = "\n".join(" ".join([*(f"F{s}.{i}" for i in range(4)), *(f"B{s}.{i}" for i in reversed(range(4)))]) for s in range(4))
    entry = LabSchedule("custom", "figure 2c", read_table(paper).rows, 4)
    (result,) = simulate([entry], times("F=1,B=1"))
    assert boxes(result, 0) == spans(grid(HUANG), 1.0)
    ours = lab("gpipe", 4, 4, passes="F=1,B=1")
    assert {(box.rank, box.start, box.end) for box in ours.boxes} == {(box.rank, box.start, box.end) for box in result.boxes}


# -- tables of the user's own ---------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.sampled_from(PLAIN), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["0", "0.5"]))
def test_a_written_table_gives_the_same_times(name, p, rounds, v, c):
    (entry,) = entries([name], p, p * rounds, [max(v, 1 + (name == "interleaved-zb"))])
    table = read_table(table_text(entry), "own.csv")
    assert table.rows == entry.rows
    own = LabSchedule("custom", "own.csv", table.rows, entry.micro_batches, file="own.csv", places=table.places)
    asked = times(communication=c)
    (first,), (second,) = simulate([entry], asked), simulate([own], asked)
    assert (second.makespan, second.boxes, second.ranks) == (first.makespan, first.boxes, first.ranks)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, line: str) -> tuple[int, str, str]:
    code = execute(["schedule", *line.split()])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_written_and_read_again(folder, capsys):
    assert run(capsys, "zb-h1 -p 4 -m 8 --csv own.csv")[0] == 0
    code, out, _ = run(capsys, "own.csv zb-h1 --comm 0.5 --json")
    own, known = json.loads(out)["schedules"]
    assert code == 0
    assert own["slots"] == known["slots"]
    assert own["makespan"] == known["makespan"] == 33
    assert (own["ranks"], own["micro_batches"], own["file"]) == (4, 8, "own.csv")
    code, _, err = run(capsys, "zb-h1 -p 4 -m 8 --csv own.csv")
    assert code == 2
    assert "exists and is not overwritten" in err


def test_a_function_of_the_users_own(folder, capsys):
    (folder / "own.py").write_text("def rows(p, m, v):\n    return [[(k, s, i) for k in 'FB' for i in range(m)] for s in range(p)]\n")
    code, out, _ = run(capsys, "own.py:rows gpipe -p 4 -m 8 --json --trust-code")
    assert code == 0
    assert [one["makespan"] for one in json.loads(out)["schedules"]] == [33, 33]


def test_an_illegal_table_names_every_slot(folder, capsys):
    (folder / "own.csv").write_text("F0.0, B0.1, F0.1, B0.0, B0.0\nF1.0, B1.0, F0.1, W1.1, I1.1\n")
    code, out, err = run(capsys, "own.csv")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "own.csv:1:25  rank 0 position 4, B0.0: occurs twice, first at rank 0 position 3",
        "own.csv:2:13  rank 1 position 2, F0.1: occurs twice, first at rank 0 position 2",
        "own.csv:2:13  rank 1 position 2, F0.1: stage 0 is on rank 0",
        "own.csv:1:7  rank 0 position 1, B0.1: comes before F0.1 at position 2",
        "own.csv:2:19  rank 1 position 3, W1.1: comes before I1.1 at position 4",
        "5 problems.",
    ]


def test_missing_slots(folder, capsys):
    (folder / "own.csv").write_text("F0.0 F0.1 B0.0\nF1.0 B1.0 F1.1 B1.1\n")
    assert run(capsys, "own.csv")[2].startswith("own.csv  B0.1 is missing (or I and W)\n")
    assert "own.csv  -m  has 2 micro-batches, but -m is 3; leave -m out" in run(capsys, "own.csv -m 3")[2]
    assert "has 2 rows, but -p is 3" in run(capsys, "own.csv -p 3")[2]


def test_a_deadlock_names_the_slot_and_the_circle(folder, capsys):
    (folder / "own.csv").write_text("# a deadlock\nrank 0: F0.0, B0.0, F0.1, B0.1\nrank 1: F1.1, F1.0, B1.0, B1.1\n")
    code, out, err = run(capsys, "own.csv 1f1b --figure figure.pdf")
    assert (code, out) == (4, "")
    assert err.splitlines() == [
        "own.csv:2:15  rank 0 position 1, B0.0: deadlock: waits for B1.0, which is at rank 1 position 2",
        "own.csv:3:9  rank 1 position 0, F1.1: deadlock: waits for F0.1, which is at rank 0 position 2",
        "cycle of dependencies in own.csv:",
        "  B0.0 (rank 0 position 1, own.csv:2:15) waits for B1.0 (rank 1 position 2, own.csv:3:21), which comes after F1.1",
        "  F1.1 (rank 1 position 0, own.csv:3:9) waits for F0.1 (rank 0 position 2, own.csv:2:21), which comes after B0.0",
    ]
    assert not (folder / "figure.pdf").exists()
    code, out, _ = run(capsys, "own.csv --json")
    document = json.loads(out)
    assert code == 4
    assert [(one["line"], one["column"], one["value"]) for one in document["errors"]] == [(2, 15, "B0.0"), (3, 9, "F1.1")]
    assert len(document["deadlock"]["own.csv"]) == 2


@settings(max_examples=50)
@given(st.permutations(range(6)), st.permutations(range(6)))
def test_simulated_or_named(first, second):
    """Any order of legal slots either runs or is refused with the places of the slots that stop it."""
    slots = [[Slot(kind, stage, i) for i in range(3) for kind in "FB"] for stage in range(2)]
    text_ = "\n".join(",".join(str(row[i]) for i in order) for row, order in zip(slots, (first, second), strict=True))
    table = read_table(text_, "own.csv")
    entry = LabSchedule("custom", "own.csv", table.rows, 3, file="own.csv", places=table.places)
    try:
        (result,) = simulate([entry], UNITS)
    except ScheduleDeadlockError as error:
        lines = text_.splitlines()
        for finding in error.findings:
            assert lines[finding.line - 1][finding.column - 1 :].startswith(finding.value)
    else:
        assert len(result.boxes) == 12


# -- what is asked --------------------------------------------------------------------------------------------------


def test_times_with_a_unit():
    result = lab("1f1b", passes="F=1.2ms,B=2.4 ms", communication="600us")
    assert result.makespan == pytest.approx(41 * 1.2e-3, rel=1e-12)
    asked = times("F=1.2ms,B=2.4 ms", communication="600us")
    assert "F = 1.2, B = 2.4 ms; messages 0.6 ms, overlapped" in text([result], asked)
    assert show(result.makespan, unit_of([result], asked)) == "49.2"


@pytest.mark.parametrize(
    ("passes", "inputs", "weights"),
    [("F=1,I=2,W=3", (2,), (3,)), ("F=1,B=5,I=2", (2,), (3,)), ("F=1,B=5,W=3", (2,), (3,)), ("F=1,B=5,I=2,W=3", (2,), (3,))],
)
def test_two_of_three_say_the_third(passes, inputs, weights):
    asked = times(passes)
    assert (asked.inputs, asked.weights, asked.whole) == (inputs, weights, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": "F=1"}, "the backward pass is not known"),
        ({"passes": "F=1,I=1"}, "the backward pass is not known"),
        ({"passes": "B=2"}, "F, the time of a forward pass, is missing"),
        ({"passes": "F=1,B=2,I=3"}, "I is longer than B"),
        ({"passes": "F=1,B=2,I=1,W=2"}, "B is not I + W"),
        ({"passes": "F=1,F=1,B=2"}, "F is given twice"),
        ({"passes": "F=1,X=2"}, "'X=2' is not a pass"),
        ({"passes": "F=-1,B=2"}, "-1 is no time"),
        ({"passes": "F=nan,B=2"}, "nan is no time"),
        ({"passes": "F=1e300,B=2"}, "1e300 is no time: it must be from 0 to 1e+30"),
        ({"passes": "F=0,B=0"}, "no pass takes any time"),
        ({"passes": "F=1 kg,B=2"}, "kg"),
        ({"passes": "F=1ms,B=2"}, "1ms has a unit, 2 has none"),
        ({"communication": "1ms", "passes": "F=1,B=2"}, "1ms has a unit, 1 has none"),
        ({"stage_times": "1,0,1,1"}, "'0' is no factor"),
        ({"passes": "F=1:1:1,B=2:2"}, "lists of 2 and 3 values"),
    ],
)
def test_times_that_are_none(options, message):
    passes = options.pop("passes", None)
    with pytest.raises(PlanError) as caught:
        times(passes, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1f1b", "-p  how many pipeline ranks?; give -p, for example -p 4\n-m  how many micro-batches?"),
        ("1f1b -p 0 -m 0", "-p  0 pipeline stages: at least 1 is needed\n-m  0 micro-batches: at least 1 is needed\n2 problems."),
        ("interleaved -p 4 -m 6 -v 2", "6 % 4 = 2; use 4 or 8 micro-batches"),
        ("interleaved -p 4 -m 8 -v two", "'two' is no count of chunks"),
        ("1f2b -p 4 -m 8", "there is no schedule '1f2b'; did you mean 1f1b?"),
        (
            "hanayo -p 4 -m 8",
            "v-half, v-min, interleaved-zb, combined-1f1b, dualpipev, dualpipe, chimera, pipedream-2bw, or the path",
        ),
        ("zb-h1 -p 4 -m 8 --times F=1,B=2", "zb-h1 splits its backwards"),
        ("v-min -p 4 -m 8 --times F=1,B=2", "v-min splits its backwards"),
        ("interleaved-zb -p 4 -m 8", "interleaved-zb needs at least 2 stages per rank, but virtual_stages = 1; use -v 2 or more"),
        ("interleaved-zb -p 4 -m 9 -v 2", "9 in 2 groups leave 1; use 8 or 10 micro-batches, or schedule zb-h1"),
        ("nowhere.csv", "nowhere.csv  no such file; write naive"),
        ("own.py", "is Python: which function?"),
        (
            "1f1b -p 4 -m 8 --times F=1:2:3,B=2",
            "--times  3 values, but 1f1b has 4 ranks, 4 global stages and 3 boundaries; give 1 or 4 values",
        ),
        ("1f1b -p 4 -m 8 --stage-times 1,2", "--stage-times  2 values, but 1f1b has 4 ranks"),
        ("1f1b -p 4 -m 8 --comm 1,2", "--comm  2 values"),
        ("1f1b -p 4 -m 8 --sends none", "'none' is not known; write overlapped or blocking"),
        ("1f1b -p 4 -m 8 --labels all", "'all' is not known; write number or pass or none"),
        ("1f1b -p 4 -m 8 --figure a.doc", "cannot draw a .doc; name it .pdf, .svg, .pgf, .png"),
        ("1f1b -p 4 -m 8 --width 3", "'3' is no length; write 3.5in"),
        ("1f1b -p 4 -m 8 --width 3m", "'3m' is no length"),
        ("1f1b -p 4 -m 8 --width 2mm", "2mm is 0.0787 in: a figure is 1 in to 50 in wide"),
        ("1f1b -p 4 -m 8 --activation 3", "--activation  '3' has no unit"),
        ("1f1b gpipe -p 4 -m 8 --csv a.csv", "a table holds one schedule, not 2"),
        ("1f1b -p 4 -m 8 --figure a.pdf --figure nowhere/b.pdf", "nowhere/b.pdf  cannot be written: there is no folder nowhere"),
        ("1f1b -p 4 -m 8 --csv nowhere/a.csv --figure a.pdf", "nowhere/a.csv  cannot be written: there is no folder nowhere"),
        ("1f1b -p 4 -m 8 --figure a.pdf --draw --times F=1.0001,B=2", "too many for letters; draw a figure with --figure"),
    ],
)
def test_questions_that_are_none(folder, capsys, line, message):
    code, out, err = run(capsys, line)
    assert code == 2
    assert out == ""
    assert message in err
    assert not list(folder.iterdir())


def test_everything_wrong_is_said_at_once(folder, capsys):
    (folder / "own.csv").write_text("F0.0 X B0.0\n")
    _, _, err = run(capsys, "own.csv nowhere.csv -p 1 --width wide --sends no --comm x --activation 1 --figure a.doc -v z")
    assert err.endswith("8 problems.\n")


def test_the_table(capsys):
    code, out, _ = run(capsys, "1f1b gpipe interleaved pipedream -p 4 -m 8 -v 2,4 --times F=1,I=1,W=1")
    rows = {re.split(r"  +", line)[0]: re.split(r"  +", line)[1:] for line in out.splitlines()}
    assert code == 0
    assert rows["1f1b"] == ["33", "33", "4.125", "27.27 %", "27.27 %", "37.5 %", "27.27 %", "4 3 2 1"]
    assert rows["interleaved v=2"] == ["28.5", "28.5", "3.5625", "15.79 %", "15.79 %", "18.75 %", "15.79 %", "5.5 4.5 3.5 2.5"]
    assert rows["interleaved v=4"][:2] == ["26.25", "26.25"]
    assert rows["pipedream"] == ["33", "24", "3", "27.27 %", "27.27 %", "37.5 %", "0 %", "4 3 2 1"]
    ratios = "bubble (p - 1)/(v m + p - 1) = 15.79 %; over ideal (p - 1)/(v m) = 18.75 %"
    assert f"{ratios} (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2)" in out


def test_the_document(capsys):
    code, out, err = run(capsys, "pipedream -p 4 -m 8 --times F=1ms,B=2ms --activation 1GiB --json")
    document = json.loads(out)
    (found,) = document["schedules"]
    assert (code, err, document["unit"]) == (0, "", "s")
    assert found["makespan"] == pytest.approx(33e-3, rel=1e-12)
    assert found["period"] == pytest.approx(24e-3, rel=1e-9)
    assert (found["weight_versions"], found["staleness"]) == ([4, 3, 2, 1], [3, 2, 1, 0])
    assert [rank["peak_activation_bytes"] for rank in found["by_rank"]] == [4 * 2**30, 3 * 2**30, 2 * 2**30, 2**30]
    assert len(found["slots"]) == 64
    assert document["times"]["backward_weight"] is None


def test_drawn_in_letters(capsys):
    _, out, _ = run(capsys, "1f1b -p 2 -m 2 --draw")
    assert "1f1b\nrank 0 | F0 F1 .  .  B0 B0 .  B1 B1\nrank 1 | .  F0 B0 B0 F1 B1 B1 .  .\n" in out
    code, _, err = run(capsys, "1f1b -p 2 -m 2 --draw --times F=1.0001,B=2")
    assert code == 2
    assert "too many for letters; draw a figure with --figure" in err


@pytest.mark.slow
def test_no_figure_needs_no_plotting_library():
    line = [sys.executable, "-X", "importtime", "-m", "parsim", "schedule", "1f1b", "gpipe", "-p", "4", "-m", "8"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    names = {part.rpartition("|")[2].strip().partition(".")[0] for part in done.stderr.splitlines()}
    assert not names & {"matplotlib", "networkx", "ruamel", "rich", "torch"}


def test_other_names_of_a_schedule():
    assert lab("pipedream-flush").entry.rows == schedule("1f1b", 4, 8)


def test_all_at_once(folder, capsys):
    assert run(capsys, "zb-h1 -p 4 -m 8 --csv mine.csv")[0] == 0
    line = "1f1b gpipe interleaved pipedream mine.csv -p 4 -m 8 -v 2 --times F=1,I=1,W=1 --comm 0.5 --figure fig.pdf --json"
    code, out, _ = run(capsys, line)
    document = json.loads(out)
    assert code == 0
    assert [one["makespan"] for one in document["schedules"]] == [41, 36, 35.5, 41, 33]
    assert document["files"] == ["fig.pdf"]
    assert (folder / "fig.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_the_commands_of_the_guide(folder, capsys):
    guide = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```console\n(.*?)```", guide, re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 15
    for line in lines:
        assert run(capsys, line.removeprefix("parsim schedule "))[0] == 0, line
    assert len(list(folder.glob("*.svg"))) == 5
