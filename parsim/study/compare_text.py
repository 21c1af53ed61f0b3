"""A comparison as tables: for a terminal, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shutil import get_terminal_size

from parsim.report.quantities import NONE, gib, number, percent, time_unit
from parsim.report.table import Cell, Column, Table
from parsim.report.variability_text import difference
from parsim.report.verdict import WORDS
from parsim.study.comparison import ComparisonData
from parsim.study.differences import Compared, Input, tight

_LONGEST = 26
"""letters of a value in a terminal, before it is cut"""
_ALWAYS = ("estimate.step_time_s", "step_time_s", "memory.peak_bytes")
_RELATIVE = ("estimate.step_time_s", "step_time_s", "tokens_per_s", "samples_per_s", "memory.peak_bytes")
_FOLLOWS = ("samples_per_s", "hfu")
"""not shown beside what says the same"""
Row = tuple[str, ...]
"""a heading, and a cell per variant"""


def table(comparison: ComparisonData, longest: int | None = None) -> Table:
    """What differs in the input, in the result, in the step and in the memory, one column per variant.

    Values of the input are cut after `longest` letters.
    """
    return Table.grouped(
        [Column("", align="left"), *map(Column, comparison.labels)],
        {
            "What differs in the input": [_input(row, longest) for row in comparison.inputs],
            "What comes out": list(_outcome(comparison)),
            "Where the step goes": list(_differing(comparison.parts, WORDS)),
            "Peak of the fullest device": list(_differing(comparison.categories, {})),
        },
    )


def _input(row: Input, longest: int | None) -> Row:
    cells = []
    for value, origin in zip(row.values, row.origins, strict=True):
        text = NONE if value is None else _cut(value, longest)
        cells.append(f"{text} (default)" if origin == "default" and value != NONE else text)
    return (row.key, *cells)


def _outcome(comparison: ComparisonData) -> Iterator[Row]:
    yield "status", *(f"{run.status}, tight" if run.document is not None and tight(run.document) else run.status for run in comparison.runs)
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
            yield f"  against {against}", *cells
    if any(spread is not None for spread in comparison.paired):
        base = (comparison.documents[comparison.baseline] or {})["variability"]["step_time_s"]["mean"]
        yield (
            f"runs against {comparison.labels[comparison.baseline]}",
            *(NONE if spread is None else difference(spread, base) for spread in comparison.paired),
        )
    yield "limited by", *(NONE if one is None else WORDS[one["limiter_kind"]] for one in comparison.documents)


def _differing(rows: Sequence[Compared], words: dict[str, str]) -> Iterator[Row]:
    """The parts that any variant has, in one unit."""
    longest = max((value for row in rows for value in row.values if value is not None), default=0.0)
    for row in rows:
        if any(row.values):
            yield _result(row, words.get(row.metric.heading, row.metric.heading).removeprefix("the "), longest)


def _result(row: Compared, heading: str = "", longest: float | None = None) -> Row:
    heading = heading or row.metric.heading
    if row.metric.kind == "s":
        unit = time_unit(longest or max((abs(value) for value in row.values if value is not None), default=0.0))
        return f"{heading} [{unit.name}]", *(NONE if value is None else unit.cell(value) for value in row.values)
    if row.metric.kind == "B":
        return f"{heading} [GiB]", *(NONE if value is None else _gib(value) for value in row.values)
    if row.metric.kind == "share":
        return heading, *map(percent, row.values)
    size = {"d": 86_400.0, "kWh": 3.6e6}.get(row.metric.kind, 1.0)
    return heading, *(NONE if value is None else number(value / size) for value in row.values)


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
    lines += ["", table(comparison, _LONGEST).text(width)]
    for title, items in notes(comparison):
        lines += ["", title, *(f"  {item}" for item in items)]
    return "\n".join(line.rstrip() for line in lines)


def _moved(comparison: ComparisonData) -> list[str]:
    """What to know where the baseline that was asked for has no numbers."""
    asked = comparison.asked
    if asked == comparison.baseline or not comparison.simulated:
        return []
    return [f"{comparison.labels[asked]} was not simulated; differences are against {comparison.labels[comparison.baseline]}."]


def markdown(comparison: ComparisonData) -> str:
    """The same as Markdown, whole: one table, then the reasons."""
    lines = [f"# {comparison.title}", "", *comparison.verdict.splitlines(), *_moved(comparison), ""]
    lines.append(table(comparison).markdown())
    for title, items in notes(comparison):
        lines += ["", f"## {title}", "", *(f"- {item}" for item in items)]
    return "\n".join(lines) + "\n"


def csv_text(comparison: ComparisonData) -> str:
    """One row per variant: what differs in the input, then the figures in SI units (suffixes _s and _bytes)."""
    figures = [row for row in (*comparison.results, *comparison.parts, *comparison.categories) if any(v is not None for v in row.values)]
    keys = ["label", "status", *(row.key for row in comparison.inputs), *map(_name, figures), "limiter_kind", "reason"]
    rows = []
    for place, run in enumerate(comparison.runs):
        given = [Cell(value, value) for value in (row.values[place] or "" for row in comparison.inputs)]
        limiter = "" if run.document is None else run.document["limiter_kind"]
        rows.append((run.label, run.status, *given, *(row.values[place] for row in figures), limiter, run.reason))
    return Table(list(map(Column, keys)), rows).csv()


def _name(row: Compared) -> str:
    """A column with its unit: ``breakdown_s.compute`` has it, ``at_peak.parameters`` does not."""
    key = row.metric.key
    return f"{key}_bytes" if key.startswith("at_peak.") else key
