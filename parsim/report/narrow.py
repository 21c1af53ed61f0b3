"""A table of one column per thing, made narrow enough for a terminal: headings and words are wrapped, numbers never."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from parsim.columns import width
from parsim.report.table import Table

_FIRST = 24
"""least columns of the first column, before the table goes on below"""
_LONGEST = 12
"""letters of a word that are not broken, unless it is a number"""
_GAP = 2
_INDENT = 2
_PIECE = re.compile(r"[^\s\-_/=,:+]*[\-_/=,:+]+|[^\s\-_/=,:+]+|\s+")
_NUMBER = re.compile(r"[<>~+\-−]?[0-9][0-9.,]*(?:[%a-zA-Z/]{0,3})?")


def wrapped(text: str, columns: int) -> list[str]:
    """`text` in lines of at most `columns`, broken at blanks, else behind punctuation; numbers stay whole.

    >>> wrapped("does not fit", 8), wrapped("llama-7b-ddp-8x-a100", 10), wrapped("24,286", 3)
    (['does not', 'fit'], ['llama-7b-', 'ddp-8x-', 'a100'], ['24,286'])
    """
    lines, line = [], ""
    for piece in _pieces(text, columns):
        if line and width(line) + width(piece.rstrip()) > columns:
            lines.append(line.rstrip())
            line = piece.lstrip()
        else:
            line += piece
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _pieces(text: str, columns: int) -> Iterator[str]:
    """What `text` may be broken between: words and the blanks before them, or parts of words that are longer than a line."""
    for word in re.findall(r"\s*\S+", text):
        if width(word.strip()) <= columns or _NUMBER.fullmatch(word.strip()):
            yield word
            continue
        for piece in _PIECE.findall(word):
            broken = width(piece) > max(columns, _LONGEST) and not _NUMBER.fullmatch(piece)
            yield from (piece[at : at + columns] for at in range(0, len(piece), columns)) if broken else [piece]


def narrow(table: Table, columns: int) -> list[Table]:
    """The table with its cells wrapped so that it takes at most `columns`; several, each beginning with the first column, where its numbers
    are too wide for one.
    """
    count = len(table.columns) - 1
    parts = 1
    while parts < count:
        each = -(-count // parts)
        if (
            max(_FIRST, _least(table, 0)) + sum(sorted((_GAP + _least(table, place) for place in range(1, count + 1)), reverse=True)[:each])
            <= columns
        ):
            break
        parts += 1
    each = -(-count // parts) if count else 1
    places = [list(range(first, min(first + each, count + 1))) for first in range(1, count + 1, each)]
    return [_fitted(table, [0, *some], columns) for some in places or [[]]]


def _least(table: Table, place: int) -> int:
    """Columns that the longest unbreakable piece of a column takes."""
    texts = [table.columns[place].title, *(row[place].text for row in table.cells)]
    limit = _LONGEST if place else _FIRST - _INDENT
    return max(max(map(width, wrapped(text, limit)), default=0) for text in texts) + (0 if place else _INDENT)


def _fitted(table: Table, places: Sequence[int], columns: int) -> Table:
    natural = [max(width(table.columns[at].title), *(width(row[at].text) for row in table.cells)) for at in places]
    natural[0] += _INDENT
    least = [min(_least(table, at), full) for at, full in zip(places, natural, strict=True)]
    widths = list(natural)
    while sum(widths) + _GAP * (len(widths) - 1) > columns:
        roomy = [at for at in range(len(widths)) if widths[at] > least[at]]
        if not roomy:
            break
        widest = max(roomy, key=lambda at: (widths[at] - (_FIRST if at == 0 else 0), -at))
        widths[widest] -= 1
    heads = [
        replace(table.columns[at], heading="\n".join(wrapped(table.columns[at].label, room)), unit="")
        for at, room in zip(places, widths, strict=True)
    ]
    rows: list[Sequence[str]] = []
    groups: dict[int, str] = {}
    for number, row in enumerate(table.cells):
        if number in table.groups:
            groups[len(rows)] = table.groups[number]
        first = wrapped(row[places[0]].text, widths[0] - _INDENT)
        indent = " " * (len(row[places[0]].text) - len(row[places[0]].text.lstrip()))
        cells = [
            [first[0], *(f"{indent}  {line}" for line in first[1:])],
            *(wrapped(row[at].text, room) for at, room in zip(places[1:], widths[1:], strict=True)),
        ]
        height = max(map(len, cells))
        rows += [[cell[line] if line < len(cell) else "" for cell in cells] for line in range(height)]
    return Table(heads, rows, groups=groups)
