"""The comparison with published training runs as text and as a picture."""

from __future__ import annotations

from typing import Literal

from parsim.study.runs import Source
from parsim.study.validate_runs import Errors, Prediction, Validation

_HEADINGS = f"{'rows':>5} {'mean':>6} {'median':>6} {'p90':>6} {'worst':>7} {'bias':>6}"


def text(validation: Validation, *, rows: bool = True) -> str:
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


def _rows(validation: Validation, source: Source) -> list[str]:
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


def _cell(one: Prediction) -> str:
    if one.seconds is None or one.error is None:
        return f" {'refused' if one.refused else '':>15} {'':>7}"
    return f" {one.seconds:>15.5g} {100 * one.error:>+7.1f}"


def _summary(found: Errors | None) -> str:
    if found is None:
        return f"{0:>5}"
    shares = [f"{100 * value:>6.1f}" for value in (found.mean, found.middle, found.most)]
    return f"{found.rows:>5} {' '.join(shares)} {100 * found.worst:>+7.1f} {100 * found.bias:>+6.1f}"


def _left_out(validation: Validation) -> list[str]:
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


def _from_training(validation: Validation) -> list[str]:
    found = [f"  {source.name}, {of}: {words}" for source in validation.sources for of, words in source.from_training.items()]
    return ["a priori, but not free of training runs", *found] if found else ["no a priori figure holds a parameter from training runs"]


def _fitted(validation: Validation) -> list[str]:
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


def picture(validation: Validation, kind: Literal["svg", "png"]) -> bytes:
    """Predicted over measured step times, one panel per grade; the shade is 10 % to either side."""
    from parsim.report.plots.explanation import Point, scatter_figure
    from parsim.report.plots.figure import save

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
