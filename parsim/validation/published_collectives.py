"""Published measurements of collectives and the machines behind them: `validation/nccl`.

The data are a table of rows and a description of every system; see validation/nccl/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from parsim.errors import Finding, ScenarioError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.nccl.inputs import bus_factor
from parsim.scenario.files import read, read_text
from parsim.scenario.machines import machines
from parsim.units import parse, whole
from parsim.validation.published import CsvRows, Published, folder, one_of, only_known, printed_time, read_entries


class Host(NamedTuple):
    """What the host of a system adds to a loop of collectives."""

    floor: float = 0.0
    """what it needs to issue a call [s]"""
    gap: float = 0.0
    """before every call [s]"""
    exchange: float = 0.0
    """before an exchange, whose sends and receives are issued one by one, besides [s]"""


HOST = {"nccl-tests": Host(), "python": Host(38e-6, 8e-6), "python-synchronous": Host(gap=43e-6, exchange=25e-6)}
"""Python needs 38 us to issue one call (the floor of an H200 sweep, stas00/ml-engineering network/README.md) and leaves a gap of 8 us
before it (the same, from 1 MiB on); calls that are waited for take 45 us more than the library's floor (PKU-DAIR/Hetu-Galvatron), of
which the launch is 2, and its exchanges 25 us more than that"""
_SYSTEM_KEYS = ("title", "class", "topology", "fabric", "set", "network", "driven_from", "issue", "nccl", "family", "inferred", "misses")


@dataclass(frozen=True, slots=True)
class PublishedCollective(Published):
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

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from the other points."""
        return self.system, self.kind, self.gpus, self.nodes, self.bytes, self.algorithm

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

    def explains(self, point: PublishedCollective, profile: str) -> bool:
        """Whether the reason is about the prediction of `profile` for `point`."""
        right = self.gpus in (None, point.gpus) and self.profile in (None, profile)
        return right and self.least <= point.bytes < self.below and point.nodes >= self.nodes


@dataclass(frozen=True, slots=True)
class ErrorBand:
    """What counts as right: predicted over measured time - 1, by class of sizes."""

    what: str
    low: tuple[float, ...] | None
    """None: nothing is claimed"""
    high: tuple[float, ...] | None
    more: tuple[float, ...] | None = None
    """both limits at more than two machines, where they differ"""

    def limits(self, number: int, nodes: int = 1) -> tuple[float, float] | None:
        """Limits of an error in size class `number` on so many machines; None where nothing is claimed."""
        if self.low is None or self.high is None:
            return None
        if nodes > 2 and self.more is not None:
            return -self.more[number], self.more[number]
        return self.low[number], self.high[number]

    def holds(self, number: int, error: float, nodes: int = 1) -> bool | None:
        """Whether an error is inside; None where nothing is claimed."""
        limits = self.limits(number, nodes)
        return None if limits is None else limits[0] <= error <= limits[1]


@dataclass(frozen=True, slots=True)
class BenchmarkSystem:
    """The machines that a set of points was measured on."""

    name: str
    title: str
    band: str
    topology: str | Mapping[str, Any]
    fabric: Mapping[str, Any] | None
    change: Mapping[str, Any] | None
    network: str
    driven_from: str
    issue: Mapping[str, float]
    """what issuing a collective or an exchange takes at least, where the source shows it [s]"""
    nccl: str
    """version of the library, where the source prints it"""
    family: str
    """systems of one publisher and machine share it: whoever has seen one has seen the others"""
    inferred: str
    reasons: tuple[Reason, ...]

    def cluster(self, nodes: int, links: Mapping[str, Any] | None = None) -> Cluster:
        """As many of the machines as a point needs; `links` changes kinds of links further.

        Raises:
            TopologyError: what is wrong in the description.
        """
        change = {**(self.change or {}), "links": {**(self.change or {}).get("links", {}), **links}} if links else self.change
        return machines(self.topology, nodes, fabric=self.fabric, change=change)

    def reason(self, point: PublishedCollective, profile: str) -> str:
        """Why the prediction of a profile for `point` misses."""
        return next((reason.text for reason in self.reasons if reason.explains(point, profile)), "unexplained")


@dataclass(frozen=True, slots=True)
class Measurements:
    """Published collectives, the systems they were measured on, and the bands that are claimed for them."""

    points: tuple[PublishedCollective, ...]
    systems: Mapping[str, BenchmarkSystem]
    bands: Mapping[str, ErrorBand]
    edges: tuple[int, int, int]
    """of the size classes [0, a), [a, b], (b, c), [c, ...) [B]"""
    wire: Mapping[str, float]
    """signalling rate of a kind of link, per link and direction [B/s]"""
    fitted: Mapping[tuple[object, ...], tuple[float, float]]
    """key of a point of several machines -> its times from a priori numbers, and from a fit without its family, if stored [s]"""
    left_out: Mapping[str, int]
    """rule -> rows that it keeps out (left_out.csv)"""

    def size_class(self, size: int) -> int:
        """Number of the class of sizes, 0 to 3, that `size` [B] is in."""
        low, middle, high = self.edges
        return 0 if size < low else 1 if size <= middle else 2 if size < high else 3


