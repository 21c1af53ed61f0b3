"""Published kernel times and the devices behind them: `validation/gemm`.

Matrix products, fused attention, and a description of every device; see validation/gemm/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from parsim.errors import Finding, ScenarioError
from parsim.hardware.device import Device, device_from_tree
from parsim.kernel import Attention, Gemm
from parsim.scenario.files import data_root, find, read, read_text
from parsim.study.csv_rows import CsvRows
from parsim.units import real, whole

Row = TypeVar("Row")

KINDS = ("gemm", "grouped", "best")
"""products; one product per group in one call; the fastest product of a sweep over shapes"""
_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
_BACKWARD_COUNT = 2.5
"""operations of an attention backward over those of its forward, as benchmarks count them"""
_ENTRY_KEYS = ("title", "fitted", "pad", "fits", "rounds", "files", "keep")


@dataclass(frozen=True, slots=True)
class Product:
    """One measured matrix product."""

    device: str
    """name of its device file; empty: parsim has none"""
    kind: str
    gemm: Gemm
    """as it was executed, padded where the library pads"""
    time: float
    """[s]"""
    source: str
    note: str

    @property
    def kernel(self) -> Gemm:
        """What was computed."""
        return self.gemm

    @property
    def large(self) -> bool:
        """Whether no side is below 512, so that neither launch nor a skinny side matters."""
        return min(self.gemm.m, self.gemm.n, self.gemm.k) >= 512


@dataclass(frozen=True, slots=True)
class Attended:
    """One measured attention core."""

    device: str
    attention: Attention
    time: float
    """[s]"""
    source: str
    note: str

    @property
    def kernel(self) -> Attention:
        """What was computed."""
        return self.attention


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters of a device that are fitted together to some of its kernels."""

    of: str
    """type of the products, or implementation of the attention"""
    rows: str
    """products: large (above 1 GFLOP, no side below 512) | rest (the others) | all (above 1 GFLOP); or attention"""
    parameters: Mapping[str, tuple[float, float, float]]
    """name: (lower bound, upper bound, start)"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is said about a device."""

    name: str
    title: str
    fitted: Mapping[str, str]
    """dtype: what of the device file was fitted to these rows; for attention see `fits`"""
    pad: Mapping[str, int]
    """dtype: multiple to which the library pads every side"""
    fits: tuple[Fit, ...]
    rounds: int
    files: tuple[str, ...]
    """device files that hold the fitted numbers, this one's first"""
    keep: str
    """why the device file keeps numbers that differ from the fit; empty: it holds the fit"""


@dataclass(frozen=True, slots=True)
class KernelMeasurements:
    """Everything that is measured."""

    products: tuple[Product, ...]
    attention: tuple[Attended, ...]
    entries: Mapping[str, Entry]
    devices: Mapping[str, Device]
    """as the device files have them, but at the clock of a benchmark (`clock_derate` 1)"""


def kernel_measurements(directory: str | Path | None = None) -> KernelMeasurements:
    """The measurements of a directory with measurements.csv, attention.csv and devices.yaml; None: those that come with parsim.

    Raises:
        ScenarioError: missing files, unknown keys or devices, rows that cannot be read.
    """
    folder = data_root() / "validation" / "gemm" if directory is None else Path(directory)
    about = read(folder / "devices.yaml")
    findings: list[Finding] = []
    entries: dict[str, Entry] = {}
    for name, tree in about.section("devices").items():
        try:
            entries[name] = _entry(name, tree)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            findings.append(Finding(problem, f"devices.{name}").at(*about.locate(f"devices.{name}")))
    if not entries and not findings:
        findings.append(Finding("missing", "devices", file=about.path))
    products = _rows(folder / "measurements.csv", lambda row: _product(row, entries), findings)
    attention = _rows(folder / "attention.csv", lambda row: _attended(row, entries), findings)
    if findings:
        raise ScenarioError(findings)
    return KernelMeasurements(products, attention, entries, {name: benchmark_device(name) for name in entries})


def benchmark_device(name: str) -> Device:
    """A device at the clock of a kernel benchmark; a training step runs at `clock_derate` of it."""
    return replace(device_from_tree(read(find("devices", name)).tree, f"device {name}"), clock_derate=1.0)


