"""Pieces of HTML: numbers that say which number they are, bars, sections."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from parsim.report.table import attributes


def figure(text: str, key: str, value: float | str | None, tag: str = "b") -> str:
    """A number in running text."""
    return f"<{tag}{attributes(key, value)}>{escape(text)}</{tag}>"


def swatch(colour: str, kind: str = "") -> str:
    """A square of the colour of a class."""
    return f'<i class="swatch {kind}" style="background:{colour}"></i>'


def badge(status: str) -> str:
    """How far an estimate can be trusted: validated, interpolated or unvalidated."""
    return f'<span class="badge {escape(status)}">{escape(status)}</span>'


def bar(parts: Iterable[tuple[str, float, str]], whole: float, label: str) -> str:
    """A bar of (colour, size, words) parts; what is left of `whole` stays empty."""
    pieces = "".join(
        f'<i style="width:{100 * size / whole:.3f}%;background:{colour}" title="{escape(words)}"></i>'
        for colour, size, words in parts
        if whole > 0 and size > 0
    )
    return f'<div class="bar" role="img" aria-label="{escape(label)}">{pieces}</div>'


def section(title: str, body: str, name: str = "") -> str:
    """A part of the page under its heading."""
    anchor = f' id="{name}"' if name else ""
    return f"<section{anchor}><h2>{escape(title)}</h2>\n{body}\n</section>" if body else ""


def details(title: str, body: str, *, name: str = "", is_open: bool = False) -> str:
    """A part of the page that starts closed."""
    anchor = f' id="{name}"' if name else ""
    return f"<details{anchor}{' open' * is_open}><summary>{escape(title)}</summary>\n{body}\n</details>"


def contents(links: Iterable[tuple[str, str]]) -> str:
    """Links to the parts (name, title) of a page: beside it where there is room, folded away where there is not."""
    items = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in links)
    return (
        f'<nav class="contents" aria-label="Contents"><b>Contents</b><ul>{items}</ul></nav>'
        f'<details class="contents"><summary>Contents</summary><ul>{items}</ul></details>'
    )
