"""Studies that are killed: with SIGKILL their parent or a worker, with Ctrl-C, with a candidate that takes its process along.

Real processes, real signals. Rows are functions of their keys, so files of different histories are compared line by line, sorted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import parsim
from parsim.errors import ParsimError
from parsim.study.sweep.choice import Everything
from parsim.study.sweep.rows import Row
from parsim.study.sweep.space import Place, Space
from parsim.study.sweep.study_file import definition_of
from parsim.study.variants import Runner
from parsim.study.workers import Processes

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0
"""a machine may be slow [s]"""
TINY = """\
model: {stages: [{forward: 1 s, backward: 2 s}]}
cluster: {topology: dgx-a100-80gb, gpus: 1}
training: {micro_batch: 1, global_batch: 1}
study:
  axes: {variability.seed: {from: 1, to: COUNT}}
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="signals, and /proc to find the workers")


def study(tmp_path: Path, count: int) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("COUNT", str(count)), encoding="utf-8")
    return path


def begin(path: Path, out: Path, *options: str, quiet: bool = True) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "parsim",
        "sweep",
        str(path),
        "--out",
        str(out),
        "--exhaustive",
        *options,
        *(["--quiet"] if quiet else []),
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        # A shell starts what runs in its background with SIGINT ignored, and Ctrl-C is for who does not ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - this process has no threads of its own
    )  # fmt: skip


def lines(out: Path) -> list[str]:
    path = out / "results.jsonl"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happens"
        assert process is None or process.poll() is None, process.communicate()[1] if process is not None else ""
        time.sleep(0.02)


def children(parent: int) -> list[int]:
    """Worker processes of a parsim process, from /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"spawn_main" in words:
            found.append(int(folder.name))
    return found


def gone(process: int) -> bool:
    try:
        return (Path("/proc") / str(process) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def rows_of(out: Path) -> dict[str, Row]:
    """By key; every key once."""
    rows = [json.loads(line) for line in lines(out)]
    found = {row["key"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@linux
@pytest.mark.slow
def test_kill_9_in_the_middle_of_a_study_then_all_once(tmp_path: Path) -> None:
    path, out = study(tmp_path, 500), tmp_path / "out"
    first = begin(path, out, "--workers", "2")
    until(lambda: len(lines(out)) >= 150, first)
    workers = children(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=PATIENCE)
    before = rows_of(out) if (out / "results.jsonl").read_bytes().endswith(b"\n") else {}
    count = len(lines(out))
    assert 150 <= count < 500
    until(lambda: all(gone(worker) for worker in workers))  # nobody is left behind
    with (out / "results.jsonl").open("ab") as file:
        file.write(b'{"key":"torn')  # what a disk may keep of a line
    second = begin(path, out, "--workers", "2")
    second.communicate(timeout=PATIENCE)
    assert second.returncode == 0
    after = rows_of(out)
    assert len(after) == 500
    assert {row["variability.seed"] for row in after.values()} == set(range(1, 501))
    assert all(after[key] == row for key, row in before.items())
    assert {row["step_time_s"] for row in after.values()} == {3.0}


@linux
@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    path, out = study(tmp_path, 60), tmp_path / "out"
    process = begin(path, out, "--workers", "2")
    until(lambda: len(lines(out)) >= 3 and len(children(process.pid)) == 2, process)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    error = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, error) == (0, "")
    rows = rows_of(out)
    assert len(rows) == 60
    assert {row["status"] for row in rows.values()} == {"fits"}
    assert rows == {row["key"]: row for row in parsim.sweep(path, exhaustive=True).rows}, "as in one process"


@linux
def test_ctrl_c_leaves_a_valid_file_and_says_how_to_go_on(tmp_path: Path) -> None:
    path, out = study(tmp_path, 1500), tmp_path / "out"  # more than a fast machine finishes before the signal
    process = begin(path, out, "--workers", "2", quiet=False)
    until(lambda: len(lines(out)) >= 5 and len(children(process.pid)) == 2, process)
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and its workers
    said, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Interrupted: results so far; the best is not proved." in said
    assert "not reached yet" in said
    assert (out / "best.json").exists()
    assert f"The rows so far are in {out / 'results.jsonl'}; run the same command again to continue.\n" in error
    assert "Traceback" not in error
    assert (out / "results.jsonl").read_bytes().endswith(b"\n")
    assert 5 <= len(rows_of(out)) < 1500
    until(lambda: all(gone(worker) for worker in workers))


KILLER = """\
model: {stages: [{forward: 1 s, backward: 2 s}]}
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {micro_batch: 1, global_batch: 2}
parallel: {pipeline: {size: 2}}
study:
  axes:
    training.global_batch: [2, 4, 6, 8]
    parallel.pipeline.schedule: [gpipe, "killer.py:killer"]
"""
KILLER_PY = """\
import os, signal


def killer(stages, micro_batches, virtual):
    if micro_batches == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    forward = [f"F{{}}.{m}" for m in range(micro_batches)]
    backward = [f"B{{}}.{m}" for m in reversed(range(micro_batches))]
    return [[slot.format(stage) for slot in (*forward, *backward)] for stage in range(stages)]
"""


@linux
def test_a_candidate_with_which_its_worker_dies_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(KILLER, encoding="utf-8")
    (tmp_path / "killer.py").write_text(KILLER_PY, encoding="utf-8")
    process = begin(path, tmp_path / "out", "--workers", "2", "--trust-code")
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    rows = rows_of(tmp_path / "out").values()
    statuses = {(row["training.global_batch"], row["parallel.pipeline.schedule"]): row["status"] for row in rows}
    own = f"{tmp_path.resolve()}/killer.py:killer"
    assert statuses[6, own] == "failed"
    assert {status for key, status in statuses.items() if key != (6, own)} == {"fits"}
    assert len(statuses) == 8
    reason = next(row["reason"] for row in rows_of(tmp_path / "out").values() if row["status"] == "failed")
    assert reason == "its worker process died twice (killed, out of memory, or crashed)"


@linux
def test_workers_that_cannot_even_begin_are_an_error_and_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a script calls sweep() with workers without asking whether it is the main module."""
    places: list[Place] = list(
        Space(definition_of({"model": "gpt2", "cluster": "single-a100", "training": {"mbs": 1, "gas": 1}})).places(())
    )
    crew = Processes(1)

    def submit(job: Any, *arguments: Any) -> Any:
        return crew._pool.submit(os._exit, 7)

    monkeypatch.setattr(crew, "submit", submit)
    with pytest.raises(ParsimError, match="worker processes die before they answer at all"):
        next(Runner(Everything(iter(places)), crew).run())
