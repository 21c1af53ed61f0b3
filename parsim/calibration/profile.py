"""From a trace of the PyTorch profiler to measured tables, and to a device file with them."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parsim.calibration.calibrate import checked, measured_tree, starting_tree, to_yaml
from parsim.calibration.collectives import collective_files
from parsim.calibration.kineto import DeviceWork, Operation, ProfilerTrace, read_trace
from parsim.calibration.measurements import (
    CollectiveTime,
    Copy,
    Core,
    DeviceFacts,
    MeasuredProduct,
    MeasuredTables,
    Timing,
    catalogue_name,
    timing,
)
from parsim.errors import Finding, ScenarioError
from parsim.kernel import Attention, Gemm
from parsim.scenario import files
from parsim.units import parse

_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0, "aten::linear": 0,
             "aten::mkldnn_linear": 0, "mkldnn::_linear_pointwise": 0}  # fmt: skip
"""operation -> which input is the left matrix"""
_LINEAR = ("aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise")
"""operations whose right matrix is [n, k]"""
_CORES = {
    "aten::_scaled_dot_product_flash_attention": ("flash2", 0, 4),
    "aten::_scaled_dot_product_flash_attention_backward": ("flash2", 1, 11),
    "aten::_scaled_dot_product_flash_attention_for_cpu": ("mem-efficient", 0, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": ("mem-efficient", 1, 7),
    "aten::_scaled_dot_product_efficient_attention": ("mem-efficient", 0, 6),
    "aten::_scaled_dot_product_efficient_attention_backward": ("mem-efficient", 1, 11),
    "aten::_scaled_dot_product_cudnn_attention": ("cudnn", 0, 6),
    "aten::_scaled_dot_product_cudnn_attention_backward": ("cudnn", 1, 14),
}
"""operation -> kernel, index of the query, index of is_causal (pytorch aten/src/ATen/native/native_functions.yaml)"""
_TF32 = re.compile(r"tf32|tensorop_s1688gemm|s1688gemm_f32|_s1688", re.IGNORECASE)
"""kernels that multiply fp32 operands on tensor cores: by name, or by their instruction (1688 with fp32 operands is that of TF32:
CUTLASS, include/cutlass/arch/mma_sm80.h)"""
_TYPES = {"float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16", "c10::Float8_e4m3fn": "fp8",
          "c10::Float8_e5m2": "fp8"}  # fmt: skip
_BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
ELEMENT_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "int": 4, "long": 8, "bool": 1,
             "float8_e4m3fn": 1, "float8_e5m2": 1}  # fmt: skip
COLLECTIVES = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather", "_allgather_base": "all_gather", "all_gather": "all_gather", "all_gather_into_tensor": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "broadcast": "broadcast", "reduce": "reduce",
    "all_to_all": "all_to_all", "all_to_allv": "all_to_all", "alltoall": "all_to_all", "alltoall_base": "all_to_all",
    "send": "send", "recv": "recv",
}  # fmt: skip
"""names of torch.distributed (ProcessGroupNCCL) -> parsim's"""


def tables_of(trace: ProfilerTrace, source: str) -> MeasuredTables:
    """The tables of a trace. Repetitions of a shape count as their median.

    On a GPU the kernels that an operation launched count, without gaps; a trace without kernels gives the operations' own times.
    """
    tables = MeasuredTables(source=source)
    gpu = any(kernel.kind == "kernel" for kernel in trace.kernels)
    _products(trace, tables, gpu=gpu)
    _cores(trace, tables, gpu=gpu)
    _copies(trace, tables)
    _launch(trace, tables, gpu=gpu)
    tables.collectives = list(_collectives(trace.kernels, tables.notes))
    return tables


