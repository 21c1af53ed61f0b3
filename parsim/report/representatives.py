"""Which ranks stand for the others in a figure, and what each one stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from parsim.errors import Finding, InputError
from parsim.report.measured import RankClass, compress_ranges
from parsim.units import is_digits

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

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
        """Both in one line."""
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


def stages(report: Metrics) -> list[int]:
    """One rank of every pipeline stage: the first."""
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
    found = []
    for rank in ranks:
        group = members.get(rank, RankClass(rank, (rank,)))
        source = rank if rank in simulated else group.rank
        found.append(Representative(rank, source, group.stage if staged else None, group.count, tuple(notes.get(group.rank, ()))))
    return found


def read_ranks(text: str) -> list[int]:
    """``0,8,16-19`` as ranks, each once, in the order written.

    Raises:
        InputError: not such a list.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not is_digits(first) or (dash and not is_digits(last)) or (dash and int(last) < int(first)):
            raise InputError(Finding(f"{part.strip() or 'nothing'!r} is no rank", "ranks", text, "write ranks as 0,8,16 or 0-3,8"))
        found |= dict.fromkeys(range(int(first), int(last or first) + 1) if int(last or first) - int(first) <= 2**20 else ())
    return list(found)


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
