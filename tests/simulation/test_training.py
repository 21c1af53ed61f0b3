"""A training over weeks against closed forms, failures at given times, and the laws of its books."""

from __future__ import annotations

from dataclasses import replace
from math import exp, expm1, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim import theory
from parsim.simulation.failure_times import Strike, drawn
from parsim.simulation.interrupted import FailureCause, GivenFailure, InterruptedTraining, Pace, TrainingRun
from parsim.simulation.training import train

M = theory.observed_mtbf(54 * 24, 419)
LONG = 3000 * M
DAYS = 86_400.0


def job(restart: float = 300.0, interval: float = 1138.0, stall: float = 60.0, **other: object) -> InterruptedTraining:
    return InterruptedTraining((FailureCause("any", M, 0.0, restart),), interval=interval, stall=stall, **{"horizon": LONG, **other})  # type: ignore[arg-type]


def sums_up(run: TrainingRun) -> None:
    """Pieces follow each other from the begin to the end, and no work is counted twice."""
    now = 0.0
    for piece in run.pieces:
        assert piece.begin == now
        assert piece.end > now
        now = piece.end
    assert now == pytest.approx(run.wall, rel=1e-12)
    assert 0 <= run.work <= run.spent("train") * (1 + 1e-9)
    assert sum(run.failures.values()) == len(run.struck)


@pytest.mark.parametrize(
    ("failures", "end", "lost"), [((150,), 380, 40), ((150, 300), 420, 60), ((150, 275), 505, 145), ((150, 160), 390, 40), ((), 320, 0)]
)
def test_failures_at_given_times(failures: tuple[float, ...], end: float, lost: float) -> None:
    """300 s of work, saved for 10 s after each 100 s; restarts take 20 s. A failure in a save or a restart costs all of it."""
    run = train(job(20.0, 100.0, 10.0, work=300.0), {"any": [Strike(at) for at in failures]})
    assert (run.wall, run.spent("lost"), run.work) == (end, lost, 300)
    assert run.spent("train") == 300
    sums_up(run)


@settings(max_examples=60, deadline=None)
@given(
    failures=st.lists(st.integers(1, 2000), max_size=8, unique=True), interval=st.integers(5, 200), stall=st.integers(1, 50),
    restart=st.integers(1, 100), segments=st.integers(1, 6),
)  # fmt: skip
def test_the_same_as_a_loop_over_failures(failures: list[int], interval: int, stall: int, restart: int, segments: int) -> None:
    """Half seconds apart from every end, so that no two things happen at once."""
    times = sorted(failure + 0.5 for failure in failures)
    run = train(job(restart, interval, stall, work=float(segments * interval)), {"any": [Strike(at) for at in times]})
    wall, lost = theory.replayed_wall_time(segments * interval, interval, stall, restart, [at for at in times if at < run.wall])
    assert (run.wall, run.spent("lost")) == (wall, lost)
    sums_up(run)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (job(), theory.exact_goodput(M, 1138, 60, 300)),
        (job(300.0, 600.0, 5.0, lag=120.0), theory.exact_goodput(M, 600, 5, 300, lag=120)),
        (job(600.0, 2388.763, 300.0), theory.best_goodput(M, 300, 600)),
    ],
)  # fmt: skip
def test_random_failures_meet_the_closed_form(training: InterruptedTraining, expected: float) -> None:
    run = train(training)
    assert run.goodput == pytest.approx(expected, rel=0.01)
    assert run.goodput == pytest.approx(run.ettr, rel=1e-9)


def test_restarts_of_two_lengths() -> None:
    """Nine of ten failures cost 120 s, the tenth 1,800 s, of which 1,000 s until it is noticed: 0.8776236 (random restart times)."""
    causes = (FailureCause("process", M / 0.9, 0.0, 120.0), FailureCause("host", M / 0.1, 1000.0, 800.0))
    run = train(replace(job(), causes=causes))
    assert run.goodput == pytest.approx(0.8776236, rel=0.01)
    assert run.failures["process"] == pytest.approx(9 * run.failures["host"], rel=0.15)


