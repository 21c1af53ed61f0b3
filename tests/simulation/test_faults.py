"""Links that lose capacity, ranks that stand still, crash or hang while a step runs: hand-solved cases."""

from __future__ import annotations

from math import inf, isnan

import pytest
from broken_runs import run_with_faults
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import job, measured, stages

from parsim.errors import ParsimError
from parsim.faults import LinkFault, RankFault, SlowWindow
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.engine import Engine
from parsim.simulation.faults import Likes

GB, MS = 1e9, 1e-3


class Ring:
    """One gigabyte around four links of 100 GB/s: 2 (n - 1) / n of it cross every link."""

    def cost(self, collective):
        return CollectiveCost(0.0, (Flow(tuple((link, 1.0) for link in range(4)), 1.5 * GB, 100 * GB),))

    def capacity(self, link):
        return 100 * GB


def all_reduce(ranks=4, before=0.0):
    program = Program()
    for rank in range(ranks):
        program.add("work", "compute", (Lane(rank, "compute"),), duration=before)
    lanes = tuple(Lane(rank, "compute") for rank in range(ranks))
    program.add("grads", "data_comm", lanes, collective=Collective("all_reduce", "data", tuple(range(ranks)), 10**9))
    return program


@pytest.mark.parametrize(
    ("capacity", "begin", "end", "expected"),
    [(100, 6, inf, 15), (50, 6, inf, 24), (50, 6, 18, 21), (0, 6, 16, 25), (0, 0, 10, 25), (50, 0, inf, 30), (50, 15, inf, 15)],
)
def test_a_ring_moves_at_its_slowest_link(capacity, begin, end, expected):
    """What is left of S bytes at B after t0 ends at t0 + (S - B t0) / (x B)."""
    fault = LinkFault("link", ((2, capacity * GB),), begin * MS, end * MS)
    outcome = run_with_faults(all_reduce(), Ring(), [fault])
    assert outcome.failure is None
    assert outcome.end == pytest.approx(expected * MS, rel=1e-12)


@pytest.mark.parametrize(
    ("end", "retry", "give_up", "expected"),
    [(16, 0, inf, 25), (16, 4, inf, 27), (14, 4, inf, 23), (14, 4, 8, 23), (16, 4, 11, None), (6.5, 8, inf, 23)],
)
def test_a_flap_costs_time_to_the_next_retry(end, retry, give_up, expected):
    """Down from 6 ms on: what waits tries again every `retry` ms from then; the first try that finds the link goes on."""
    fault = LinkFault("flap", ((2, 0.0),), 6 * MS, end * MS, give_up=give_up * MS, retry=retry * MS)
    outcome = run_with_faults(all_reduce(), Ring(), [fault])
    assert (outcome.failure is None) is (expected is not None)
    assert outcome.end == pytest.approx((expected or 17) * MS, rel=1e-9)


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.0, 1.0)), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_however_often_a_link_changes_it_carries_every_byte(pieces):
    """Windows one after the other, of a length [ms] and a share of the capacity: the integral of the rate is what the link carries."""
    faults, time, carried = [], 0.0, 0.0
    for length, share in pieces:
        faults.append(LinkFault("link", ((0, share * 100 * GB),), time, time + length * MS))
        time += length * MS
        if carried + length * MS * share * 100 * GB > 1.5 * GB:
            break
        carried += length * MS * share * 100 * GB
    else:
        assert run_with_faults(all_reduce(), Ring(), faults).end == pytest.approx(time + (1.5 * GB - carried) / (100 * GB), rel=1e-9)


def pipeline(schedule, micro_batches=8, depth=4):
    return job(
        stages(*[(1.0, 2.0)] * depth), pipeline=depth, clock=measured, pipeline_settings={"schedule": schedule},
        micro_batches=micro_batches, global_batch=micro_batches,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("begin", "length", "expected"),
    [(10.0, 3.0, 36.0), (11.5, 3.0, 36.0), (3.0, 3.0, 33.0), (12.0, 1.0, 34.0), (40.0, 3.0, 33.0)],
    ids=["first backward", "in its middle", "last forward of the fill", "first forward after it", "after the step"],
)
def test_pauses_of_the_first_stage_of_1f1b(begin, length, expected):
    """Four stages, eight micro-batches of 1 s forward and 2 s backward: 33 s. The fill hides pauses, the steady state does not."""
    made = pipeline("1f1b")
    outcome = run_with_faults(made.program, made.wires, [SlowWindow("rank 0", (0,), 0.0, begin, begin + length)])
    assert outcome.end == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("stage", range(4))
def test_a_window_as_long_as_the_step_is_a_slow_rank(stage):
    """One stage x 1.2 of 1F1B: 33 + 0.2 x 3 (m - (p - 1 - q)); GPipe: 33 + 0.2 x 3 m, whichever stage it is."""
    for schedule, expected in (("1f1b", 33 + 0.6 * (8 - (3 - stage))), ("gpipe", 37.8)):
        made = pipeline(schedule)
        outcome = run_with_faults(made.program, made.wires, [SlowWindow("slow", (stage,), 1 / 1.2, 0.0)])
        assert outcome.end == pytest.approx(expected, rel=1e-9)


