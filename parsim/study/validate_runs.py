"""Predicted against published steps of training: seconds and memory, by source.

Three grades, never mixed. *A priori*: device files as they are (datasheets, matrix products, collectives) and the default
software; where training runs decided one of their parameters, `Source.from_training` says so. *Calibrated*: device parameters fitted on
all sources of a GPU, and each source's named constants. *Held out*: device parameters fitted without the source, its constants on the
other half of its rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from statistics import fmean, median
from typing import Any

from parsim.errors import InputError
from parsim.run import execute, simulate
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.quantiles import percentile
from parsim.study.runs import Fits, Row, Source

GRADES = ("a-priori", "calibrated", "held-out")
MEMORY = {"allocated_gib": "peak_allocated_bytes", "reserved_gib": "peak_reserved_bytes", "device_used_gib": "peak_device_used_bytes"}
"""measured column -> key of the report's memory"""
_WARM = 2
"""a step grows by the same time per micro-batch once this many times the pipeline's depth are under way"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row, predicted in one grade."""

    row: Row
    grade: str
    seconds: float | None
    """step time [s]; None where none was measured or the row is left out for it"""
    gib: float | None = None
    """peak memory [GiB], of the kind that was measured"""
    refused: str = ""
    """why the row cannot be simulated"""

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, less one."""
        return None if self.seconds is None else self.seconds / self.row.measured["step_time_s"] - 1.0

    @property
    def memory(self) -> float | None:
        """Measured peak memory [GiB]."""
        return next((value for key, value in self.row.measured.items() if key in MEMORY), None)

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, less one."""
        return None if self.gib is None or self.memory is None else self.gib / self.memory - 1.0


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of some rows."""

    rows: int
    mean: float
    """of the absolute errors"""
    middle: float
    """median of the absolute errors"""
    most: float
    """90th percentile of the absolute errors"""
    worst: float
    """largest absolute error, signed"""
    bias: float
    """mean of the signed errors"""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "rows": self.rows, "mean_abs_error": self.mean, "median_abs_error": self.middle, "p90_abs_error": self.most,
            "worst_abs_error": abs(self.worst), "bias": self.bias,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Validation:
    """All predictions."""

    sources: tuple[Source, ...]
    predictions: tuple[Prediction, ...]
    fits: Fits

    @property
    def grades(self) -> tuple[str, ...]:
        """The grades, in order."""
        return tuple(dict.fromkeys(one.grade for one in self.predictions))

    def of(self, source: str, grade: str) -> list[Prediction]:
        """The predictions of a source in a grade, all rows."""
        return [one for one in self.predictions if one.row.source == source and one.grade == grade]

    def times(self, source: str, grade: str) -> Errors | None:
        """Errors of the step times that count."""
        return errors(one.error for one in self.of(source, grade) if not one.row.left_out)

    def memories(self, source: str, grade: str) -> Errors | None:
        """Errors of the peak memories that count."""
        return errors(one.memory_error for one in self.of(source, grade) if not one.row.memory_left_out)


Watch = Callable[[Iterable[Prediction], int], Iterable[Prediction]]


def _unwatched(predictions: Iterable[Prediction], _total: int) -> Iterable[Prediction]:
    return predictions


def errors(values: Iterable[float | None]) -> Errors | None:
    """The summary of signed errors; None if there are none."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    sizes = sorted(map(abs, found))
    return Errors(len(found), fmean(sizes), median(sizes), percentile(sizes, 0.9), max(found, key=abs), fmean(found))


def step_time(tree: Mapping[str, Any], *, trust_code: bool = False) -> float:
    """Seconds of one optimizer step of a scenario.

    From 2p micro-batches on every further p add the same time; long steps are simulated with 2p and 3p micro-batches and
    continued from there (p: pipeline size; equal to the whole simulation within 0.03 % on the published runs). `trust_code` as in `load`.

    Raises:
        InputError: the scenario cannot be simulated.
    """
    built = build(load(tree, trust_code=trust_code))
    training, depth = built.training, built.parallelism.pipeline.size
    few, more = _WARM * depth, (_WARM + 1) * depth
    if training.micro_batches <= few + more:
        return _makespan(tree, trust_code=trust_code)
    each = training.global_batch // training.micro_batches
    short, long = (_makespan(_with_batch(tree, each * count), trust_code=trust_code) for count in (few, more))
    return short + (long - short) * (training.micro_batches - few) / (more - few)


