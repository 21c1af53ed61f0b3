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

The `measured:` section of a device file is read and checked here; see docs/calibrate.md for the format.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from parsim.errors import Finding
from parsim.hardware.tree import Tree, closest
from parsim.kernel import Attention, Gemm
from parsim.units import format_flops, format_rate

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


class KernelTable:
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


class Launch(NamedTuple):
    """What it takes to start a kernel."""

    kernel: float
    """time of the smallest kernel on the device [s]"""
    issue: float | None = None
    """time the host needs to issue one operation [s]; what `software.host` takes per kernel if nobody states it"""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredKernels:
    """The measured tables of a device; empty ones leave their kernels to the analytic model."""

    gemm: KernelTable = field(default_factory=KernelTable)
    attention: KernelTable = field(default_factory=KernelTable)
    copy: Curve | None = None
    optimizer: Mapping[str, Curve] = field(default_factory=dict)
    """Adam step by implementation (fused, foreach) over the bytes that it must move"""
    launch: Launch | None = None
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """of the software that ran"""
    source: str = ""

    def table(self, shape: Shape) -> KernelTable:
        """The table that knows kernels like `shape`."""
        return self.gemm if isinstance(shape, Gemm) else self.attention


# the section of a device file


PASSES = ("forward", "backward_input", "backward_weight")
STEPS = ("fused", "foreach")
"""implementations of an optimizer step"""
BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""of an element in memory [B]"""
_OVER_PEAK = 1.25
"""a measured rate may pass the datasheet's, which is taken at a nominal clock, by this factor"""
_OVER_BANDWIDTH = 30.0
"""a copy inside a cache may be this much faster than memory"""


def read_measured(tree: Tree, peak: Mapping[str, float], bandwidth: float, kernels: tuple[str, ...]) -> MeasuredKernels | None:
    """What stands under `measured:`, None if nothing does; problems are collected in the tree.

    `peak` [FLOP/s] and `bandwidth` [B/s] of the device bound what can be true; `kernels` are the device's attention kernels.
    """
    if not tree.data:
        return None
    gemm = list(_shapes(tree, "gemm", peak, lambda row: _gemm(row, peak)))
    attention = list(_shapes(tree, "attention", peak, lambda row: _attention(row, peak, kernels)))
    copy = [(size, time) for _, size, time in _curve(tree, "copy", bandwidth, None)]
    steps: dict[str, list[tuple[float, float]]] = {}
    for row, size, time in _curve(tree, "optimizer", bandwidth, "kernels"):
        steps.setdefault(str(row.raw("kernels")), []).append((size, time))
    result = MeasuredKernels(
        gemm=KernelTable(gemm),
        attention=KernelTable(attention),
        copy=Curve(copy) if copy else None,
        optimizer={name: Curve(points) for name, points in steps.items()},
        launch=_launch(tree.child("launch")) if tree.has("launch") else None,
        date=tree.text("date", ""),
        versions={str(name): str(version) for name, version in tree.child("versions").data.items()},
        source=tree.text("source", ""),
    )
    tree.close()
    return result


def rows(tree: Tree, key: str) -> Iterator[Tree]:
    """The mappings of the list under `key`."""
    listed = tree.raw(key, [])
    if not isinstance(listed, list):
        tree.fail(key, "expected a list of rows", "write for example - {...} on lines of their own")
        return
    for number, item in enumerate(listed):
        where = f"{tree.where(key)}.{number}"
        if isinstance(item, Mapping):
            yield Tree(item, where, tree.findings)
        else:
            tree.findings.append(Finding("expected a mapping, one measured row", where, item))


def _shapes(
    tree: Tree, key: str, peak: Mapping[str, float], read: Callable[[Tree], tuple[Shape, Hashable]]
) -> Iterator[tuple[Shape, float]]:
    """Rows with a shape and a time; each shape once, none faster than the device."""
    seen: dict[Hashable, str] = {}
    for row in rows(tree, key):
        before = len(row.findings)
        shape, identity = read(row)
        seconds = _time(row)
        row.close()
        if len(row.findings) > before:
            continue
        if identity in seen:
            row.fail("", f"the same shape as {seen[identity]}", "keep one of them")
            continue
        seen[identity] = row.path
        rate, most = shape.flop / seconds, peak[shape.dtype]
        if rate > _OVER_PEAK * most:
            work = f"{shape.flop:.4g} FLOP / {seconds:.4g} s = {format_flops(rate)}"
            row.fail("time", f"{work}, above the device's {shape.dtype} peak of {format_flops(most)}", "is the unit right?")
            continue
        yield shape, seconds


