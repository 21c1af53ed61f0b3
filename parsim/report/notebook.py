"""How a report shows itself in a notebook: verdict, the numbers that matter, where the step goes, and the timeline."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from parsim.report.plots import style
from parsim.report.quantities import gib, number, percent, seconds
from parsim.report.verdict import exposed_communication

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

_FRAME = "font:13px/1.45 system-ui,sans-serif;max-width:1000px"
_CELL = "text-align:left;padding:1px 18px 1px 0;border:0;background:none"


def summary(report: Metrics) -> str:
    """HTML that needs nothing else: no script, no stylesheet, no address."""
    state = style.GREEN if report.fits else style.VERMILION
    head = (
        f'<div style="border-left:4px solid {state};padding-left:9px"><b>{escape(report.measured.name)}</b><br>'
        f"{escape(report.verdict)}<br>{escape(report.limiter)}</div>"
    )
    return f'<div style="{_FRAME}">{head}{_numbers(report)}{_breakdown(report)}{_timeline(report)}</div>'


def _numbers(report: Metrics) -> str:
    step = report.step_time
    share = exposed_communication(report.breakdown) / step if step > 0 else None
    per_gpu = None if report.tokens_per_s is None else report.tokens_per_s / report.measured.ranks.total
    estimate = report.estimate
    known = estimate.of == "bands" or report.measured.variability is not None
    tiles = {"step time, estimated": seconds(estimate.step_time_s), "MFU, estimated": percent(estimate.mfu)} if known else {}
    tiles |= {
        f"step time{', simulated' if known else ''}": seconds(step),
        f"MFU{', simulated' if known else ''}": percent(report.mfu),
        "peak memory": f"{gib(report.peak_memory)} of {gib(report.measured.memory.capacity_bytes)} GiB",
        "bubble": percent(report.bubble),
        "exposed communication": percent(share),
        "samples/s": number(report.samples_per_s),
        "tokens/s per GPU": number(per_gpu),
    }
    names = "".join(f'<th style="{_CELL};font-weight:normal;opacity:.7">{escape(name)}</th>' for name in tiles)
    values = "".join(f'<td style="{_CELL}"><b>{escape(value)}</b></td>' for value in tiles.values())
    return f'<table style="margin:8px 0;border-collapse:collapse"><tr>{names}</tr><tr>{values}</tr></table>'


def _breakdown(report: Metrics) -> str:
    """One line per class of time that the step has."""
    step = report.step_time
    rows = "".join(
        f'<tr><td style="{_CELL}"><span style="display:inline-block;width:10px;height:10px;background:{style.KEYS[key]}"></span> {key}</td>'
        f'<td style="{_CELL};text-align:right">{escape(seconds(value))}</td>'
        f'<td style="{_CELL};text-align:right">{percent(value / step)}</td></tr>'
        for key, value in report.breakdown.items()
        if step > 0 and value > 0
    )
    note = f"where the step of rank {report.breakdown_rank} goes"
    return f'<details><summary>{escape(note)}</summary><table style="border-collapse:collapse">{rows}</table></details>' if rows else ""


def _timeline(report: Metrics) -> str:
    """The figure as SVG with ids of its own: many reports may stand in one notebook."""
    from parsim.report.lanes import most_lanes, timeline_data
    from parsim.report.plots.figure import save
    from parsim.report.plots.sheet import timeline_figure

    if not report.measured.classes:
        return ""
    figure = timeline_figure(replace(timeline_data(report, most=most_lanes(report)), title=""), 9.5)
    svg = save(figure, inline=True)
    prefix = f"parsim-{hashlib.sha256(svg).hexdigest()[:12]}"
    return on_paper(svg, prefix, f"Timeline of the step of {report.measured.name}")


def on_paper(svg: bytes, prefix: str, label: str) -> str:
    """An SVG file made part of a notebook, on paper of its own; `prefix` goes before its ids, `label` says what it is."""
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    frame = f'<svg style="background:#fff;max-width:100%;height:auto" role="img" aria-label="{escape(label)}"'
    return re.sub(r"<svg\b", lambda _: frame, text, count=1)
