"""Runs over clusters whose flows are hashed onto other paths in each: against the closed form of balls into bins."""

from __future__ import annotations

import json
from collections import Counter
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import pytest

import parsim
from parsim.errors import InputError
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.hardware.fabric.switches import FatTree, Port
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.study.monte_carlo.runs import simulate_runs
from parsim.theory.hashing import hashing_slowdown


def job(queue_pairs: int = 1, *, routing: str = "ecmp", **variability: Any) -> dict[str, Any]:
    """Forward passes of eight two-stage pipelines, every one of which sends from one leaf to the other: two leaves of eight machines."""
    fabric = {"kind": "fat-tree", "leaf_ports": 8, "oversubscription": 1, "routing": routing, "link": "ethernet-10g"}
    return {
        "name": "pairs",
        "model": {"base": "gpt2", "layers": 2, "hidden": 256, "heads": 8},
        "training": {"sequence_length": 1024, "micro_batch": 4, "gradient_accumulation": 1, "backward": False, "step": False},
        "parallel": {"pipeline": {"size": 2, "schedule": "gpipe"}, "data": {"size": 8}},
        "cluster": {
            "topology": "hgx-h100", "nodes": 16, "gpus": 16, "gpus_per_node": 1, "interference": "off",
            "collectives": {"profile": "ring"}, "set": {"node": {"nics": 1}},
            "fabric": fabric | ({"queue_pairs": queue_pairs} if queue_pairs > 1 else {}),
        },
        "variability": {"hashing": True} | variability,
    }  # fmt: skip


@pytest.mark.parametrize(("queue_pairs", "mean"), [(1, 2.597233), (4, 1.761946)])
def test_the_mean_over_clusters_is_the_closed_form(queue_pairs: int, mean: float) -> None:
    """Each run takes its busiest uplink's load times the transfer, and otherwise what it does with its links to itself."""
    runs = 100
    prepared = prepare(build(load(job(queue_pairs, runs=runs))))
    step = DisturbedStep(prepared)
    assert step.causes == {"hashing"}
    times, worst = [sample.step_time for sample in step.samples(range(runs))], []
    for run in range(runs):
        fabric = step._of_hash(run)._prepared.built.cluster.fabric
        assert isinstance(fabric, FatTree)
        taken = Counter(fabric.uplink(Port(i, 0), Port(8 + i, 0), pair) for i in range(8) for pair in range(queue_pairs))
        worst.append(max(taken.values()) / queue_pairs)
    low, high = min(worst), max(worst)
    transfer = (times[worst.index(high)] - times[worst.index(low)]) / (high - low)
    rest = times[0] - worst[0] * transfer
    assert times == pytest.approx([rest + load * transfer for load in worst], rel=1e-9)
    assert rest + transfer == pytest.approx(parsim.simulate(job(routing="spray", hashing=False)).step_time, rel=1e-6)
    slowdowns = [(time - rest) / transfer for time in times]
    assert float(hashing_slowdown(8, 8, queue_pairs)) == pytest.approx(mean, abs=1e-6)
    assert abs(fmean(slowdowns) - mean) < 4 * stdev(slowdowns) / sqrt(runs)


def test_hashes_are_clusters_and_the_same_from_any_number_of_workers() -> None:
    scenario = load(job(runs=5, jitter=0.01))
    one, two = (json.dumps(simulate_runs(scenario, workers=count).document()["variability"]) for count in (1, 2))
    assert one == two
    varied = json.loads(one)
    assert (varied["over"], varied["steps"]["over"]) == ("clusters", "steps")
    assert {row["cause"] for row in varied["by_cause"]} == {"hashing", "kernel", "collective"}
    plain = parsim.simulate(job(hashing=False)).step_time
    assert varied["step_time_s"]["nominal"] == plain, "one run is the hash of the seed"
    assert len(set(varied["sampled_s"])) > 1


def test_folded_and_unfolded_hash_alike() -> None:
    prepared = [prepare(build(load(job(4, runs=3, jitter=0.05))), unfolded=unfolded) for unfolded in (False, True)]
    folded, unfolded = (DisturbedStep(one).samples(range(3)) for one in prepared)
    assert [one.step_time for one in folded] == pytest.approx([one.step_time for one in unfolded], rel=1e-9)


def test_a_network_that_hashes_nothing() -> None:
    for changes in (
        ["cluster.fabric.routing=spray"],
        ["cluster.nodes=1", "cluster.gpus=1", "cluster.fabric=null", "parallel.pipeline.size=1", "parallel.data.size=1"],
    ):
        with pytest.raises(InputError, match="no flow of this cluster keeps to a path by a hash"):
            parsim.simulate(job(), *changes)
