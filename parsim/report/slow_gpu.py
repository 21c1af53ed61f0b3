"""What one slow GPU costs, by where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parsim.report.quantities import number, seconds, time_unit
from parsim.report.table import Column, Content, Table
from parsim.units import snapped

SPEED = 0.8
"""of the slow GPU, where nobody says"""
_ROWS = 12
"""rows of a table before it refers to report.json"""
_LETTERS = 24


@dataclass(frozen=True)
class SlowPlace:
    """A place of the slow GPU, and the step with it."""

    rank: int
    ranks: str
    """all that would slow the step as much, as compressed ranges"""
    stage: int
    step_time_s: float


@dataclass(frozen=True)
class SlowGpu:
    """The step with one GPU at `speed` of what it does otherwise, at every place where that makes a difference."""

    speed: float
    nominal: float
    """the step without it [s]"""
    gpus: int
    """of the job"""
    stages: int
    places: tuple[SlowPlace, ...]
    """the longest step first"""
    left_out: int = 0
    """places that were not tried"""

    @property
    def worst(self) -> SlowPlace:
        """Where it costs most."""
        return self.places[0]

    def slowdown(self, place: SlowPlace) -> float:
        """The step with it over that without it, less one."""
        return place.step_time_s / self.nominal - 1.0 if self.nominal > 0 else 0.0

    def lost(self, place: SlowPlace) -> float:
        """Share of the work of all GPUs that is lost."""
        return 1.0 - self.nominal / place.step_time_s if place.step_time_s > 0 else 0.0

    def idle(self, place: SlowPlace) -> float:
        """As many idle GPUs would waste as much."""
        return self.lost(place) * self.gpus

    def document(self) -> dict[str, Any]:
        """The mapping that stands in the report's JSON document: the worst place, and all of them."""
        return {
            "speed": self.speed,
            **self._place(self.worst),
            "places": [self._place(place) for place in self.places],
            "places_left_out": self.left_out,
        }

    def _place(self, place: SlowPlace) -> dict[str, Any]:
        known = {"rank": place.rank, "ranks": place.ranks, "stage": place.stage, "step_time_s": place.step_time_s}
        return {**known, "slowdown": self.slowdown(place), "idle_gpus": self.idle(place)}

    def sentence(self) -> str:
        """``With one GPU at 0.8 of its speed, at worst on stage 3 (rank 24), a step takes 16.3 s (+17.1 %): as much is ...``."""
        worst = self.worst
        where = f"at worst on stage {worst.stage} (rank {worst.rank})" if self.stages > 1 else f"rank {worst.rank}"
        return (
            f"With one GPU at {self.speed:g} of its speed, {where}, a step takes {seconds(worst.step_time_s)}"
            f" ({_signed(self.slowdown(worst))} %): as wasteful as {number(self.idle(worst))} idle GPUs of {self.gpus:,}."
        )

    def table(self) -> Table:
        """A row for each place, the worst first."""
        from parsim.report.verdict import shortened

        unit = time_unit(self.worst.step_time_s)
        staged = self.stages > 1
        columns = [
            *([Column("Slow GPU on stage", align="left")] if staged else []),
            Column("Any of the ranks" if staged else "Slow GPU: any of the ranks", align="left"),
            Column("Step", unit.name),
            Column("Longer by", "%"),
            Column("Idle GPUs"),
        ]
        rows: list[list[Content]] = []
        for place in self.places[:_ROWS]:
            row = [shortened(place.ranks, _LETTERS), unit.cell(place.step_time_s), _signed(self.slowdown(place)), number(self.idle(place))]
            rows.append([str(place.stage), *row] if staged else [*row])
        return Table(columns, rows)

    def notes(self) -> Iterator[str]:
        """What to know of these numbers."""
        if len(self.places) > _ROWS:
            yield f"{_ROWS} of {len(self.places)} places, the worst first; all in report.json."
        if self.left_out:
            yield f"{self.left_out} more places were not tried."
        yield "Idle GPUs: as many, doing nothing in a job without a slow one, would waste as much."


def slow_gpu_of(places: list[SlowPlace], speed: float, nominal: float, gpus: int, *, left_out: int = 0) -> SlowGpu | None:
    """The places in order; None without any. Equal steps go by rank."""
    if not places:
        return None
    ordered = sorted(places, key=lambda place: (-snapped(place.step_time_s), place.rank))
    return SlowGpu(speed, nominal, gpus, max(place.stage for place in places) + 1, tuple(ordered), left_out)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"
