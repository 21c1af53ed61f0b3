"""Traffic of other jobs: it shares links by max-min, nothing waits for it, and it keeps no clock running."""

from __future__ import annotations

import pytest

from parsim.errors import DeadlockError, ParsimError
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.transfers import Background
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.engine import Engine
from parsim.theory.hashing import background_slowdown

NIC = 25e9


class Card:
    """One link of 25 GB/s; a collective of n bytes is one flow over it."""

    def __init__(self, capacity: float = NIC) -> None:
        self.rate = capacity

    def cost(self, collective: Collective) -> CollectiveCost:
        return CollectiveCost(0.0, (Flow(((0, 1.0),), float(collective.bytes), NIC),))

    def capacity(self, link: int) -> float:
        return self.rate


def stream(rate: float = NIC, link: int = 0) -> Background:
    return Background(((link, 1.0),), rate)


def transfer(volume: float, begin: float = 0.0, every: float = 0.0) -> Background:
    return Background(((0, 1.0),), NIC, volume, begin, every)


def moving(size: int) -> Program:
    program = Program()
    program.add("move", "data_comm", (Lane(0, "data"),), collective=Collective("all_reduce", "data", (0, 1), size))
    return program


def test_two_jobs_on_one_card_share_it_half_and_half() -> None:
    trace = Engine(moving(10**9), Card(), background=[stream()]).run()
    assert trace.makespan == pytest.approx(80e-3, rel=1e-12)  # 40 alone
    assert trace.links[0].bytes == pytest.approx(2e9)
    assert trace.links[0].saturated == pytest.approx(80e-3)


@pytest.mark.parametrize(("rate", "end"), [(5e9, 50e-3), (10e9, 1 / 15), (12.5e9, 80e-3), (100e9, 80e-3)])
def test_a_stream_takes_its_rate_and_at_most_its_share(rate: float, end: float) -> None:
    trace = Engine(moving(10**9), Card(), background=[stream(rate)]).run()
    assert trace.makespan == pytest.approx(end, rel=1e-12)
    assert trace.links[0].bytes == pytest.approx(1e9 + min(rate, NIC / 2) * end)


def test_a_ring_beside_a_transfer() -> None:
    # 1.5 GB of the job and 0.5 GB of another from t=0: the other ends at 40 ms, the job at 80 ms (60 alone)
    trace = Engine(moving(15 * 10**8), Card(), background=[transfer(5e8)]).run()
    assert trace.makespan == pytest.approx(80e-3, rel=1e-12)
    assert trace.links[0].bytes == pytest.approx(2e9)


def test_a_transfer_that_outlasts_the_job_counts_as_far_as_it_came() -> None:
    trace = Engine(moving(5 * 10**8), Card(), background=[transfer(15e8)]).run()
    assert trace.makespan == pytest.approx(40e-3, rel=1e-12)
    assert trace.links[0].bytes == pytest.approx(1e9)


def test_repeated_transfers() -> None:
    # 2 GB from t=0, others of 0.1 GB at 10, 50 and 90 ms: each halves the rate for 8 ms, so 88 ms; the third comes too late
    trace = Engine(moving(2 * 10**9), Card(), background=[transfer(1e8, 10e-3, 40e-3)]).run()
    assert trace.makespan == pytest.approx(88e-3, rel=1e-12)
    assert trace.links[0].bytes == pytest.approx(2.2e9)
    once = Engine(moving(2 * 10**9), Card(), background=[transfer(1e8, 10e-3)]).run()
    assert once.makespan == pytest.approx(84e-3, rel=1e-12)


def test_transfers_that_ask_for_more_than_the_link_has_follow_each_other() -> None:
    # 0.1 GB every 1 ms would be four times the card: each begins when the one before has ended, so the card is halved all along
    trace = Engine(moving(10**9), Card(), background=[transfer(1e8, 0.0, 1e-3)]).run()
    assert trace.makespan == pytest.approx(80e-3, rel=1e-9)
    assert trace.links[0].bytes == pytest.approx(2e9)


@pytest.mark.parametrize("others", [[stream()], [transfer(1e8, 0.0, 1e-3)], [stream(link=1), transfer(1e8, 5.0, 1.0)]])
def test_no_clock_is_kept_running(others: list[Background]) -> None:
    program = Program()
    program.add("work", "compute", (Lane(0, "compute"),), duration=3e-3)
    trace = Engine(program, Card(), background=others).run()
    assert trace.makespan == 3e-3
    assert list(trace.end) == [3e-3]
    assert Engine(Program(), Card(), background=others).run().makespan == 0.0


