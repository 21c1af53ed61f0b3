"""The table of errors in the READMEs and in docs/accuracy.md is the one that validation/runs/predict.py writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from recorded_runs import SCORES, predict_runs

MATPLOTLIB = "3.11.2"
"""its version that drew the figure"""


@pytest.mark.parametrize("page", predict_runs.PAGES, ids=lambda path: path.name)
def test_the_blocks_are_the_generated_ones(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, block in predict_runs.blocks(SCORES).items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        if start in text:
            assert start + block + end in text, "run validation/runs/predict.py"


def test_rows_left_out_are_counted() -> None:
    lines = predict_runs.table(SCORES).splitlines()
    bloom = next(line for line in lines if line.startswith("| BLOOM"))
    source = next(source for source in SCORES.sources if source.name == "bloom-prequel")
    left = sum(bool(row.left_out) for row in source.rows)
    assert f"| {len(source.rows) - left} / {left} |" in bloom


@pytest.mark.skipif(matplotlib.__version__ != MATPLOTLIB, reason="another version of matplotlib writes other bytes")
def test_the_figure_shows_the_recorded_errors() -> None:
    made = predict_runs.picture(replace(SCORES, grades=("left-out",)), "svg")
    assert predict_runs.FIGURE.read_bytes() == made, "run validation/runs/predict.py pages"
