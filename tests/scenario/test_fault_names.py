"""`variability.faults`, and what is slow for a while: names, times, and what cannot be meant; all that is wrong is said at once."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from parsim import theory
from parsim.errors import InputError
from parsim.faults import RankFault
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.faults import GIVE_UP, RETRY_TIMER

TWO = {"topology": "dgx-a100-80gb", "nodes": 2}


def tree(*faults: Any, slow: Any = (), cluster: Any = None, **parallel: Any) -> dict[str, Any]:
    return {
        "model": {"base": "gpt2", "layers": 2},
        "cluster": cluster or TWO,
        "training": {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 1},
        "parallel": parallel or {"data": {"strategy": "ddp"}},
        "variability": {"faults": list(faults), "slow": list(slow)},
    }


def built(*faults: Any, **settings: Any) -> Any:
    return build(load(tree(*faults, **settings)))


def refused(*faults: Any, **settings: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        built(*faults, **settings)
    return [f"{finding.path}: {finding.message}; {finding.suggestion}" for finding in caught.value.findings]


def test_the_constants_are_the_closed_forms() -> None:
    assert pytest.approx(theory.retry_timer(), rel=1e-15) == RETRY_TIMER
    assert pytest.approx(theory.give_up_time(), rel=1e-15) == GIVE_UP


def test_links_and_nics_by_name() -> None:
    cluster = built().cluster
    names = {cluster.link(number).name: number for number in range(cluster.link_count)}
    faults = [
        {"link": "rail3.leaf0-spine", "at": "1 s", "bandwidth": "x0.5"},
        {"link": "spine->rail2.leaf0", "at": "1 s", "bandwidth": "x0.5"},
        {"link": "node1.gpu4-nvswitch", "at": "1 s", "until": "2 s", "bandwidth": "100 GB/s"},
        {"link": "node1.gpu5<-nvswitch", "at": "0 s", "bandwidth": "x0.25"},
        {"nic": "node1/nic6", "at": "2 s", "down": True},
    ]
    found = [broken.fault for broken in built(*faults).faults]
    assert found[0].links == (names["rail3.leaf0->spine"], names["spine->rail3.leaf0"])
    assert found[1].links == (names["spine->rail2.leaf0"],)
    assert found[2].capacities == ((names["node1.gpu4->nvswitch"], 100e9), (names["node1.nvswitch->gpu4"], 100e9))
    assert (found[2].begin, found[2].end, found[0].end) == (1.0, 2.0, inf)
    assert found[3].capacities == ((names["node1.nvswitch->gpu5"], cluster.capacity(names["node1.nvswitch->gpu5"]) / 4),)
    assert found[4].capacities == ((names["node1.port6->leaf"], 0.0), (names["node1.port6<-leaf"], 0.0))
    assert found[4].give_up == GIVE_UP
    assert [broken.path for broken in built(*faults).faults] == [f"variability.faults.{number}" for number in range(5)]


def test_one_machine_needs_no_numbers() -> None:
    assert built({"link": "gpu3-nvswitch", "at": "0 s", "bandwidth": "x0.5"}, cluster={"topology": "dgx-a100-80gb"}).faults


@pytest.mark.parametrize(("fallback", "nics", "share"), [("respread", range(8), 7 / 8), ("neighbour", (4, 5), 1 / 2)])
def test_who_takes_over(fallback: str, nics: Any, share: float) -> None:
    job = built({"nic": "node0/nic5", "at": "0 s", "down": True, "fallback": fallback})
    (broken,) = job.faults
    cables = {job.cluster.link(link).name: capacity / job.cluster.capacity(link) for link, capacity in broken.fault.fallback}
    expected = {f"node0.port{nic}{way}leaf": pytest.approx(share) for nic in nics for way in ("->", "<-")}
    assert cables == expected
    assert broken.fault.give_up == 0.0


def test_ranks_of_a_node_and_how_long_others_wait() -> None:
    job = built(
        {"node": 1, "at": "1 s", "kind": "crash"},
        {"rank": 3, "at": "1 s", "kind": "hang"},
        {"rank": 4, "at": "1 s", "kind": "hang", "detect": "30 min"},
        slow=[
            {"rank": 2, "speed": 0.5},
            {"node": 0, "speed": 0.8, "from": "1 s", "to": "2 s"},
            {"rank": 9, "speed": 0, "to": "1 s", "from": 0},
        ],
    )
    crash, hang, patient, window, pause = (broken.fault for broken in job.faults)
    assert crash.ranks == tuple(range(8, 16))
    assert (crash.notice, hang.notice, patient.notice) == (10.0, 600.0, 1800.0)
    assert (window.ranks, window.speed, window.begin, window.end) == (tuple(range(8)), 0.8, 1.0, 2.0)
    assert (pause.ranks, pause.speed) == ((9,), 0.0)
    assert job.slow == {2: 0.5}
    assert {"crash_detection", "hang_detection"} <= {assumption.name for assumption in job.assumptions}


def test_the_watchdog_of_the_scenario_and_moments_of_a_training() -> None:
    hang = {"rank": 3, "at": "1 s", "kind": "hang"}
    (broken,) = build(load({**tree(hang), "economics": {"recovery": {"hang_timeout": "30 min"}}})).faults
    assert isinstance(broken.fault, RankFault)
    assert broken.fault.notice == 1800.0
    weeks = {"mtbf_per_gpu": "50000 h", "horizon": "1 d", "checkpoint": {"stall": "10 s"}}
    assert build(load({**tree(hang), "economics": weeks})).weeks is not None


def test_all_unknown_names_are_said_at_once() -> None:
    said = refused(
        {"link": "rail3.leaf0-spin", "at": "1 s", "down": True},
        {"nic": "node1/nic9", "at": "1 s", "down": True},
        {"nic": "node7/nic1", "at": "1 s", "down": True},
        {"rank": 16, "at": "1 s", "kind": "hang"},
        {"node": 2, "at": "1 s"},
        {"link": "node0.gpu0-nvswitch", "at": "1 s", "bandwidth": "1 TB/s"},
        slow=[{"rank": 99, "speed": 0.5, "from": "1 s"}],
    )
    assert [line.partition(":")[0] for line in said] == [
        "variability.faults.0.link", "variability.faults.1.nic", "variability.faults.2.nic", "variability.faults.3.rank",
        "variability.faults.4.node", "variability.faults.5.link", "variability.slow.0.rank",
    ]  # fmt: skip
    assert "did you mean 'rail3.leaf0-spine'" in said[0]
    assert "did you mean 'node1/nic" in said[1]
    assert "node0 ... node1" in said[2]
    assert "rank 16 does not exist (0 to 15)" in said[3]
    assert "node 2 does not exist (0 to 1)" in said[4]
    assert "more than node0.gpu0->nvswitch has (240 GB/s)" in said[5]


def test_two_faults_cannot_say_of_one_link_what_it_carries() -> None:
    first = {"nic": "node0/nic1", "at": "1 s", "until": "3 s", "bandwidth": "x0.5"}
    second = {"link": "node0.nic1->rail1.leaf0", "at": "2 s", "bandwidth": "x0.25"}
    (said,) = refused(first, second)
    assert said.startswith("variability.faults.1: at 2 s this")
    assert "variability.faults.0" in said
    assert len(refused({"nic": "node0/nic7", "at": "0 s", "down": True, "fallback": "respread"}, first, second)) == 3
    assert built(first, {**second, "at": "3 s"}).faults  # one after the other


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"at": "1 s", "down": True}, "exactly one of link, nic, rank and node"),
        ({"nic": "node0/nic0", "link": "a-b", "at": "1 s", "down": True}, "exactly one of link, nic, rank and node"),
        ({"nic": "node0/nic0", "down": True}, "variability.faults.0.at"),
        ({"nic": "node0/nic0", "at": "1 s"}, "either down: true, or bandwidth"),
        ({"nic": "node0/nic0", "at": "1 s", "down": True, "bandwidth": "x0.5"}, "either down: true, or bandwidth"),
        ({"nic": "node0/nic0", "at": "1 s", "bandwidth": "x2"}, "more than the link has"),
        ({"nic": "node0/nic0", "at": "1 s", "bandwidth": 0.5}, 'write "x0.5"'),
        ({"nic": "node0/nic0", "at": "2 s", "until": "1 s", "down": True}, "before it happens"),
        ({"nic": "node0/nic0", "at": "1 s", "bandwidth": "x0.5", "fallback": "respread"}, "a NIC that is down"),
        ({"nic": "node0/nic0", "at": "1 s", "bandwidth": "x0.5", "give_up": "1 s"}, "applies only to links that are down"),
        ({"nic": "node0/nic0", "at": "1 s", "down": True, "fallback": "neighbor"}, "write neighbour"),
        ({"link": "rail0.leaf0-spine", "at": "1 s", "down": True, "fallback": "respread"}, "a NIC that is down"),
        ({"rank": 1, "at": "1 s", "kind": "hangs"}, "did you mean 'hang'"),
        ({"rank": 1, "at": "1 s", "bandwidth": "x0.5"}, "bandwidth says nothing about a rank"),
        ({"link": "rail0.leaf0-spine", "at": "1 s", "down": True, "kind": "hang"}, "kind says nothing about a link"),
        ({"rank": 1, "at": "-1 s"}, "variability.faults.0.at"),
        ({"rank": 1, "at": "1 s", "untill": "2 s"}, "until"),
    ],
)
def test_what_cannot_be_meant(fault: Any, words: str) -> None:
    assert any(words in line for line in refused(fault))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"rank": 1, "speed": 0}, "speed 0 stops the rank"),
        ({"rank": 1, "speed": 0, "from": "1 s"}, "speed 0 stops the rank"),
        ({"rank": 1, "speed": 0.5, "from": "2 s", "to": "1 s"}, "before it begins"),
        ({"rank": 1, "node": 0, "speed": 0.5}, "either rank or node"),
        ({"speed": 0.5, "from": "1 s"}, "either rank or node"),
    ],
)
def test_slow_for_a_while_that_cannot_be_meant(entry: Any, words: str) -> None:
    assert any(words in line for line in refused(slow=[entry]))


def test_a_machine_without_another_nic_or_without_a_network() -> None:
    box = {"topology": {"gpu": "a100-sxm-80gb", "count": 2, "nic": "ib-hdr"}, "nodes": 2}
    lost = {"nic": "node0/nic0", "at": "0 s", "down": True, "fallback": "respread"}
    assert any("no other NIC" in line for line in refused(lost, cluster=box))
    assert any("there is only one machine" in line for line in refused({**lost, "nic": "nic0"}, cluster={"topology": "dgx-a100-80gb"}))


def test_a_schedule_whose_steps_overlap_has_no_step_to_break() -> None:
    model = {"base": "gpt2", "layers": 4}
    wanted = {**tree(pipeline={"size": 2, "schedule": "pipedream"}), "model": model}
    wanted["variability"] = {"faults": [{"rank": 0, "at": "1 ms"}]}
    with pytest.raises(InputError, match="not supported yet: faults under a schedule without a flush"):
        simulate(wanted)


def test_what_acts_on_nothing_is_said() -> None:
    faults = [
        {"rank": 0, "at": "1 h"},
        {"link": "rail0.leaf0-spine", "at": "0 s", "down": True},  # the rings of two machines under one leaf do not cross it
        {"nic": "node0/nic0", "at": "0 s", "bandwidth": "x1"},
    ]
    report = simulate(tree(*faults))
    said = {finding.path: finding.message for finding in report.warnings if finding.path.startswith("variability")}
    assert list(said) == ["variability.faults.0", "variability.faults.1"]
    assert "the step has ended" in said["variability.faults.0"]
    assert "no transfer of the step crosses it" in said["variability.faults.1"]
    assert report.document()["variability"]["disturbed"]["step_time_s"] == pytest.approx(report.step_time, rel=1e-12)
