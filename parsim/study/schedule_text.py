"""What the schedule laboratory found, as a table, as one JSON document, as a drawing in letters and as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from math import gcd
from typing import Any

from parsim.errors import Finding, PlanError
from parsim.parallel.schedules.slot import Precedence
from parsim.report.quantities import TimeUnit, time_unit
from parsim.report.schedule_scene import Arrow, Labels, Panel, Scene, SlotBox, scene
from parsim.report.table import Column, Content, Table
from parsim.study.schedule import LabResult
from parsim.study.schedule_inputs import LabSchedule, PassTimes
from parsim.study.schedule_theory import ClosedForm
from parsim.units import format_bytes

_RANKS = 12
"""ranks listed one by one"""
WIDEST = 1000
"""most columns of a drawing in letters"""
_UNITS = TimeUnit(1.0, "units of time")


def unit_of(results: Iterable[LabResult], times: PassTimes) -> TimeUnit:
    """The unit of all times that are shown."""
    return time_unit(max(result.makespan for result in results)) if times.unit else _UNITS


def text(results: Sequence[LabResult], times: PassTimes) -> str:
    """The table, and below it what the literature says."""
    unit = unit_of(results, times)
    lines = [asked(results, times, unit), "", table(results, unit).text()]
    if formulas := [line for result in results for line in _formulas(result, unit)]:
        lines += ["", "Closed forms", *formulas]
    if any(result.versions for result in results):
        lines += ["", *(line for result in results if result.versions for line in _versions(result))]
    if conventions := [line for result in results for line in _convention(result, unit)]:
        lines += ["", *conventions]
    lines += [
        "",
        "makespan: first slot to last of a step that starts with an empty pipeline. period: from one step to the next when every rank goes",
        "on as soon as its own list is done. bubble: share of the ranks' time up to the makespan in which no slot runs (steady: of the",
        "period); over ideal: over the time in which slots run. in flight: most micro-batches per rank between F and the end of B or W.",
    ]
    return "\n".join(lines)


def show(value: float, unit: TimeUnit) -> str:
    """A time as a number of `unit`: as many digits as it needs, six at most."""
    return f"{value / unit.factor:.6g}"


def asked(results: Sequence[LabResult], times: PassTimes, unit: TimeUnit) -> str:
    """What was given: sizes, times of the passes, messages."""
    sizes = list(dict.fromkeys((result.entry.ranks, result.entry.micro_batches) for result in results))
    counts = "; ".join(f"p = {p} ranks, m = {m} micro-batches" for p, m in sizes)
    passes = [("F", times.forward), ("B", times.backward)]
    if not times.whole:
        passes = [("F", times.forward), ("I", times.inputs), ("W", times.weights), ("B = I + W", times.backward)]
    passes += [("FB", times.pairs)] if times.pairs else []
    given = ", ".join(f"{name} = {_values(values, unit)}" for name, values in passes)
    factors = f", stages x {':'.join(f'{value:.6g}' for value in times.factors)}" if times.factors != (1.0,) else ""
    sends = "overlapped" if times.overlap else "blocking"
    messages = f"messages {_values(times.communication, unit)} {unit.name}, {sends}" if any(times.communication) else "messages free"
    if not times.overlap and not any(times.communication):
        messages += ", blocking"
    return f"{counts}; per rank and micro-batch {given} {unit.name}{factors}; {messages}"


def _values(values: Sequence[float], unit: TimeUnit) -> str:
    return ":".join(show(value, unit) for value in values)


def table(results: Sequence[LabResult], unit: TimeUnit) -> Table:
    """The table of the schedules' figures, a row per schedule."""
    time = partial(Column, unit=unit.name, write=partial(show, unit=unit))
    share = partial(Column, write=_percent)
    columns = [
        Column("schedule", align="left"), time("makespan\n", key="makespan"), time("period\n", key="period"),
        Column("per\nmicro-batch", write=partial(show, unit=unit), key="period_per_micro_batch"), share("bubble", key="bubble_fraction"),
        share("closed\nform", key="closed_form"), share("over\nideal", key="bubble_over_ideal"),
        share("steady\nbubble", key="steady_bubble_fraction"), Column("in flight\nby rank [micro-batches]", align="left"),
    ]  # fmt: skip
    rows = [_cells(result) for result in results]
    if any(rank.activation is not None for result in results for rank in result.ranks):
        columns.append(Column("activations\nby rank", align="left"))
        rows = [
            (*row, _by_rank([format_bytes(rank.activation or 0, digits=3) for rank in result.ranks]))
            for row, result in zip(rows, results, strict=True)
        ]
    return Table(columns, rows)