def measurements(directory: str | Path | None = None) -> Measurements:
    """The measurements of a directory with measurements.csv and systems.yaml; None: those that come with parsim.

    Raises:
        ScenarioError: missing files, unknown keys, rows of unknown systems.
    """
    home = folder("nccl", directory)
    about = read(home / "systems.yaml")
    findings: list[Finding] = []
    bands = read_entries(about, "bands", _band, findings)
    systems = read_entries(about, "systems", _system, findings)
    wire = read_entries(about, "wire", lambda _, tree: float(parse(tree["rate"], "rate")), findings)
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
    path = home / "measurements.csv"
    rows = tuple(CsvRows(read_text(path), str(path), findings).made(_published))
    fitted = _fitted(home / "left_out_predictions.csv", findings)
    left_out = _left_out(home / "left_out.csv", findings)
    broken = {finding.path for finding in findings}
    findings += [
        Finding("unknown system", "system", row.system, file=str(path), line=line)
        for line, row in rows
        if row.system not in systems and f"systems.{row.system}" not in broken
    ]
    if findings:
        raise ScenarioError(findings)
    return Measurements(tuple(row for _, row in rows), systems, bands, (low, middle, high), wire, fitted, left_out)


def _fitted(path: Path, findings: list[Finding]) -> dict[tuple[object, ...], tuple[float, float]]:
    """What validation/nccl/fit.py wrote; empty where there is no such file."""
    if not path.is_file():
        return {}
    rows = CsvRows(read_text(path), str(path), findings).made(_stored)
    return {key: times for _, (key, times) in rows}


def _stored(cells: Mapping[str, str]) -> tuple[tuple[object, ...], tuple[float, float]]:
    key = (cells["system"], cells["collective"], whole(cells["gpus"]), whole(cells["nodes"]), whole(cells["bytes"]), cells["algorithm"])
    return key, (float(cells["a_priori_us"]) * 1e-6, float(cells["left_out_us"]) * 1e-6)


def _left_out(path: Path, findings: list[Finding]) -> dict[str, int]:
    """How many rows every rule keeps out."""
    counts: dict[str, int] = {}
    if path.is_file():
        for _, rule in CsvRows(read_text(path), str(path), findings).made(lambda cells: cells["rule"]):
            counts[rule] = counts.get(rule, 0) + 1
    return counts


def _band(_: str, tree: Mapping[str, Any]) -> ErrorBand:
    low, high = (None if tree[side] is None else tuple(map(float, tree[side])) for side in ("low", "high"))
    more = tuple(map(float, tree["more"])) if tree.get("more") is not None else None
    if any(side is not None and len(side) != 4 for side in (low, high, more)):
        raise ValueError("needs a limit for each of four classes of sizes")
    return ErrorBand(str(tree["what"]), low, high, more)


def _system(name: str, tree: Mapping[str, Any]) -> BenchmarkSystem:
    only_known(tree, _SYSTEM_KEYS)
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
    return BenchmarkSystem(
        name=name,
        title=str(tree["title"]),
        band=str(tree["class"]),
        topology=tree["topology"],
        fabric=tree.get("fabric"),
        change=tree.get("set"),
        network=str(tree.get("network", "")),
        driven_from=one_of(tree, "driven_from", tuple(HOST)),
        issue={kind: float(parse(time, "time")) for kind, time in tree.get("issue", {}).items()},
        nccl=str(tree.get("nccl", "")),
        family=str(tree.get("family", name)),
        inferred=str(tree.get("inferred", "")),
        reasons=reasons,
    )


def _published(cells: Mapping[str, str]) -> PublishedCollective:
    kind, gpus, nodes, size = cells["collective"], whole(cells["gpus"]), whole(cells["nodes"]), whole(cells["bytes"])
    if nodes < 1 or gpus < 2 or gpus % nodes:
        raise ValueError(f"{gpus:,} GPUs on {nodes:,} machines; at least 2, equally many on every machine")
    time = printed_time(cells, "busbw_GBps", size * bus_factor(kind, gpus), 1e9)
    return PublishedCollective(
        cells["system"], kind, gpus, nodes, size, time, cells["algorithm"], source=cells["source"], note=cells["note"]
    )
