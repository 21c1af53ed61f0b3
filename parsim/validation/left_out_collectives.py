"""How predictions between machines fare on systems that the numbers have not seen: a priori, in sample, and with whole systems left out.

The fits behind it are made by hand (validation/nccl/fit.py) and their predictions stored beside the measurements; what parsim has now
is the column in sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from parsim.hardware.nccl.inputs import COLLECTIVES
from parsim.report.table import Column, Content, Table
from parsim.validation.score import relative_error

if TYPE_CHECKING:
    from parsim.validation.predicted_collectives import PredictedCollective
    from parsim.validation.published_collectives import Measurements

GRADES = ("a priori", "in sample", "left out")
"""classes of networks by their kin, nothing fitted | what parsim has, fitted to all rows | fitted without the family of the row"""


@dataclass(frozen=True, slots=True)
class GradedClass:
    """The rows of a class of sizes between machines, and their errors in every grade."""

    what: str
    band: float
    """what is claimed, both ways"""
    target: float
    """share inside the band that is aimed at with systems left out"""
    errors: tuple[tuple[float, ...], ...]
    """by grade"""

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.errors[0])

    def inside(self, grade: int) -> int:
        """Rows inside the band."""
        return sum(abs(error) <= self.band for error in self.errors[grade])

    def document(self) -> dict[str, Any]:
        """The class as JSON has it."""
        grades = {
            name.replace(" ", "_"): {"inside": self.inside(number), "median": median(abs(error) for error in self.errors[number])}
            for number, name in enumerate(GRADES)
        }
        return {"sizes": self.what, "band": self.band, "target": self.target, "rows": self.rows, **grades}


_CLASSES: tuple[tuple[str, int, int | None, float], ...] = (
    ("< 1 MiB", 0, None, 0.85),
    ("1-128 MiB", 1, None, 0.75),
    ("128-512 MiB", 2, None, 0.75),
    (">= 512 MiB, two machines", 3, 2, 0.90),
    (">= 512 MiB, more machines", 3, 3, 0.85),
)
"""what, number of the class of sizes, machines (3: more than two; None: any), aim"""


def graded(measured: Measurements, predictions: list[PredictedCollective]) -> list[GradedClass]:
    """Every class with its errors; `predictions` are those of the measured profile. Tuned collectives only: exchanges have no such law."""
    known = [
        (one, *measured.fitted[one.point.key])
        for one in predictions
        if one.point.key in measured.fitted and one.point.kind in COLLECTIVES and one.inside is not None
    ]
    return list(_classes(measured, known))


def _classes(measured: Measurements, known: list[tuple[PredictedCollective, float, float]]) -> Iterator[GradedClass]:
    for what, number, nodes, target in _CLASSES:
        mine = [row for row in known if row[0].size_class == number and nodes in (None, min(row[0].point.nodes, 3))]
        if not mine:
            continue
        first = mine[0][0].point
        limits = measured.bands[measured.systems[first.system].band].limits(number, first.nodes)
        times = [((a_priori, one.time, left_out), one.point.time) for one, a_priori, left_out in mine]
        errors = tuple(tuple(relative_error(found[grade], time) for found, time in times) for grade in range(len(GRADES)))
        yield GradedClass(what, limits[1] if limits else 0.0, target, errors)


def table(classes: list[GradedClass]) -> Table:
    """Rows inside the band, and the median error, by class and grade."""
    columns = [Column("between machines", align="left"), Column("band"), Column("points"), *map(Column, GRADES), Column("aim, left out")]
    rows: list[tuple[Content, ...]] = [
        (
            one.what,
            f"±{100 * one.band:.0f} %",
            one.rows,
            *(f"{one.inside(grade)} ({100 * one.inside(grade) / one.rows:.0f} %)" for grade in range(len(GRADES))),
            f"{100 * one.target:.0f} %",
        )
        for one in classes
    ]
    return Table(columns, rows)
