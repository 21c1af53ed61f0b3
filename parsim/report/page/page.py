"""One run or several as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from parsim.columns import visible
from parsim.report.page import comparison, sections
from parsim.report.page.comparison import Banner, ShownRun
from parsim.report.page.markup import contents, details, section
from parsim.report.page.payload import Payload, payload, text
from parsim.report.page.sections import money
from parsim.report.page.topology import topology
from parsim.report.page.training import training
from parsim.report.page.variability import slow_gpu, stragglers, variability
from parsim.report.verdict import recipe

if TYPE_CHECKING:
    from parsim.report.report import Report

_SCRIPTS = ("columns.js", "model.js", "painter.js", "charts.js", "timeline.js", "tables.js", "main.js")


def page(
    entries: Sequence[tuple[str, Report]], missing: Sequence[tuple[str, str]] = (), name: str = "", banner: Banner | None = None
) -> str:
    """The page of one (name, report), or of several beside each other, the first being what the others are compared with.

    `missing` are runs without a report: (name, why); `name` is what a comparison is called, `banner` its answer. Raises ValueError
    without an entry.
    """
    if not entries:
        raise ValueError("a page needs at least one report")
    marks = {} if banner is None else dict.fromkeys(banner.winners, banner.mark)
    runs = [ShownRun(name, report, report.document(), marks.get(name, "")) for name, report in entries]
    payloads = [payload(entry.report, parts=len(runs)) for entry in runs]
    for entry, data in zip(runs, payloads, strict=True):
        data.facts["name"] = entry.name
    title = name or " · ".join(dict.fromkeys(entry.name for entry in runs))
    alone = len(runs) == 1 and not missing
    body = _one(runs[0], payloads[0]) if alone else _several(runs, payloads, missing, banner)
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


@dataclass(frozen=True)
class _Part:
    """A part of a page that the contents lead to."""

    name: str
    title: str
    body: str
    folded: bool = False

    @property
    def html(self) -> str:
        return details(self.title, self.body, name=self.name) if self.folded else section(self.title, self.body, self.name)


def _with_contents(head: str, parts: Iterable[_Part]) -> str:
    """The parts that hold anything, and links to them."""
    there = [part for part in parts if part.body]
    links = contents((part.name, part.title) for part in there)
    return "\n".join((links, '<div class="parts">', head, *(part.html for part in there), "</div>"))


def _one(entry: ShownRun, data: Payload) -> str:
    """Time and memory before money; what the answer rests on last."""
    report = entry.report
    head = "\n".join(
        (sections.verdict(report), f'<div class="tiles">{sections.tiles(report, entry.document)}</div>', sections.warnings(report))
    )
    return _with_contents(
        head,
        (
            _Part("training-section", _weeks_title(report), training(report)),
            _Part("faults-section", "Faults", sections.faults(report)),
            _Part("variability", "The step with variability", variability(report)),
            _Part("stragglers", "Stragglers: what each worker costs", stragglers(report)),
            _Part("slow-gpu", "What one slow GPU costs", slow_gpu(report)),
            _Part("step", "Where the step goes", sections.breakdown(report)),
            _Part("timeline-section", "Timeline", _timeline([data])),
            _Part("memory-section", "Memory", _memory([entry]) + sections.memory(report)),
            _Part("path-section", "Critical path", sections.critical_path(report)),
            _Part("communication-section", "Communication per step", sections.collectives(report)),
            _Part("links-section", "Links", _drawn(report) + sections.links(report)),
            _Part("money", "Money and time", money(report)),
            _Part("nearest-section", "Measured runs most like this one", sections.nearest(report)),
            _Part("assumptions-section", f"Assumptions ({len(report.measured.assumptions)})", sections.assumptions(report), folded=True),
            _Part("scenario-section", "Scenario, with where each value comes from", sections.scenario(report), folded=True),
            _Part("definitions", "What the numbers mean", sections.definitions(entry.document), folded=True),
        ),
    )


def _drawn(report: Report) -> str:
    """The machine; where it would be too small to be read it scrolls."""
    drawn = topology(report)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="picture of the machine">{drawn}</div>' if drawn else ""


def _weeks_title(report: Report) -> str:
    return "" if report.training_run is None else report.training_run.title


def _several(entries: Sequence[ShownRun], payloads: Sequence[Payload], missing: Sequence[tuple[str, str]], banner: Banner | None) -> str:
    each = "".join(
        details(
            entry.name,
            f"<p>{escape(recipe(entry.report.measured))}</p>{sections.verdict(entry.report)}{sections.warnings(entry.report)}"
            f"{sections.critical_path(entry.report)}{_drawn(entry.report)}<h3>Assumptions</h3>{sections.assumptions(entry.report)}",
        )
        for entry in entries
    )
    head = ("" if banner is None else banner.html()) + "".join(
        f'<p class="warning">{escape(name)}: cannot be simulated, {escape(reason)}</p>' for name, reason in missing
    )
    return _with_contents(
        head,
        (
            _Part("changes", "Side by side", comparison.metrics(entries)),
            _Part("different", "What is different", comparison.scenarios(entries)),
            _Part("step", "Where the step goes", comparison.breakdowns(entries)),
            _Part("timeline-section", "Timelines", _timeline(payloads)),
            _Part("memory-section", "Memory", _memory(entries) + comparison.memory(entries)),
            _Part("communication-section", "Communication per step", comparison.collectives(entries)),
            _Part("links-section", "Links", comparison.links(entries)),
            _Part("runs-section", "Each run", each),
            _Part("definitions", "What the numbers mean", sections.definitions(), folded=True),
        ),
    )


def _timeline(payloads: Sequence[Payload]) -> str:
    """What the script fills; the note about what is left out is plain text."""
    lines = _notes(payloads) if len(payloads) > 1 else [payloads[0].note, _opening(payloads[0])]
    notes = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
    return Template(_read("page/timeline.html")).substitute(notes=notes, legend=sections.legend())


def _opening(data: Payload) -> str:
    return f"The step has {data.repeats}; the timeline opens on its beginning and the first of them." if data.repeats else ""


def _notes(payloads: Sequence[Payload]) -> list[str]:
    """What is said of several runs: the same of some of them once, then which of them repeat themselves."""
    said: dict[str, list[str]] = {}
    for data in payloads:
        if data.note:
            said.setdefault(data.note, []).append(data.facts["name"])
    lines = [note if len(names) == len(payloads) else f"{'; '.join(names)}: {note}" for note, names in said.items()]
    repeating = [f"{data.facts['name']}: {data.repeats}" for data in payloads if data.repeats]
    if repeating:
        lines += [f"Equal periods: {'; '.join(repeating)}.", "The timelines open on the beginning, where passes can be read."]
    return lines


def _memory(entries: Sequence[ShownRun]) -> str:
    if not any(device.drawn is not None for entry in entries for device in entry.report.measured.memory.devices):
        return ""
    return '<div id="memory" class="needs-script"></div>'


def data_of(html: str) -> dict[str, object]:
    """The data element of a page, for tests and for whoever wants it back."""
    begin = html.index('<script type="application/json" id="data">') + len('<script type="application/json" id="data">')
    data: dict[str, object] = json.loads(html[begin : html.index("</script>", begin)])
    return data