def _cells(result: LabResult) -> tuple[Content, ...]:
    closed = None if result.closed is None or result.closed.makespan is None else result.closed.bubble
    return (
        result.entry.label, result.makespan, result.period, result.period / result.entry.micro_batches, result.bubble_fraction, closed,
        result.bubble_over_ideal, result.steady_bubble, _by_rank([f"{rank.in_flight:.6g}" for rank in result.ranks]),
    )  # fmt: skip


def _percent(value: float) -> str:
    return f"{100 * value:.2f}".rstrip("0").rstrip(".") + " %"


def _by_rank(values: Sequence[str]) -> str:
    if len(set(values)) == 1 and len(values) > 2:
        return f"{values[0]} on all"
    return " ".join(values) if len(values) <= _RANKS else f"{values[0]} (rank 0) ... {values[-1]} (rank {len(values) - 1})"


def _formulas(result: LabResult, unit: TimeUnit) -> list[str]:
    closed = result.closed
    if closed is None:
        return []
    parts = []
    if closed.makespan is not None:
        parts.append(f"makespan {closed.makespan_formula} = {show(closed.makespan, unit)}")
    if closed.period is not None:
        parts.append(f"period {closed.period_formula} = {show(closed.period, unit)}")
    if closed.bubble is not None:
        parts.append(f"bubble {closed.bubble_formula} = {_percent(closed.bubble)}")
    if closed.over_ideal is not None:
        parts.append(f"over ideal {closed.over_ideal_formula} = {_percent(closed.over_ideal)}")
    return [f"  {result.entry.label}: {'; '.join(parts)} ({closed.citation})"]


def _convention(result: LabResult, unit: TimeUnit) -> list[str]:
    """How the slots of a table of the user's own were run."""
    count = len(result.entry.overlapped)
    if not count and result.entry.name != "custom":
        return []
    if not count:
        return [f"{result.entry.label}: single passes, each rank's one after the other in the order of its row"]
    other, takes = result.makespan_one_by_one, "FB" if result.pair_given else "F + B"
    apart = "they would deadlock" if other is None else f"the makespan would be {show(other, unit)} {unit.name}"
    return [
        f"{result.entry.label}: {count} overlapped slots (F&B): each begins when the inputs of both are there, takes {takes},",
        f"  and ends both passes at its end. As single passes, F before B, {apart}.",
    ]


def _versions(result: LabResult) -> list[str]:
    versions, stale = (_by_rank([str(value) for value in values]) for values in (result.versions, result.staleness))
    return [
        f"{result.entry.label}: weight versions by rank {versions}; steady staleness {stale} (updates between a micro-batch's F and its B)"
    ]


def document(results: Sequence[LabResult], times: PassTimes) -> dict[str, Any]:
    """The same as one JSON document, with every slot; times in `unit`."""
    return {
        "parsim": 1,
        "unit": times.unit or "units of time",
        "times": {
            "forward": list(times.forward),
            "backward_input": None if times.whole else list(times.inputs),
            "backward_weight": None if times.whole else list(times.weights),
            "backward": list(times.backward),
            "pair": list(times.pairs) or None,
            "communication": list(times.communication),
            "stage_factors": list(times.factors),
            "overlap_sends": times.overlap,
        },
        "schedules": [_entry(result) for result in results],
    }


def _entry(result: LabResult) -> dict[str, Any]:
    entry = result.entry
    return {
        "schedule": entry.name,
        "label": entry.label,
        "file": entry.file or None,
        "ranks": entry.ranks,
        "stages": len(entry.homes),
        "micro_batches": entry.micro_batches,
        "overlapped_slots": len(entry.overlapped),
        "makespan": result.makespan,
        "makespan_one_by_one": result.makespan_one_by_one,
        "period": result.period,
        "period_per_micro_batch": result.period / entry.micro_batches,
        "bubble_fraction": result.bubble_fraction,
        "bubble_over_ideal": result.bubble_over_ideal,
        "steady_bubble_fraction": result.steady_bubble,
        "closed_form": _closed(result.closed),
        "weight_versions": list(result.versions) or None,
        "staleness": list(result.staleness) or None,
        "by_rank": [
            {
                "rank": rank,
                "begin": figures.begin,
                "end": figures.end,
                "busy": figures.busy,
                "peak_in_flight_micro_batches": figures.in_flight,
                "peak_in_flight_chunks": figures.in_flight_chunks,
                "peak_in_flight_until_input_gradient": figures.in_flight_until_input,
                "peak_activation_bytes": figures.activation,
            }
            for rank, figures in enumerate(result.ranks)
        ],
        "slots": [
            {"rank": box.rank, "slot": str(box.slot), "start": box.start, "end": box.end}
            | ({"overlaps": str(box.overlaps)} if box.overlaps is not None else {})
            for box in result.boxes
        ],
        "messages": [
            {"from": one.sender, "to": one.receiver, "slot": str(one.slot), "start": one.start, "end": one.end} for one in result.messages
        ],
    }


