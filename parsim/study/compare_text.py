"""A comparison as tables: for a terminal, as Markdown and CSV, and in a notebook."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from io import StringIO
from shutil import get_terminal_size

from parsim.report.notebook import on_paper
from parsim.report.quantities import NONE, gib, number, percent, time_unit
from parsim.report.verdict import WORDS
from parsim.study.comparison import ComparisonData
from parsim.study.differences import Input, Result, tight

_LONGEST = 26
"""letters of a value in a terminal, before it is cut"""
_ALWAYS = ("estimate.step_time_s", "step_time_s", "memory.peak_bytes")
_RELATIVE = ("estimate.step_time_s", "step_time_s", "tokens_per_s", "samples_per_s", "memory.peak_bytes")
_FOLLOWS = ("samples_per_s", "hfu")
"""not shown beside what says the same"""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    heading: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """Lines that belong together."""

    title: str
    rows: tuple[Row, ...]


def blocks(comparison: ComparisonData, longest: int | None = None) -> list[Block]:
    """What differs in the input, in the result, in the step and in the memory, one column per variant.

    Values of the input are cut after `longest` letters.
    """
    found = [
        Block("What differs in the input", tuple(_input(row, longest) for row in comparison.inputs)),
        Block("What comes out", tuple(_outcome(comparison))),
        Block("Where the step goes", tuple(_differing(comparison.parts, WORDS))),
        Block("Peak of the fullest device", tuple(_differing(comparison.categories, {}))),
    ]
    return [block for block in found if block.rows]


def _input(row: Input, longest: int | None) -> Row:
    cells = []
    for value, origin in zip(row.values, row.origins, strict=True):
        text = NONE if value is None else _cut(value, longest)
        cells.append(f"{text} (default)" if origin == "default" and value != NONE else text)
    return Row(row.key, tuple(cells))


def _outcome(comparison: ComparisonData) -> Iterator[Row]:
    yield Row(
        "status",
        tuple(f"{run.status}, tight" if run.document is not None and tight(run.document) else run.status for run in comparison.runs),
    )
    present = [row for row in comparison.results if any(value is not None for value in row.values)]
    tokens = any(row.metric.key == "tokens_per_s" for row in present)
    for row in present:
        key = row.metric.key
        if (not row.differs and key not in _ALWAYS) or (key in _FOLLOWS and tokens):
            continue
        yield _result(row, f"{row.metric.heading}, simulated" if f"estimate.{key}" in {other.metric.key for other in present} else "")
        if key in _RELATIVE and row.differs:
            against = comparison.labels[comparison.baseline]
            cells = [NONE if value is None else "0 %" if value == 0.0 else _signed(value) for value in row.relative]
            yield Row(f"  against {against}", tuple(cells))
    yield Row("limited by", tuple(NONE if one is None else WORDS[one["limiter_kind"]] for one in comparison.documents))


def _differing(rows: Sequence[Result], words: dict[str, str]) -> Iterator[Row]:
    """The parts that any variant has, in one unit."""
    longest = max((value for row in rows for value in row.values if value is not None), default=0.0)
    for row in rows:
        if any(row.values):
            yield _result(row, words.get(row.metric.heading, row.metric.heading).removeprefix("the "), longest)


def _result(row: Result, heading: str = "", longest: float | None = None) -> Row:
    heading = heading or row.metric.heading
    if row.metric.kind == "s":
        unit = time_unit(longest or max((abs(value) for value in row.values if value is not None), default=0.0))
        return Row(f"{heading} [{unit.name}]", tuple(NONE if value is None else unit.cell(value) for value in row.values))
    if row.metric.kind == "B":
        return Row(f"{heading} [GiB]", tuple(NONE if value is None else _gib(value) for value in row.values))
    if row.metric.kind == "share":
        return Row(heading, tuple(map(percent, row.values)))
    size = {"d": 86_400.0, "kWh": 3.6e6}.get(row.metric.kind, 1.0)
    return Row(heading, tuple(NONE if value is None else number(value / size) for value in row.values))


def _gib(value: float) -> str:
    return "0" if value == 0 else gib(value).replace("-", "−") if abs(value) >= 0.005 * 2**30 else "<0.01"


def _signed(fraction: float) -> str:
    text = percent(abs(fraction))
    return "0 %" if round(100.0 * fraction, 1) == 0.0 else f"{'+' if fraction > 0 else '−'}{text}"


def _cut(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


def notes(comparison: ComparisonData) -> list[tuple[str, list[str]]]:
    """Titles and lines: what limits each, what failed, and what warns."""
    limits = [f"{run.label}: {run.document['limiter']}" for run in comparison.runs if run.document is not None]
    failed = []
    for run in comparison.runs:
        if run.document is None and run.findings and run.status != "deadlock":
            failed += [f"{run.label}: {finding}" for finding in run.findings]
        elif run.document is None:
            failed.append(f"{run.label}: {run.reason}")
    warned: dict[str, list[str]] = {}
    for run in comparison.simulated:
        for warning in (run.document or {})["warnings"]:
            warned.setdefault(f"{warning['path']}: {warning['message']}", []).append(run.label)
    everywhere = len(comparison.simulated)
    warnings = [f"{'all' if len(labels) == everywhere else ', '.join(labels)}: {message}" for message, labels in warned.items()]
    return [(title, lines) for title, lines in (("What limits each", limits), ("Not simulated", failed), ("Warnings", warnings)) if lines]


def text(comparison: ComparisonData, width: int | None = None) -> str:
    """The comparison in a terminal: who wins, the tables, the reasons. Tables wider than `width` go on below."""
    width = get_terminal_size((100, 24)).columns if width is None else width
    lines = [comparison.title, "", *comparison.verdict.splitlines(), *_moved(comparison)]
    if not comparison.inputs:
        lines += ["", "The scenarios do not differ: nothing in the input is changed."]
    for names, columns in _columns(comparison, width):
        lines += ["", *_table(names, columns)]
    for title, items in notes(comparison):
        lines += ["", title, *(f"  {item}" for item in items)]
    return "\n".join(line.rstrip() for line in lines)


def _moved(comparison: ComparisonData) -> list[str]:
    """What to know where the baseline that was asked for has no numbers."""
    asked = comparison.asked
    if asked == comparison.baseline or not comparison.simulated:
        return []
    return [f"{comparison.labels[asked]} was not simulated; differences are against {comparison.labels[comparison.baseline]}."]


def _columns(comparison: ComparisonData, width: int) -> Iterator[tuple[Sequence[str], list[Block]]]:
    """As many variants at a time as fit beside the headings, at least one."""
    found = blocks(comparison, _LONGEST)
    labels = comparison.labels
    first = max(len(row.heading) for block in found for row in block.rows) + 2
    widths = [max(len(label), *(len(row.cells[place]) for block in found for row in block.rows)) + 2 for place, label in enumerate(labels)]
    begin = 0
    while begin < len(labels):
        end, used = begin + 1, first + widths[begin]
        while end < len(labels) and used + widths[end] <= width:
            used += widths[end]
            end += 1
        chosen = [Block(block.title, tuple(Row(row.heading, row.cells[begin:end]) for row in block.rows)) for block in found]
        yield labels[begin:end], chosen
        begin = end


def _table(labels: Sequence[str], found: Sequence[Block]) -> Iterator[str]:
    first = max(len(row.heading) for block in found for row in block.rows) + 2
    widths = [max(len(label), *(len(row.cells[place]) for block in found for row in block.rows)) for place, label in enumerate(labels)]
    heads = "  ".join(f"{label:>{width}}" for label, width in zip(labels, widths, strict=True))
    for number_, block in enumerate(found):
        if number_:
            yield ""
        yield f"{block.title:<{first}}{heads if number_ == 0 else ''}".rstrip() if len(block.title) < first else block.title
        if number_ == 0 and len(block.title) >= first:
            yield f"{'':<{first}}{heads}"
        for row in block.rows:
            cells = "  ".join(f"{cell:>{width}}" for cell, width in zip(row.cells, widths, strict=True))
            yield f"  {row.heading:<{first - 2}}{cells}"


def markdown(comparison: ComparisonData) -> str:
    """The same as Markdown, whole: one table, then the reasons."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    lines = [f"# {comparison.title}", "", *comparison.verdict.splitlines(), *_moved(comparison), ""]
    lines += [line(["", *comparison.labels]), line(["---", *("---:" for _ in comparison.labels)])]
    for block in blocks(comparison):
        lines.append(line([f"**{block.title}**", *("" for _ in comparison.labels)]))
        lines += [line([row.heading.replace("  ", "\N{EM SPACE}"), *row.cells]) for row in block.rows]
    for title, items in notes(comparison):
        lines += ["", f"## {title}", "", *(f"- {item}" for item in items)]
    return "\n".join(lines) + "\n"


