"""The report as one page that opens anywhere: figures, tables and definitions inside, no script, nothing fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from parsim.report.communication import busiest
from parsim.report.definitions import DEFINITIONS
from parsim.report.measured import AT_PEAK
from parsim.report.plots import style
from parsim.report.quantities import GIB, cell, gib, number, percent, seconds, size, time_unit
from parsim.report.verdict import exposed_communication, rank_class, recipe

if TYPE_CHECKING:
    from parsim.report.report import Report

MOST_ROWS = 1_000
"""rows of a table before it refers to report.json"""


_THEMED = ((style.BUBBLE, "var(--bubble)"), (style.BUBBLE_HATCH, "var(--hatch)"), (style.GRID, "var(--line)"))
"""Colours of a figure that follow the page's theme; the palette itself never changes."""


def page(report: Report) -> str:
    """The whole page."""
    from parsim.report.plots import pictures

    folder = files("parsim.report") / "page"
    parts = {
        "name": escape(report.measured.name),
        "style": (folder / "report.css").read_text("utf-8"),
        "recipe": escape(recipe(report.measured)),
        "state": "fits" if report.fits else "fails",
        "verdict": escape(report.verdict),
        "limiter": escape(report.limiter),
        "tiles": _tiles(report),
        "breakdown": _breakdown(report),
        "timeline": inline(pictures.timeline(report, inline=True), "timeline", "Timeline of the step by rank"),
        "memory_figure": inline(pictures.memory(report, inline=True), "memory", "Device memory by category")
        if report.measured.memory.devices
        else "",
        "memory": _memory(report),
        "collectives": _collectives(report),
        "links": _links(report),
        "warnings": _warnings(report),
        "assumptions": _assumptions(report),
        "definitions": _definitions(),
        "scenario": escape(json.dumps(dict(report.measured.scenario), indent=2, ensure_ascii=False, default=str)),
    }
    return Template((folder / "report.html").read_text("utf-8")).substitute(parts)


