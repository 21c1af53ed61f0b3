"""How the step spreads over its runs, and what one slow GPU costs: pictures that follow the page's light and dark, and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from itertools import product
from typing import TYPE_CHECKING

from parsim.report import variability_text as words
from parsim.report.plots import style
from parsim.report.quantities import seconds
from parsim.report.variability import RunStatistics, Spread

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics
    from parsim.report.workers import WorkerSlowdowns

_WIDTH, _HEIGHT = 620, 206
_LEFT, _RIGHT, _TOP, _BOTTOM = 12, 12, 50, 24
_ROW, _NAMES = 24, 150
_STAGES, _CELLS = 72, 24
"""where the cells of a heat map begin"""
_SCALE = 204
"""from its begin to the end of what stands behind it"""
_SEEN = 0.005
"""share of the whole colour below which there is none"""
_TOLD = 1024
"""cells of a heat map that are all named where one points at them"""


def variability(report: Metrics) -> str:
    """The section; empty where there is one run."""
    varied = report.measured.variability
    if varied is None:
        return ""
    table = words.causes(varied)
    said = "".join(f"<p>{escape(note)}</p>" for note in words.notes(varied))
    pictures = "".join(_histogram(one) for one in (varied, varied.steps) if one is not None) + _tornado(varied)
    return (
        f'<div class="spreads">{pictures}</div>{words.spreads(varied).html("spread", sortable=False)}'
        f"{'' if table is None else table.html('causes')}{said}"
    )


def stragglers(report: Metrics) -> str:
    """What each worker costs alone: a heat map; empty where nothing tells them apart."""
    if (workers := report.workers) is None:
        return ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in workers.notes())
    said = workers.sentence().removeprefix("Stragglers: ")
    return f'<p>{escape(said[:1].upper() + said[1:])}</p><div class="spreads">{_heat_map(workers)}</div>{notes}'


def _heat_map(workers: WorkerSlowdowns) -> str:
    """Stages downwards, replicas across; the more a worker costs, the more colour it has, and the worst one is framed."""
    stages, replicas, most = workers.stages, workers.replicas, workers.most or 1.0
    wide, high = min(60.0, (_WIDTH - _STAGES - _RIGHT) / replicas), min(26.0, max(6.0, 320.0 / stages))
    gap = 1.0 if wide > 4 else 0.0
    cell = f'width="{wide - gap:.1f}" height="{high - gap:.1f}"'
    cells = []
    for stage, replica in product(range(stages), range(replicas)):
        shade = max(0.0, workers.slowdown[stage][replica]) / most
        if shade < _SEEN:
            continue  # as the ground that all stand on
        told = f"{escape(workers.name(stage, replica))}: {_longer(workers.slowdown[stage][replica])}"
        title = f"<title>{told}</title>" if stages * replicas <= _TOLD else ""
        x, y = _STAGES + replica * wide, _CELLS + stage * high
        cells.append(f'<rect x="{x:.1f}" y="{y:.1f}" {cell} fill-opacity="{shade:.2f}">{title}</rect>')
    frame = ""
    if workers.worst is not None:
        off = 0.0 if wide > 8 else 2.0  # else it would hide what it frames
        x, y = _STAGES + workers.worst[1] * wide - off, _CELLS + workers.worst[0] * high
        frame = f'<path class="mark" d="M{x:.1f} {y:.1f}h{wide - gap + 2 * off:.1f}v{high - gap:.1f}h{gap - wide - 2 * off:.1f}z"/>'
    ground = f'<rect class="ground" x="{_STAGES}" y="{_CELLS}" width="{replicas * wide - gap:.1f}" height="{stages * high - gap:.1f}"/>'
    ground += f'<rect class="ground" x="{_WIDTH - _RIGHT - _SCALE}" y="4" width="109" height="12"/>'
    drawn = f'{ground}<g fill="{style.VERMILION}">{"".join(cells)}{_scale()}</g>{frame}{_ticks(workers, wide, high)}'
    return _svg("How much longer the step is with one worker alone as it is", _CELLS + stages * high + 22, drawn, "spread map")


def _ticks(workers: WorkerSlowdowns, wide: float, high: float) -> str:
    """The numbers of stages and replicas, and the ends of the scale."""
    stages, replicas = workers.stages, workers.replicas
    bottom = _CELLS + stages * high + 16
    said: list[tuple[float, float, str, str]] = [(_STAGES - 6, 14.0, "end", "stage")] if stages > 1 else []
    said += [(_STAGES - 6, _CELLS + (n + 0.5) * high + 4, "end", str(n)) for n in range(0, stages, -(-stages // 16)) if stages > 1]
    said += [(_STAGES - 10, bottom, "end", "replica")]
    said += [(_STAGES + (n + 0.5) * wide, bottom, "middle", str(n)) for n in range(0, replicas, -(-replicas // 8))]
    said += [(_WIDTH - _RIGHT - _SCALE - 6, 15.0, "end", "0"), (_WIDTH - _RIGHT, 15.0, "end", _longer(workers.most))]
    return "".join(f'<text class="soft" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{word}</text>' for x, y, anchor, word in said)


def _scale() -> str:
    """From no colour to all of it."""
    return "".join(
        f'<rect x="{_WIDTH - _RIGHT - _SCALE + 22 * step}" y="4" width="21" height="12" fill-opacity="{step / 4:.2f}"/>'
        for step in range(5)
    )


def _longer(share: float) -> str:
    return f"{100 * share:+.3g} %" if share else "0"


def slow_gpu(report: Metrics) -> str:
    """The step with one GPU slower, by where it is; empty where nobody asked."""
    if (slow := report.measured.slow_gpu) is None:
        return ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in slow.notes())
    return f"<p>{escape(slow.sentence())}</p>{slow.table().html('slow-gpu-places', sortable=False)}{notes}"


def _histogram(varied: RunStatistics) -> str:
    """How many runs took how long, with the undisturbed step, the mean and p95."""
    return histogram(varied.step_times, f"Step times of {varied.runs:,} {varied.over}", "undisturbed", seconds)


def histogram(values: Spread, label: str, nominal: str, write: Callable[[float], str]) -> str:
    """How many runs had which value, with the one that is called `nominal`, the mean and p95."""
    edges, counts, far = values.bins()
    low, high = min(edges[0], values.nominal, values.mean), max(edges[-1], values.nominal, values.mean)
    low, high = (low, high) if high > low else (0.99 * low, 1.01 * high)

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    ground, most = _HEIGHT - _BOTTOM, max(counts)
    bars = "".join(
        f'<rect x="{x(a):.1f}" y="{ground - count / most * (ground - _TOP):.1f}" width="{max(1.0, x(b) - x(a) - 1):.1f}"'
        f' height="{count / most * (ground - _TOP):.1f}"><title>{count:,} runs, {write(a)} to {write(b)}</title></rect>'
        for a, b, count in zip(edges, edges[1:], counts, strict=False)
        if count
    )
    ends = (
        f'<text class="soft" x="{_LEFT}" y="{_HEIGHT - 6}">{write(low)}</text>'
        f'<text class="soft" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{write(high)}</text>'
        f'<text class="soft" x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{words.beyond(far, write)}</text>'
    )
    marks = "".join(_marks(values, x, ground, nominal, write))
    return _svg(label, _HEIGHT, f'<g fill="{style.BLUE}">{bars}</g>{marks}{ends}')


def _marks(values: Spread, x: Callable[[float], float], ground: float, nominal: str, write: Callable[[float], str]) -> Iterator[str]:
    """Lines at the undisturbed one, the mean and p95; each with its name in a row of its own, so that near ones can be read."""
    known = [(nominal, values.nominal, "", 0), ("mean", values.mean, "4 3", 1), ("p95", values.quantile(0.95), "1 3", 2)]
    for name, value, dashes, row in known:
        if value is None:
            continue
        at = x(value)
        anchor = "start" if at < 0.75 * _WIDTH else "end"
        shift = 4 if anchor == "start" else -4
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        yield (
            f'<path class="mark" d="M{at:.1f} {ground}V{_TOP - 46 + 14 * row}"{dashed}/>'
            f'<text x="{at + shift:.1f}" y="{_TOP - 37 + 14 * row}" text-anchor="{anchor}">{name} {write(value)}</text>'
        )


def _tornado(varied: RunStatistics) -> str:
    """A pair of bars per cause: what it costs alone, and what removing it saves."""
    if not varied.causes or varied.step_times.nominal <= 0:
        return ""
    nominal = varied.step_times.nominal
    bars = [(words.CAUSES.get(one.cause, one.cause), one.alone_s - nominal, -one.exposed_s) for one in varied.causes]
    reach = max(abs(value) for _, *values in bars for value in values) or nominal
    middle = _NAMES + (_WIDTH - _NAMES) / 2
    half = (_WIDTH - _NAMES) / 2 - 72
    parts = []
    for row, (name, alone, removed) in enumerate(bars):
        top = 30 + row * _ROW
        parts.append(f'<text x="{_NAMES - 8}" y="{top + 13}" text-anchor="end">{escape(name)}</text>')
        for value, colour, what in ((alone, style.VERMILION, "alone"), (removed, style.GREEN, "removed")):
            length = abs(value) / reach * half
            left = middle if value >= 0 else middle - length
            at, anchor = (left + length + 4, "start") if value >= 0 else (left - 4, "end")
            percent = f"{100 * value / nominal:+.2f} %"
            if what == "alone" or abs(value) > 0:
                parts.append(
                    f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="16" fill="{colour}">'
                    f"<title>{escape(name)} {what}: {percent}</title></rect>"
                    f'<text x="{at:.1f}" y="{top + 13}" text-anchor="{anchor}">{percent}</text>'
                )
    height = 38 + len(bars) * _ROW
    heads = (
        f'<text class="soft" x="{middle - 6}" y="18" text-anchor="end">removed</text>'
        f'<text class="soft" x="{middle + 6}" y="18">alone, of the undisturbed step</text>'
        f'<path class="mark" d="M{middle} 24V{height - 8}"/>'
    )
    return _svg("What each cause does to the mean step", height, "".join(parts) + heads)


def _svg(label: str, height: float, drawn: str, name: str = "spread") -> str:
    return (
        f'<figure><figcaption class="soft">{escape(label)}</figcaption><svg class="{name}" role="img" aria-label="{escape(label)}"'
        f' viewBox="0 0 {_WIDTH} {height}">{drawn}</svg></figure>'
    )
