"""Write what a priori predictions of published runs were off by: parsim/catalogue/published_runs.csv.

    python validation/runs/errors.py

Reports take the band around their own numbers from it.
"""

from __future__ import annotations

import csv
from pathlib import Path

import parsim
from parsim.scenario.build import build
from parsim.scenario.confidence import features
from parsim.scenario.load import load
from parsim.study.runs import Fits, published
from parsim.study.validate_runs import GRADES, validate

TARGET = Path(parsim.__file__).parent / "catalogue" / "published_runs.csv"
COLUMNS = ("id", "source", "gpu", "family", "gpus", "parameters", "step_error", "memory_error")


def main() -> None:
    """Predict every row and write its errors; rows that are not counted, and profiled stages, are left out."""
    found = validate([source for source in published() if source.name != "zero-bubble"], Fits(), GRADES[:1])
    rows = []
    for one in found.predictions:
        step = None if one.row.left_out else one.error
        memory = None if one.row.memory_left_out else one.memory_error
        if step is None and memory is None:
            continue
        known = features(build(load(one.row.scenario())))
        errors = ("" if error is None else f"{error:.4f}" for error in (step, memory))
        rows.append((one.row.id, one.row.source, known.gpu, known.family, known.gpus, f"{known.parameters:.0f}", *errors))
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
