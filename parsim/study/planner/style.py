"""What the page shares with reports."""

from __future__ import annotations

from importlib.resources import files


def page_style() -> str:
    """The style of a report's page."""
    return files("parsim.report").joinpath("page/page.css").read_text("utf-8")
