"""Accuracy as one drawing: a line per source, with its mean error in two grades and the band that a report would give.

Written as SVG by hand: it takes the colours of the reader's light or dark theme, and no version of a library changes its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape

from parsim.scenario.confidence import SHARE
from parsim.validation.bands import BandScore
from parsim.validation.run_scores import RunScores
from parsim.validation.score import percent

LABEL, PLOT, RIGHT, ROW, TOP = 420, 390, 60, 21, 74
"""[px] width of the labels, of the axis, of the counts; height of a line; what stands above the first"""
LONGEST = 58
"""characters of a label; the rest is in its tooltip and in the table of docs/accuracy.md"""
STEP = 0.05
"""between the marks of the axis, which ends at the first one beyond every mean and every band"""
_STYLE = """
  .paper{fill:#fff;stroke:#d4d9df} text{font:12px system-ui,sans-serif;fill:#1b1f24} .quiet{fill:#59636e} .strong{font-weight:600}
  .grid{stroke:#d4d9df} .band{fill:#e3e7ec} .join{stroke:#8a929c} .prior{fill:none;stroke:#8a5300;stroke-width:1.8} .left{fill:#0072b2}
  @media (prefers-color-scheme: dark){
   .paper{fill:#0d1117;stroke:#3d444d} text{fill:#e6edf3} .quiet{fill:#9198a1} .grid{stroke:#30363d} .band{fill:#29313b}
   .join{stroke:#7d8590} .prior{stroke:#e69f00} .left{fill:#56b4e9}
  }
"""


def accuracy_drawing(scores: RunScores, bands: Iterable[BandScore]) -> str:
    """The drawing as SVG. `scores` must have the grades ``a-priori`` and ``left-out``.

    A line per source that has scored step times: its mean absolute error before anything was fitted (ring) and with effects
    fitted to other publishers only (dot), over the median half width of the bands that reports would give its runs (bar).
    The last line is the mean over sources, of which those with few rows count as one.
    """
    widths = {one.source: one.half_width for one in bands}
    rows: list[tuple[str, str, float, float, float]] = []
    for source in scores.sources:
        prior, left = scores.times(source.name, "a-priori"), scores.times(source.name, "left-out")
        if prior is not None and left is not None:
            rows.append((source.title, str(left.rows), prior.mean, left.mean, widths.get(source.name, 0.0)))
    overall = [scores.over_sources(grade) or 0.0 for grade in ("a-priori", "left-out")]
    counted = sum(int(row[1]) for row in rows)
    rows.append(("Mean over sources", str(counted), overall[0], overall[1], widths.get("all", 0.0)))
    end = STEP * math.ceil(max(max(row[2:]) for row in rows) / STEP)
    height = TOP + ROW * len(rows) + 40
    width = LABEL + PLOT + RIGHT
    about = (
        f"Mean absolute error of the step time by source; over all, {percent(overall[0])} % a priori and {percent(overall[1])} % left out"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        f"<title>{escape(about)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        *_legend(),
        *_axis(height, end),
    ]
    for place, row in enumerate(rows):
        lines += _row(row, TOP + ROW * place + ROW / 2, end, last=place == len(rows) - 1)
    return "\n".join([*lines, "</svg>", ""])


def _at(error: float, end: float) -> float:
    """Where an error stands [px] on an axis that ends at `end`."""
    return round(LABEL + PLOT * error / end, 1)


def _text(x: float, y: float, text: str, attributes: Mapping[str, str]) -> str:
    written = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:g}" y="{y:g}"{written}>{escape(text)}</text>'


def _legend() -> list[str]:
    return [
        _text(16, 26, "Mean absolute error of the step time, by source of published runs", {"class": "strong"}),
        '<circle class="prior" cx="22" cy="47" r="4.5"/>',
        _text(32, 51, "a priori: nothing fitted", {}),
        '<circle class="left" cx="200" cy="47" r="4.5"/>',
        _text(210, 51, "left out: effects fitted to other publishers", {}),
        f'<rect class="band" x="{LABEL + 72}" y="40" width="26" height="14" rx="2"/>',
        _text(LABEL + 104, 51, f"{100 * SHARE:.0f} % band of a report, median half width", {}),
    ]


def _axis(height: int, end: float) -> list[str]:
    bottom = height - 34
    lines = [_text(LABEL + PLOT + RIGHT - 12, TOP - 6, "rows", {"class": "quiet", "text-anchor": "end"})]
    for tick in range(round(end / STEP) + 1):
        x = _at(STEP * tick, end)
        lines.append(f'<line class="grid" x1="{x:g}" x2="{x:g}" y1="{TOP}" y2="{bottom}"/>')
        lines.append(_text(x, bottom + 18, f"{100 * STEP * tick:.0f} %", {"class": "quiet", "text-anchor": "middle"}))
    return lines


def _row(row: tuple[str, str, float, float, float], y: float, end: float, *, last: bool) -> list[str]:
    title, count, prior, left, half = row
    short = title if len(title) <= LONGEST else title[: LONGEST - 1].rsplit(" ", 1)[0].rstrip(",:") + " …"
    said = f"{title}: {percent(prior)} % a priori, {percent(left)} % left out, band ± {percent(half)} %, {count} rows"
    strong = {"class": "strong"} if last else {}
    ends = sorted((_at(prior, end), _at(left, end)))
    return [
        f"<g><title>{escape(said)}</title>",
        _text(LABEL - 12, y + 4, short, {"text-anchor": "end", **strong}),
        f'<rect class="band" x="{LABEL}" y="{y - 7:g}" width="{round(_at(half, end) - LABEL, 1):g}" height="14" rx="2"/>',
        f'<line class="join" x1="{ends[0]:g}" x2="{ends[1]:g}" y1="{y:g}" y2="{y:g}"/>',
        f'<circle class="prior" cx="{_at(prior, end):g}" cy="{y:g}" r="4.5"/>',
        f'<circle class="left" cx="{_at(left, end):g}" cy="{y:g}" r="4.5"/>',
        _text(LABEL + PLOT + RIGHT - 12, y + 4, count, {"text-anchor": "end", **(strong or {"class": "quiet"})}),
        "</g>",
    ]
