"""A page without data or scripts in the style of the others: for answers that are tables, figures and sentences."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

from parsim.columns import visible

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def plain_page(title: str, subtitle: str, body: str) -> str:
    """One HTML file that needs nothing else; `body` is HTML, the other two are texts. Light or dark as the reader's system is."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(visible(title))} · parsim</title>",
            f"<style>\n{_style()}</style>",
            "</head>",
            "<body>",
            f"<header><h1>{escape(visible(title))}</h1></header>",
            f'<div class="recipe">{escape(visible(subtitle))}</div>',
            f"<main>\n{visible(body)}\n</main>",
            "</body>",
            "</html>",
            "",
        )
    )


@cache
def _style() -> str:
    return files("parsim.report").joinpath("page/page.css").read_text("utf-8")