def csv_text(comparison: ComparisonData) -> str:
    """One row per variant: what differs in the input, then the figures in SI units (suffixes _s and _bytes)."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    figures = [row for row in (*comparison.results, *comparison.parts, *comparison.categories) if any(v is not None for v in row.values)]
    writer.writerow(
        ["label", "status", *(row.key for row in comparison.inputs), *(_name(row) for row in figures), "limiter_kind", "reason"]
    )
    for place, run in enumerate(comparison.runs):
        given = ["" if row.values[place] is None else row.values[place] for row in comparison.inputs]
        values = ["" if (value := row.values[place]) is None else repr(value) for row in figures]
        limiter = "" if run.document is None else run.document["limiter_kind"]
        writer.writerow([run.label, run.status, *given, *values, limiter, run.reason])
    return out.getvalue()


def _name(row: Result) -> str:
    """A column with its unit: ``breakdown_s.compute`` has it, ``at_peak.parameters`` does not."""
    key = row.metric.key
    return f"{key}_bytes" if key.startswith("at_peak.") else key


_HEADING = "text-align:left;font-weight:normal;white-space:pre"
"""of a row; leading blanks say what belongs to the row above"""


def html(comparison: ComparisonData) -> str:
    """A fragment without script."""
    parts = [f"<p><b>{escape(comparison.title)}</b><br>{escape(comparison.verdict).replace(chr(10), '<br>')}</p>", table(comparison)]
    parts += [
        f"<p><b>{escape(title)}</b><br>{'<br>'.join(map(escape, items))}</p>"
        for title, items in notes(comparison)
        if title == "Not simulated"
    ]
    from parsim.report.plots.figure import save
    from parsim.study.compare_files import figure, names

    if "breakdown" in names(comparison):
        svg = save(figure(comparison, "breakdown", 7.0), "svg", inline=True)
        parts.append(on_paper(svg, f"parsim-{sha256(svg).hexdigest()[:12]}", "Where the step of each variant goes"))
    return f"<div>{''.join(parts)}</div>"


def table(comparison: ComparisonData) -> str:
    """The whole table."""
    heads = "".join(f"<th scope='col'>{escape(label)}</th>" for label in comparison.labels)
    rows = []
    for block in blocks(comparison):
        rows.append(f"<tr><th colspan='{1 + len(comparison)}' style='text-align:left'>{escape(block.title)}</th></tr>")
        for row in block.rows:
            cells = "".join(f"<td style='text-align:right'>{escape(cell)}</td>" for cell in row.cells)
            rows.append(f"<tr><th scope='row' style='{_HEADING}'>{escape(row.heading)}</th>{cells}</tr>")
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
