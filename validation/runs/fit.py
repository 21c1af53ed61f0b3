"""Fit the effects of training to published steps: on all families, and on all but one for each family.

    python validation/runs/fit.py             # fit what responses.csv holds
    python validation/runs/fit.py simulate [SOURCE ...]   # simulate the rows of these sources (or of all) first

Writes the values of `parsim/catalogue/training_effects.yaml` (all families) and `fits.yaml` (each family left out). Every fit starts from
the a priori prediction and knows nothing of another fit. What it needs of the simulator, `responses.csv`, does not depend on what was
measured: the step of every row a priori, and how it changes when one effect takes other values. With t the step and v the effects,
log t(v) = log t(start) + the sum of the changes, each read off between grid points (`GRID`); where effects meet in one kernel that is an
approximation, so that the predictions of predict.py, which simulate every row with its values, are what counts.

Sources that name one effect (`fitted` in sources.yaml) teach nothing else, and that effect nobody else: it is fitted last, with the others
as the other sources left them.

A fit makes the sum over sources of the mean |log(predicted / measured)| least, plus `RIDGE` x the sum of squared ways from the start
in units of the possible range, so that an effect which the rows do not determine stays where it is.
"""

from __future__ import annotations

import csv
import gc
import json
import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import parsim
from parsim.errors import InputError
from parsim.scenario.build import build
from parsim.scenario.effects import TrainingEffect, catalogue
from parsim.scenario.load import load
from parsim.validation.predicted_runs import EFFECTS, shortened, step_time
from parsim.validation.published_runs import PublishedRun, RunSource, published

HERE = Path(__file__).parent
RESPONSES = HERE / "responses.csv"
CATALOGUE = Path(parsim.__file__).parent / "catalogue" / "training_effects.yaml"
GRID = {"compute": (0.75, 0.85, 1.0), "memory": (0.65, 0.8, 1.0), "launch": (0.5, 1.0, 2.0, 4.0, 8.0), "boundary": (0.0, 3.0, 6.0)}
"""values of an effect at which a row is simulated, within its bounds"""
RIDGE = 0.02
MOST_ROWS, MOST_CHUNKS = 8, 20
"""rows of a source, evenly spread, and chunks of a row's pipeline where the source has such rows, that a fit looks at; all rows are
predicted with what it finds"""
SWEEPS, VALUES = 40, 201
"""rounds of coordinate descent, and values that each coordinate tries"""


