"""A training over weeks as it was played through: the numbers of one sample path, beside what failures cost on average."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf
from typing import Any, NamedTuple

from parsim.report.given_goodput import expected_goodput
from parsim.report.goodput import Failures
from parsim.report.quantities import number, percent, points, seconds
from parsim.report.statement import BillLine
from parsim.report.stretches import merged, rows
from parsim.report.training_faults import TrainingFault
from parsim.report.training_paths import Player, SamplePaths, sample_path, sample_paths
from parsim.simulation.interrupted import InterruptedTraining, Piece, TrainingRun
from parsim.simulation.training import train

KINDS = ("train", "save", "lost", "detect", "restart", "wait")
"""what a stretch of wall time may be"""
_NAMED = 6
"""causes that are named; the others are counted together"""
CONFIDENCE = 0.99
"""with which the spare machines that are named suffice"""
_CURVE = 60
"""points of a curve"""


class CurvePoint(NamedTuple):
    """A point of a curve of goodput."""

    at: float
    goodput: float


@dataclass(frozen=True)
class TrainingWeeks:
    """One sample path, and the closed form for the same job."""

    run: TrainingRun
    failures: Failures
    gpus: int
    count: int = 1
    """paths that are asked for; this is the first"""
    play: Player = sample_paths
    """plays the others"""
    faults: tuple[TrainingFault, ...] = ()
    """what breaks at given moments"""

    @cached_property
    def paths(self) -> SamplePaths | None:
        """All that are asked for, played when somebody looks; None: this one is all."""
        if self.count < 2:
            return None
        others = self.play(self.run.training, range(1, self.count))
        return SamplePaths((sample_path(self.run), *others), self.expected)

    @cached_property
    def expected(self) -> float:
        """Goodput in closed form, with what breaks at given moments."""
        return expected_goodput(self.failures, self.run.training)

    def shares(self, columns: int) -> dict[str, list[float]]:
        """Of every kind of time, its share of each of so many equal parts of the wall time."""
        width = self.run.wall / columns
        shares = {kind: [0.0] * columns for kind in KINDS}
        for piece in self.run.pieces:
            for column in range(int(piece.begin / width), min(columns, ceil(piece.end / width))):
                inside = min(piece.end, (column + 1) * width) - max(piece.begin, column * width)
                shares[piece.kind][column] += max(0.0, inside) / width
        return shares

    def by_cause(self, most: int) -> list[tuple[str, list[float]]]:
        """Times of failures by cause, the most frequent first, in at most so many rows; the last ones together [s]."""
        times: dict[str, list[float]] = {cause: [] for cause in self.run.failures}
        for at, cause in self.run.struck:
            times[cause].append(at)
        causes = list(times.items())
        if len(causes) <= most:
            return causes
        return [*causes[: most - 1], ("others", sorted(at for _, rest in causes[most - 1 :] for at in rest))]

    def document(self) -> dict[str, Any]:
        """The report's ``training_run``."""
        run, stretches = self.run, self.timeline()
        return {
            "wall_s": run.wall,
            "useful_s": run.work,
            "goodput": run.goodput,
            "expected_goodput": self.expected,
            "ettr": run.ettr,
            "failures": len(run.struck),
            "failures_by_cause": dict(run.failures),
            "expected_failures": run.wall / self.failures.mtbf,
            "checkpoint_interval_s": run.training.interval,
            "optimum_interval_s": self.failures.optimum,
            "spent_s": {kind: run.spent(kind) for kind in KINDS},  # type: ignore[arg-type]
            "machines_in_repair": self.failures.in_repair if self.pooled else None,
            "spares_99": self.failures.spares_for(CONFIDENCE) if self.pooled else None,
            "seed": run.training.seed,
            "paths": None if self.paths is None else self.paths.document(),
            "faults": [one.document() for one in self.faults],
            "lag_s": run.training.lag,
            "writing_speed": run.training.writing_speed,
            "stretches": len(stretches),
            "timeline": rows(stretches),
        }

    @property
    def pooled(self) -> bool:
        """Whether machines are away while they are repaired."""
        return self.failures.repair > 0.0

    def timeline(self) -> list[Piece]:
        """Stretches of one kind and cause, which follow each other."""
        return merged(self.run.pieces)

    def by_interval(self) -> list[CurvePoint]:
        """Expected goodput without given faults against the time between checkpoints [s], around the best one and the job's own."""
        best, own = self.failures.optimum or self.run.training.interval, self.run.training.interval
        low, high = min(best, own) / 8.0, max(best, own) * 8.0
        steps = (low * (high / low) ** (place / (_CURVE - 1)) for place in range(_CURVE))
        return [CurvePoint(at, self.failures.every(at).goodput) for at in steps if at + self.failures.checkpoint >= self.failures.lag]

    def by_size(self) -> list[CurvePoint]:
        """Expected goodput without given faults against the number of GPUs, each at its best interval.

        Replicas and spares grow with the GPUs; checkpoints and restarts take as long as here.
        """
        sizes = (self.gpus * 2.0 ** (place / 4.0) for place in range(-24, 17))
        return [CurvePoint(size, self._of_size(size / self.gpus).goodput) for size in sizes if size >= 1.0]

    def _of_size(self, factor: float) -> Failures:
        # so the same share of replicas and spares is away: as many as here with repairs that are shorter by the factor
        return replace(self.failures, repair=self.failures.repair / factor).rarer(1.0 / factor)

    def statement(self) -> Iterator[BillLine]:
        """The numbers as lines for people."""
        run, failures = self.run, self.failures
        without = f"; {points(failures.goodput)} % without its faults" if self.expected != failures.goodput else ""
        on_average = f"on average {points(self.expected)} % (closed form{without})"
        yield BillLine("Goodput", f"{points(run.goodput)} %", "goodput", on_average)
        if abs(run.ettr - run.goodput) > 1e-9:
            yield BillLine(
                "Time in training", f"{points(run.ettr)} %", "ettr", "effective training time ratio; reduced replicas count in full"
            )
        often = f"{number(run.wall / failures.mtbf)} expected, one every {seconds(failures.mtbf)}"
        yield BillLine("Failures", f"{len(run.struck):,}", "failures", often)
        if len(run.failures) > 1:
            yield BillLine("", "", "", self.causes())
        parts = ", ".join(f"{kind} {percent(run.spent(kind) / run.wall)}" for kind in KINDS if run.spent(kind))  # type: ignore[arg-type]
        yield BillLine("Wall time", seconds(run.wall), "wall_s", parts)
        best = failures.optimum
        yield BillLine(
            "Checkpoint every", seconds(run.training.interval), "checkpoint_interval_s",
            "of training" if best is None else f"of training; {seconds(best)} is best on average",
        )  # fmt: skip
        if self.pooled:
            away = f"{number(failures.in_repair)} machines in repair on average"
            yield BillLine("Spares for 99 %", f"{failures.spares_for(CONFIDENCE):,}", "spares_99", away)

    def causes(self) -> str:
        """The most frequent causes with their counts."""
        counts = list(self.run.failures.items())
        named = [f"{cause} {count}" for cause, count in counts[:_NAMED]]
        rest = sum(count for _, count in counts[_NAMED:])
        return ", ".join([*named, f"others {rest}"] if rest else named)

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        return f"{seconds(self.run.wall)} of training with failures, one sample path (seed {self.run.training.seed})"


def played(
    training: InterruptedTraining,
    failures: Failures,
    gpus: int,
    work: float | None,
    *,
    count: int = 1,
    play: Player | None = None,
    faults: tuple[TrainingFault, ...] = (),
) -> TrainingWeeks:
    """Play a training through, and have `play` play the others of `count` paths.

    `work` [s]: its length without failures, None where it is unknown.
    """
    whole = replace(training, interval=failures.interval, work=inf if work is None else work)
    run = train(whole)
    return TrainingWeeks(run, failures, gpus, count, play or sample_paths, tuple(fault.within(run.wall) for fault in faults))
