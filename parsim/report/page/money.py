"""What the training costs, as a section of the page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from parsim.report.definitions import DEFINITIONS
from parsim.report.page.markup import Cell, table
from parsim.report.statement import statement

if TYPE_CHECKING:
    from parsim.report.report import Report


def money(report: Report) -> str:
    """Steps, hours, money and energy, and why a number is missing; empty where nobody asked."""
    if report.bill is None:
        return ""
    values = report.bill.metrics() | {f"estimate.{key}": value for key, value in report.estimate.document().items()}
    rows: list[list[Cell | str]] = []
    for line in statement(report.bill, report.estimate):
        defined = DEFINITIONS[line.key.partition(".")[0]]
        head = f'<a href="#def-{defined.name}" title="{escape(defined.text)}">{escape(line.title)}</a>'
        rows.append([Cell(line.title, html=head), line.note, Cell(line.text, values[line.key], line.key)])
    missing = "".join(
        f"<p>No {escape(metric.replace('_', ' '))}: {escape(reason)}.</p>" for metric, reason in report.bill.economics.reasons.items()
    )
    return (table(["", "rests on", ""], rows, words=2, name="bill", sortable=False) if rows else "") + missing