def test_a_collective_on_other_links_does_not_feel_it() -> None:
    trace = Engine(moving(10**9), Card(), background=[stream(link=1)]).run()
    assert trace.makespan == pytest.approx(40e-3, rel=1e-12)
    assert trace.links[1].bytes == pytest.approx(1e9)


def test_a_run_can_be_repeated() -> None:
    engine = Engine(moving(10**9), Card(), background=[stream(), transfer(1e8, 0.0, 40e-3)])
    assert list(engine.run().end) == list(engine.run().end)


@pytest.mark.parametrize("others", [[stream()], [transfer(1e8, 0.0, 1e-3)]])
def test_a_deadlock_is_found_although_others_go_on(others: list[Background]) -> None:
    program = Program()
    first = program.add("a", "compute", (Lane(0, "compute"),), duration=1e-3)
    second = program.add("b", "compute", (Lane(1, "compute"),), needs=(first,), duration=1e-3)
    second.after.append(first)
    program.blockers[first.index] += 1
    with pytest.raises(DeadlockError, match="2 of 2 ops never ended"):
        Engine(program, Card(), background=others).run()
    with pytest.raises(DeadlockError, match="capacity of link 0"):
        Engine(moving(10**9), Card(0.0), background=others).run()


def test_what_no_time_can_be_made_of_is_refused() -> None:
    for wrong in (transfer(0.0), transfer(1.0, -1.0), transfer(1.0, 0.0, 1e-9), transfer(float("nan"))):
        with pytest.raises(ParsimError, match="background: volume"):
            Engine(moving(1), Card(), background=[wrong]).run()


def turns(every: float, begin: float = 0.0, duty: float = 0.5) -> Background:
    return Background(((0, 1.0),), NIC, begin=begin, every=every, duty=duty)


def test_a_stream_in_turns() -> None:
    # 1 GB, 40 ms alone; the other job has the card's half in 0-30 and 60-90 ms: 0.375 GB by 30 ms, then 25 ms alone
    trace = Engine(moving(10**9), Card(), background=[turns(60e-3)]).run()
    assert trace.makespan == pytest.approx(55e-3, rel=1e-12)
    assert trace.links[0].bytes == pytest.approx(1.375e9)
    # from 10 ms on: 0.25 GB, then 0.375 GB in its turn, then 15 ms alone
    assert Engine(moving(10**9), Card(), background=[turns(60e-3, 10e-3)]).run().makespan == pytest.approx(55e-3, rel=1e-12)
    assert Engine(moving(10**9), Card(), background=[turns(60e-3, 55e-3)]).run().makespan == pytest.approx(40e-3, rel=1e-12)


def test_turns_much_shorter_and_much_longer_than_a_transfer() -> None:
    alone = 40e-3
    fast = Engine(moving(10**9), Card(), background=[turns(1e-4)]).run().makespan / alone
    assert fast == pytest.approx(background_slowdown(1, 0.5, fast=True), rel=2e-3)
    # a transfer meets a turn, or none: the mean over when it begins
    slow = [Engine(moving(10**9), Card(), background=[turns(1.0, begin)]).run().makespan / alone for begin in (0.0, 0.5)]
    assert sum(slow) / 2 == pytest.approx(background_slowdown(1, 0.5, fast=False), rel=1e-12)
    three = Engine(moving(10**9), Card(), background=[turns(1e-4), turns(1e-4), turns(1e-4)]).run().makespan / alone
    assert three == pytest.approx(background_slowdown(3, 0.5, fast=True), rel=4e-3)


def test_streams_in_turns_keep_no_clock_running_and_are_checked() -> None:
    assert Engine(Program(), Card(), background=[turns(1e-3)]).run().makespan == 0
    with pytest.raises(DeadlockError):
        Engine(moving(10**9), Card(0.0), background=[turns(1e-3)]).run()
    for wrong in (turns(0.0), turns(1e-3, duty=0.0), turns(1e-3, duty=1.5), Background(((0, 1.0),), NIC, 1e9, 0.0, 1e-3, 0.5)):
        with pytest.raises(ParsimError, match="duty"):
            Engine(moving(10**9), Card(), background=[wrong]).run()
