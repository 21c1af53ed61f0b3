"""The report in a terminal: the verdict first, then where time, memory and bytes go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import rich.table
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from parsim.columns import is_unicode, plainly, visible
from parsim.report import variability_text
from parsim.report.communication import busiest
from parsim.report.measured import DeviceMemory, HostMemory
from parsim.report.plots.style import KEYS as COLOURS
from parsim.report.quantities import GIB, NONE, cell, gib, gigabytes, number, percent, points, seconds, size, time_unit
from parsim.report.statement import statement
from parsim.report.table import Cell, Column, Content, Table
from parsim.report.verdict import rank_class, recipe, shortened
from parsim.units import snapped

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

_ROWS = 12
"""rows of a table before it refers to report.json"""
_BAR = 20
_BADGES = {"validated": "bold green", "interpolated": "bold yellow", "unvalidated": "bold red"}

_MEMORY_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Param.", ("parameters",)),
    ("Grad.", ("gradients",)),
    ("Optim.", ("optimizer",)),
    ("Activ.", ("activations",)),
    ("Temp.", ("temporaries", "buffers", "workspace")),
    ("Fixed", ("context", "communicators", "fragmentation")),
)
"""Ten categories do not fit into 80 columns; the legend below the table says what is together."""


def print_report(report: Metrics, console: Console | None = None) -> None:
    """Print the report; colours only on a terminal, plain letters where the console cannot show others."""
    console = Console() if console is None else console
    if is_unicode(console.encoding):
        console.print(render(report))
        return
    with console.capture() as captured:
        console.print(render(report))
    console.out(plainly(captured.get(), console.encoding), end="", highlight=False)


def render(report: Metrics) -> RenderableType:
    """The whole report as one renderable."""
    return Group(*_parts(report))


def _parts(report: Metrics) -> Iterator[RenderableType]:
    yield _headline(report)
    yield _speed(report)
    yield from _variability(report)
    yield from _stragglers(report)
    yield from _money(report)
    yield from _weeks(report)
    yield from _faults(report)
    yield _breakdown(report)
    if report.measured.memory.devices:
        yield _memory(report)
    if report.measured.memory.host is not None:
        yield Padding(_text(_host(report.measured.memory.host)), (1, 0, 0, 0))
    if report.collectives:
        yield _collectives(report)
    if report.links:
        yield _links(report)
    yield from _notes(report)


def _headline(report: Metrics) -> RenderableType:
    measured = report.measured
    said = report.headline
    fits, *others = said.lines
    badge = Text.assemble((f"[{said.badge}]", _BADGES.get(said.badge, "bold")), " ", visible(said.band))
    answer = [_text(fits, style="bold green" if report.fits else "bold red"), *(_text(line, style="bold") for line in others), badge]
    reasons = [_text(report.limiter), _text(report.loss)]
    return Group(_text(measured.name, style="bold"), _text(recipe(measured), style="dim"), _text(), *answer, _text(), *reasons)


def _speed(report: Metrics) -> RenderableType:
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    per_gpu = None if report.tokens_per_s is None else report.tokens_per_s / report.measured.ranks.total
    gpu_seconds = report.step_time * report.measured.ranks.total
    rows = (
        ("Step time", seconds(report.step_time), "Samples per second", number(report.samples_per_s)),
        ("MFU", percent(report.mfu), "Tokens per second", number(report.tokens_per_s)),
        ("HFU", percent(report.hfu), "Tokens per second and GPU", number(per_gpu)),
        (
            "Bubble (theory)",
            f"{percent(report.bubble)} ({percent(report.measured.schedule.bubble_fraction_theory)})",
            "Model TFLOP/s per GPU",
            number(report.measured.model.flop_per_step / gpu_seconds / 1e12 if gpu_seconds > 0 else None),
        ),
    )
    estimate = report.estimate
    varied = report.measured.variability is not None
    if estimate.of == "bands" or varied:
        _add(table, Text("Mean of the runs" if varied else "Estimated", style="bold"))
        _add(table, "Step time", seconds(estimate.step_time_s), "Tokens per second", number(estimate.tokens_per_s))
        trains = report.bill is None and estimate.time_to_train_s is not None
        _add(table, "MFU", percent(estimate.mfu), *(("Time to train", seconds(estimate.time_to_train_s)) if trains else ()))
        _add(table, Text("Undisturbed" if varied else "Simulated", style="bold"))
    for row in (*rows, *_training(report)):
        _add(table, *row)
    return Padding(table, (1, 0, 0, 0))


def _training(report: Metrics) -> Iterator[tuple[str, str, str, str]]:
    """Rows of a run of known length, and of one that does not train everything."""
    model, steps = report.measured.model, report.measured.steps_to_train
    if model.parameters_trainable != model.parameters:
        share = model.parameters_trainable / model.parameters
        yield "Parameters trained", f"{model.parameters_trainable:,}", "Share of all", f"{100 * share:.3g} %"
    if report.time_to_train is not None and report.bill is None:
        in_all = "" if steps is None else f" of {steps:,} steps"
        yield "Time to train", seconds(report.time_to_train), f"GPU-hours{in_all}", number(report.gpu_hours)


def _variability(report: Metrics) -> Iterator[RenderableType]:
    """How the step spreads over its runs."""
    if (varied := report.measured.variability) is None:
        return
    spread, causes = variability_text.spreads(varied), variability_text.causes(varied)
    yield _shown(replace(spread, title="The step with variability"))
    if causes is not None:
        yield _shown(replace(causes, title="What each cause does"))
    yield Padding(_text("\n".join(variability_text.notes(varied)), style="dim"), (1, 0, 0, 0))


def _stragglers(report: Metrics) -> Iterator[RenderableType]:
    """Which worker costs most, and what one slow GPU costs."""
    if report.workers is not None:
        yield Padding(_text(report.workers.sentence()), (1, 0, 0, 0))
    if (slow := report.measured.slow_gpu) is None:
        return
    yield Padding(_text(slow.sentence()), (1, 0, 0, 0))
    if len(slow.places) > 1:
        yield _shown(slow.table())
        yield _text("\n".join(slow.notes()), style="dim")


def _money(report: Metrics) -> Iterator[RenderableType]:
    """What the training costs; why a number is missing, below."""
    if (bill := report.bill) is None:
        return
    columns = (Column("", align="left"), Column(""), Column("", align="left"))
    rows = [[line.title, line.text, line.note] for line in statement(bill, report.estimate, varied=report.measured.variability is not None)]
    if rows:
        yield _shown(Table(columns, rows, "Money and time"))
    for metric, reason in bill.economics.reasons.items():
        yield _text(f"no {metric.replace('_', ' ')}: {reason}", style="dim")


def _weeks(report: Metrics) -> Iterator[RenderableType]:
    """The training with its failures."""
    if (weeks := report.training_run) is None:
        return
    columns = (Column("", align="left"), Column(""), Column("", align="left"))
    yield _shown(Table(columns, [[line.title, line.text, line.note] for line in weeks.statement()], weeks.title))
    for fault in weeks.faults:
        yield _text(fault.line())
    if weeks.paths is not None:
        yield _shown(Table(columns, [[line.title, line.text, line.note] for line in weeks.paths.statement()], weeks.paths.title))


def _shown(table: Table) -> RenderableType:
    """A table as rich lays it out, colours included; headings only where there are any."""
    grid = rich.table.Table(
        title=_text(table.title, style="bold"),
        title_justify="left",
        caption=_text(table.caption, style="dim") if table.caption else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
        show_header=any(column.title for column in table.columns),
    )
    for column in table.columns:
        if column.align == "left":
            grid.add_column(_text(column.title), overflow="fold")
        else:
            grid.add_column(_text(column.title), justify="right", no_wrap=True)
    for place, row in enumerate(table.cells):
        if place in table.groups:
            grid.add_section()
        grid.add_row(*(_text(cell.text, cell.style) for cell in row))
    return Padding(grid, (1, 0, 0, 0))


def _add(grid: rich.table.Table, *cells: str | Text) -> None:
    """Append a row; names are text, not markup."""
    grid.add_row(*(_text(cell) if isinstance(cell, str) else cell for cell in cells))


def _text(text: str = "", style: str = "") -> Text:
    """Text as it is: no markup, no control characters."""
    return Text(visible(text), style=style)


def _faults(report: Metrics) -> Iterator[RenderableType]:
    if report.measured.faults is not None:
        head, *lines = report.measured.faults.lines(report.measured.ranks.total)
        yield Padding(Group(_text(head, style="bold"), *map(_text, lines)), (1, 0, 0, 0))


def _breakdown(report: Metrics) -> RenderableType:
    step, unit = report.step_time, time_unit(report.step_time)
    rows: list[list[Content]] = []
    for key, value in report.breakdown.items():
        if value == 0.0 and report.critical[key] == 0.0:
            continue
        share = value / step if step > 0 else 0.0
        bar = Cell("█" * max(round(share * _BAR), 1 if share > 0 else 0), style=COLOURS[key])
        rows.append([key, value, points(share), bar, report.critical[key]])
    whole: list[Content] = [math.fsum(report.breakdown.values()), "100.0", "", math.fsum(report.critical.values())]
    columns = (
        Column("Time goes to", align="left"),
        Column("", unit.name, write=unit.cell),
        Column("", "%"),
        Column(" " * _BAR, align="left"),
        Column("Critical path", unit.name, write=unit.cell),
    )
    varied = report.measured.variability is not None
    simulated = "Undisturbed step" if varied else "Step" if report.estimate.of == "simulation" else "Simulated step"
    title = f"{simulated} of rank {report.breakdown_rank}, whose optimizer ends last"
    return _shown(Table(columns, [*rows, ["sum", *whole]], title, groups={len(rows): ""}))


def _host(host: HostMemory) -> str:
    """``Host memory of node 0: 100.4 GiB (optimizer 75.3, gradients 25.1) of 1,862.6 GiB``."""
    parts = ", ".join(f"{name} {gib(held)}" for name, held in host.at_peak.items())
    whole = (
        "; the topology does not say what it has (host_memory)" if host.capacity_bytes is None else f" of {gib(host.capacity_bytes)} GiB"
    )
    drives = f", and {gib(host.nvme_bytes)} GiB on drives" if host.nvme_bytes else ""
    return f"Host memory of node {host.node}: {gib(host.bytes)} GiB ({parts}){whole}{drives}"


def _memory(report: Metrics) -> RenderableType:
    devices = sorted(report.measured.memory.devices, key=lambda device: report.capacity(device) - device.device_used_bytes)
    shown = sorted(devices[:_ROWS], key=lambda device: device.rank)
    caption = "Temp.: temporaries, buffers, workspace. Fixed: context, communicators, fragmentation."
    if len(shown) < len(devices):
        caption += f"\n{len(shown)} of {len(devices)} device classes, the fullest; all in report.json."
    columns = (
        Column("Ranks", align="left"),
        Column("Stage", write=str),
        *(Column(name, write=_volume) for name, _ in _MEMORY_COLUMNS),
        Column("Peak"),
        Column("of", write=gib),
        Column("", "%"),
    )
    return _shown(Table(columns, [_memory_row(report, device) for device in shown], "Device memory at its peak [GiB]", caption))


def _memory_row(report: Metrics, device: DeviceMemory) -> list[Content]:
    group, capacity = rank_class(report.measured, device.rank), report.capacity(device)
    used = device.device_used_bytes
    style = "red" if used > capacity else ""
    return [
        shortened(group.ranks, 14),
        group.stage,
        *(sum(device.at_peak.get(category, 0) for category in categories) for _, categories in _MEMORY_COLUMNS),
        Cell(gib(used), style=style),
        capacity,
        Cell(f"{100 * used / capacity:.0f}" if capacity > 0 else NONE, style=style),
    ]


def _volume(volume: int) -> str:
    return "0" if volume == 0 else gib(volume)


def _collectives(report: Metrics) -> RenderableType:
    transfers = sorted(report.collectives, key=lambda row: (-snapped(row.exposed_s), -snapped(row.busy_s)))
    unit = time_unit(max(row.busy_s for row in transfers))
    columns = (
        Column("Axis", align="left"),
        Column("Collective", align="left"),
        Column("Ranks"),
        Column("Count", write="{:,}".format),
        Column("Size", write=size),
        *(Column(f"{word}\n", unit.name, write=unit.cell) for word in ("Busy", "Exposed", "Waited")),
        Column("Busbw\n", "GB/s", write=gigabytes),
    )
    rows = [
        (row.axis, row.kind, str(row.group_size), row.count, row.bytes, row.busy_s, row.exposed_s, row.wait_s, row.busbw_Bps)
        for row in transfers[:_ROWS]
    ]
    caption = f"{_ROWS} of {len(transfers)} rows, the most exposed first; all in report.json." if len(transfers) > _ROWS else ""
    return _shown(Table(columns, rows, f"Communication of rank {report.breakdown_rank} per step", caption))


def _links(report: Metrics) -> RenderableType:
    classes = busiest(report.links)
    unit = time_unit(report.step_time)
    columns = (
        Column("Link", align="left"),
        Column("Kind", align="left"),
        Column("Count", write="{:,}".format),
        Column("Capacity\n", "GB/s", write=lambda value: number(value / 1e9)),
        Column("Per step\n", "GiB", write=lambda value: cell(value / GIB)),
        Column("Used\n", "%", write=points),
        Column("Full\n", unit.name, write=unit.cell),
    )
    rows = [(row.link, row.kind, row.count, row.capacity_Bps, row.bytes, row.utilisation, row.saturated_s) for row in classes[:_ROWS]]
    caption = f"{_ROWS} of {len(classes)} kinds, the busiest first; all in report.json." if len(classes) > _ROWS else ""
    return _shown(Table(columns, rows, "Links, the busiest of each class", caption))


def _notes(report: Metrics) -> Iterator[RenderableType]:
    count = len(report.measured.assumptions)
    confidence = report.measured.confidence
    basis = f" ({confidence.basis})" if confidence.basis else ""
    listed = f"{count} assumption{'s' * (count != 1)}, listed in report.json, by effect with --sensitivity"
    text = f"{listed}; confidence: {confidence.status}{basis}."
    yield Padding(_text(text, style="dim"), (1, 0, 0, 0))
    for finding in report.warnings:
        yield _text(f"warning: {finding}", style="yellow")