def _gemm(row: Tree, peak: Mapping[str, float]) -> tuple[Shape, Hashable]:
    dtype = _dtype(row, peak)
    step = _choice(row, "pass", PASSES, "forward")
    m, n, k = (row.whole(key, high=10**9) for key in ("m", "n", "k"))
    shape = Gemm(m, n, k, row.whole("batch", 1), dtype, BYTES.get(dtype, 2.0), weight_gradient=step == "backward_weight")
    return shape, (shape, step)


def _attention(row: Tree, peak: Mapping[str, float], kernels: tuple[str, ...]) -> tuple[Shape, Hashable]:
    heads, queries, head_dim = row.whole("heads"), row.whole("queries", high=10**9), row.whole("head_dim")
    kv_heads = row.whole("kv_heads", heads)
    if heads % kv_heads:
        row.fail("kv_heads", f"{heads} heads do not share {kv_heads} key-value heads evenly: {heads} % {kv_heads} = {heads % kv_heads}")
    shape = Attention(
        batch=row.whole("batch", 1),
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=row.whole("keys", queries, high=10**9),
        head_dim=head_dim,
        causal=row.flag("causal", default=True),
        backward=_choice(row, "pass", ("forward", "backward"), "forward") == "backward",
        implementation=_choice(row, "implementation", kernels, None, "describe it under attention, which other shapes need"),
        dtype=_dtype(row, peak),
        value_dim=row.whole("value_dim", 0, low=0),
        window=row.whole("window", 0, low=0, high=10**9),
    )
    return shape, shape


def _curve(tree: Tree, key: str, bandwidth: float, kind: str | None) -> Iterator[tuple[Tree, float, float]]:
    """Rows with bytes and a time, each size once per `kind`."""
    seen: dict[Hashable, str] = {}
    for row in rows(tree, key):
        before = len(row.findings)
        size = row.quantity("bytes", "bytes")
        seconds = _time(row)
        name = _choice(row, kind, STEPS, None) if kind else ""
        if key == "optimizer":
            row.whole("parameters", 0, low=0, high=10**12)
        row.close()
        if len(row.findings) > before:
            continue
        if (name, size) in seen:
            row.fail("", f"the same size as {seen[name, size]}", "keep one of them")
        elif size / seconds > _OVER_BANDWIDTH * bandwidth:
            work = f"{size:.4g} B / {seconds:.4g} s = {format_rate(size / seconds)}"
            row.fail("time", f"{work}, {size / seconds / bandwidth:.0f} times the memory's {format_rate(bandwidth)}", "is the unit right?")
        else:
            seen[name, size] = row.path
            yield row, size, seconds


def _launch(tree: Tree) -> Launch:
    result = Launch(tree.quantity("kernel", "time"), tree.quantity("issue", "time") if tree.has("issue") else None)
    tree.close()
    return result


def _time(row: Tree) -> float:
    """The time of a row [s]; its spread, a share of the time, is there for readers."""
    row.number("spread", 0.0, 0.0, 1e6)
    return row.quantity("time", "time")


def _dtype(row: Tree, peak: Mapping[str, float]) -> str:
    dtype = row.text("dtype")
    if dtype and dtype not in peak:
        repair = "add it to compute.peak, or leave the row out" if dtype in BYTES else closest(dtype, peak)
        row.fail("dtype", f"{dtype!r} is not one of {', '.join(peak)}", repair)
    return dtype


def _choice(row: Tree, key: str, known: tuple[str, ...], default: str | None, repair: str = "") -> str:
    """One of `known`; None as `default` means that the key is required."""
    value = row.text(key) if default is None else row.text(key, default)
    if value and value not in known:
        near = closest(value, known)
        row.fail(key, f"{value!r} is not one of {', '.join(known) or 'none'}", repair if repair and not near.startswith("did") else near)
    return value
