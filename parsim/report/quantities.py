"""Numbers as people read them in a report: three significant digits, a dash where there is none.

Units are named beside every number; :mod:`parsim.units` does the writing where a prefix must be chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim import units

GIB = 2**30
NONE = "–"


@dataclass(frozen=True)
class TimeUnit:
    """The one unit of a table column or an axis."""

    factor: float
    """seconds per unit"""
    name: str

    def cell(self, value: float) -> str:
        """`value` [s] as a number of this unit."""
        return cell(value / self.factor)


def time_unit(longest: float) -> TimeUnit:
    """The unit in which times up to `longest` [s] are neither tiny nor endless: s from 2 s on, else ms, else µs."""
    longest = units.snapped(longest)
    if longest >= 2.0:
        return TimeUnit(1.0, "s")
    return TimeUnit(1e-3, "ms") if longest >= 2e-3 else TimeUnit(1e-6, "µs")


def cell(value: float | None) -> str:
    """A number of a column: two decimals, fewer for large ones, ``<0.01`` for what would look like nothing."""
    if value is None:
        return NONE
    if value == 0.0:
        return "0"
    value = units.snapped(value)
    if abs(value) < 0.005:
        return "<0.01"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:,.1f}" if abs(value) >= 99.95 else f"{value:,.2f}"


def size(value: float) -> str:
    """``48 MiB``, ``4 B``."""
    return units.format_bytes(value, digits=3)


def seconds(value: float | None) -> str:
    """``1.42 s``, ``18.2 ms``."""
    return NONE if value is None else units.format_time(value, digits=3)


def rate(value: float | None) -> str:
    """``240 GB/s``."""
    return NONE if value is None else units.format_rate(value, digits=3)


def gigabytes(value: float | None) -> str:
    """A rate [B/s] as a number of GB/s."""
    return cell(None if value is None else value / 1e9)


def gib(value: float) -> str:
    """Bytes as a number of GiB: one decimal, two below 10."""
    amount = units.snapped(value / GIB) + 1e-9  # 79.25 is 79.3, whatever its last bit says
    return f"{amount:,.1f}" if abs(amount) >= 9.995 else f"{amount:.2f}"


def points(fraction: float) -> str:
    """``18.3``: a column of percentages."""
    return f"{units.snapped(100.0 * fraction):.1f}"


_ROUNDING = 1e-12
"""shares up to this are sums that missed 0"""


def percent(fraction: float | None) -> str:
    """``18 %``, ``9.4 %``, ``0.3 %``."""
    if fraction is None:
        return NONE
    value = units.snapped(100.0 * fraction) if abs(fraction) > _ROUNDING else 0.0
    return f"{value:.0f} %" if abs(value) >= 9.95 or value == 0.0 else f"{value:.1f} %"


def number(value: float | None) -> str:
    """``147,690``, ``1.25``; no unit, so only beside one."""
    if value is None:
        return NONE
    value = units.snapped(value)
    if value == 0.0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}"
