"""What the README shows is what happens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.commands.new import EXAMPLE

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The first code block of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_it_opens_with_two_commands_of_one_line() -> None:
    commands = re.findall(r"^<!-- ci: (\w+) -->\n```bash\n(.*)\n```$", TEXT, re.MULTILINE)
    assert [name for name, _ in commands] == ["run", "test"]
    assert commands[0][1].endswith(f"parsim run scenarios/{EXAMPLE}.yaml")
    assert "--require-hashes -r constraints.txt" in commands[1][1]
    assert TEXT.index("<!-- ci: test -->") < TEXT.index("\n## ")


def test_the_scenario_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text(block("yaml"), encoding="utf-8")
    assert execute(["run", "demo.yaml", "--json", "parallel.data.strategy=zero3", "training.micro_batch=8"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"]["micro_batches"] == 2


def test_the_mistake_is_reported_like_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text(block("yaml").replace("{data:", "{ppp: 2, data:"), encoding="utf-8")
    assert execute(["run", "demo.yaml"]) == 2
    assert capsys.readouterr().err == block("text")


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(block("python"), names)
    assert names["report"].step_time > 0


def test_every_command_is_there_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--help"]) == 0
    helped = re.findall(r"^  (\w+) +[A-Z]", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    described = re.findall(r"^\| `parsim (\w+)", TEXT, re.MULTILINE)
    assert sorted(helped) == sorted(described)


def test_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in target]
    assert targets
    assert all((ROOT / target).exists() for target in targets)
