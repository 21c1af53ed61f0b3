"""What the pages of docs/ say is what happens: their files are written, their commands run, their outputs compared."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from doc_pages import DOCS, NAMES, described, split, steps, text_of

from parsim.cli import COMMANDS, application, execute

REWRITE = os.environ.get("PARSIM_GOLDEN") == "write"


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The output of a command, which must exit as the page says."""
    words, code = split(command)
    capsys.readouterr()
    found = execute(words)
    captured = capsys.readouterr()
    assert found == code, f"{command}\n{captured.err or captured.out}"
    return captured.out + captured.err


def renew(page: str, old: str, new: str) -> None:
    """With PARSIM_GOLDEN=write, put the output of today into the page."""
    if REWRITE and old != new:
        path = DOCS / f"{page}.md"
        path.write_text(path.read_text(encoding="utf-8").replace(f"```text\n{old}```", f"```text\n{new}```"), encoding="utf-8")


def plain(text: str) -> list[str]:
    """Lines without what a terminal pads."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("page", NAMES)
def test_what_a_page_shows_happens(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it
    known: dict[str, str] = {}
    for step in steps(page):
        if step.what == "file":
            Path(step.name).parent.mkdir(parents=True, exist_ok=True)
            Path(step.name).write_text(step.text, encoding="utf-8")
            known.clear()
            if step.name.startswith("read_"):
                exec(step.text, {})
        elif step.what == "python":
            exec(step.text, {})
        else:
            if step.name not in known:
                known[step.name] = run(step.name, capsys)
            lines, shown = plain(known[step.name]), plain(step.text)
            if step.what == "output":
                renew(page, step.text, "\n".join(lines) + "\n")
                assert shown == lines or REWRITE, f"{page}: {step.name}; write it anew with PARSIM_GOLDEN=write"
            else:
                assert [line for line in shown if line not in lines] == [], f"{page}: {step.name}\n" + known[step.name]


@pytest.mark.parametrize("page", NAMES)
def test_links_lead_somewhere(page: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", text_of(page)) if "://" not in target]
    assert [target for target in targets if not (DOCS / target).exists()] == []


@pytest.mark.parametrize("page", NAMES)
def test_described_commands_exist(page: str) -> None:
    from typer.main import get_command

    known = get_command(application(COMMANDS)).commands  # type: ignore[attr-defined]
    assert [command for command in described(page) if command.split()[1] not in known] == []


def test_every_page_is_in_the_index() -> None:
    listed = set(re.findall(r"\]\(([\w-]+)\.md", text_of("README")))
    there = {path.stem for path in DOCS.glob("*.md")} - {"README"}
    assert listed == there


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """The build of the site says so, too; this says it without Sphinx."""
    navigation = tomllib.loads((DOCS / "site" / "navigation.toml").read_text(encoding="utf-8"))["navigation"]
    named = [page for pages in navigation.values() for page in pages]
    assert len(named) == len(set(named))
    root = DOCS.parent
    pages = [path.relative_to(root) for path in [*DOCS.rglob("*.md"), *root.glob("*.md"), *root.glob("notebooks/*.ipynb")]]
    forgotten = [str(page) for page in pages if not any(page.with_suffix("").match(pattern) for pattern in named)]
    assert forgotten == ["README.md"]  # the front page holds the navigation