def _closed(closed: ClosedForm | None) -> dict[str, Any] | None:
    return None if closed is None else {**asdict(closed)}


def drawing(result: LabResult, first: int = 0) -> str:
    """The schedule in letters: a row per rank, a column per greatest common step of time, ``F3`` where F of micro-batch 3 runs.

    A dot is idle, ``--`` a message that holds up compute; chunks of a rank are a, b, ... Raises `PlanError` beyond `WIDEST` columns.
    """
    messages = result.messages if result.blocking else ()
    spans = [*(box.share for box in result.boxes), *((one.start, one.end) for one in messages)]
    edges = [Fraction(edge).limit_denominator(10**6) for span in spans for edge in span]
    step = float(_common(edges)) or 1.0
    count = round(result.makespan / step)
    if count > WIDEST:
        message = f"{result.entry.label} takes {count:,} steps of {step:.6g}, too many for letters"
        raise PlanError(Finding(message, "--draw", suggestion="draw a figure with --figure"))
    chunked = len(result.entry.homes) > result.entry.ranks
    rows = [["."] * count for _ in range(result.entry.ranks)]

    def put(rank: int, start: float, end: float, cell: str) -> None:
        begin, finish = round(start / step), round(end / step)
        rows[rank][begin:finish] = [cell] * (finish - begin)

    for box in result.boxes:
        chunk = chr(ord("a") + box.chunk) if chunked else ""
        put(box.rank, *box.share, f"{box.slot.kind}{box.slot.micro_batch + first}{chunk}")
    for one in messages:
        for rank in (one.sender, one.receiver):
            put(rank, one.start, one.end, "--")
    width = max(len(cell) for row in rows for cell in row)
    margin = len(str(len(rows)))
    lines = (" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)
    return "\n".join(f"rank {rank + first:<{margin}} | {line}" for rank, line in enumerate(lines))


def _common(edges: Iterable[Fraction]) -> Fraction:
    """The largest step of which all are multiples."""
    common = Fraction(0)
    for edge in edges:
        denominator = common.denominator * edge.denominator
        common = Fraction(gcd(int(common * denominator), int(edge * denominator)), denominator)
    return common


def table_text(entry: LabSchedule) -> str:
    """A schedule as the table that `parsim schedule` and scenarios read."""
    head = [
        f"# {entry.label}: {entry.ranks} ranks, {entry.micro_batches} micro-batches, {len(entry.homes)} stages",
        "# one line per rank: its slots in order. F forward, B backward (or I backward-input and W backward-weight); F1.3: stage 1,",
        "# micro-batch 3, both from 0; F1.3&B0.1 overlaps both in one slot. Empty cells mean nothing.",
    ]
    precedence = Precedence(entry.rows, entry.overlapped)
    rows = [",".join(precedence.name(slot) for slot in row if slot == precedence.pair(slot)[0]) for row in entry.rows]
    return "\n".join([*head, *rows]) + "\n"


def figure(
    results: Sequence[LabResult],
    times: PassTimes,
    *,
    width: float,
    title: str = "",
    labels: Labels = "number",
    captions: bool = True,
    first: int = 0,
) -> Scene:
    """All schedules under each other, `width` inches wide. `first`: the number of the first rank and of the first micro-batch."""
    unit = unit_of(results, times)
    panels = [_panel_of(result, unit, first, captions=captions) for result in results]
    return scene(panels, width=width, unit=unit.name, title=title, labels=labels)


def _panel_of(result: LabResult, unit: TimeUnit, first: int, *, captions: bool) -> Panel:
    entry = result.entry
    homes = entry.homes
    name = f" {unit.name}" if unit is not _UNITS else ""
    shown = f"{entry.label}: makespan {show(result.makespan, unit)}{name}, bubble {_percent(result.bubble_fraction)}"
    if result.period < result.makespan * (1 - 1e-9):
        shown = f"{entry.label}: makespan {show(result.makespan, unit)}{name}, period {show(result.period, unit)}{name}"
    return Panel(
        shown if captions else "",
        tuple(f"rank {rank}" if first == 0 else f"Device {rank + first}" for rank in range(entry.ranks)),
        tuple(
            SlotBox(
                box.rank,
                str(box.slot),
                box.slot.kind,
                box.slot.micro_batch + first,
                box.share[0] / unit.factor,
                box.share[1] / unit.factor,
                box.chunk,
                homes.count(box.rank),
            )
            for box in result.boxes
        ),
        result.makespan / unit.factor,
        tuple(Arrow(one.sender, one.receiver, one.start / unit.factor, one.end / unit.factor) for one in result.messages),
        blocking=result.blocking,
        overlapped=tuple(
            (box.rank, box.start / unit.factor, box.end / unit.factor) for box in result.boxes if box.overlaps and box.slot.kind == "F"
        ),
    )
