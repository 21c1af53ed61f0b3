"""How much of what large runs are predicted too fast by is explained by machines that are not perfect, with nothing fitted.

    python validation/runs/disturb.py [SOURCE ...]
    python validation/runs/disturb.py pages    # only write what follows from disturbed.csv

- disturbed.csv: per row, seconds a priori and the mean of disturbed steps with the profiles `traced` and `typical`; other sources stay
- docs/variability.md: the table between its markers

Rows are those of at least 256 GPUs with replicas, from sources that have three of them; at most four of a source, spread over its file.
A row's mean is that of `RUNS` runs, each another cluster and another step; the a-priori step of results.csv takes as many times as long.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from parsim.errors import InputError
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.validation.predicted_runs import EFFECTS, inputs
from parsim.validation.published_runs import PublishedRun, published
from parsim.validation.score import signed_percent

HERE = Path(__file__).parent
DISTURBED = HERE / "disturbed.csv"
PAGE = HERE.parents[1] / "docs" / "variability.md"
PROFILES = ("traced", "typical")
RUNS = 8
FEWEST_GPUS, FEWEST_ROWS, MOST_ROWS = 256, 3, 4
COLUMNS = ("id", "source", "inputs", "gpus", "measured_s", "a-priori", *PROFILES)
Row = Mapping[str, str]


def main() -> None:
    """Simulate and write."""
    wanted, known = sys.argv[1:], read(DISTURBED) if DISTURBED.exists() else {}
    if wanted != ["pages"]:
        before = read(HERE / "results.csv")
        for source in published(HERE):
            if wanted and source.name not in wanted:
                continue
            found = [(row, build(load(row.scenario({EFFECTS: "none"})))) for row in source.rows if "step_time_s" in row.measured]
            large = [(row, built) for row, built in found if len(built.gpus) >= FEWEST_GPUS and built.parallelism.data.size > 1]
            known = {name: one for name, one in known.items() if one["source"] != source.name}
            for row in spread([row for row, _ in large]):
                known |= disturbed(row, before[row.id])
                write(known)
    put(known)


def spread(rows: list[PublishedRun]) -> Iterator[PublishedRun]:
    """At most so many rows, evenly over the file; none of a source that has few."""
    if len(rows) >= FEWEST_ROWS:
        step = max(1.0, len(rows) / MOST_ROWS)
        yield from (rows[int(step * place)] for place in range(min(len(rows), MOST_ROWS)))


def disturbed(row: PublishedRun, result: Row) -> dict[str, Row]:
    """A row with every profile."""
    priori = float(result["a-priori"])
    found = {"id": row.id, "source": row.source, "inputs": inputs(row), "measured_s": result["measured_s"], "a-priori": result["a-priori"]}
    step = prepare(build(load(row.scenario({EFFECTS: "none"}))))
    found["gpus"] = str(step.plan.mesh.ranks)
    for profile in PROFILES:
        variability = build(load(row.scenario({EFFECTS: "none", "variability": profile}))).variability
        try:
            drawn = DisturbedStep(replace(step, built=replace(step.built, variability=variability)))
        except InputError as error:
            sys.stderr.write(f"{row.id}: {error}\n")
            return {}
        longer = fmean(one.step_time for one in drawn.samples(range(RUNS))) / drawn.nominal
        found[profile] = f"{priori * longer:.6g}"
    sys.stdout.write(" ".join(found.values()) + "\n")
    return {row.id: found}


def read(path: Path) -> dict[str, Row]:
    """The rows of a file, by their id."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def write(rows: Mapping[str, Row]) -> None:
    """All rows, in the order of their ids."""
    with DISTURBED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[name] for name in sorted(rows))


def table(rows: Mapping[str, Row]) -> str:
    """Mean signed error by source."""
    lines = ["| source | rows | GPUs | a priori [%] | `traced` [%] | `typical` [%] |", "|---|---|---|---|---|---|"]
    for source in sorted({one["source"] for one in rows.values()}):
        own = [one for one in rows.values() if one["source"] == source]
        gpus = [int(one["gpus"]) for one in own]
        errors = (fmean(float(one[key]) / float(one["measured_s"]) - 1 for one in own) for key in ("a-priori", *PROFILES))
        sizes = f"{min(gpus):,}" if min(gpus) == max(gpus) else f"{min(gpus):,} to {max(gpus):,}"
        lines.append(f"| {source} | {len(own)} | {sizes} | {' | '.join(map(signed_percent, errors))} |")
    return "\n".join(lines)


def put(rows: Mapping[str, Row]) -> None:
    """Write the table between its markers."""
    text = PAGE.read_text(encoding="utf-8")
    block = f"<!-- disturbed rows -->\n{table(rows)}\n<!-- end -->"
    PAGE.write_text(re.sub(r"<!-- disturbed rows -->.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
