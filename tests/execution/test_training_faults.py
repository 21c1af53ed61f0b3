"""Faults at moments of a training: each kind against the step with it, or the recovery; and checkpoints beside training's transfers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parsim import theory
from parsim.errors import InputError
from parsim.execution.background_saves import with_saves
from parsim.execution.faulted import FaultedStep
from parsim.execution.prepared import prepare
from parsim.faults import LinkFault
from parsim.hardware.fabric.storage import Storage, writing
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.simulation.interrupted import InterruptedTraining

DAY = 86_400.0
THIN = {"nic": "node1/nic2", "bandwidth": "x0.25"}


def tree(*faults: dict[str, Any], slow: Any = (), horizon: str | None = "10 d", **economics: Any) -> dict[str, Any]:
    weeks = {"mtbf_per_gpu": "1e8 h", "checkpoint": {"stall": "10 s", "interval": "1 h"}, "horizon": horizon, **economics}
    return {
        "model": {"base": "gpt2", "layers": 2},
        "cluster": {"topology": "hgx-h100", "nodes": 2, "fabric": {"link": "roce-100g"}},
        "training": {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 1},
        "parallel": {"data": {"strategy": "ddp"}},
        "variability": {"faults": list(faults), "slow": list(slow)},
        "economics": weeks,
    }


def weeks(*faults: dict[str, Any], **other: Any) -> dict[str, Any]:
    found: dict[str, Any] = simulate(tree(*faults, **other)).document()["training_run"]
    return found


def disturbed(*faults: dict[str, Any], slow: Any = ()) -> float:
    """The step with faults that last from its begin on, over the step."""
    report = simulate(tree(*faults, slow=slow, horizon=None))
    return float(report.document()["variability"]["disturbed"]["step_time_s"]) / report.step_time


def lost(found: dict[str, Any]) -> float:
    """Work that is not done, of what could be [s]."""
    return float(found["spent_s"]["train"] - found["useful_s"])


SLOW = {"node": 1, "speed": 0.5}


@pytest.mark.parametrize(
    ("fault", "slow"),
    [
        (THIN, None), ({"link": "rail2.leaf0->spine", "bandwidth": "x0.01"}, None), (None, SLOW),
        ({"nic": "node1/nic2", "down": True, "fallback": "neighbour"}, None),
    ],
)  # fmt: skip
def test_what_lasts_changes_the_step_while_it_does(fault: dict[str, Any] | None, slow: dict[str, Any] | None) -> None:
    """Two days at nominal / disturbed of the speed, the disturbed step being that of the same fault inside a step."""
    if fault is not None:
        factor = disturbed({**fault, "at": "0 s"})
        found = weeks({**fault, "at": "3 d", "until": "5 d"})
    else:
        factor = disturbed(slow=[{**SLOW, "from": "0 s"}])
        found = weeks(slow=[{**SLOW, "from": "3 d", "to": "5 d"}])
    saves = 2 * DAY * (10 / 3610)  # of which none falls on an end by more than a save
    assert lost(found) == pytest.approx((2 * DAY - saves) * (1 - 1 / factor), abs=20.0)
    assert factor > 1.01 or fault is not None
    if factor > 1 + 1e-9:
        (row,) = found["faults"]
        assert (row["effect"], row["begin_s"], row["end_s"]) == ("slower", 3 * DAY, 5 * DAY)
        assert row["speed"] == pytest.approx(1 / factor, rel=1e-9)


def test_faults_at_one_time_are_one_step() -> None:
    """From day 4 to 5 both: the step is simulated with both, not two factors multiplied."""
    both = disturbed({**THIN, "at": "0 s"}, slow=[{**SLOW, "from": "0 s"}])
    one, other = disturbed({**THIN, "at": "0 s"}), disturbed(slow=[{**SLOW, "from": "0 s"}])
    found = weeks({**THIN, "at": "3 d", "until": "5 d"}, slow=[{**SLOW, "from": "4 d", "to": "6 d"}])
    expected = DAY * 3600 / 3610 * ((1 - 1 / one) + (1 - 1 / both) + (1 - 1 / other))
    assert lost(found) == pytest.approx(expected, abs=30.0)


@pytest.mark.parametrize(
    ("fault", "detect", "wait"),
    [
        ({"rank": 5, "kind": "crash"}, 10.0, 0.0),
        ({"node": 1, "kind": "hang"}, 600.0, 0.0),
        ({"nic": "node1/nic2", "down": True}, theory.give_up_time(), 0.0),
        ({"link": "node0.gpu3-nvswitch", "down": True}, 600.0, 0.0),
        ({"link": "node1.nic2-rail2.leaf0", "down": True, "until": "4 d"}, theory.give_up_time(), DAY - theory.give_up_time()),
    ],
)
def test_what_fails_the_job_is_recovered_from(fault: dict[str, Any], detect: float, wait: float) -> None:
    """Noticed after its time; a link outside of machines must be back first; then a restart of 5 min, from the last checkpoint."""
    found = weeks({**fault, "at": "3 d"})
    assert found["failures"] == 1
    assert found["faults"][0]["effect"] == "fails"
    assert [found["spent_s"][kind] for kind in ("detect", "wait", "restart")] == pytest.approx([detect, wait, 300.0])
    assert 0 < found["spent_s"]["lost"] < 3610


def test_a_flap_is_waited_for() -> None:
    flap = {"nic": "node1/nic2", "down": True, "at": "259200 s", "until": "259205 s"}
    assert weeks(flap)["spent_s"]["wait"] == pytest.approx(5.0)
    assert weeks({**flap, "retry": "auto"})["spent_s"]["wait"] == pytest.approx(2 * theory.retry_timer())
    assert weeks(slow=[{"rank": 3, "speed": 0, "from": "3 d", "to": "4 d"}])["spent_s"]["wait"] == pytest.approx(DAY)


def test_what_acts_on_nothing_is_said() -> None:
    """Behind the end, and on a rail's trunk that two machines under one leaf do not use."""
    report = simulate(tree({"rank": 1, "at": "20 d"}, {"link": "rail2.leaf0->spine", "at": "1 d", "down": True}))
    assert [row["effect"] for row in report.document()["training_run"]["faults"]] == ["nothing", "nothing"]
    said = [finding.message for finding in report.warnings]
    assert any("begins after economics.horizon" in one for one in said)
    assert any("changes nothing" in one for one in said)
    done = simulate(tree({"rank": 1, "at": "3 d"}), "training.tokens=5M").document()["training_run"]
    assert (done["wall_s"] < DAY, done["failures"], done["faults"][0]["effect"]) == (True, 0, "nothing")


