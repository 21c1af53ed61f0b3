"""Many sample paths of one training: what the luck of its failures may come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf
from typing import Any, NamedTuple

from parsim.report.quantities import number, points, seconds
from parsim.report.statement import BillLine
from parsim.report.variability import Spread
from parsim.simulation.interrupted import InterruptedTraining, TrainingRun
from parsim.simulation.training import train


class SamplePath(NamedTuple):
    """What is kept of a path."""

    goodput: float
    ettr: float
    failures: int
    lost: float
    """[s]"""
    finish: float
    """when the training was done [s]; infinite where it was not within the horizon"""


Player = Callable[[InterruptedTraining, Sequence[int]], Sequence[SamplePath]]
"""plays paths of a training by their numbers; whoever does it, a number has the same failures"""


def sample_path(run: TrainingRun) -> SamplePath:
    """What is kept of one that was played."""
    done = run.wall < run.training.horizon or run.work >= run.training.work * (1 - 1e-9)
    return SamplePath(run.goodput, run.ettr, len(run.struck), run.spent("lost"), run.wall if done else inf)


def sample_paths(training: InterruptedTraining, numbers: Iterable[int]) -> list[SamplePath]:
    """Play paths of these numbers."""
    return [sample_path(train(replace(training, run=run))) for run in numbers]


@dataclass(frozen=True)
class SamplePaths:
    """All of them, in the order of their numbers."""

    rows: tuple[SamplePath, ...]
    expected: float
    """goodput in closed form, with what breaks at given moments"""

    @property
    def goodputs(self) -> Spread:
        """Of all paths, beside the closed form."""
        return Spread(tuple(row.goodput for row in self.rows), self.expected)

    @property
    def finished(self) -> float:
        """Share of the paths that were done within the horizon."""
        return sum(not isinf(row.finish) for row in self.rows) / len(self.rows)

    @property
    def title(self) -> str:
        """What they are, in a few words."""
        return f"{len(self.rows):,} sample paths of this training"

    def document(self) -> dict[str, Any]:
        """What stands under ``training_run.paths``."""
        spreads = {
            "goodput": self.goodputs,
            "ettr": Spread(tuple(row.ettr for row in self.rows), 0.0),
            "failures": Spread(tuple(float(row.failures) for row in self.rows), 0.0),
            "lost_s": Spread(tuple(row.lost for row in self.rows), 0.0),
        }
        return {
            "runs": len(self.rows),
            "expected_goodput": self.expected,
            **{name: _document(spread) for name, spread in spreads.items()},
            "finish_s": self._finish(),
            "finished_share": self.finished,
        }

    def _finish(self) -> dict[str, Any] | None:
        """Quantiles that lie beyond the horizon are not known, nor is a mean of which a part does."""
        if self.finished == 0.0:
            return None
        spread = Spread(tuple(row.finish for row in self.rows), 0.0)
        if self.finished == 1.0:
            return _document(spread)
        known = {f"p{round(100 * share)}": spread.quantile(share) for share in (0.05, 0.5, 0.95, 0.99)}
        quantiles = {name: None if value is None or isinf(value) else value for name, value in known.items()}
        ends = spread.p95_interval
        interval = None if ends is None or isinf(ends[1]) else list(ends)
        return {"mean": None, "sd": None, **quantiles, "interval_95": {"mean": None, "p95": interval}}

    def statement(self) -> Iterator[BillLine]:
        """The numbers as lines for people."""
        rows: list[tuple[str, str, Spread, Callable[[float], str]]] = [
            ("Goodput", "goodput", self.goodputs, lambda value: f"{points(value)} %"),
            ("Failures", "failures", Spread(tuple(float(row.failures) for row in self.rows), 0.0), number),
            ("Lost work", "lost_s", Spread(tuple(row.lost for row in self.rows), 0.0), seconds),
        ]
        if self.finished == 1.0:
            rows.append(("Done after", "finish_s", Spread(tuple(row.finish for row in self.rows), 0.0), seconds))
        for title, key, spread, write in rows:
            yield BillLine(title, write(spread.mean), key, f"on average; {_between(spread, write)}")
        if 0.0 < self.finished < 1.0:
            yield BillLine("Done in time", f"{100 * self.finished:.3g} %", "finished_share", "of the paths within the horizon")


def _between(spread: Spread, write: Callable[[float], str]) -> str:
    """Where most of the paths lie, as far as their number says."""
    low, middle, high = (spread.quantile(share) for share in (0.05, 0.5, 0.95))
    said = f"p50 {write(spread.mean if middle is None else middle)}"
    return said if low is None or high is None else f"p5 {write(low)}, {said}, p95 {write(high)}"


def _document(spread: Spread) -> dict[str, Any]:
    """Without the undisturbed number, which a path does not have."""
    return {key: value for key, value in spread.document().items() if key != "nominal"}
