"""One table that prints itself as terminal text, Markdown, CSV, HTML and JSON.

Say once what the columns are and what stands in the rows; every form follows::

    unit = time_unit(longest)
    table = Table(
        [Column("Change", align="left"), Column("Step", unit=unit.name, write=unit.cell, key="step_time_s"), Column("MFU", write=percent)],
        [("as it is", 1.42, 0.48), ("zero2", 1.39, None)],
        title="What if",
    )
    table.text(width=80)    # aligned columns; those that do not fit go on below, beside the first column again
    table.markdown()        # a table of GitHub's dialect
    table.csv()             # numbers in SI units and in full: step_time_s
    table.html()            # for the page: sorts, filters, says which number of the JSON document a cell is
    table.notebook()        # for a notebook: styles in place, no script
    table.records()         # for a JSON document: [{"Change": "as it is", "step_time_s": 1.42, "MFU": 0.48}, ...]

A cell is a text, a number (the column writes it), None (a dash), or a `Cell` where text and number are told apart by hand.
(Rows are best written as tuples: of a list of words and numbers mypy only knows that they are objects.)
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from io import StringIO
from typing import Any, Literal, Self

from parsim.columns import left, right, width
from parsim.report.quantities import NONE, number

MOST_ROWS = 1_000
"""rows of an HTML table before it refers to report.json"""
_FILTERED = 50
"""rows from which an HTML table gets a filter box"""
_INDENT = 2
"""blanks before the rows of a titled group"""
_GAP = 2
"""blanks between two columns of text"""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the number behind it, and where that number stands in the JSON document."""

    text: str
    value: float | str | None = None
    """by which the column is sorted, and what CSV and JSON hold; None: the text"""
    key: str = ""
    """dotted key in the JSON document"""
    html: str = ""
    """on a page instead of the text"""
    style: str = ""
    """in a terminal with colours: a style of rich"""


@dataclass(frozen=True)
class Column:
    """Heading, unit and alignment of a column, and how its numbers are written."""

    heading: str
    """a line break in it is one in the terminal and a blank elsewhere"""
    unit: str = ""
    """of the numbers as they are written; shown in brackets behind the heading"""
    align: Literal["left", "right"] = "right"
    """words to the left, numbers to the right"""
    write: Callable[[Any], str] = number
    """how a number of this column is written, in `unit`; the number itself is in SI units"""
    key: str = ""
    """name of the column in CSV and JSON, with the SI unit as its suffix (``step_time_s``); without one: the heading"""
    margin: int = 0
    """further blanks to its left in a terminal: a column of words behind one of numbers"""
    marked: bool = False
    """set apart on a page: the column of the recommended variant"""

    @property
    def title(self) -> str:
        """Heading and unit, over as many lines as the heading asks for."""
        if not self.unit:
            return self.heading
        return f"{self.heading}{'' if self.heading.endswith(chr(10)) else ' '}[{self.unit}]".lstrip(" ")

    @property
    def label(self) -> str:
        """Heading and unit in one line."""
        return self.title.replace("\n", " ")

    def cell(self, content: Content, row_key: str = "") -> Cell:
        """The content of a cell as a `Cell`; a number's place in the JSON document is ``<row_key>.<key>``."""
        if isinstance(content, Cell):
            return content
        if isinstance(content, str):
            return Cell(content)
        text = NONE if content is None else self.write(content)
        return Cell(text, content, f"{row_key}.{self.key}" if row_key and self.key else "")


Content = Cell | str | float | None
"""What may stand in a row"""


