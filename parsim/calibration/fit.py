"""The parameters of the analytic model that fit measured times best: what shapes far from every measured one are timed with.

Least squares of log(predicted / measured): a miss by a factor counts the same for short and long kernels. Misses beyond
`TOLERATED` count linearly (Huber's rule), so that a regime which the formula does not describe, such as products with a
single row on a CPU, does not bend the parameters of all others. Every parameter stays inside its physical bounds, and one
that the rows do not tell stays where it was: a weak prior holds it there (one scale away from the start costs as much as
one row that misses by `PRIOR`). Levenberg-Marquardt with differences for derivatives, rows reweighted at every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from parsim.calibration.measurements import Core, MeasuredProduct, MeasuredTables, streaming_rate
from parsim.hardware.device import AttentionEfficiency, Device
from parsim.hardware.kernels import attention_time, gemm_time
from parsim.hardware.measured import KernelTable, Shape

PRIOR = 0.1
TOLERATED = 0.25
"""logarithm of a ratio from which on a miss counts linearly"""
_STEPS = 60
_EFFICIENCY = (0.01, 1.0, 0.3)
_GEMM = {"k_half": (0.0, 1024.0, 150.0), "wave_quantisation": (0.0, 1.0, 0.5), "tile_128": (0.3, 1.0, 0.3),
         "weight_gradient": (0.3, 1.0, 0.1)}  # fmt: skip
"""parameter -> lower bound, upper bound, scale of the prior"""
_ATTENTION = {"forward": _EFFICIENCY, "backward": _EFFICIENCY, "s_half": (0.0, 4096.0, 300.0), "d64": (0.3, 1.5, 0.3)}


@dataclass(frozen=True, slots=True)
class FitErrors:
    """|predicted / measured - 1| over some rows."""

    rows: int
    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A device with fitted parameters, and how well they describe what was measured."""

    device: Device
    gemm: FitErrors | None
    """of the analytic model, on the rows it was fitted to"""
    gemm_left_out: FitErrors | None
    """of each row, predicted from all others: what to expect of a shape between the measured ones"""
    attention: FitErrors | None
    attention_left_out: FitErrors | None
    at_bounds: tuple[str, ...]
    """fitted parameters that ended on a bound: the model wants more than physics allows"""


def fit(device: Device, tables: MeasuredTables) -> Fit:
    """`device` with the parameters that describe `tables` best; what was not measured stays as it was."""
    bounds: list[str] = []
    latency = device.kernel_latency if tables.kernel is None else tables.kernel.seconds
    efficiency = device.memory_efficiency
    if tables.copy:
        efficiency = min(1.0, max(0.01, streaming_rate(tables.copy) / device.bandwidth))
    device = replace(device, kernel_latency=latency, memory_efficiency=efficiency, measured=None)
    if tables.gemm:
        device = _fit_gemm(device, tables.gemm, bounds)
    for name in dict.fromkeys(row.shape.implementation for row in tables.attention):
        device = _fit_attention(device, name, [row for row in tables.attention if row.shape.implementation == name], bounds)
    products = [(row.shape, row.time.seconds) for row in tables.gemm]
    cores = [(row.shape, row.time.seconds) for row in tables.attention]
    return Fit(
        device=device,
        gemm=_errors((analytic(device, shape), seconds) for shape, seconds in products),
        gemm_left_out=_left_out(device, products),
        attention=_errors((analytic(device, shape), seconds) for shape, seconds in cores),
        attention_left_out=_left_out(device, cores),
        at_bounds=tuple(bounds),
    )


def analytic(device: Device, shape: Shape) -> float:
    """Time of a kernel by the analytic model, without measured tables [s]."""
    return gemm_time(device, shape) if not hasattr(shape, "heads") else attention_time(device, shape)  # type: ignore[arg-type]


def _fit_gemm(device: Device, rows: Sequence[MeasuredProduct], bounds: list[str]) -> Device:
    dtypes = tuple(dict.fromkeys(row.shape.dtype for row in rows))
    first = next((dtype for dtype in ("bf16", "fp16") if dtype in dtypes), dtypes[0])
    start = {f"efficiency {dtype}": device.gemm.of(dtype) for dtype in dtypes}
    limits = {f"efficiency {dtype}": _EFFICIENCY for dtype in dtypes}
    passes = {row.step for row in rows}
    for name, limit in _GEMM.items():
        if name != "weight_gradient" or "backward_weight" in passes:
            start[name], limits[name] = getattr(device.gemm, name), limit

    def with_(values: dict[str, float]) -> Device:
        by_dtype = {**device.gemm.by_dtype, **{dtype: values[f"efficiency {dtype}"] for dtype in dtypes}}
        rest = {name: value for name, value in values.items() if name in _GEMM}
        # data types that were not measured keep their own efficiency, or get the one of the training type
        return replace(device, gemm=replace(device.gemm, efficiency=by_dtype[first], by_dtype=by_dtype, **rest))

    def misses(values: dict[str, float]) -> list[float]:
        card = with_(values)
        return [math.log(gemm_time(card, row.shape) / row.time.seconds) for row in rows]

    best = _search(start, limits, misses)
    bounds += [f"gemm.{name}" for name in _stuck(best, limits)]
    return with_(best)


