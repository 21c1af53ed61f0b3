"""`parsim timeline`: files, ranks, windows, and what is said when they are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parsim.cli import execute

FILE = "pipeline-unit-1f1b"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_pdf_is_the_default_and_comes_out_the_same_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["timeline", FILE]) == 0
    out = capsys.readouterr().out
    assert "rank 1 · stage 1: bubble 9 s, exposed communication 0 s" in out
    path = Path("parsim-out") / FILE / "timeline.pdf"
    assert out.endswith(f"Wrote {path}\n")
    first = path.read_bytes()
    assert execute(["timeline", FILE]) == 0
    assert path.read_bytes() == first
    assert first.startswith(b"%PDF")


def test_options_reach_the_figure(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["timeline", FILE, "training.global_batch=16", "--window", "3s:6s", "--ranks", "0,3", "--no-memory", "--width", "3.5in"]
    assert execute([*command, "--title", "", "--figure", "here/figure.svg", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["begin_s"], document["end_s"], document["step_time_s"]) == (3.0, 6.0, 57.0)  # (m + p - 1)(F + B) = 19 x 3 s
    assert [(row["rank"], row["stage"], row["bubble_s"]) for row in document["ranks"]] == [(0, 0, 2.0), (3, 3, 0.0)]
    assert document["memory_rank"] is None
    assert 'width="252pt"' in Path("here/figure.svg").read_text(encoding="utf-8")


def test_everything_wrong_with_the_options_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["timeline", FILE, "--figure", "x.gif", "--width", "9parsec", "--ranks", "a", "--stages", "--json"]) == 2
    captured = capsys.readouterr()
    assert [finding["path"] for finding in json.loads(captured.out)["errors"]] == ["--figure", "--ranks", "width", "ranks"]
    assert "name it .pdf, .svg, .png or .pgf" in captured.err
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "30s:40s"], "the window ends at 40 s, the step takes 33 s"),
        (["--window", "3s:2s"], "swap its ends"),
        (["--window", "3GB:2s"], "is a size in B, expected a time in s"),
        (["--ranks", "0,4"], "the job has no rank 4; its ranks are 0-3"),
    ],
)
def test_what_only_the_step_can_tell(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["timeline", FILE, *options]) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_pgf_needs_tex(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parsim.commands.timeline.which", lambda _: None)
    assert execute(["timeline", FILE, "--figure", "x.pgf"]) == 2
    assert "needs xelatex" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("", encoding="utf-8")
    assert execute(["timeline", FILE, "--figure", "file/x.pdf"]) == 2
    assert "cannot be written" in capsys.readouterr().err
