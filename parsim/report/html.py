"""The report as HTML: a page that opens anywhere, and the short form that notebooks show."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from parsim.report.page import page as pages
from parsim.report.page import sections

if TYPE_CHECKING:
    from parsim.report.report import Report


def page(report: Report) -> str:
    """The whole page of one run; `parsim.report.page.page` also takes several."""
    return pages.page([(report.measured.name, report)])


def summary(report: Report) -> str:
    """The verdict and the breakdown, for notebooks."""
    return f"<div><p><b>{escape(report.verdict)}</b><br>{escape(report.limiter)}</p>{sections.breakdown_table(report)}</div>"
