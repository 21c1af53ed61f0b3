"""Published measurements of collectives and the machines behind them: `validation/nccl`.

The data are a table of rows and a description of every system; see validation/nccl/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from parsim.errors import Finding, ScenarioError
from parsim.hardware.fabric.cluster import Cluster
from parsim.scenario.files import Document, data_root, read, read_text
from parsim.study.collective import bus_factor
from parsim.study.csv_rows import CsvRows
from parsim.study.machines import machines
from parsim.units import parse, real, whole

Thing = TypeVar("Thing")

DRIVERS = ("nccl-tests", "python", "python-synchronous")
_SYSTEM_KEYS = ("title", "class", "topology", "fabric", "set", "network", "driven_from", "inferred", "misses")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured collective."""

    system: str
    kind: str
    gpus: int
    nodes: int
    bytes: int
    time: float
    """[s]; from the bus bandwidth where that is what was printed"""
    algorithm: str
    """auto, or the one that the measurement was made with"""
    source: str
    note: str

    @property
    def busbw(self) -> float:
        """Measured bus bandwidth [B/s]."""
        return self.bytes / self.time * bus_factor(self.kind, self.gpus)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why predictions for some points of a system miss."""

    text: str
    least: float = 0.0
    """smallest size that it is about [B]"""
    below: float = math.inf
    nodes: int = 1
    """smallest number of machines"""
    gpus: int | None = None
    """number of GPUs; None: any"""
    profile: str | None = None
    """whose predictions; None: all"""

    def explains(self, point: Point, profile: str) -> bool:
        """Whether the point is one of those."""
        right = self.gpus in (None, point.gpus) and self.profile in (None, profile)
        return right and self.least <= point.bytes < self.below and point.nodes >= self.nodes


@dataclass(frozen=True, slots=True)
class Band:
    """What counts as right: predicted over measured time - 1, by class of sizes."""

    what: str
    low: tuple[float, ...] | None
    """None: nothing is claimed"""
    high: tuple[float, ...] | None

    def holds(self, number: int, error: float) -> bool | None:
        """Whether an error in size class `number` is inside; None where nothing is claimed."""
        if self.low is None or self.high is None:
            return None
        return self.low[number] <= error <= self.high[number]


@dataclass(frozen=True, slots=True)
class System:
    """The machines that a set of points was measured on."""

    name: str
    title: str
    band: str
    topology: str | Mapping[str, Any]
    fabric: Mapping[str, Any] | None
    change: Mapping[str, Any] | None
    network: str
    driven_from: str
    inferred: str
    reasons: tuple[Reason, ...]

    def cluster(self, nodes: int) -> Cluster:
        """As many of the machines as a point needs.

        Raises:
            TopologyError: what is wrong in the description.
        """
        return machines(self.topology, nodes, fabric=self.fabric, change=self.change)

    def reason(self, point: Point, profile: str) -> str:
        """Why the prediction of a profile for `point` misses."""
        return next((reason.text for reason in self.reasons if reason.explains(point, profile)), "unexplained")


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that is measured."""

    points: tuple[Point, ...]
    systems: Mapping[str, System]
    bands: Mapping[str, Band]
    edges: tuple[int, int, int]
    """of the size classes [0, a), [a, b], (b, c), [c, ...) [B]"""
    wire: Mapping[str, float]
    """signalling rate of a kind of link, per link and direction [B/s]"""

    def size_class(self, size: int) -> int:
        """0 to 3."""
        low, middle, high = self.edges
        return 0 if size < low else 1 if size <= middle else 2 if size < high else 3


def measurements(directory: str | Path | None = None) -> Measurements:
    """The measurements of a directory with measurements.csv and systems.yaml; None: those that come with parsim.

    Raises:
        ScenarioError: missing files, unknown keys, rows of unknown systems.
    """
    folder = data_root() / "validation" / "nccl" if directory is None else Path(directory)
    about = read(folder / "systems.yaml")
    findings: list[Finding] = []
    bands: dict[str, Band] = _each(about, "bands", _band, findings)
    systems: dict[str, System] = _each(about, "systems", _system, findings)
    wire: dict[str, float] = _each(about, "wire", lambda _, tree: float(parse(tree["rate"], "rate")), findings)
    findings += [
        Finding(f"unknown class {system.band!r}", f"systems.{name}.class", system.band, f"known: {', '.join(bands)}").at(
            *about.locate(f"systems.{name}.class")
        )
        for name, system in systems.items()
        if system.band not in bands
    ]
    try:
        low, middle, high = (int(parse(text, "bytes")) for text in about.tree.get("sizes", ()))
    except (TypeError, ValueError) as error:
        findings.append(Finding(f"expected three sizes: {error}", "sizes").at(*about.locate("sizes")))
    path = folder / "measurements.csv"
    points = _points(read_text(path), str(path), systems, findings)
    if findings:
        raise ScenarioError(findings)
    return Measurements(points, systems, bands, (low, middle, high), wire)


