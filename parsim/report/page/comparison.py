"""The parts of a page that put several runs beside each other; the first is what the others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from parsim.report.definitions import DEFINITIONS
from parsim.report.measured import AT_PEAK
from parsim.report.page.markup import swatch
from parsim.report.page.metrics import ESTIMATES, METRICS, costs, difference, relative, value_of
from parsim.report.page.sections import breakdown_bar, leaves
from parsim.report.plots import style
from parsim.report.quantities import NONE, gib, points, seconds, size, time_unit
from parsim.report.table import Cell, Column, Content, Table
from parsim.report.timeline import KEYS

if TYPE_CHECKING:
    from parsim.report.report import Report


@dataclass(frozen=True)
class ShownRun:
    """A run of the comparison."""

    name: str
    report: Report
    document: Mapping[str, Any]


Rows = list[list[Content]]


def metrics(entries: Sequence[ShownRun]) -> str:
    """The figures of merit, with what changed against the first run."""
    rows: Rows = []
    estimated = any(entry.report.estimate.of == "bands" or entry.report.measured.variability is not None for entry in entries)
    for metric in (*(ESTIMATES if estimated else ()), *METRICS, *costs(entry.document for entry in entries)):
        values = [value_of(entry.report, entry.document, metric) for entry in entries]
        if all(value is None for value in values):
            continue
        head = f'<a href="#def-{metric.defined}" title="{escape(DEFINITIONS[metric.defined].text)}">{escape(metric.title)}</a>'
        row: list[Content] = [Cell(metric.title, html=head)]
        for place, value in enumerate(values):
            row.append(Cell(metric.text(value), value, f"{place}.{metric.key}"))
            if place:
                row.append(difference(metric, values[0], value))
        rows.append(row)
    return Table(_columns("", entries), rows).html("metrics", sortable=False)


def _columns(first: str, entries: Sequence[ShownRun], unit: str = "") -> list[Column]:
    columns = [Column(first, align="left")]
    for place, entry in enumerate(entries):
        columns += [Column(entry.name, unit)] + [Column("change")] * bool(place)
    return columns


def breakdowns(entries: Sequence[ShownRun]) -> str:
    """Bars to one scale, and the classes of time side by side."""
    longest = max(entry.report.step_time for entry in entries)
    bars = "".join(
        f'<div class="run"><span>{escape(entry.name)} · {seconds(step)}</span>{breakdown_bar(entry.report, longest)}</div>'
        for entry in entries
        for step in (entry.report.step_time,)
    )
    unit = time_unit(longest)
    rows = _side_by_side(
        [(key, f"{swatch(style.KEYS[key], key)}{key}", f"breakdown_s.{key}") for key in KEYS],
        [entry.report.breakdown for entry in entries],
        unit.cell,
    )
    return bars + Table(_columns("Time goes to", entries, unit.name), rows).html("breakdown")


def _side_by_side(keys: Sequence[tuple[str, str, str]], columns: Sequence[Mapping[str, float]], text: Callable[[float], str]) -> Rows:
    """A row per (key, HTML, key of the document) that any run has: its value in each run, and the change."""
    rows: Rows = []
    for key, html, path in keys:
        values = [column.get(key, 0) for column in columns]
        if not any(values):
            continue
        row: list[Content] = [Cell(key, html=html)]
        for place, value in enumerate(values):
            row.append(Cell(text(value), value, f"{place}.{path}" if path else ""))
            if place:
                change = value - values[0]
                row.append(Cell(_change(change, text), change))
        rows.append(row)
    return rows


def _change(change: float, text: Callable[[float], str]) -> str:
    if not change:
        return "="
    words = text(abs(change))
    return "≈" if words in ("<0.01", "0", "0.0", "0.00") else f"{'+' if change > 0 else '-'}{words}"


def memory(entries: Sequence[ShownRun]) -> str:
    """What fills the fullest device of each run."""
    worst = [entry.report.worst_device for entry in entries]
    columns = [{} if device is None else {**device.at_peak, "total": device.device_used_bytes} for device in worst]
    keys = [(name, f"{swatch(style.memory_style(name).colour)}{name}", "") for name in AT_PEAK] + [
        ("total", "<b>total</b>", "memory.peak_bytes")
    ]
    return Table(_columns("Fullest device at its peak", entries, "GiB"), _side_by_side(keys, columns, gib)).html("memory-table")


def collectives(entries: Sequence[ShownRun]) -> str:
    """Exposed and busy time of every kind of collective."""
    by_collective: dict[tuple[str, str, int, int], list[Any]] = {}
    for place, entry in enumerate(entries):
        for row in entry.report.collectives:
            key = (row.axis, row.kind, row.group_size, row.bytes)
            by_collective.setdefault(key, [None] * len(entries))[place] = row
    unit = time_unit(max((row.busy_s for rows in by_collective.values() for row in rows if row is not None), default=0.0))
    columns = [Column("Axis", align="left"), Column("Collective", align="left"), Column("Ranks", write=str), Column("Size", write=size)]
    for place, entry in enumerate(entries):
        columns += [Column(f"{entry.name}: count"), Column("busy", unit.name), Column("exposed", unit.name)]
        columns += [Column("change of exposed")] * bool(place)
    rows: Rows = []
    for (axis, kind, members, volume), runs in by_collective.items():
        line: list[Content] = [axis, kind, members, volume]
        for place, run in enumerate(runs):
            line.append(Cell(NONE if run is None else f"{run.count:,}", 0 if run is None else run.count))
            line.append(Cell(NONE if run is None else unit.cell(run.busy_s), 0.0 if run is None else run.busy_s))
            line.append(Cell(NONE if run is None else unit.cell(run.exposed_s), 0.0 if run is None else run.exposed_s))
            if place:
                both = run is not None and runs[0] is not None
                line.append(
                    relative(runs[0].exposed_s, run.exposed_s) if both else "new" if run is not None else "gone" if runs[0] else NONE
                )
        rows.append(line)
    return Table(columns, rows).html("collectives")


def links(entries: Sequence[ShownRun]) -> str:
    """The busiest link of every class in each run."""
    columns: list[dict[str, float]] = []
    for entry in entries:
        used: dict[str, float] = {}
        for row in entry.report.links:
            name = f"{row.link}, {row.kind}"
            used[name] = max(used.get(name, 0.0), row.utilisation)
        columns.append(used)
    names = sorted({name for column in columns for name in column})
    rows = _side_by_side([(name, escape(name), "") for name in names], columns, points)
    return Table(_columns("Busiest link of a class", entries, "% used"), rows).html("links")


def scenarios(entries: Sequence[ShownRun]) -> str:
    """The keys that differ."""
    trees = [dict(leaves(entry.report.measured.scenario)) for entry in entries]
    rows: Rows = []
    for path in dict.fromkeys(path for tree in trees for path in tree):
        values = [tree.get(path, NONE) for tree in trees]
        if path != "name" and any(value != values[0] for value in values):
            rows.append([path, *(str(value) for value in values)])
    return Table([Column(head, align="left") for head in ("Key", *(entry.name for entry in entries))], rows).html("differences")
