"""Device memory by category: over the step on one rank, and at its peak on every class of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from parsim.report.measured import CATEGORIES, DeviceMemory, MemoryCurve
from parsim.report.plots import style
from parsim.report.plots.figure import dress, fonts, new_figure
from parsim.report.quantities import GIB, TimeUnit, gib, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parsim.report.timeline import Floats

MOST_POINTS = 1_200
"""time points drawn; the peak survives"""
_DEVICES = 24


def plot_memory(
    curve: MemoryCurve,
    ax: Axes | None = None,
    *,
    capacity: int | None = None,
    unit: TimeUnit | None = None,
    rank: int | None = None,
    until: float | None = None,
) -> Axes:
    """Stacked areas of one rank over time [GiB], with the capacity line and the peak marked.

    The last level holds until `until` [s].
    """
    with fonts():
        if ax is None:
            ax = new_figure(12.0, 4.0).add_subplot()
        times, levels = curve.thinned(MOST_POINTS)
        if until is not None and len(times) and until > times[-1]:
            times = np.append(times, until)
            levels = {category: np.append(volume, volume[-1]) for category, volume in levels.items()}
        unit = time_unit(float(times[-1]) if len(times) else 0.0) if unit is None else unit
        below = np.zeros(len(times))
        for category, volume in levels.items():
            if not volume.any():
                continue
            look = style.memory_style(category)
            above = below + volume / GIB
            # A category that stays flat over flat ones needs two points, not all.
            kept = np.flatnonzero(np.concatenate(([True], (np.diff(below) != 0) | (np.diff(above) != 0), [True]))[: len(times)])
            kept = np.union1d(kept, [len(times) - 1])
            ax.fill_between(
                times[kept] / unit.factor, below[kept], above[kept], step="post", facecolor=(look.colour, 0.8), edgecolor=look.colour,
                hatch=look.hatch or None, linewidth=0.3, label=look.label,
            )  # fmt: skip
            below = above
        if capacity is not None:
            _capacity_line(ax, capacity)
        if len(below):
            _mark_peak(ax, times / unit.factor, below)
        ax.set_ylim(0.0, 1.12 * max(float(below.max(initial=0.0)), (capacity or 0) / GIB, 1e-9))
        ax.yaxis.set_major_locator(MaxNLocator(6))
        ax.set_xlabel(f"time [{unit.name}]")
        ax.set_ylabel("memory [GiB]" if rank is None else f"memory of rank {rank} [GiB]")
        dress(ax)
        ax.margins(x=0.0)
        handles, labels = ax.get_legend_handles_labels()
        ax.legend(
            handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small", labelcolor=style.INK
        )
    return ax


def plot_peaks(devices: Sequence[DeviceMemory], labels: Sequence[str], ax: Axes | None = None, *, capacity: int | None = None) -> Axes:
    """One stacked bar per class of ranks: what its peak is made of [GiB]."""
    with fonts():
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
        dress(ax)
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
) -> Figure:
    """Over time on rank `curve_of` if its curve is known, and at the peak on every class (the fullest first)."""
    shown = list(devices[:_DEVICES])
    curve = next((device.curve for device in devices if device.rank == curve_of and device.curve is not None), None)
    peaks = 1.0 + 0.32 * len(shown)
    with fonts(title):
        figure = new_figure(12.0, peaks + (4.0 if curve is not None else 0.6))
        if curve is None:
            below = figure.subplots()
        else:
            above, below = figure.subplots(2, 1, height_ratios=(4.0, peaks))
            plot_memory(curve, above, capacity=capacity, rank=curve_of, until=until)
        plot_peaks(shown, labels[: len(shown)], below, capacity=capacity)
        if len(shown) < len(devices):
            below.set_title(f"the fullest {len(shown)} of {len(devices)} classes of ranks", loc="right", fontsize="small", color=style.INK)
        figure.suptitle(title, x=0.01, ha="left", color=style.INK)
    return figure


def _capacity_line(ax: Axes, capacity: int) -> None:
    ax.axhline(capacity / GIB, color=style.CAPACITY, linestyle="--", linewidth=1.2)
    ax.annotate(
        f"capacity {gib(capacity)} GiB", (1.0, capacity / GIB), xycoords=("axes fraction", "data"), xytext=(-4, 3),
        textcoords="offset points", ha="right", va="bottom", fontsize="small", color=style.CAPACITY,
    )  # fmt: skip


def _mark_peak(ax: Axes, times: Floats, total: Floats) -> None:
    place = int(total.argmax())
    x, y = float(times[place]), float(total[place])
    right = len(times) > 1 and x > float(times[0] + 0.7 * (times[-1] - times[0]))
    ax.plot([x], [y], marker="o", markersize=4, color=style.INK)
    ax.annotate(
        f"peak {gib(y * GIB)} GiB", (x, y), xytext=(-6 if right else 6, 4), textcoords="offset points",
        ha="right" if right else "left", va="bottom", fontsize="small", color=style.INK,
    )  # fmt: skip
