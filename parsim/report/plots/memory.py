"""Device memory by category: over the step on one rank, and at its peak on every class of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator

from parsim.report.lanes import timeline_data
from parsim.report.measured import CATEGORIES, DeviceMemory, MemoryCurve
from parsim.report.plots import style
from parsim.report.plots.figure import dress, extent, font_size, fonts, heading, legend_below, new_figure
from parsim.report.plots.gaps import mark_gaps
from parsim.report.quantities import GIB, TimeUnit, gib, time_unit
from parsim.report.shortened import ShortAxis, cut_curve, short_axis
from parsim.report.verdict import rank_class, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parsim.report.measured import DeviceMemory
    from parsim.report.metrics import Metrics
    from parsim.report.timeline import Floats

MOST_DEVICES = 24
"""bars of peaks in one figure"""
MOST_POINTS = 1_200
"""time points drawn; the peak survives"""
_ABOVE = 7.0
"""where texts stand: also above the gaps of a cut axis"""
_GROUND = {"facecolor": (style.PAPER, 0.7), "edgecolor": "none", "pad": 0.3}
"""of texts that may stand on a line or an area"""
_NEAR = 0.25
"""a capacity more than four times what is used would flatten the picture"""


class Look(NamedTuple):
    """How large and how detailed a memory plot is drawn."""

    size: float = 10.0
    """of the text [pt]"""
    short: bool = False
    """few words, for narrow figures"""
    most: int = MOST_POINTS
    """time points"""
    legend: bool = True
    tensors: float = 0.0
    """the highest point of the whole curve [GiB], where only parts of it are drawn"""
    above: float = 0.0
    """name the lines so far above the axes, in sizes of the text, where their names would cover each other within them; 0: within"""


WIDE = Look()


def plot_memory(
    curve: MemoryCurve,
    ax: Axes | None = None,
    *,
    capacity: int | None = None,
    unit: TimeUnit | None = None,
    rank: int | None = None,
    until: float | None = None,
    used: int | None = None,
    look: Look = WIDE,
) -> Axes:
    """Stacked areas of one rank over time [GiB], with the capacity line and the highest point marked.

    The last level holds until `until` [s]. `used` is the peak of the device memory in use: more than the areas show where
    the allocator keeps segments that hold no tensor.
    """
    with fonts(size=look.size):
        if ax is None:
            ax = new_figure(12.0, 4.0).add_subplot()
        times, levels = curve.thinned(look.most)
        if until is not None and len(times) and until > times[-1]:
            times = np.append(times, until)
            levels = {category: np.append(volume, volume[-1]) for category, volume in levels.items()}
        unit = time_unit(float(times[-1]) if len(times) else 0.0) if unit is None else unit
        total = _areas(ax, times / unit.factor, levels)
        peak = float(total.max(initial=0.0))
        highest = max(peak, look.tensors, (used or 0) / GIB, 1e-9)
        beyond = used is not None and used / GIB > 1.005 * max(peak, look.tensors)
        if len(total) and peak >= look.tensors - 1e-9:
            _mark_peak(ax, times / unit.factor, total, "" if beyond else f"{gib(peak * GIB)} GiB")
        if used is not None and beyond:
            _used_line(ax, used, look.tensors or peak, look)
        room = 1.12 if look.above else 1.7 if look.short else 1.3
        top = 1.12 * highest if capacity is None else _capacity_line(ax, capacity, highest, room, look)
        if look.above:
            lines = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
            kind = {"frameon": False, "fontsize": "small", "labelcolor": style.INK, "borderaxespad": look.above}
            ax.legend(handles=lines, loc="lower left", bbox_to_anchor=(0.0, 1.0), **kind)
        ax.set_ylim(0.0, top)
        ax.yaxis.set_major_locator(MaxNLocator(3 if look.short else 6))
        ax.set_xlabel(f"time [{unit.name}]")
        ax.set_ylabel("memory [GiB]" if rank is None else f"rank {rank} [GiB]" if look.short else f"memory of rank {rank} [GiB]")
        dress(ax, look.size)
        ax.margins(x=0.0)
        if look.legend:
            handles, labels = ax.get_legend_handles_labels()
            kind = {"frameon": False, "fontsize": "small", "labelcolor": style.INK}
            ax.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), **kind)
    return ax


def _areas(ax: Axes, times: Floats, levels: Mapping[str, Floats]) -> Floats:
    """Draw the stack, lowest category first; returns its height [GiB]."""
    below = np.zeros(len(times))
    for category, volume in levels.items():
        if not volume.any():
            continue
        look = style.memory_style(category)
        above = below + volume / GIB
        # A flat category on flat ones needs two points, not all.
        moves = (np.diff(below) != 0.0) | (np.diff(above) != 0.0)
        kept = np.union1d(np.flatnonzero(np.concatenate(([True], moves))), [len(times) - 1])
        ax.fill_between(
            times[kept], below[kept], above[kept], step="post", facecolor=(look.colour, 0.8), edgecolor=look.colour,
            hatch=look.hatch or None, linewidth=0.3, label=look.label,
        )  # fmt: skip
        below = above
    return below


def plot_peaks(
    devices: Sequence[DeviceMemory], labels: Sequence[str], ax: Axes | None = None, *, capacity: int | None = None, size: float = 10.0
) -> Axes:
    """One stacked bar per class of ranks: what its peak is made of [GiB]; `size` of the text [pt]."""
    with fonts(size=size):
        if ax is None:
            ax = new_figure(12.0, 1.6 + 0.32 * len(devices)).add_subplot()
        left = np.zeros(len(devices))
        categories = dict.fromkeys((*CATEGORIES, *(name for device in devices for name in device.at_peak)))
        for category in categories:
            volume = np.array([device.at_peak.get(category, 0) for device in devices]) / GIB
            if not volume.any():
                continue
            look = style.memory_style(category)
            ax.barh(
                np.arange(len(devices)), volume, left=left, height=0.7, facecolor=(look.colour, 0.8), edgecolor=look.colour,
                hatch=look.hatch or None, linewidth=0.5, label=look.label,
            )  # fmt: skip
            left += volume
        for place, total in enumerate(left):
            ax.annotate(
                f"{gib(total * GIB)}",
                (total, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
                color=style.INK,
            )
        if capacity is not None:
            ax.axvline(capacity / GIB, color=style.CAPACITY, linestyle="--", linewidth=1.2)
        ax.set_yticks(range(len(devices)), labels)
        ax.set_ylim(len(devices) - 0.4, -0.6)
        ax.set_xlim(0.0, 1.1 * max(float(left.max(initial=0.0)), (capacity or 0) / GIB, 1e-9))
        ax.set_xlabel("memory at the peak [GiB]")
        dress(ax, size)
        ax.tick_params(axis="y", length=0)
    return ax


def memory_figure(
    devices: Sequence[DeviceMemory],
    labels: Sequence[str],
    *,
    capacity: int | None = None,
    curve_of: int | None = None,
    until: float | None = None,
    title: str = "",
    axis: ShortAxis | None = None,
    width: float = 12.0,
) -> Figure:
    """At the peak on each of `devices`; above it over time on rank `curve_of`, if that is given and its curve is known; on a cut `axis`
    where one is given.
    """
    chosen = next((device for device in devices if device.rank == curve_of), None)
    size = font_size(width)
    peaks = (1.0 + 0.32 * len(devices)) * size / 10.0
    with fonts(title, size):
        if chosen is None or chosen.curve is None:
            figure = new_figure(width, peaks + 1.0)
            below = figure.add_subplot()
        else:
            over = min(4.0, 0.33 * width)
            figure = new_figure(width, peaks + over + (0.4 if width > 9.0 else 0.9 if width >= 5.0 else 1.5))
            above, below = figure.subplots(2, 1, height_ratios=(over, peaks))
            unit = time_unit(float(chosen.curve.times[-1]) if len(chosen.curve.times) else 0.0)
            plot_memory(
                chosen.curve if axis is None else cut_curve(chosen.curve, axis), above, capacity=capacity, rank=curve_of, unit=unit,
                until=until if axis is None else axis.end, used=chosen.device_used_bytes,
                look=Look(size, short=width < 9.0, most=round(36.0 * width), legend=False, tensors=highest_level(chosen.curve),
                    above=0.0 if width >= 5.0 else 0.4 if axis is None else 2.6),
            )  # fmt: skip
            if axis is not None:
                figure.draw_without_rendering()  # places the axes
                mark_gaps(above, axis, unit, size)
                lines = wrap(
                    axis.note, max(20, int((0.6 if width < 5.0 else 0.82) * width * len(axis.note) / extent(axis.note, 0.833 * size)))
                )
                space = "\n" * (5 if width < 5.0 else 1)  # for what stands above the axes already
                above.set_title("\n".join(lines) + space, loc="left", fontsize="small", color=style.INK)
        plot_peaks(devices, labels, below, capacity=capacity, size=size)
        handles, names = below.get_legend_handles_labels()
        columns = 2 if width < 5.0 else 4 if width < 9.0 else 6
        legend_below(figure, handles, names, columns=columns)
        heading(figure, title, size)
    return figure


def highest_level(curve: MemoryCurve) -> float:
    """The highest point of a stack [GiB]."""
    return float(np.sum([np.asarray(volume, dtype=np.float64) for volume in curve.bytes.values()], axis=0).max(initial=0.0)) / GIB


def _capacity_line(ax: Axes, capacity: int, highest: float, room: float, look: Look) -> float:
    """Draw the capacity, or say that it is far above; returns where the axis should end [GiB]."""
    level = capacity / GIB
    text = f"capacity {gib(capacity)} GiB"
    near = highest >= _NEAR * level
    end = 1.12 * max(highest, level) if near else room * highest
    if near:
        ax.axhline(level, color=style.CAPACITY, linestyle="--", linewidth=1.2, label=text if look.above else None)
    if look.above:
        if not near:
            ax.plot([], [], color=style.CAPACITY, linestyle="--", linewidth=1.2, label=f"{text}, far above")
        return end
    ax.annotate(
        text if near else f"{text}, far above", (1.0, level if near else 1.0),
        xycoords=("axes fraction", "data" if near else "axes fraction"), xytext=(-4, 3 if near else -3), textcoords="offset points",
        ha="right", va="bottom" if near else "top", fontsize="small", color=style.CAPACITY, zorder=_ABOVE,
        bbox=_GROUND,
    )  # fmt: skip
    return end


def _used_line(ax: Axes, used: int, tensors: float, look: Look) -> None:
    text = f"most in use {gib(used)} GiB, with what the allocator caches; without it {gib(tensors * GIB)} GiB"
    if look.short:
        text = f"in use {gib(used)} GiB, {gib(tensors * GIB)} in tensors"
    ax.axhline(used / GIB, color=style.INK, linestyle=":", linewidth=1.0, label=text if look.above else None)
    if look.above:
        return
    ax.annotate(
        text, (0.0, used / GIB), xycoords=("axes fraction", "data"),
        xytext=(4, 2), textcoords="offset points", ha="left", va="bottom", fontsize="small", color=style.INK, zorder=_ABOVE,
        bbox=_GROUND,
    )  # fmt: skip


def _mark_peak(ax: Axes, times: Floats, total: Floats, text: str) -> None:
    place = int(total.argmax())
    x, y = float(times[place]), float(total[place])
    right = len(times) > 1 and x > float(times[0] + 0.7 * (times[-1] - times[0]))
    ax.plot([x], [y], marker="o", markersize=3, color=style.INK)
    ax.annotate(
        text, (x, y), xytext=(-6 if right else 6, 4), textcoords="offset points",
        ha="right" if right else "left", va="bottom", fontsize="small", color=style.INK, zorder=_ABOVE,
    )  # fmt: skip


def peaks_figure(report: Metrics, curve_of: int | None, *, title: str, width: float = 12.0) -> Figure:
    """Memory at the peak on every class of ranks, and over time on `curve_of`."""
    fullest = sorted(report.measured.memory.devices, key=lambda device: report.capacity(device) - device.device_used_bytes)
    chosen = [*fullest[:MOST_DEVICES], *(device for device in fullest[MOST_DEVICES:] if device.rank == curve_of)]
    devices = sorted(chosen, key=lambda device: device.rank)
    figure = memory_figure(
        devices,
        [_label(report, device) for device in devices],
        capacity=report.measured.memory.capacity_bytes - report.measured.memory.reserve_bytes,
        curve_of=curve_of,
        until=report.end,
        title=title,
        axis=None if curve_of is None else short_axis(timeline_data(report, [curve_of], memory=False), 60.0 * width),
        width=width,
    )
    if len(devices) < len(fullest):
        note = f"the fullest {len(devices)} of {len(fullest)} classes of ranks"
        figure.axes[-1].set_title(note, loc="right", fontsize="small", color=style.INK)
    return figure


def _label(report: Metrics, device: DeviceMemory) -> str:
    group = rank_class(report.measured, device.rank)
    name = f"rank{'s' * (group.count > 1)} {shortened(group.ranks, 16)}"
    return f"stage {group.stage} · {name}" if report.measured.schedule.stages > 1 and group.stage is not None else name
