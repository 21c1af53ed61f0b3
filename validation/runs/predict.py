"""Predict published runs in every grade, and write down what came out.

    python validation/runs/predict.py [SOURCE ...] [GRADE ...]

- results.csv: seconds of every row and grade, and the peak memory (with the grade a-priori); other sources and grades stay as they are
- parsim/catalogue/published_runs.csv: what a priori predictions were off by; reports take the band around their own numbers from it
- README.md of the repository and its translations: the table between its markers

Run it after a change that moves predictions; the tests compare a sample of rows with results.csv.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import parsim
from parsim.scenario.build import build
from parsim.scenario.confidence import features
from parsim.scenario.load import load
from parsim.validation.predicted_runs import GRADES, MEMORY, PredictedRun, validate
from parsim.validation.published_runs import PublishedRun, RunSource, fitted, published
from parsim.validation.score import errors

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
KNOWN = Path(parsim.__file__).parent / "catalogue" / "published_runs.csv"
READMES = sorted(HERE.parents[1].glob("README*.md"))
MARKERS = ("<!-- accuracy -->\n", "<!-- end of accuracy -->\n")
COLUMNS = ("id", "source", "measured_s", *GRADES, "measured_gib", "predicted_gib")
Results = Mapping[str, Mapping[str, str]]


def main() -> None:
    """Predict and write."""
    sources = published(HERE)
    if unknown := set(sys.argv[1:]) - {source.name for source in sources} - set(GRADES):
        sys.exit(f"neither a source nor a grade: {', '.join(sorted(unknown))}")
    chosen = [source for source in sources if source.name in sys.argv[1:]] or sources
    grades = [grade for grade in GRADES if grade in sys.argv[1:]] or GRADES
    results = {one: dict(row) for one, row in read_results().items()} if RESULTS.exists() else {}
    for one in validate(chosen, fitted(HERE), grades).predictions:
        results.setdefault(one.row.id, dict.fromkeys(COLUMNS, "")).update(_result(one))
    rows = [row for source in sources for row in source.rows]
    _write(RESULTS, COLUMNS, ([results[row.id][column] for column in COLUMNS] for row in rows))
    _write(KNOWN, ("id", "source", "gpu", "family", "gpus", "parameters", "step_error", "memory_error", "fitted"), _known(sources, results))
    pattern = re.escape(MARKERS[0]) + ".*?" + re.escape(MARKERS[1])
    block = MARKERS[0] + table(sources, results) + MARKERS[1]
    for readme in READMES:
        text = readme.read_text(encoding="utf-8")
        readme.write_text(re.sub(pattern, lambda _: block, text, flags=re.DOTALL), encoding="utf-8")


def read_results() -> Results:
    """What was written: id of a row -> columns."""
    return {row["id"]: row for row in csv.DictReader(RESULTS.read_text(encoding="utf-8").splitlines())}


def step_error(row: PublishedRun, results: Results, grade: str) -> float | None:
    """Predicted over measured step time, less one; None where it does not count."""
    text = results[row.id][grade]
    return float(text) / row.measured["step_time_s"] - 1 if text and not row.left_out else None


def memory_error(row: PublishedRun, results: Results) -> float | None:
    """Predicted over measured peak memory, less one; None where it does not count."""
    measured = next((row.measured[column] for column in MEMORY if column in row.measured), None)
    text = results[row.id]["predicted_gib"]
    return float(text) / measured - 1 if text and measured and not row.memory_left_out else None


def table(sources: Sequence[RunSource], results: Results) -> str:
    """Mean absolute errors by source and grade, in Markdown; a star where a priori holds a parameter from training runs."""
    lines = [
        "| source | rows scored / left out | a priori | calibrated | held out | worst, calibrated | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for source in sources:
        times = [errors(step_error(row, results, grade) for row in source.rows) for grade in GRADES]
        memory = errors(memory_error(row, results) for row in source.rows)
        cells = ["–" if one is None else f"{100 * one.mean:.1f} %" for one in times]
        if "time" in source.from_training:
            cells[0] += " \\*"
        worst = "–" if times[1] is None else f"{100 * times[1].worst:+.0f} %"
        counted = times[0] or memory
        left = sum(bool(row.left_out if times[0] else row.memory_left_out) for row in source.rows)
        last = "–" if memory is None else f"{100 * memory.mean:.1f} %" + (" \\*" if "memory" in source.from_training else "")
        lines.append(f"| {source.title} | {counted.rows if counted else 0} / {left} | {' | '.join(cells)} | {worst} | {last} |")
    notes = [
        f"{source.title.partition(':')[0]}: {' and '.join(source.from_training.values())}" for source in sources if source.from_training
    ]
    return "\n".join([*lines, "", f"\\* not free of training runs. {'; '.join(notes)}."]) + "\n"


def _known(sources: Iterable[RunSource], results: Results) -> Iterator[Sequence[object]]:
    """Errors of the rows that count; profiled stages have no model whose size could be near another's."""
    for source, row in ((one, row) for one in sources for row in one.rows):
        step, memory = step_error(row, results, GRADES[0]), memory_error(row, results)
        if (step is None and memory is None) or "stages" in row.settings["model"]:
            continue
        known = features(build(load(row.scenario())))
        texts = ("" if error is None else f"{error:.4f}" for error in (step, memory))
        yield (
            row.id,
            row.source,
            known.gpu,
            known.family,
            known.gpus,
            f"{known.parameters:.0f}",
            *texts,
            "yes" if "time" in source.from_training else "",
        )


def _result(one: PredictedRun) -> dict[str, str]:
    """What a prediction writes into its row."""
    measured = _six(one.row.measured.get("step_time_s"))
    found = {"id": one.row.id, "source": one.row.source, "measured_s": measured, one.grade: _six(one.seconds)}
    memory = {"measured_gib": _six(one.memory), "predicted_gib": _six(one.gib)}
    return found | (memory if one.grade == GRADES[0] else {})


def _six(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
