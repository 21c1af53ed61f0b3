"""Goodput in closed form where some faults come at given moments: by hand, and against the trainings of the simulation."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from parsim.report.given_goodput import expected_goodput
from parsim.report.goodput import Failures
from parsim.simulation.failure_times import Strike
from parsim.simulation.interrupted import FailureCause, GivenFailure, InterruptedTraining, Pace
from parsim.simulation.training import train

NEVER = 1e30
"""mean time between failures [s]"""
CYCLE = 110.0
"""100 s of training and a save of 10 s"""


def job(**other: object) -> InterruptedTraining:
    return InterruptedTraining(**{"causes": (), "interval": 100.0, "stall": 10.0, "horizon": 100 * CYCLE, "restart": 20.0, **other})  # type: ignore[arg-type]


def form(training: InterruptedTraining) -> float:
    return expected_goodput(Failures(NEVER, training.stall, 20.0, training.interval, lag=training.lag), training)


def crash(at: float, repair: float = 1000.0, **other: object) -> GivenFailure:
    return GivenFailure(FailureCause("crash", inf, 10.0, 20.0, repair=repair), Strike(at), **other)  # type: ignore[arg-type]


def test_without_any_it_is_the_form_without_them() -> None:
    failures = Failures(11_135.0, 60.0, 300.0, 1138.0)
    assert expected_goodput(failures, job()) == failures.goodput == pytest.approx(0.8758160, rel=1e-5)


def test_by_hand() -> None:
    """Of 11,000 s: half of the speed for 1,000 s, none for 110 s, and a crash of 30 s whose 55 s are done again."""
    slow = (Pace(2000.0, 0.5), Pace(3000.0, 1.0), Pace(5000.0, 0.0), Pace(5110.0, 1.0))
    assert form(job(paces=slow)) == pytest.approx(100 / 110 * (11_000 - 500 - 110) / 11_000, rel=1e-12)
    assert form(job(given=(crash(7000.0),))) == pytest.approx(100 / 110 * (11_000 - 30 - 55) / 11_000, rel=1e-12)
    both = form(job(paces=slow, given=(crash(2500.0),)))  # in the slow while: its 85 s were worth half
    assert both == pytest.approx(100 / 110 * (11_000 - 500 - 110 - 42.5) / 11_000, rel=1e-12)


def test_a_training_of_given_length() -> None:
    """5,000 s of work are 5,500 s of wall time; a crash at 3,000 s makes it 85 s longer, one behind the end nothing."""
    assert form(job(work=5000.0, given=(crash(3000.0),))) == pytest.approx(5000 / 5585, rel=1e-9)
    assert form(job(work=5000.0, given=(crash(8000.0),))) == pytest.approx(5000 / 5500, rel=1e-9)


@pytest.mark.parametrize(
    "training",
    [
        job(),
        job(lag=40.0),
        job(paces=(Pace(2000.0, 0.4), Pace(4000.0, 1.0))),
        job(policy="elastic", replicas=4, horizon=300 * CYCLE),
        job(policy="replica", replicas=4, horizon=300 * CYCLE),
        job(policy="replica", replicas=4, spares=1),
    ],
)
def test_the_mean_over_the_moment_of_a_crash_is_the_form(training: InterruptedTraining) -> None:
    """The crash, the end of its repair and the horizon at each of 55 moments of a cycle, apart: what it costs, to 2 %."""
    where = {"replicas": (1, 2)} if training.replicas > 1 else {}
    ends = [training.horizon + 2.0 * (7 * place % 55) for place in range(55)]
    runs = [
        replace(training, horizon=end, given=(crash(30 * CYCLE + 2.0 * place + 1.0, 1000.0 + 2.0 * (13 * place % 55), **where),))
        for place, end in enumerate(ends)
    ]
    whole = [replace(training, horizon=end) for end in ends]
    cost, expected = (
        sum(work(without) - work(run) for without, run in zip(whole, runs, strict=True)) / len(runs)
        for work in (lambda one: train(one).work, lambda one: form(one) * one.horizon)
    )
    assert cost > 25
    assert expected == pytest.approx(cost, rel=0.02)


def test_beside_failures_at_a_constant_rate() -> None:
    """Llama 3's rate for 54 days, half of the speed for ten of them and twenty crashes: the mean of 40 sample paths."""
    mtbf, day = 11_135.08, 86_400.0
    given = tuple(GivenFailure(FailureCause("crash", inf, 60.0, 300.0), Strike(day * (place + 0.3))) for place in range(20))
    training = InterruptedTraining(
        (FailureCause("any", mtbf, 0.0, 300.0),), 1138.0, 60.0, 54 * day, given=given, paces=(Pace(25 * day, 0.5), Pace(35 * day, 1.0))
    )
    failures = Failures(mtbf, 60.0, 300.0, 1138.0)
    expected = expected_goodput(failures, training)
    assert expected < failures.goodput - 0.08
    paths = [train(replace(training, run=run)).goodput for run in range(40)]
    assert sum(paths) / 40 == pytest.approx(expected, rel=2e-3)
