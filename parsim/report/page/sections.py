"""The parts of a page that describe one run; all of it readable without a script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from parsim.report.definitions import DEFINITIONS
from parsim.report.faults import hours
from parsim.report.measured import AT_PEAK, AssumptionEffect, DeviceMemory
from parsim.report.page.markup import badge, bar, figure, swatch
from parsim.report.page.metrics import ESTIMATES, EXPOSED, METRICS, PageMetric, value_of
from parsim.report.plots import style
from parsim.report.quantities import GIB, NONE, cell, gib, gigabytes, number, percent, points, seconds, size, time_unit
from parsim.report.statement import statement
from parsim.report.table import Cell, Column, Content, Table, attributes
from parsim.report.verdict import rank_class, shortened
from parsim.units import format_count, snapped

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

Document = Mapping[str, Any]
_TILES = ("step_time_s", "mfu", "memory.peak_bytes", "bubble_fraction", EXPOSED.key, "tokens_per_s_per_gpu")
_ESTIMATED = {"step_time_s": "estimate.step_time_s", "mfu": "estimate.mfu", "tokens_per_s_per_gpu": "estimate.tokens_per_s"}
"""tile -> its estimate, shown instead where there is a band"""
_EQUAL = 0.01
"""difference in utilisation below which classes of links share a row"""


def verdict(report: Metrics, title: str = "") -> str:
    """The answer in three lines with a badge that says how sure it is; below, what limits the step and what would help."""
    state, mark = ("fits", "✓") if report.fits else ("fails", "✗")
    said = report.headline
    name = f"<h2>{escape(title)}</h2>" if title else ""
    fits, *others = said.lines
    lines = f'<p class="line"><span class="mark" aria-hidden="true">{mark}</span> {escape(fits)}</p>'
    lines += "".join(f'<p class="line">{escape(line)}</p>' for line in others)
    sure = f'<p class="sure">{badge(said.badge)} {escape(said.band)}</p>'
    return (
        f'<div class="verdict {state}">{name}{lines}{sure}<p><span data-key="limiter">{escape(report.limiter)}</span></p>'
        f"<p>{escape(report.loss)}</p><small>{escape(confidence(report))}</small></div>"
    )


def confidence(report: Metrics) -> str:
    """How sure the step time is, and on what that rests."""
    sure = report.measured.confidence
    return f"confidence: {sure.status}" + (f" ({sure.basis})" if sure.basis else "")


def tiles(report: Metrics, document: Document) -> str:
    """The six figures of merit: estimates where there is a band, with what is simulated below."""
    theory = report.measured.schedule.bubble_fraction_theory
    notes = {
        "step_time_s": "",
        "mfu": f"HFU {percent(report.hfu)}",
        "memory.peak_bytes": f"of {gib(report.measured.memory.capacity_bytes)} GiB",
        "bubble_fraction": f"theory {percent(theory)}" if theory is not None else "",
        "tokens_per_s_per_gpu": f"{number(report.samples_per_s)} samples/s in all",
    }
    chosen = dict.fromkeys(_TILES)
    band, varied = report.estimate.step_time_band_s, report.measured.variability
    if band is not None or varied is not None:
        undefined = {key for key, value in report.estimate.document().items() if value is None}
        chosen = {key if (own := _ESTIMATED.get(key, key)).rpartition(".")[2] in undefined else own: None for key in _TILES}
        if band is not None:
            notes["estimate.step_time_s"] = (
                f"likely range (80 %): {seconds(band[0])} to {seconds(band[1])}; simulated {seconds(report.step_time)}"
            )
        else:
            notes["estimate.step_time_s"] = f"mean of the runs; undisturbed {seconds(report.step_time)}"
        notes["estimate.mfu"] = f"simulated {percent(report.mfu)}, HFU {percent(report.hfu)}"
        notes["estimate.tokens_per_s"] = f"simulated {number(report.tokens_per_s)}"
    if (peaks := report.estimate.peak_band_bytes) is not None:
        notes["memory.peak_bytes"] += f"; likely range (80 %): {gib(peaks[0])} to {gib(peaks[1])} GiB"
    named = {metric.key: metric for metric in (*METRICS, *ESTIMATES)}
    return "".join(_tile(report, document, named[key], notes.get(key, "")) for key in chosen)


def _tile(report: Metrics, document: Document, metric: PageMetric, note: str) -> str:
    value = value_of(report, document, metric)
    defined = DEFINITIONS[metric.defined]
    return (
        f'<a class="tile" href="#def-{defined.name}" title="{escape(defined.text)}"><span>{escape(metric.title)}</span>'
        f"{figure(metric.text(value), metric.key, value)}<span>{escape(note)}</span></a>"
    )


def breakdown(report: Metrics) -> str:
    """Where the step goes: a bar, and the same as numbers beside the critical path."""
    once = "Simulated" if report.measured.variability is None else "Undisturbed"
    words = f"<p>{once} time line of rank {report.breakdown_rank}, whose optimizer step ends last; definitions below.</p>"
    return words + breakdown_bar(report, report.step_time) + breakdown_table(report)


def breakdown_table(report: Metrics) -> str:
    """Seconds of every class of time, and those of the critical path."""
    step, unit = report.step_time, time_unit(report.step_time)
    rows: list[list[Content]] = [
        [
            Cell(key, html=f"{swatch(style.KEYS[key], key)}{key}"),
            Cell(unit.cell(value), value, f"breakdown_s.{key}"),
            value,
            Cell(unit.cell(report.critical[key]), report.critical[key], f"critical_path_s.{key}"),
        ]
        for key, value in report.breakdown.items()
        if value or report.critical[key]
    ]
    columns = (
        Column("Time goes to", align="left"),
        Column("", unit.name),
        Column("", "%", write=lambda value: _share(value, step)),
        Column("Critical path", unit.name),
    )
    return Table(columns, rows).html("breakdown")


def _share(part: float, step: float) -> str:
    """A part of the step in percent."""
    return points(part / step) if step > 0 else NONE


def breakdown_bar(report: Metrics, whole: float) -> str:
    """The bar alone; `whole` seconds are its full width."""
    parts = [(style.KEYS[key], value, f"{key} {seconds(value)}") for key, value in report.breakdown.items()]
    label = ", ".join(f"{key} {seconds(value)}" for key, value in report.breakdown.items() if value)
    return bar(parts, whole, label)


def memory(report: Metrics) -> str:
    """Memory of every class of ranks at its peak."""
    devices = report.measured.memory.devices
    names = [name for name in AT_PEAK if any(device.at_peak.get(name, 0) for device in devices)]
    widest = max((max(report.capacity(device), device.device_used_bytes) for device in devices), default=0)
    columns = (
        Column("Ranks", align="left"),
        Column("At the peak", align="left"),
        Column("Count", write=str, key="count"),
        Column("Stage", write=str),
        Column("Peak", write=gib, key="peak_bytes"),
        Column("Capacity", write=gib),
        *(Column(name.capitalize(), write=gib, key=f"at_peak.{name}") for name in names),
        Column("Peak at", write=seconds, key="peak_time_s"),
        Column("During"),
    )
    rows = [_device(report, device, names, widest) for device in devices]
    keys = [f"memory.devices.{place}" for place in range(len(devices))]
    return Table(columns, rows, caption="Device memory at the peak, by category [GiB].", row_keys=keys).html("devices")


def _device(report: Metrics, device: DeviceMemory, names: list[str], widest: float) -> list[Content]:
    group = rank_class(report.measured, device.rank)
    peak = device.at_peak
    parts = [(style.memory_style(name).colour, peak.get(name, 0), f"{name} {gib(peak.get(name, 0))} GiB") for name in style.CATEGORIES]
    share = min(100.0, 100.0 * report.capacity(device) / widest) if widest else 100.0
    limit = f'<i class="limit" style="left:{share:.2f}%"></i>'
    return [
        Cell(group.ranks, device.rank, html=escape(shortened(group.ranks))),
        Cell("", device.device_used_bytes, html=f'<div class="small">{bar(parts, widest, f"rank {device.rank}")}{limit}</div>'),
        group.count,
        group.stage,
        device.device_used_bytes,
        report.capacity(device),
        *(peak.get(name, 0) for name in names),
        device.peak_time_s,
        device.peak_op or NONE,
    ]


def collectives(report: Metrics) -> str:
    """What the breakdown rank sends and receives per step."""
    unit = time_unit(max((row.busy_s for row in report.collectives), default=0.0))
    columns = (
        *(Column(word, align="left") for word in ("Axis", "Collective", "Algorithm", "Protocol")),
        Column("Ranks", write=str, key="group_size"),
        Column("Count", write="{:,}".format, key="count"),
        Column("Size", write=size, key="bytes"),
        Column("Busy", unit.name, write=unit.cell, key="busy_s"),
        Column("Exposed", unit.name, write=unit.cell, key="exposed_s"),
        Column("Waited", unit.name, write=unit.cell, key="wait_s"),
        Column("Bus bandwidth", "GB/s", write=gigabytes, key="busbw_Bps"),
    )
    rows: list[list[Content]] = []
    keys = []
    for place, row in sorted(enumerate(report.collectives), key=lambda item: (-snapped(item[1].exposed_s), -snapped(item[1].busy_s))):
        words = [row.axis, row.kind, row.algorithm or NONE, row.protocol or NONE]
        times = [row.busy_s, row.exposed_s, row.wait_s]
        rows.append([*words, row.group_size, row.count, row.bytes, *times, row.busbw_Bps])
        keys.append(f"collectives.{place}")
    return Table(columns, rows, caption=f"Per step, seen from rank {report.breakdown_rank}.", row_keys=keys).html("collectives")


def links(report: Metrics) -> str:
    """What every class of links carried; classes that were equally busy share a row."""
    unit = time_unit(report.step_time)
    columns = (
        Column("Link", align="left"),
        Column("Kind", align="left"),
        Column("Links", write="{:,}".format),
        Column("Capacity", "GB/s", write=lambda value: number(value / 1e9), key="capacity_Bps"),
        Column("Per step", "GiB", write=lambda value: cell(value / GIB), key="bytes"),
        Column("Used", "%", write=points, key="utilisation"),
        Column("Saturated", unit.name, write=unit.cell, key="saturated_s"),
    )
    rows: list[list[Content]] = []
    keys = []
    for places in _equally_busy(report):
        row, key = report.links[places[0]], f"links.{places[0]}"
        count = sum(report.links[place].count for place in places)
        counted = Cell(f"{count:,}", count, f"{key}.count" if len(places) == 1 else "")
        volume = Cell(cell(row.bytes / GIB), round(row.bytes), f"{key}.bytes")
        rows.append([row.link, row.kind, counted, row.capacity_Bps, volume, row.utilisation, row.saturated_s])
        keys.append(key)
    caption = "Links that carry the same are one row, whatever their direction; of several such the busiest. Every class in report.json."
    return Table(columns, rows, caption=caption, row_keys=keys).html("links")


def _equally_busy(report: Metrics) -> list[list[int]]:
    """Places of link rows with the same name, kind and capacity, at most a point of utilisation apart; the busiest first."""
    groups: list[list[int]] = []
    for place, row in sorted(enumerate(report.links), key=lambda item: -snapped(item[1].utilisation)):
        for places in groups:
            first = report.links[places[0]]
            alike = (first.link, first.kind, first.capacity_Bps) == (row.link, row.kind, row.capacity_Bps)
            if alike and snapped(first.utilisation - row.utilisation) <= _EQUAL:
                places.append(place)
                break
        else:
            groups.append([place])
    return groups


def critical_path(report: Metrics) -> str:
    """The chain that decides the length of the step, by cause."""
    step, unit = report.step_time, time_unit(report.step_time)
    rows: list[list[Content]] = [
        [
            row.name,
            Cell(row.kind, html=f"{swatch(style.KEYS.get(row.kind, style.GREY), row.kind)}{escape(row.kind)}"),
            row.count,
            row.seconds,
            row.seconds,
        ]
        for row in report.causes
    ]
    words = (
        f"The chain of {len(report.path):,} ops that decides how long the step takes, walked back from its last op to the blocker"
        " that ended last. It sums to the step time."
    )
    columns = (
        Column("Cause", align="left"),
        Column("Class", align="left"),
        Column("Ops", write="{:,}".format),
        Column("Time", unit.name, write=unit.cell),
        Column("Share of step", "%", write=lambda value: _share(value, step)),
    )
    return f"<p>{words}</p>" + Table(columns, rows).html("critical-path")


def warnings(report: Metrics) -> str:
    """What the user should know."""
    return "".join(f'<p class="warning">{escape(str(finding))}</p>' for finding in report.warnings)


def faults(report: Metrics) -> str:
    """What breaks during the step: all together in words, each alone as a row."""
    found = report.measured.faults
    if found is None:
        return ""
    rows = [[row.fault, seconds(row.effect.step_time_s), hours(row.effect.gpu_seconds_lost), row.effect.why, row.key] for row in found.rows]
    table = _words(["Fault, alone", "Step then", "Lost", "What comes of it", "Where"], rows)
    return "".join(f"<p>{escape(line)}</p>" for line in found.lines(report.measured.ranks.total)[:2]) + table.html("faults")


def assumptions(report: Metrics) -> str:
    """Numbers that nobody stated."""
    stated = report.measured.assumptions
    known = any(item.effect is not None for item in stated)
    heads = ["Name", "Value", *(("Tried instead", "Step then", "Peak then [GiB]") if known else ()), "Source", "Where"]
    rows = [[item.name, item.value, *(_effect(item.effect) if known else ()), item.source, item.origin] for item in stated]
    return _words(heads, rows).html("assumptions")


def _words(heads: Sequence[str], rows: Sequence[Sequence[Content]], caption: str = "") -> Table:
    """A table whose cells are all texts."""
    return Table([Column(head, align="left") for head in heads], rows, caption=caption)


def _effect(effect: AssumptionEffect | None) -> list[str]:
    if effect is None:
        return [NONE, NONE, NONE]
    times, peaks = map(seconds, effect.step_time_s), map(gib, effect.peak_bytes)
    return [", ".join(effect.tried), " to ".join(times), " to ".join(peaks)]


def scenario(report: Metrics) -> str:
    """The resolved scenario, every value with where it was written."""
    origins = report.measured.origins
    rows: list[list[Content]] = []
    for path, value in leaves(report.measured.scenario):
        origin = next((origins[above] for above in _above(path) if above in origins), "default")
        rows.append([path, Cell(shown := _written(value), html=f"<code>{escape(shown)}</code>"), origin])
    return _words(["Key", "Value", "Where"], rows, "Loading this scenario again gives the same report.").html("scenario")


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _above(path: str) -> Iterator[str]:
    """The key itself; for free mappings also the keys above it."""
    yield path
    while path.startswith(("model.", "cluster.topology.", "cluster.set.")) and "." in path:
        path = path.rpartition(".")[0]
        yield path


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def nearest(report: Metrics) -> str:
    """The measured runs most like this one."""
    rows = report.measured.confidence.nearest
    if not rows:
        return ""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_signed(row.get(key)) if key.endswith("error") else _fact(key, row.get(key)) for key in keys] for row in rows]
    heads = [key.replace("_", " ").capitalize() for key in keys]
    words = "<p>Published measurements on the same GPU with the same kind of strategy, how far off parsim is there, and what differs.</p>"
    return words + _words(heads, cells).html("nearest")


def _fact(key: str, value: Any) -> str:
    """A fact of a measured run; what differs in words: ``768 GPUs, 69B model``."""
    if key != "differs" or not isinstance(value, Mapping):
        return _worded(value)
    counted = {"gpus": "GPUs", "parameters": "model"}
    words = [
        f"{format_count(item, digits=2)} {counted[name]}" if name in counted else f"{name.replace('_', ' ')} {_worded(item)}"
        for name, item in value.items()
    ]
    return ", ".join(words) or NONE


def _signed(value: Any) -> str:
    return NONE if value is None else f"{100 * value:+.1f} %"


def _worded(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_worded(item)}" for key, item in value.items()) or NONE
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:.6g}"
    return NONE if value is None else ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def definitions(document: Document | None = None) -> str:
    """What every number means; with a document also its value there."""
    parts = []
    for item in DEFINITIONS.values():
        value = None if document is None else (document | document["memory"]).get(item.name)
        key = item.name if document is not None and item.name in document else f"memory.{item.name}"
        plain = isinstance(value, int | float | str)
        shown = f" = <code{attributes(key, _raw(value))}>{escape(_worded(value))}</code>" if plain else ""
        formula = f"<br><code>{escape(item.formula)}</code>" if item.formula else ""
        source = f"<br><small>{escape(item.source)}</small>" if item.source else ""
        parts.append(
            f'<dt id="def-{item.name}">{escape(item.name)} [{escape(item.unit)}]{shown}</dt><dd>{escape(item.text)}{formula}{source}</dd>'
        )
    return f"<dl>{''.join(parts)}</dl>"


def _raw(value: Any) -> float | str | None:
    return json.dumps(value) if isinstance(value, bool) else value


def legend() -> str:
    """Colours of the timeline."""
    looks = [(name, look.label, look.colour, name) for name, look in style.ROLES.items() if name not in ("communication", "other")]
    looks[-2:-2] = [
        ("communication", "communication, exposed", style.ROLES["communication"].colour, ""),
        ("hidden", "communication, hidden", style.ROLES["communication"].colour, "hidden"),
    ]
    looks.append(("bubble", "bubble", "var(--bubble)", "hatched"))
    return "".join(f'<span class="{name}">{swatch(colour, kind)}{label}</span>' for name, label, colour, kind in looks)


def money(report: Metrics) -> str:
    """Steps, hours, money and energy, and why a number is missing; empty where nobody asked."""
    if report.bill is None:
        return ""
    values = report.bill.metrics() | {f"estimate.{key}": value for key, value in report.estimate.document().items()}
    rows: list[list[Content]] = []
    for line in statement(report.bill, report.estimate, varied=report.measured.variability is not None):
        defined = DEFINITIONS[line.key.partition(".")[0]]
        head = f'<a href="#def-{defined.name}" title="{escape(defined.text)}">{escape(line.title)}</a>'
        rows.append([Cell(line.title, html=head), line.note, Cell(line.text, values[line.key], line.key)])
    missing = "".join(
        f"<p>No {escape(metric.replace('_', ' '))}: {escape(reason)}.</p>" for metric, reason in report.bill.economics.reasons.items()
    )
    columns = (Column("", align="left"), Column("rests on", align="left"), Column(""))
    return (Table(columns, rows).html("bill", sortable=False) if rows else "") + missing
