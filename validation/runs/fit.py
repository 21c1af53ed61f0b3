"""Fit device parameters and the constants of each source to published training runs, and write fits.yaml.

    python validation/runs/fit.py [GPU ... | SOURCE ...]

Errors are log(predicted / measured); every source weighs the same however many rows it has, and the sum of absolute errors is
least, so that outliers count little. Bounds keep every parameter physical. A fit looks at `MOST_ROWS` rows of a source at most.
Three fits per source:

calibrated   device parameters on all sources of a GPU together, with each source's constants
held out     device parameters without the source; its constants on each half of its rows (by sha256 of the id). A source that is
             the only one of its GPU has its device parameters fitted on the half as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parsim.validation.predicted_runs import short_step, step_time
from parsim.validation.published_runs import Constant, PublishedRun, RunSource, published

HERE = Path(__file__).parent
DEVICE: dict[str, tuple[Constant, ...]] = {
    "a100-sxm-80gb": (
        Constant("gemm", "device.gemm.efficiency", "", "", 0.80, 0.70, 0.869),
        Constant("hbm", "device.memory.efficiency", "", "", 0.72, 0.55, 0.92),
    ),
    "h100-sxm-80gb": (
        Constant("clock", "device.compute.clock_derate", "", "", 0.78, 0.70, 1.0),
        Constant("hbm", "device.memory.efficiency", "", "", 0.82, 0.55, 0.92),
    ),
    "b200-sxm-180gb": (Constant("clock", "device.compute.clock_derate", "", "", 0.90, 0.80, 1.0),),
}
"""parameters of a device that training runs may move, with what is physically possible: matrix products between a bad day and the
best product ever found on the card, copies between fragmented and sequential, clocks between the power limit and boost"""
ITERATIONS = 3
MOST_ROWS, DEEPEST = 110, 16
"""rows of a source, and pipeline stages of a row, that a fit looks at; all are predicted with what it finds"""
_STEP = 0.04
_RIDGE = 0.02
"""keeps parameters that the rows do not determine near where they start: half of the possible range away costs 0.25 % of error"""
_ONCE = ("software.step_constant", "software.boundary")
"""keys of what happens once per step, however many micro-batches it has"""


@dataclass
class Problem:
    """The rows that judge one GPU, its parameters, and the linear model of their errors."""

    sources: Sequence[RunSource]
    device: tuple[Constant, ...]
    pool: ProcessPoolExecutor

    def __post_init__(self) -> None:
        self.rows = [row for source in self.sources for row in sample(source)]
        self.parameters = [("", one) for one in self.device] + [(s.name, one) for s in self.sources for one in s.constants]
        counts = {source.name: sum(row.source == source.name for row in self.rows) for source in self.sources}
        self.weights = np.array([1.0 / counts[row.source] for row in self.rows])
        self.values = np.array([one.start for _, one in self.parameters])

    def seconds(self, values: NDArray[Any], rows: Sequence[int], predict: Callable[[Mapping[str, Any]], float]) -> NDArray[Any]:
        """Predicted steps of some rows [s]."""
        trees = [self.rows[i].scenario(changes(self.parameters, values, self.rows[i])) for i in rows]
        return np.array(list(self.pool.map(predict, trees, chunksize=2)))

    def linearise(self) -> None:
        """Errors where the parameters stand now, and their derivatives, found on steps of as many micro-batches as stages."""
        everything = list(range(len(self.rows)))
        self.at = self.values.copy()
        self.residuals = self.errors(self.values)
        whole = np.exp(self.residuals) * np.array([row.measured["step_time_s"] for row in self.rows])
        short = self.seconds(self.values, everything, short_step)
        self.slopes = np.zeros((len(self.rows), len(self.parameters)))
        for column, (source, one) in enumerate(self.parameters):
            concerned = [i for i in everything if source in ("", self.rows[i].source)]
            moved = self.values.copy()
            moved[column] += _STEP * max(abs(moved[column]), 0.25 * one.start)
            gained = self.seconds(moved, concerned, short_step) - short[concerned]
            per = whole[concerned] if one.key in _ONCE else short[concerned]
            self.slopes[concerned, column] = gained / per / (moved[column] - self.values[column])

    def settle(self, title: str) -> None:
        """Linearise and solve in turn; the best parameters met stay, because floors under the time bend it."""
        everything, best, least = np.arange(len(self.rows)), self.values, np.inf
        for number in range(ITERATIONS + 1):
            if number < ITERATIONS:
                self.linearise()
                residuals = self.residuals
            else:
                residuals = self.errors(self.values)
            report(self, residuals, f"{title}, iteration {number}")
            error = float(self.weights @ np.abs(residuals))
            if error < least:
                best, least = self.values.copy(), error
            self.values = self.solve(everything, range(len(self.parameters)), self.values)
        self.values = best

    def errors(self, values: NDArray[Any]) -> NDArray[Any]:
        """log(predicted / measured) of every row."""
        whole = self.seconds(values, range(len(self.rows)), step_time)
        return np.log(whole / np.array([row.measured["step_time_s"] for row in self.rows]))

    def solve(self, rows: NDArray[Any], free: Sequence[int], start: NDArray[Any]) -> NDArray[Any]:
        """The parameters `free` that make the weighted sum of absolute errors of `rows` least, by the linear model."""
        values = start.copy()
        scale = np.array([one.start for _, one in self.parameters])
        lower = np.array([one.least for _, one in self.parameters])
        upper = np.array([one.most for _, one in self.parameters])
        active = list(free)
        span = upper - lower
        for _ in range(60):
            errors = (self.residuals + self.slopes @ (values - self.at))[rows]
            weight = self.weights[rows] / np.maximum(np.abs(errors), 0.005)
            slopes = self.slopes[rows][:, active] * scale[active]
            normal = slopes.T @ (weight[:, None] * slopes) + np.diag(_RIDGE * (scale / span)[active] ** 2)
            pull = _RIDGE * ((values - scale) * scale / span**2)[active]
            values[active] += scale[active] * np.linalg.solve(normal, -slopes.T @ (weight * errors) - pull)
            values = np.clip(values, lower, upper)
        return values


def sample(source: RunSource) -> list[PublishedRun]:
    """The rows of a source that the fit looks at: at most `MOST_ROWS`, evenly spread, without the deepest pipelines."""
    rows = [row for row in source.rows if not row.left_out and "step_time_s" in row.measured]
    depths = [row.settings.get("parallel", {}).get("pipeline", {}).get("size", 1) for row in rows]
    rows = [row for row, depth in zip(rows, depths, strict=True) if depth <= DEEPEST]
    return rows[:: -(-len(rows) // MOST_ROWS)]


def changes(parameters: Sequence[tuple[str, Constant]], values: NDArray[Any], row: PublishedRun) -> dict[str, Any]:
    """What a row's scenario is changed by."""
    found: dict[str, Any] = {}
    for (source, one), value in zip(parameters, values, strict=True):
        if source in ("", row.source):
            found |= one.values(value)
    return found


