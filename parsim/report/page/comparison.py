"""The parts of a page that put several runs beside each other: a column for each, all in the same detail; the first is the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from parsim.report.definitions import DEFINITIONS
from parsim.report.measured import AT_PEAK
from parsim.report.page.markup import badge, details, swatch
from parsim.report.page.metrics import ESTIMATES, METRICS, PageMetric, costs, difference, relative, value_of
from parsim.report.page.sections import breakdown_bar, leaves
from parsim.report.plots import style
from parsim.report.quantities import NONE, gib, points, seconds, size, time_unit
from parsim.report.table import Cell, Column, Content, Table
from parsim.report.timeline import KEYS
from parsim.report.verdict import WORDS

if TYPE_CHECKING:
    from parsim.report.report import Report

_MORE_IS_BETTER = ("mfu", "hfu", "tokens_per_s", "samples_per_s", "tflops_per_gpu", "headroom_bytes", "goodput")
_MEMORY = ("memory.",)
_MONEY = ("time_to_train_s", "gpu_hours", "goodput", "energy_J", "cost_")
_SIMULATED = ("step_time_s", "mfu", "tokens_per_s")
"""numbers that have an estimate"""
_OTHERWISE = ("hfu", "tokens_per_s_per_gpu", "samples_per_s", "model_tflops_per_gpu", "hardware_tflops_per_gpu")
"""numbers that say again how fast a step is"""
_TELLING = 0.02
"""spread of a row, relative, from which its best number is marked"""


@dataclass(frozen=True)
class ShownRun:
    """A run of the comparison."""

    name: str
    report: Report
    document: Mapping[str, Any]
    mark: str = ""
    """beside its name where it wins, or is part of a tie"""


@dataclass(frozen=True)
class Banner:
    """The answer at the head of the page: who wins, and why, one sentence each."""

    title: str
    lines: Sequence[str]
    open: bool = False
    """a tie, or nothing wins"""
    winners: Sequence[str] = ()
    """labels of the runs whose columns are marked: the winner, or those of a tie"""

    @property
    def mark(self) -> str:
        """Of the columns of the winners."""
        return "★" if len(self.winners) == 1 else "≈"

    def html(self) -> str:
        """The banner."""
        said = "".join(f"<li>{escape(line)}</li>" for line in self.lines)
        mark = "≈" if self.open else "✓"
        return (
            f'<div class="verdict {"open" if self.open else "fits"}" id="banner"><b><span class="mark" aria-hidden="true">{mark}</span> '
            f"{escape(self.title)}</b><ul>{said}</ul></div>"
        )


Rows = list[list[Content]]


def metrics(entries: Sequence[ShownRun]) -> str:
    """Verdict, time, memory and money, a column per run; below each number what changed against the first run.

    One row for each number: the estimate where there is one. What is simulated, and the same speed in other units, is folded below.
    """
    groups: dict[str, Rows] = {"Verdict": _verdict(entries), "Time": [], "Memory": [], "Money": []}
    estimated = any(entry.report.estimate.of == "bands" or entry.report.measured.variability is not None for entry in entries)
    aside = (*_OTHERWISE, *(_SIMULATED if estimated else ()))
    folded: Rows = []
    for metric in (*(ESTIMATES if estimated else ()), *METRICS, *costs(entry.document for entry in entries)):
        values = [value_of(entry.report, entry.document, metric) for entry in entries]
        if all(value is None for value in values):
            continue
        title = f"{metric.title}, simulated" if estimated and metric.key in _SIMULATED else metric.title
        if metric.key == "slow_gpu.step_time_s":
            speed = next(entry.report.measured.slow_gpu.speed for entry in entries if entry.report.measured.slow_gpu is not None)
            title = f"Step, one GPU at {speed:g} of its speed"
        row = _figures(metric, title, values, [entry.report.fits for entry in entries])
        if metric.key in aside:
            folded.append(row)
            continue
        group = "Memory" if metric.key.startswith(_MEMORY) else "Money" if metric.key.startswith(_MONEY) else "Time"
        groups[group].append(row)
        if metric.key == "estimate.step_time_s":
            groups[group] += _bands(entries)
    shown = _frozen(Table.grouped(_columns("", entries), groups).html("metrics", sortable=False))
    more = _frozen(Table(_columns("", entries), folded).html("more-metrics", sortable=False)) if folded else ""
    return shown + (details("Simulated values, and speed in other units" if estimated else "Speed in other units", more) if more else "")


def _frozen(table: str) -> str:
    """With a first column that stays where it is while the others are scrolled."""
    return f'<div class="frozen">{table}</div>'


def _verdict(entries: Sequence[ShownRun]) -> Rows:
    """Whether each run fits, what limits it, and how sure that is; the whole sentence about the limit stands under each run."""
    rows: Rows = [["Fits"], ["Limited by"], ["Confidence"]]
    for entry in entries:
        report = entry.report
        state, words = ("good", "✓ fits") if report.fits else ("bad", "✗ does not fit")
        limit, sure = WORDS[report.limiter_kind], report.measured.confidence.status
        rows[0].append(Cell(words, html=f'<span class="{state}">{words}</span>'))
        rows[1].append(Cell(limit, html=f'<span title="{escape(report.limiter)}">{escape(limit)}</span>'))
        rows[2].append(Cell(sure, html=badge(sure)))
    return rows


def _figures(metric: PageMetric, title: str, values: Sequence[Any], fits: Sequence[bool]) -> list[Content]:
    """A row: every number with its change; where they differ, the best of those that fit is marked."""
    defined = DEFINITIONS[metric.defined]
    row: list[Content] = [Cell(title, html=f'<a href="#def-{defined.name}" title="{escape(defined.text)}">{escape(title)}</a>')]
    best = _best(metric.key, [value if fit else None for value, fit in zip(values, fits, strict=True)])
    for place, value in enumerate(values):
        change = "" if value is None else "baseline" if place == 0 else difference(metric, values[0], value)
        row.append(_cell(metric.text(value), value, f"{place}.{metric.key}", change, marked=place in best))
    return row


def _best(key: str, values: Sequence[Any]) -> list[int]:
    """Places of the best number of a row that differs enough; none elsewhere."""
    known = {place: float(value) for place, value in enumerate(values) if isinstance(value, (int, float))}
    low, high = min(known.values(), default=0.0), max(known.values(), default=0.0)
    if len(known) < 2 or high - low <= _TELLING * max(abs(low), abs(high)):
        return []
    wanted = high if key.endswith(_MORE_IS_BETTER) or key.endswith("_per_gpu") else low
    return [place for place, value in known.items() if value == wanted]


def _cell(text: str, value: float | None, key: str, change: str, *, marked: bool = False) -> Cell:
    """A number, and below it what changed."""
    shown = f'<strong class="best">{escape(text)}</strong>' if marked else escape(text)
    return Cell(text, value, key, html=f"{shown}<small>{escape(change)}</small>" if change else shown)


def _bands(entries: Sequence[ShownRun]) -> Rows:
    """Between which step times 80 % of similar published runs lie."""
    row: list[Content] = ["Likely range (80 %)"]
    for entry in entries:
        band = entry.report.estimate.step_time_band_s
        row.append(NONE if band is None else f"{seconds(band[0])} to {seconds(band[1])}")
    return [row] if any(cell != NONE for cell in row[1:]) else []


def _columns(first: str, entries: Sequence[ShownRun], unit: str = "") -> list[Column]:
    return [Column(first, align="left"), *(Column(_headed(entry), unit, marked=bool(entry.mark)) for entry in entries)]


def _headed(entry: ShownRun) -> str:
    return f"{entry.mark} {entry.name}".lstrip()


def breakdowns(entries: Sequence[ShownRun]) -> str:
    """Bars to one scale, and the classes of time side by side."""
    longest = max(entry.report.step_time for entry in entries)
    bars = "".join(
        f'<div class="run"><span>{escape(entry.name)} · {seconds(step)}{_unlike(entry)}</span>{breakdown_bar(entry.report, longest)}</div>'
        for entry in entries
        for step in (entry.report.step_time,)
    )
    unit = time_unit(longest)
    rows = _side_by_side(
        [(key, f"{swatch(style.KEYS[key], key)}{key}", f"breakdown_s.{key}") for key in KEYS],
        [entry.report.breakdown for entry in entries],
        unit.cell,
        longest,
    )
    return bars + _frozen(Table(_columns("Time goes to", entries, unit.name), rows).html("breakdown"))


def _unlike(entry: ShownRun) -> str:
    return " simulated" if entry.report.estimate.of == "bands" else ""


def _side_by_side(
    keys: Sequence[tuple[str, str, str]], columns: Sequence[Mapping[str, float]], text: Callable[[float], str], whole: float = 0.0
) -> Rows:
    """A row per (key, HTML, key of the document) that any run has: its value in each run, and the change; the least is marked where it
    differs by a telling share of `whole`.
    """
    rows: Rows = []
    for key, html, path in keys:
        values = [column.get(key, 0) for column in columns]
        if not any(values):
            continue
        telling = whole > 0 and max(values) - min(values) > _TELLING * whole
        row: list[Content] = [Cell(key, html=html)]
        for place, value in enumerate(values):
            change = _change(value - values[0], text) if place else "baseline"
            row.append(_cell(text(value), value, f"{place}.{path}" if path else "", change, marked=telling and value == min(values)))
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
    whole = max((column.get("total", 0) for column in columns), default=0)
    table = Table(_columns("Fullest device at its peak", entries, "GiB"), _side_by_side(keys, columns, gib, whole))
    return _frozen(table.html("memory-table"))


def collectives(entries: Sequence[ShownRun]) -> str:
    """Exposed time of every kind of collective in each run, and below it what all of them take."""
    by_collective: dict[tuple[str, str, int, int], list[Any]] = {}
    for place, entry in enumerate(entries):
        for row in entry.report.collectives:
            key = (row.axis, row.kind, row.group_size, row.bytes)
            by_collective.setdefault(key, [None] * len(entries))[place] = row
    if not by_collective:
        return ""
    unit = time_unit(max((row.busy_s for rows in by_collective.values() for row in rows if row is not None), default=0.0))
    columns = [
        Column("Collective", align="left"),
        *(Column(f"{_headed(entry)}: exposed", unit.name, marked=bool(entry.mark)) for entry in entries),
    ]
    rows: Rows = []
    for (axis, kind, members, volume), runs in sorted(
        by_collective.items(), key=lambda item: -max(run.exposed_s for run in item[1] if run)
    ):
        line: list[Content] = [f"{axis} {kind}, {members} ranks, {size(volume)}"]
        for place, run in enumerate(runs):
            if run is None:
                line.append(Cell(NONE, 0.0))
                continue
            changed = f"; {relative(runs[0].exposed_s, run.exposed_s)}" if place and runs[0] is not None else ""
            line.append(_cell(unit.cell(run.exposed_s), run.exposed_s, "", f"{run.count:,}x, {unit.cell(run.busy_s)} busy{changed}"))
        rows.append(line)
    return _frozen(Table(columns, rows).html("collectives"))


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
    return _frozen(Table(_columns("Busiest link of a class", entries, "% used"), rows).html("links")) if rows else ""


def scenarios(entries: Sequence[ShownRun]) -> str:
    """The keys that differ."""
    trees = [dict(leaves(entry.report.measured.scenario)) for entry in entries]
    rows: Rows = []
    for path in dict.fromkeys(path for tree in trees for path in tree):
        values = [tree.get(path, NONE) for tree in trees]
        if path != "name" and any(value != values[0] for value in values):
            rows.append([Cell(path, html=escape(path).replace(".", ".<wbr>")), *(str(value) for value in values)])
    columns = [Column("Key", align="left"), *(Column(_headed(entry), align="left", marked=bool(entry.mark)) for entry in entries)]
    return _frozen(Table(columns, rows).html("differences"))
