"""The figures of docs/figures are what their commands write today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from doc_pages import DOCS

FOLDER = DOCS / "figures"
ELSEWHERE = ("accuracy.svg", "accuracy-by-source.svg")
"""drawn by validation/runs/predict.py; tests/validation/test_accuracy_table.py draws it again"""
SCREENS = ("planner.png",)
"""pictures of a page: no command draws them"""
LARGEST = 180_000
"""[B] of a figure"""
_SPEC = importlib.util.spec_from_file_location("make_figures", FOLDER / "make.py")
assert _SPEC is not None
assert _SPEC.loader is not None
make_figures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_figures)


def test_every_figure_is_there_and_no_other() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.svg")) == sorted([*make_figures.FIGURES, *ELSEWHERE])


@pytest.mark.parametrize("name", make_figures.FIGURES)
def test_a_figure_is_a_small_drawing(name: str) -> None:
    path = FOLDER / name
    assert path.stat().st_size < LARGEST
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))])
def test_the_command_beside_a_picture_is_the_one_that_drew_it(page: str) -> None:
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^]]*\]\((?:docs/)?figures/([\w.-]+)\)(?:<br>`([^`]+)`)?", text)
    drawn = [(name, command) for name, command in shown if name not in (*ELSEWHERE, *SCREENS)]
    assert [(name, command) for name, command in drawn if make_figures.FIGURES[name][0] != command] == []
    assert page.startswith("docs") or len(drawn) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", list(dict.fromkeys(command for command, _ in make_figures.FIGURES.values())))
def test_a_figure_is_what_its_command_writes(command: str, tmp_path: Path) -> None:
    names = [name for name, (other, _) in make_figures.FIGURES.items() if other == command]
    make_figures.make(names, tmp_path)
    for name in names:
        new, old = ((folder / name).read_bytes() for folder in (tmp_path, FOLDER))
        if matplotlib.__version__ == make_figures.MATPLOTLIB:
            assert new == old, f"draw it again: python docs/figures/make.py {name}"
