"""A training in which things break at given moments: worked out by hand, against a loop over pieces, and what shows a law to be one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import inf, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim import theory
from parsim.simulation.failure_times import Strike
from parsim.simulation.interrupted import FailureCause, GivenFailure, InterruptedTraining, Pace
from parsim.simulation.training import train

M = theory.observed_mtbf(54 * 24, 419)


def job(**other: object) -> InterruptedTraining:
    return InterruptedTraining(**{"causes": (), "interval": 1e9, "stall": 10.0, "horizon": 1e9, "work": 300.0, **other})  # type: ignore[arg-type]


def rows(training: InterruptedTraining) -> list[tuple[float, float, str, str]]:
    return [(piece.begin, piece.end, piece.kind, piece.cause) for piece in train(training).pieces]


def test_a_slow_window_is_less_work_and_a_pause_is_none() -> None:
    """Half of the speed from 100 to 200 costs 50 s; no speed from 210 to 230 costs its 20 s; nothing is lost."""
    paces = (Pace(100.0, 0.5, "slow"), Pace(200.0, 1.0), Pace(210.0, 0.0, "pause"), Pace(230.0, 1.0))
    assert rows(job(paces=paces)) == [
        (0, 100, "train", ""), (100, 200, "train", "slow"), (200, 210, "train", ""), (210, 230, "wait", "pause"), (230, 370, "train", ""),
    ]  # fmt: skip
    run = train(job(paces=paces))
    assert (run.work, run.spent("train"), run.goodput) == (300, 350, 300 / 370)


def test_standing_still_is_no_training_between_checkpoints() -> None:
    """A checkpoint every 100 s of training; 60 s of standing still do not count, 50 s at half of the speed do."""
    paces = (Pace(40.0, 0.0, "pause"), Pace(100.0, 0.5, "slow"), Pace(150.0, 1.0))
    run = train(job(paces=paces, interval=100.0, work=200.0))
    assert [piece.begin for piece in run.pieces if piece.kind == "save"] == [160, 270]
    assert run.wall == 270 + 10 + 25


@settings(max_examples=60, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=8), work=st.integers(50, 500))
def test_work_is_the_integral_of_the_speed(changes: list[tuple[int, int]], work: int) -> None:
    times = [0, *(sum(length for length, _ in changes[: place + 1]) for place in range(len(changes)))]
    speeds = [1.0, *(eighths / 8 for _, eighths in changes)]
    speeds[-1] = 1.0
    run = train(job(work=float(work), paces=tuple(Pace(float(at), speed) for at, speed in zip(times, speeds, strict=True))))
    left, end = Fraction(work), Fraction(0)
    for (at, following), speed in zip(pairwise([*times, 10**9]), speeds, strict=True):
        if left and left <= (following - at) * Fraction(speed):
            left, end = Fraction(0), at + left / Fraction(speed)
        left -= min(left, (following - at) * Fraction(speed))
    assert run.wall == pytest.approx(float(end), rel=1e-12)
    assert run.work == pytest.approx(work, rel=1e-12)


def test_a_given_failure_is_a_failure_like_any_other() -> None:
    cause = FailureCause("crash", inf, 10.0, 20.0)
    training = job(interval=100.0, given=(GivenFailure(cause, Strike(150.0)),))
    drawn = train(replace(training, given=(), causes=(FailureCause("crash", 1e9, 10.0, 20.0),)), {"crash": [Strike(150.0)]})
    assert train(training).pieces == drawn.pieces
    assert train(training).failures == {"crash": 1}


def test_nothing_goes_on_before_a_link_is_mended() -> None:
    """It fails at 150 and is noticed at 160; the link is back at 500, and 20 s later the job. Another failure meanwhile changes nothing."""
    cause = FailureCause("link", inf, 10.0, 20.0)
    training = job(interval=100.0, given=(GivenFailure(cause, Strike(150.0), 500.0),))
    assert rows(training)[2:6] == [
        (110, 150, "lost", "link"), (150, 160, "detect", "link"), (160, 500, "wait", "link"), (500, 520, "restart", "link"),
    ]  # fmt: skip
    twice = train(replace(training, causes=(FailureCause("gpu", 1e9, 0.0, 20.0),)), {"gpu": [Strike(300.0)]})
    assert twice.wall == train(training).wall


def test_a_replica_that_is_back_shortens_what_is_left() -> None:
    """Two replicas; one is away from 150 to 550 and nobody stops: 150 + 200 + 650 s of work, done at 1,200."""
    causes = (FailureCause("any", 1e9, 0.0, 0.0, repair=400.0),)
    run = train(job(policy="replica", replicas=2, causes=causes, work=1000.0), {"any": [Strike(150.0)]})
    assert (run.wall, run.work) == (1200, 1000)


def test_replicas_that_leave_at_once() -> None:
    """Of four replicas two are away from 150 to 550: 150 + 200 + 650 s of work, done at 1,200; a strike on those two hits nobody."""
    cause = FailureCause("node", inf, 0.0, 0.0, repair=400.0)
    training = job(policy="replica", replicas=4, work=1000.0, given=(GivenFailure(cause, Strike(150.0), replicas=(0, 1)),))
    run = train(training)
    assert (run.wall, run.work, run.failures) == (1200, 1000, {"node": 1})
    again = GivenFailure(cause, Strike(300.0), replicas=(0, 1))
    assert train(replace(training, given=(*training.given, again))).pieces == run.pieces
    apart = tuple(GivenFailure(cause, Strike(150.0), replicas=(one,)) for one in (0, 1))
    assert train(replace(training, given=apart)).wall == run.wall
    assert train(replace(training, spares=1)).wall == 1000  # one machine lacks, and one stands by
    assert train(replace(training, spares=1, given=apart)).wall == 150 + 400 + 550  # one of two: three of four replicas for 400 s


def test_the_last_replicas_take_the_work_with_them() -> None:
    """Two leave at 150, the others at 200: nobody trains on, and what was not saved is lost."""
    cause = FailureCause("node", inf, 0.0, 0.0, repair=400.0)
    both = tuple(GivenFailure(cause, Strike(at), replicas=which) for at, which in ((150.0, (0, 1)), (200.0, (2, 3))))
    run = train(job(policy="replica", replicas=4, interval=100.0, work=300.0, given=both))
    assert run.spent("lost") > 0
    assert [(piece.begin, piece.end) for piece in run.pieces if piece.kind == "wait"] == [(200, 550)]


def test_what_is_cut_off_comes_back_with_its_link() -> None:
    """At 150 half of the replicas are cut off until 500: with `elastic` work done since 110 is lost, and they join at the next save."""
    cause = FailureCause("link", inf, 10.0, 20.0)
    training = job(interval=100.0, policy="elastic", replicas=2, restart=20.0, given=(GivenFailure(cause, Strike(150.0), 500.0, (1,)),))
    assert rows(training) == [
        (0, 100, "train", ""), (100, 110, "save", ""), (110, 150, "lost", "link"), (150, 160, "detect", "link"),
        (160, 180, "restart", "link"), (180, 280, "train", ""), (280, 290, "save", ""), (290, 390, "train", ""), (390, 400, "save", ""),
        (400, 500, "train", ""), (500, 510, "save", ""), (510, 530, "restart", "rejoin"), (530, 580, "train", ""),
    ]  # fmt: skip


def test_what_is_written_in_the_background_slows_training() -> None:
    """Saves of 10 s each 100 s, durable 50 s later, in which training has 0.6 of its speed: 20 s of work less after each save."""
    run = train(job(interval=100.0, lag=50.0, writing_speed=0.6, work=200.0))
    assert [(piece.begin, piece.end) for piece in run.pieces if piece.kind == "save"] == [(100, 110), (210, 220)]
    assert run.wall == pytest.approx(220 + 20 / 0.6, rel=1e-12)
    assert run.work == pytest.approx(200)
    assert train(job(interval=100.0, lag=50.0, work=200.0)).wall == 210


# what the law of exponential failures is worth


def law(interval: float, failures: float = 3000.0) -> InterruptedTraining:
    return InterruptedTraining((FailureCause("any", M, 0.0, 300.0),), interval=interval, stall=60.0, horizon=failures * M)


def test_the_law_knows_random_failures_from_regular_ones() -> None:
    """As many failures, each just before a save is done: 1,197 s lost every time, where random ones lose 579 on average."""
    every = 9 * 1198.0 + 300.0 - 1.0
    regular = train(law(1138.0, 300.0), {"any": [Strike(every * number - 300.0) for number in range(1, 400)]})
    expected = theory.exact_goodput(every, 1138, 60, 300)
    assert abs(regular.goodput / expected - 1) > 0.03
    assert train(law(1138.0)).goodput == pytest.approx(theory.exact_goodput(M, 1138, 60, 300), rel=0.01)


def test_the_best_interval_is_best_in_the_simulation() -> None:
    """On the same failures, against twice and half of it; Young's sqrt(2 s M) is 3.6 % longer and as good to 1e-4 in the form."""
    best = theory.exact_interval(60.0, M)
    assert best == pytest.approx(1116.296, abs=1e-3)
    goodputs = [train(law(best * factor, 2000.0)).goodput for factor in (0.5, 1.0, 2.0)]
    assert goodputs[1] == max(goodputs)
    assert goodputs == [pytest.approx(theory.exact_goodput(M, best * factor, 60, 300), rel=0.01) for factor in (0.5, 1.0, 2.0)]
    young = theory.exact_goodput(M, sqrt(2 * 60 * M), 60, 300)
    assert theory.best_goodput(M, 60, 300) * (1 - 1e-4) < young < theory.best_goodput(M, 60, 300)
