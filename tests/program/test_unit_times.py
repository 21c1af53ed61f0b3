"""The schedule laboratory: what the papers draw, to the last digit, by the engine and by a longest path.

Makespans at tF = 1, tB = 2 (tI = tW = 1): GPipe arXiv 1811.06965, 1F1B and interleaved arXiv 2104.04473, PipeDream SOSP 2019,
ZB-H1 arXiv 2401.10241 (as a schedule of the user's own).
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import theory
from parsim.errors import DeadlockError, PlanError
from parsim.parallel.schedules import BIDIRECTIONAL, NAMES, OVERLAPPING, SPLIT, peak_in_flight, schedule
from parsim.parallel.schedules.classic import staleness, weight_versions
from parsim.parallel.schedules.custom import from_text
from parsim.program.check import check
from parsim.program.program import Lane, Program
from parsim.program.unit_times import as_run, unit_program
from parsim.simulation.engine import Engine

PLAIN = [name for name in NAMES if name not in (*OVERLAPPING, *BIDIRECTIONAL)]
"""schedules of any size, without passes side by side"""


class Columns(NamedTuple):
    start: list[float]
    end: list[float]

    @property
    def makespan(self) -> float:
        return max(self.end)


def longest_path(program: Program) -> Columns:
    """A second way to compute: each op starts at the largest end of its blockers."""
    left = list(program.blockers)
    start, end = [0.0] * len(left), [0.0] * len(left)
    ready = [op for op in program.ops if not left[op.index]]
    for op in ready:
        end[op.index] = start[op.index] + op.duration
        for other in op.after:
            start[other.index] = max(start[other.index], end[op.index])
            left[other.index] -= 1
            if not left[other.index]:
                ready.append(other)
    assert len(ready) == len(left)
    return Columns(start, end)


class NoWire:
    """Unit programs have no collectives, so nobody asks."""

    def cost(self, collective):
        raise AssertionError(collective)

    def capacity(self, link):
        raise AssertionError(link)


def run(program):
    trace = Engine(program, NoWire()).run()
    columns = longest_path(program)
    assert list(trace.start) == columns.start
    assert list(trace.end) == columns.end
    return trace


def pipeline(name, p, m, v=1, forward=1.0, backward=2.0, **options):
    return unit_program(schedule(name, p, m, v), forward / v, backward / v, **options)


def makespan(name, p, m, v=1, **options):
    return run(pipeline(name, p, m, v, **options)).makespan


SIZES = [(4, 8), (4, 4), (4, 16), (8, 16), (8, 32), (2, 4)]
TABLE = {
    ("naive", 1): [96, 48, 192, 384, 768, 24],
    ("gpipe", 1): [33, 21, 57, 69, 117, 15],
    ("1f1b", 1): [33, 21, 57, 69, 117, 15],
    ("interleaved", 2): [28.5, 16.5, 52.5, 58.5, 106.5, 13.5],
    ("interleaved", 4): [26.25, 14.25, 50.25, 53.25, 101.25, 12.75],
    ("pipedream", 1): [33, 21, 57, 69, 117, 15],
}
ROWS = [(name, v, p, m, value) for (name, v), values in TABLE.items() for (p, m), value in zip(SIZES, values, strict=True)]


@pytest.mark.parametrize(("name", "v", "p", "m", "expected"), ROWS)
def test_makespans(name, v, p, m, expected):
    assert makespan(name, p, m, v) == expected
    assert makespan(name, p, m, v, overlap_sends=False) >= expected


@pytest.mark.parametrize(("name", "v", "p", "m", "expected"), ROWS)
def test_makespans_are_the_closed_forms(name, v, p, m, expected):
    law = {
        "naive": theory.naive_makespan,
        "gpipe": theory.gpipe_makespan,
        "1f1b": theory.one_f_one_b_makespan,
        "pipedream": theory.pipedream_makespan,
    }
    formula = theory.interleaved_makespan(p, m, v, 1, 2) if name == "interleaved" else law[name](p, m, 1, 2)
    assert formula == expected
    if name != "pipedream":
        bubble = expected / (3 * m) - 1
        assert theory.bubble_over_ideal(name, p, m, v) == pytest.approx(bubble, rel=1e-12)
        assert theory.bubble_fraction(name, p, m, v) == pytest.approx(1 - 3 * m / expected, rel=1e-12)


@pytest.mark.parametrize(
    ("fraction", "name", "v"),
    [(0.75, "naive", 1), (0.2727, "gpipe", 1), (0.2727, "1f1b", 1), (0.1579, "interleaved", 2), (0.0857, "interleaved", 4)],
)
def test_bubble_fractions(fraction, name, v):
    assert round(1 - 24 / makespan(name, 4, 8, v), 4) == fraction


@pytest.mark.parametrize(
    ("name", "v", "ends"),
    [("gpipe", 1, [33, 31, 29, 27]), ("1f1b", 1, [33, 31, 29, 27]), ("interleaved", 2, [28.5, 27.5, 26.5, 25.5])],
)
def test_device_end_times(name, v, ends):
    program = pipeline(name, 4, 8, v)
    trace = run(program)
    assert [trace.end[program.last(Lane(rank, "compute")).index] for rank in range(4)] == ends


def test_one_f_one_b_timeline():
    program = pipeline("1f1b", 4, 8)
    trace = run(program)
    spans = {op.name: (trace.start[op.index], trace.end[op.index]) for op in program.ops}
    first = {
        "F0.0": (0, 1),
        "F0.1": (1, 2),
        "F0.2": (2, 3),
        "F0.3": (3, 4),
        "B0.0": (10, 12),
        "F0.4": (12, 13),
        "B0.1": (13, 15),
        "B0.7": (31, 33),
    }
    last = {"F3.0": (3, 4), "B3.0": (4, 6), "F3.1": (6, 7), "B3.7": (25, 27)}
    assert {name: spans[name] for name in (*first, *last)} == first | last


LATENCIES = [
    ("gpipe", 1, [33.6, 34.5, 36]),
    ("1f1b", 1, [34.6, 37, 41]),
    ("interleaved", 2, [29.9, 32, 35.5]),
]


@pytest.mark.parametrize(("name", "v", "expected"), LATENCIES)
def test_latency(name, v, expected):
    assert [makespan(name, 4, 8, v, latency=c) for c in (0.1, 0.25, 0.5)] == pytest.approx(expected, rel=1e-12)


def test_one_f_one_b_is_window_limited_by_latency():
    assert [makespan("1f1b", 4, m, latency=0.5) for m in (8, 16, 32)] == [41, 71, 131]
    assert makespan("1f1b", 2, 4, latency=0.5) == 17
    for p, period in ((2, 3.5), (4, 3.75), (8, 3.875)):
        slope = (makespan("1f1b", p, 10 * p, latency=0.5) - makespan("1f1b", p, 9 * p, latency=0.5)) / p
        assert slope == period == theory.one_f_one_b_period(p, 1, 2, latency=0.5)


@given(st.integers(1, 8), st.integers(1, 25), st.sampled_from([(1, 2), (1, 1), (3, 1), (0.5, 2)]), st.sampled_from([0, 0.25, 0.5, 1, 5]))
def test_one_f_one_b_makespan_with_latency(p, m, times, c):
    forward, backward = times
    simulated = makespan("1f1b", p, m, forward=forward, backward=backward, latency=c)
    assert simulated == pytest.approx(theory.one_f_one_b_makespan(p, m, forward, backward, c), rel=1e-12)
    assert makespan("gpipe", p, m, forward=forward, backward=backward, latency=c) == pytest.approx(
        theory.gpipe_makespan(p, m, forward, backward, c), rel=1e-12
    )
    assert makespan("naive", p, m, forward=forward, backward=backward, latency=c) == pytest.approx(
        theory.naive_makespan(p, m, forward, backward, c), rel=1e-12
    )


@pytest.mark.parametrize(
    ("forward", "one_f_one_b", "gpipe"),
    [((1, 1, 2, 1), 55, 57), ((1, 1, 1, 1.5), 45, 45), ((1, 1, 1.2, 1), 37.2, 37.2)],
)
def test_unbalanced_stages(forward, one_f_one_b, gpipe):
    backward = [2 * t for t in forward]
    assert run(unit_program(schedule("1f1b", 4, 8), forward, backward)).makespan == pytest.approx(one_f_one_b, rel=1e-12)
    if forward[2] != 1.2:
        assert run(unit_program(schedule("gpipe", 4, 8), forward, backward)).makespan == pytest.approx(gpipe, rel=1e-12)


def test_a_straggler_costs_its_own_stage_only():
    slow = run(unit_program(schedule("1f1b", 4, 8), [1, 1, 1.2, 1], [2, 2, 2.4, 2])).makespan
    assert round(slow / 33 - 1, 3) == 0.127


def test_full_recomputation():
    assert makespan("gpipe", 4, 8, backward=3.0) == makespan("1f1b", 4, 8, backward=3.0) == 44


@pytest.mark.parametrize("m", [8, 9, 10, 100, 200])
def test_pipedream_adds_three_per_mini_batch(m):
    expected = {8: 33, 9: 36, 10: 39, 100: 309, 200: 609}[m]
    assert makespan("pipedream", 4, m) == expected == theory.pipedream_makespan(4, m, 1, 2)
    assert theory.pipedream_period([1] * 4, [2] * 4) == 3


def test_pipedream_versions_and_staleness_from_the_trace():
    program = pipeline("pipedream", 4, 16)
    rows = as_run(program, run(program).start)
    assert [weight_versions(row) for row in rows] == [4, 3, 2, 1]
    assert [staleness(row)[-1] for row in rows] == [3, 2, 1, 0]


@pytest.mark.parametrize(("name", "v"), [("naive", 1), ("gpipe", 1), ("1f1b", 1), ("pipedream", 1), ("interleaved", 2), ("interleaved", 4)])
def test_peak_in_flight_from_the_trace(name, v):
    """Bytes alive, from the effects of the ops as the trace places them, against the count that order alone gives."""
    program = pipeline(name, 4, 8, v, activation=10)
    trace = run(program)
    moments = [[] for _ in range(4)]
    for op in program.ops:
        for rank, effects in op.effects:
            for effect in effects:
                size = program.tensors[rank][effect.tensor].bytes
                moments[rank].append((trace.start[op.index] + effect.offset, size if effect.allocate else -size))
    peaks = []
    for row in moments:
        live = peak = 0
        for _, change in sorted(row):
            live += change
            peak = max(peak, live)
        assert live == 0
        peaks.append(peak)
    assert peaks == [10 * count for count in peak_in_flight(schedule(name, 4, 8, v))]


ZB_H1 = """
F0.0 F0.1 F0.2 F0.3 I0.0 W0.0 F0.4 I0.1 W0.1 F0.5 I0.2 W0.2 F0.6 I0.3 W0.3 F0.7 I0.4 W0.4 I0.5 W0.5 I0.6 W0.6 I0.7 W0.7
F1.0 F1.1 F1.2 I1.0 F1.3 I1.1 W1.0 F1.4 I1.2 W1.1 F1.5 I1.3 W1.2 F1.6 I1.4 W1.3 F1.7 I1.5 W1.4 I1.6 W1.5 I1.7 W1.6 W1.7
F2.0 F2.1 I2.0 F2.2 I2.1 F2.3 I2.2 W2.0 F2.4 I2.3 W2.1 F2.5 I2.4 W2.2 F2.6 I2.5 W2.3 F2.7 I2.6 W2.4 I2.7 W2.5 W2.6 W2.7
F3.0 I3.0 F3.1 I3.1 F3.2 I3.2 F3.3 I3.3 W3.0 F3.4 I3.4 W3.1 F3.5 I3.5 W3.2 F3.6 I3.6 W3.3 F3.7 I3.7 W3.4 W3.5 W3.6 W3.7
"""


@pytest.mark.parametrize(("times", "expected"), [((1, 1, 1), 27), ((1, 1.2, 0.8), 28.2), ((1, 1.4, 0.6), 29.4), ((1, 0.8, 1.2), 27)])
def test_a_split_backward_as_a_schedule_of_the_users_own(times, expected):
    forward, inputs, weights = times
    program = unit_program(from_text(ZB_H1), forward, inputs + weights, weight=weights, activation=1)
    assert run(program).makespan == pytest.approx(expected, rel=1e-12)
    assert peak_in_flight(from_text(ZB_H1)) == [4, 4, 4, 4]
    assert check(program) == []
    if inputs >= weights:
        assert theory.zb_h1_makespan(4, 8, *times) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("c", "expected"), [(0.1, 28.2), (0.25, 30), (0.5, 33)])
def test_a_split_backward_with_latency(c, expected):
    program = unit_program(from_text(ZB_H1), 1, 2, weight=1, latency=c)
    assert run(program).makespan == pytest.approx(expected, rel=1e-12)


@given(
    st.sampled_from([name for name in PLAIN if name not in SPLIT]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.25, 2.0]),
    st.booleans(),
)
def test_laws(name, p, rounds, v, c, overlap):
    v = v if name == "interleaved" else 1
    m = p * rounds
    program = pipeline(name, p, m, v, latency=c, overlap_sends=overlap, activation=1)
    assert check(program) == []
    trace = run(program)
    assert trace.makespan >= 3 * m + (p - 1) * 3 / v - 1e-9
    assert as_run(program, trace.start) == schedule(name, p, m, v)
    if p == 1:
        assert trace.makespan == pytest.approx(3 * m, rel=1e-12)
    if not overlap:
        assert trace.makespan >= run(pipeline(name, p, m, v, latency=c)).makespan - 1e-9


def test_blocking_sends_occupy_both_compute_lanes():
    """Two stages, one micro-batch: F0, message, F1, B1, message, B0; nothing overlaps."""
    program = pipeline("1f1b", 2, 1, latency=0.5, overlap_sends=False)
    trace = run(program)
    assert trace.makespan == 7
    sends = [op for op in program.ops if op.kind == "pipeline_comm"]
    assert [op.lanes for op in sends] == [(Lane(0, "compute"), Lane(1, "compute")), (Lane(1, "compute"), Lane(0, "compute"))]


def test_messages_that_cross_are_one_exchange():
    """Blocking 1F1B, p = 2, by hand: F0.2 and B1.1 end at 8.5 and swap; from there every 3.5 until B0.7 ends at 32."""
    program = pipeline("1f1b", 2, 8, latency=0.5, overlap_sends=False)
    trace = run(program)
    swaps = {op.name: trace.start[op.index] for op in program.ops if op.kind == "pipeline_comm" and len(op.name.split()) == 3}
    assert swaps == {f"send F0.{i} B1.{i - 1}": 8.5 + 3.5 * (i - 2) for i in range(2, 8)}
    assert trace.makespan == 32


def test_blocking_sends_cost_nothing_when_they_take_no_time():
    for name in ("naive", "gpipe", "1f1b"):
        assert makespan(name, 4, 8, overlap_sends=False) == TABLE[name, 1][0]


def test_latency_per_boundary():
    program = unit_program(schedule("naive", 3, 1), 1, 2, latency=[0.5, 4])
    assert run(program).makespan == 9 + 2 * 4.5


@pytest.mark.parametrize("overlap", [True, False])
def test_a_schedule_that_deadlocks_is_a_program_that_does(overlap):
    program = unit_program(from_text("F0.0 B0.0 F0.1 B0.1\nF1.1 F1.0 B1.0 B1.1"), 1, 2, overlap_sends=overlap)
    assert "wait for each other" in str(check(program)[0])
    with pytest.raises(DeadlockError):
        Engine(program, NoWire()).run()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"forward": [1, 1], "backward": 2}, "forward has 2 values, but 4 are needed"),
        ({"forward": 1, "backward": -2}, "backward must be finite and not negative"),
        ({"forward": 1, "backward": 2, "latency": [1, 1]}, "latency has 2 values, but 3 are needed"),
        ({"forward": 1, "backward": 2, "weight": 3}, "weight is a part of backward"),
    ],
)
def test_times_that_do_not_fit(options, words):
    with pytest.raises(PlanError, match=words):
        unit_program(schedule("1f1b", 4, 8), **options)


def test_a_split_schedule_needs_the_time_of_a_weight_gradient():
    with pytest.raises(PlanError, match="splits its backwards"):
        unit_program(from_text(ZB_H1), 1, 2)
