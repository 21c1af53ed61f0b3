"""The `measured:` section of a device file, read and checked; see docs/calibrate.md for the format."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

from parsim.errors import Finding
from parsim.hardware.measured import Curve, Launch, Measured, Shape, Table
from parsim.hardware.tree import Tree, closest
from parsim.kernel import Attention, Gemm
from parsim.units import format_flops, format_rate

PASSES = ("forward", "backward_input", "backward_weight")
STEPS = ("fused", "foreach")
"""implementations of an optimizer step"""
BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""of an element in memory [B]"""
_OVER_PEAK = 1.25
"""a measured rate may pass the datasheet's, which is taken at a nominal clock, by this factor"""
_OVER_BANDWIDTH = 30.0
"""a copy inside a cache may be this much faster than memory"""


def read_measured(tree: Tree, peak: Mapping[str, float], bandwidth: float, kernels: tuple[str, ...]) -> Measured | None:
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
    result = Measured(
        gemm=Table(gemm),
        attention=Table(attention),
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
