"""Published training runs: `validation/runs`.

`sources.yaml` describes the sources, `<source>.csv` holds their rows: what a source prints, under the names of scenario keys.
`fits.yaml` holds the parameters that `validation/runs/fit.py` fitted. See validation/runs/README.md.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.files import Document, parse_value, read, read_text
from parsim.scenario.load import put
from parsim.units import real
from parsim.validation.published import UNREADABLE, CsvRows, Published, exclusions, folder, reason

MEASURED = {"step_time_s": "s", "allocated_gib": "GiB", "reserved_gib": "GiB", "device_used_gib": "GiB"}
"""columns that were measured, and their units"""
_SOURCE_KEYS = ("title", "source", "gpu", "settings", "inferred", "from_training", "constants", "left_out", "memory_left_out")
_STAGES = "model.stages."
"""keys of every profiled stage"""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of a source's software that its rows do not print."""

    name: str
    key: str
    """scenario key; ``device....`` is a key of the device file"""
    unit: str
    """empty: a share"""
    meaning: str
    start: float
    least: float
    most: float
    """what is physically possible"""
    also: Mapping[str, float] = field(default_factory=dict)
    """keys that are this many times the constant"""

    def values(self, number: float) -> dict[str, float | str]:
        """A fitted number as the scenario has it."""
        return {key: self._text(number * factor) for key, factor in {self.key: 1.0, **self.also}.items()}

    def _text(self, number: float) -> float | str:
        return f"{number:.4g} {self.unit}" if self.unit else float(f"{number:.4g}")


@dataclass(frozen=True, slots=True)
class PublishedRun(Published):
    """One published run; `source` is the name of its source."""

    id: str
    measured: Mapping[str, float]
    """column of `MEASURED` -> value"""
    settings: Mapping[str, Any]
    """the scenario, the source's settings and what the row prints"""
    memory_left_out: str = ""
    """why its memory is not scored; `left_out` is of its time"""

    @property
    def fold(self) -> str:
        """The half of its source that a row is in, by sha256 of its id: a or b."""
        return "ab"[hashlib.sha256(self.id.encode()).digest()[0] & 1]

    def scenario(self, *changes: Mapping[str, Any]) -> dict[str, Any]:
        """A scenario tree with values for keys such as ``software.step_constant`` or ``device.gemm.efficiency`` put in."""
        tree = copy.deepcopy(dict(self.settings))
        for change in changes:
            for key, value in change.items():
                if key.startswith(_STAGES):
                    for stage in tree["model"]["stages"]:
                        stage[key.removeprefix(_STAGES)] = value
                else:
                    put(tree, f"cluster.set.{key}" if key.startswith("device.") else key, value)
        return tree


@dataclass(frozen=True, slots=True)
class RunSource:
    """A publication with its runs, and what its software adds that rows do not print."""

    name: str
    title: str
    reference: str
    gpu: str
    """device whose parameters its rows judge"""
    inferred: str
    """what is not printed, and how it was chosen"""
    constants: tuple[Constant, ...]
    rows: tuple[PublishedRun, ...]
    from_training: Mapping[str, str] = field(default_factory=dict)
    """time, memory -> parameters of device files or settings that training runs decided, so that a priori predictions hold them"""


@dataclass(frozen=True, slots=True)
class Fits:
    """Fitted parameters, by scenario key."""

    calibrated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """GPU -> device parameters fitted on all its sources"""
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """source -> its own constants"""
    held_out: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """source -> {a, b}: device parameters fitted without the source and constants fitted on its other half"""

    def of(self, grade: str, row: PublishedRun, gpu: str) -> Mapping[str, Any]:
        """What is changed for a row: nothing a priori."""
        if grade == "calibrated":
            return {**self.calibrated.get(gpu, {}), **self.constants.get(row.source, {})}
        if grade == "held-out":
            return self.held_out.get(row.source, {}).get(row.fold, {})
        return {}


def published(directory: str | Path | None = None, names: Sequence[str] = ()) -> tuple[RunSource, ...]:
    """The sources of a directory (None: those that come with parsim), all or the ones called `names`.

    Raises:
        ScenarioError: missing files, unknown keys, rows that contradict their source's settings.
    """
    home = folder("runs", directory)
    about = read(home / "sources.yaml")
    known = ", ".join(map(str, about.tree))
    findings = [Finding(f"unknown source {name!r}", "--source", name, f"known: {known}") for name in names if name not in about.tree]
    sources = [_source(str(name), home, about, findings) for name in about.tree if not names or name in names]
    if not findings and not any(source.rows for source in sources if source is not None):
        findings.append(
            Finding("no source has a row", file=about.path, suggestion="write one line per run into NAME.csv, below the heading")
        )
    if findings:
        raise ScenarioError(findings)
    return tuple(source for source in sources if source is not None)


