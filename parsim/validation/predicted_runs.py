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
from typing import Any, Literal

from parsim.errors import InputError
from parsim.run import execute, simulate
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.validation.runs import Fits, PublishedRun, Source
from parsim.validation.score import Errors, errors, relative_error

GRADES = ("a-priori", "calibrated", "held-out")
MEMORY = {"allocated_gib": "peak_allocated_bytes", "reserved_gib": "peak_reserved_bytes", "device_used_gib": "peak_device_used_bytes"}
"""measured column -> key of the report's memory"""
_KEYS = {
    "rows": "rows", "mean_abs_error": "mean", "median_abs_error": "median", "p90_abs_error": "p90", "worst_abs_error": "worst",
    "bias": "bias",
}  # fmt: skip
"""key of the JSON document -> field of `Errors`"""
_HEADINGS = f"{'rows':>5} {'mean':>6} {'median':>6} {'p90':>6} {'worst':>7} {'bias':>6}"
_WARM = 2
"""a step grows by the same time per micro-batch once this many times the pipeline's depth are under way"""


@dataclass(frozen=True, slots=True)
class PredictedRun:
    """One row, predicted in one grade."""

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
    """All predictions."""

    sources: tuple[Source, ...]
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

    def memories(self, source: str, grade: str) -> Errors | None:
        """Errors of the peak memories that count."""
        return errors(one.memory_error for one in self.of(source, grade) if not one.row.memory_left_out)


Watch = Callable[[Iterable[PredictedRun], int], Iterable[PredictedRun]]


def _unwatched(predictions: Iterable[PredictedRun], _total: int) -> Iterable[PredictedRun]:
    return predictions


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
    sources: Sequence[Source], fits: Fits, grades: Sequence[str] = GRADES, *, jobs: int | None = None, watch: Watch = _unwatched
) -> RunValidation:
    """Predict every row in every grade, in `jobs` processes (None: one per CPU).

    `watch` is given the predictions as they come and how many there will be, and passes them on.
    """
    work = [(row, grade, fits.of(grade, row, source.gpu)) for grade in grades for source in sources for row in source.rows]
    if (jobs or cpu_count() or 1) == 1 or len(work) < 2:
        found = list(watch((predict(*one) for one in work), len(work)))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            found = list(watch(pool.map(predict, *zip(*work, strict=True), chunksize=4), len(work)))
    return RunValidation(tuple(sources), tuple(found), fits)


def document(validation: RunValidation) -> dict[str, Any]:
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
            lines += [*_rows(validation, source), ""]
    lines += ["Error of the step time: predicted over measured, less one [%]", f"{'source':<20} {'grade':<11} {_HEADINGS}"]
    for source in validation.sources:
        name = source.name
        for grade in validation.grades:
            lines.append(f"{name:<20} {grade:<11} {_summary(validation.times(source.name, grade))}")
            name = ""
    memories = [(source, found) for source in validation.sources if (found := validation.memories(source.name, validation.grades[0]))]
    if memories:
        lines += ["", "Error of the peak memory [%]", f"{'source':<32} {_HEADINGS}"]
        lines += [f"{source.name:<32} {_summary(found)}" for source, found in memories]
    lines += ["", *_left_out(validation), "", *_from_training(validation), "", *_fitted(validation), "", "inferred, because not printed"]
    lines += [f"  {source.name}: {source.inferred}" for source in validation.sources if source.inferred]
    return "\n".join(lines)


def _rows(validation: RunValidation, source: Source) -> list[str]:
    columns = {grade: {one.row.id: one for one in validation.of(source.name, grade)} for grade in validation.grades}
    head = "".join(f" {grade + ' [s]':>15} {'[%]':>7}" for grade in validation.grades)
    lines = [source.title, f"  {source.reference}", f"  {'row':<24} {'measured [s]':>12}{head}"]
    for row in source.rows:
        cells = "".join(_cell(columns[grade][row.id]) for grade in validation.grades)
        memory = columns[validation.grades[0]][row.id]
        note = "  left out" if row.left_out else ""
        if memory.gib is not None and memory.memory is not None and memory.memory_error is not None:
            note = f"  memory {memory.memory:.4g} GiB, {memory.gib:.4g} GiB, {100 * memory.memory_error:+.1f} %{note}"
        measured = row.measured.get("step_time_s")
        lines.append(f"  {row.id:<24} {'' if measured is None else f'{measured:.5g}':>12}{cells}{note}")
    return lines


def _cell(one: PredictedRun) -> str:
    if one.seconds is None or one.error is None:
        return f" {'refused' if one.refused else '':>15} {'':>7}"
    return f" {one.seconds:>15.5g} {100 * one.error:>+7.1f}"


def _summary(found: Errors | None) -> str:
    if found is None:
        return f"{0:>5}"
    shares = [f"{100 * value:>6.1f}" for value in (found.mean, found.median, found.p90)]
    return f"{found.rows:>5} {' '.join(shares)} {100 * found.worst:>+7.1f} {100 * found.bias:>+6.1f}"


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
    found = [f"  {source.name}, {of}: {words}" for source in validation.sources for of, words in source.from_training.items()]
    return ["a priori, but not free of training runs", *found] if found else ["no a priori figure holds a parameter from training runs"]


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
    from parsim.report.plots.figure import save
    from parsim.report.plots.scatter import Point, scatter_figure

    panels: dict[str, list[Point]] = {}
    for grade in validation.grades:
        panels[grade] = []
        for source in validation.sources:
            chosen = [one for one in validation.of(source.name, grade) if one.seconds is not None and not one.row.left_out]
            found = validation.times(source.name, grade)
            if found is not None:
                label = f"{source.name} {100 * found.mean:.1f} %"
                panels[grade] += [Point(label, one.row.measured["step_time_s"], one.seconds) for one in chosen if one.seconds is not None]
    return save(scatter_figure({grade: points for grade, points in panels.items() if points}, "s per step", 0.1), kind)
