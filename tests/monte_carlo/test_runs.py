"""Whole runs of small jobs: what is known of them, the same bytes from any number of workers, and what a killed process leaves."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import parsim
from parsim.cli import execute
from parsim.errors import InputError
from parsim.monte_carlo.stopping import Until
from parsim.report.report import Report
from parsim.scenario import load
from parsim.study.monte_carlo.runs import simulate_runs
from parsim.study.workers import Processes

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0
"""a machine may be slow [s]"""


def job(ranks: int = 2, **variability: Any) -> dict[str, Any]:
    """Replicas whose step is the same work on each, so that the slowest decides."""
    return {
        "name": "replicas",
        "model": {"stages": [{"forward": "1 s", "backward": "2 s"}]},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": ranks, "nodes": max(1, ranks // 8)},
        "training": {"micro_batch": 1, "global_batch": ranks},
        "parallel": {"data": {"size": ranks}},
        "variability": variability,
    }


@pytest.mark.parametrize(("ranks", "expected"), [(2, 0.564190), (8, 1.423600), (64, 2.343733)])
def test_replicas_wait_for_the_slowest_of_a_cluster(ranks: int, expected: float) -> None:
    runs, spread = 400, 0.02
    varied = parsim.simulate(job(ranks, runs=runs, gpus={"spread": spread, "node_share": 0.0})).document()["variability"]
    assert (varied["over"], varied["runs"], varied["steps"]) == ("clusters", runs, None)
    step = varied["step_time_s"]
    error = step["sd"] / math.sqrt(runs)
    assert step["mean"] == pytest.approx(3.0 * (1 + spread * expected), abs=4 * error)  # E[max of N standard normals]
    assert step["interval_95"]["mean"][0] < step["mean"] < step["interval_95"]["mean"][1]
    assert step["interval_95"]["p95"][0] <= step["p95"] <= step["interval_95"]["p95"][1]
    by_hand = sorted(varied["sampled_s"])
    assert (step["p5"], step["p50"], step["p95"], step["p99"]) == tuple(by_hand[rank - 1] for rank in (20, 200, 380, 396))
    assert ranks > 8 or sum(row["share"] for row in varied["slowest"]) == pytest.approx(1.0)  # eight are named
    assert {row["ranks"] for row in varied["slowest"]} <= set(map(str, range(ranks)))  # each a rank, not all that do the same


def test_jitter_of_what_nobody_waits_for_changes_nothing() -> None:
    """Collectives of one rank are none."""
    report = parsim.simulate(job(1, runs=60, jitter={"collective": 0.3}))
    varied = report.document()["variability"]
    assert (varied["step_time_s"]["p95"], varied["step_time_s"]["sd"]) == (report.step_time, 0.0)


def test_nothing_that_varies_is_a_warning() -> None:
    report = parsim.simulate(job(1, runs=60))
    assert report.document()["variability"] is None
    assert [finding.message for finding in report.warnings if finding.path == "variability.runs"] == [
        "every run is the same step: nothing varies"
    ]


def test_one_run_is_the_undisturbed_step() -> None:
    once, never = (parsim.simulate(job(2, **some)).document() for some in ({"runs": 1, "jitter": 0.1}, {}))
    assert once["variability"] is None
    assert [once[key] for key in ("step_time_s", "estimate", "confidence")] == [
        never[key] for key in ("step_time_s", "estimate", "confidence")
    ]


def test_the_estimate_is_the_mean_without_a_band() -> None:
    words = ("variability.profile=typical", "variability.runs=20")
    document = parsim.simulate("gpt2-ddp-4x-a100", *words).document()
    estimate, varied = document["estimate"], document["variability"]
    assert estimate["step_time_s"] == pytest.approx(varied["together"]["mean"], rel=1e-12)
    assert estimate["tokens_per_s"] == pytest.approx(document["tokens_per_s"] * document["step_time_s"] / varied["together"]["mean"])
    assert (estimate["step_time_band_s"], estimate["of"]) == (None, "simulation")
    assert document["confidence"]["status"] == "unvalidated"
    assert document["confidence"]["step_time_s"] is None
    assert varied["step_time_s"]["p95"] is None
    assert (varied["over"], varied["steps"]["over"]) == ("clusters", "steps")
    plain = parsim.simulate("gpt2-ddp-4x-a100").document()
    assert {key: value for key, value in document.items() if key in ("step_time_s", "breakdown_s", "mfu", "memory")} == {
        key: plain[key] for key in ("step_time_s", "breakdown_s", "mfu", "memory")
    }


@pytest.mark.parametrize("profile", ["typical", "slow-nodes"])
def test_the_scenario_of_a_report_has_the_same_runs(profile: str) -> None:
    first = parsim.simulate(job(2, profile=profile, runs=5, jitter={"kernel": 0.0}))
    again = parsim.simulate(first.document()["scenario"])
    assert again.document()["variability"] == first.document()["variability"]
    assert again.measured.assumptions == first.measured.assumptions


VARIED = {"gpus": {"spread": 0.02}, "jitter": {"kernel": 0.05, "step": 0.01}}


def text(report: Report) -> str:
    document = report.document()
    return json.dumps([document["variability"], document["estimate"]])


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    scenario = load(job(2, runs=60, **VARIED))
    alone = text(simulate_runs(scenario))
    assert alone == text(parsim.simulate(scenario))
    crew = Processes(4, spawn=False)
    try:
        assert text(simulate_runs(scenario, executor=crew._pool, out=tmp_path)) == alone
    finally:
        crew.close(now=True)
    rows = (tmp_path / "runs.jsonl").read_bytes()
    assert rows.count(b"\n") == 60 * 3 + 60 * 4  # clusters, steps, both; each of three causes alone and removed, of which two are known
    assert text(simulate_runs(scenario, out=tmp_path)) == alone
    assert (tmp_path / "runs.jsonl").read_bytes() == rows  # nothing is made twice


def test_more_runs_go_on_and_another_scenario_begins_anew(tmp_path: Path) -> None:
    def rows(runs: int, jitter: float) -> list[str]:
        simulate_runs(load(job(2, runs=runs, jitter={"kernel": jitter})), out=tmp_path)
        return (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()

    first = rows(20, 0.05)
    assert len(first) == 20
    with (tmp_path / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"key":"torn')
    more = rows(40, 0.05)
    assert (more[:20], len(more)) == (first, 40)
    assert len(rows(20, 0.1)) == 20
    assert not (tmp_path / "runs.damaged.jsonl").exists()


def test_runs_end_when_they_are_enough() -> None:
    scenario = load(job(2, runs=1000, jitter={"step": 0.02}))
    document = simulate_runs(scenario, until=Until(0.01)).document()["variability"]
    assert document["runs"] == 40  # 2.0930 x 0.02 / sqrt(20) = 0.94 %: one more look where the sample says more
    assert simulate_runs(scenario, until=Until(0.1)).document()["variability"]["runs"] == 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="signals")
def test_kill_9_in_the_middle_then_all_once(tmp_path: Path) -> None:
    path, out = tmp_path / "job.json", tmp_path / "out"
    path.write_text(json.dumps(job(8, runs=3000, jitter={"kernel": 0.05})), encoding="utf-8")

    def begin() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "parsim", "run", str(path), "--out", str(out), "--quiet", "--no-pictures", "--workers", "2"]
        return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True)

    def lines() -> list[bytes]:
        file = out / "runs.jsonl"
        return file.read_bytes().splitlines() if file.exists() else []

    process = begin()
    end = time.monotonic() + PATIENCE
    while len(lines()) < 200:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=PATIENCE)
    before = {line for line in lines() if line.endswith(b"}")}
    assert 200 <= len(before) < 3000
    assert begin().wait(timeout=PATIENCE) == 0
    after = lines()
    assert len(after) == len(set(after)) == 3000
    assert before <= set(after)
    whole = json.loads((out / "report.json").read_text(encoding="utf-8"))["variability"]
    assert whole == json.loads(json.dumps(parsim.simulate(str(path)).document()["variability"]))


def test_options_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job(2, **VARIED)), encoding="utf-8")
    out = tmp_path / "out"
    assert execute(["run", str(path), "--runs", "60", "--workers", "1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "in the mean of 60 clusters" in " ".join(said.split())
    assert "What each cause does" in said
    assert {file.name for file in out.iterdir()} >= {"runs.jsonl", "runs.json", "report.json", "variability.svg", "report.html"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count('<svg class="spread"') == 3  # clusters, steps, causes
    assert execute(["run", str(path), "--until", "1%", "--json"]) == 2
    assert "there is one run only" in json.loads(capsys.readouterr().out)["errors"][0]["message"]
    assert execute(["run", str(path), "--runs", "1000001", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["path"] == "variability.runs"


def test_compared_run_by_run(tmp_path: Path) -> None:
    runs = ("variability.runs=60", "variability.jitter=0.05")
    found = parsim.compare(job(2), "variability.gpus.spread=0,0.02", *runs)
    assert found.paired == (None, None)  # steps and clusters are never compared
    found = parsim.compare(job(2), "training.global_batch=2,4", *runs)
    spread = found.paired[1]
    assert spread is not None
    times = [document["variability"]["sampled_s"] for document in found.documents if document is not None]
    assert spread.values == tuple(b - a for a, b in zip(*times, strict=True))
    assert "runs against" in str(found)
    assert found.document()["paired_differences"][0] is None
    assert [row.metric.key for row in found.results if row.metric.key.startswith("variability")] == [
        "variability.step_time_s.p50", "variability.step_time_s.p95",
    ]  # fmt: skip


def test_a_figure_needs_runs() -> None:
    with pytest.raises(InputError, match="one run does not spread"):
        parsim.simulate(job(1)).plot.variability()


def test_dask_gives_the_same_bytes() -> None:
    """A scheduler and a worker of Dask within this process; two processes over TCP are in the tests of studies."""
    distributed = pytest.importorskip("distributed")
    scenario = load(job(4, runs=64, jitter=0.05, gpus={"spread": 0.02}))
    here = simulate_runs(scenario, workers=1).document()["variability"]
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        there = simulate_runs(scenario, dask=cluster.scheduler_address).document()["variability"]
    assert json.dumps(here) == json.dumps(there)
