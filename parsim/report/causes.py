"""The critical path by cause: which kind of pass, collective or wait decides how long the step takes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parsim.program.program import Op
from parsim.report.verdict import WORDS
from parsim.units import snapped

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

_PASSES = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights", "R": "recomputation"}
_COLLECTIVES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "send": "send",
    "sendrecv": "ring exchange",
    "h2d": "copy to the device",
    "d2h": "copy to the host",
    "nvme_read": "read of the drives",
    "nvme_write": "write to the drives",
    "cpu_step": "optimizer step on the CPU",
}
_PASS = re.compile(r"([FBIWR])\d+\s+(.*)")


@dataclass(frozen=True, slots=True)
class Cause:
    """One line of the critical path."""

    kind: str
    """class of the breakdown"""
    name: str
    seconds: float
    """per step"""
    count: int
    """ops"""


def causes(report: Metrics) -> list[Cause]:
    """The critical path by cause, the longest first; the seconds sum to the step time."""
    stretch = report.end - report.begin
    factor = report.step_time / stretch if stretch > 0 else 1.0
    timeline = report.timeline
    spent: dict[tuple[str, str], float] = defaultdict(float)
    count: dict[tuple[str, str], int] = defaultdict(int)
    for kind, length, ops in report.path.by_kind(timeline):
        key = timeline.class_of(kind), cause_of(timeline.columns.examples[kind])
        spent[key] += length * factor
        count[key] += ops
    waits = report.step_time - math.fsum(spent.values())
    if waits > 1e-9 * report.step_time:
        spent["launch", WORDS["launch"]] += waits
        count["launch", WORDS["launch"]] += 1
    rows = [Cause(kind, name, seconds, count[kind, name]) for (kind, name), seconds in spent.items() if seconds > 0]
    return sorted(rows, key=lambda row: (-snapped(row.seconds), row.name))


def cause_of(op: Op) -> str:
    """What an op is, without its number: ``backward of the layers``, ``AllGather among 8 data ranks``."""
    transfer = op.collective
    if transfer is not None:
        what = _COLLECTIVES.get(transfer.kind, transfer.kind)
        return what if transfer.axis == "offload" else f"{what} among {len(transfer.group)} {transfer.axis} ranks"
    if found := _PASS.fullmatch(op.name):
        part = re.sub(r"\s*\d+$", "s", found[2]) if re.search(r"\d+$", found[2]) else found[2]
        return f"{_PASSES[found[1]]} of the {part}"
    return {"optimizer": "optimizer step", "pipeline_comm": "send between stages"}.get(op.kind, op.name)
