"""The table of errors in the READMEs and in docs/accuracy.md is the one that validation/runs/predict.py writes."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import matplotlib
import pytest
from recorded_runs import held, predict_runs, scores

from parsim.validation.accuracy_drawing import accuracy_drawing
from parsim.validation.score import percent

MATPLOTLIB = "3.11.2"
"""its version that drew the figure"""


def test_the_blocks_are_the_generated_ones() -> None:
    blocks = predict_runs.blocks(scores())
    for page in predict_runs.PAGES:
        text = page.read_text(encoding="utf-8")
        for name, block in blocks.items():
            start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
            if start in text:
                assert start + block + end in text, f"{page}: run validation/runs/predict.py"


def test_rows_left_out_are_counted() -> None:
    lines = predict_runs.table(scores()).splitlines()
    bloom = next(line for line in lines if line.startswith("| BLOOM"))
    source = next(source for source in scores().sources if source.name == "bloom-prequel")
    left = sum(bool(row.left_out) for row in source.rows)
    assert f"| {len(source.rows) - left} / {left} |" in bloom


@pytest.mark.skipif(matplotlib.__version__ != MATPLOTLIB, reason="another version of matplotlib writes other bytes")
def test_the_figure_shows_the_recorded_errors() -> None:
    made = predict_runs.picture(replace(scores(), grades=("left-out",)), "svg")
    assert predict_runs.FIGURE.read_bytes() == made, "run validation/runs/predict.py pages"


def test_the_drawing_by_source_is_the_one_of_the_recorded_errors() -> None:
    made = accuracy_drawing(scores(), held())
    assert predict_runs.BY_SOURCE.read_text(encoding="utf-8") == made, "run validation/runs/predict.py pages"
    said = re.findall(r"<title>(.+): ([\d.]+) % a priori, ([\d.]+) % left out, band", made)
    rows = [line.split(" | ") for line in predict_runs.table(scores()).splitlines()]
    assert [(unescape(title), f"{prior} %", f"{left} %") for title, prior, left in said[:-1]] == [
        (row[0].removeprefix("| ").removesuffix(" (prints MFU only)"), row[2], row[3])
        for row in rows
        if len(row) > 4 and row[1][0].isdigit() and "**" not in row[2] and not row[0].startswith("| the same without")
    ]


def test_shipped_bands_cover_what_they_promise_on_families_that_they_did_not_see() -> None:
    *each, overall = held()
    assert overall.source == "all"
    assert overall.rows == sum(one.rows for one in each) > 700
    assert 0.75 <= overall.inside <= 0.90
    assert overall.half_width <= 0.15


def test_sources_with_mfu_only_are_told_apart() -> None:
    """A mark behind the title, and the means over sources without them."""
    lines = predict_runs.table(scores()).splitlines()
    marked = [line for line in lines if "(prints MFU only)" in line]
    assert [source.title for source in scores().sources if source.mfu_only] == [
        line[2:].partition(" (prints MFU only)")[0] for line in marked
    ]
    without = replace(scores(), sources=tuple(source for source in scores().sources if not source.mfu_only))
    (timed,) = (line for line in lines if line.startswith("| the same without"))
    assert [f"{percent(without.over_sources(grade))} %" for grade in scores().grades] == timed.split(" | ")[2:5]
    assert scores().timed().timed() is None
