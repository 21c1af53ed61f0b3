"""The report as a page that opens anywhere, also without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parsim.report.page import page as pages

if TYPE_CHECKING:
    from parsim.report.report import Report


def page(report: Report) -> str:
    """The whole page of one run; `parsim.report.page.page` also takes several."""
    return pages.page([(report.measured.name, report)])
