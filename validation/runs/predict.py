"""Predict published runs in every grade, and write down what came out.

    python validation/runs/predict.py [SOURCE ...]
    python validation/runs/predict.py pages    # only write what follows from results.csv

- results.csv: seconds of every row and grade, and the peak memory, with the hash of the row's inputs; other sources stay as they are
- parsim/catalogue/published_runs.csv: what predictions with and without a row's family were off by; reports take their bands from it
- README.md of the repository and its translations, docs/accuracy.md: the blocks between their markers, and the two figures

Run it after fit.py, and after a change that moves predictions; the tests compare a sample of rows with results.csv.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import parsim
from parsim.scenario.build import build
from parsim.scenario.confidence import features, known_runs
from parsim.scenario.effects import catalogue
from parsim.scenario.load import load
from parsim.validation.accuracy_drawing import accuracy_drawing
from parsim.validation.bands import band_scores
from parsim.validation.predicted_runs import GRADES, PredictedRun, fitted, inputs, predictions
from parsim.validation.published_runs import PublishedRun, RunSource, not_expressed, published
from parsim.validation.run_scores import FEW, RunScores, picture
from parsim.validation.score import Errors, percent, signed_percent

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
KNOWN = Path(parsim.__file__).parent / "catalogue" / "published_runs.csv"
PAGES = [*sorted(HERE.parents[1].glob("README*.md")), HERE.parents[1] / "docs" / "accuracy.md"]
FIGURE = HERE.parents[1] / "docs" / "figures" / "accuracy.svg"
BY_SOURCE = FIGURE.with_name("accuracy-by-source.svg")
SAVED = 20
"""predictions after which results.csv is written again"""
WORST = 10
"""rows that docs/accuracy.md names"""
COLUMNS = ("id", "source", "inputs", "measured_s", *GRADES, "measured_gib", "predicted_gib")
FEATURES = ("gpu", "architecture", "stack", "precision", "strategy", "gpus")
KNOWN_COLUMNS = ("id", "source", "family", *FEATURES, "parameters", "step_error", "calibrated_error", "memory_error")
Results = Mapping[str, Mapping[str, str]]


def main() -> None:
    """Predict and write."""
    sources, wanted = published(HERE), sys.argv[1:]
    if unknown := set(wanted) - {source.name for source in sources} - {"pages"}:
        sys.exit(f"no source is called {', '.join(sorted(unknown))}")
    results = {one: dict(row) for one, row in read_results().items()} if RESULTS.exists() else {}
    if wanted != ["pages"]:
        chosen = [source for source in sources if source.name in wanted] or sources
        for count, one in enumerate(predictions(chosen, fitted(HERE))):
            results[one.row.id] = _result(one)
            if count % SAVED == 0:
                _write_results(sources, results)
        _write_results(sources, results)
    scores = recorded(sources, results)
    _write(KNOWN, KNOWN_COLUMNS, _known(scores))
    known_runs.cache_clear()
    FIGURE.write_bytes(picture(replace(scores, grades=("left-out",)), "svg"))
    BY_SOURCE.write_text(accuracy_drawing(scores, band_scores(known_runs())), encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, block in blocks(scores).items():
            start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
            text = re.sub(re.escape(start) + ".*?" + re.escape(end), lambda _, made=start + block + end: made, text, flags=re.DOTALL)
        page.write_text(text, encoding="utf-8")


def _write_results(sources: Sequence[RunSource], results: Results) -> None:
    rows = [row for source in sources for row in source.rows if row.id in results]
    _write(RESULTS, COLUMNS, ([results[row.id][column] for column in COLUMNS] for row in rows))


def read_results() -> Results:
    """What was written: id of a row -> columns."""
    return {row["id"]: row for row in csv.DictReader(RESULTS.read_text(encoding="utf-8").splitlines())}


def recorded(sources: Sequence[RunSource], results: Results) -> RunScores:
    """The recorded predictions, as if they had just been made."""
    return RunScores(tuple(sources), tuple(_prediction(row, results[row.id]) for source in sources for row in source.rows), GRADES)


def blocks(scores: RunScores) -> dict[str, str]:
    """What stands between the markers of the pages, in Markdown."""
    return {
        "accuracy": table(scores),
        "accuracy in short": in_short(scores),
        "effects": effects_table(),
        "worst": worst_table(scores),
        "bands": bands_table(),
    }


def in_short(scores: RunScores) -> str:
    """The mean over sources in every grade, in Markdown."""
    counted = sum(not one.row.left_out and "step_time_s" in one.row.measured for one in scores.predictions)
    means = [scores.over_sources(grade) or 0.0 for grade in GRADES]
    lines = [f"| mean absolute error, {counted} published steps | a priori | left out | calibrated |", "|---|---|---|---|"]
    lines.append(f"| mean over sources | {' | '.join(f'{percent(mean)} %' for mean in means)} |")
    return "\n".join(lines) + "\n"


def effects_table() -> str:
    """The effects of training with their values."""
    lines = ["| effect | value | what it is | for |", "|---|---|---|---|"]
    for effect in catalogue():
        unit = " s per 1e9 local parameters" if effect.changes == "boundary" else ""
        several = ("several GPUs",) if effect.several else ()
        where = ", ".join((*effect.architectures, *effect.profiles, *effect.strategies, *several)) or "all"
        lines.append(f"| `{effect.name}` | {effect.value:g}{unit} | {effect.meaning} | {where} |")
    return "\n".join(lines) + "\n"


def worst_table(scores: RunScores) -> str:
    """The rows that are farthest off with their family left out, at most two of a source, with what is known of them."""
    rows = [one for one in scores.predictions if not one.row.left_out and one.error("left-out") is not None]
    rows.sort(key=lambda one: -abs(one.error("left-out") or 0.0))
    about = {source.name: source for source in scores.sources}
    lines = ["| row | measured | left out | calibrated | what is known |", "|---|---|---|---|---|"]
    counted: dict[str, int] = {}
    for one in rows:
        counted[one.row.source] = counted.get(one.row.source, 0) + 1
        if counted[one.row.source] > 2 or len(lines) == WORST + 2:
            continue
        errors = " | ".join(f"{signed_percent(one.error(grade) or 0.0)} %" for grade in GRADES[1:])
        why = about[one.row.source].known or "nothing that explains it"
        lines.append(f"| {one.row.id} | {one.row.measured['step_time_s']:.4g} s | {errors} | {why} |")
    return "\n".join(lines) + "\n"


def bands_table() -> str:
    """How the bands held for families that they did not know."""
    lines = ["| source | rows | inside | half width | interval score |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.source} | {one.rows} | {percent(one.inside)} % | {percent(one.half_width)} % | {one.interval_score:.2f} |"
        for one in band_scores(known_runs())
    ]
    return "\n".join(lines) + "\n"


def table(scores: RunScores) -> str:
    """Mean absolute errors by source and grade, in Markdown."""
    count = len(catalogue())
    grades = f"a priori (nothing fitted) | left out ({count} effects fitted to others) | calibrated ({count} effects fitted to all)"
    lines = [f"| source | rows scored / left out | {grades} | worst, left out | peak memory |", "|---|---|---|---|---|---|---|"]
    for source in scores.sources:
        times = [scores.times(source.name, grade) for grade in GRADES]
        memory = scores.memories(source.name)
        if times[0] is None and memory is None:
            continue
        counted = times[0] or memory
        left = sum(bool(row.left_out) for row in source.rows)
        worst = "–" if times[1] is None else f"{signed_percent(times[1].worst)} %"
        figures = " | ".join(map(_mean, times))
        title = f"{source.title} (prints MFU only)" if source.mfu_only else source.title
        lines.append(f"| {title} | {counted.rows if counted else 0} / {left} | {figures} | {worst} | {_mean(memory)} |")
    overall = [scores.over_sources(grade) for grade in GRADES]
    figures = " | ".join("–" if mean is None else f"**{percent(mean)} %**" for mean in overall)
    counted_rows = sum(not one.row.left_out and "step_time_s" in one.row.measured for one in scores.predictions)
    left_rows = sum(bool(one.row.left_out) for one in scores.predictions)
    lines.append(f"| **mean over sources** (those below {FEW} rows count as one) | {counted_rows} / {left_rows} | {figures} | | |")
    if (timed := scores.timed()) is not None:
        names = sum(source.mfu_only for source in scores.sources)
        means = " | ".join(f"{percent(timed.over_sources(grade) or 0.0)} %" for grade in GRADES)
        rows = sum(not one.row.left_out and "step_time_s" in one.row.measured for one in timed.predictions)
        left = sum(bool(one.row.left_out) for one in timed.predictions)
        lines.append(
            f"| the same without the {'source' if names == 1 else f'{names} sources'} with MFU only | {rows} / {left} | {means} | | |"
        )
    lines.append("")
    lines.append(f"{len(not_expressed(HERE))} published rows cannot be scored; `validation/runs/not_expressed.csv` says why.")
    return "\n".join(lines) + "\n"


def _mean(found: Errors | None) -> str:
    return "–" if found is None else f"{percent(found.mean)} %"


def _prediction(row: PublishedRun, result: Mapping[str, str]) -> PredictedRun:
    seconds = {grade: float(result[grade]) for grade in GRADES if result[grade]}
    return PredictedRun(row, seconds, float(result["predicted_gib"]) if result["predicted_gib"] else None)


def _known(scores: RunScores) -> Iterator[Sequence[object]]:
    """Errors of the rows that count, of predictions without their family; profiled stages have no model whose size could be near."""
    families = {source.name: source.family for source in scores.sources}
    for one in scores.predictions:
        steps = [None if one.row.left_out else one.error(grade) for grade in GRADES[1:]]
        memory = None if one.row.memory_left_out else one.memory_error
        if steps[0] is None and memory is None:
            continue
        known = features(build(load(one.row.scenario())))
        texts = ("" if error is None else f"{error:.4f}" for error in (*steps, memory))
        facts = (getattr(known, name) for name in FEATURES)
        yield (one.row.id, one.row.source, families[one.row.source], *facts, f"{known.parameters:.0f}", *texts)


def _result(one: PredictedRun) -> dict[str, str]:
    """What a prediction writes into its row."""
    found = {"id": one.row.id, "source": one.row.source, "inputs": inputs(one.row), "measured_s": _six(one.row.measured.get("step_time_s"))}
    found |= {grade: _six(one.seconds.get(grade)) for grade in GRADES}
    return found | {"measured_gib": _six(one.memory), "predicted_gib": _six(one.gib)}


def _six(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
