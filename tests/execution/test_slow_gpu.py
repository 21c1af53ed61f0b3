"""One slow GPU: as much as the dependency graph says, and the same as a rank that is known to be slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import parsim
from parsim.cli import execute
from parsim.errors import PlanError
from parsim.execution.prepared import prepare
from parsim.execution.slow_gpu import slow_gpu
from parsim.report.slow_gpu import SlowGpu
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.compare_text import csv_text


def asked(*scenario: Any, speed: float = 0.8, **options: Any) -> SlowGpu:
    found = parsim.simulate(*scenario, slow_gpu=speed, **options).measured.slow_gpu
    assert found is not None
    return found


def pipeline(schedule: str, stages: int = 4, micro_batches: int = 8) -> dict[str, Any]:
    return {
        "model": {"stages": [{"forward": "1 s", "backward_input": "1 s", "backward_weight": "1 s"}]},
        "training": {"micro_batch": 1, "gradient_accumulation": micro_batches},
        "parallel": {"pipeline": {"size": stages, "schedule": schedule}},
        "cluster": {"topology": "hgx-h100", "gpus": stages},
    }


def test_of_64_replicas_one_at_0_8_costs_a_quarter_of_the_compute() -> None:
    """All wait for it: its own 3 s of compute take 1 / 0.8 as long."""
    replicas = {
        "model": {"stages": [{"forward": "1 s", "backward": "2 s"}]},
        "training": {"micro_batch": 1, "global_batch": 64},
        "parallel": {"data": {"size": 64}},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 64, "nodes": 8},
    }
    slow = asked(replicas)
    (place,) = slow.places
    assert place.ranks == "0-63"
    assert slow.slowdown(place) == pytest.approx(0.25, rel=1e-9)
    assert slow.idle(place) == pytest.approx(64 * (1 - 0.8), rel=1e-9)


@pytest.mark.parametrize("stage", range(4))
def test_a_slow_stage_of_1f1b_costs_what_its_critical_path_says(stage: int) -> None:
    """(m + p - 1) T + (f - 1) T (m - (p - 1 - q)) for stage q, exact up to f = 1 + forward / backward; f = 1.25, T = 3 s."""
    slow = asked(pipeline("1f1b"))
    by_stage = {place.stage: place.step_time_s for place in slow.places}
    assert slow.nominal == pytest.approx(33.0, rel=1e-9)
    assert by_stage[stage] == pytest.approx(33.0 + 0.25 * 3.0 * (8 - (3 - stage)), rel=1e-9)
    assert slow.worst.stage == 3


def test_every_stage_of_gpipe_costs_the_same() -> None:
    slow = asked(pipeline("gpipe"))
    assert [place.step_time_s for place in slow.places] == pytest.approx([33.0 + 0.25 * 3.0 * 8] * 4, rel=1e-9)
    assert [place.rank for place in slow.places] == [0, 1, 2, 3]


ALIKE = {
    "ddp": ("gpt2-ddp-4x-a100",),
    "zero3": ("llama-7b-zero3-8x-a100", "cluster.gpus=4"),
    "tensor": ("gpt3-22b-8x-a100",),
}
"""jobs with ranks that are folded"""
STAGES = {"pipeline": ("gpt2-xl-gpipe-4x-v100",), "without a flush": ("pipeline-unit-pipedream",)}


@pytest.mark.parametrize(
    ("job", "unfolded"),
    [
        *(pytest.param(job, False, id=name) for name, job in (ALIKE | STAGES).items()),
        *(pytest.param(job, True, id=f"{name}, unfolded") for name, job in ALIKE.items()),
    ],
)
def test_it_is_a_rank_that_is_known_to_be_slow(job: tuple[str, ...], *, unfolded: bool) -> None:
    slow = asked(*job, speed=0.7, unfolded=unfolded)
    for place in slow.places:
        known = parsim.simulate(*job, f"variability.slow=[{{rank: {place.rank}, speed: 0.7}}]", unfolded=unfolded)
        assert place.step_time_s == pytest.approx(known.step_time, rel=1e-9)


def test_ranks_that_are_slow_already_are_left_alone() -> None:
    slow = asked("gpt2-ddp-straggler")
    assert [place.ranks for place in slow.places] == ["0-4,6-7"]
    assert slow.slowdown(slow.worst) == pytest.approx(0.0, abs=1e-9)  # all wait for rank 5 anyway
    assert "+0.0 %" in slow.sentence()
    everyone = "variability.slow=[{rank: 0, speed: 0.9}, {rank: 1, speed: 0.9}]"
    assert parsim.simulate("gpt2-ddp-4x-a100", "cluster.gpus=2", everyone, slow_gpu=0.8).document()["slow_gpu"] is None


def test_the_report_has_it_where_it_is_asked_for() -> None:
    assert parsim.simulate("gpt2-ddp-4x-a100").document()["slow_gpu"] is None
    document = parsim.simulate(pipeline("1f1b"), slow_gpu=0.8).document()["slow_gpu"]
    first = document["places"][0]
    assert {key: document[key] for key in first} == first
    assert (document["speed"], document["rank"], document["stage"], document["places_left_out"]) == (0.8, 3, 3, 0)
    assert document["slowdown"] == pytest.approx(6.0 / 33.0, rel=1e-9)


@pytest.mark.parametrize("speed", [0.0, 1.0, -1.0, 2.0])
def test_a_speed_that_slows_nothing_is_refused(speed: float) -> None:
    step = prepare(build(load("gpt2-ddp-4x-a100")))
    with pytest.raises(PlanError, match="between 0 and 1"):
        slow_gpu(step, 1.0, speed)


def test_every_command_says_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scenario = "pipeline-unit-1f1b"
    known, other = asked(scenario), asked("pipeline-unit-gpipe")
    assert execute(["run", scenario, "--slow-gpu", "0.8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["slow_gpu"]["step_time_s"] == known.worst.step_time_s
    assert report["provenance"]["command"] == f"parsim run {scenario} --slow-gpu 0.8"
    assert execute(["run", scenario, "--slow-gpu", "0.8", "--no-pictures", "--out", str(tmp_path)]) == 0
    assert known.sentence() in " ".join(capsys.readouterr().out.split())
    assert execute(["compare", scenario, "pipeline-unit-gpipe", "--slow-gpu", "0.8", "--json", "--workers", "2"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [one["report"]["slow_gpu"]["rank"] for one in compared["variants"]] == [known.worst.rank, other.worst.rank]
    assert execute(["explain", scenario, "--json", "--workers", "1"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert known.sentence() in explained["summary"]
    (slower,) = (row for row in explained["what_if"] if row["name"] == "rank 3 at 0.8 of its speed")
    assert slower["step_time_s"] == pytest.approx(known.worst.step_time_s, rel=1e-9)


def test_a_comparison_has_its_rows() -> None:
    found = parsim.compare("pipeline-unit-1f1b", "pipeline-unit-gpipe", slow_gpu=0.8)
    said = [line.split() for line in str(found).splitlines()]
    assert ["step,", "one", "GPU", "at", "0.8", "of", "its", "speed", "[s]", "39.00", "39.00"] in said
    assert ["longer", "by", "18", "%", "18", "%"] in said
    assert "slow_gpu.step_time_s" in csv_text(found).splitlines()[0]
    assert "slow" not in str(parsim.compare("pipeline-unit-1f1b", "pipeline-unit-gpipe"))


@pytest.mark.parametrize("speed", ["1", "0", "fast"])
def test_the_option_takes_a_share(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "pipeline-unit-1f1b", "--slow-gpu", speed]) == 2
    assert "--slow-gpu" in capsys.readouterr().err


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1"])
def test_a_long_step_is_answered_from_a_short_one(schedule: str) -> None:
    """With 60 micro-batches on 4 stages; the whole step says the same of every place."""
    extra = {"virtual_stages": 2} if schedule == "interleaved" else {}
    long = pipeline(schedule, micro_batches=60)
    long["parallel"]["pipeline"] |= extra
    step = prepare(build(load(long)))
    found = slow_gpu(step, 1.0, 0.8)
    assert found is not None
    assert len(found.places) == 4
    for place in found.places:
        assert place.step_time_s == pytest.approx(step.slower(place.rank, 0.8).run().step_time, rel=1e-10)
