"""Faults of a scenario: folded as unfolded, and what the loss of a NIC, a hang and a flap cost on a real machine's links."""

from __future__ import annotations

import pytest
from broken_runs import run_with_faults
from test_folding import H100, HASHED, NARROW_RAILS, OVERSUBSCRIBED, STREAM, differences, scenario

from parsim import theory
from parsim.execution.faulted import FaultedStep
from parsim.execution.prepared import prepare
from parsim.hardware.interconnect import Interconnect
from parsim.program.program import Collective, Lane, Program
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.simulation.engine import Engine

MIXTURE = {"base": "mixtral-8x7b", "layers": 2, "hidden": 512, "mlp": 256, "vocabulary": 1024, "experts": {"count": 16, "top_k": 2}}
DP = scenario(H100, 2, {"strategy": "fsdp"})
THIN = {"nic": "node1/nic2", "at": "1 ms", "bandwidth": "x0.5"}
FLAP = {"nic": "node0/nic7", "at": "2 ms", "until": "9 ms", "down": True}
RESPREAD = {"nic": "node1/nic2", "at": "1 ms", "down": True, "fallback": "respread"}
NEIGHBOUR = {"nic": "node1/nic2", "at": "1 ms", "down": True, "fallback": "neighbour", "until": "20 ms"}
LOST = {"nic": "node1/nic2", "at": "1 ms", "down": True, "give_up": "1 s"}
CASES = {
    "a NIC at half of its rate, and one that comes back": (None, DP, [THIN, FLAP], []),
    "a NIC whose work others do": (None, DP, [RESPREAD], []),
    "a NIC whose work its neighbour does for a while": (None, DP, [NEIGHBOUR], []),
    "a NIC that is lost": (None, DP, [LOST, FLAP], []),
    "an NVLink": (None, DP, [{"link": "node0.gpu3-nvswitch", "at": "1 ms", "until": "30 ms", "bandwidth": "20 GB/s"}], []),
    "a trunk of an oversubscribed fat tree, beside another job": (
        None, scenario(H100, 4, {"tp": 2, "pp": 2}, cluster={**OVERSUBSCRIBED, "background": STREAM}),
        [{"link": "leaf0-spine", "at": "5 ms", "until": "20 ms", "bandwidth": "x0.25"}], [],
    ),
    "one cable of hashed routes": (
        None, scenario(H100, 4, {"tp": 4, "strategy": "zero1"}, cluster=HASHED),
        [{"link": "leaf0->spine0", "at": "1 ms", "until": "12 ms", "down": True}], [],
    ),
    "a rail that is thin already": (
        None, scenario(H100, 4, {"tp": 4}, cluster=NARROW_RAILS), [{"link": "rail1.leaf0-spine", "at": "0 s", "bandwidth": "x0.5"}], [],
    ),
    "a thin NIC of a rank of experts, whose tokens cross machines": (
        None, scenario(H100, 2, {"strategy": "zero1", "expert": {"size": 8, "dispatcher": "alltoall"}}, model=MIXTURE), [THIN], [],
    ),
    "a thin NIC beside wide expert parallelism": (
        None, scenario(H100, 2, {"strategy": "zero1", "expert": {"size": 16, "dispatcher": "deepep"}}, model=MIXTURE), [THIN], [],
    ),
    "a rank that is slow for a while": (2, scenario(H100, 2), [], [{"rank": 5, "speed": 0.5, "from": "4 ms", "to": "20 ms"}]),
    "a node that is slow from some time on": (2, scenario(H100, 2, {"pp": 2}), [], [{"node": 1, "speed": 0.8, "from": "10 ms"}]),
    "a hang": (None, scenario(H100, 2, {"tp": 2, "pp": 2}), [{"rank": 5, "at": "11 ms", "kind": "hang"}], []),
    "a crash": (None, DP, [{"node": 1, "at": "3 ms", "kind": "crash", "detect": "5 s"}], [{"rank": 2, "speed": 0.5, "to": "9 ms"}]),
}  # fmt: skip


def with_faults(tree, faults, slow=()):
    return {**tree, "variability": {"faults": list(faults), "slow": list(slow)}}


@pytest.mark.parametrize("name", CASES)
def test_a_folded_step_with_faults_is_the_unfolded_one(name):
    classes, tree, faults, slow = CASES[name]
    model = tree["model"] if tree["model"] is MIXTURE else {"base": "gpt2", "layers": 4}
    built = build(load({**with_faults(tree, faults, slow), "model": model}))
    folded, whole = (FaultedStep(prepared, prepared.run().makespan) for prepared in (prepare(built), prepare(built, unfolded=True)))
    assert len(folded.split.classes.representatives) < len(built.gpus)
    assert classes in (None, len(folded.split.classes.representatives))
    assert folded.nominal == pytest.approx(whole.nominal, rel=1e-9)
    for one, other in ((folded.rows(), whole.rows()), *zip(*([step.together] for step in (folded, whole)), strict=True)):
        rows = [[vars(row.effect) for row in rows] if isinstance(rows, tuple) else [{"end": rows.end}] for rows in (one, other)]
        for first, second in zip(*rows, strict=True):
            assert differences(without_words(first), without_words(second)) == []


def without_words(effect):
    """Its numbers; what a step loses is a difference of times that are equal to 1e-9."""
    return {key: value for key, value in effect.items() if key not in ("why", "gpu_seconds_lost")}


