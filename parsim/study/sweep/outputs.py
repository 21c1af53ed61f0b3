"""The files of a study beside its rows: the best scenario, the picture of two objectives, the reports of the best."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from re import fullmatch
from shutil import rmtree

from parsim.report.write import Content, write_together
from parsim.study.sweep.study import Study
from parsim.study.sweep.text import currency

BEST = "best.json"
REPORTS = "reports"
PARETO = "pareto.svg"
_MOST_POINTS = 5_000


def write(study: Study, directory: Path) -> list[Path]:
    """Write best.json (the best scenario, complete: ``parsim run best.json``), and pareto.svg where there are two objectives."""
    contents: dict[str, Content] = {}
    best = study.best
    if best is not None and best.place.candidate is not None:
        text = json.dumps(best.place.candidate.scenario, indent=1, ensure_ascii=False, allow_nan=False)
        contents[BEST] = f"{text}\n".encode()
    if len(study.objectives) == 2 and len(study.entries) > 1:
        contents[PARETO] = picture(study)
    return write_together(directory, contents)


def reports(study: Study, directory: Path, formats: Sequence[str] = ("json", "svg", "trace", "html")) -> Iterator[Path]:
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


def picture(study: Study, width: float = 7.0) -> bytes:
    """The rows in the plane of the two objectives, and their front, as SVG."""
    from parsim.report.plots.figure import save
    from parsim.report.plots.tradeoff import PlaneAxis, PlanePoint, tradeoff_figure

    across, up = (PlaneAxis(one.metric.title, _unit(study, one.metric.unit), one.most) for one in study.objectives)
    spots = []
    for number, entry in enumerate(study.entries[:_MOST_POINTS], 1):
        x, y = (entry.mean(one.metric.name) or 0.0 for one in study.objectives)
        spots.append(
            PlanePoint(f"{number}: {study.label(entry.place.settings)}", x, y, entry.layer == 1, entry.rows[0]["status"] == "fits")
        )
    return save(tradeoff_figure(spots, across, up, width=width), "svg")


def _unit(study: Study, unit: str) -> str:
    return currency(study) if unit == "money" else unit
