"""The figures of a comparison by name, its files, each written whole or not at all, and what a notebook shows of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import BinaryIO, Literal, cast

from parsim.errors import Finding, InputError
from parsim.report.notebook import on_paper
from parsim.report.plots.comparison import ComparedRun, breakdown_figure, collectives_figure, memory_figure, timelines_figure
from parsim.report.plots.figure import Drawing, save
from parsim.report.plots.tradeoff import RunPoint, pareto_figure
from parsim.report.write import Content, write_together
from parsim.study.compare_text import csv_text, markdown, most_different, notes, table
from parsim.study.comparison import ComparisonData
from parsim.study.decision import decision
from parsim.study.differences import has_band, work

MANY = 1000
"""tokens or samples that a time is drawn for where steps do unequal work"""


def entries(comparison: ComparisonData) -> list[ComparedRun]:
    """All runs, those that failed too."""
    return [ComparedRun(run.label, run.document, run.reason) for run in comparison.runs]


def _timelines(comparison: ComparisonData, width: float) -> Drawing:
    chosen = [(run.label, run.lanes, run.status == "fits") for run in comparison.runs if run.lanes is not None]
    return timelines_figure(chosen, width=width)


def _pareto(comparison: ComparisonData, width: float) -> Drawing:
    won = comparison.winner
    unit = "" if won is None or won.criterion == "estimate.step_time_s" else won.criterion.removeprefix("seconds_per_")
    places = []
    for run in comparison.simulated:
        document = run.document or {}
        memory = document["memory"]
        time = document["estimate"]["step_time_s"] * (MANY / (work(document)[0] or 1.0) if unit else 1.0)
        capacity = memory["capacity_bytes"] - memory["reserve_bytes"]
        places.append(RunPoint(run.label, time, memory["peak_bytes"], bool(memory["fits"]), capacity))
    return pareto_figure(
        places,
        name=f"time per {MANY:,} {unit}s" if unit else "estimated step time" if any(map(has_band, comparison.documents)) else "step time",
        width=width,
    )


FIGURES: dict[str, Callable[[ComparisonData, float], Drawing]] = {
    "breakdown": lambda comparison, width: breakdown_figure(entries(comparison), width=width),
    "memory": lambda comparison, width: memory_figure(entries(comparison), width=width),
    "timelines": _timelines,
    "collectives": lambda comparison, width: collectives_figure(entries(comparison), width=width),
    "pareto": _pareto,
}


def names(comparison: ComparisonData) -> list[str]:
    """The figures that show something: no collectives without communication, no memory where none was simulated."""
    documents = [run.document for run in comparison.simulated if run.document is not None]
    moves = any(row["busy_s"] > 0 for document in documents for row in document["collectives"])
    weighs = any(document["memory"]["devices"] for document in documents)
    left_out = {name for name, there in (("collectives", moves), ("memory", weighs), ("pareto", weighs)) if not there}
    return [name for name in FIGURES if name not in left_out] if documents else []


def figure(comparison: ComparisonData, name: str, width: float) -> Drawing:
    """One figure, `width` inches wide.

    Raises:
        InputError: no such figure, or nothing to show in it.
    """
    if name not in FIGURES:
        raise InputError(Finding(f"there is no figure {name!r}", value=name, suggestion=f"known: {', '.join(FIGURES)}"))
    if name not in names(comparison):
        raise InputError(Finding(f"nothing in this comparison has what the figure {name!r} shows", value=name))
    return FIGURES[name](comparison, width)


FORMATS = ("svg", "png", "pdf", "html")
"""of figures, and html: one interactive page"""
_DPI = 300.0
"""of png, as print asks for"""


def write(comparison: ComparisonData, directory: str | Path, formats: Iterable[str], width: float) -> list[Path]:
    """Write the tables, the figures and the page into `directory` (made if needed) and return their paths."""
    chosen = list(dict.fromkeys(formats))
    if unknown := [one for one in chosen if one not in FORMATS]:
        raise InputError(Finding("unknown format of figures", "--format", unknown[0], f"known: {', '.join(FORMATS)}"))
    contents: dict[str, Content] = {
        f"comparison.{suffix}": partial(_written, comparison, form)
        for suffix, form in (("json", _json), ("md", markdown), ("csv", csv_text))
    }
    for name in names(comparison):
        for kind in (one for one in chosen if one != "html"):
            contents[f"{name}.{kind}"] = partial(_drawn, comparison, name, cast("Literal['svg', 'png', 'pdf']", kind), width)
    if "html" in chosen and comparison.simulated:
        contents["report.html"] = partial(_written, comparison, _page)
    return write_together(Path(directory), contents)


def _written(comparison: ComparisonData, form: Callable[[ComparisonData], str], out: BinaryIO) -> None:
    out.write(form(comparison).encode())


def _json(comparison: ComparisonData) -> str:
    return json.dumps(comparison.document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _page(comparison: ComparisonData) -> str:
    """The baseline first: the page compares the others with it."""
    from parsim.report.page.comparison import Banner
    from parsim.report.page.page import page

    said = decision(comparison)
    base = comparison.baseline
    ordered = [comparison.runs[base], *(run for place, run in enumerate(comparison.runs) if place != base)]
    entries = [(run.label, run.report) for run in ordered]
    return page(
        [(label, report) for label, report in entries if report is not None],
        [(run.label, run.reason) for run in ordered if run.report is None],
        comparison.title,
        Banner(said.title, [*said.lines, *most_different(comparison)], said.open, _winners(comparison)),
    )


def _winners(comparison: ComparisonData) -> list[str]:
    """Labels of the winner, or of the two that are a tie; empty where nothing fits."""
    won = comparison.winner
    return [] if won is None else [comparison.labels[place] for place in (won.place, won.tie) if place is not None]


def _drawn(comparison: ComparisonData, name: str, kind: Literal["svg", "png", "pdf"], width: float, out: BinaryIO) -> None:
    out.write(save(figure(comparison, name, width), kind, dpi=_DPI))


def html(comparison: ComparisonData) -> str:
    """A fragment without script."""
    verdict = escape(comparison.verdict).replace(chr(10), "<br>")
    parts = [f"<p><b>{escape(comparison.title)}</b><br>{verdict}</p>", table(comparison).notebook()]
    parts += [
        f"<p><b>{escape(title)}</b><br>{'<br>'.join(map(escape, items))}</p>"
        for title, items in notes(comparison)
        if title == "Not simulated"
    ]
    if "breakdown" in names(comparison):
        svg = save(figure(comparison, "breakdown", 7.0), "svg", inline=True)
        parts.append(on_paper(svg, f"parsim-{sha256(svg).hexdigest()[:12]}", "Where the step of each variant goes"))
    return f"<div>{''.join(parts)}</div>"
