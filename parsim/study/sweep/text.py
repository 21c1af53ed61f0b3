"""A study as a table in a terminal, and its files beside the rows: the best scenario, a picture, the reports of the best."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from re import fullmatch
from shlex import join
from shutil import rmtree
from typing import Any

from parsim.report.quantities import NONE, gib, number, percent, time_unit
from parsim.report.table import Column, Table
from parsim.report.write import Content, write_together
from parsim.scenario.scenario import flow
from parsim.scenario.schema import value_at
from parsim.study.axes import short_keys
from parsim.study.sweep.definition import SEED
from parsim.study.sweep.metrics import KWH, NAMED, Metric
from parsim.study.sweep.space import Place
from parsim.study.sweep.study import RankedRow, StudyData

_ALWAYS = ("step_time_s", "estimated_step_time_s", "mfu", "peak_bytes")
_LONGEST = 24
"""letters of a value"""
INTERRUPTED = "Interrupted: results so far; the best is not proved."
Cells = tuple[str, list[str]]
"""a heading, and a cell per row"""


def text(study: StudyData) -> str:
    """What was asked, how many points there were, the best rows, and how to run the first."""
    lines = [study.name, f"{_asked(study)}", _counted(study), *([INTERRUPTED] if study.interrupted else []), ""]
    shown = study.shown
    if not shown:
        return "\n".join([*lines, "No row keeps all constraints.", *_reasons(study)])
    columns = _columns(study, shown)
    table = Table([Column(heading) for heading, _ in columns], list(zip(*(cells for _, cells in columns), strict=True)))
    lines += [table.text(), *_common(study, shown), ""]
    whole = study.front if len(study.objectives) > 1 and study.passed else study.entries
    if (more := len(whole) - len(shown)) > 0:
        lines += [f"{more:,} more; --top shows them.", ""]
    lines += [*_best(study, shown[0]), *_unequal(study)]
    return "\n".join(line.rstrip() for line in lines)


def better(place: Place, score: str, after: float) -> str:
    """A line about a row that is better than all before, `after` seconds."""
    names = short_keys(tuple(place.settings))
    values = ", ".join(f"{names[key]}={flow(value)}" for key, value in place.settings.items())
    return f"{after:5.0f} s  best so far: {score}: {values}"


def _asked(study: StudyData) -> str:
    objectives = ", ".join(f"{one.word} {one.metric.title}" for one in study.objectives)
    return f"{objectives[0].upper()}{objectives[1:]}" + (f", where {'; '.join(one.text for one in study.where)}" if study.where else "")


def _counted(study: StudyData) -> str:
    counts = study.counts()
    words = {
        "excluded": "excluded by constraints before a simulation", "equal": "equal to another",
        "passed": "excluded by proof", "judged": "excluded by their simulated step", "simulated": "simulated",
        "refused": "refused", "deadlock": "in deadlock", "failed": "failed",
    }  # fmt: skip
    said = [f"{counts[name]:,} {word}" for name, word in words.items() if counts[name]]
    points = counts["points"]
    said += [f"{study.left:,} not reached yet"] if study.interrupted else []
    before = f" ({study.before:,} rows from an earlier run)" if study.before else ""
    return f"{points:,} point{'s' * (points != 1)}: {', '.join(said) or 'nothing'}{before}; {counts['kept']:,} keep all constraints."


def _reasons(study: StudyData) -> list[str]:
    """Why nothing is left: the commonest reasons, each once."""
    counts: dict[str, int] = {}
    for place in study.places:
        if (row := study.row(place)) is not None and row["status"] in ("refused", "failed", "deadlock"):
            reason = f"{row['status']}: {row['reason']}"
        else:
            reason = study.why(place).partition(": ")[0]
        counts[reason] = counts.get(reason, 0) + 1
    return [f"  {count:,} x {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1])[:5]]


def _columns(study: StudyData, shown: Sequence[RankedRow]) -> list[Cells]:
    columns: list[Cells] = [("#", [str(place) for place in range(1, len(shown) + 1)])]
    if len(study.objectives) > 1:
        columns.append(("front", ["*" if entry.layer == 1 else "" for entry in shown]))
    several = any(len(entry.rows) > 1 for entry in shown)
    for key, name in study.names.items():
        if several and key == SEED:
            continue
        cells = [_cut(flow(entry.place.settings[key])) if key in entry.place.settings else NONE for entry in shown]
        if len(shown) == 1 or len(set(cells)) > 1:
            columns.append((name, cells))
    metrics = list(dict.fromkeys([*(one.metric.name for one in study.objectives), *_ALWAYS, "gpus"]))
    for name in metrics:
        values = [entry.mean(name) for entry in shown]
        asked = any(one.metric.name == name for one in study.objectives)
        if all(value is None for value in values) or not (asked or any(values)):
            continue  # no MFU without FLOP, no memory of profiled stages
        if name == "estimated_step_time_s" and values == [entry.mean("step_time_s") for entry in shown]:
            continue  # no published runs are like any of them
        if name == "gpus" and len(set(values)) < 2 and not asked:
            continue
        columns.append(_figures(study, NAMED[name], values))
    if any(entry.rows[0]["status"] != "fits" for entry in shown):
        columns.append(("status", [str(entry.rows[0]["status"]) for entry in shown]))
    if several:
        name = study.objectives[0].metric.name
        columns.append(("seeds", [str(len(entry.rows)) for entry in shown]))
        columns.append(("spread", [_spread(entry, name) for entry in shown]))
    return columns


def _common(study: StudyData, shown: Sequence[RankedRow]) -> list[str]:
    """What varies, but not among the rows that are shown."""
    said = [
        f"{name}={_cut(flow(shown[0].place.settings[key]))}"
        for key, name in study.names.items()
        if len(shown) > 1 and key in shown[0].place.settings and len({flow(entry.place.settings.get(key)) for entry in shown}) == 1
    ]
    return [f"In all of these: {' '.join(said)}"] if said else []


def _spread(entry: RankedRow, name: str) -> str:
    """Largest less smallest, of the mean."""
    spread, mean = entry.spread(name), entry.mean(name)
    return NONE if spread is None or not mean else percent((spread[1] - spread[0]) / abs(mean))


def _figures(study: StudyData, metric: Metric, values: Sequence[float | None]) -> Cells:
    """A metric in one unit, named in its heading."""
    if metric.unit == "s":
        unit = time_unit(max((abs(value) for value in values if value is not None), default=0.0))
        return f"{metric.title} [{unit.name}]", [NONE if value is None else f"{value / unit.factor:.4g}" for value in values]
    if metric.unit == "B":
        return f"{metric.title} [GiB]", [NONE if value is None else gib(value) for value in values]
    if metric.unit == "J":
        return f"{metric.title} [kWh]", [NONE if value is None else number(value / KWH) for value in values]
    if metric.unit == "fraction":
        return metric.title, [percent(value) for value in values]
    name = currency(study) if metric.unit == "money" else metric.unit
    return metric.title + (f" [{name}]" if name not in ("1", "", metric.title) else ""), [number(value) for value in values]


def currency(study: StudyData) -> str:
    """In which money is."""
    return str(value_at(study.space.base.tree, "economics.currency") or "USD")


def _best(study: StudyData, entry: RankedRow) -> list[str]:
    lines = [f"Best: {strategy(entry)}."]
    candidate = entry.place.candidate
    if candidate is not None and isinstance(study.definition.source, str):
        blocks = [word for name in study.definition.named for word in ("--override", name)]
        lines.append(
            f"Run it: {join(['parsim', 'run', study.definition.source, *study.definition.arguments, *candidate.overrides, *blocks])}"
        )
    return lines


def strategy(entry: RankedRow) -> str:
    """The strategy of a row in a line: sizes, schedule, sharding, micro-batches, recomputation."""
    tree: Any = entry.place.candidate.scenario if entry.place.candidate is not None else {}
    row = entry.rows[0]
    sizes = {
        "tensor": value_at(tree, "parallel.tensor.size"), "pipeline": value_at(tree, "parallel.pipeline.size"),
        "context": value_at(tree, "parallel.context.size"), "data": row["data_size"],
    }  # fmt: skip
    words = [
        f"{name} {size:g}" for name, size in sizes.items() if isinstance(size, (int, float)) and (size > 1 or name in ("tensor", "data"))
    ]
    if (size := sizes["pipeline"]) and size != 1:
        words.append(f"schedule {str(value_at(tree, 'parallel.pipeline.schedule')).partition(chr(10))[0]}")
    words.append(str(value_at(tree, "parallel.data.strategy")))
    words.append(f"{row['micro_batches']:g} micro-batch{'es' * (row['micro_batches'] != 1)}")
    recompute = value_at(tree, "training.recompute")
    words.append("no recomputation" if recompute in (None, "none") else f"recompute {flow(recompute)}")
    return f"{', '.join(words)} on {row['gpus']:g} GPU{'s' * (row['gpus'] != 1)}"


def _unequal(study: StudyData) -> list[str]:
    """A warning where a step is not the same work in all rows, and the objective is its time."""
    works = {entry.rows[0]["samples_per_step"] for entry in study.entries}
    if len(works) < 2 or all(one.metric.name != "step_time_s" for one in study.objectives):
        return []
    return [f"Steps are of {min(works):g} to {max(works):g} samples: --maximise samples_per_s ranks by what is done per second."]


def _cut(word: str) -> str:
    return word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…"


def reasons(study: StudyData, which: str) -> str:
    """One line per point: key, label, reason."""
    columns = [Column("", align="left")] * 3
    return Table(columns, [(key[:8], label, reason) for key, label, reason in study.why_not(which)]).text()


BEST = "best.json"
REPORTS = "reports"
PARETO = "pareto.svg"
_MOST_POINTS = 5_000


def write(study: StudyData, directory: Path) -> list[Path]:
    """Write best.json (the best scenario, complete: ``parsim run best.json``), and pareto.svg where there are two objectives."""
    contents: dict[str, Content] = {}
    best = study.best
    if best is not None and best.place.candidate is not None:
        text = json.dumps(best.place.candidate.scenario, indent=1, ensure_ascii=False, allow_nan=False)
        contents[BEST] = f"{text}\n".encode()
    if len(study.objectives) == 2 and len(study.entries) > 1:
        contents[PARETO] = picture(study)
    return write_together(directory, contents)


def reports(study: StudyData, directory: Path, formats: Sequence[str] = ("json", "svg", "html")) -> Iterator[Path]:
    """Write the report of every row of the table as `parsim run` does, of several seeds that of the first; yields each directory.

    They are directory/<rank>-<key>, and their figures are those of the row; those of an earlier table go. OutputError: the disk says no.
    """
    from parsim.report.write import write_outputs
    from parsim.run import simulate

    width = len(str(len(study.shown)))
    chosen = {
        f"{number:0{width}}-{entry.key}": entry.place.candidate
        for number, entry in enumerate(study.shown, 1)
        if entry.place.candidate is not None
    }
    for path in directory.iterdir() if directory.is_dir() else ():
        if fullmatch(r"[0-9]+-[0-9a-f]{16}", path.name) and path.name not in chosen:
            rmtree(path)
    for name, candidate in chosen.items():
        write_outputs(simulate(candidate.scenario, trust_code=candidate.trust_code), directory / name, formats)
        yield directory / name


def picture(study: StudyData, width: float = 7.0) -> bytes:
    """The rows in the plane of the two objectives, and their front, as SVG."""
    from parsim.report.plots.figure import save
    from parsim.report.plots.tradeoff import PlaneAxis, PlanePoint, tradeoff_figure

    across, up = (PlaneAxis(one.metric.title, _unit(study, one.metric.unit), one.most) for one in study.objectives)
    spots = []
    for place, entry in enumerate(study.entries[:_MOST_POINTS], 1):
        x, y = (entry.mean(one.metric.name) or 0.0 for one in study.objectives)
        spots.append(PlanePoint(f"{place}: {study.label(entry.place.settings)}", x, y, entry.layer == 1, entry.rows[0]["status"] == "fits"))
    return save(tradeoff_figure(spots, across, up, width=width), "svg")


def _unit(study: StudyData, unit: str) -> str:
    return currency(study) if unit == "money" else unit
