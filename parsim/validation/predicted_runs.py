"""Predicted against published steps of training runs: seconds and memory, by source.

Three grades, never mixed (see docs/accuracy.md). *A priori*: datasheets, measured kernels and collectives, documented behaviour of the
stack; no effect of training (`parsim.scenario.effects`). *Left out*: the effects fitted without the source's family, which is then
predicted. *Calibrated*: the effects that come with parsim, fitted on all families together.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path
from typing import Any

from parsim.errors import InputError
from parsim.run import simulate, step_of
from parsim.scenario.build import build
from parsim.scenario.files import read
from parsim.scenario.load import load
from parsim.validation.published import folder
from parsim.validation.published_runs import PublishedRun, RunSource
from parsim.validation.score import relative_error

GRADES = ("a-priori", "left-out", "calibrated")
MEMORY = {"allocated_gib": "peak_allocated_bytes", "reserved_gib": "peak_reserved_bytes", "device_used_gib": "peak_device_used_bytes"}
"""measured column -> key of the report's memory"""
EFFECTS = "software.effects"


@dataclass(frozen=True, slots=True)
class Fits:
    """Effects of training that were fitted without one family: family -> effect -> value."""

    left_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def effects(self, grade: str, family: str) -> Any:
        """What ``software.effects`` is in a grade; None where nothing was fitted without the family."""
        if grade == "a-priori":
            return "none"
        if grade == "calibrated":
            return "published"
        return self.left_out.get(family)


@dataclass(frozen=True, slots=True)
class PredictedRun:
    """The predictions of one published run, one per grade."""

    row: PublishedRun
    seconds: Mapping[str, float]
    """grade -> step time [s]; without a grade that was not asked for"""
    gib: float | None = None
    """peak memory [GiB], of the kind that was measured"""
    refused: str = ""
    """why the row cannot be simulated"""

    def error(self, grade: str) -> float | None:
        """Predicted over measured step time, less one; None without a prediction or a measurement."""
        measured = self.row.measured.get("step_time_s")
        return None if measured is None or grade not in self.seconds else relative_error(self.seconds[grade], measured)

    @property
    def memory(self) -> float | None:
        """Measured peak memory [GiB]."""
        return next((value for key, value in self.row.measured.items() if key in MEMORY), None)

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, less one."""
        return None if self.gib is None or self.memory is None else relative_error(self.gib, self.memory)


def fitted(directory: str | Path | None = None) -> Fits:
    """The effects of ``fits.yaml``; none if there is no such file."""
    path = folder("runs", directory) / "fits.yaml"
    return Fits(read(path).section("left_out")) if path.exists() else Fits()


def inputs(row: PublishedRun) -> str:
    """Twelve hexadecimal digits of the sha256 of a row's scenario: a stored prediction with another one is out of date."""
    return hashlib.sha256(json.dumps(row.scenario(), sort_keys=True, default=str).encode()).hexdigest()[:12]


def step_time(tree: Mapping[str, Any], *, trust_code: bool = False) -> float:
    """Seconds of one optimizer step of a scenario; `trust_code` as in `load`.

    Raises:
        InputError: the scenario cannot be simulated.
    """
    return step_of(build(load(tree, trust_code=trust_code))).step_time


def peak_gib(tree: Mapping[str, Any], column: str) -> float:
    """Peak memory of a scenario [GiB], of the kind that a column measured; twice as many micro-batches as stages reach it.

    Raises:
        InputError: the scenario cannot be simulated.
    """
    document = simulate(shortened(tree, 2)).document()
    return float(document["memory"][MEMORY[column]]) / 2**30


def shortened(tree: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """A scenario with at most `rounds` micro-batches per stage of the pipeline."""
    built = build(load(tree))
    training = built.training
    each = training.global_batch // training.micro_batches
    shorter = copy.deepcopy(dict(tree))
    shorter["training"]["global_batch"] = each * min(training.micro_batches, rounds * built.parallelism.pipeline.size)
    shorter["training"].pop("gradient_accumulation", None)
    return shorter


def predict(row: PublishedRun, effects: Mapping[str, Any], *, memory: bool = True) -> PredictedRun:
    """One row; `effects`: grade -> ``software.effects``. A row that cannot be simulated says why."""
    seconds: dict[str, float] = {}
    gib = None
    try:
        if "step_time_s" in row.measured:
            for grade, value in effects.items():
                seconds[grade] = step_time(row.scenario({EFFECTS: value}))
        for column in MEMORY:
            if memory and column in row.measured:
                gib = peak_gib(row.scenario(), column)
    except InputError as error:
        return PredictedRun(row, {}, None, "; ".join(str(finding) for finding in error.findings))
    finally:
        gc.collect()  # clusters of thousands of GPUs hold themselves in cycles, and runs pause the collector
    return PredictedRun(row, seconds, gib)


def predictions(
    sources: Sequence[RunSource], fits: Fits, grades: Sequence[str] = GRADES, *, jobs: int | None = None
) -> Iterator[PredictedRun]:
    """Predict every row, in the order of the files and as they come, in `jobs` processes (None: one per CPU)."""
    work = []
    for source in sources:
        effects = {grade: value for grade in grades if (value := fits.effects(grade, source.family)) is not None}
        work += [(row, effects) for row in source.rows]
    if (jobs or cpu_count() or 1) == 1 or len(work) < 2:
        yield from (predict(*one) for one in work)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(predict, *zip(*work, strict=True), chunksize=2)
