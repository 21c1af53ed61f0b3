"""Pieces of HTML: numbers that say which number they are, and tables that sort."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 1_000
"""rows of a table before it refers to report.json"""
_FILTERED = 50
"""rows from which a table gets a filter box"""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the number behind it, and the key of that number in the JSON document."""

    text: str
    value: float | str | None = None
    """what the column is sorted by; None: the text"""
    key: str = ""
    html: str = ""
    """instead of the text"""


def attributes(key: str = "", value: float | str | None = None) -> str:
    """``data-key`` and ``data-v`` of a number; floats in full."""
    found = f' data-key="{escape(key)}"' if key else ""
    return found if value is None else f'{found} data-v="{escape(value if isinstance(value, str) else repr(value))}"'


def figure(text: str, key: str, value: float | str | None, tag: str = "b") -> str:
    """A number in running text."""
    return f"<{tag}{attributes(key, value)}>{escape(text)}</{tag}>"


def swatch(colour: str, kind: str = "") -> str:
    """A square of the colour of a class."""
    return f'<i class="swatch {kind}" style="background:{colour}"></i>'


def bar(parts: Iterable[tuple[str, float, str]], whole: float, label: str) -> str:
    """A bar of (colour, size, words) parts; what is left of `whole` stays empty."""
    pieces = "".join(
        f'<i style="width:{100 * size / whole:.3f}%;background:{colour}" title="{escape(words)}"></i>'
        for colour, size, words in parts
        if whole > 0 and size > 0
    )
    return f'<div class="bar" role="img" aria-label="{escape(label)}">{pieces}</div>'


def table(
    heads: Sequence[str], rows: Sequence[Sequence[Cell | str]], *, words: int = 1, name: str = "", caption: str = "", sortable: bool = True
) -> str:
    """A table; the first `words` columns are text. Beyond `MOST_ROWS` rows it says what it leaves out."""
    if not rows:
        return "<p>none</p>"
    head = "".join(_head(text, place < words, sortable) for place, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(_cell(cell, place < words) for place, cell in enumerate(row))}</tr>" for row in rows[:MOST_ROWS])
    more = f"{MOST_ROWS:,} of {len(rows):,} rows; all in report.json." if len(rows) > MOST_ROWS else ""
    title = " ".join(filter(None, (caption, more)))
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    box = (
        f'<input class="filter" type="search" placeholder="filter rows" aria-label="filter {escape(name)}">'
        if len(rows) > _FILTERED
        else ""
    )
    kind = ' class="sortable"' if sortable and len(rows) > 1 else ""
    anchor = f' id="{escape(name)}"' if name else ""
    return (
        f'{box}<div class="scroll" tabindex="0" role="region" aria-label="{escape(name or title or "table")}">'
        f"<table{anchor}{kind}>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(text: str, word: bool, sortable: bool) -> str:
    inner = f'<button type="button">{escape(text)}</button>' if sortable else escape(text)
    order = ' aria-sort="none"' if sortable else ""
    return f'<th scope="col"{_word(word)}{order}>{inner}</th>'


def _cell(cell: Cell | str, word: bool) -> str:
    if isinstance(cell, str):
        return f"<td{_word(word)}>{escape(cell)}</td>"
    return f"<td{_word(word)}{attributes(cell.key, cell.value)}>{cell.html or escape(cell.text)}</td>"


def _word(word: bool) -> str:
    return ' class="word"' if word else ""


def section(title: str, body: str, name: str = "") -> str:
    """A part of the page under its heading."""
    anchor = f' id="{name}"' if name else ""
    return f"<section{anchor}><h2>{escape(title)}</h2>\n{body}\n</section>" if body else ""


def details(title: str, body: str, *, name: str = "", is_open: bool = False) -> str:
    """A part of the page that starts closed."""
    anchor = f' id="{name}"' if name else ""
    return f"<details{anchor}{' open' * is_open}><summary>{escape(title)}</summary>\n{body}\n</details>"