def _fit_attention(device: Device, name: str, rows: Sequence[Core], bounds: list[str]) -> Device:
    table = device.attention.get(name) or AttentionEfficiency(0.4, 0.3)
    limits = dict(_ATTENTION)
    if not any(row.shape.backward for row in rows):
        limits.pop("backward")
    if not any(row.shape.head_dim <= 64 for row in rows) or all(row.shape.head_dim <= 64 for row in rows):
        limits.pop("d64")  # one head size alone cannot tell it from the efficiency
    if all(row.shape.backward for row in rows):
        limits.pop("forward")

    def with_(values: dict[str, float]) -> Device:
        return replace(device, attention={**device.attention, name: replace(table, **values)})  # type: ignore[arg-type]

    def misses(values: dict[str, float]) -> list[float]:
        card = with_(values)
        return [math.log(attention_time(card, row.shape) / row.time.seconds) for row in rows]

    best = _search({key: getattr(table, key) for key in limits}, limits, misses)
    bounds += [f"attention.{name}.{key}" for key in _stuck(best, limits)]
    return with_(best)


def _search(
    start: dict[str, float], limits: dict[str, tuple[float, float, float]], misses: Callable[[dict[str, float]], list[float]]
) -> dict[str, float]:
    """The values within their limits with the least misses plus prior; `misses` are logarithms of ratios."""
    import numpy as np

    names = list(limits)
    low, high, scale = (np.array([limits[name][column] for name in names]) for column in range(3))
    first = np.array([start[name] for name in names])
    held = np.array([0.0 if name.startswith("efficiency") else PRIOR for name in names])

    def residuals(point: Any) -> Any:
        return np.concatenate([misses(dict(zip(names, point.tolist(), strict=True))), held * (point - first) / scale])

    def cost(residual: Any) -> float:
        size = np.abs(residual)
        return float(np.sum(np.where(size < TOLERATED, size**2, TOLERATED * (2 * size - TOLERATED))))

    point = np.clip(first, low, high)
    residual = residuals(point)
    damping = 1e-3
    for _ in range(_STEPS):
        step = np.where(point + 1e-4 * scale <= high, 1e-4, -1e-4) * scale
        slopes = np.array([residuals(point + step * unit) - residual for unit in np.eye(len(names))]).T / step * scale
        weight = np.minimum(1.0, TOLERATED / np.maximum(np.abs(residual), 1e-12))
        normal = slopes.T @ (slopes * weight[:, None])
        pull = slopes.T @ (weight * residual)
        # a parameter on its bound that is pulled outwards stays there
        free = ~(((point <= low) & (pull > 0)) | ((point >= high) & (pull < 0)))
        if not free.any():
            break
        inner = normal[np.ix_(free, free)]
        move = np.zeros(len(names))
        move[free] = -np.linalg.solve(inner + damping * np.diag(np.diag(inner) + 1e-9), pull[free])
        candidate = np.clip(point + move * scale, low, high)
        tried = residuals(candidate)
        if cost(tried) < cost(residual):
            done = cost(residual) - cost(tried) < 1e-9
            point, residual, damping = candidate, tried, damping / 5
            if done:
                break
        else:
            damping *= 5
            if damping > 1e9:
                break
    return dict(zip(names, point.tolist(), strict=True))


def _stuck(values: dict[str, float], limits: dict[str, tuple[float, float, float]]) -> list[str]:
    return [name for name, (low, high, _) in limits.items() if min(values[name] - low, high - values[name]) < 1e-3 * (high - low)]


def _left_out(device: Device, rows: Sequence[tuple[Shape, float]]) -> FitErrors | None:
    """Every row predicted from the others; the other pass of the same shape is left out as well."""
    pairs = []
    for number, (shape, seconds) in enumerate(rows):
        others = [row for index, row in enumerate(rows) if index != number and row[0] != shape]
        pairs.append((KernelTable(others).time(shape, lambda other: analytic(device, other)), seconds))
    return _errors(pairs)


def _errors(pairs: Iterable[tuple[float, float]]) -> FitErrors | None:
    misses = sorted(abs(predicted / measured - 1) for predicted, measured in pairs)
    if not misses:
        return None
    return FitErrors(len(misses), median(misses), misses[min(len(misses) - 1, math.ceil(0.9 * len(misses)) - 1)], misses[-1])
