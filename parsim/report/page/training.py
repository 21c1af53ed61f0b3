"""The training over weeks on the page: its strip, and goodput against the checkpoint interval and against the size of the job.

Pictures are drawn without a script. Shapes are SVG stretched to the width there is; texts are HTML beside them, so that they keep
their size on a phone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log, log2
from typing import TYPE_CHECKING, Any, NamedTuple

from parsim.report.definitions import DEFINITIONS
from parsim.report.page.markup import swatch
from parsim.report.page.variability import histogram
from parsim.report.plots import style
from parsim.report.quantities import number, percent, points, seconds
from parsim.report.statement import BillLine
from parsim.report.table import Cell, Column, Content, Table
from parsim.report.training_run import KINDS, CurvePoint, TrainingWeeks

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

COLOURS = {
    "train": style.BLUE, "save": style.SKY, "lost": style.VERMILION, "detect": style.YELLOW, "restart": style.ORANGE, "wait": style.PURPLE,
}  # fmt: skip
WORDS = {
    "train": "training", "save": "saving", "lost": "lost work", "detect": "failure not noticed yet", "restart": "restarting",
    "wait": "waiting for a machine",
}  # fmt: skip
_COLUMNS = 240
"""of the strip"""
_ROWS = 7
"""causes with a row of ticks of their own"""
_TIMES = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 432000, 864000)
"""round times [s]"""


class Mark(NamedTuple):
    """A point that is named beside a curve."""

    at: float
    goodput: float
    words: str
    colour: str


def training(report: Metrics) -> str:
    """The section; empty without a horizon."""
    weeks = report.training_run
    if weeks is None:
        return ""
    words = "<p>What failures cost when they strike at random, at the rates given; another seed gives other weeks.</p>"
    given = "".join(f"<p>{escape(fault.line())}</p>" for fault in weeks.faults)
    pair = f'<div class="pair">{_intervals(weeks)}{_sizes(weeks)}</div>'
    return words + _numbers(weeks.document(), weeks.statement()) + given + strip(weeks) + _paths(weeks) + pair


def _paths(weeks: TrainingWeeks) -> str:
    """How far the sample paths differ; empty where there is one."""
    paths = weeks.paths
    if paths is None:
        return ""
    label = f"Goodput of {len(paths.rows):,} sample paths [%]"
    drawn = histogram(paths.goodputs, label, "closed form", lambda value: f"{points(value)} %")
    return f'<h3>{escape(paths.title)}</h3><div class="spreads">{drawn}</div>' + _numbers(
        {key: value if not isinstance(value, dict) else value["mean"] for key, value in paths.document().items() if value is not None},
        paths.statement(),
        "paths.",
    )


def _numbers(values: Mapping[str, Any], lines: Iterable[BillLine], under: str = "") -> str:
    defined = DEFINITIONS["training_run"]
    rows: list[list[Content]] = []
    for line in lines:
        head = f'<a href="#def-{defined.name}">{escape(line.title)}</a>' if line.title else ""
        value = Cell(line.text, values[line.key], f"training_run.{under}{line.key}") if line.key else Cell("", None)
        rows.append([Cell(line.title, html=head), line.note, value])
    return Table((Column("", align="left"), Column("", align="left"), Column("")), rows).html("weeks" + under.rstrip("."), sortable=False)


# the strip ---------------------------------------------------------------------------------------------------------


def strip(weeks: TrainingWeeks) -> str:
    """Shares of every stretch of the wall time as a stack, and a tick for every failure in the row of its cause."""
    wall = weeks.run.wall
    legend = "".join(
        f"<span>{swatch(COLOURS[kind])}{WORDS[kind]} {percent(weeks.run.spent(kind) / wall)}</span>"  # type: ignore[arg-type]
        for kind in KINDS
        if weeks.run.spent(kind)  # type: ignore[arg-type]
    )
    rows = [("", f'<svg class="stack" {_BOX}>{_stack(weeks)}</svg>')]
    rows += [(f"{cause} {len(times)}", f'<svg class="ticks" {_BOX}>{_ticks(times, wall)}</svg>') for cause, times in weeks.by_cause(_ROWS)]
    lines = "".join(f"<span>{escape(words)}</span><div>{drawn}</div>" for words, drawn in rows)
    axis = "".join(f'<i style="left:{100 * at / wall:.3f}%">{words}</i>' for at, words in _days(wall))
    label = f"{weeks.title}: {', '.join(f'{WORDS[kind]} {percent(weeks.run.spent(kind) / wall)}' for kind in KINDS)}"  # type: ignore[arg-type]
    return (
        f'<div class="legend">{legend}</div><div class="strip" role="img" aria-label="{escape(label)}">{lines}<span></span>'
        f'<div class="axis">{axis}</div></div>'
    )


_BOX = 'viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true"'


def _stack(weeks: TrainingWeeks) -> str:
    """One path per kind: in each column as high as its share of the time there, on top of those before it."""
    base = [0.0] * _COLUMNS
    paths = []
    for kind, shares in weeks.shares(_COLUMNS).items():
        path = []
        for column, share in enumerate(shares):
            if height := round(100 * share, 2):
                left, right = 1000 * column / _COLUMNS, 1000 * (column + 1) / _COLUMNS
                path.append(f"M{left:.4g} {100 - base[column]:.4g}H{right:.4g}v-{height:.4g}H{left:.4g}z")
                base[column] += height
        if path:
            paths.append(f'<path fill="{COLOURS[kind]}" d="{"".join(path)}"/>')
    return "".join(paths)


def _ticks(times: Sequence[float], wall: float) -> str:
    return f'<path d="{"".join(f"M{1000 * at / wall:.5g} 8V92" for at in times)}"/>'


def _days(wall: float) -> list[tuple[float, str]]:
    """Round times under the strip."""
    step = next((one for one in (*_TIMES, *(days * 86_400 for days in (20, 50, 100, 200, 500, 1000, 2000))) if wall / one <= 6), wall)
    return [(at * step, seconds(at * step) if at else "0") for at in range(floor(wall / step) + 1)]


# curves ------------------------------------------------------------------------------------------------------------


def _intervals(weeks: TrainingWeeks) -> str:
    """Goodput against the time between checkpoints."""
    failures, own, best = weeks.failures, weeks.run.training.interval, weeks.failures.optimum
    curve = weeks.by_interval()
    marks = [] if best is None else [Mark(best, failures.every(best).goodput, f"best: {seconds(best)}", style.GREEN)]
    marks.append(Mark(own, failures.goodput, f"this job: {seconds(own)}", style.VERMILION))
    marks.append(Mark(own, weeks.run.goodput, "this sample path", style.PURPLE))
    ticks = [float(at) for at in _TIMES if curve[0].at <= at <= curve[-1].at]
    return _plot("Goodput against the time between checkpoints", curve, marks, _thinned(ticks), seconds)


def _sizes(weeks: TrainingWeeks) -> str:
    """Goodput against the number of GPUs."""
    curve = weeks.by_size()
    own = Mark(weeks.gpus, weeks.failures.goodput, f"this job: {weeks.gpus:,} GPUs", style.VERMILION)
    ticks = [2.0**power for power in range(ceil(log2(curve[0].at)), floor(log2(curve[-1].at)) + 1)]
    title = "Goodput against the number of GPUs, each at its best interval"
    return _plot(title, curve, [own], _thinned(ticks), lambda at: f"{at:,.0f}" if at < 10_000 else f"{number(at / 1000)}k")


def _thinned(ticks: Sequence[float], most: int = 5) -> list[float]:
    """Every so many of them, so that few are left."""
    return list(ticks[:: max(1, -(-len(ticks) // most))])


def _plot(title: str, curve: Sequence[CurvePoint], marks: Sequence[Mark], ticks: Sequence[float], write: Callable[[float], str]) -> str:
    """A curve over a logarithmic axis; goodput upwards in percent."""
    low, high = log(curve[0].at), log(curve[-1].at)
    goodputs = [*(point.goodput for point in curve), *(mark.goodput for mark in marks)]
    step = next(
        one
        for one in (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
        if (max(goodputs) - min(goodputs)) / one <= 6
    )
    bottom, top = step * floor(min(goodputs) / step), min(1.0, step * (floor(max(goodputs) / step) + 1))

    def across(at: float) -> float:
        return (log(at) - low) / (high - low)

    def up(goodput: float) -> float:
        return (goodput - bottom) / (top - bottom)

    line = "L".join(f"{1000 * across(point.at):.5g} {100 - 100 * up(point.goodput):.5g}" for point in curve)
    levels = [bottom + place * step for place in range(round((top - bottom) / step) + 1)]
    grid = "".join(f"M0 {100 - 100 * up(level):.5g}H1000" for level in levels)
    grid += "".join(f"M{1000 * across(at):.5g} 0V100" for at in ticks)
    left = "".join(f'<i style="bottom:{100 * up(level):.3f}%">{points(level)}</i>' for level in levels)
    below = "".join(f'<i style="left:{100 * across(at):.3f}%">{escape(write(at))}</i>' for at in ticks)
    dots = "".join(
        f'<b style="left:{100 * across(mark.at):.3f}%;bottom:{100 * up(mark.goodput):.3f}%;background:{mark.colour}"></b>' for mark in marks
    )
    legend = "".join(f"<span>{swatch(mark.colour)}{escape(mark.words)}, {points(mark.goodput)} %</span>" for mark in marks)
    words = "; ".join(f"{mark.words}: {points(mark.goodput)} %" for mark in marks)
    return (
        f'<figure class="curve"><figcaption>{escape(title)} [%]</figcaption>'
        f'<div class="plot" role="img" aria-label="{escape(f"{title}; {words}")}"><div class="left">{left}</div>'
        f'<div class="area"><svg {_BOX}><path class="grid" d="{grid}"/><path class="line" d="M{line}"/></svg>{dots}</div>'
        f'<span></span><div class="axis">{below}</div></div><div class="legend">{legend}</div></figure>'
    )
