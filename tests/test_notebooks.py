"""Every code cell of every notebook runs, in order, in one namespace; what a cell ends with can show itself."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path

import matplotlib as mpl
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
RICH = ("_repr_html_", "_repr_svg_", "_repr_png_")
PLAIN = (dict, list, tuple, str, int, float, bool)
"""what Jupyter shows well as it is"""


@pytest.fixture(autouse=True)
def _no_windows():
    from matplotlib import pyplot

    backend = mpl.get_backend()
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(backend)


def run_cell(source, name, namespace):
    """Execute a cell as Jupyter does; the value of its last expression, None where it has none or ends with a semicolon."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    value = None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    return None if source.rstrip().endswith(";") else value


def shown(value):
    """The rich forms of a value, name -> form."""
    return {form: getattr(value, form)() for form in RICH if hasattr(value, form)}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    namespace = {}
    rich = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"], "stored without outputs"
        with contextlib.redirect_stdout(io.StringIO()):
            value = run_cell("".join(cell["source"]), f"{path.name} {cell['id']}", namespace)
        if value is not None and not isinstance(value, PLAIN):
            forms = [form for form in shown(value).values() if form]
            assert forms, f"{cell['id']} ends with a {type(value).__name__} that shows nothing"
            rich += 1
    assert rich, "a notebook shows something"


def test_there_are_six_and_their_cells_have_ids():
    assert [path.stem for path in NOTEBOOKS] == [
        "1-first-run",
        "2-data-parallel-and-zero",
        "3-pipeline-schedules",
        "4-sizing-a-cluster",
        "5-expert-parallelism",
        "6-imperfect-clusters",
    ]
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in notebook["cells"]]
        assert len(ids) == len(set(ids))
        assert notebook["cells"][0]["source"][0].startswith("# ")