REGIONS = (
    "cluster.topology=null",
    "cluster.fabric=null",
    "cluster.nodes=[{use: hgx-h100, count: 1, region: a}, {use: hgx-h100, count: 1, region: b}]",
    "cluster.regions=[{between: [a, b], bandwidth: 10 Gb/s, latency: 10 ms}]",
)


@pytest.mark.parametrize(
    ("fault", "policy", "changes", "said"),
    [
        ({"link": "node1.nic2-rail2.leaf0", "down": True}, "restart", (), "never comes back"),
        (
            {"node": 1},
            "elastic",
            ["parallel.pipeline.size=2"],
            "node 1 crashes at 3 d takes all 8 replicas with it, and the policy elastic",
        ),
        ({"link": "a-b", "down": True, "until": "4 d"}, "replica", REGIONS, "cuts no machine off from the core"),
    ],
)
def test_what_is_refused(fault: dict[str, Any], policy: str, changes: Sequence[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(tree({**fault, "at": "3 d"}, recovery={"policy": policy}), *changes)


def test_a_rank_takes_its_replica_with_it() -> None:
    """16 replicas of one rank; rank 5's is away for a day of the nine that are left, and comes back in a planned stop."""
    found = weeks({"rank": 5, "at": "1 d"}, recovery={"policy": "elastic", "repair": "1 d"})
    assert lost(found) == pytest.approx(DAY / 16, rel=0.05)


@pytest.mark.parametrize("policy", ["elastic", "replica"])
def test_a_machine_takes_its_replicas_with_it(policy: str) -> None:
    """8 of 16 replicas are away for a day, then all are back: half a day of work, but for the stops."""
    found = weeks({"node": 1, "at": "1 d"}, recovery={"policy": policy, "repair": "1 d"})
    assert found["failures"] == 1
    assert lost(found) == pytest.approx(DAY / 2, rel=0.05)
    spare = weeks({"node": 1, "at": "1 d"}, recovery={"policy": policy, "repair": "1 d", "spares": 1})
    assert lost(spare) == pytest.approx(0.0, abs=1e-6)  # one machine stands in for all of them


@pytest.mark.parametrize("policy", ["elastic", "replica"])
def test_a_cable_takes_the_replicas_of_its_machine_until_it_is_back(policy: str) -> None:
    """Given up after 30 s, then 8 of 16 go on by themselves until the cable is back, whatever machines stand by."""
    fault = {"link": "node1.nic2-rail2.leaf0", "down": True, "at": "3 d", "until": "4 d"}
    found = weeks(fault, recovery={"policy": policy, "spares": 4})
    assert lost(found) == pytest.approx(DAY / 2, rel=0.05)
    assert found["spent_s"]["wait"] == 0.0
    assert found["spent_s"]["detect"] == pytest.approx(theory.give_up_time())


def test_a_link_between_switches_takes_the_machines_behind_it() -> None:
    """Four machines, two on a leaf of every rail; 16 of 32 replicas are behind the trunk of one."""
    fault = {"link": "rail2.leaf0->spine", "down": True, "at": "3 d", "until": "4 d"}
    job = tree(fault, recovery={"policy": "elastic"})
    job["cluster"] |= {"nodes": 4, "fabric": {"link": "roce-100g", "leaf_ports": 2}}
    found = simulate(job).document()["training_run"]
    assert found["faults"][0]["effect"] == "fails"
    assert lost(found) == pytest.approx(DAY / 2, rel=0.05)


# checkpoints beside training


@pytest.mark.parametrize(("written", "left"), [(0.2, 0.8), (0.45, 0.55), (0.5, 0.5), (0.8, 0.5)])
def test_a_checkpoint_takes_from_the_nics_what_it_moves(written: float, left: float) -> None:
    """Up to half of every NIC, the fair share of one flow beside another: the step is that on NICs of which the rest is left."""
    prepared = prepare(build(load({**tree(horizon=None), "economics": {}})))
    cluster, nominal = prepared.built.cluster, prepared.run().makespan
    cable = cluster.capacity(cluster.first_fabric_link)
    size, total = 1e12, written * cable * 16
    training = InterruptedTraining((), 3600.0, 1.0, DAY, lag=size / total, bytes=size)
    slower = with_saves(prepared, nominal, training)
    cables = [flow.path[0][0] for node in range(2) for flow in writing(cluster, Storage(total), {node: 1.0}).flows]
    thin = LinkFault("thin", tuple((link, left * cable) for link in cables), 0.0)
    expected = FaultedStep(prepared, nominal).outcome([thin]).end
    assert (expected > 1.05 * nominal) is (written > 0.4)
    assert slower.writing_speed == pytest.approx(nominal / expected, rel=1e-9)
    assert (slower.lag == pytest.approx(training.lag, rel=1e-9)) is (written <= 0.5)


def test_a_checkpoint_that_would_fill_the_nics_gets_its_share() -> None:
    """Folded as unfolded; longer than alone; and a training that writes it is slower in the report."""
    changes = ("cluster.storage.bandwidth=1 TB/s", "economics.checkpoint.mode=async", "economics.checkpoint.stall=null")
    alone, whole = (simulate(tree(), *changes, unfolded=unfolded).document()["training_run"] for unfolded in (False, True))
    assert alone["writing_speed"] == pytest.approx(whole["writing_speed"], rel=1e-9)
    assert alone["lag_s"] == pytest.approx(whole["lag_s"], rel=1e-9)
    assert alone["writing_speed"] < 1
    thin = simulate(tree(), *changes[1:], "cluster.storage.bandwidth=1 MB/s", "economics.checkpoint.interval=2 d").document()[
        "training_run"
    ]
    assert thin["writing_speed"] == pytest.approx(1.0, abs=1e-3)