def short_step(tree: Mapping[str, Any]) -> float:
    """Seconds of a step with no more micro-batches than stages: it changes with parameters as the whole step does."""
    built = build(load(tree))
    each = built.training.global_batch // built.training.micro_batches
    return _makespan(_with_batch(tree, each * min(built.training.micro_batches, built.parallelism.pipeline.size)))


def peak_gib(tree: Mapping[str, Any], column: str) -> float:
    """Peak memory of a scenario [GiB], of the kind that a column measured; 2p micro-batches reach it.

    Raises:
        InputError: the scenario cannot be simulated.
    """
    built = build(load(tree))
    count = min(built.training.micro_batches, _WARM * built.parallelism.pipeline.size)
    each = built.training.global_batch // built.training.micro_batches
    document = simulate(_with_batch(tree, each * count)).document()
    return float(document["memory"][MEMORY[column]]) / 2**30


def _makespan(tree: Mapping[str, Any], *, trust_code: bool = False) -> float:
    return max(execute(build(load(tree, trust_code=trust_code))).trace.end)


def _with_batch(tree: Mapping[str, Any], size: int) -> dict[str, Any]:
    shorter = copy.deepcopy(dict(tree))
    shorter["training"]["global_batch"] = size
    shorter["training"].pop("gradient_accumulation", None)
    return shorter


def predict(row: Row, grade: str, changes: Mapping[str, Any]) -> Prediction:
    """One row in one grade. A row that cannot be simulated says why."""
    tree = row.scenario(changes)
    seconds = gib = None
    try:
        if "step_time_s" in row.measured:
            seconds = step_time(tree)
        for column in MEMORY:
            if column in row.measured and grade == GRADES[0]:
                gib = peak_gib(tree, column)
    except InputError as error:
        return Prediction(row, grade, None, None, "; ".join(str(finding) for finding in error.findings))
    return Prediction(row, grade, seconds, gib)


def validate(
    sources: Sequence[Source], fits: Fits, grades: Sequence[str] = GRADES, *, jobs: int | None = None, watch: Watch = _unwatched
) -> Validation:
    """Predict every row in every grade, in `jobs` processes (None: one per CPU).

    `watch` is given the predictions as they come and how many there will be, and passes them on.
    """
    work = [(row, grade, fits.of(grade, row, source.gpu)) for grade in grades for source in sources for row in source.rows]
    if (jobs or cpu_count() or 1) == 1 or len(work) < 2:
        found = list(watch((predict(*one) for one in work), len(work)))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            found = list(watch(pool.map(predict, *zip(*work, strict=True), chunksize=4), len(work)))
    return Validation(tuple(sources), tuple(found), fits)


def document(validation: Validation) -> dict[str, Any]:
    """The whole comparison as one JSON document; a source's own figures are the calibrated ones where there are any."""
    main = "calibrated" if "calibrated" in validation.grades else validation.grades[-1]
    sources: dict[str, Any] = {}
    for source in validation.sources:
        times = {grade: validation.times(source.name, grade) for grade in validation.grades}
        memories = validation.memories(source.name, validation.grades[0])
        overall = times[main]
        sources[source.name] = {
            "title": source.title, "source": source.reference, "gpu": source.gpu, "inferred": source.inferred,
            "from_training": dict(source.from_training),
            **({} if overall is None else overall.document()),
            "grade": main,
            "grades": {grade.replace("-", "_"): None if one is None else one.document() for grade, one in times.items()},
            "memory": None if memories is None else memories.document(),
            "left_out": sum(bool(row.left_out) for row in source.rows),
            "constants": {one.name: {"key": one.key, "unit": one.unit, "meaning": one.meaning,
                                     "value": validation.fits.constants.get(source.name, {}).get(one.key)} for one in source.constants},
        }  # fmt: skip
    return {"parsim": 1, "sources": sources, "rows": [_row(one) for one in validation.predictions]}


def _row(one: Prediction) -> dict[str, Any]:
    return {
        "id": one.row.id, "source": one.row.source, "grade": one.grade, "measured_s": one.row.measured.get("step_time_s"),
        "predicted_s": one.seconds, "error": one.error, "measured_gib": one.memory, "predicted_gib": one.gib,
        "memory_error": one.memory_error, "left_out": one.row.left_out or None, "refused": one.refused or None,
    }  # fmt: skip
