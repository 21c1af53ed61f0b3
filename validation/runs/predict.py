"""Predict every published run in every grade, and write down what came out.

    python validation/runs/predict.py

- results.csv: seconds of every row and grade, and the peak memory
- parsim/catalogue/published_runs.csv: what a priori predictions were off by; reports take the band around their own numbers from it
- README.md of the repository: the table between its markers

Run it after a change that moves predictions; the tests compare a sample of rows with results.csv.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import parsim
from parsim.scenario.build import build
from parsim.scenario.confidence import features
from parsim.scenario.load import load
from parsim.study.runs import fitted, published
from parsim.study.validate_runs import GRADES, Prediction, Validation, validate

HERE = Path(__file__).parent
KNOWN = Path(parsim.__file__).parent / "catalogue" / "published_runs.csv"
README = HERE.parents[1] / "README.md"
MARKERS = ("<!-- accuracy -->\n", "<!-- end of accuracy -->\n")


def main() -> None:
    """Predict and write."""
    found = validate(published(HERE), fitted(HERE))
    grades = {grade: {one.row.id: one for one in found.predictions if one.grade == grade} for grade in GRADES}
    first = list(grades[GRADES[0]].values())
    _write(
        HERE / "results.csv",
        ("id", "source", "measured_s", *GRADES, "measured_gib", "predicted_gib"),
        (_result(one, [grades[grade][one.row.id] for grade in GRADES]) for one in first),
    )
    _write(KNOWN, ("id", "source", "gpu", "family", "gpus", "parameters", "step_error", "memory_error"), _known(first))
    text = README.read_text(encoding="utf-8")
    pattern = re.escape(MARKERS[0]) + ".*?" + re.escape(MARKERS[1])
    README.write_text(re.sub(pattern, MARKERS[0] + table(found) + MARKERS[1], text, flags=re.DOTALL), encoding="utf-8")


def table(found: Validation) -> str:
    """Mean absolute errors by source and grade, in Markdown."""
    lines = ["| source | rows | a priori | calibrated | held out | worst, calibrated | peak memory |", "|---|---|---|---|---|---|---|"]
    for source in found.sources:
        times = [found.times(source.name, grade) for grade in GRADES]
        memory = found.memories(source.name, GRADES[0])
        cells = ["–" if one is None else f"{100 * one.mean:.1f} %" for one in times]
        worst = "–" if times[1] is None else f"{100 * times[1].worst:+.0f} %"
        rows = (times[0] or memory).rows if times[0] or memory else 0  # type: ignore[union-attr]
        lines.append(
            f"| {source.title} | {rows} | {' | '.join(cells)} | {worst} | {'–' if memory is None else f'{100 * memory.mean:.1f} %'} |"
        )
    return "\n".join(lines) + "\n"


def _known(predictions: Iterable[Prediction]) -> Iterable[Sequence[object]]:
    """Errors of the rows that count; profiled stages have no model whose size could be near another's."""
    for one in predictions:
        step = None if one.row.left_out else one.error
        memory = None if one.row.memory_left_out else one.memory_error
        if (step is None and memory is None) or "stages" in one.row.settings["model"]:
            continue
        known = features(build(load(one.row.scenario())))
        errors = ("" if error is None else f"{error:.4f}" for error in (step, memory))
        yield one.row.id, one.row.source, known.gpu, known.family, known.gpus, f"{known.parameters:.0f}", *errors


def _result(one: Prediction, graded: Sequence[Prediction]) -> Sequence[object]:
    measured = one.row.measured.get("step_time_s", "")
    return one.row.id, one.row.source, measured, *(_six(each.seconds) for each in graded), one.memory or "", _six(one.gib)


def _six(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
