"""A trace of the PyTorch profiler (Kineto's Chrome JSON, plain or gzipped): events, and which operation launched which kernel.

Keys as PyTorch writes them (pytorch/kineto libkineto/src/output_json.cpp): complete events have ph X, ts and dur in us; cat
is cpu_op, kernel, gpu_memcpy, cuda_runtime, ...; args carry "External id" (of the operation), "correlation" (of the launch)
and, with record_shapes, "Input Dims", "Input type", "Input Strides", "Concrete Inputs".
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError, shortened

LARGEST = 2 * 10**9
"""longest trace that is read, unpacked [B]"""
REPAIR = "give what torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote"
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime")


@dataclass(slots=True)
class Operation:
    """An operation on the host."""

    name: str
    thread: tuple[str, str]
    start: float
    """[us]"""
    duration: float
    """[us]"""
    args: Mapping[str, Any]
    parent: Operation | None = None
    children: list[Operation] = field(default_factory=list)
    kernels: list[DeviceWork] = field(default_factory=list)

    def dims(self, index: int) -> tuple[int, ...]:
        """Shape of an input; empty where it is not recorded."""
        listed = self.args.get("Input Dims", self.args.get("Input dims"))
        sizes = listed[index] if isinstance(listed, list) and len(listed) > index else None
        if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
            return ()
        return tuple(sizes)

    def above(self) -> Iterable[Operation]:
        """The operations that enclose this one, innermost first."""
        current = self.parent
        while current is not None:
            yield current
            current = current.parent


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A kernel, copy or memset on the device."""

    name: str
    kind: str
    """kernel | gpu_memcpy | gpu_memset"""
    duration: float
    """[us]"""
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProfilerTrace:
    """What a trace holds, as far as it is used."""

    operations: tuple[Operation, ...]
    kernels: tuple[DeviceWork, ...]
    launches: tuple[float, ...]
    """durations of kernel launches on the host [us]"""
    devices: tuple[Mapping[str, Any], ...]
    """deviceProperties"""
    about: Mapping[str, Any]
    """top-level keys beside the events"""


def read_trace(path: str | Path) -> ProfilerTrace:
    """The trace in a file.

    Raises:
        ScenarioError: it cannot be read, or is no trace of the PyTorch profiler.
    """
    return parse_trace(read_bytes(path), str(path))


def read_document(path: str | Path) -> dict[str, Any]:
    """A trace as it stands in its file, its events under traceEvents; raises the same."""
    whole = _document(read_bytes(path), str(path))
    return whole if isinstance(whole, dict) else {"traceEvents": whole}


def read_bytes(path: str | Path) -> bytes:
    """A trace's text, unpacked; see `read_trace`."""
    path = Path(path)
    name = str(path)
    try:
        if path.exists() and not path.is_file():  # it is opened twice
            raise ScenarioError(Finding("is no regular file", file=name))
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            raw = stream.read(LARGEST + 1)
    except FileNotFoundError:
        raise ScenarioError(Finding("no such file", file=name)) from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ScenarioError(Finding(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=name)) from None
    if len(raw) > LARGEST:
        raise ScenarioError(Finding(f"the trace has more than {LARGEST:,} bytes", file=name, suggestion="record fewer steps"))
    return raw


def _document(raw: bytes, name: str) -> dict[str, Any] | list[Any]:
    """The JSON of a trace: an object with events, or a bare list of them."""
    try:
        whole = json.loads(raw)
    except json.JSONDecodeError as error:
        text = f"not JSON: {error.msg}"
        raise ScenarioError(Finding(text, suggestion=REPAIR, file=name, line=error.lineno, column=error.colno)) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ScenarioError(Finding(f"not JSON: {str(error)[:100]}", suggestion=REPAIR, file=name)) from None
    events = whole.get("traceEvents") if isinstance(whole, dict) else whole
    if not isinstance(events, list):
        raise ScenarioError(Finding("has no traceEvents", suggestion=REPAIR, file=name))
    document: dict[str, Any] | list[Any] = whole
    return document


