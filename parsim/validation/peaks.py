"""Predicted against published peak memory of fine-tuning, row by row.

`validation/memory/finetune.csv` holds the rows, `finetune.yaml` how each group of rows becomes scenarios. Rows that state how long
their longest sample is are scored; those that state a cap only are predicted at the cap and shown.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from parsim.report.table import Column, Table
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.files import read
from parsim.validation.published import Published, folder, read_rows
from parsim.validation.score import relative_error

UNITS = {"GB": 1e9, "GiB": 2.0**30}


@dataclass(frozen=True, slots=True)
class PublishedPeak(Published):
    """One published peak of allocated memory."""

    group: str
    model: str
    method: str
    """lora | qlora | full"""
    device: str
    gpus: int
    sequence: int
    """tokens of the longest sample"""
    length: str
    """stated | longest (of a data set whose longest sample comes first) | cap"""
    micro_batch: int
    base: str
    """nf4 | nf4-dq | '' (as the precision)"""
    peak: float | None
    """[B]; None: out of memory"""

    @property
    def name(self) -> str:
        """``llama-2-7b qlora nf4, micro-batch 1``."""
        gpus = f" on {self.gpus}" if self.gpus > 1 else ""
        return f"{self.model} {self.method}{f' {self.base}' if self.base else ''}, micro-batch {self.micro_batch}{gpus}"


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """A published peak with its prediction."""

    row: PublishedPeak
    allocated: int
    """peak of allocated memory [B], what the sources print"""
    fits: bool
    scenario: Mapping[str, Any]

    @property
    def error(self) -> float | None:
        """Predicted over measured peak, less one; None where the run ended out of memory."""
        return None if self.row.peak is None else relative_error(self.allocated, self.row.peak)


def rows() -> tuple[PublishedPeak, ...]:
    """The rows of ``finetune.csv``.

    Raises:
        ScenarioError: rows that cannot be read.
    """
    return read_rows(folder("memory") / "finetune.csv", _row)


def _row(entry: Mapping[str, str]) -> PublishedPeak:
    if entry["gate"] != "yes" and not entry["why"]:
        raise ValueError("a row that is left out says why")
    return PublishedPeak(
        group=entry["group"],
        model=entry["model"],
        method=entry["method"],
        device=entry["device"],
        gpus=int(entry["gpus"]),
        sequence=int(entry["sequence"]),
        length=entry["length"],
        micro_batch=int(entry["micro_batch"]),
        base=entry["base"],
        peak=float(entry["peak"]) * UNITS[entry["unit"]] if entry["peak"] else None,
        source=entry["source"],
        note=entry["note"],
        left_out="" if entry["gate"] == "yes" else entry["why"],
    )


def scenario_of(row: PublishedPeak, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario of a row, by the settings of its group."""
    group = settings["groups"][row.group]
    tree = laid(group["scenario"], {})
    tree = laid(tree, group.get("recipes", {}).get(row.model, {}))
    if row.gpus > 1:
        tree = laid(tree, group.get("sharded", {}))
    if row.method == "qlora":
        tree = laid(tree, group.get("quantised", {}))
        tree = laid(tree, {"training": {"finetune": {"method": "qlora", "base": row.base}}})
    training: dict[str, Any] = {"sequence_length": row.sequence, "micro_batch": row.micro_batch}
    if row.method == "full":
        training |= {"finetune": None, "recompute": "none"}
    cluster = {"topology": f"{row.gpus}x {row.device}"}
    return laid(tree, {"name": row.name, "model": settings["models"].get(row.model, row.model), "cluster": cluster, "training": training})


def laid(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of a copy of `base`, mapping by mapping."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        below = result.get(key)
        result[key] = laid(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else copy.deepcopy(value)
    return result


def predict(row: PublishedPeak, settings: Mapping[str, Any] | None = None) -> PredictedPeak:
    """Simulate one row."""
    tree = scenario_of(row, read(folder("memory") / "finetune.yaml").tree if settings is None else settings)
    report = simulate(load(tree))
    return PredictedPeak(row, max(device.allocated_bytes for device in report.measured.memory.devices), report.fits, tree)


def predictions(chosen: Iterable[PublishedPeak] | None = None) -> list[PredictedPeak]:
    """All rows (or the chosen ones), predicted."""
    settings = read(folder("memory") / "finetune.yaml").tree
    return [predict(row, settings) for row in (rows() if chosen is None else chosen)]


def table(predictions: Iterable[PredictedPeak]) -> Table:
    """A row per published peak: measured, predicted, error, and why it is left out of the score."""
    memory = partial(Column, write=lambda size: f"{size / 1e9:.2f} GB")
    columns = [
        Column("row", align="left"), memory("measured", key="measured_bytes"), memory("predicted", key="predicted_bytes"),
        Column("error", write=lambda error: f"{100 * error:+.1f} %"), Column("", align="left", key="left_out"),
    ]  # fmt: skip
    rows = []
    for p in predictions:
        measured, what = ("OOM", "out of memory") if p.row.peak is None else (p.row.peak, "")
        error = ("fits" if p.fits else "does not fit") if p.error is None else p.error
        rows.append((p.row.name, measured, p.allocated, error, p.row.left_out or what))
    return Table(columns, rows)
