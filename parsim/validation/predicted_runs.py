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
from functools import partial
from os import cpu_count
from typing import Any, Literal

from parsim.errors import InputError
from parsim.report.table import Column, Content, Table
from parsim.run import simulate, step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.validation.published_runs import Fits, PublishedRun, RunSource
from parsim.validation.score import FIGURES, Errors, cells, errors, relative_error, signed_percent

GRADES = ("a-priori", "calibrated", "held-out")
MEMORY = {"allocated_gib": "peak_allocated_bytes", "reserved_gib": "peak_reserved_bytes", "device_used_gib": "peak_device_used_bytes"}
"""measured column -> key of the report's memory"""
_KEYS = {
    "rows": "rows", "mean_abs_error": "mean", "median_abs_error": "median", "p90_abs_error": "p90", "worst_abs_error": "worst",
    "bias": "bias",
}  # fmt: skip
"""key of the JSON document -> field of `Errors`"""


@dataclass(frozen=True, slots=True)
class PredictedRun:
    """The prediction of one published run in one grade."""

    row: PublishedRun
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
        return None if self.seconds is None else relative_error(self.seconds, self.row.measured["step_time_s"])

    @property
    def memory(self) -> float | None:
        """Measured peak memory [GiB]."""
        return next((value for key, value in self.row.measured.items() if key in MEMORY), None)

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, less one."""
        return None if self.gib is None or self.memory is None else relative_error(self.gib, self.memory)


@dataclass(frozen=True, slots=True)
class RunValidation:
    """The predictions of all runs in all grades."""

    sources: tuple[RunSource, ...]
    predictions: tuple[PredictedRun, ...]
    fits: Fits

    @property
    def grades(self) -> tuple[str, ...]:
        """The grades, in order."""
        return tuple(dict.fromkeys(one.grade for one in self.predictions))

    def of(self, source: str, grade: str) -> list[PredictedRun]:
        """The predictions of a source in a grade, all rows."""
        return [one for one in self.predictions if one.row.source == source and one.grade == grade]

    def times(self, source: str, grade: str) -> Errors | None:
        """Errors of the step times that count."""
        return errors(one.error for one in self.of(source, grade) if not one.row.left_out)

    def memories(self, source: str) -> Errors | None:
        """Errors of the peak memories that count; they are predicted a priori only."""
        return errors(one.memory_error for one in self.of(source, self.grades[0]) if not one.row.memory_left_out)


Watch = Callable[[Iterable[PredictedRun], int], Iterable[PredictedRun]]


def _unwatched(predictions: Iterable[PredictedRun], _total: int) -> Iterable[PredictedRun]:
    return predictions


def step_time(tree: Mapping[str, Any], *, trust_code: bool = False) -> float:
    """Seconds of one optimizer step of a scenario; `trust_code` as in `load`.

    Raises:
        InputError: the scenario cannot be simulated.
    """
    return step_of(build(load(tree, trust_code=trust_code))).step_time


def short_step(tree: Mapping[str, Any]) -> float:
    """Seconds of a step with no more micro-batches than stages: it changes with parameters as the whole step does."""
    return step_time(_shortened(tree, 1))


def peak_gib(tree: Mapping[str, Any], column: str) -> float:
    """Peak memory of a scenario [GiB], of the kind that a column measured; twice as many micro-batches as stages reach it.

    Raises:
        InputError: the scenario cannot be simulated.
    """
    document = simulate(_shortened(tree, 2)).document()
    return float(document["memory"][MEMORY[column]]) / 2**30


def _shortened(tree: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """A scenario with at most `rounds` micro-batches per stage of the pipeline."""
    built = build(load(tree))
    training = built.training
    each = training.global_batch // training.micro_batches
    shorter = copy.deepcopy(dict(tree))
    shorter["training"]["global_batch"] = each * min(training.micro_batches, rounds * built.parallelism.pipeline.size)
    shorter["training"].pop("gradient_accumulation", None)
    return shorter


def predict(row: PublishedRun, grade: str, changes: Mapping[str, Any]) -> PredictedRun:
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
        return PredictedRun(row, grade, None, None, "; ".join(str(finding) for finding in error.findings))
    return PredictedRun(row, grade, seconds, gib)


def validate(
    sources: Sequence[RunSource], fits: Fits, grades: Sequence[str] = GRADES, *, jobs: int | None = None, watch: Watch = _unwatched
) -> RunValidation:
    """Predict every row in every grade, in `jobs` processes (None: one per CPU).

    `watch` is given the predictions as they come and how many there will be, and passes them on.
    """
    work = [(row, grade, fits.of(grade, row, source.gpu)) for grade in grades for source in sources for row in source.rows]
    if (jobs or cpu_count() or 1) == 1 or len(work) < 2:
        predictions = list(watch((predict(*one) for one in work), len(work)))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            predictions = list(watch(pool.map(predict, *zip(*work, strict=True), chunksize=4), len(work)))
    return RunValidation(tuple(sources), tuple(predictions), fits)


def document(validation: RunValidation) -> dict[str, Any]:
    """The whole comparison as one JSON document; a source's own figures are the calibrated ones where there are any."""
    main = "calibrated" if "calibrated" in validation.grades else validation.grades[-1]
    sources: dict[str, Any] = {}
    for source in validation.sources:
        times = {grade: validation.times(source.name, grade) for grade in validation.grades}
        memories = validation.memories(source.name)
        overall = times[main]
        sources[source.name] = {
            "title": source.title, "source": source.reference, "gpu": source.gpu, "inferred": source.inferred,
            "from_training": dict(source.from_training),
            **({} if overall is None else overall.document(_KEYS)),
            "grade": main,
            "grades": {grade.replace("-", "_"): None if one is None else one.document(_KEYS) for grade, one in times.items()},
            "memory": None if memories is None else memories.document(_KEYS),
            "left_out": sum(bool(row.left_out) for row in source.rows),
            "constants": {one.name: {"key": one.key, "unit": one.unit, "meaning": one.meaning,
                                     "value": validation.fits.constants.get(source.name, {}).get(one.key)} for one in source.constants},
        }  # fmt: skip
    return {"parsim": 1, "sources": sources, "rows": [_row(one) for one in validation.predictions]}