def test_the_report_with_faults_is_the_report_without_them():
    """But for `variability` and what the scenario says; folded as unfolded; and pictures show the step with them."""
    faults, slow = CASES["a NIC at half of its rate, and one that comes back"][2:]
    folded, whole, plain = (simulate(with_faults(DP, faults, slow)), simulate(with_faults(DP, faults, slow), unfolded=True), simulate(DP))
    one, other, undisturbed = (report.document() for report in (folded, whole, plain))
    assert undisturbed["variability"] is None
    for row, same in zip(one["variability"]["faults"], other["variability"]["faults"], strict=True):
        assert row["effect"].pop("gpu_seconds_lost") == pytest.approx(same["effect"].pop("gpu_seconds_lost"), rel=1e-6)
    assert one["variability"]["disturbed"].pop("gpu_seconds_lost") > 0
    assert other["variability"]["disturbed"].pop("gpu_seconds_lost") > 0
    simulation = one.pop("simulation"), other.pop("simulation"), undisturbed.pop("simulation")
    assert differences(one, other) == []
    assert simulation[0]["ranks_simulated"] == simulation[2]["ranks_simulated"] == 1
    assert folded.shown.step_time == one["variability"]["disturbed"]["step_time_s"]
    assert plain.shown is plain
    disturbed = one.pop("variability")
    assert disturbed["disturbed"]["step_time_s"] > one["step_time_s"]
    assert {key for key, value in one.items() if value != undisturbed[key]} <= {"scenario", "assumptions", "provenance"}


def test_what_breaks_costs_something():
    effects = {}
    for fault in (THIN, FLAP, RESPREAD, NEIGHBOUR):
        document = simulate(with_faults(DP, [fault])).document()
        (row,) = document["variability"]["faults"]
        assert row["effect"] == document["variability"]["disturbed"]
        late = row["effect"]["step_time_s"] - document["step_time_s"]
        assert row["effect"]["gpu_seconds_lost"] == pytest.approx(16 * late, rel=1e-9)
        effects[str(fault)] = late
    assert all(late > 0 for late in effects.values())
    assert effects[str(RESPREAD)] < effects[str(THIN)]
    assert effects[str(FLAP)] <= 7e-3 * (1 + 1e-9)


# -- one collective on the links of two machines ----------------------------------------------------------------------------------


def alone(fault, size=10**9):
    """What an all-reduce of 16 GPUs takes beyond its latency, without and with a fault, rings at the capacities of the links."""
    built = build(load(with_faults(scenario("dgx-a100-80gb", 2, cluster={"collectives": {"profile": "ring"}}), [fault])))
    wires = Interconnect(built.cluster, built.gpus, built.collectives)
    collective = Collective("all_reduce", "data", tuple(range(16)), size)
    program = Program()
    program.add("grads", "data_comm", tuple(Lane(rank, "data") for rank in range(16)), collective=collective)
    latency = wires.cost(collective).latency
    outcome = run_with_faults(program, wires, [broken.fault for broken in built.faults])
    return Engine(program, wires).run().makespan - latency, outcome.end - latency, latency, outcome


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        ({"down": True, "fallback": "respread"}, 8 / 7),
        ({"down": True, "fallback": "neighbour"}, 2.0),
        ({"bandwidth": "x0.5"}, 2.0),
        ({"bandwidth": "x1"}, 1.0),
    ],
)
def test_the_loss_of_one_nic_of_eight(fault, times):
    before, after, _, _ = alone({"nic": "node1/nic2", "at": "0 s", **fault})
    assert after / before == pytest.approx(times, rel=1e-9)


def test_a_lost_nic_ends_the_job_when_all_retries_are_used_up():
    before, _, latency, outcome = alone({"nic": "node0/nic3", "at": "1 ms", "down": True})
    assert outcome.failure is not None
    assert outcome.failure.at == pytest.approx(1e-3 + theory.give_up_time(), rel=1e-12)
    assert theory.give_up_time() == pytest.approx(30.064771, abs=5e-7)
    for back, ends in ((30.0657, True), (30.0658, False)):  # the last retry is at 30.065771 s
        _, after, _, outcome = alone({"nic": "node0/nic3", "at": "1 ms", "until": f"{back} s", "down": True})
        assert (outcome.failure is None) is ends
        if ends:
            assert after + latency == pytest.approx(theory.slowed_end(before + latency, 1.0, 0.0, 1e-3, back), rel=1e-9)


def test_a_flap_of_a_nic_ends_at_a_retry_of_its_queue_pairs():
    """Down for 5 s: the first timer of 4.295 s finds nothing, the second finds it back."""
    before, after, latency, outcome = alone({"nic": "node0/nic3", "at": "1 ms", "until": "5001 ms", "down": True, "retry": "auto"})
    assert outcome.failure is None
    assert after + latency == pytest.approx(theory.slowed_end(before + latency, 1.0, 0.0, 1e-3, 1e-3 + 2 * theory.retry_timer()), rel=1e-9)


def test_all_wait_for_the_watchdog_when_a_rank_hangs():
    document = simulate(with_faults(scenario(H100, 2), [{"rank": 0, "at": "0 s", "kind": "hang"}])).document()
    effect = document["variability"]["disturbed"]
    assert (effect["step_time_s"], effect["ended"]) == (None, False)
    waited = effect["failed_at_s"] - 600
    assert 0 <= waited < document["step_time_s"]
    assert effect["gpu_seconds_lost"] / 3600 == pytest.approx(theory.waiting_gpu_hours(16, 600 + waited), rel=1e-12)
