"""Times that were measured on a device, and how far they reach.

A shape that was measured takes the time that was measured. A shape near measured ones takes its analytic time times a
ratio: with d_i the distance to row i in octaves (the Euclidean norm of the differences of log2 of every dimension) and
r_i = measured / analytic time of that row,

    w_i = (1 / d_i - 1 / R)^2,   log r = T sum(w_i log r_i) / sum(w_i)   over the rows with d_i < R,

the modified Shepard weights of Franke and Nielson (Int. J. Numer. Methods Eng. 15, 1980, 1691-1704). R = 2: rows beyond a
factor of four in one dimension do not count. T = min(1, (R - d) / (R - 1)) with d the distance to the nearest row lets the
ratio fade to 1 where nothing near was measured, so that there is no jump. The ratio stays within 1/8 ... 8, and no
interpolated time beats the dense peak. Far shapes take the analytic time. Rows are compared only with kernels of their own
kind: data type, forward or weight gradient, implementation, causal or not.

Copies and optimizer steps have one dimension, bytes: the time is interpolated in log-log space. Below the smallest row
the time above the launch shrinks with the bytes, above the largest the bandwidth stays.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from parsim.kernel import Attention, Gemm

REACH = 2.0
"""distance from which on a measured shape says nothing about another [octaves]"""
LARGEST_RATIO = 8.0
"""bound of measured / analytic time, and of its inverse, for shapes that were not measured themselves"""
_SAME = 1e-9

Shape = Gemm | Attention


def kind_of(shape: Shape) -> Hashable:
    """What two kernels must share for one to tell something about the other."""
    if isinstance(shape, Gemm):
        return shape.dtype, shape.weight_gradient
    return shape.implementation, shape.dtype, shape.backward, shape.causal, bool(shape.window)


def position(shape: Shape) -> tuple[float, ...]:
    """Where a kernel lies in the space of shapes [octaves]."""
    if isinstance(shape, Gemm):
        sizes: tuple[float, ...] = (shape.m, shape.n, shape.k, shape.batch)
    else:
        value_dim = shape.value_dim or shape.head_dim
        group = shape.heads / shape.kv_heads
        sizes = (shape.batch * shape.heads, group, shape.queries, shape.keys, shape.head_dim, value_dim / shape.head_dim, shape.window or 1)
    return tuple(map(math.log2, sizes))


class Table:
    """Measured kernels by shape; rows of the same shape (a product forward and backward) count as their geometric mean."""

    def __init__(self, rows: Iterable[tuple[Shape, float]] = ()) -> None:
        self._times: dict[Hashable, dict[tuple[float, ...], tuple[Shape, list[float]]]] = {}
        self.rows = tuple(rows)
        """kernel and measured time [s]"""
        for shape, seconds in self.rows:
            same = self._times.setdefault(kind_of(shape), {})
            same.setdefault(position(shape), (shape, []))[1].append(seconds)

    def time(self, shape: Shape, analytic: Callable[[Shape], float], least: float = 0.0) -> float:
        """Time of `shape` [s]: measured, or interpolated and not below `least`, or `analytic`."""
        known = self._times.get(kind_of(shape))
        if not known:
            return analytic(shape)
        here = position(shape)
        nearest, total, weighted = math.inf, 0.0, 0.0
        for there, (other, seconds) in known.items():
            distance = math.dist(here, there)
            if distance >= REACH:
                continue
            logarithm = math.fsum(map(math.log, seconds)) / len(seconds)
            if distance < _SAME:
                return math.exp(logarithm)
            weight = (1 / distance - 1 / REACH) ** 2
            nearest = min(nearest, distance)
            total += weight
            weighted += weight * (logarithm - math.log(analytic(other)))
        expected = analytic(shape)
        if not total:
            return expected
        trust = min(1.0, (REACH - nearest) / (REACH - 1))
        bound = math.log(LARGEST_RATIO)
        ratio = math.exp(max(-bound, min(bound, trust * weighted / total)))
        return max(expected * ratio, min(least, expected))


class Curve:
    """Measured time over bytes of one kind of memory-bound work."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        self.points = tuple(sorted(points))
        """bytes read plus written [B] and time [s]"""
        self._sizes = [size for size, _ in self.points]

    def time(self, size: float, latency: float) -> float:
        """Time of one kernel that moves `size` bytes [s]; `latency` is what an empty one takes [s]."""
        index = bisect_left(self._sizes, size)
        if index < len(self.points) and self._sizes[index] == size:
            return self.points[index][1]
        if index == 0:
            least, seconds = self.points[0]
            fixed = min(latency, seconds)
            return fixed + (seconds - fixed) * size / least
        if index == len(self.points):
            most, seconds = self.points[-1]
            return seconds * size / most
        (low, first), (high, last) = self.points[index - 1 : index + 1]
        share = math.log(size / low) / math.log(high / low)
        return math.exp(math.log(first) + share * math.log(last / first))


@dataclass(frozen=True, slots=True)
class Launch:
    """What it takes to start a kernel."""

    kernel: float
    """time of the smallest kernel on the device [s]"""
    issue: float | None = None
    """time the host needs to issue one operation [s]; what `software.host` takes per kernel if nobody states it"""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The measured tables of a device; empty ones leave their kernels to the analytic model."""

    gemm: Table = field(default_factory=Table)
    attention: Table = field(default_factory=Table)
    copy: Curve | None = None
    optimizer: Mapping[str, Curve] = field(default_factory=dict)
    """Adam step by implementation (fused, foreach) over the bytes that it must move"""
    launch: Launch | None = None
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """of the software that ran"""
    source: str = ""

    def table(self, shape: Shape) -> Table:
        """The table that knows kernels like `shape`."""
        return self.gemm if isinstance(shape, Gemm) else self.attention
