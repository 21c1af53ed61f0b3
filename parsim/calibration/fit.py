"""The parameters of the analytic model that fit measured times best: what shapes far from every measured one are timed with.

Least squares of log(predicted / measured): a miss by a factor counts the same for short and long kernels. Misses beyond
`TOLERATED` count linearly (Huber's rule), so that a regime which the formula does not describe, such as products with a
single row on a CPU, does not bend the parameters of all others. Every parameter stays inside its physical bounds, and one
that the rows do not tell stays where it was: a weak prior holds it there (one scale away from the start costs as much as
one row that misses by `PRIOR`). The search goes along one parameter after the other by golden section; the model is cheap
and nearly separable in its logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from parsim.calibration.tables import Core, Product, Tables, streaming_rate
from parsim.hardware.device import AttentionEfficiency, Device
from parsim.hardware.kernels import attention_time, gemm_time
from parsim.hardware.measured import Shape, Table

PRIOR = 0.1
TOLERATED = 0.25
"""logarithm of a ratio from which on a miss counts linearly"""
_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUNDS, _STEPS = 3, 22
_EFFICIENCY = (0.01, 1.0, 0.5)
_GEMM = {"k_half": (0.0, 1024.0, 150.0), "wave_quantisation": (0.0, 1.0, 0.5), "tile_128": (0.3, 1.0, 0.3),
         "weight_gradient": (0.3, 1.0, 0.1)}  # fmt: skip
"""parameter -> lower bound, upper bound, scale of the prior"""
_ATTENTION = {"forward": _EFFICIENCY, "backward": _EFFICIENCY, "s_half": (0.0, 4096.0, 300.0), "d64": (0.3, 1.5, 0.3)}


@dataclass(frozen=True, slots=True)
class Errors:
    """|predicted / measured - 1| over some rows."""

    rows: int
    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A device with fitted parameters, and how well they describe what was measured."""

    device: Device
    gemm: Errors | None
    """of the analytic model, on the rows it was fitted to"""
    gemm_left_out: Errors | None
    """of each row, predicted from all others: what to expect of a shape between the measured ones"""
    attention: Errors | None
    attention_left_out: Errors | None
    at_bounds: tuple[str, ...]
    """fitted parameters that ended on a bound: the model wants more than physics allows"""


def fit(device: Device, tables: Tables) -> Fit:
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
    """Time by the model alone [s]."""
    return gemm_time(device, shape) if not hasattr(shape, "heads") else attention_time(device, shape)  # type: ignore[arg-type]


def _fit_gemm(device: Device, rows: Sequence[Product], bounds: list[str]) -> Device:
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

    def misses(values: dict[str, float]) -> float:
        card = with_(values)
        return math.fsum(_huber(math.log(gemm_time(card, row.shape) / row.time.seconds)) for row in rows)

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

    def misses(values: dict[str, float]) -> float:
        card = with_(values)
        return math.fsum(_huber(math.log(attention_time(card, row.shape) / row.time.seconds)) for row in rows)

    best = _search({key: getattr(table, key) for key in limits}, limits, misses)
    bounds += [f"attention.{name}.{key}" for key in _stuck(best, limits)]
    return with_(best)


def _huber(miss: float) -> float:
    return miss * miss if abs(miss) < TOLERATED else TOLERATED * (2 * abs(miss) - TOLERATED)


def _search(
    start: dict[str, float], limits: dict[str, tuple[float, float, float]], misses: Callable[[dict[str, float]], float]
) -> dict[str, float]:
    """The values within their limits with the least misses plus prior."""

    def cost(values: dict[str, float]) -> float:
        away = math.fsum(((values[name] - start[name]) / limits[name][2]) ** 2 for name in values if not name.startswith("efficiency"))
        return misses(values) + PRIOR**2 * away

    best = dict(start)
    for _ in range(_ROUNDS):
        for name, (low, high, _) in limits.items():
            best[name] = _golden(lambda value, name=name: cost({**best, name: value}), low, high)  # type: ignore[misc]
    return best


def _golden(cost: Callable[[float], float], low: float, high: float) -> float:
    """Where `cost` is least between `low` and `high`; the bounds themselves are tried, so that they can be reached."""
    ends = [(cost(low), low), (cost(high), high)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    for _ in range(_STEPS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = cost(right)
    return min([(at_left, left), (at_right, right), *ends])[1]


def _stuck(values: dict[str, float], limits: dict[str, tuple[float, float, float]]) -> list[str]:
    return [name for name, (low, high, _) in limits.items() if min(values[name] - low, high - values[name]) < 1e-3 * (high - low)]


def _left_out(device: Device, rows: Sequence[tuple[Shape, float]]) -> Errors | None:
    """Every row predicted from the others; the other pass of the same shape is left out as well."""
    pairs = []
    for number, (shape, seconds) in enumerate(rows):
        others = [row for index, row in enumerate(rows) if index != number and row[0] != shape]
        pairs.append((Table(others).time(shape, lambda other: analytic(device, other)), seconds))
    return _errors(pairs)


def _errors(pairs: Iterable[tuple[float, float]]) -> Errors | None:
    found = sorted(abs(predicted / measured - 1) for predicted, measured in pairs)
    if not found:
        return None
    return Errors(len(found), median(found), found[min(len(found) - 1, math.ceil(0.9 * len(found)) - 1)], found[-1])
