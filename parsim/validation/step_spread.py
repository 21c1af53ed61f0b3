"""How much the steps of one run differ: the percentiles of published logs beside those of simulated steps.

The figures are ratios to the median, so that an error of the whole step does not enter. The cluster stays the same from step to step,
so causes that differ between clusters only are off: what is compared is jitter and pauses of a profile of `variability`. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.report.table import Column, Content, Table
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.units import real, whole
from parsim.validation.published import folder, read_rows
from parsim.validation.published_runs import PublishedRun, published
from parsim.validation.score import percentile
from parsim.variability import STATIC

SHARES = {"p1": 0.01, "p5": 0.05, "p95": 0.95, "p99": 0.99}
"""percentiles that are compared"""
FEWEST = {"p1": 299, "p5": 60, "p95": 60, "p99": 299}
"""steps from which one of them lies beyond the percentile with 95 % certainty"""


@dataclass(frozen=True, slots=True)
class StepLog:
    """The step times of a published run, the first two of each log left out."""

    run: PublishedRun
    steps: int
    seconds: Mapping[str, float]
    """p1, p5, p50, p95, p99 and max [s]"""


@dataclass(frozen=True, slots=True)
class StepSpread:
    """A log, and simulated steps of the same run."""

    log: StepLog
    simulated: tuple[float, ...]
    """[s]"""

    def measured(self, name: str) -> float:
        """A percentile of the log over its median, less one."""
        return self.log.seconds[name] / self.log.seconds["p50"] - 1

    def spread(self, name: str) -> float | None:
        """The same of the simulated steps; None where they are too few for it."""
        if len(self.simulated) < FEWEST[name]:
            return None
        ordered = sorted(self.simulated)
        return percentile(ordered, SHARES[name]) / percentile(ordered, 0.5) - 1


def step_logs(directory: str | Path | None = None, names: Sequence[str] = ()) -> tuple[StepLog, ...]:
    """The rows of `step_times.csv`, all or those called `names`.

    Raises:
        ScenarioError: rows that cannot be used, unknown names, and names that no published run has.
    """
    path = folder("runs", directory) / "step_times.csv"
    runs = {row.id: row for source in published(directory) for row in source.rows}

    def made(cells: dict[str, str]) -> StepLog:
        if cells["id"] not in runs:
            raise ValueError(f"no published run is called {cells['id']!r}")
        return StepLog(runs[cells["id"]], whole(cells["steps"]), {name: real(cells[f"{name}_s"]) for name in (*SHARES, "p50", "max")})

    logs = read_rows(path, made)
    known = ", ".join(log.run.id for log in logs)
    if unknown := [name for name in names if name not in {log.run.id for log in logs}]:
        raise ScenarioError([Finding(f"no log of steps is called {name!r}", "--source", name, f"known: {known}") for name in unknown])
    return tuple(log for log in logs if not names or log.run.id in names)


def simulated_steps(log: StepLog, variability: str | Mapping[str, Any], steps: int) -> Iterator[float]:
    """So many steps of one cluster [s], one after the other; `variability` as scenarios have it, such as the name of a profile."""
    prepared = prepare(build(load(log.run.scenario({"variability": variability}))))
    drawn = DisturbedStep(prepared)
    causes = drawn.causes - set(STATIC)
    for number in range(steps):
        (found,) = drawn.answers([(number, causes)])
        yield float(found.step_time)


def spread(log: StepLog, variability: str | Mapping[str, Any], steps: int) -> StepSpread:
    """A log, and so many simulated steps."""
    return StepSpread(log, tuple(simulated_steps(log, variability, steps)))


def table(spreads: Sequence[StepSpread]) -> Table:
    """Percentiles over the median, less one, in percent: measured, and simulated below."""
    columns = [Column("run", align="left"), Column("", align="left"), Column("steps")]
    columns += [Column(name, write=_percent) for name in (*SHARES, "max")]
    rows: list[tuple[Content, ...]] = []
    for one in spreads:
        rows.append((one.log.run.id, "measured", one.log.steps, *(one.measured(name) for name in (*SHARES, "max"))))
        rows.append(("", "simulated", len(one.simulated), *map(one.spread, SHARES), None))
    return Table(columns, rows)


def text(spreads: Sequence[StepSpread], profile: str) -> str:
    """The comparison as text."""
    count = len(spreads[0].simulated)
    lines = [
        f"Step times over their median, less one, in percent: published logs, and {count} simulated steps of one cluster with `{profile}`.",
        f"Nothing is fitted. 5th and 95th percentiles need {FEWEST['p95']} simulated steps, 1st and 99th {FEWEST['p99']}.",
        "",
        table(spreads).text(),
        "",
        "Measured steps include those beside evaluations, checkpoints and restarts, which no profile has.",
    ]
    return "\n".join(lines)


def document(spreads: Sequence[StepSpread], profile: str) -> dict[str, Any]:
    """The comparison as one JSON document: ratios to the median, less one."""
    rows = [
        {
            "id": one.log.run.id,
            "measured_steps": one.log.steps,
            "measured_median_s": one.log.seconds["p50"],
            "measured": {name: one.measured(name) for name in (*SHARES, "max")},
            "simulated": {name: one.spread(name) for name in SHARES},
        }
        for one in spreads
    ]
    return {"parsim": 1, "profile": profile, "simulated_steps": len(spreads[0].simulated), "rows": rows}


def _percent(share: float) -> str:
    return f"{100 * share:+.2f}"