def _each(about: Document, section: str, make: Callable[[str, Any], Thing], findings: list[Finding]) -> dict[str, Thing]:
    """What `make` makes of every entry of a section; what it cannot use is a finding."""
    made: dict[str, Thing] = {}
    for name, tree in about.section(section).items():
        try:
            made[name] = make(name, tree)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            findings.append(Finding(problem, f"{section}.{name}").at(*about.locate(f"{section}.{name}")))
    if not made and not findings:
        findings.append(Finding("missing", section, file=about.path))
    return made


def _band(_: str, tree: Mapping[str, Any]) -> Band:
    sides = [None if tree[side] is None else tuple(map(float, tree[side])) for side in ("low", "high")]
    if any(side is not None and len(side) != 4 for side in sides):
        raise ValueError("needs a limit for each of four classes of sizes")
    return Band(str(tree["what"]), *sides)


def _system(name: str, tree: Mapping[str, Any]) -> System:
    for key in tree:
        if key not in _SYSTEM_KEYS:
            raise ValueError(f"unknown key {key!r}; known: {', '.join(_SYSTEM_KEYS)}")
    if tree["driven_from"] not in DRIVERS:
        raise ValueError(f"driven_from is one of {', '.join(DRIVERS)}, not {tree['driven_from']!r}")
    if not isinstance(tree["topology"], str | Mapping):
        raise ValueError(f"topology is a name or a mapping, not {tree['topology']!r}")
    for key in ("fabric", "set"):
        if tree.get(key) is not None and not isinstance(tree[key], Mapping):
            raise ValueError(f"{key} is a mapping, not {tree[key]!r}")
    reasons = tuple(
        Reason(
            str(entry["text"]),
            float(parse(entry.get("from", 0), "bytes")),
            float(parse(entry["below"], "bytes")) if "below" in entry else math.inf,
            int(entry.get("nodes", 1)),
            int(entry["gpus"]) if "gpus" in entry else None,
            entry.get("profile"),
        )
        for entry in tree.get("misses", ())
    )
    return System(
        name=name,
        title=str(tree["title"]),
        band=str(tree["class"]),
        topology=tree["topology"],
        fabric=tree.get("fabric"),
        change=tree.get("set"),
        network=str(tree.get("network", "")),
        driven_from=str(tree["driven_from"]),
        inferred=str(tree.get("inferred", "")),
        reasons=reasons,
    )


def _points(text: str, name: str, systems: Mapping[str, System], findings: list[Finding]) -> tuple[Point, ...]:
    points = []
    for line, row in CsvRows(text, name, findings):
        try:
            point = _point(row)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            findings.append(Finding(f"cannot be read: {error}", file=name, line=line))
            continue
        if point.system not in systems and not any(finding.path == f"systems.{point.system}" for finding in findings):
            findings.append(Finding("unknown system", "system", point.system, file=name, line=line))
        points.append(point)
    return tuple(points)


def _point(row: Mapping[str, str]) -> Point:
    kind, gpus, nodes, size = row["collective"], whole(row["gpus"]), whole(row["nodes"]), whole(row["bytes"])
    if nodes < 1 or gpus < 2 or gpus % nodes:
        raise ValueError(f"{gpus:,} GPUs on {nodes:,} machines; at least 2, equally many on every machine")
    bus = bus_factor(kind, gpus)
    time = real(row["time_us"]) * 1e-6 if row["time_us"] else size * bus / (real(row["busbw_GBps"]) * 1e9)
    if not 0 < time < math.inf:
        raise ValueError(f"a time is positive, not {time:g} s")
    return Point(row["system"], kind, gpus, nodes, size, time, row["algorithm"], row["source"], row["note"])
