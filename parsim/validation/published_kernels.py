"""Published kernel times and the devices behind them: `validation/gemm`.

Matrix products, fused attention, and a description of every device; see validation/gemm/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.hardware.device import FP8, Device, device_from_tree
from parsim.kernel import Attention, Gemm
from parsim.scenario.files import find, read
from parsim.units import parse, whole
from parsim.validation.published import Published, folder, one_of, only_known, printed_time, read_entries, read_rows

KINDS = ("gemm", "grouped", "best")
"""products; one product per group in one call; the fastest product of a sweep over shapes"""
_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5}
_BACKWARD_COUNT = 2.5
"""operations of an attention backward over those of its forward, as benchmarks count them"""
_ENTRY_KEYS = ("title", "fitted", "clock", "call", "pad", "fits", "rounds", "files", "keep")


@dataclass(frozen=True, slots=True)
class PublishedProduct(Published):
    """One measured matrix product."""

    device: str
    """name of its device file; empty: parsim has none"""
    kind: str
    gemm: Gemm
    """as it was executed, padded where the library pads"""
    time: float
    """[s]"""
    calls: float = 0.0
    """host time of its library calls, before which it cannot end [s]"""

    @property
    def kernel(self) -> Gemm:
        """The product or attention core that was computed."""
        return self.gemm

    @property
    def large(self) -> bool:
        """Whether no side is below 512, so that neither launch nor a skinny side matters."""
        return min(self.gemm.m, self.gemm.n, self.gemm.k) >= 512


@dataclass(frozen=True, slots=True)
class PublishedAttention(Published):
    """One measured attention core."""

    device: str
    attention: Attention
    time: float
    """[s]"""

    @property
    def kernel(self) -> Attention:
        """The product or attention core that was computed."""
        return self.attention

    @property
    def table(self) -> str:
        """The efficiencies of a device file that it belongs to."""
        return self.attention.implementation + FP8 * (self.attention.dtype == "fp8")


@dataclass(frozen=True, slots=True)
class ParameterFit:
    """Parameters of a device that are fitted together to some of its kernels."""

    of: str
    """type of the products, or implementation of the attention"""
    rows: str
    """products: large (above 1 GFLOP, no side below 512) | rest (the others) | all (above 1 GFLOP) | grouped; or attention"""
    parameters: Mapping[str, tuple[float, float, float]]
    """name: (lower bound, upper bound, start)"""


@dataclass(frozen=True, slots=True)
class BenchmarkedDevice:
    """What `devices.yaml` says about a device: its title, what of it was fitted to which rows, and how."""

    name: str
    title: str
    fitted: Mapping[str, str]
    """dtype: what of the device file was fitted to these rows; for attention see `fits`"""
    clock: float
    """clock at which the measured machine ran long products over that of the device file: its own power limit"""
    call: float
    """host time of one library call where the benchmark makes one for every group of a grouped product [s]; 0: not known, or hidden"""
    pad: Mapping[str, int]
    """dtype: multiple to which the library pads every side"""
    fits: tuple[ParameterFit, ...]
    rounds: int
    files: tuple[str, ...]
    """device files that hold the fitted numbers, this one's first"""
    keep: str
    """why the device file keeps numbers that differ from the fit; empty: it holds the fit"""


@dataclass(frozen=True, slots=True)
class KernelMeasurements:
    """Published kernel times and the devices that they were measured on."""

    products: tuple[PublishedProduct, ...]
    attention: tuple[PublishedAttention, ...]
    entries: Mapping[str, BenchmarkedDevice]
    devices: Mapping[str, Device]
    """as the device files have them"""

    def machine(self, row: PublishedProduct | PublishedAttention) -> Device:
        """The device of a row as it was measured: products at the clock of that machine, attention, which draws less power, at full."""
        device = self.devices[row.device]
        clock = self.entries[row.device].clock
        return replace(device, clock_derate=clock) if isinstance(row, PublishedProduct) and clock != 1.0 else device


def kernel_measurements(directory: str | Path | None = None) -> KernelMeasurements:
    """The measurements of a directory with measurements.csv, attention.csv and devices.yaml; None: those that come with parsim.

    Raises:
        ScenarioError: missing files, unknown keys or devices, rows that cannot be read.
    """
    home = folder("gemm", directory)
    findings: list[Finding] = []
    entries = read_entries(read(home / "devices.yaml"), "devices", _entry, findings)
    products = read_rows(home / "measurements.csv", lambda row: _product(row, entries), findings)
    attention = read_rows(home / "attention.csv", lambda row: _attended(row, entries), findings)
    if findings:
        raise ScenarioError(findings)
    return KernelMeasurements(products, attention, entries, {name: benchmark_device(name) for name in entries})


