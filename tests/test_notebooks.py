"""Every code cell of every notebook runs, in order, in one namespace."""

import contextlib
import io
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    namespace = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "stored without outputs"
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("".join(cell["source"]), str(path), "exec"), namespace)
    assert namespace["report"].fits


def test_there_are_notebooks():
    assert NOTEBOOKS