def fitted(directory: str | Path | None = None) -> Fits:
    """The parameters of `fits.yaml`; none if there is no such file."""
    path = folder("runs", directory) / "fits.yaml"
    if not path.exists():
        return Fits()
    document = read(path)
    return Fits(document.section("calibrated"), document.section("constants"), document.section("held_out"))


def _source(name: str, home: Path, about: Document, findings: list[Finding]) -> RunSource | None:
    tree = about.tree[name]
    if not isinstance(tree, Mapping):
        findings.append(Finding("expected a mapping", name).at(*about.locate(name)))
        return None
    before = len(findings)
    findings += [
        Finding("unknown key", f"{name}.{key}", tree[key], f"known: {', '.join(_SOURCE_KEYS)}").at(*about.locate(f"{name}.{key}"))
        for key in tree
        if key not in _SOURCE_KEYS
    ]
    findings += [Finding("required", f"{name}.{key}").at(*about.locate(name)) for key in ("title", "source", "gpu") if key not in tree]
    if len(findings) > before:
        return None
    path = home / f"{name}.csv"
    settings = tree.get("settings") or {}
    if not isinstance(settings, Mapping):
        findings.append(Finding("expected a mapping of scenario keys", f"{name}.settings", settings).at(*about.locate(f"{name}.settings")))
        return None
    table = CsvRows(read_text(path), str(path), findings)
    columns = [column for column in table.columns if "." in column]
    for column in columns:
        if (stated := _stated(settings, column)) is not None:
            rule = "a row may only say what its source prints; what is the same for all rows stands in the settings"
            findings.append(Finding(f"{rule}: the settings have {stated}", column, file=str(path), line=1))
    left_out, no_memory, constants = (_read(about, name, key, make, findings) for key, make in _PARTS.items())
    if len(findings) > before:
        return None
    rows = [row for _, row in table.made(lambda cells: _row(name, cells, columns, settings, left_out, no_memory))]
    known = {row.id for row in rows}
    findings += [
        Finding(f"no row is called {one}", f"{name}.left_out").at(*about.locate(f"{name}.left_out"))
        for one in {**left_out, **no_memory}
        if one not in known and ".." not in one
    ]
    return RunSource(
        name, str(tree["title"]), str(tree["source"]), str(tree["gpu"]), str(tree.get("inferred", "")), constants, tuple(rows),
        {str(of): str(words) for of, words in (tree.get("from_training") or {}).items()},
    )  # fmt: skip


def _constant(name: str, entry: Mapping[str, Any]) -> Constant:
    start, least, most = (float(entry[key]) for key in ("start", "from", "to"))
    also = {str(key): float(factor) for key, factor in (entry.get("also") or {}).items()}
    return Constant(name, str(entry["key"]), str(entry.get("unit", "")), str(entry["meaning"]), start, least, most, also)


def _row(
    source: str,
    cells: Mapping[str, str],
    columns: Sequence[str],
    settings: Mapping[str, Any],
    left_out: Mapping[str, str],
    no_memory: Mapping[str, str],
) -> PublishedRun:
    tree = copy.deepcopy(dict(settings))
    for column in columns:
        if cells[column]:
            put(tree, column, parse_value(cells[column]))
    measured = {column: real(cells[column]) for column in MEASURED if cells.get(column)}
    for column, value in measured.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{column} is positive, not {value:g}")
    one = cells["id"]
    return PublishedRun(one, measured, tree, source=source, left_out=reason(left_out, one), memory_left_out=reason(no_memory, one))


def _stated(settings: Mapping[str, Any], path: str) -> Any:
    """What the settings say under a key path; None if nothing."""
    holder: Any = settings
    for key in path.split("."):
        if not isinstance(holder, Mapping):
            return holder if holder is not None else None
        holder = holder.get(key)
    return holder


def _constants(entries: Any) -> tuple[Constant, ...]:
    return tuple(_constant(str(key), entry) for key, entry in (entries or {}).items())


_PARTS: dict[str, Callable[[Any], Any]] = {"left_out": exclusions, "memory_left_out": exclusions, "constants": _constants}
"""key of a source -> what reads it"""


def _read(about: Document, name: str, key: str, make: Callable[[Any], Any], findings: list[Finding]) -> Any:
    """What `make` makes of the value under a key of a source; what it cannot use is a finding."""
    try:
        return make(about.tree[name].get(key))
    except UNREADABLE as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else f"cannot be read: {error}"
        findings.append(Finding(problem, f"{name}.{key}").at(*about.locate(f"{name}.{key}")))
        return {}
