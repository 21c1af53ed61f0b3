"""A device file, or the measured section of one, from a trace of the PyTorch profiler."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsim.calibration.calibrate import slug
from parsim.calibration.collectives import measurements_csv, systems_yaml
from parsim.calibration.document import checked, measured_tree, starting_tree, to_yaml
from parsim.calibration.facts import Facts, catalogue_name
from parsim.calibration.kineto import Trace, read_trace
from parsim.calibration.profile import tables_of
from parsim.calibration.tables import Tables
from parsim.errors import Finding, ScenarioError
from parsim.scenario import files


@dataclass(frozen=True, slots=True)
class Profile:
    """What a trace says about its device."""

    name: str
    tree: dict[str, Any]
    """a device with measured tables, or only ``{measured: ...}`` where nothing says which device it is"""
    yaml: str
    tables: Tables
    whole: bool
    """whether `tree` is a device"""
    base: str

    def collective_files(self, device: Path) -> dict[str, str]:
        """File name -> text of the folder for `parsim validate nccl --data`; empty without collectives."""
        rows = self.tables.collectives
        if not rows or not self.whole:
            return {}
        system = slug(self.name)
        ranks = max(row.ranks for row in rows)
        return {
            "measurements.csv": measurements_csv(rows, system, self.tables.source),
            "systems.yaml": systems_yaml(system, f"{ranks} x {self.name}, from a trace", str(device.resolve()), ranks),
        }


def import_profile(path: str, *, device: str | None = None, name: str | None = None) -> Profile:
    """The tables of a trace on top of `device` (a name or a file), or of the shipped device that the trace names.

    Raises:
        ScenarioError: no such file or device, no trace, or nothing in it that a table could hold.
        TopologyError: rows that the device cannot have, for example faster than its peak.
    """
    trace = read_trace(path)
    tables = tables_of(trace, f"PyTorch profiler, {Path(path).name}")
    if not (tables.gemm or tables.attention or tables.copy or tables.collectives):
        repair = "record with activities=[CPU, CUDA] and record_shapes=True"
        raise ScenarioError(Finding("holds no product, attention, copy or collective with its shape", file=path, suggestion=repair))
    tables.date = _date(trace)
    tables.versions = _versions(trace)
    facts = _facts(trace)
    base = device or (catalogue_name(facts.name, facts.memory, facts.sms) if facts.name else None)
    if base is None:
        tree: dict[str, Any] = {"measured": measured_tree(tables)}
        head = [f"Measured tables of {Path(path).name}; put them into a device file."]
        return Profile(name or facts.name or "device", tree, to_yaml(tree, [*head, *tables.notes]), tables, whole=False, base="")
    document = files.read(files.find("devices", base))
    called = name or f"{document.tree.get('name', base)}, measured"
    recorded = catalogue_name(facts.name, facts.memory, facts.sms) if facts.name else None
    other = facts.name and files.find("devices", base) != (files.find("devices", recorded) if recorded else None)
    if other:
        tables.notes.append(f"the trace was recorded on {facts.name}, its times are put on {document.tree.get('name', base)}")
    peaks = dict(document.tree.get("compute") or {}).get("peak") or {}
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
    return Profile(called, tree, text, tables, whole=True, base=base)


def _facts(trace: Trace) -> Facts:
    """The first device that the trace names."""
    first: Mapping[str, Any] = trace.devices[0] if trace.devices else {}

    def number(key: str) -> int:
        value = first.get(key)
        return value if type(value) is int and value > 0 else 0

    return Facts(
        name=str(first.get("name", "")),
        memory=number("totalGlobalMem"),
        sms=number("numSms"),
        cache=0,
        capability=float(f"{number('computeMajor')}.{number('computeMinor')}"),
        vendor="NVIDIA",
        dtypes=(),
        count=max(1, len(trace.devices)),
    )


def _versions(trace: Trace) -> dict[str, str]:
    keys = {"cuda": ("cuda_runtime_version", "CUDA Runtime"), "driver": ("cuda_driver_version",), "nccl": ("nccl_version",),
            "torch": ("pytorch_version", "torch_version")}  # fmt: skip
    found = {name: next((str(trace.about[key]) for key in known if trace.about.get(key)), "") for name, known in keys.items()}
    distributed = trace.about.get("distributedInfo")
    if isinstance(distributed, Mapping) and distributed.get("nccl_version"):
        found["nccl"] = str(distributed["nccl_version"])
    return {name: version for name, version in found.items() if version}


def _date(trace: Trace) -> str:
    """The day of the trace's base time, empty if it has none."""
    base = trace.about.get("baseTimeNanoseconds")
    first = min((operation.start for operation in trace.operations), default=0.0)
    if not isinstance(base, int):
        return ""
    moment = base / 1e9 + first / 1e6
    return dt.datetime.fromtimestamp(moment, dt.UTC).date().isoformat() if 1e9 < moment < 1e10 else ""