def _products(trace: ProfilerTrace, tables: MeasuredTables, *, gpu: bool) -> None:
    seen: dict[tuple[Gemm, str], list[float]] = {}
    without = 0
    forward = _forward_products(trace.operations)
    for operation in trace.operations:
        if operation.name not in _PRODUCTS or any(True for _ in _inside(operation, _PRODUCTS)):
            continue
        shape = _shape(operation)
        seconds = _seconds(operation, gpu=gpu)
        if shape is None:
            without += 1
        elif seconds:
            step = _step(operation, shape, forward)
            key = Gemm(shape.m, shape.n, shape.k, shape.batch, shape.dtype, shape.element, weight_gradient=step == "backward_weight")
            seen.setdefault((key, step), []).append(seconds)
    if without:
        tables.notes.append(f"{without} matrix products carry no shapes; record with torch.profiler.profile(record_shapes=True)")
    tables.gemm = [MeasuredProduct(shape, step, timing(samples)) for (shape, step), samples in seen.items()]


def _shape(operation: Operation) -> Gemm | None:
    """The product that an operation computes, None where its inputs are not recorded."""
    left = _PRODUCTS[operation.name]
    dtype = _dtype(operation, left)
    a, b = operation.dims(left), operation.dims(left + 1)
    if dtype is None or len(a) < 2 or len(b) not in (2, 3) or (len(b) == 3 and len(a) != 3):
        return None
    batch = a[0] if len(b) == 3 else 1
    rows = a[-2] if len(b) == 3 else math.prod(a[:-1])
    columns = b[-2] if operation.name in _LINEAR else b[-1]
    if dtype == "fp32" and any(_TF32.search(kernel.name) for kernel in operation.kernels):
        dtype = "tf32"
    return Gemm(rows, columns, a[-1], batch, dtype, _BYTES[dtype])