def report(problem: Problem, errors: NDArray[Any], title: str) -> None:
    """Mean absolute error by source, on stderr."""
    line = []
    for source in problem.sources:
        mine = np.abs(np.expm1(errors[[row.source == source.name for row in problem.rows]]))
        line.append(f"{source.name} {100 * mine.mean():.2f}")
    values = ", ".join(f"{one.name} {value:.4g}" for (_, one), value in zip(problem.parameters, problem.values, strict=True))
    sys.stderr.write(f"{title}: {', '.join(line)}; {values}\n")
    sys.stderr.flush()


def fit(gpu: str, sources: Sequence[RunSource], pool: ProcessPoolExecutor) -> dict[str, Any]:
    """The three fits of one GPU's sources."""
    problem = Problem(sources, DEVICE.get(gpu, ()), pool)
    free = list(range(len(problem.parameters)))
    problem.settle(gpu)
    names = {source.name: np.array([row.source == source.name for row in problem.rows]) for source in sources}
    folds = np.array([row.fold for row in problem.rows])
    device = [i for i, (source, _) in enumerate(problem.parameters) if not source]
    held_out: dict[str, Any] = {}
    for source in sources:
        own = [i for i, (name, _) in enumerate(problem.parameters) if name == source.name]
        others = np.flatnonzero(~names[source.name])
        row = next(row for row in problem.rows if row.source == source.name)
        if len(others):
            without = problem.solve(others, [i for i in free if i not in own], problem.values)
            fixed = changes([pair for pair in problem.parameters if not pair[0]], without[device], row)
            held_out[source.name] = {fold: {**fixed, **refined(source, fixed, fold, pool)} for fold in "ab"}
            continue
        held_out[source.name] = {}
        for fold in "ab":
            other_half = np.flatnonzero(names[source.name] & (folds != fold))
            values = problem.solve(other_half, [*device, *own], problem.values)
            held_out[source.name][fold] = changes(problem.parameters, values, row)
    calibrated = changes([problem.parameters[i] for i in device], problem.values[device], problem.rows[0])
    constants = {source.name: refined(source, calibrated, "", pool) for source in sources if source.constants}
    return {"calibrated": {gpu: calibrated} if calibrated else {}, "constants": constants, "held_out": held_out}


