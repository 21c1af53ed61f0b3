"""Refit the kernel parameters of a device to published times, inside physical bounds.

The mean of |predicted / measured - 1| is minimised by simplex searches: deterministic, from the start that
validation/gemm/devices.yaml gives, not from the numbers in the device file. A parameter is named as in the device file's `gemm`;
`efficiency.fp32` is the efficiency of one type, `flash2.forward` one number of an attention implementation. `clock` describes the
machine whose products were measured, not its kind: it stands in devices.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean

from parsim.errors import Finding, ScenarioError
from parsim.hardware.device import AttentionEfficiency, Device, GemmEfficiency
from parsim.hardware.kernels import attention_time, gemm_time
from parsim.report.write import write_file
from parsim.scenario.files import find, read_text
from parsim.validation.published_kernels import BenchmarkedDevice, KernelMeasurements, ParameterFit, PublishedAttention, PublishedProduct
from parsim.validation.score import relative_error

_FIRST = 0.15
"""first step, as a share of the bounds"""
_FINEST = 1e-4
"""a search ends where its corners differ by less than this share of the error"""
_RESTARTS = 3
_OF_GEMM = frozenset(one.name for one in fields(GemmEfficiency)) - {"by_dtype"}
_OF_ATTENTION = frozenset(one.name for one in fields(AttentionEfficiency)) - {"dtype", "block", "window_backward"}


@dataclass(frozen=True, slots=True)
class Refit:
    """What a refit of one device found."""

    entry: BenchmarkedDevice
    fitted: Mapping[str, float]
    """parameter: value, rounded as it is written"""
    written: Mapping[str, float]
    """the same parameters in the device file"""
    errors: Mapping[str, tuple[float, float]]
    """type or implementation: mean |error| of the fit and of the device file over the rows of its fits"""


def refit(measured: KernelMeasurements, name: str) -> Refit:
    """Fit what the description of a device says is fitted.

    Raises:
        ScenarioError: the device is not described, nothing of it is fitted, or a parameter is unknown.
    """
    entry = measured.entries.get(name)
    if entry is None or not entry.fits:
        known = ", ".join(one for one, entry in measured.entries.items() if entry.fits)
        raise ScenarioError(Finding(f"nothing of {name!r} is fitted", "DEVICE", name, f"one of {known}"))
    base = measured.devices[name]
    machine = replace(base, clock_derate=entry.clock)
    values = {key: limits[2] for fit in entry.fits for key, limits in fit.parameters.items()}
    for key in values:
        _check(base, key)
    for _ in range(entry.rounds):
        for fit in entry.fits:
            attends = fit.rows == "attention"
            start = {key: value for key, value in values.items() if key != "clock"} if attends else values
            values |= _search(base if attends else machine, _chosen(measured, name, fit), fit, start)
    limits = {key: one for fit in entry.fits for key, one in fit.parameters.items()}
    values = {key: _rounded(value, *limits[key][:2]) for key, value in values.items()}
    errors = {}
    for of in dict.fromkeys(fit.of for fit in entry.fits):
        rows = [row for fit in entry.fits if fit.of == of for row in _chosen(measured, name, fit)]
        before = machine if isinstance(rows[0], PublishedProduct) else base
        after = with_parameters(before, {key: value for key, value in values.items() if key != "clock" or before is machine})
        errors[of] = (mean_error(after, rows), mean_error(before, rows))
    return Refit(entry, values, {key: parameter(machine, key) for key in values}, errors)


def _check(device: Device, key: str) -> None:
    group, _, name = key.rpartition(".")
    good = name in (*_OF_GEMM, "clock") if not group else group == "efficiency" or (group in device.attention and name in _OF_ATTENTION)
    if not good:
        raise ScenarioError(Finding(f"unknown parameter {key!r}", "fits", key, ", ".join(sorted(_OF_GEMM | _OF_ATTENTION))))


def with_parameters(device: Device, values: Mapping[str, float]) -> Device:
    """A device with other parameters of its kernels."""
    gemm, by_dtype, attention, clock = device.gemm, dict(device.gemm.by_dtype), dict(device.attention), device.clock_derate
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        if key == "clock":
            clock = value
        elif not group:
            gemm = replace(gemm, **{name: value})  # type: ignore[arg-type]
        elif group == "efficiency":
            by_dtype[name] = value
        else:
            attention[group] = replace(attention[group], **{name: value})  # type: ignore[arg-type]
    return replace(device, clock_derate=clock, gemm=replace(gemm, by_dtype=by_dtype), attention=attention)


def parameter(device: Device, key: str) -> float:
    """The value that a device has for a fitted parameter."""
    group, _, name = key.rpartition(".")
    if key == "clock":
        return device.clock_derate
    if group == "efficiency":
        return device.gemm.of(name)
    value = getattr(device.attention[group] if group else device.gemm, name)
    return device.kernel_latency if value is None else float(value)


def mean_error(device: Device, rows: Sequence[PublishedProduct | PublishedAttention]) -> float:
    """Mean of |predicted / measured - 1|."""

    def time(row: PublishedProduct | PublishedAttention) -> float:
        if isinstance(row, PublishedProduct):
            return max(gemm_time(device, row.gemm), row.calls)
        return attention_time(device, row.attention)

    return fmean(abs(relative_error(time(row), row.time)) for row in rows)


def _chosen(measured: KernelMeasurements, name: str, fit: ParameterFit) -> Sequence[PublishedProduct | PublishedAttention]:
    if fit.rows == "attention":
        return [row for row in measured.attention if row.device == name and row.table == fit.of]
    kind = "grouped" if fit.rows == "grouped" else "gemm"
    rows = [row for row in measured.products if row.device == name and row.kind == kind and row.gemm.dtype == fit.of]
    if fit.rows == "grouped":
        return rows
    if fit.rows == "all":
        return [row for row in rows if row.gemm.flop > 1e9]
    return [row for row in rows if (row.large and row.gemm.flop > 1e9) == (fit.rows == "large")]


def _search(
    base: Device, rows: Sequence[PublishedProduct | PublishedAttention], fit: ParameterFit, values: Mapping[str, float]
) -> dict[str, float]:
    """Parameters of the smallest mean error, from `values` on: simplex searches, each from where the last one ended."""
    if not rows:
        raise ScenarioError(Finding(f"no rows of {fit.of} ({fit.rows})", "fits"))
    limits = fit.parameters

    def at(place: Sequence[float]) -> dict[str, float]:
        return {key: low + share * (high - low) for share, (key, (low, high, _)) in zip(place, limits.items(), strict=True)}

    place = [(values[key] - low) / (high - low) for key, (low, high, _) in limits.items()]
    for _ in range(_RESTARTS):
        place = _simplex(lambda tried: mean_error(with_parameters(base, {**values, **at(tried)}), rows), place)
    return {**values, **at(place)}


def _simplex(error: Callable[[Sequence[float]], float], start: Sequence[float]) -> list[float]:
    """The minimum of `error` in the unit cube (Nelder and Mead, "A Simplex Method for Function Minimization", 1965)."""
    places = [list(start)]
    for axis, share in enumerate(start):
        places.append([*start[:axis], share + (_FIRST if share < 0.5 else -_FIRST), *start[axis + 1 :]])
    corners = sorted((error(place), place) for place in places)
    for _ in range(120 * len(start)):
        if corners[-1][0] - corners[0][0] < _FINEST * corners[0][0]:
            break
        worst = corners[-1][1]
        centre = [fmean(shares) for shares in zip(*(place for _, place in corners[:-1]), strict=True)]

        def step(length: float, centre: Sequence[float] = centre, worst: Sequence[float] = worst) -> tuple[float, list[float]]:
            place = [min(1.0, max(0.0, middle + length * (far - middle))) for middle, far in zip(centre, worst, strict=True)]
            return error(place), place

        tried_corner = step(-1.0)
        if tried_corner < corners[0]:
            tried_corner = min(tried_corner, step(-2.0))
        elif tried_corner >= corners[-2]:
            tried_corner = step(-0.5 if tried_corner < corners[-1] else 0.5)
        if tried_corner < corners[-1]:
            corners[-1] = tried_corner
        else:
            best = corners[0][1]
            near = ([(a + b) / 2 for a, b in zip(best, place, strict=True)] for _, place in corners[1:])
            corners = [corners[0], *((error(place), place) for place in near)]
        corners.sort()
    return corners[0][1]


def _rounded(value: float, low: float, high: float) -> float:
    """Three significant digits, and the bound beside it: more is not in the data."""
    near = 0.002 * (high - low)
    return low if value - low < near else high if high - value < near else float(f"{value:.3g}")


def write(refit: Refit, name: str) -> Path:
    """Write the fitted numbers into a device file, changing nothing else; its path.

    Raises:
        ScenarioError: a number does not stand in the file.
    """
    path = find("devices", name)
    text = read_text(path)
    for key, value in refit.fitted.items():
        if key == "clock":
            continue
        group, _, own = key.rpartition(".")
        section = rf"\n  {group}: {{[^\n]*?" if group not in ("", "efficiency") else r"\ngemm:\n(?:  [^\n]*\n)*?  [^\n]*?"
        label = "default" if key == "efficiency" and "efficiency: {default" in text else own
        shown = f"{value * 1e6:g} us" if key == "latency" else f"{value:g}"
        text, count = re.subn(rf"({section}\b{label}: )[0-9.e-]+( us)?", rf"\g<1>{shown}", text, count=1)
        if not count:
            raise ScenarioError(Finding(f"{key} does not stand in the file", file=str(path)))
    write_file(path, text.encode())
    return path
