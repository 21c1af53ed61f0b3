"""Predicted against published peak memory, by stack: nothing is fitted to it.

`validation/memory/stacks.yaml` says of each source what its figure means (allocated, reserved, the driver's) and which documented
settings of its stack decide memory; all are in GiB. Rows are those of `validation/runs`, of a file of its own, or of fine-tuning
(`parsim.validation.peaks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from statistics import fmean
from typing import Any, Literal, cast, get_args

from parsim.errors import Finding, InputError, ScenarioError
from parsim.report.table import Column, Table
from parsim.run import simulate
from parsim.scenario.files import Document, read
from parsim.scenario.load import put
from parsim.units import real
from parsim.validation.peaks import laid, scenario_of
from parsim.validation.peaks import rows as finetuned
from parsim.validation.predicted_runs import MEMORY, shortened
from parsim.validation.published import cell, excluded_by_rule, folder, one_of, only_known, read_entries, read_rows, reason
from parsim.validation.published_runs import RunSource, published
from parsim.validation.score import FIGURES, Errors, cells, errors, relative_error, signed_percent

Kind = Literal["allocated", "reserved", "device_used"]
_KEYS = ("stack", "file", "kind", "ranks", "settings", "versions", "left_out", "evidence")


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One published peak."""

    id: str
    source: str
    stack: str
    kind: Kind
    peak: float
    """measured [B]"""
    scenario: Mapping[str, Any]
    node: bool = False
    """of the first node's ranks only"""
    left_out: str = ""
    """why it is not scored"""


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """A row with its prediction."""

    row: MemoryRow
    predicted: float | None
    """[B]; None: refused"""
    refused: str = ""
    """why the row cannot be simulated"""

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None where it does not count."""
        return None if self.predicted is None or self.row.left_out else relative_error(self.predicted, self.row.peak)


def memory_rows(names: Sequence[str] = ()) -> tuple[MemoryRow, ...]:
    """The rows of all sources, or of those called `names`.

    Raises:
        ScenarioError: an unknown source, unreadable entries.
    """
    about = read(folder("memory") / "stacks.yaml")
    findings: list[Finding] = []
    runs = {source.name: source for source in published()}
    found = read_entries(about, "sources", lambda name, tree: _rows(name, tree, runs, about), findings)
    known = {**found, **_finetuned()}
    findings += [Finding(f"unknown source {name!r}", "--source", name, f"known: {', '.join(known)}") for name in names if name not in known]
    if findings:
        raise ScenarioError(findings)
    return tuple(row for name, rows in known.items() if not names or name in names for row in rows)


def sampled(rows: Sequence[MemoryRow], every: int) -> list[MemoryRow]:
    """Every so many rows of each source, the first included."""
    places: dict[str, int] = {}
    kept = []
    for row in rows:
        place = places[row.source] = places.get(row.source, -1) + 1
        if place % every == 0:
            kept.append(row)
    return kept


def _rows(name: str, tree: Mapping[str, Any], runs: Mapping[str, RunSource], about: Document) -> tuple[MemoryRow, ...]:
    """The rows of one source."""
    only_known(tree, _KEYS)
    kind = cast(Kind, one_of(tree, "kind", get_args(Kind)))
    excluded = excluded_by_rule(tree.get("left_out"), about.section("rules"))
    settings = tree.get("settings") or {}
    if "file" in tree:
        given = read_rows(folder("memory") / str(tree["file"]), lambda cells: _own(cells, settings))
    else:
        given = tuple(
            (row.id, value, laid(row.scenario(), settings), row.memory_left_out)
            for row in runs[name].rows
            for column, value in row.measured.items()
            if column in MEMORY
        )
    versions = {one: version["settings"] for version in tree.get("versions") or () for one in version["rows"]}
    node = one_of({"ranks": tree.get("ranks", "all")}, "ranks", ("all", "first-node")) == "first-node"
    stack = str(tree["stack"])
    return tuple(
        MemoryRow(one, name, stack, kind, value * 2**30, laid(scenario, versions.get(one, {})), node, why or reason(excluded, one))
        for one, value, scenario, why in given
    )


def _own(values: Mapping[str, str], settings: Mapping[str, Any]) -> tuple[str, float, dict[str, Any], str]:
    """A row of a file beside stacks.yaml: id, what was measured, its scenario."""
    tree = laid(settings, {})
    for column, value in values.items():
        if "." in column and value:
            put(tree, column, cell(value))
    return values["id"], real(values["gib"]), tree, ""


def _finetuned() -> dict[str, tuple[MemoryRow, ...]]:
    """The rows of fine-tuning, by group."""
    about = read(folder("memory") / "finetune.yaml")
    groups: dict[str, list[MemoryRow]] = {}
    for row in finetuned():
        if row.peak is not None:
            tree = scenario_of(row, about.tree)
            own = groups.setdefault(row.group, [])
            name, stack = f"{row.group}-{len(own) + 1:02} {row.name}", row.group.partition("-")[0]
            own.append(MemoryRow(name, row.group, stack, "allocated", row.peak, tree, left_out=row.left_out))
    return {name: tuple(rows) for name, rows in groups.items()}


def predict(row: MemoryRow) -> PredictedMemory:
    """One row; twice as many micro-batches as stages reach the peak. A row that cannot be simulated says why."""
    try:
        tree = dict(row.scenario)
        facts = simulate(tree if "gradient_accumulation" in tree["training"] else shortened(tree, 2)).measured
    except InputError as error:
        return PredictedMemory(row, None, "; ".join(str(finding) for finding in error.findings))
    devices = facts.memory.devices
    if row.node:
        devices = tuple(device for device in devices if device.rank < facts.ranks.total // facts.ranks.nodes)
    return PredictedMemory(row, float(max(getattr(device, f"{row.kind}_bytes") for device in devices)))


def predictions(rows: Sequence[MemoryRow], *, jobs: int | None = None) -> Iterator[PredictedMemory]:
    """Predict every row, in order and as they come, in `jobs` processes (None: one per CPU)."""
    if (jobs or cpu_count() or 1) == 1 or len(rows) < 2:
        yield from map(predict, rows)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(predict, rows)


def summary(found: Sequence[PredictedMemory]) -> dict[str, Errors]:
    """Errors of the rows that count, by source."""
    sources = dict.fromkeys(one.row.source for one in found)
    by_source = {name: errors(one.error for one in found if one.row.source == name) for name in sources}
    return {name: known for name, known in by_source.items() if known is not None}


def line(one: PredictedMemory) -> str:
    """A row as it is printed when it comes."""
    measured = f"{one.row.peak / 2**30:8.2f} GiB"
    if one.predicted is None:
        return f"  {one.row.id:44} {measured}  cannot be simulated: {one.refused}"
    error = signed_percent(relative_error(one.predicted, one.row.peak))
    why = f"  left out, {one.row.left_out}" if one.row.left_out else ""
    return f"  {one.row.id:44} {measured} {one.predicted / 2**30:8.2f} GiB {error:>6} %{why}"


def table(found: Sequence[PredictedMemory]) -> str:
    """Errors by source, and their mean over sources and over stacks."""
    known = summary(found)
    stacks = {one.row.source: (one.row.stack, one.row.kind) for one in found}
    columns = [Column("source", align="left"), Column("stack", align="left"), Column("kind", align="left"), *FIGURES.values()]
    rows = [(name, *stacks[name], *cells(figures)) for name, figures in known.items()]
    text = Table(columns, rows, "Error of the peak memory: predicted over measured, less one [%]; nothing is fitted to any of it").text()
    left, refused = sum(bool(one.row.left_out) for one in found), sum(one.predicted is None for one in found)
    mean = fmean([figures.mean for figures in known.values()] or [0.0])
    return f"{text}\n\nmean over {len(known)} sources: {100 * mean:.1f} %; rows left out: {left}, that cannot be simulated: {refused}"


def document(found: Sequence[PredictedMemory]) -> dict[str, Any]:
    """The whole comparison as one JSON document."""
    keys = {f"{name}_abs_error": name for name in ("mean", "median", "p90", "worst")} | {"rows": "rows", "bias": "bias"}
    stacks = {one.row.source: (one.row.stack, one.row.kind) for one in found}
    return {
        "parsim": 1,
        "sources": {
            name: {"stack": stacks[name][0], "kind": stacks[name][1], **figures.document(keys)} for name, figures in summary(found).items()
        },
        "rows": [
            {"id": one.row.id, "source": one.row.source, "measured_bytes": one.row.peak, "predicted_bytes": one.predicted,
             "error": one.error, "left_out": one.row.left_out or None, "refused": one.refused or None}
            for one in found
        ],
    }  # fmt: skip
