"""parsim compare as a script sees it: exit codes, streams, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.scenario import files

SMALL = """\
model: gpt2
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {sequence_length: 128, global_batch: 8, micro_batch: 4}
software: {host: {graphs: true}}
overrides:
  full: {training: {recompute: full}}
"""
STAGES = "parallel.data.strategy=ddp,zero1"


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("small.yaml").write_text(SMALL, encoding="utf-8")


def compare(*arguments: str) -> int:
    return execute(["compare", *arguments, "--workers", "1"])


def test_it_says_who_wins_and_writes_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("small.yaml", STAGES) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[2].startswith("zero1 wins: ")
    assert out.splitlines()[2].endswith(" per step.")
    written = sorted(path.name for path in Path("parsim-out/compare-small").iterdir())
    assert written == [
        "breakdown.svg", "collectives.svg",
        "comparison.csv", "comparison.json", "comparison.md", "memory.svg", "pareto.svg", "report.html", "timelines.svg",
    ]  # fmt: skip
    assert out.splitlines()[-1].startswith("Wrote parsim-out/compare-small/: comparison.json, comparison.md, comparison.csv, breakdown.svg")
    assert json.loads(Path("parsim-out/compare-small/comparison.json").read_text(encoding="utf-8"))["labels"] == ["ddp", "zero1"]


def test_json_is_one_document_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("small.yaml", "small.yaml+full", STAGES, "--json", "--baseline", "full, zero1") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert document["labels"] == ["no override, ddp", "no override, zero1", "full, ddp", "full, zero1"]
    assert document["baseline"] == "full, zero1"
    assert document["provenance"]["command"] == f"parsim compare small.yaml small.yaml+full {STAGES} --baseline 'full, zero1'"
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_quiet_prints_nothing_and_formats_choose_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("small.yaml", STAGES, "--quiet", "--out", "here", "--format", "png", "--width", "3.5") == 0
    assert compare("small.yaml", STAGES, "--quiet", "--out", "there", "--format", "none") == 0
    assert capsys.readouterr() == ("", "")
    assert {path.suffix for path in Path("here").iterdir()} == {".json", ".md", ".csv", ".png"}
    assert {path.name for path in Path("there").iterdir()} == {"comparison.json", "comparison.md", "comparison.csv"}


def test_what_does_not_fit_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("small.yaml", "cluster.set.device.memory=1 GiB,80 GiB", "--json")
    assert compare(*arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["status"] for one in document["variants"]] == ["does not fit", "fits"]
    assert document["variants"][0]["reason"].startswith("memory: ")
    assert document["winner"] == document["labels"][1]
    assert compare(*arguments, "--strict") == 3


def test_what_cannot_be_simulated_is_one_too_unless_nothing_can(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("small.yaml", "missing.yaml", "--json")
    assert compare(*arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["status"] for one in document["variants"]] == ["fits", "refused"]
    assert "missing.yaml" in document["variants"][1]["reason"]
    assert compare(*arguments, "--strict") == 2
    capsys.readouterr()
    assert compare("small.yaml", "training.micro_batch=3,5", "--json") == 2
    out, err = capsys.readouterr()
    assert [one["path"] for one in json.loads(out)["errors"]] == ["training.global_batch"] * 2
    assert err.count("is not whole") == 2
    assert not Path("parsim-out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("small.yaml",), "one scenario is no comparison"),
        (("small.yaml", STAGES, "--baseline", "zero9"), "no variant is called 'zero9'; did you mean 'zero1'?"),
        (("small.yaml", STAGES, "--format", "bmp"), "unknown format 'bmp'"),
        (("small.yaml", STAGES, "--label", "x"), "1 labels for 2 variants"),
        (("small.yaml", STAGES, "training.mbs=1,2,4", "training.seq=1,2,3,4,5,6,7,8,9"), "= 54 variants, at most 48"),
        (("zero-nvlink2",), "did you mean 'zero-nvlink'?"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_a_directory_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("small.yaml", STAGES, "--out", "small.yaml/here") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_comparisons_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", "comparisons"]) == 0
    assert capsys.readouterr().out.split() == files.names("comparisons")