@dataclass(frozen=True)
class Table:
    """Rows under columns; nothing in it changes."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Content]]
    title: str = ""
    caption: str = ""
    groups: Mapping[int, str] = field(default_factory=dict)
    """number of a row -> title of the group that begins with it; "" only sets the group apart"""
    row_keys: Sequence[str] = ()
    """dotted key of each row in the JSON document, where it has one: ``collectives.0``"""

    @classmethod
    def grouped(
        cls, columns: Sequence[Column], groups: Mapping[str, Sequence[Sequence[Content]]], title: str = "", caption: str = ""
    ) -> Self:
        """A table of titled groups of rows; groups without rows are left out."""
        rows: list[Sequence[Content]] = []
        begins = {}
        for name, members in groups.items():
            if members:
                begins[len(rows)] = name
                rows += members
        return cls(columns, rows, title, caption, begins)

    @cached_property
    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        """Every cell, row by row. Raises ValueError where a row is not as long as the columns are many."""
        keys = self.row_keys or [""] * len(self.rows)
        return tuple(
            tuple(column.cell(content, key) for column, content in zip(self.columns, row, strict=True))
            for row, key in zip(self.rows, keys, strict=True)
        )

    def __bool__(self) -> bool:
        return bool(self.rows)

    # terminal --------------------------------------------------------------------------------------------------

    def text(self, width: int | None = None, *, rule: bool = False) -> str:
        """Aligned columns between title and caption.

        Args:
            width: columns of the terminal; a wider table goes on below, its first column repeated. None: one table, however wide.
            rule: whether a line is drawn under the headings.
        """
        parts = ["\n".join(self._lines(places, rule=rule)) for places in self._fitting(width)]
        return "\n".join(part for part in (self.title, "\n\n".join(parts), self.caption) if part)

    @cached_property
    def _widths(self) -> list[int]:
        """Width of every column in letters, margins and indents included."""
        widths = []
        for place, column in enumerate(self.columns):
            widest = max((width(row[place].text) for row in self.cells), default=0) + (0 if place else self._indent)
            widths.append(column.margin + max(widest, *map(width, column.title.split("\n"))))
        return widths

    @property
    def _indent(self) -> int:
        return _INDENT if any(self.groups.values()) else 0

    def _fitting(self, columns: int | None) -> Iterator[list[int]]:
        """Places of the columns that stand beside each other: the first, and as many others as fit, at least one."""
        if columns is None:
            yield list(range(len(self.columns)))
            return
        places, used = [0], self._widths[0]
        for place, taken in enumerate(self._widths[1:], 1):
            if len(places) > 1 and used + _GAP + taken > columns:
                yield places
                places, used = [0], self._widths[0]
            places.append(place)
            used += _GAP + taken
        yield places

    def _lines(self, places: Sequence[int], *, rule: bool) -> Iterator[str]:
        headings, body = self._headings(places), list(self._body(places))
        if title := self.groups.get(0, ""):
            first = self._widths[0]
            if len(headings) == 1 and not self.columns[0].heading and width(title) < first:
                headings = [left(title, first) + headings[0][first:]]  # there is room for it in the corner
            else:
                headings = [title, *headings]
        line = ["─" * max(map(width, [*headings, *body]))] if rule else []
        yield from (*headings, *line, *body)

    def _headings(self, places: Sequence[int]) -> list[str]:
        """Lines of headings, none where no column has one."""
        titles = [self.columns[place].title.split("\n") for place in places]
        height = max(map(len, titles)) if any(map(any, titles)) else 0
        return [self._line(places, [title[line] if line < len(title) else "" for title in titles]) for line in range(height)]

    def _body(self, places: Sequence[int]) -> Iterator[str]:
        for at, row in enumerate(self.cells):
            if at and at in self.groups:
                yield ""
                if self.groups[at]:
                    yield self.groups[at]
            texts = [row[place].text for place in places]
            yield self._line(places, [" " * self._indent + texts[0], *texts[1:]])

    def _line(self, places: Sequence[int], texts: Sequence[str]) -> str:
        cells = []
        for place, text in zip(places, texts, strict=True):
            column = self.columns[place]
            margin = " " * column.margin
            cells.append(left(margin + text, self._widths[place]) if column.align == "left" else right(text, self._widths[place]))
        return (" " * _GAP).join(cells).rstrip()

    # files -----------------------------------------------------------------------------------------------------

    def markdown(self) -> str:
        """A table of GitHub's dialect; titles of groups are bold rows."""

        def line(cells: Iterable[str]) -> str:
            return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

        lines = [
            line(column.label for column in self.columns),
            line("---" if column.align == "left" else "---:" for column in self.columns),
        ]
        for place, row in enumerate(self.cells):
            if title := self.groups.get(place):
                lines.append(line([f"**{title}**", *[""] * (len(self.columns) - 1)]))
            lines.append(line(cell.text.replace("  ", "\N{EM SPACE}") for cell in row))
        return "\n".join(lines)

    def csv(self) -> str:
        """One line per row, numbers in SI units and in full; a first column ``group`` where the rows are grouped."""
        out = StringIO()
        writer = csv.writer(out, lineterminator="\n")
        records = self.records()
        writer.writerow(records[0] if records else [column.key or column.heading for column in self.columns])
        for record in records:
            writer.writerow(["" if value is None else repr(value) if isinstance(value, float) else value for value in record.values()])
        return out.getvalue()

    def records(self) -> list[dict[str, float | str | None]]:
        """One mapping per row for a JSON document: the number behind a cell, else its text; None for a cell without either."""
        group, records = "", []
        for place, row in enumerate(self.cells):
            group = self.groups.get(place, group)
            record: dict[str, float | str | None] = {"group": group} if self._indent else {}
            for column, cell in zip(self.columns, row, strict=True):
                given = cell.value if cell.value is not None or cell.text == NONE else cell.text
                record[column.key or column.heading.replace("\n", " ").strip()] = given
            records.append(record)
        return records

    # pages -----------------------------------------------------------------------------------------------------

    def html(self, name: str = "", *, sortable: bool = True) -> str:
        """For the page: sorts by the numbers behind the cells, filters where it is long, says which number a cell is.

        Beyond `MOST_ROWS` rows it says what it leaves out. `name` is the anchor of the table.
        """
        if not self.rows:
            return "<p>none</p>"
        head = "".join(_head(column, sortable) for column in self.columns)
        body = "".join(f"{self._band(place)}<tr>{self._row(row)}</tr>" for place, row in enumerate(self.cells[:MOST_ROWS]))
        more = f"{MOST_ROWS:,} of {len(self.rows):,} rows; all in report.json." if len(self.rows) > MOST_ROWS else ""
        title = " ".join(filter(None, (self.caption, more)))
        caption = f"<caption>{escape(title)}</caption>" if title else ""
        box = f'<input class="filter" type="search" placeholder="filter rows" aria-label="filter {escape(name)}">'
        kind = ' class="sortable"' if sortable and len(self.rows) > 1 else ""
        anchor = f' id="{escape(name)}"' if name else ""
        return (
            f'{box if len(self.rows) > _FILTERED else ""}<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(name or title or "table")}">'
            f"<table{anchor}{kind}>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _band(self, place: int) -> str:
        title = self.groups.get(place)
        return f'<tr><th scope="rowgroup" colspan="{len(self.columns)}">{escape(title)}</th></tr>' if title else ""

    def _row(self, row: Sequence[Cell]) -> str:
        return "".join(
            f"<td{_classes(column)}{attributes(cell.key, cell.value)}>{cell.html or escape(cell.text)}</td>"
            for column, cell in zip(self.columns, row, strict=True)
        )

    def notebook(self) -> str:
        """For a notebook: no script, styles in place; the first column heads its row."""
        heads = "".join(f"<th scope='col'>{escape(column.label)}</th>" for column in self.columns[1:])
        rows = []
        for place, (first, *cells) in enumerate(self.cells):
            if title := self.groups.get(place):
                rows.append(f"<tr><th colspan='{len(self.columns)}' style='text-align:left'>{escape(title)}</th></tr>")
            shown = "".join(
                f"<td style='text-align:{column.align}'>{escape(cell.text)}</td>"
                for column, cell in zip(self.columns[1:], cells, strict=True)
            )
            style = "text-align:left;font-weight:normal;white-space:pre"  # leading blanks say what belongs to the row above
            rows.append(f"<tr><th scope='row' style='{style}'>{escape(first.text)}</th>{shown}</tr>")
        corner = f"<th>{escape(self.columns[0].label)}</th>"
        return f"<table><thead><tr>{corner}{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def attributes(key: str = "", value: float | str | None = None) -> str:
    """``data-key`` and ``data-v`` of a number on a page; floats in full."""
    named = f' data-key="{escape(key)}"' if key else ""
    return named if value is None else f'{named} data-v="{escape(value if isinstance(value, str) else repr(value))}"'


def _head(column: Column, sortable: bool) -> str:
    label = escape(column.label)
    inner = f'<button type="button">{label}</button>' if sortable else label
    order = ' aria-sort="none"' if sortable else ""
    return f'<th scope="col"{_classes(column)}{order}>{inner}</th>'


def _classes(column: Column) -> str:
    names = [name for name, holds in (("word", column.align == "left"), ("marked", column.marked)) if holds]
    return f' class="{" ".join(names)}"' if names else ""