def benchmark_device(name: str) -> Device:
    """A device as its file describes it."""
    return device_from_tree(read(find("devices", name)).tree, f"device {name}")


def _entry(name: str, tree: Mapping[str, Any]) -> BenchmarkedDevice:
    only_known(tree, _ENTRY_KEYS)
    return BenchmarkedDevice(
        name=name,
        title=str(tree["title"]),
        fitted={str(key): str(value) for key, value in tree.get("fitted", {}).items()},
        clock=float(tree.get("clock", 1.0)),
        call=float(parse(tree["call"], "time")) if "call" in tree else 0.0,
        pad={str(key): int(value) for key, value in tree.get("pad", {}).items()},
        fits=tuple(_fit(one) for one in tree.get("fits", ())),
        rounds=int(tree.get("rounds", 1)),
        files=(name, *map(str, tree.get("files", ()))),
        keep=str(tree.get("keep", "")),
    )


def _fit(tree: Mapping[str, Any]) -> ParameterFit:
    parameters: dict[str, tuple[float, float, float]] = {}
    for name, limits in tree["parameters"].items():
        low, high, start = map(float, limits)
        if not low <= start <= high:
            raise ValueError(f"{name} starts at {start:g}, outside {low:g} to {high:g}")
        parameters[str(name)] = (low, high, start)
    return ParameterFit(str(tree["of"]), one_of(tree, "rows", ("large", "rest", "all", "grouped", "attention")), parameters)


def _known(device: str, entries: Mapping[str, BenchmarkedDevice]) -> str:
    if device and device not in entries:
        raise ValueError(f"unknown device {device!r}; known: {', '.join(entries)}")
    return device


def _product(row: Mapping[str, str], entries: Mapping[str, BenchmarkedDevice]) -> PublishedProduct:
    device, kind, dtype = _known(row["device"], entries), one_of(row, "kind", KINDS), row["dtype"]
    sides, groups = [whole(row[side]) for side in ("m", "n", "k")], whole(row["groups"])
    if min(*sides, groups) < 1:
        raise ValueError("groups, m, n and k are whole numbers from 1")
    layout = one_of(row, "layout", ("TN", "NN", "NT"))
    time = printed_time(row, "tflops", 2.0 * sides[0] * sides[1] * sides[2] * groups, 1e12)
    step = entries[device].pad.get(dtype, 1) if device else 1
    m, n, k = (-(-side // step) * step for side in sides)
    added, grouped = one_of(row, "accumulates", ("0", "1", "bf16")), kind == "grouped"
    gemm = Gemm(
        m, n, k, groups, dtype, _BYTES.get(dtype, 2), weight_gradient=added != "0", layout=layout, grouped=grouped,
        gradient=2 if added == "bf16" else 4,
    )  # fmt: skip
    calls = groups * entries[device].call if device and grouped else 0.0
    return PublishedProduct(device, kind, gemm, time, calls, source=row["source"], note=row["note"])


def _attended(row: Mapping[str, str], entries: Mapping[str, BenchmarkedDevice]) -> PublishedAttention:
    batch, sequence, heads, kv_heads, width, value = (
        whole(row[key]) for key in ("batch", "sequence", "heads", "kv_heads", "head_dim", "value_dim")
    )
    backward, counted = one_of(row, "direction", ("forward", "backward")) == "backward", one_of(row, "counted", ("full", "executed"))
    attention = Attention(
        batch, heads, kv_heads, sequence, sequence, width, causal=row["causal"] == "1", backward=backward,
        implementation=row["implementation"].removesuffix(FP8), dtype="fp8" if row["implementation"].endswith(FP8) else "bf16",
        value_dim=value, window=whole(row.get("window") or "0"),
    )  # fmt: skip
    # benchmarks often count the operations of a kernel without mask whether there is one or not, and backward as 5/2 of forward
    flop = replace(attention, backward=False, causal=attention.causal and counted == "executed").flop
    flop *= _BACKWARD_COUNT if attention.backward else 1.0
    device, time = _known(row["device"], entries), printed_time(row, "tflops", flop, 1e12)
    return PublishedAttention(device, attention, time, source=row["source"], note=row["note"])
