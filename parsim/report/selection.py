"""What a figure shows of a report: which ranks stand for the others, which stretch of the step, how wide."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from parsim import units
from parsim.errors import Finding, InputError
from parsim.report.measured import RankClass, compress_ranges
from parsim.report.quantities import seconds
from parsim.units import is_digits

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

FEW_LANES = 16
"""ranks of a figure that fits on a page"""
_EQUAL = 1e-9


@dataclass(frozen=True)
class Representative:
    """A rank that a figure shows."""

    rank: int
    """as the user knows it"""
    simulated: int
    """the rank whose trace it has: the same, or the one that was simulated in place of its class"""
    stage: int | None = None
    """None: the job has no pipeline"""
    equal: int = 1
    """ranks that do the same, itself included"""
    notes: tuple[str, ...] = field(default=())
    """what sets it apart"""

    @property
    def name(self) -> str:
        """``rank 8 · stage 1``."""
        return f"rank {self.rank}" + (f" · stage {self.stage}" if self.stage is not None else "")

    @property
    def facts(self) -> tuple[str, ...]:
        """What it stands for: ``("1 of 8 equal", "computes most")``."""
        return (*((f"1 of {self.equal} equal",) if self.equal > 1 else ()), *self.notes)

    @property
    def label(self) -> str:
        """Name and facts in one line."""
        return " · ".join((self.name, *self.facts))


def choose(report: Metrics, most: int) -> list[int]:
    """At most `most` classes of ranks by stage, each by its representative.

    All classes if they are few enough; else one per stage; else the first and the last, the rank that computes most, the one that
    ends last, the one with the least memory left, and some between.
    """
    groups = _by_stage(report)
    if len(groups) <= most:
        return [group.rank for group in groups]
    special = {report.bottleneck_rank, report.breakdown_rank}
    if report.worst_device is not None:
        special.add(report.worst_device.rank)
    special &= {group.rank for group in groups}
    firsts = {group.stage: group.rank for group in reversed(groups)}
    wanted = special | set(firsts.values())
    if len(wanted) > most:
        wanted = special | {groups[0].rank, groups[-1].rank}
    order = [group.rank for group in groups]
    for place in np.linspace(0, len(order) - 1, most - len(wanted)).round().astype(int).tolist() if len(firsts) > most else ():
        wanted.add(order[place])
    return [rank for rank in order if rank in wanted]


def first_of_stages(report: Metrics) -> list[int]:
    """The first rank of every pipeline stage."""
    return list({group.stage: group.rank for group in reversed(_by_stage(report))}.values())[::-1]


def named(report: Metrics, ranks: Iterable[int]) -> list[Representative]:
    """What each of `ranks` stands for.

    Raises:
        InputError: the job has no such rank; one finding for each.
    """
    members = {member: group for group in report.measured.classes for member in group.members}
    simulated = set(report.timeline.lanes)
    ranks = list(ranks)
    unknown = [rank for rank in ranks if rank not in members and rank not in simulated]
    if unknown:
        known = compress_ranges(members or simulated)
        raise InputError(Finding(f"the job has no rank {rank}", "ranks", rank, f"its ranks are {known}") for rank in unknown)
    staged = report.measured.schedule.stages > 1
    notes = _notes(report)
    representatives = []
    for rank in ranks:
        group = members.get(rank, RankClass(rank, (rank,)))
        source = rank if rank in simulated else group.rank
        representatives.append(Representative(rank, source, group.stage if staged else None, group.count, tuple(notes.get(group.rank, ()))))
    return representatives


def read_ranks(text: str) -> list[int]:
    """``0,8,16-19`` as ranks, each once, in the order written.

    Raises:
        InputError: not such a list.
    """
    ranks: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not is_digits(first) or (dash and not is_digits(last)) or (dash and int(last) < int(first)):
            raise InputError(Finding(f"{part.strip() or 'nothing'!r} is no rank", "ranks", text, "write ranks as 0,8,16 or 0-3,8"))
        ranks |= dict.fromkeys(range(int(first), int(last or first) + 1) if int(last or first) - int(first) <= 2**20 else ())
    return list(ranks)


def _by_stage(report: Metrics) -> Sequence[RankClass]:
    return sorted(report.measured.classes, key=lambda group: (group.stage or 0, group.rank))


def _notes(report: Metrics) -> Mapping[int, list[str]]:
    """What sets representatives of classes apart; nothing where all are alike."""
    notes: dict[int, list[str]] = {}
    classes = [group.rank for group in report.measured.classes]
    if len(classes) < 2:
        return notes
    work = [report.breakdowns[rank]["compute"] + report.breakdowns[rank]["recompute"] for rank in classes]
    if max(work) > min(work) * (1.0 + _EQUAL):
        notes.setdefault(report.bottleneck_rank, []).append("computes most")
    ends = [float(report.timeline.end[report.timeline.computing(rank)].max(initial=0.0)) for rank in classes]
    if report.measured.window is None and max(ends) > min(ends) * (1.0 + _EQUAL):
        notes.setdefault(report.breakdown_rank, []).append("ends last")
    left = {device.rank: report.capacity(device) - device.device_used_bytes for device in report.measured.memory.devices}
    if report.worst_device is not None and len(set(left.values())) > 1:
        notes.setdefault(report.worst_device.rank, []).append("least memory left")
    return notes


Window = str | tuple[float | None, float | None]
"""``"0.2s:0.5s"``, ``"40%:60%"``, or seconds; an end left out is that of the step"""

_ROUNDED = 5e-3
"""how far beyond the step a window may reach: a step is shown with three digits"""
_FORM = "write it as 0.2s:0.5s, 200ms: or 40%:60%"


def window_of(report: Metrics, window: Window | None) -> tuple[float, float]:
    """Begin and end [s] on the axis of the figure; the whole measured stretch for None.

    Raises:
        InputError: not a window, reversed, empty or beyond the step; every problem is a finding.
    """
    if window is None:
        return report.begin, report.end
    parts = window.split(":") if isinstance(window, str) else list(window)
    if len(parts) != 2:
        raise InputError(Finding("a window is two times with a colon between them", "window", window, _FORM))
    findings: list[Finding] = []
    begin, end = (_time(part, side, report, findings) for part, side in zip(parts, (report.begin, report.end), strict=True))
    if findings:
        raise InputError(findings)
    span = f"the figure shows {seconds(report.begin)} to {seconds(report.end)}" if report.begin else f"the step takes {seconds(report.end)}"
    slack = _ROUNDED * (report.end - report.begin)
    written = window if isinstance(window, str) else None
    if end <= begin:
        order = f"the window ends at {seconds(end)} and begins at {seconds(begin)}"
        swap = "swap its ends" if end < begin else "make it longer"
        raise InputError(Finding(order, "window", written, swap))
    for name, time in (("begins", begin), ("ends", end)):
        if not report.begin - slack <= time <= report.end + slack:
            findings.append(Finding(f"the window {name} at {seconds(time)}, {span}", "window", written, "choose a window within it"))
    begin, end = max(begin, report.begin), min(end, report.end)
    if not findings and end <= begin:
        findings.append(Finding(f"the window begins at {seconds(begin)}, {span}", "window", written, "choose a window within it"))
    if findings:
        raise InputError(findings)
    return begin, end


def _time(part: str | float | None, default: float, report: Metrics, findings: list[Finding]) -> float:
    """Seconds of one end of a window."""
    if part is None or (isinstance(part, str) and not part.strip()):
        return default
    try:
        if isinstance(part, str) and part.strip().endswith("%"):
            return report.begin + (report.end - report.begin) * float(part.strip()[:-1]) / 100.0
        if isinstance(part, str):
            return float(units.parse(part, "time"))
        value = float(part)
        if isfinite(value):
            return value
        findings.append(Finding(f"{part} is no time", "window", part, _FORM))
    except ValueError as error:
        findings.append(Finding(str(error), "window", part, _FORM))
    return default


_INCHES = {"in": 1.0, "inch": 1.0, '"': 1.0, "mm": 1.0 / 25.4, "cm": 1.0 / 2.54, "pt": 1.0 / 72.0}
NARROWEST, WIDEST = 2.0, 60.0
"""[in]"""


def inches(width: str | float) -> float:
    """``3.5in``, ``89 mm``, ``8.9cm``, ``252pt`` (1/72 in) or a number of inches.

    Raises:
        InputError: not a length, or not between 2 and 60 inches.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z\"]*)\s*", str(width))
    if match is None or (match[2] or "in") not in _INCHES:
        raise InputError(Finding(f"{str(width)!r} is no width", "width", width, "write it as 3.5in, 89mm, 8.9cm or 252pt"))
    value = float(match[1]) * _INCHES[match[2] or "in"]
    if not NARROWEST <= value <= WIDEST:
        raise InputError(Finding(f"a figure {value:g} in wide cannot be read", "width", width, f"choose {NARROWEST:g}in to {WIDEST:g}in"))
    return value