def inline(svg: bytes, prefix: str, label: str) -> str:
    """An SVG file made part of a page: own ids, the page's text colour, no header and no foreign addresses."""
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    for colour, variable in ((style.INK, "currentColor"), *_THEMED):
        text = text.replace(colour, variable)
    # The paper is the page's.
    text = re.sub(rf"fill: {style.PAPER}", "fill: none", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def _tiles(report: Report) -> str:
    ranks = report.measured.ranks
    share = exposed_communication(report.breakdown) / report.step_time if report.step_time > 0 else None
    per_gpu = None if report.tokens_per_s is None else report.tokens_per_s / ranks.total
    theory = report.measured.schedule.bubble_fraction_theory
    tiles = (
        ("step_time_s", "Step time", seconds(report.step_time), ""),
        ("mfu", "MFU", percent(report.mfu), f"HFU {percent(report.hfu)}"),
        ("peak_bytes", "Peak memory", f"{gib(report.peak_memory)} GiB", f"of {gib(report.measured.memory.capacity_bytes)} GiB"),
        ("bubble_fraction", "Bubble", percent(report.bubble), f"theory {percent(theory)}" if theory is not None else ""),
        ("exposed_communication", "Exposed communication", percent(share), ""),
        ("tokens_per_s_per_gpu", "Tokens/s per GPU", number(per_gpu), f"{number(report.samples_per_s)} samples/s in all"),
    )
    return "".join(
        f'<div class="tile" title="{escape(DEFINITIONS[key].text)}"><span>{escape(title)}</span>'
        f'<b data-key="{key}">{escape(value)}</b><span>{escape(note)}</span></div>'
        for key, title, value, note in tiles
    )


def _breakdown(report: Report) -> str:
    step = report.step_time
    bars = "".join(
        f'<i style="width:{100 * value / step:.3f}%;background:{style.KEYS[key]}" title="{key} {escape(seconds(value))}"></i>'
        for key, value in report.breakdown.items()
        if step > 0 and value > 0
    )
    return f'<div class="bar">{bars}</div>{_breakdown_table(report)}'


def _breakdown_table(report: Report) -> str:
    step, unit = report.step_time, time_unit(report.step_time)
    rows = [
        [
            f'<i class="swatch" style="background:{style.KEYS[key]}"></i>{key}',
            unit.cell(value),
            f"{100 * value / step:.1f}" if step > 0 else "–",
            unit.cell(report.critical[key]),
        ]
        for key, value in report.breakdown.items()
        if value or report.critical[key]
    ]
    heads = ["Time goes to", f"[{unit.name}]", "[%]", f"Critical path [{unit.name}]"]
    return _table(heads, rows, raw=True)


def _memory(report: Report) -> str:
    devices = sorted(report.measured.memory.devices, key=lambda device: device.rank)
    names = [name for name in AT_PEAK if any(device.at_peak.get(name, 0) for device in devices)]
    rows = []
    for device in devices:
        group = rank_class(report.measured, device.rank)
        rows.append(
            [group.ranks, str(group.count), "–" if group.stage is None else str(group.stage)]
            + [gib(device.at_peak.get(name, 0)) for name in names]
            + [gib(device.device_used_bytes), gib(report.capacity(device)), seconds(device.peak_time_s), device.peak_op or "–"]
        )
    heads = ["Ranks", "Count", "Stage", *(f"{name} [GiB]" for name in names), "Peak [GiB]", "Capacity [GiB]", "Peak at", "During"]
    return _table(heads, rows)


def _collectives(report: Report) -> str:
    unit = time_unit(max((row.busy_s for row in report.collectives), default=0.0))
    heads = ["Axis", "Collective", "Ranks", "Count", "Size", *(f"{word} [{unit.name}]" for word in ("Busy", "Exposed", "Waited"))]
    heads += ["Algorithm", "Protocol", "Bus bandwidth [GB/s]"]
    rows = [
        [row.axis, row.kind, str(row.group_size), f"{row.count:,}", size(row.bytes)]
        + [unit.cell(value) for value in (row.busy_s, row.exposed_s, row.wait_s)]
        + [row.algorithm or "–", row.protocol or "–", cell(None if row.busbw_Bps is None else row.busbw_Bps / 1e9)]
        for row in sorted(report.collectives, key=lambda row: (-row.exposed_s, -row.busy_s))
    ]
    return _table(heads, rows)


def _links(report: Report) -> str:
    unit = time_unit(report.step_time)
    heads = ["Link", "Kind", "Count", "Capacity [GB/s]", "Per step [GiB]", "Used [%]", f"Saturated [{unit.name}]"]
    rows = [
        [
            row.link,
            row.kind,
            f"{row.count:,}",
            number(row.capacity_Bps / 1e9),
            cell(row.bytes / GIB),
            f"{100 * row.utilisation:.1f}",
            unit.cell(row.saturated_s),
        ]
        for row in busiest(report.links)
    ]
    return _table(heads, rows)


def _assumptions(report: Report) -> str:
    rows = [[item.name, item.value, item.source, item.origin] for item in report.measured.assumptions]
    return _table(["Name", "Value", "Source", "Where"], rows, words=4)


def _warnings(report: Report) -> str:
    return "".join(f'<p class="warning">{escape(str(finding))}</p>' for finding in report.warnings)


def _definitions() -> str:
    return "".join(
        f"<dt>{escape(item.name)} [{escape(item.unit)}]</dt><dd>{escape(item.text)}"
        + (f"<br><code>{escape(item.formula)}</code>" if item.formula else "")
        + (f"<br><small>{escape(item.source)}</small>" if item.source else "")
        + "</dd>"
        for item in DEFINITIONS.values()
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, raw: bool = False, words: int = 2) -> str:
    """A table; the first `words` columns are left-aligned. `raw`: cells are HTML already."""
    if not rows:
        return "<p>none</p>"

    word = ' class="word"'

    def line(cells: Iterable[str], tag: str, scope: str = "") -> str:
        return "".join(f"<{tag}{scope}{word * (place < words)}>{cell}</{tag}>" for place, cell in enumerate(cells))

    shown = rows[:MOST_ROWS]
    body = "".join(f"<tr>{line((cell if raw else escape(cell) for cell in row), 'td')}</tr>" for row in shown)
    more = f"<p>{len(shown)} of {len(rows)} rows; all in report.json.</p>" if len(shown) < len(rows) else ""
    head = line(map(escape, heads), "th", ' scope="col"')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'
