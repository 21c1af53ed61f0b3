"""The report's figures as files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from parsim.report.lanes import timeline_data
from parsim.report.plots.figure import save
from parsim.report.plots.memory import memory_figure
from parsim.report.plots.sheet import timeline_figure
from parsim.report.verdict import rank_class, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parsim.report.measured import DeviceMemory
    from parsim.report.metrics import Metrics


MOST_DEVICES = 24
"""bars of peaks in one figure"""


def timeline(report: Metrics, kind: Literal["svg", "png"] = "svg") -> bytes:
    """The step by rank, and the memory of the fullest rank."""
    return save(timeline_figure(timeline_data(report)), kind)


def memory(report: Metrics, kind: Literal["svg", "png"] = "svg") -> bytes:
    """Memory at the peak on every class of ranks, and over time on the fullest."""
    worst = report.worst_device
    return save(peaks_figure(report, None if worst is None else worst.rank, title=report.measured.name), kind)


def peaks_figure(report: Metrics, curve_of: int | None, *, title: str, width: float = 12.0) -> Figure:
    """Memory at the peak on every class of ranks, and over time on `curve_of`."""
    fullest = sorted(report.measured.memory.devices, key=lambda device: report.capacity(device) - device.device_used_bytes)
    chosen = [*fullest[:MOST_DEVICES], *(device for device in fullest[MOST_DEVICES:] if device.rank == curve_of)]
    devices = sorted(chosen, key=lambda device: device.rank)
    return memory_figure(
        devices,
        [_label(report, device) for device in devices],
        capacity=report.measured.memory.capacity_bytes - report.measured.memory.reserve_bytes,
        curve_of=curve_of,
        until=report.end,
        title=title,
        note=f"the fullest {len(devices)} of {len(fullest)} classes of ranks" if len(devices) < len(fullest) else "",
        width=width,
    )


def _label(report: Metrics, device: DeviceMemory) -> str:
    group = rank_class(report.measured, device.rank)
    name = f"rank{'s' * (group.count > 1)} {shortened(group.ranks, 16)}"
    return f"stage {group.stage} · {name}" if report.measured.schedule.stages > 1 and group.stage is not None else name
