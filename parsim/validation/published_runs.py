"""Published training runs: `validation/runs`.

`sources.yaml` describes the sources and the rules by which a row may be left out, `<source>.csv` holds the rows of a source: what it
prints, under the names of scenario keys. See validation/runs/README.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.effects import catalogue
from parsim.scenario.files import Document, read, read_text
from parsim.scenario.load import put
from parsim.units import real
from parsim.validation.published import UNREADABLE, CsvRows, Published, cell, excluded_by_rule, folder, reason

MEASURED = {"step_time_s": "s", "allocated_gib": "GiB", "reserved_gib": "GiB", "device_used_gib": "GiB"}
"""columns that were measured, and their units"""
_WORDS = ("title", "source", "family", "convention", "inferred", "known")
_SOURCE_KEYS = (*_WORDS, "settings", "fitted", "mfu_only", "left_out", "memory_left_out")


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

    def scenario(self, *changes: Mapping[str, Any]) -> dict[str, Any]:
        """A scenario tree with values for keys such as ``software.step_constant`` or ``device.gemm.efficiency`` put in."""
        tree = copy.deepcopy(dict(self.settings))
        for change in changes:
            for key, value in change.items():
                put(tree, f"cluster.set.{key}" if key.startswith("device.") else key, value)
        return tree


@dataclass(frozen=True, slots=True)
class RunSource:
    """A publication with its runs."""

    name: str
    title: str
    reference: str
    family: str
    """sources that share publisher, stack and machine; they are held out together"""
    convention: str
    """how seconds follow from what is printed; empty: seconds or tokens per second are printed"""
    inferred: str
    """what is not printed, and how it was chosen"""
    known: str
    """what is known of its errors; empty: nothing"""
    rows: tuple[PublishedRun, ...]
    fitted: bool | str = True
    """effects of training are fitted to its rows, or only one; False: they only judge"""
    mfu_only: bool = False
    """it prints neither seconds nor throughput but MFU: its seconds are as good as its formula and its peak are known"""


def published(directory: str | Path | None = None, names: Sequence[str] = ()) -> tuple[RunSource, ...]:
    """The sources of a directory (None: those that come with parsim), all or the ones called `names`.

    Raises:
        ScenarioError: missing files, unknown keys, rows that contradict their source's settings.
    """
    home = folder("runs", directory)
    about = read(home / "sources.yaml")
    listed = about.section("sources")
    known = ", ".join(map(str, listed))
    findings = [Finding(f"unknown source {name!r}", "--source", name, f"known: {known}") for name in names if name not in listed]
    if not listed:
        findings.append(Finding("missing", "sources", file=about.path))
    sources = [_source(str(name), home, about, findings) for name in listed if not names or name in names]
    if not findings and not any(source.rows for source in sources if source is not None):
        findings.append(
            Finding("no source has a row", file=about.path, suggestion="write one line per run into NAME.csv, below the heading")
        )
    if findings:
        raise ScenarioError(findings)
    return tuple(source for source in sources if source is not None)


def not_expressed(directory: str | Path | None = None) -> tuple[tuple[str, str, str], ...]:
    """Published rows that cannot be scored: id, source and what is missing; none where there is no such file."""
    path = folder("runs", directory) / "not_expressed.csv"
    if not path.exists():
        return ()
    findings: list[Finding] = []
    rows = tuple(row for _, row in CsvRows(read_text(path), str(path), findings).made(lambda c: (c["id"], c["source"], c["reason"])))
    if findings:
        raise ScenarioError(findings)
    return rows


def _source(name: str, home: Path, about: Document, findings: list[Finding]) -> RunSource | None:
    at = f"sources.{name}"
    tree = about.section("sources")[name]
    if not isinstance(tree, Mapping):
        findings.append(Finding("expected a mapping", at).at(*about.locate(at)))
        return None
    before = len(findings)
    findings += [
        Finding("unknown key", f"{at}.{key}", tree[key], f"known: {', '.join(_SOURCE_KEYS)}").at(*about.locate(f"{at}.{key}"))
        for key in tree
        if key not in _SOURCE_KEYS
    ]
    findings += [Finding("required", f"{at}.{key}").at(*about.locate(at)) for key in ("title", "source", "family") if key not in tree]
    if len(findings) > before:
        return None
    path = home / f"{name}.csv"
    settings = tree.get("settings") or {}
    if not isinstance(settings, Mapping):
        findings.append(Finding("expected a mapping of scenario keys", f"{at}.settings", settings).at(*about.locate(f"{at}.settings")))
        return None
    table = CsvRows(read_text(path), str(path), findings)
    columns = [column for column in table.columns if "." in column]
    for column in columns:
        if (stated := _stated(settings, column)) is not None:
            rule = "a row may only say what its source prints; what is the same for all rows stands in the settings"
            findings.append(Finding(f"{rule}: the settings have {stated}", column, file=str(path), line=1))
    left_out, no_memory = (_left_out(about, at, key, findings) for key in ("left_out", "memory_left_out"))
    if len(findings) > before:
        return None
    rows = [row for _, row in table.made(lambda cells: _row(name, cells, columns, settings, left_out, no_memory))]
    known = {row.id for row in rows} | {"all"}
    findings += [
        Finding(f"no row is called {one}", f"{at}.left_out").at(*about.locate(f"{at}.left_out"))
        for one in {**left_out, **no_memory}
        if one not in known and ".." not in one
    ]
    title, reference, family, convention, inferred, known_of = (str(tree.get(key, "")) for key in _WORDS)
    flags = {"fitted": tree.get("fitted", True), "mfu_only": tree.get("mfu_only", False)}
    effects = [effect.name for effect in catalogue()]
    for key, words in (("fitted", effects), ("mfu_only", [])):
        if not isinstance(flags[key], bool) and flags[key] not in words:
            rule = "expected true, false or the name of an effect" if words else "expected true or false"
            findings.append(Finding(rule, f"{at}.{key}", flags[key]).at(*about.locate(f"{at}.{key}")))
            return None
    return RunSource(name, title, reference, family, convention, inferred, known_of, tuple(rows), **flags)


def _left_out(about: Document, at: str, key: str, findings: list[Finding]) -> Mapping[str, str]:
    """Row -> why it is left out, by one of the rules of the file."""
    try:
        return excluded_by_rule(about.section("sources")[at.removeprefix("sources.")].get(key), about.section("rules"))
    except UNREADABLE as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else f"cannot be read: {error}"
        findings.append(Finding(problem, f"{at}.{key}").at(*about.locate(f"{at}.{key}")))
        return {}


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
            put(tree, column, cell(cells[column]))
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
