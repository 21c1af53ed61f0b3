"""A comparison in a notebook: the verdict, the table and the first figure."""

from __future__ import annotations

from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING

from parsim.report.notebook import on_paper
from parsim.report.plots.figure import save
from parsim.study.compare_figures import names
from parsim.study.compare_text import blocks, notes

if TYPE_CHECKING:
    from parsim.study.compare import Comparison

_HEADING = "text-align:left;font-weight:normal;white-space:pre"
"""of a row; leading blanks say what belongs to the row above"""


def html(comparison: Comparison) -> str:
    """A fragment without script."""
    parts = [f"<p><b>{escape(comparison.title)}</b><br>{escape(comparison.verdict).replace(chr(10), '<br>')}</p>", table(comparison)]
    parts += [
        f"<p><b>{escape(title)}</b><br>{'<br>'.join(map(escape, items))}</p>"
        for title, items in notes(comparison)
        if title == "Not simulated"
    ]
    if "breakdown" in names(comparison):
        svg = save(comparison.figure("breakdown"), "svg", inline=True)
        parts.append(on_paper(svg, f"parsim-{sha256(svg).hexdigest()[:12]}", "Where the step of each variant goes"))
    return f"<div>{''.join(parts)}</div>"


def table(comparison: Comparison) -> str:
    """The whole table."""
    heads = "".join(f"<th scope='col'>{escape(label)}</th>" for label in comparison.labels)
    rows = []
    for block in blocks(comparison):
        rows.append(f"<tr><th colspan='{1 + len(comparison)}' style='text-align:left'>{escape(block.title)}</th></tr>")
        for row in block.rows:
            cells = "".join(f"<td style='text-align:right'>{escape(cell)}</td>" for cell in row.cells)
            rows.append(f"<tr><th scope='row' style='{_HEADING}'>{escape(row.heading)}</th>{cells}</tr>")
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
