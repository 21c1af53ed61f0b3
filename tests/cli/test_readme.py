"""What the README shows is what happens."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.commands.new import EXAMPLE

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^<!-- lines (\d+)-(\d+): parsim (.+) -->\n```text\n((?:.*\n)*?)```$", re.MULTILINE)
"""Blocks that show some lines of what a command prints; PARSIM_GOLDEN=write renews them in both languages."""
REWRITE = os.environ.get("PARSIM_GOLDEN") == "write"


def block(language: str) -> str:
    """The first code block of a language that no command prints."""
    found = re.search(rf"^```{language}\n(.*?)^```", SHOWN.sub("", TEXT), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scenario of the README, in the current directory, under its name."""
    monkeypatch.chdir(tmp_path)
    file = Path("llama-70b.yaml")
    file.write_text(block("yaml"), encoding="utf-8")
    return file


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 120


def test_its_two_commands_are_one_line_each() -> None:
    commands = re.findall(r"^<!-- ci: (\w+) -->\n```bash\n(.*)\n```$", TEXT, re.MULTILINE)
    assert [name for name, _ in commands] == ["run", "test"]
    assert commands[0][1].endswith(f"parsim run scenarios/{EXAMPLE}.yaml")
    assert "--require-hashes -r constraints.txt" in commands[1][1]
    assert TEXT.index("<!-- ci: test -->") < TEXT.index("\n## A 70B model")


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(SHOWN.findall(TEXT))))
def test_what_it_shows_is_printed(place: int, demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it
    first, last, command, shown = SHOWN.findall(TEXT)[place]
    assert execute(shlex.split(command)) == 0
    printed = [line.rstrip() + "\n" for line in capsys.readouterr().out.splitlines()]
    found = "".join(printed[int(first) - 1 : int(last)])
    if REWRITE:
        head = f"<!-- lines {first}-{last}: parsim {command} -->\n```text\n"
        for page in ROOT.glob("README*.md"):
            text = page.read_text(encoding="utf-8")
            page.write_text(text.replace(f"{head}{shown}```", f"{head}{found}```"), encoding="utf-8")
    assert shown == found or REWRITE, "write it anew with PARSIM_GOLDEN=write"


def test_the_scenario_runs_with_other_values(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(demo), "--json", "--no-pictures", "training.global_batch=32", "parallel.tensor.size=8"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"]["micro_batches"] == 16


def test_a_mistake_is_reported_with_its_place(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.write_text(block("yaml").replace("virtual_stages:", "virtual:").replace("micro_batch: 1", "micro_batch: 1 GiB"), encoding="utf-8")
    assert execute(["run", str(demo)]) == 2
    said = capsys.readouterr().err
    assert "llama-70b.yaml:6:46  parallel.pipeline.virtual  unknown key; did you mean 'virtual_stages'?\n" in said
    assert "llama-70b.yaml:3:" in said
    assert said.endswith("2 problems. Nothing was simulated.\n")


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(block("python"), names)
    assert names["report"].step_time > 0


def test_every_command_is_there_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--help"]) == 0
    helped = re.findall(r"^  (\w+) +[A-Z]", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    table = "".join(line for line in TEXT.splitlines() if line.startswith("| "))
    assert sorted(helped) == sorted(set(re.findall(r"`parsim (\w+)", table)))


def test_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in target]
    assert targets
    assert all((ROOT / target).exists() for target in targets)
