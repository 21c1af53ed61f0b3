"""What the training costs, as a section of the page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from parsim.report.definitions import DEFINITIONS
from parsim.report.statement import statement
from parsim.report.table import Cell, Column, Content, Table

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics


def money(report: Metrics) -> str:
    """Steps, hours, money and energy, and why a number is missing; empty where nobody asked."""
    if report.bill is None:
        return ""
    values = report.bill.metrics() | {f"estimate.{key}": value for key, value in report.estimate.document().items()}
    rows: list[list[Content]] = []
    for line in statement(report.bill, report.estimate):
        defined = DEFINITIONS[line.key.partition(".")[0]]
        head = f'<a href="#def-{defined.name}" title="{escape(defined.text)}">{escape(line.title)}</a>'
        rows.append([Cell(line.title, html=head), line.note, Cell(line.text, values[line.key], line.key)])
    missing = "".join(
        f"<p>No {escape(metric.replace('_', ' '))}: {escape(reason)}.</p>" for metric, reason in report.bill.economics.reasons.items()
    )
    columns = (Column("", align="left"), Column("rests on", align="left"), Column(""))
    return (Table(columns, rows).html("bill", sortable=False) if rows else "") + missing