@dataclass(frozen=True)
class Response:
    """A row's step a priori, and what each effect makes of it."""

    source: str
    family: str
    teaches: bool | str
    """True, or the one effect that is fitted to it"""
    measured: float
    """[s]"""
    start: float
    """predicted step without effects [s]"""
    changes: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
    """effect -> (values, log of the step over that at the start)"""

    def curve(self, effect: TrainingEffect, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log of the step over that at the start, for values of one effect."""
        if effect.name not in self.changes:
            return np.zeros_like(values)
        return np.interp(values, *self.changes[effect.name])


def sample(source: RunSource) -> list[PublishedRun]:
    """The rows of a source that the fit looks at; none where they only judge."""
    if not source.fitted:
        return []
    rows = [row for row in source.rows if not row.left_out and "step_time_s" in row.measured]
    rows = [row for row in rows if chunks(row) <= MOST_CHUNKS] or rows
    return rows[:: -(-len(rows) // MOST_ROWS) or 1]


def chunks(row: PublishedRun) -> int:
    """Pipeline stages times virtual stages of a row."""
    pipeline = row.settings.get("parallel", {}).get("pipeline", {})
    return int(pipeline.get("size", 1)) * int(pipeline.get("virtual_stages", 1))


def respond(row: PublishedRun) -> tuple[float, dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] | None:
    """The step of a row a priori [s], and its changes, of steps no longer than the pipeline; None where it cannot be simulated."""
    try:
        tree = row.scenario({EFFECTS: "none"})
        whole = step_time(tree)
        built = build(load(tree))
        job = built.cluster.device(built.gpus[0]), built.runtime.profile, built.parallelism.data.strategy, len(built.gpus)
        short = shortened(tree, 1)
        start = step_time(short)
        changes = {}
        for effect in (one for one in catalogue() if one.applies(*job)):
            values = tuple(value for value in GRID[effect.changes] if effect.least <= value <= effect.most)
            steps = []
            for value in values:
                short["software"]["effects"] = {effect.name: value}
                found = step_time(short)
                once = effect.changes == "boundary"  # however many micro-batches a step has
                steps.append(math.log1p((found - start) / whole) if once else math.log(found / start))
            changes[effect.name] = (values, tuple(steps))
    except InputError:
        return None
    finally:
        gc.collect()  # clusters of thousands of GPUs hold themselves in cycles, and runs pause the collector
    return whole, changes


@cache
def taught_by_some() -> tuple[str, ...]:
    """The effects that only the sources which name them teach."""
    return tuple(sorted({source.fitted for source in published(HERE) if isinstance(source.fitted, str)}))


def solve(responses: Sequence[Response]) -> dict[str, float]:
    """The effects that fit these rows best, from where nothing is known: those of all sources, then those that some sources teach."""
    values = {effect.name: effect.start for effect in catalogue()}
    common = [effect for effect in catalogue() if effect.name not in taught_by_some()]
    values |= _descend([one for one in responses if one.teaches is True], common, values)
    for name in taught_by_some():
        values |= _descend([one for one in responses if one.teaches == name], [one for one in catalogue() if one.name == name], values)
    return {name: round(value, 4) for name, value in values.items()}


def _descend(responses: Sequence[Response], effects: Sequence[TrainingEffect], start: Mapping[str, float]) -> dict[str, float]:
    """Some effects that fit these rows best, by coordinate descent; the others stay as in `start`."""
    counts: dict[str, int] = {}
    for one in responses:
        counts[one.source] = counts.get(one.source, 0) + 1
    weights = np.array([1.0 / counts[one.source] for one in responses])
    mine = {effect.name for effect in effects}
    others = [effect for effect in catalogue() if effect.name not in mine]
    residual = np.log([one.start / one.measured for one in responses])
    residual += sum(np.array([one.curve(effect, np.array([start[effect.name]]))[0] for one in responses]) for effect in others)
    values = {effect.name: effect.start for effect in effects}
    grids = {effect.name: np.linspace(effect.least, effect.most, VALUES) for effect in effects}
    curves = {effect.name: np.array([one.curve(effect, grids[effect.name]) for one in responses]) for effect in effects}
    now = {effect.name: np.array([one.curve(effect, np.array([effect.start]))[0] for one in responses]) for effect in effects}
    for _ in range(SWEEPS):
        before = dict(values)
        for effect in effects:
            grid, curve = grids[effect.name], curves[effect.name]
            if not curve.any():
                continue
            rest = residual + sum(now[other.name] for other in effects if other.name != effect.name)
            cost = weights @ np.abs(rest[:, None] + curve) + RIDGE * ((grid - effect.start) / (effect.most - effect.least)) ** 2
            best = int(np.argmin(cost))
            values[effect.name], now[effect.name] = float(grid[best]), curve[:, best]
        if values == before:
            break
    return values


def simulate(names: Sequence[str]) -> None:
    """Write the responses of the rows of these sources, or of all, into responses.csv; those of others stay."""
    chosen = [row for source in published(HERE, names) for row in sample(source)]
    known = {} if not names else read_responses()
    with ProcessPoolExecutor() as pool:
        for row, answer in zip(chosen, pool.map(respond, chosen, chunksize=1), strict=True):
            if answer is not None:
                known[row.id] = answer
                sys.stderr.write(f"{row.id} {answer[0]:.5g} s\n")
    with RESPONSES.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("id", "start_s", "changes"))
        for source in published(HERE):
            for row in sample(source):
                if row.id in known:
                    start, changes = known[row.id]
                    rounded = {name: [list(at), [round(step, 7) for step in steps]] for name, (at, steps) in changes.items()}
                    writer.writerow((row.id, f"{start:.7g}", json.dumps(rounded)))


def read_responses() -> dict[str, tuple[float, dict[str, tuple[tuple[float, ...], tuple[float, ...]]]]]:
    """What was simulated: id of a row -> its step a priori [s] and its changes."""
    rows = csv.DictReader(RESPONSES.read_text(encoding="utf-8").splitlines())
    return {
        row["id"]: (float(row["start_s"]), {name: (tuple(at), tuple(steps)) for name, (at, steps) in json.loads(row["changes"]).items()})
        for row in rows
    }


def main() -> None:
    """Simulate where asked, fit and write."""
    from ruamel.yaml import YAML

    if sys.argv[1:2] == ["simulate"]:
        simulate(sys.argv[2:])
    known = read_responses()
    responses = [
        Response(source.name, source.family, source.fitted, row.measured["step_time_s"], *known[row.id])
        for source in published(HERE)
        for row in sample(source)
        if row.id in known
    ]
    families = dict.fromkeys(source.family for source in published(HERE))
    left_out = {family: solve([one for one in responses if one.family != family]) for family in families}
    yaml = YAML()
    yaml.width = 200
    with (HERE / "fits.yaml").open("w", encoding="utf-8") as file:
        file.write("# Written by validation/runs/fit.py: the effects of training, fitted without one family of sources.\n")
        yaml.dump({"left_out": left_out}, file)
    tree = yaml.load(CATALOGUE)
    for name, value in solve(responses).items():
        tree["effects"][name]["value"] = value
    with CATALOGUE.open("w", encoding="utf-8") as file:
        yaml.dump(tree, file)


if __name__ == "__main__":
    main()
