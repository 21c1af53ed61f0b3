"""A study on a Dask cluster: a real scheduler and two real workers on the loopback interface, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import parsim
from parsim.cli import execute
from parsim.scenario import load
from parsim.study.monte_carlo.runs import simulate_runs

pytest.importorskip("distributed")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0
"""a machine may be slow [s]"""
TINY = """\
model: {stages: [{forward: 1 s, backward: 2 s}]}
cluster: {topology: dgx-a100-80gb, gpus: 1}
training: {micro_batch: 1, global_batch: 1}
study:
  axes:
    variability.seed: {from: 1, to: 60}
    training.micro_batch: [1, 3]
"""
VARIED = {
    "model": {"stages": [{"forward": "1 s", "backward": "2 s"}]},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
    "training": {"micro_batch": 1, "global_batch": 4},
    "parallel": {"data": {"size": 4}},
    "variability": {"runs": 100, "jitter": 0.05, "gpus": {"spread": 0.02}},
}


def begin(directory: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (directory / f"{words[1].rpartition('.')[2]}.log").open("a", encoding="utf-8") as log:
        command = [sys.executable, *words]
        return subprocess.Popen(command, stdout=log, stderr=log, text=True, env=environment, cwd=directory, start_new_session=True)


def cluster(directory: Path, workers: int) -> tuple[str, list[subprocess.Popen[str]]]:
    """Address of the scheduler; the workers' processes, then the scheduler's."""
    file = directory / "scheduler.json"
    quiet = ("--no-dashboard",)
    where = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file), *quiet)
    scheduler = begin(directory, "-m", "distributed.cli.dask_scheduler", *where)
    end = time.monotonic() + PATIENCE
    while not file.exists() or not file.read_text(encoding="utf-8").strip():
        assert time.monotonic() < end
        assert scheduler.poll() is None, (directory / "dask_scheduler.log").read_text(encoding="utf-8")
        time.sleep(0.1)
    address = json.loads(file.read_text(encoding="utf-8"))["address"]
    options = ("--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", *quiet)
    return address, [*(begin(directory, "-m", "distributed.cli.dask_worker", address, *options) for _ in range(workers)), scheduler]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    address, processes = cluster(tmp_path_factory.mktemp("dask"), 2)
    yield address, processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_two_workers_give_the_same_rows_and_one_that_is_killed_loses_none(
    running: tuple[str, list[subprocess.Popen[str]]], tmp_path: Path
) -> None:
    address, processes = running
    path, out = tmp_path / "tiny.yaml", tmp_path / "out"
    path.write_text(TINY, encoding="utf-8")
    here = parsim.sweep(path, exhaustive=True)
    whole = begin_sweep(tmp_path, path, tmp_path / "whole", address)
    assert finish(whole) == 0
    assert rows(tmp_path / "whole") == {row["key"]: row for row in here.rows}

    study = begin_sweep(tmp_path, path, out, address)
    end = time.monotonic() + PATIENCE
    while not (out / "results.jsonl").exists() or (out / "results.jsonl").read_bytes().count(b"\n") < 3:
        assert time.monotonic() < end
        assert study.poll() is None, (tmp_path / "parsim.log").read_text(encoding="utf-8")
        time.sleep(0.02)
    assert study.poll() is None, "still at work"
    os.kill(processes[0].pid, signal.SIGKILL)
    assert finish(study) == 0
    assert rows(out) == {row["key"]: row for row in here.rows}
    assert len(here.rows) == 120
    assert [row["status"] for row in here.rows[:2]] == ["fits", "refused"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_runs_of_a_varying_step_are_the_same(running: tuple[str, list[subprocess.Popen[str]]]) -> None:
    address, _ = running
    scenario = load(VARIED)
    here, there = (simulate_runs(scenario, **some).document()["variability"] for some in ({}, {"dask": address}))
    assert json.dumps(here) == json.dumps(there)


def begin_sweep(directory: Path, path: Path, out: Path, address: str) -> subprocess.Popen[str]:
    return begin(directory, "-m", "parsim", "sweep", str(path), "--out", str(out), "--dask", address, "--quiet", "--exhaustive")


def finish(process: subprocess.Popen[str]) -> int:
    return process.wait(timeout=PATIENCE)


def rows(out: Path) -> dict[str, object]:
    """By key, each once."""
    found = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: row for row in found}


def test_no_scheduler_is_an_error_of_the_user(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    def nobody(*_: object, **__: object) -> None:
        raise OSError("Timed out trying to connect to tcp://127.0.0.1:1 after 15 s")

    monkeypatch.setattr(distributed, "Client", nobody)
    assert execute(["sweep", "pipeline-unit-gpipe", "training.global_batch=4,8", "--dask", "tcp://127.0.0.1:1", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["errors"][0]
    assert error["message"].startswith("no Dask scheduler answers: Timed out trying to connect")
    assert "dask scheduler" in error["suggestion"]


def test_without_dask_it_says_what_to_install(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert execute(["sweep", "pipeline-unit-gpipe", "training.global_batch=4,8", "--dask", "tcp://127.0.0.1:1", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["suggestion"] == 'pip install "parsim[dask]"'
