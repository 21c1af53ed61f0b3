"""parsim trace: files that are written, and what is said when they cannot be."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.commands.trace import numbers

SAMPLE = Path(__file__).parent.parent / "data" / "kineto" / "gpu-step.json"
NAME = "gpt2-ddp-4x-a100"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_trace(capsys):
    assert execute(["trace", NAME]) == 0
    said = capsys.readouterr().out
    path = Path("parsim-out") / NAME / "trace.json.gz"
    size = path.stat().st_size
    assert said == f"Wrote {path}: 44 slices, 4 left out, ranks 0, {size / 1e6:.3g} MB. Open it at ui.perfetto.dev\n"
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document["otherData"]["spans_written"] == 44


def test_ranks_overrides_and_json(capsys):
    assert execute(["trace", NAME, "training.micro_batch=4", "--unfolded", "--ranks", "1,3", "--save", "t.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["trace"]
    assert (told["file"], told["ranks"], told["merged"]) == ("t.json", [1, 3], [])
    document = json.loads(Path("t.json").read_text("utf-8"))
    assert document["otherData"]["ranks_written"] == [1, 3]


def test_one_file_per_rank(capsys):
    assert execute(["trace", NAME, "--unfolded", "--per-rank", "--out", "ranks"]) == 0
    assert sorted(path.name for path in Path("ranks").iterdir()) == [f"rank-{rank}.json.gz" for rank in range(4)]
    assert capsys.readouterr().out.startswith("Wrote ranks: rank-0.json.gz, rank-1.json.gz, ")


def test_beside_a_recorded_trace(capsys):
    assert execute(["trace", NAME, "--merge", f"node 7={SAMPLE}", "--merge", str(SAMPLE), "--save", "m.json"]) == 0
    assert "beside node 7, gpu-step" in capsys.readouterr().out
    events = json.loads(Path("m.json").read_text("utf-8"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert any(name.startswith("node 7 · ") for name in names)
    assert any(name.startswith("gpu-step · ") for name in names)


def test_a_memory_snapshot(capsys):
    assert execute(["trace", NAME, "--memory-snapshot", "memory.pickle"]) == 0
    assert not Path("parsim-out").exists()
    size = Path("memory.pickle").stat().st_size
    assert capsys.readouterr().out == f"Wrote memory.pickle: memory of rank 0, {size / 1e6:.3g} MB. Open it at pytorch.org/memory_viz\n"
    assert pickle.loads(Path("memory.pickle").read_bytes())["segments"]


def test_everything_wrong_is_said_at_once(capsys):
    assert execute(["trace", NAME, "--ranks", "0,x", "--rank", "3", "--per-rank", "--merge", str(SAMPLE)]) == 2
    assert capsys.readouterr().err == (
        "command line  --ranks (=0,x) must be ranks and ranges of ranks; write for example 0,8-11\n"
        "command line  --per-rank and --merge exclude each other; merge into one file\n"
        "command line  --rank belongs to --memory-snapshot; --ranks chooses those of the trace\n"
        "3 problems.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ranks", "0,3"], "rank 3 was not simulated; simulated ranks: 0; --unfolded simulates every rank"),
        (["--memory-snapshot", "m.pickle", "--rank", "2"], "rank 2 was not simulated; it does what rank 0 does"),
        (["--merge", "absent.json"], "absent.json  no such file"),
        (["--save", "no/such/t.json"], "no/such/t.json  cannot be written: No such file or directory"),
        (["training.micro_batchs=2"], "training.micro_batchs"),
    ],
)
def test_what_cannot_be_done_is_said(arguments, says, capsys):
    assert execute(["trace", NAME, *arguments]) == 2
    assert says in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_rank_lists():
    assert numbers("0,8-11,9") == [0, 8, 9, 10, 11]
    for wrong in ("", "3-1", "-1", "a", "1,,2", "1-", "0-99999999999"):
        with pytest.raises(ValueError):
            numbers(wrong)
