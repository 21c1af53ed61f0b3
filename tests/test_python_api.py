"""parsim from Python, as a newcomer meets it: the page about it, its names, its errors, what Jupyter is shown."""

from __future__ import annotations

import importlib.util
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import parsim
from parsim import ParsimError, compare, load, schedule, simulate
from parsim.errors import DeadlockError, InputError

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
HOSTILE = '<script>alert("x")</script>&<img src=x onerror=y>'


class _Frame(list):
    """Stands for a data frame where there is no pandas: rows with one set of keys, and no nested values."""

    def __init__(self, rows):
        super().__init__(rows)
        assert rows
        assert len({tuple(row) for row in rows}) == 1
        assert not any(isinstance(value, (dict, list)) for row in rows for value in row.values())


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if importlib.util.find_spec("pandas") is None:
        module = ModuleType("pandas")
        module.DataFrame = _Frame
        monkeypatch.setitem(sys.modules, "pandas", module)
    assert len(BLOCKS) == 8
    names = {}
    for block in BLOCKS:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert len(names["memory"]) == len(names["report"].measured.memory.devices)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.svg", "schedules.pdf", "step.pdf"]


def test_the_page_names_what_a_report_has():
    report = simulate("mlp-1x-a100")
    table = PAGE.partition("## What a report offers")[2].partition("## Mistakes")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`\.?([\w.]+)", row)]
    assert len(names) > 20
    for name in names:
        thing = report.plot if name in {"memory", "breakdown", "collectives", "links"} and "plot" in name else report
        for part in name.split("."):
            assert hasattr(thing, part) or hasattr(report.plot, part), name
            thing = getattr(thing, part, None)


def test_public_names_can_be_found_without_importing_everything():
    code = "import sys, parsim; print(sorted(set(parsim.__all__) - set(dir(parsim))), 'matplotlib' in sys.modules, 'simpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[] False False\n"


def test_help_shows_how_to_begin():
    text = pydoc.plain(pydoc.render_doc(parsim))
    for name in parsim.__all__:
        assert re.search(rf"\b{name}\b", text), name
    assert "report = simulate(" in text
    assert "simulate(\n" in text or "simulate(scenario" in text


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: simulate("nosuch"), ["unknown scenario 'nosuch'", "or the path of a file"]),
        (lambda: simulate("gpt2-ddp-4x-a100", {"parallel.tensor.size": 4}), ["is not a text key=value", '"parallel.tensor.size=4"']),
        (lambda: load("gpt2-ddp-4x-a100", 4), ["4 is not a text key=value"]),
        (lambda: simulate("gpt2-ddp-4x-a100", "parallel.tensor.size"), ["is not of the form key.key=value"]),
        (lambda: simulate("gpt2-ddp-4x-a100", "parallel.tensr.size=4", "training.micro_batch=x"), ["did you mean 'tensor'?", "'x' is not"]),
        (lambda: simulate("gpt2-ddp-4x-a100", "parallel.tensor.size=3"), ["tensor 3 x pipeline 1", "4 / 3 = 1.333"]),
        (lambda: schedule("1f1b"), ["how many pipeline ranks?; give p, for example p=4", "give m, for example m=8"]),
    ],
)
def test_a_mistake_is_one_short_text_and_not_a_traceback(call, words):
    with pytest.raises(ParsimError) as caught:
        call()
    assert isinstance(caught.value, InputError)
    assert all(word in str(caught.value) for word in words)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    (shown,) = caught.value._render_traceback_()
    assert shown == f"{type(caught.value).__name__}: {caught.value}"
    assert "Traceback" not in shown


def test_a_deadlock_is_shown_without_the_way_to_it(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("F0.0, B0.0, F0.1, B0.1\nF1.1, F1.0, B1.0, B1.1\n", encoding="utf-8")
    with pytest.raises(DeadlockError, match="cycle of dependencies") as caught:
        schedule(str(table))
    (shown,) = caught.value._render_traceback_()
    assert "Traceback" not in shown
    assert "waits for" in shown


def test_what_jupyter_shows_escapes_names(tmp_path):
    report = simulate("mlp-1x-a100", f"name={HOSTILE!r}")
    both = compare(report_scenario := load("mlp-1x-a100"), report_scenario, labels=[HOSTILE, "plain"])
    table = tmp_path / "<b>&x.csv"
    table.write_text("F0.0, B0.0\n", encoding="utf-8")
    own = schedule(str(table))
    for shown in (report._repr_html_(), both._repr_html_(), own._repr_html_()):
        assert "<script" not in shown
        assert "<img" not in shown
        assert "<b>&x" not in shown
        assert "&lt;" in shown


def test_a_comparison_of_one_scenario_with_itself_changed_has_its_name_once():
    scenario = load("mlp-1x-a100")
    both = compare(scenario, scenario.with_overrides("training.micro_batch=2048"), labels=["as it is", "less"])
    assert both.title == scenario.name


def test_what_jupyter_shows_needs_no_stylesheet_of_ours():
    lab = schedule("1f1b", "gpipe", p=2, m=4)
    both = compare("mlp-1x-a100", vary={"training.micro_batch": [1024, 2048]})
    for shown in (simulate("mlp-1x-a100")._repr_html_(), both._repr_html_(), lab._repr_html_()):
        assert "<svg" in shown
        assert "var(--" not in shown
        assert "currentColor" not in shown
        assert not re.search(r"\bhttps?://(?!www\.w3\.org)", shown)
