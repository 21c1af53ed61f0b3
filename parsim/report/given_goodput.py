"""What is left of the time where some faults come at given moments, beside those at a constant rate: expected values in closed form.

To first order in what is given: a failure strikes anywhere between two checkpoints, so that half of one cycle is done again on average,
and faults that overlap cost what they do alone. Work that is done while something is slow counts as much as it is slow.
"""

from __future__ import annotations

from itertools import pairwise
from math import fsum, inf

from parsim.report.goodput import Failures
from parsim.simulation.interrupted import GivenFailure, InterruptedTraining

_HALVED = 100
"""times; enough for every bit"""


def expected_goodput(failures: Failures, training: InterruptedTraining) -> float:
    """Useful time over all time until the horizon, or until the work is done; `Failures.goodput` where nothing is given."""
    if not training.given and not training.paces:
        return failures.goodput
    weeks = _Weeks(failures, training)
    return min(training.work, weeks.useful(weeks.wall)) / weeks.wall


class _Weeks:
    """One training; times in wall time from its begin [s]."""

    def __init__(self, failures: Failures, training: InterruptedTraining) -> None:
        self._failures, self._training = failures, training
        self._changes = [(0.0, 1.0), *((pace.at, pace.speed) for pace in training.paces), (inf, 0.0)]

    @property
    def wall(self) -> float:
        """When the work is done, or the horizon is reached: by bisection between two strikes, each of which sets the work back."""
        training = self._training
        strikes = {one.strike.at for one in training.given if one.strike.at < training.horizon}
        ends = pairwise(sorted({0.0, *strikes, training.horizon}))
        low, high = next((one for one in ends if self.useful(one[1]) >= training.work), (training.horizon, training.horizon))
        for _ in range(_HALVED):
            middle = (low + high) / 2
            low, high = (low, middle) if self.useful(middle) >= training.work else (middle, high)
        return high

    def useful(self, wall: float) -> float:
        """Expected work in so much time [s]."""
        lost = fsum(self._lost(one, wall) for one in self._training.given if one.strike.at < wall)
        return max(0.0, self._failures.goodput * (self._paced(0.0, wall) - lost))

    def _lost(self, given: GivenFailure, wall: float) -> float:
        """Time at full speed that a failure costs before `wall` [s]."""
        failures, training, cause, at = self._failures, self._training, given.cause, given.strike.at
        leave = training.policy in ("elastic", "replica")
        cycle = failures.interval + failures.checkpoint
        again = 0.0 if training.policy == "replica" else cycle / 2 + (0.0 if cause.in_memory else training.lag)
        noticed = at + cause.detect
        goes_on = (noticed if leave else max(noticed, given.mended)) + cause.restart
        lost = self._paced(at, min(goes_on, wall)) + min(again, at) * self._speed(at)
        back = (given.mended or at + cause.repair) if leave and (given.mended or not training.spares) else 0.0
        if back <= goes_on:
            return lost
        away = max(1, len(given.replicas)) / training.replicas
        if training.policy == "elastic":  # it comes back at a stop behind the next checkpoint
            back += cycle / 2
            lost += self._paced(min(back, wall), min(back + training.restart, wall))
        return lost + away * self._paced(goes_on, min(back, wall))

    def _speed(self, at: float) -> float:
        """Work per time just before a moment."""
        return next(speed for (_, speed), (end, _) in pairwise(self._changes) if at <= end)

    def _paced(self, begin: float, end: float) -> float:
        """The time between two moments, each stretch as much as its speed [s]."""
        return fsum(speed * max(0.0, min(until, end) - max(at, begin)) for (at, speed), (until, _) in pairwise(self._changes))