def _row(one: PredictedRun) -> dict[str, Any]:
    return {
        "id": one.row.id, "source": one.row.source, "grade": one.grade, "measured_s": one.row.measured.get("step_time_s"),
        "predicted_s": one.seconds, "error": one.error, "measured_gib": one.memory, "predicted_gib": one.gib,
        "memory_error": one.memory_error, "left_out": one.row.left_out or None, "refused": one.refused or None,
    }  # fmt: skip


def text(validation: RunValidation, *, rows: bool = True) -> str:
    """Every row, then mean, median, 90th percentile, worst and bias by source and grade; errors in percent."""
    lines = []
    if rows:
        for source in validation.sources:
            lines += [_rows(validation, source).text(), ""]
    summaries = [
        (source.name if grade == validation.grades[0] else "", grade, *cells(validation.times(source.name, grade)))
        for source in validation.sources
        for grade in validation.grades
    ]
    columns = [Column("source", align="left"), Column("grade", align="left"), *FIGURES.values()]
    lines.append(Table(columns, summaries, "Error of the step time: predicted over measured, less one [%]").text())
    memories = [(source.name, *cells(summary)) for source in validation.sources if (summary := validation.memories(source.name))]
    if memories:
        lines += ["", Table([Column("source", align="left"), *FIGURES.values()], memories, "Error of the peak memory [%]").text()]
    lines += ["", *_left_out(validation), "", *_from_training(validation), "", *_fitted(validation), "", "inferred, because not printed"]
    lines += [f"  {source.name}: {source.inferred}" for source in validation.sources if source.inferred]
    return "\n".join(lines)