def test_a_job_of_known_length() -> None:
    """200 intervals of 1,138 s: 259,803 s on average; 60 sample paths of one seed."""
    walls = [train(job(work=200 * 1138.0, run=run)).wall for run in range(60)]
    assert sum(walls) / len(walls) == pytest.approx(theory.finite_wall_time(200, 1138, 60, 300, M), rel=0.01)


def test_copies_in_memory() -> None:
    """90 % of failures go on from a copy in memory 5 s old at once, the others from storage 600 s later: between the two forms."""
    causes = (FailureCause("process", M / 0.9, 0.0, 120.0, in_memory=True), FailureCause("host", M / 0.1, 0.0, 600.0))
    training = replace(job(0.0, 157.3, 1.0), causes=causes, lag=120.0, horizon=1000 * M)
    between = theory.mtbf_with_restarts(M, [(0.9, 120), (0.1, 600)])
    kept = 0.9 + 0.1 * exp(-120 / M)
    assert train(training).goodput == pytest.approx(157.3 * kept / (between * expm1(158.3 / M)), rel=0.01)


def test_replicas_that_come_back() -> None:
    """32 replicas, one away for 2 h after each failure of its 512 GPUs, nobody else stops: 0.980194 of the work."""
    mtbf = 50_677 * 3600 / 16_384
    causes = (FailureCause("any", mtbf, 0.0, 0.0, repair=7200.0),)
    run = train(InterruptedTraining(causes, 1e9, 0.0, 4000 * mtbf, policy="replica", replicas=32))
    assert run.goodput == pytest.approx(theory.replica_capacity(50_677 / 512, 2), rel=2e-3)
    assert run.ettr == pytest.approx(1.0)
    sums_up(run)


def test_a_replica_that_breaks_stops_the_others_for_a_moment() -> None:
    """Two replicas; one breaks at 150, is back at 550: 180 s of stall, 220 s alone, and a checkpoint after 1,000 s."""
    causes = (FailureCause("any", M, 30.0, 150.0, repair=400.0),)
    training = InterruptedTraining(causes, 1000.0, 10.0, 2000.0, policy="replica", replicas=2, work=1000.0)
    run = train(training, {"any": [Strike(150.0)]})
    assert [(piece.end, piece.kind) for piece in run.pieces] == [
        (150, "train"), (180, "detect"), (330, "restart"), (550, "train"), (1180, "train"), (1190, "save"), (1300, "train"),
    ]  # fmt: skip
    assert run.work == 1000
    everything = train(training, {"any": [Strike(150.0), Strike(400.0, 0.9)]})
    assert everything.spent("lost") == 220, "the last replica takes the work with it"
    assert everything.spent("wait") > 0


def test_an_elastic_job_goes_on_with_fewer_replicas() -> None:
    """Four replicas; one breaks at 150 and is back at 350. It joins after the next checkpoint, in a stop of 20 s."""
    causes = (FailureCause("any", M, 0.0, 20.0, repair=200.0),)
    training = InterruptedTraining(causes, 100.0, 10.0, 1e4, policy="elastic", replicas=4, restart=20.0, work=400.0)
    run = train(training, {"any": [Strike(150.0)]})
    assert [(piece.begin, piece.kind, piece.cause) for piece in run.pieces] == [
        (0, "train", ""), (100, "save", ""), (110, "lost", "any"), (150, "restart", "any"), (170, "train", ""), (270, "save", ""),
        (280, "train", ""), (380, "save", ""), (390, "restart", "rejoin"), (410, "train", ""), (510, "save", ""), (520, "train", ""),
    ]  # fmt: skip
    assert run.wall == 570, "100 + 2 x 75 with three of four replicas, 100 and 50 with all"
    assert run.work == 400


