"""One run or several as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from parsim.columns import visible
from parsim.report.page import comparison, sections
from parsim.report.page.comparison import ShownRun
from parsim.report.page.markup import details, section
from parsim.report.page.payload import Payload, payload, text
from parsim.report.page.sections import money
from parsim.report.page.topology import topology
from parsim.report.page.training import training
from parsim.report.page.variability import variability
from parsim.report.verdict import recipe

if TYPE_CHECKING:
    from parsim.report.report import Report

_SCRIPTS = ("columns.js", "model.js", "painter.js", "charts.js", "timeline.js", "tables.js", "main.js")


def page(entries: Sequence[tuple[str, Report]], missing: Sequence[tuple[str, str]] = (), name: str = "") -> str:
    """The page of one (name, report), or of several beside each other, the first being what the others are compared with.

    `missing` are runs without a report: (name, why); `name` is what a comparison is called. Raises ValueError without an entry.
    """
    if not entries:
        raise ValueError("a page needs at least one report")
    runs = [ShownRun(name, report, report.document()) for name, report in entries]
    payloads = [payload(entry.report, parts=len(runs)) for entry in runs]
    for entry, data in zip(runs, payloads, strict=True):
        data.facts["name"] = entry.name
    title = name or " · ".join(dict.fromkeys(entry.name for entry in runs))
    alone = len(runs) == 1 and not missing
    body = _one(runs[0], payloads[0]) if alone else _several(runs, payloads, missing)
    parts = {
        "title": escape(visible(title)),
        "style": _read("assets/uplot.min.css") + _read("page/page.css"),
        "version": json.loads(_read("assets/VENDOR.json"))["version"],
        "licence": _read("assets/uplot.LICENSE").replace("--", "- -"),
        "heading": escape(visible(title if alone or name else f"Comparison of {title}")),
        "recipe": "" if not alone else escape(visible(recipe(runs[0].report.measured))),
        "body": visible(body),
        "data": text(payloads),
        "library": _read("assets/uplot.min.js"),
        "scripts": "\n".join(_read(f"page/{name}") for name in _SCRIPTS),
    }
    return Template(_read("page/page.html")).substitute(parts)


@cache
def _read(path: str) -> str:
    return files("parsim.report").joinpath(path).read_text("utf-8")


def _one(entry: ShownRun, data: Payload) -> str:
    report = entry.report
    return "\n".join(
        (
            sections.verdict(report),
            f'<div class="tiles">{sections.tiles(report, entry.document)}</div>',
            sections.warnings(report),
            section("Money and time", money(report), "money") if report.bill is not None else "",
            section(_weeks_title(report), training(report), "training-section"),
            section("Faults", sections.faults(report), "faults-section") if report.measured.faults is not None else "",
            section("The step with variability", variability(report), "variability"),
            section("Where the step goes", sections.breakdown(report), "step"),
            section("Timeline", _timeline([data]), "timeline-section"),
            section("Memory", _memory([entry]) + sections.memory(report), "memory-section"),
            section("Critical path", sections.critical_path(report), "path-section"),
            _moved(report),
            section("Measured runs most like this one", sections.nearest(report)),
            section("Assumptions", sections.assumptions(report)),
            details("Scenario, with where each value comes from", sections.scenario(report), name="scenario-section"),
            details("What the numbers mean", sections.definitions(entry.document), name="definitions"),
        )
    )


def _weeks_title(report: Report) -> str:
    return "" if report.training_run is None else report.training_run.title


def _several(entries: Sequence[ShownRun], payloads: Sequence[Payload], missing: Sequence[tuple[str, str]]) -> str:
    verdicts = "".join(sections.verdict(entry.report, entry.name) for entry in entries)
    each = "".join(
        details(
            entry.name,
            f"<p>{escape(recipe(entry.report.measured))}</p>{sections.warnings(entry.report)}{sections.critical_path(entry.report)}"
            f"{topology(entry.report)}<h3>Assumptions</h3>{sections.assumptions(entry.report)}",
        )
        for entry in entries
    )
    return "\n".join(
        (
            f'<div class="verdicts">{verdicts}</div>',
            "".join(f'<p class="warning">{escape(name)}: cannot be simulated, {escape(reason)}</p>' for name, reason in missing),
            section("What changes", comparison.metrics(entries)),
            section("What is different", comparison.scenarios(entries)),
            section("Where the step goes", comparison.breakdowns(entries), "step"),
            section("Timelines", _timeline(payloads), "timeline-section"),
            section("Memory", _memory(entries) + comparison.memory(entries), "memory-section"),
            section("Communication per step", comparison.collectives(entries)),
            section("Links", comparison.links(entries)),
            section("Each run", each),
            details("What the numbers mean", sections.definitions(), name="definitions"),
        )
    )


def _moved(report: Report) -> str:
    return section("Communication per step", sections.collectives(report)) + section(
        "Links", topology(report) + sections.links(report), "links-section"
    )


def _timeline(payloads: Sequence[Payload]) -> str:
    """What the script fills; the note about what is left out is plain text."""
    names = [f"{data.facts['name']}: " if len(payloads) > 1 else "" for data in payloads]
    notes = "".join(f"<p>{escape(name + data.note)}</p>" for name, data in zip(names, payloads, strict=True) if data.note)
    return Template(_read("page/timeline.html")).substitute(notes=notes, legend=sections.legend())


def _memory(entries: Sequence[ShownRun]) -> str:
    if not any(device.drawn is not None for entry in entries for device in entry.report.measured.memory.devices):
        return ""
    return '<div id="memory" class="needs-script"></div>'


def data_of(html: str) -> dict[str, object]:
    """The data element of a page, for tests and for whoever wants it back."""
    begin = html.index('<script type="application/json" id="data">') + len('<script type="application/json" id="data">')
    data: dict[str, object] = json.loads(html[begin : html.index("</script>", begin)])
    return data