def _rows(validation: RunValidation, source: RunSource) -> Table:
    """A row per published run, with its prediction in every grade."""
    time = partial(Column, write=lambda seconds: f"{seconds:.5g}")
    columns = [Column("row", align="left", margin=2), time("measured", unit="s", key="measured_s")]
    for grade in validation.grades:
        columns += [time(grade, unit="s", key=f"{grade}_s"), Column("", unit="%", write=signed_percent, key=f"{grade}_error")]
    columns.append(Column("", align="left", key="note"))
    predictions = {grade: {one.row.id: one for one in validation.of(source.name, grade)} for grade in validation.grades}
    rows = []
    for row in source.rows:
        figures = (cell for grade in validation.grades for cell in _figures(predictions[grade][row.id]))
        measured = row.measured.get("step_time_s")
        rows.append((row.id, "" if measured is None else measured, *figures, _note(predictions[validation.grades[0]][row.id])))
    return Table(columns, rows, f"{source.title}\n  {source.reference}")


def _figures(one: PredictedRun) -> tuple[Content, Content]:
    """Predicted step time [s] and its error."""
    if one.seconds is None or one.error is None:
        return "refused" if one.refused else "", ""
    return one.seconds, one.error


def _note(one: PredictedRun) -> str:
    """The peak memory, where it was measured, and that a row is left out."""
    left_out = "left out" if one.row.left_out else ""
    if one.gib is None or one.memory is None or one.memory_error is None:
        return left_out
    return f"memory {one.memory:.4g} GiB, {one.gib:.4g} GiB, {100 * one.memory_error:+.1f} %  {left_out}".rstrip()


def _left_out(validation: RunValidation) -> list[str]:
    lines = ["not counted, with their reasons"]
    for source in validation.sources:
        reasons: dict[str, list[str]] = {}
        for row in source.rows:
            if row.left_out:
                reasons.setdefault(row.left_out, []).append(row.id.removeprefix(source.name + "-"))
        lines += [f"  {source.name}: {len(rows)} ({', '.join(rows)}): {reason}" for reason, rows in reasons.items()]
    refused = {(one.row.source, one.row.id): one.refused for one in validation.predictions if one.refused}
    lines += [f"  {row}: cannot be simulated: {reason}" for (_, row), reason in refused.items()]
    return lines if len(lines) > 1 else ["no row is left out"]


def _from_training(validation: RunValidation) -> list[str]:
    lines = [f"  {source.name}, {of}: {words}" for source in validation.sources for of, words in source.from_training.items()]
    return ["a priori, but not free of training runs", *lines] if lines else ["no a priori figure holds a parameter from training runs"]


def _fitted(validation: RunValidation) -> list[str]:
    if "calibrated" not in validation.grades:
        return ["nothing is fitted for the grade a-priori"]
    lines = ["fitted, grade calibrated"]
    for gpu in dict.fromkeys(source.gpu for source in validation.sources):
        values = validation.fits.calibrated.get(gpu, {})
        lines += [f"  {gpu}: {key} = {value}" for key, value in values.items()]
    for source in validation.sources:
        values = validation.fits.constants.get(source.name, {})
        lines += [f"  {source.name}: {one.name} = {values[one.key]} ({one.meaning})" for one in source.constants if one.key in values]
    return lines


def picture(validation: RunValidation, kind: Literal["svg", "png"]) -> bytes:
    """Predicted over measured step times, one panel per grade; the shade is 10 % to either side."""
    from parsim.report.plots.explanation import PredictedValue, scatter_figure
    from parsim.report.plots.figure import save

    panels: dict[str, list[PredictedValue]] = {}
    for grade in validation.grades:
        panels[grade] = []
        for source in validation.sources:
            chosen = [one for one in validation.of(source.name, grade) if one.seconds is not None and not one.row.left_out]
            summary = validation.times(source.name, grade)
            if summary is not None:
                label = f"{source.name} {100 * summary.mean:.1f} %"
                panels[grade] += [
                    PredictedValue(label, one.row.measured["step_time_s"], one.seconds) for one in chosen if one.seconds is not None
                ]
    return save(scatter_figure({grade: points for grade, points in panels.items() if points}, "s per step", 0.1), kind)
