"""A comparison as tables: for a terminal, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from textwrap import fill

from parsim.report.narrow import narrow
from parsim.report.quantities import NONE, gib, number, percent, seconds, time_unit
from parsim.report.table import Cell, Column, Table
from parsim.report.variability_text import difference
from parsim.report.verdict import WORDS
from parsim.study.comparison import ComparisonData
from parsim.study.decision import decision
from parsim.study.differences import Compared, Input, has_band, tight

_LONGEST = 60
"""letters of a value in a terminal, before it is cut"""
_SLOW = "slow_gpu."
_ALWAYS = ("estimate.step_time_s", "step_time_s", "memory.peak_bytes", f"{_SLOW}step_time_s", f"{_SLOW}slowdown", f"{_SLOW}idle_gpus")
_RELATIVE = ("estimate.step_time_s", "memory.peak_bytes")
_FOLLOWS = ("samples_per_s", "hfu")
"""not shown beside what says the same"""
_ESTIMATED = ("tokens_per_s", "tokens_per_s_per_gpu", "mfu", "time_to_train_s")
"""not shown beside their estimates"""
_MEMORY = ("memory.", "in_flight", "weight_versions")
_MONEY = ("estimate.time_to_train_s", "time_to_train_s", "gpu_hours", "goodput", "training_run.", "failures", "energy_J", "cost_")
_DIFFERENT = 0.05
"""spread of a number below which it is not among those that differ most"""
_MOST_NAMED = 4
_STATES = {"optimizer": "optimizer states", "context": "driver context"}
Row = tuple[str, ...]
"""a heading, and a cell per variant"""


def table(comparison: ComparisonData, longest: int | None = None) -> Table:
    """Verdict, input, time, memory and money, one column per variant.

    Values of the input are cut after `longest` letters.
    """
    times, memory, money = _outcome(comparison)
    return Table.grouped(
        [Column("", align="left"), *map(Column, comparison.labels)],
        {
            "Verdict": list(_verdict(comparison)),
            "What differs in the input": [_input(row, longest) for row in comparison.inputs],
            "Time": times,
            "Where the step goes": list(_differing(comparison.parts, WORDS)),
            "Memory": memory,
            "Peak of the fullest device": list(_differing(comparison.categories, {})),
            "Money": money,
        },
    )


def _verdict(comparison: ComparisonData) -> Iterator[Row]:
    """Whether each fits, how far it is from the best, and what limits it."""
    yield "status", *(f"{run.status}, tight" if run.document is not None and tight(run.document) else run.status for run in comparison.runs)
    won = comparison.winner
    if won is not None and won.place is not None:
        times = comparison.times
        best = times[won.place] or 0.0
        yield "estimated time", *(_against_best(comparison, place, time, best) for place, time in enumerate(times))
    yield "limited by", *(NONE if one is None else WORDS[one["limiter_kind"]] for one in comparison.documents)
    if any(map(has_band, comparison.documents)):
        yield "confidence", *(NONE if one is None else one["confidence"]["status"] for one in comparison.documents)


def _against_best(comparison: ComparisonData, place: int, time: float | None, best: float) -> str:
    won = comparison.winner
    if won is None or time is None:
        return NONE
    if place == won.place:
        return "best"
    more = _signed(time / best - 1.0) if best else NONE
    return f"{more} (tie)" if place == won.tie else more


def _input(row: Input, longest: int | None) -> Row:
    cells = []
    for value, origin in zip(row.values, row.origins, strict=True):
        text = NONE if value is None else _cut(value, longest)
        cells.append(f"{text} (default)" if origin == "default" and value != NONE else text)
    return (row.key, *cells)


def _outcome(comparison: ComparisonData) -> tuple[list[Row], list[Row], list[Row]]:
    """Rows of time, of memory and of money."""
    times: list[Row] = []
    memory: list[Row] = []
    money: list[Row] = []
    present = [row for row in comparison.results if any(value is not None for value in row.values)]
    keys = {row.metric.key for row in present}
    for row in present:
        key = row.metric.key
        if (not row.differs and key not in _ALWAYS) or (key in _FOLLOWS and "tokens_per_s" in keys):
            continue
        if key in _ESTIMATED and f"estimate.{key.removesuffix('_per_gpu')}" in keys:
            continue
        group = money if key.startswith(_MONEY) else memory if key.startswith(_MEMORY) else times
        group.append(_result(row, _heading(comparison, row, simulated=f"estimate.{key}" in keys)))
        if (key in _RELATIVE or (key == "step_time_s" and "estimate.step_time_s" not in keys)) and row.differs:
            against = comparison.labels[comparison.baseline]
            cells = [NONE if value is None else "0 %" if value == 0.0 else _signed(value) for value in row.relative]
            group.append((f"  against {against}", *cells))
        if key == "estimate.step_time_s":
            group += _bands(comparison, row)
    return [*times, *_runs(comparison)], memory, money


def _heading(comparison: ComparisonData, row: Compared, *, simulated: bool) -> str:
    """What a row is called: whether it is simulated where another one is estimated, and how slow a slow GPU is."""
    if row.metric.key == f"{_SLOW}step_time_s":
        speed = next(one["slow_gpu"]["speed"] for one in comparison.documents if one is not None and one["slow_gpu"] is not None)
        return f"step, one GPU at {speed:g} of its speed"
    return f"{row.metric.heading}, simulated" if simulated else row.metric.heading


def _bands(comparison: ComparisonData, row: Compared) -> list[Row]:
    """Between which 80 % of the published runs like each lie."""
    bands = [None if one is None else one["estimate"]["step_time_band_s"] for one in comparison.documents]
    if not any(bands):
        return []
    unit = time_unit(max(abs(value) for value in row.values if value is not None))
    ends = (("80 % band from", 0), ("to", 1))
    return [(f"  {name} [{unit.name}]", *(NONE if band is None else unit.cell(band[at]) for band in bands)) for name, at in ends]


def _runs(comparison: ComparisonData) -> list[Row]:
    if not any(spread is not None for spread in comparison.paired):
        return []
    base = (comparison.documents[comparison.baseline] or {})["variability"]["step_time_s"]["mean"]
    cells = [NONE if spread is None else difference(spread, base) for spread in comparison.paired]
    return [(f"runs against {comparison.labels[comparison.baseline]}", *cells)]


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
    """The comparison in a terminal: who wins, one table, the reasons. Where its numbers are wider than `width`, it goes on below."""
    width = get_terminal_size((100, 24)).columns if width is None else width
    said = decision(comparison)
    lines = [comparison.title, "", *fill(f"{said.title}.", width, break_on_hyphens=False).splitlines()]
    for line in (*said.lines, *most_different(comparison), *_moved(comparison)):
        lines += fill(line, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False).splitlines()
    if not comparison.inputs:
        lines += ["", "The scenarios do not differ: nothing in the input is changed."]
    for part in narrow(table(comparison, _LONGEST), width):
        lines += ["", part.text()]
    for title, items in notes(comparison):
        lines += ["", title]
        for item in items:
            lines += fill(item, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def most_different(comparison: ComparisonData) -> list[str]:
    """A line with the parts of the step and of the memory in which the variants differ most, against the whole of the best."""
    found: list[tuple[float, str]] = []
    for rows, key, words in ((comparison.parts, "step_time_s", WORDS), (comparison.categories, "memory.peak_bytes", _STATES)):
        totals = [value for row in comparison.results if row.metric.key == key for value in row.values if value]
        for row in rows:
            known = [value for value in row.values if value is not None]
            if len(known) < 2 or not totals:
                continue
            share = (max(known) - min(known)) / min(totals)
            name = words.get(row.metric.heading, row.metric.heading).removeprefix("the ")
            if share >= _DIFFERENT:
                found.append((share, f"{name} {_short(row, min(known))} to {_short(row, max(known))}"))
    found.sort(key=lambda one: -one[0])
    return [f"Differs most: {'; '.join(said for _, said in found[:_MOST_NAMED])}."] if found else []


def _short(row: Compared, value: float) -> str:
    return f"{_gib(value)} GiB" if row.metric.kind == "B" else seconds(value) if value else "0"


def _moved(comparison: ComparisonData) -> list[str]:
    """What to know where the baseline that was asked for has no numbers."""
    asked = comparison.asked
    if asked == comparison.baseline or not comparison.simulated:
        return []
    return [f"{comparison.labels[asked]} was not simulated; differences are against {comparison.labels[comparison.baseline]}."]


def markdown(comparison: ComparisonData) -> str:
    """The same as Markdown, whole: one table, then the reasons."""
    said = decision(comparison)
    lines = [
        f"# {comparison.title}",
        "",
        f"**{said.title}.**",
        "",
        *(f"- {line}" for line in (*said.lines, *most_different(comparison))),
        "",
    ]
    lines += [*_moved(comparison), ""] if _moved(comparison) else []
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
