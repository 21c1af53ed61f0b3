"""Scores of predicted training runs: by source, over all sources, as text, JSON and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal

from parsim.report.table import Column, Table
from parsim.scenario.confidence import known_runs
from parsim.scenario.effects import catalogue
from parsim.validation.bands import band_scores, table
from parsim.validation.predicted_runs import PredictedRun
from parsim.validation.published_runs import RunSource
from parsim.validation.score import FIGURES, Errors, cells, errors, percent, signed_percent

FEW = 5
"""sources with fewer scored rows count as one source together"""
_KEYS = {
    "rows": "rows", "mean_abs_error": "mean", "median_abs_error": "median", "p90_abs_error": "p90", "worst_abs_error": "worst",
    "bias": "bias",
}  # fmt: skip
"""key of the JSON document -> field of `Errors`"""


@dataclass(frozen=True, slots=True)
class RunScores:
    """Predicted runs with their sources."""

    sources: tuple[RunSource, ...]
    predictions: tuple[PredictedRun, ...]
    grades: tuple[str, ...]

    def of(self, source: str) -> list[PredictedRun]:
        """The predictions of a source, all rows."""
        return [one for one in self.predictions if one.row.source == source]

    def times(self, source: str, grade: str) -> Errors | None:
        """Errors of the step times that count."""
        return errors(one.error(grade) for one in self.of(source) if not one.row.left_out)

    def memories(self, source: str) -> Errors | None:
        """Errors of the peak memories that count."""
        return errors(one.memory_error for one in self.of(source) if not one.row.memory_left_out)

    def over_sources(self, grade: str) -> float | None:
        """The mean over sources of their mean absolute errors; sources with fewer than `FEW` rows are one together."""
        found = {source.name: self.times(source.name, grade) for source in self.sources}
        small = {name for name, one in found.items() if one is not None and one.rows < FEW}
        pooled = errors(one.error(grade) for one in self.predictions if one.row.source in small and not one.row.left_out)
        means = [one.mean for name, one in found.items() if one is not None and name not in small]
        means += [pooled.mean] if pooled is not None else []
        return fmean(means) if means else None

    def timed(self) -> RunScores | None:
        """Without the sources that print MFU only; None where there are none of them."""
        kept = {source.name for source in self.sources if not source.mfu_only}
        if len(kept) == len(self.sources):
            return None
        predictions = tuple(one for one in self.predictions if one.row.source in kept)
        return replace(self, sources=tuple(source for source in self.sources if source.name in kept), predictions=predictions)


def heading(source: RunSource) -> str:
    """The lines above the rows of a source."""
    derived = f"\n  {source.convention}" if source.convention else ""
    return f"{source.name}: {source.title}\n  {source.reference}{derived}"


def row_line(one: PredictedRun, grades: Sequence[str]) -> str:
    """One row as it comes: measured, then predicted and error of each grade, then memory."""
    measured = one.row.measured.get("step_time_s")
    parts = [f"  {one.row.id:24}"]
    if one.refused:
        return f"{parts[0]} cannot be simulated: {one.refused}"
    if measured is not None:
        parts.append(f"{measured:9.5g} s")
        parts += [
            f"{grade} {one.seconds[grade]:9.5g} s {signed_percent(one.error(grade) or 0.0):>6} %"
            for grade in grades
            if grade in one.seconds
        ]
    if one.gib is not None and one.memory is not None and one.memory_error is not None:
        parts.append(f"memory {one.memory:.4g} GiB, {one.gib:.4g} GiB, {signed_percent(one.memory_error)} %")
    if one.row.left_out:
        parts.append(f"left out: {one.row.left_out}")
    return "  ".join(parts)


def summary(scores: RunScores, unscored: Sequence[tuple[str, str, str]] = ()) -> str:
    """Mean, median, 90th percentile, worst and bias by source and grade, the mean over sources, what is left out and what was fitted."""
    grades = scores.grades
    rows = [
        (source.name if grade == grades[0] else "", grade, *cells(scores.times(source.name, grade)))
        for source in scores.sources
        for grade in grades
    ]
    columns = [Column("source", align="left"), Column("grade", align="left"), *FIGURES.values()]
    lines = [Table(columns, rows, "Error of the step time: predicted over measured, less one [%]").text()]
    overall = {grade: mean for grade in grades if (mean := scores.over_sources(grade)) is not None}
    lines += [f"mean over sources, {grade}: {percent(mean)} % ({_parameters(grade)})" for grade, mean in overall.items()]
    if (timed := scores.timed()) is not None:
        without = ", ".join(f"{grade} {percent(timed.over_sources(grade) or 0.0)} %" for grade in overall)
        names = ", ".join(source.name for source in scores.sources if source.mfu_only)
        lines.append(f"without sources that print MFU only ({names}): {without}")
    memories = [(source.name, *cells(found)) for source in scores.sources if (found := scores.memories(source.name))]
    if memories:
        lines += ["", Table([Column("source", align="left"), *FIGURES.values()], memories, "Error of the peak memory [%]").text()]
    held = band_scores(known_runs()) if "left-out" in grades else []
    lines += ["", table(held).text()] if held else []
    lines += ["", *_left_out(scores, unscored), "", "inferred, because not printed"]
    lines += [f"  {source.name}: {source.inferred}" for source in scores.sources if source.inferred]
    return "\n".join(lines)


def _parameters(grade: str) -> str:
    count = len(catalogue())
    words = {"a-priori": "nothing fitted", "left-out": f"{count} parameters fitted on the other families"}
    return words.get(grade, f"{count} parameters fitted on all families")


def _left_out(scores: RunScores, unscored: Sequence[tuple[str, str, str]]) -> list[str]:
    counted = sum(not one.row.left_out and "step_time_s" in one.row.measured for one in scores.predictions)
    left = [one.row for one in scores.predictions if one.row.left_out]
    lines = [f"{counted} rows scored, {len(left)} left out by a rule, {len(unscored)} cannot be scored"]
    for source in scores.sources:
        reasons: dict[str, list[str]] = {}
        for row in source.rows:
            if row.left_out:
                reasons.setdefault(row.left_out, []).append(row.id.removeprefix(source.name + "-"))
        lines += [f"  {source.name}: {len(rows)} ({', '.join(rows)}): {reason}" for reason, rows in reasons.items()]
    missing: dict[tuple[str, str], int] = {}
    for _, source_name, reason in unscored:
        missing[source_name, reason] = missing.get((source_name, reason), 0) + 1
    lines += [f"  {name}: {count}: {reason}" for (name, reason), count in missing.items()]
    lines += [f"  {one.row.id}: cannot be simulated: {one.refused}" for one in scores.predictions if one.refused]
    return lines


def document(scores: RunScores) -> dict[str, Any]:
    """The whole comparison as one JSON document."""
    sources: dict[str, Any] = {}
    for source in scores.sources:
        memories = scores.memories(source.name)
        sources[source.name] = {
            "title": source.title, "source": source.reference, "family": source.family, "mfu_only": source.mfu_only,
            "convention": source.convention or None,
            "inferred": source.inferred,
            "grades": {_key(grade): _document(scores.times(source.name, grade)) for grade in scores.grades},
            "memory": _document(memories),
            "left_out": sum(bool(row.left_out) for row in source.rows),
        }  # fmt: skip
    overall = {_key(grade): scores.over_sources(grade) for grade in scores.grades}
    timed = scores.timed()
    without = {} if timed is None else {"mean_without_mfu_only": {_key(grade): timed.over_sources(grade) for grade in scores.grades}}
    fitted = {effect.name: {"value": effect.value, "meaning": effect.meaning} for effect in catalogue()}
    rows = [_row(one, scores.grades) for one in scores.predictions]
    held = [asdict(one) for one in band_scores(known_runs())] if "left-out" in scores.grades else []
    return {"parsim": 1, "bands": held, "mean_over_sources": overall, **without, "parameters": fitted, "sources": sources, "rows": rows}


def _key(grade: str) -> str:
    return grade.replace("-", "_")


def _document(found: Errors | None) -> dict[str, float] | None:
    return None if found is None else found.document(_KEYS)


def _row(one: PredictedRun, grades: Iterable[str]) -> dict[str, Any]:
    return {
        "id": one.row.id, "source": one.row.source, "measured_s": one.row.measured.get("step_time_s"),
        "predicted_s": {_key(grade): one.seconds.get(grade) for grade in grades},
        "error": {_key(grade): one.error(grade) for grade in grades},
        "measured_gib": one.memory, "predicted_gib": one.gib, "memory_error": one.memory_error,
        "left_out": one.row.left_out or None, "refused": one.refused or None,
    }  # fmt: skip


def picture(scores: RunScores, kind: Literal["svg", "png"]) -> bytes:
    """The errors of every scored row, a line per source and a panel per grade."""
    from parsim.report.plots.accuracy import errors_figure
    from parsim.report.plots.figure import save

    panels: dict[str, dict[str, list[float]]] = {}
    for grade in scores.grades:
        named = {source.name: [one.error(grade) for one in scores.of(source.name) if not one.row.left_out] for source in scores.sources}
        found = {name: [error for error in errors_of if error is not None] for name, errors_of in named.items()}
        panels[grade] = {name: errors_of for name, errors_of in found.items() if errors_of}
    return save(errors_figure({grade: found for grade, found in panels.items() if found}), kind)