def refined(source: RunSource, fixed: Mapping[str, Any], fold: str, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """A source's constants on all rows but those of a fold, with the GPU's parameters fixed."""
    if not source.constants:
        return {}
    rows = [replace(row, settings=row.scenario(fixed)) for row in source.rows if row.fold != fold]
    problem = Problem([replace(source, rows=tuple(rows))], (), pool)
    problem.settle(f"  {source.name} without {fold or 'nothing'}")
    return changes(problem.parameters, problem.values, rows[0])


def refit_constants(names: Sequence[str], found: Mapping[str, Any], pool: ProcessPoolExecutor) -> None:
    """The constants of some sources again, with the GPU's parameters that stand in `found`."""
    for source in published(HERE, names):
        found["constants"][source.name] = refined(source, found["calibrated"].get(source.gpu, {}), "", pool)
        keys = {one.key for one in DEVICE.get(source.gpu, ())}
        for fold, values in found["held_out"][source.name].items():
            fixed = {key: value for key, value in values.items() if key in keys}
            found["held_out"][source.name][fold] = {**fixed, **refined(source, fixed, fold, pool)}


def main() -> None:
    """Fit the GPUs named on the command line (or all), or only the constants of the sources named there, and write the file."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 200
    target = HERE / "fits.yaml"
    found: dict[str, dict[str, Any]] = {"calibrated": {}, "constants": {}, "held_out": {}}
    if sys.argv[1:]:  # the rest stays as it is; a full run begins with nothing
        found.update(yaml.load(target))
    with ProcessPoolExecutor() as pool:
        timed = [source for source in published(HERE) if any("step_time_s" in row.measured for row in source.rows)]
        names = [source.name for source in timed if source.name in sys.argv[1:]]
        if names:
            refit_constants(names, found, pool)
        gpus = [gpu for gpu in dict.fromkeys(source.gpu for source in timed) if gpu in sys.argv[1:] or not sys.argv[1:]]
        for gpu in gpus:
            chosen = [source for source in timed if source.gpu == gpu]
            for section, values in fit(gpu, chosen, pool).items():
                found[section].update(values)
    with target.open("w", encoding="utf-8") as file:
        file.write("# Written by validation/runs/fit.py; see there what each part is.\n")
        yaml.dump(found, file)


if __name__ == "__main__":
    main()