def product_sizes(name: str, args: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """(m, n, k) of an operation that multiplies two matrices, by the shapes recorded beside it; None for others."""
    left, dims = _PRODUCTS.get(name), args.get("Input Dims")
    if left is None or name in _LINEAR or not isinstance(dims, list) or len(dims) < left + 2:  # a linear calls one of the others
        return None
    a, b = dims[left], dims[left + 1]
    if not all(isinstance(side, list) and len(side) >= 2 and all(type(size) is int and size > 0 for size in side) for side in (a, b)):
        return None
    return a[-2], b[-1], a[-1]


def _forward_products(operations: Iterable[Operation]) -> dict[int, Gemm]:
    """Sequence number of autograd -> the product of the forward pass."""
    products: dict[int, Gemm] = {}
    for operation in operations:
        number = _number(operation)
        if operation.name in _PRODUCTS and number is not None and not _in_backward(operation):
            shape = _shape(operation)
            if shape is not None:
                products[number] = shape
    return products


def _number(operation: Operation) -> int | None:
    """Sequence number of autograd: that of an operation and of its gradient are the same."""
    value = operation.args.get("Sequence number")
    return value if isinstance(value, int) else None


def _in_backward(operation: Operation) -> bool:
    """Whether an operation computes a gradient; one with a number of its own is a forward that is computed again."""
    if _number(operation) is not None:
        return False
    return any(above.name.startswith("autograd::engine") or "Backward" in above.name for above in operation.above())


def _step(operation: Operation, shape: Gemm, forward: Mapping[int, Gemm]) -> str:
    """forward, backward_input or backward_weight.

    A gradient node has the sequence number of the operation it belongs to: of y[m, n] = x[m, k] W, the input's gradient is
    [m, k] and sums over n, the weight's is [n, k] or [k, n] and sums over m. Where sizes leave it open, the layout decides: the
    left matrix of a weight gradient is transposed.
    """
    if not _in_backward(operation):
        return "forward"
    number = next((sequence for above in operation.above() if (sequence := _number(above)) is not None), None)
    origin = forward.get(number) if number is not None else None
    if origin is not None:
        dims = (shape.m, shape.n, shape.k)
        by_input = dims == (origin.m, origin.k, origin.n)
        by_weight = dims in ((origin.n, origin.k, origin.m), (origin.k, origin.n, origin.m))
        if by_input != by_weight:
            return "backward_input" if by_input else "backward_weight"
    strides = operation.args.get("Input Strides")
    left = _PRODUCTS[operation.name]
    of_left = strides[left] if isinstance(strides, list) and len(strides) > left else None
    transposed = isinstance(of_left, list) and len(of_left) >= 2 and of_left[-2] == 1 and of_left[-1] != 1
    return "backward_weight" if transposed else "backward_input"


def _cores(trace: ProfilerTrace, tables: MeasuredTables, *, gpu: bool) -> None:
    seen: dict[Attention, list[float]] = {}
    for operation in trace.operations:
        if operation.name not in _CORES or any(True for _ in _inside(operation, _CORES)):
            continue
        name, first, flag = _CORES[operation.name]
        query, key, value = (operation.dims(first + index) for index in range(3))
        dtype = _dtype(operation, first)
        concrete = operation.args.get("Concrete Inputs")
        seconds = _seconds(operation, gpu=gpu)
        if any(len(dims) != 4 for dims in (query, key, value)) or query[1] % key[1] or dtype is None or not seconds:
            continue
        causal = isinstance(concrete, list) and len(concrete) > flag and str(concrete[flag]).lower() == "true"
        (batch, heads, queries, head_dim), (_, kv_heads, keys, _), value_dim = query, key, value[-1]
        shape = Attention(
            batch, heads, kv_heads, queries, keys, head_dim, causal, backward=first == 1, implementation=name, dtype=dtype,
            value_dim=0 if value_dim == head_dim else value_dim,
        )  # fmt: skip
        seen.setdefault(shape, []).append(seconds)
    tables.attention = [Core(shape, timing(samples)) for shape, samples in seen.items()]


def _copies(trace: ProfilerTrace, tables: MeasuredTables) -> None:
    """Copies inside the device; those over the host's link are noted, they belong to no table of a device."""
    inside: dict[int, list[float]] = {}
    links: dict[str, list[float]] = {}
    for kernel in trace.kernels:
        size = kernel.args.get("bytes")
        if kernel.kind != "gpu_memcpy" or type(size) is not int or size <= 0 or not kernel.duration:
            continue
        if "DtoD" in kernel.name:
            inside.setdefault(2 * int(size), []).append(kernel.duration * 1e-6)
        else:
            way = next((way for way in ("HtoD", "DtoH") if way in kernel.name), "other")
            links.setdefault(way, []).append(size / kernel.duration * 1e6)
    tables.copy = [Copy(size, timing(samples)) for size, samples in sorted(inside.items())]
    for way, rates in links.items():
        tables.notes.append(f"{way} copies: {len(rates)}, up to {max(rates) / 1e9:.1f} GB/s (no table of a device, see its PCIe link)")


def _launch(trace: ProfilerTrace, tables: MeasuredTables, *, gpu: bool) -> None:
    """The shortest kernels (5th percentile), and the host's time for an operation that launches one."""
    kernels = sorted(kernel.duration * 1e-6 for kernel in trace.kernels if kernel.kind == "kernel" and kernel.duration > 0)
    single = [operation.duration * 1e-6 for operation in trace.operations if len(operation.kernels) == 1 and not operation.children]
    if gpu and kernels:
        tables.kernel = Timing(kernels[len(kernels) // 20])
        tables.issue = timing(single or [duration * 1e-6 for duration in trace.launches]) if single or trace.launches else None


def _collectives(kernels: Sequence[DeviceWork], notes: list[str]) -> Iterator[CollectiveTime]:
    """NCCL kernels with what ProcessGroupNCCL writes beside them.

    A kernel also waits for the other ranks, so the shortest of equal ones is taken: the one that waited least.
    """
    seen: dict[tuple[str, int, int], list[float]] = {}
    unknown: dict[str, None] = {}
    for kernel in kernels:
        name = kernel.args.get("Collective name")
        if name is None:
            continue
        kind = COLLECTIVES.get(str(name).lower())
        element = ELEMENT_BYTES.get(str(kernel.args.get("dtype", "")).lower())
        into, out, ranks = (kernel.args.get(key) for key in ("In msg nelems", "Out msg nelems", "Group size"))
        if kind is None or element is None or not isinstance(ranks, int) or not isinstance(into, int):
            unknown[str(name)] = None
            continue
        # as nccl-tests counts: the whole buffer, which is the output of an all-gather and the input of the others
        count = out if kind == "all_gather" and isinstance(out, int) else into * ranks if kind == "all_gather" else into
        if ranks > 1 and count > 0 and kernel.duration > 0:
            seen.setdefault((kind, ranks, count * element), []).append(kernel.duration * 1e-6)
    if unknown:
        notes.append(f"left out: collectives {', '.join(unknown)}: kind, dtype or sizes are not recorded")
    for (kind, ranks, size), samples in sorted(seen.items()):
        if kind == "recv":
            continue  # the other end of a send
        yield CollectiveTime(kind, ranks, size, Timing(min(samples)), f"shortest of {len(samples)} in a trace")


def _inside(operation: Operation, names: Mapping[str, Any]) -> Iterator[Operation]:
    """Operations with one of these names at any depth inside `operation`."""
    for child in operation.children:
        if child.name in names:
            yield child
        yield from _inside(child, names)


def _seconds(operation: Operation, *, gpu: bool) -> float:
    """Time of an operation [s]: of its kernels and of those it calls, or its own."""
    if not gpu:
        return operation.duration * 1e-6
    own = math.fsum(kernel.duration for kernel in operation.kernels if kernel.kind == "kernel") * 1e-6
    return own + math.fsum(_seconds(child, gpu=True) for child in operation.children)


def _dtype(operation: Operation, index: int) -> str | None:
    types = operation.args.get("Input type")
    return _TYPES.get(str(types[index])) if isinstance(types, list) and len(types) > index else None


@dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """What a trace says about its device."""

    name: str
    tree: dict[str, Any]
    """a device with measured tables, or only ``{measured: ...}`` where nothing says which device it is"""
    yaml: str
    tables: MeasuredTables
    whole: bool
    """whether `tree` is a device"""
    base: str

    def collective_files(self, device: Path) -> dict[str, str]:
        """The folder of measured collectives beside the device file `device`: see `collectives.collective_files`."""
        rows = self.tables.collectives if self.whole else []
        ranks = max((row.ranks for row in rows), default=0)
        return collective_files(rows, self.name, f"{ranks} x {self.name}, from a trace", self.tables.source, device)


def import_profile(path: str, *, device: str | None = None, name: str | None = None) -> ProfiledDevice:
    """The tables of a trace on top of `device` (a name or a file), or of the shipped device that the trace names.

    Raises:
        ScenarioError: no such file or device, no trace, or nothing in it that a table could hold.
        TopologyError: rows that the device cannot have, for example faster than its peak.
    """
    trace = read_trace(path)
    tables = tables_of(trace, f"PyTorch profiler, {Path(path).name}")
    if not (tables.gemm or tables.attention):
        raise ScenarioError(_nothing_computed(trace, tables, path))
    tables.date = _date(trace)
    tables.versions = _versions(trace)
    facts = _facts(trace)
    base = device or (catalogue_name(facts.name, facts.memory, facts.sms) if facts.name else None)
    if base is None:
        tree: dict[str, Any] = {"measured": measured_tree(tables)}
        head = [f"Measured tables of {Path(path).name}; put them into a device file."]
        return ProfiledDevice(name or facts.name or "device", tree, to_yaml(tree, [*head, *tables.notes]), tables, whole=False, base="")
    document = files.read(files.find("devices", base))
    called = name or f"{document.tree.get('name', base)}, measured"
    recorded = catalogue_name(facts.name, facts.memory, facts.sms) if facts.name else None
    other = facts.name and files.find("devices", base) != (files.find("devices", recorded) if recorded else None)
    if other:
        tables.notes.append(f"the trace was recorded on {facts.name}, its times are put on {document.tree.get('name', base)}")
    peaks = dict(document.tree.get("compute") or {}).get("peak") or {}
    _as_tf32(tables, peaks, str(document.tree.get("name", base)))
    lacking = tuple(dtype for dtype in tables.dtypes if dtype not in peaks)
    if lacking:
        tables.notes.append(f"left out: kernels in {', '.join(lacking)}: {document.tree.get('name', base)} has no such peak")
    tables.gemm = [row for row in tables.gemm if row.shape.dtype in peaks]
    tables.attention = [row for row in tables.attention if row.shape.dtype in peaks]
    start = starting_tree(facts, tables, document.tree)
    if other or not facts.memory:
        start["memory"] = document.tree["memory"]
    tree = {key: value for key, value in start.items() if key != "measured"} | {"name": called}
    tree["measured"] = {**dict(document.tree.get("measured") or {}), **measured_tree(tables)}
    head = [f"{called}: {base} with the times of {Path(path).name}", *tables.notes]
    text = to_yaml(tree, head)
    checked(text, "the imported device")
    return ProfiledDevice(called, tree, text, tables, whole=True, base=base)


def _nothing_computed(trace: ProfilerTrace, tables: MeasuredTables, path: str) -> Finding:
    """The finding of a trace without matrix products: what it holds instead."""
    held = {
        "operations": len(trace.operations),
        "kernels": sum(kernel.kind == "kernel" for kernel in trace.kernels),
        "sizes of copies": len(tables.copy),
        "collectives": len(tables.collectives),
    }
    listed = ", ".join(f"{what}: {count}" for what, count in held.items() if count) or "nothing that was timed"
    without = next((f"; {note}" for note in tables.notes if "carry no shapes" in note), "")
    repair = "record a training step with activities=[CPU, CUDA] and record_shapes=True"
    return Finding(f"holds no matrix product with its shape ({listed}){without}", file=path, suggestion=repair)


def _as_tf32(tables: MeasuredTables, peaks: Mapping[str, Any], device: str) -> None:
    """Products of fp32 operands that are faster than the device's fp32 are TF32 products: nothing else is."""
    if "fp32" not in peaks or "tf32" not in peaks:
        return
    peak = float(parse(peaks["fp32"], "flops"))
    fast = [row for row in tables.gemm if row.shape.dtype == "fp32" and row.shape.flop > peak * row.time.seconds]
    if not fast:
        return
    rate = max(row.shape.flop / row.time.seconds for row in fast)
    beyond = f"{len(fast)} products of fp32 operands run at up to {rate / 1e12:.3g} TFLOP/s, {device} has {peak / 1e12:.3g} in fp32"
    tables.notes.append(f"{beyond}: they are TF32 products")
    tables.gemm = [replace(row, shape=replace(row.shape, dtype="tf32")) if row in fast else row for row in tables.gemm]


def _facts(trace: ProfilerTrace) -> DeviceFacts:
    """Facts about the first device that the trace names."""
    first: Mapping[str, Any] = trace.devices[0] if trace.devices else {}

    def number(key: str) -> int:
        value = first.get(key)
        return value if type(value) is int and value > 0 else 0

    return DeviceFacts(
        name=str(first.get("name", "")),
        memory=number("totalGlobalMem"),
        sms=number("numSms"),
        cache=0,
        capability=float(f"{number('computeMajor')}.{number('computeMinor')}"),
        vendor="NVIDIA",
        dtypes=(),
        count=max(1, len(trace.devices)),
    )


def _versions(trace: ProfilerTrace) -> dict[str, str]:
    keys = {"cuda": ("cuda_runtime_version", "CUDA Runtime"), "driver": ("cuda_driver_version",), "nccl": ("nccl_version",),
            "torch": ("pytorch_version", "torch_version")}  # fmt: skip
    versions = {name: next((str(trace.about[key]) for key in known if trace.about.get(key)), "") for name, known in keys.items()}
    distributed = trace.about.get("distributedInfo")
    if isinstance(distributed, Mapping) and distributed.get("nccl_version"):
        versions["nccl"] = str(distributed["nccl_version"])
    return {name: version for name, version in versions.items() if version}


def _date(trace: ProfilerTrace) -> str:
    """The day of the trace's base time, empty if it has none."""
    base = trace.about.get("baseTimeNanoseconds")
    first = min((operation.start for operation in trace.operations), default=0.0)
    if not isinstance(base, int):
        return ""
    moment = base / 1e9 + first / 1e6
    return dt.datetime.fromtimestamp(moment, dt.UTC).date().isoformat() if 1e9 < moment < 1e10 else ""
