"""Refit the matrix-product parameters of a device to published times, inside physical bounds.

The mean of |predicted / measured - 1| is minimised by a pattern search: deterministic, from the start that
validation/gemm/devices.yaml gives, not from the numbers in the device file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean

from parsim.errors import Finding, ScenarioError
from parsim.hardware.device import Device, GemmEfficiency
from parsim.hardware.kernels import gemm_time
from parsim.scenario.files import find, read_text
from parsim.study.kernel_measurements import Entry, Fit, KernelMeasurements, Product

_FINEST = 2e-4
"""smallest step, as a share of the bounds"""
_SCALARS = frozenset(one.name for one in fields(GemmEfficiency)) - {"by_dtype"}
_EFFICIENCY = "efficiency."
"""prefix of the efficiency of one dtype, as in efficiency.fp32"""


@dataclass(frozen=True, slots=True)
class Refit:
    """What a refit of one device found."""

    entry: Entry
    fitted: Mapping[str, float]
    """parameter: value, rounded as it is written"""
    written: Mapping[str, float]
    """the same parameters in the device file"""
    errors: Mapping[str, tuple[float, float]]
    """dtype: mean |error| of the fit and of the device file over the rows of the fits"""


def refit(measured: KernelMeasurements, name: str) -> Refit:
    """Fit what the description of a device says is fitted.

    Raises:
        ScenarioError: the device is not described, or nothing of it is fitted.
    """
    entry = measured.entries.get(name)
    if entry is None or not entry.fits:
        known = ", ".join(one for one, entry in measured.entries.items() if entry.fits)
        raise ScenarioError(Finding(f"nothing of {name!r} is fitted", "DEVICE", name, f"one of {known}"))
    base = measured.devices[name]
    values = {key: limits[2] for fit in entry.fits for key, limits in fit.parameters.items()}
    unknown = [key for key in values if key not in _SCALARS and not key.startswith(_EFFICIENCY)]
    if unknown:
        raise ScenarioError(Finding(f"unknown parameter {unknown[0]!r}", f"devices.{name}.fits", unknown[0], ", ".join(sorted(_SCALARS))))
    for _ in range(entry.rounds):
        for fit in entry.fits:
            values |= _search(base, _chosen(measured, name, fit), fit, values)
    values = {key: _rounded(value) for key, value in values.items()}
    errors = {}
    for fit in entry.fits:
        rows = [row for one in entry.fits if one.dtype == fit.dtype for row in _chosen(measured, name, one)]
        errors[fit.dtype] = (mean_error(with_parameters(base, values), rows), mean_error(base, rows))
    return Refit(entry, values, {key: parameter(base, key) for key in values}, errors)


def with_parameters(device: Device, values: Mapping[str, float]) -> Device:
    """A device with other parameters of its matrix products."""
    by_dtype = {key.removeprefix(_EFFICIENCY): value for key, value in values.items() if key.startswith(_EFFICIENCY)}
    scalars = {key: value for key, value in values.items() if not key.startswith(_EFFICIENCY)}
    return replace(device, gemm=replace(device.gemm, by_dtype={**device.gemm.by_dtype, **by_dtype}, **scalars))  # type: ignore[arg-type]


def parameter(device: Device, name: str) -> float:
    """The value of a parameter."""
    if name.startswith(_EFFICIENCY):
        return device.gemm.of(name.removeprefix(_EFFICIENCY))
    value = getattr(device.gemm, name)
    return device.kernel_latency if value is None else float(value)


def mean_error(device: Device, rows: Sequence[Product]) -> float:
    """Mean of |predicted / measured - 1|."""
    return fmean(abs(gemm_time(device, row.gemm) / row.time - 1.0) for row in rows)


def _chosen(measured: KernelMeasurements, name: str, fit: Fit) -> list[Product]:
    rows = [row for row in measured.products if row.device == name and row.kind == "gemm" and row.gemm.dtype == fit.dtype]
    big = [row for row in rows if row.gemm.flop > 1e9]
    match fit.rows:
        case "large":
            return [row for row in big if row.large]
        case "rest":
            return [row for row in rows if not (row.large and row.gemm.flop > 1e9)]
        case "all":
            return big
    return rows


def _search(base: Device, rows: Sequence[Product], fit: Fit, values: Mapping[str, float]) -> dict[str, float]:
    """Coordinate steps that halve when none helps, from `values` to a minimum of the mean error."""
    if not rows:
        raise ScenarioError(Finding(f"no {fit.dtype} rows ({fit.rows})", "fits"))
    found = dict(values)
    best = mean_error(with_parameters(base, found), rows)
    share = 1 / 8
    while share > _FINEST:
        moved = False
        for key, (low, high, _) in fit.parameters.items():
            for sign in (1, -1):
                tried = {**found, key: min(high, max(low, found[key] + sign * share * (high - low)))}
                error = mean_error(with_parameters(base, tried), rows)
                if error < best - 1e-9:
                    found, best, moved = tried, error, True
                    break
        if not moved:
            share /= 2
    return found


def _rounded(value: float) -> float:
    """Three significant digits: more is not in the data."""
    return float(f"{value:.3g}")


def write(found: Refit, name: str) -> Path:
    """Write the fitted numbers into a device file, changing nothing else; its path.

    Raises:
        ScenarioError: a number does not stand in the file.
    """
    path = find("devices", name)
    text = read_text(path)
    head, rest = text.split("\ngemm:\n", 1)
    for key, value in found.fitted.items():
        own = key.removeprefix(_EFFICIENCY)
        label = own if own != key else "default" if key == "efficiency" and "efficiency: {" in rest else key
        shown = f"{value * 1e6:g} us" if key == "latency" else f"{value:g}"
        rest, count = re.subn(rf"(\b{label}: )[0-9.e-]+( us)?", rf"\g<1>{shown}", rest, count=1)
        if not count:
            raise ScenarioError(Finding(f"gemm.{key} does not stand in the file", file=str(path)))
    path.write_text(f"{head}\ngemm:\n{rest}")
    return path