def test_speeds_of_several_causes_multiply_and_come_back():
    program = Program()
    program.add("work", "compute", (Lane(0, "compute"),), duration=10.0)
    half, quarter = SlowWindow("a", (0,), 0.5, 1.0, 9.0), SlowWindow("b", (0,), 0.5, 3.0, 5.0)
    # 1 s at 1, 2 s at 0.5, 2 s at 0.25, 4 s at 0.5: 4.5 s of work by 9 s
    assert run_with_faults(program, Ring(), [half, quarter]).end == pytest.approx(9 + 5.5, rel=1e-12)


@pytest.mark.parametrize(("back", "expected"), [(5.9, 5.9 + 0.015), (6.0 + 1e-6, None), (inf, None)])
def test_a_transfer_gives_up_waiting_for_a_link(back, expected):
    """From when it waits, not from when the link went: 1 s of work, a link that goes at 0.5 s, given up after 5 s."""
    fault = LinkFault("the cable", ((1, 0.0),), 0.5, back, give_up=5.0)
    outcome = run_with_faults(all_reduce(before=1.0), Ring(), [fault])
    if expected is None:
        assert outcome.failure is not None
        assert outcome.end == pytest.approx(6.0, rel=1e-12)
        assert "the cable: a transfer has waited 5 s" in outcome.failure.why
        assert sum(map(isnan, outcome.trace.end)) == 1
    else:
        assert outcome.failure is None
        assert outcome.end == pytest.approx(expected, rel=1e-12)


def test_a_link_that_nobody_needs_while_it_is_down_ends_no_step():
    fault = LinkFault("the cable", ((1, 0.0),), 0.0, 0.9, give_up=0.1)
    assert run_with_faults(all_reduce(before=1.0), Ring(), [fault]).end == pytest.approx(1.015, rel=1e-12)


@pytest.mark.parametrize(("give_up", "expected"), [(0.0, 0.006 + 0.018), (0.01, 0.006 + 0.01 + 0.018)])
def test_other_links_take_over(give_up, expected):
    """9 ms of the ring are left at 6 ms; half of the capacity of what takes over makes them 18 ms, after the time of giving up."""
    fault = LinkFault("the NIC", ((1, 0.0),), 6 * MS, give_up=give_up, fallback=((1, 50 * GB), (2, 50 * GB)))
    assert run_with_faults(all_reduce(), Ring(), [fault]).end == pytest.approx(expected, rel=1e-12)


def test_a_crash_ends_the_step_when_it_is_noticed():
    outcome = run_with_faults(all_reduce(before=1.0), Ring(), [RankFault("rank 2", (2,), "crash", 0.25, 10.0)])
    assert outcome.failure is not None
    assert outcome.end == 10.25
    assert sum(map(isnan, outcome.trace.end)) == 2  # its own work, and the all-reduce


def test_a_hang_is_given_up_after_the_first_has_waited_long_enough():
    """The others wait from 1 s on; between two hangs nobody waits any sooner."""
    hangs = [RankFault(f"rank {rank}", (rank,), "hang", 0.25, 600.0) for rank in (2, 3)]
    for faults in (hangs[:1], hangs):
        outcome = run_with_faults(all_reduce(before=1.0), Ring(), faults)
        assert outcome.failure is not None
        assert outcome.end == 601.0


def test_a_stage_waits_from_when_it_has_nothing_left_to_compute():
    """The second of two stages hangs in its first forward, which began at 1 s: the first computes the rest of its fill until 2 s."""
    made = pipeline("1f1b", micro_batches=4, depth=2)
    outcome = run_with_faults(made.program, made.wires, [RankFault("rank 1", (1,), "hang", 1.5, 600.0)])
    assert outcome.end == 602.0


def test_what_fails_first_ends_the_step():
    faults = [
        RankFault("rank 2", (2,), "hang", 0.25, 600.0),
        RankFault("rank 1", (1,), "crash", 0.5, 10.0),
    ]
    outcome = run_with_faults(all_reduce(before=1.0), Ring(), faults)
    assert outcome.end == 10.5
    assert outcome.failure is not None
    assert outcome.failure.why == "rank 1, which is noticed 10 s later"


def test_a_rank_that_has_done_its_work_may_go():
    made = pipeline("gpipe")
    for kind in ("crash", "hang"):
        outcome = run_with_faults(made.program, made.wires, [RankFault("rank 3", (3,), kind, 32.9, 1.0)])
        assert outcome.failure is None
        assert outcome.end == 33.0


def test_no_fault_is_the_plain_run_to_the_last_bit():
    made = pipeline("1f1b")
    plain = Engine(made.program, made.wires).run()
    for faults in ([], [SlowWindow("rank 0", (0,), 1.0, 3.0, 4.0)], [RankFault("rank 0", (0,), "crash", 33.5, 1.0)]):
        outcome = run_with_faults(made.program, made.wires, faults)
        assert (list(outcome.trace.start), list(outcome.trace.end)) == (list(plain.start), list(plain.end))


def test_a_link_that_the_program_does_not_know_changes_nothing():
    fault = LinkFault("elsewhere", ((77, 0.0),), 0.0, give_up=0.001)
    assert run_with_faults(all_reduce(), Ring(), [fault], Likes(links={0: 0})).end == pytest.approx(15 * MS, rel=1e-12)


@pytest.mark.parametrize("speed", [-0.1, inf])
def test_a_speed_is_finite_and_not_negative(speed):
    with pytest.raises(ParsimError, match="speed of rank 0"):
        run_with_faults(all_reduce(), Ring(), [SlowWindow("rank 0", (0,), speed, 0.0)])