def test_a_job_waits_for_a_machine() -> None:
    """One spare; the second failure within its repair waits until 150 + 500."""
    causes = (FailureCause("any", M, 0.0, 20.0, repair=500.0),)
    training = InterruptedTraining(causes, 100.0, 10.0, 1e4, spares=1, work=300.0)
    run = train(training, {"any": [Strike(150.0), Strike(200.0)]})
    assert [(piece.begin, piece.end) for piece in run.pieces if piece.kind == "wait"] == [(200, 650)]
    assert train(replace(training, spares=2), {"any": [Strike(150.0), Strike(200.0)]}).spent("wait") == 0
    assert train(replace(training, policy="hot_spare"), {"any": [Strike(150.0), Strike(200.0)]}).pieces == run.pieces


def test_silent_corruption_is_lost_work() -> None:
    """Nobody notices for 70 s: the job trains on for nothing."""
    run = train(
        replace(job(20.0, 100.0, 10.0, work=300.0), causes=(FailureCause("any", M, 70.0, 20.0, silent=True),)), {"any": [Strike(150.0)]}
    )
    assert (run.wall, run.spent("lost"), run.spent("detect")) == (450, 110, 0)


@settings(max_examples=80, deadline=None)
@given(
    policy=st.sampled_from(["restart", "elastic", "replica", "hot_spare"]), replicas=st.integers(2, 5), spares=st.integers(0, 3),
    stall=st.floats(0, 100), lag=st.floats(0, 100), seed=st.integers(0, 2**63 - 1), repair=st.sampled_from([0.0, 500.0, 50_000.0]),
    rate=st.floats(500, 50_000), memory=st.booleans(), speeds=st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=5),
    writing=st.sampled_from([1.0, 0.7]), at=st.lists(st.floats(0, 40_000), max_size=3),
)  # fmt: skip
def test_time_is_accounted_for(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    policy, replicas, spares, stall, lag, seed, repair, rate, memory, speeds, writing, at
) -> None:
    causes = (
        FailureCause("gpu", rate, 10.0, 200.0, repair, in_memory=memory), FailureCause("network", 3 * rate, 600.0, 100.0),
        FailureCause("silent", 10 * rate, 900.0, 100.0, silent=True),
    )  # fmt: skip
    broken = tuple(
        GivenFailure(FailureCause(f"given {begin}", inf, 30.0, 100.0, repair), Strike(begin, 0.5), begin + 700.0) for begin in at
    )
    paces = tuple(Pace(3000.0 * number, speed, "slow") for number, speed in enumerate(speeds))
    training = InterruptedTraining(
        causes, 300.0, stall, 40_000.0, lag, policy, replicas, spares, 200.0, seed=seed, given=broken, paces=paces, writing_speed=writing
    )
    run = train(training)
    sums_up(run)
    assert run.wall == 40_000
    assert run == train(training), "the same again"


def test_draws_belong_to_their_cause() -> None:
    """Neither another cause nor another rate changes them; a rate twice as high brings them twice as early."""
    first = [strike for strike, _ in zip(drawn(100.0, "gpu", 7), range(100), strict=False)]
    twice = [strike for strike, _ in zip(drawn(50.0, "gpu", 7), range(100), strict=False)]
    assert [one.at for one in twice] == pytest.approx([one.at / 2 for one in first])
    assert [one.where for one in twice] == [one.where for one in first]
    assert next(drawn(100.0, "gpu", 8)) != first[0] != next(drawn(100.0, "nic", 7)) != next(drawn(100.0, "gpu", 7, run=1))
    alone = train(job(horizon=54 * DAYS)).struck
    both = train(replace(job(horizon=54 * DAYS), causes=(FailureCause("any", M, 0.0, 300.0), FailureCause("other", M, 0.0, 300.0)))).struck
    assert alone == tuple(one for one in both if one[1] == "any")