def events_of(raw: bytes, name: str) -> tuple[list[Any], dict[str, Any]]:
    """The complete events of JSON text, and the keys beside them; see `read_trace`."""
    whole = _document(raw, name)
    events = whole["traceEvents"] if isinstance(whole, dict) else whole
    about = {key: value for key, value in whole.items() if key != "traceEvents"} if isinstance(whole, dict) else {}
    if endless := [
        Finding(f"event {number} ({shortened(str(event.get('name')), 60)}): {key} is {event[key]}, no time", file=name)
        for number, event in enumerate(events)
        if isinstance(event, dict) and event.get("ph") == "X"
        for key in ("ts", "dur")
        if isinstance(event.get(key), float) and not math.isfinite(event[key])
    ]:
        raise ScenarioError(endless)
    return [event for event in events if _complete(event)], about


def parse_trace(raw: bytes, name: str) -> ProfilerTrace:
    """The trace in JSON text; see `read_trace`."""
    complete, about = events_of(raw, name)
    operations = _operations(complete)
    kernels = tuple(_kernels(complete, operations))
    if not operations and not kernels:
        raise ScenarioError(Finding("holds neither operations nor kernels", suggestion=REPAIR, file=name))
    launches = tuple(
        float(event["dur"]) for event in complete if event.get("cat") in _LAUNCHES and "LaunchKernel" in str(event.get("name"))
    )
    devices = about.get("deviceProperties")
    return ProfilerTrace(
        operations=tuple(operations),
        kernels=kernels,
        launches=launches,
        devices=tuple(entry for entry in devices if isinstance(entry, dict)) if isinstance(devices, list) else (),
        about=about,
    )


def _complete(event: Any) -> bool:
    """Whether an event has what is needed of it."""
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("ts"), (int, float))
        and isinstance(event.get("dur"), (int, float))
        and event["dur"] >= 0
    )


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _id(args: Mapping[str, Any], key: str) -> int | str | None:
    """An identifier, None where there is none."""
    value = args.get(key)
    return value if isinstance(value, (int, str)) else None


def _operations(events: list[Any]) -> list[Operation]:
    """The host's operations with their nesting, by thread and time."""
    operations = [
        Operation(
            str(event.get("name")), (str(event.get("pid")), str(event.get("tid"))), float(event["ts"]), float(event["dur"]), _args(event)
        )
        for event in events
        if event.get("cat") in ("cpu_op", "user_annotation")
    ]
    operations.sort(key=lambda entry: (str(entry.thread), entry.start, -entry.duration))
    open_: list[Operation] = []
    for entry in operations:
        while open_ and (open_[-1].thread != entry.thread or open_[-1].start + open_[-1].duration <= entry.start):
            open_.pop()
        if open_:
            entry.parent = open_[-1]
            open_[-1].children.append(entry)
        open_.append(entry)
    return operations


def _kernels(events: list[Any], operations: list[Operation]) -> Iterable[DeviceWork]:
    """The device's work, each piece put under the operation that launched it."""
    by_id = {_id(entry.args, "External id"): entry for entry in operations}
    launched = {_id(_args(event), "correlation"): event for event in events if event.get("cat") in _LAUNCHES}
    by_id.pop(None, None)
    launched.pop(None, None)
    threads: dict[tuple[str, str], tuple[list[float], list[Operation]]] = {}
    for entry in operations:
        starts, entries = threads.setdefault(entry.thread, ([], []))
        starts.append(entry.start)
        entries.append(entry)
    for event in events:
        kind = event.get("cat")
        if kind not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        args = _args(event)
        kernel = DeviceWork(str(event.get("name")), str(kind), float(event["dur"]), args)
        owner = by_id.get(_id(args, "External id") or _id(args, "external id"))
        launch = launched.get(_id(args, "correlation")) if owner is None else None
        if launch is not None:
            owner = by_id.get(_id(_args(launch), "External id")) or _around(launch, threads)
        if owner is not None:
            owner.kernels.append(kernel)
        yield kernel


def _around(launch: Mapping[str, Any], threads: Mapping[tuple[str, str], tuple[list[float], list[Operation]]]) -> Operation | None:
    """The innermost operation during which a launch happened."""
    starts, entries = threads.get((str(launch.get("pid")), str(launch.get("tid"))), ([], []))
    moment = float(launch["ts"])
    index = bisect_right(starts, moment) - 1
    current = entries[index] if index >= 0 else None
    while current is not None and current.start + current.duration < moment:
        current = current.parent
    return current