def _entry(name: str, tree: Mapping[str, Any]) -> Entry:
    for key in tree:
        if key not in _ENTRY_KEYS:
            raise ValueError(f"unknown key {key!r}; known: {', '.join(_ENTRY_KEYS)}")
    return Entry(
        name=name,
        title=str(tree["title"]),
        fitted={str(key): str(value) for key, value in tree.get("fitted", {}).items()},
        pad={str(key): int(value) for key, value in tree.get("pad", {}).items()},
        fits=tuple(_fit(one) for one in tree.get("fits", ())),
        rounds=int(tree.get("rounds", 1)),
        files=(name, *map(str, tree.get("files", ()))),
        keep=str(tree.get("keep", "")),
    )


def _fit(tree: Mapping[str, Any]) -> Fit:
    parameters: dict[str, tuple[float, float, float]] = {}
    for name, limits in tree["parameters"].items():
        low, high, start = map(float, limits)
        if not low <= start <= high:
            raise ValueError(f"{name} starts at {start:g}, outside {low:g} to {high:g}")
        parameters[str(name)] = (low, high, start)
    if tree["rows"] not in ("large", "rest", "all", "attention"):
        raise ValueError(f"rows is one of large, rest, all, attention, not {tree['rows']!r}")
    return Fit(str(tree["of"]), str(tree["rows"]), parameters)


def _rows(path: Path, make: Callable[[dict[str, str]], Row], findings: list[Finding]) -> tuple[Row, ...]:
    """What `make` makes of every line of a CSV file; what it cannot use is a finding."""
    made = []
    for line, row in CsvRows(read_text(path), str(path), findings):
        try:
            made.append(make(row))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            findings.append(Finding(f"cannot be read: {error}", file=str(path), line=line))
    return tuple(made)


def _known(device: str, entries: Mapping[str, Entry]) -> str:
    if device and device not in entries:
        raise ValueError(f"unknown device {device!r}; known: {', '.join(entries)}")
    return device


def _product(row: Mapping[str, str], entries: Mapping[str, Entry]) -> Product:
    device, kind, dtype = _known(row["device"], entries), row["kind"], row["dtype"]
    if kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}, not {kind!r}")
    sides, groups = [whole(row[side]) for side in ("m", "n", "k")], whole(row["groups"])
    if min(*sides, groups) < 1:
        raise ValueError("groups, m, n and k are whole numbers from 1")
    if row["layout"] not in ("TN", "NN", "NT"):
        raise ValueError(f"layout is one of TN, NN, NT, not {row['layout']!r}")
    flop = 2.0 * sides[0] * sides[1] * sides[2] * groups
    time = real(row["time_us"]) * 1e-6 if row["time_us"] else flop / (real(row["tflops"]) * 1e12)
    step = entries[device].pad.get(dtype, 1) if device else 1
    m, n, k = (-(-side // step) * step for side in sides)
    gemm = Gemm(m, n, k, groups, dtype, _BYTES.get(dtype, 2), weight_gradient=row["accumulates"] == "1", layout=row["layout"])
    return Product(device, kind, gemm, _positive(time), row["source"], row["note"])


def _attended(row: Mapping[str, str], entries: Mapping[str, Entry]) -> Attended:
    batch, sequence, heads, kv_heads, width, value = (
        whole(row[key]) for key in ("batch", "sequence", "heads", "kv_heads", "head_dim", "value_dim")
    )
    if row["direction"] not in ("forward", "backward"):
        raise ValueError(f"direction is forward or backward, not {row['direction']!r}")
    if row["counted"] not in ("full", "executed"):
        raise ValueError(f"counted is full or executed, not {row['counted']!r}")
    attention = Attention(
        batch, heads, kv_heads, sequence, sequence, width, causal=row["causal"] == "1", backward=row["direction"] == "backward",
        implementation=row["implementation"], value_dim=value,
    )  # fmt: skip
    # benchmarks often count the operations of a kernel without mask whether there is one or not, and backward as 5/2 of forward
    flop = replace(attention, backward=False, causal=attention.causal and row["counted"] == "executed").flop
    flop *= _BACKWARD_COUNT if attention.backward else 1.0
    time = _positive(flop / (real(row["tflops"]) * 1e12))
    return Attended(_known(row["device"], entries), attention, time, row["source"], row["note"])


def _positive(time: float) -> float:
    if not time > 0:
        raise ValueError(f"a time is positive, not {time:g} s")
    return time
