"""`parsim new`: a file of a model on a cluster that checks clean, fits where something does, and says what to change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.commands.new import questions
from parsim.run import simulate
from parsim.study.new_scenario import SCHEMA


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (["--model", "gpt2", "--on", "1x rtx-4090"], ""),
        (["--model", "gpt2", "--on", "dgx-a100-80gb", "--gpus", "4", "--strategy", "fsdp"], ""),
        (["--model", "llama-7b", "--on", "1x rtx-4090"], "host memory"),
        (["--model", "llama-3-8b", "--on", "dgx-a100-80gb"], "tensor parallelism"),  # 8-bit Adam, which is faster, is another training
    ],
)
def test_it_fits(words: list[str], change: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["new", "mine", *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fits"] is True
    assert change in said["change"]
    text = Path("mine.yaml").read_text()
    assert text.startswith(f"{SCHEMA}\n")
    assert "# samples per forward pass of one replica" in text
    assert execute(["check", "mine.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    report = simulate("mine.yaml")
    assert report.fits
    if "--gpus" in words:
        assert (report.measured.ranks.total, report.measured.scenario["parallel"]["data"]["strategy"]) == (4, "fsdp")


def test_without_a_terminal_nothing_is_asked_and_the_example_is_copied(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["new", "mine"]) == 0
    assert capsys.readouterr().out == "Wrote mine.yaml. Next: parsim run mine.yaml\n"
    assert Path("mine.yaml").read_text().startswith(f"{SCHEMA}\n# GPT-2")


def test_the_name_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["new", "--model", "gpt2", "--on", "dgx-a100-80gb", "--nodes", "2"]) == 0
    assert "Wrote gpt2-2x-dgx-a100-80gb.yaml." in capsys.readouterr().out
    assert execute(["new", "--model", "gpt2", "--on", "1x rtx-4090", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == "gpt2-1x-rtx-4090.yaml"
    assert execute(["new", "--from", "gpt2-link-flap"]) == 0
    assert "Wrote gpt2-link-flap.yaml." in capsys.readouterr().out
    assert execute(["new", "--from", "gpt2-link-flap"]) == 2
    assert "exists and is not overwritten; choose another name: parsim new NAME" in capsys.readouterr().err


def test_the_schema_stands_beside_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["new", "mine"]) == 0
    named = Path("mine.yaml").read_text().splitlines()[0].partition("$schema=")[2]
    for command, file in ((["schema"], named), (["schema", "--study"], "parsim.study.schema.json")):
        capsys.readouterr()
        assert execute(command) == 0
        assert Path(file).read_text(encoding="utf-8") == capsys.readouterr().out
    Path(named).write_text("{}")
    assert execute(["new", "other"]) == 0
    assert Path(named).read_text() == "{}"


def test_everything_wrong_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("")
    assert execute(["new", "mine", "--model", "llama-3-7b", "--on", "hgx-h10", "--strategy", "zero9"]) == 2
    said = capsys.readouterr().err
    assert "mine.yaml  exists and is not overwritten; choose another name: parsim new NAME" in said
    assert "there is no strategy 'zero9'; did you mean 'zero3'?" in said
    assert "unknown model 'llama-3-7b'; `parsim list models` has the catalogue" in said
    assert "unknown topology 'hgx-h10'; did you mean 'hgx-h100'" in said
    assert "4 problems." in said
    assert execute(["new", "other", "--from", "nothing", "--on", "hgx-h100"]) == 2
    assert "2 problems." in capsys.readouterr().err
    assert not Path("other.yaml").exists()


def test_it_asks_with_numbers_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    answers = iter(["gtp2", "6", "dgx-a100-80gb", "many", "2", "", "unused"])

    def answer(prompt: str) -> str:
        asked.append(prompt.splitlines()[0])
        return next(answers)

    assert questions(answer) == ("gpt2", "dgx-a100-80gb", 2, "auto")
    assert asked == ["Which model?"] * 2 + ["Which machine?"] + ["How many machines? for example 1, 2, 4, 8"] * 2 + ["Which strategy?"]
    assert "'gtp2' is not known; did you mean 'gpt2'?" in capsys.readouterr().err
