"""Where a block is on the path of one load, and where that is on the path of another.

Under one load from outside a block always does the same, so all there is to say about it is when it set out. Between two
moments at which an op inside ends, either a kernel runs alone, and another load only stretches that time, or something beside
it runs its own time. As long as the load from outside does not matter while both run, every load brings the block through the
same states, and a change of load is a piecewise linear map of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from parsim.simulation.blocks import Course, Loads


class Regime:
    """Loads that do the same to kernels; there is one object for each."""

    __slots__ = ("loads",)

    def __init__(self, loads: Loads) -> None:
        self.loads = loads


class Path:
    """What a block does from its beginning to its end under one load from outside."""

    __slots__ = ("course", "knots", "least", "paths", "regime", "steps", "to", "total")

    def __init__(self, paths: Paths, regime: Regime) -> None:
        course = self.course = paths.course
        self.paths = paths
        self.regime = regime
        self.total = course.cuts(regime.loads)[-1]
        """time from beginning to end [s]"""
        _, ends = course.spans(regime.loads)
        self.knots = [0.0]
        """when an op inside ends, in order [s]; first the beginning"""
        for segment in course.segments:
            self.knots += sorted(ends[segment.first : segment.last])
        self.steps = course.steps(regime.loads)
        """per segment: what runs before each of these ends"""
        self.least = min(self.total, course.cuts()[-1])
        """a time before which the block cannot end, whatever changes [s]"""
        self.to: dict[Regime, tuple[Path, list[float], list[float]]] = {}

    def onto(self, regime: Regime) -> tuple[Path, list[float], list[float]]:
        """The path of another load, its knots, and how much longer it takes from each knot to the next.

        nan where a block comes through states that it does not come through under the other load.
        """
        if (found := self.to.get(regime)) is None:
            other = self.paths[regime]
            found = self.to[regime] = other, other.knots, list(self._ratios(other))
        return found

    def _ratios(self, other: Path) -> Sequence[float]:
        ratios: list[float] = []
        k = 0
        for mine, others in zip(self.steps, other.steps, strict=True):
            for _ in mine:
                here, there = self.knots[k + 1] - self.knots[k], other.knots[k + 1] - other.knots[k]
                ratios.append(nan if mine != others else there / here if here else 1.0)
                k += 1
        return [*ratios, 1.0]


class Paths(dict[Regime, Path]):
    """The paths of one course, made on first use."""

    def __init__(self, course: Course) -> None:
        super().__init__()
        self.course = course

    def __missing__(self, regime: Regime) -> Path:
        found = self[regime] = Path(self, regime)
        return found
