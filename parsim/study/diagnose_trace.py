"""Which causes explain a recorded step: classes of time, predicted and recorded, compared by least squares.

Each cause moves the classes in its own direction: a slower NIC lengthens collectives and nothing else, a lower clock products
and attention alike. With r the recorded less the predicted seconds of every class, sigma what a prediction of it may be off,
and d_j how cause j changes the classes (found by simulating it), every one or two causes are fitted,

    chi2 = min over a of sum(((r - sum_j a_j d_j) / sigma)^2),

and the best are simulated again with the fitted values, because time is not linear in them. A cause counts as much as the best
set that it belongs to; each cause of a set costs a fixed penalty, so that a second one must earn its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from parsim.errors import Finding, InputError, ScenarioError
from parsim.report import Report
from parsim.scenario.built import Built, clock_of, plan_of
from parsim.scenario.scenario import Scenario
from parsim.study.diagnose import Simulator, solve
from parsim.study.diagnose_causes import Cause, Setting, UncertainParameter, parameters, settings
from parsim.study.diagnose_classes import COMPUTE, OP, Recorded, features, predicted, refuse, told_apart, without_waits
from parsim.study.diagnose_job import other_job

Vector = NDArray[np.float64]
Key = tuple[int, str]

RELATIVE, COUNTED, FLOOR = 0.05, 0.10, 0.005
"""what a predicted class of time may be off, relative; a number of kernels; and any class, of the step (assumptions: kernels and
collectives are within 5 % of published ones in the mean)"""
PENALTY, SETTING_PENALTY, PRIOR = 4.0, 6.0, 2.0
"""chi2 that a cause must earn: a parameter, a setting, and at most so much more for a value far from what was found anywhere"""
STRANGE = 5.0
"""chi2 per class from which on a trace is of another run than the scenario"""
REFINED, CLOSE = 6, 12.0
"""sets that are simulated again: at most so many single causes that are so close to the best in chi2, and half as many pairs"""
_PROBE = 1.3
_SETTLED = 0.02
"""amplitudes that move less than this are found"""


@dataclass(frozen=True)
class Attribution:
    """One cause and how well it explains the trace."""

    cause: Cause
    value: float | None
    """fitted, in the set named by `beside`; None for a setting"""
    error: float | None
    """standard error of it, from `RELATIVE` and `FLOOR`"""
    score: float
    """chi2 and penalties of the best set with it; less is better"""
    beside: tuple[str, ...] = ()
    """names of the other causes of that set"""
    step: float = 0.0
    """step time with this cause alone at its fitted value [s]"""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Overrides of the scenario."""
        return self.cause.overrides(self.value)


@dataclass(frozen=True)
class Evidence:
    """What a trace says about the causes: predicted and explained classes beside the recorded ones, and a ranking."""

    recorded: Recorded
    predicted: Recorded
    explained: Recorded
    """predicted with the best set of causes"""
    before: float
    """chi2 without any cause"""
    after: float
    """chi2 with the best set"""
    best: tuple[str, ...]
    """names of the causes of the best set; empty: nothing stands out"""
    arguments: tuple[str, ...] = ()
    """overrides of the best set"""
    ranking: tuple[Attribution, ...] = ()
    unseen: tuple[Cause, ...] = field(default=())
    """causes that leave no mark on these ranks"""
    another_job: tuple[str, ...] = ()
    """what says that the trace is not of the scenario's job"""

    @property
    def described(self) -> bool:
        """Whether the scenario and the causes describe the trace at all: chi2 per class is near one where they do."""
        classes = len(self.rows())
        return self.after <= STRANGE * max(1, classes)

    def rows(self) -> list[tuple[int, str, float, float, float]]:
        """(rank, class, recorded, predicted, explained) [s] per step; of # classes numbers."""
        sides = [features(side) for side in (self.recorded, self.predicted, self.explained)]
        keys = sorted(set().union(*sides), key=lambda key: (key[0], key[1].startswith("#"), -max(side.get(key, 0.0) for side in sides)))
        return [(*key, sides[0].get(key, 0.0), sides[1].get(key, 0.0), sides[2].get(key, 0.0)) for key in keys]


@dataclass
class _Column:
    """How a cause moves the classes."""

    cause: Cause
    probe: float
    """coordinate at which it was simulated; 1 for a setting"""
    change: dict[Key, float]

    @property
    def here(self) -> float:
        return self.cause.slowness(self.cause.now) if isinstance(self.cause, UncertainParameter) else 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the amplitude: 0 is today's value, 1 the probe."""
        if isinstance(self.cause, Setting):
            return 1.0, 1.0
        low, high = sorted((self.cause.slowness(self.cause.fastest), self.cause.slowness(self.cause.slowest)))
        return (low - self.here) / (self.probe - self.here), (high - self.here) / (self.probe - self.here)

    def value(self, amplitude: float) -> float | None:
        """The parameter's value at an amplitude."""
        if isinstance(self.cause, Setting):
            return None
        return self.cause.at(self.here + amplitude * (self.probe - self.here))

    def arguments(self, amplitude: float) -> tuple[str, ...]:
        """Overrides at an amplitude."""
        return self.cause.overrides(self.value(amplitude))


@dataclass
class _Fit:
    """A set of causes with amplitudes, simulated."""

    members: tuple[int, ...]
    amplitudes: Vector
    chi2: float
    score: float
    errors: Vector


class Attributor:
    """Fits causes to traces of one scenario; what each cause does is simulated once."""

    def __init__(
        self, scenario: Scenario, ranks: Iterable[int], simulate: Callable[[Scenario, Sequence[int]], Recorded] = predicted
    ) -> None:
        self.scenario = scenario
        self.ranks = tuple(ranks)
        self._simulate = simulate
        self.base = self.recorded(())
        self.columns: list[_Column] = []
        self.unseen: list[Cause] = []

    def recorded(self, arguments: tuple[str, ...]) -> Recorded:
        """What the ranks do with overrides."""
        return self._simulate(self.scenario.with_overrides(*arguments) if arguments else self.scenario, self.ranks)

    def add(self, causes: Iterable[Cause]) -> None:
        """Simulate what each cause does; those that are not possible here are left out."""
        for cause in causes:
            try:
                column = self._column(cause)
            except InputError:
                continue
            step = self.base.step_time
            if max((abs(value) for key, value in column.change.items() if not key[1].startswith("#")), default=0.0) < 1e-3 * step:
                self.unseen.append(cause)
            else:
                self.columns.append(column)

    def _column(self, cause: Cause) -> _Column:
        if isinstance(cause, Setting):
            return _Column(cause, 1.0, _difference(features(self.recorded(cause.overrides())), features(self.base)))
        here = cause.slowness(cause.now)
        probe = here * _PROBE
        change = self._change(cause, probe) if here > 0 else {}
        if max(map(abs, change.values()), default=0.0) < 1e-3 * self.base.step_time:
            # a floor that does not bind yet: as far as it takes to slow the step by a tenth
            now = self.base.step_time
            value, _ = solve(cause, lambda arguments: self.recorded(arguments).step_time, now, 1.1 * now)
            probe = cause.slowness(value)
            change = self._change(cause, probe) if probe != here else {}
        return _Column(cause, probe, change)

    def _change(self, cause: UncertainParameter, probe: float) -> dict[Key, float]:
        bound = cause.slowness(cause.slowest)
        return _difference(features(self.recorded(cause.arguments(cause.at(min(probe, bound))))), features(self.base))

    # -- fitting ---------------------------------------------------------------------------------------------------

    def evidence(self, recorded: Recorded) -> Evidence:
        """The causes in order of how well they explain `recorded`."""
        keys, target, sigma = self._target(recorded)
        table = np.array([[column.change.get(key, 0.0) for key in keys] for column in self.columns]).reshape(len(self.columns), len(keys))
        before = float(((target / sigma) ** 2).sum())
        sets = self._screened(table / sigma, target / sigma)
        refined = self._refined(sets, keys, target, sigma, table)
        ranking = self._ranking(refined, sets)
        best = min(refined, key=lambda one: one.score, default=None)
        if best is None or best.score >= before:
            return Evidence(recorded, self.base, self.base, before, before, (), (), ranking, tuple(self.unseen))
        arguments = self._arguments(best.members, best.amplitudes)
        explained = self.recorded(arguments)
        names = tuple(self.columns[member].cause.name for member in best.members)
        return Evidence(recorded, self.base, explained, before, best.chi2, names, arguments, ranking, tuple(self.unseen))

    def _target(self, recorded: Recorded) -> tuple[list[Key], Vector, Vector]:
        seen, expected = features(recorded), features(self.base)
        keys = sorted(set(seen) | set(expected) | {key for column in self.columns for key in column.change})
        step = self.base.step_time
        sigma = []
        for key in keys:
            size = max(abs(seen.get(key, 0.0)), abs(expected.get(key, 0.0)))
            sigma.append(max(1.0, COUNTED * size) if key[1].startswith("#") else float(np.hypot(RELATIVE * size, FLOOR * step)))
        return keys, np.array([seen.get(key, 0.0) - expected.get(key, 0.0) for key in keys]), np.array(sigma)

    def _screened(self, table: Vector, target: Vector) -> list[_Fit]:
        """Every set of one or two causes in the linear picture, the best first."""
        fits = []
        for size in (1, 2):
            for members in combinations(range(len(self.columns)), size):
                names = [self._alternative(member) for member in members]
                if len(set(names)) < len(names):
                    continue
                fits.append(self._fit(members, table, target))
        return sorted(fits, key=lambda one: one.score)

    def _alternative(self, member: int) -> str:
        """Causes of which only one can hold: the values of one setting."""
        cause = self.columns[member].cause
        return cause.key if isinstance(cause, Setting) else cause.name

    def _fit(self, members: tuple[int, ...], table: Vector, target: Vector) -> _Fit:
        bounds = [self.columns[member].bounds for member in members]
        fixed = np.array([low == high for low, high in bounds])
        amplitudes = np.array([low if same else 0.0 for (low, _), same in zip(bounds, fixed, strict=True)])
        columns = table[list(members)]
        left = target - amplitudes @ columns
        free = np.flatnonzero(~fixed)
        errors = np.zeros(len(members))
        if len(free):
            normal = columns[free] @ columns[free].T + 1e-9 * np.eye(len(free))
            amplitudes[free] = np.linalg.solve(normal, columns[free] @ left)
            errors[free] = np.sqrt(np.diag(np.linalg.inv(normal)))
            lows, highs = np.array([bounds[place] for place in free]).T
            amplitudes[free] = np.clip(amplitudes[free], lows, highs)
        chi2 = float(((target - amplitudes @ columns) ** 2).sum())
        return _Fit(members, amplitudes, chi2, chi2 + self._penalty(members, amplitudes), errors)

    def _penalty(self, members: tuple[int, ...], amplitudes: Vector) -> float:
        total = 0.0
        for member, amplitude in zip(members, amplitudes, strict=True):
            cause = self.columns[member].cause
            if isinstance(cause, Setting):
                total += SETTING_PENALTY
                continue
            value = self.columns[member].value(float(amplitude))
            total += PENALTY + min(PRIOR, 0.25 * cause.range.beyond(cause.now if value is None else value))
        return total

    def _refined(self, sets: Sequence[_Fit], keys: list[Key], target: Vector, sigma: Vector, table: Vector) -> list[_Fit]:
        """The best sets, simulated; what is left over moves the amplitudes once more, twice."""
        base = features(self.base)
        singles = [one for one in sets if len(one.members) == 1]
        close = [one for one in singles if one.score <= singles[0].score + CLOSE] if singles else []
        chosen = close[:REFINED] + [one for one in sets[:REFINED] if len(one.members) > 1][: REFINED // 2]
        fits: list[_Fit] = []
        for one in chosen:
            amplitudes, best = one.amplitudes, None
            for _ in range(3):
                try:
                    seen = features(self.recorded(self._arguments(one.members, amplitudes)))
                except InputError:
                    break
                left = target - np.array([seen.get(key, 0.0) - base.get(key, 0.0) for key in keys])
                chi2 = float(((left / sigma) ** 2).sum())
                fit = _Fit(one.members, amplitudes, chi2, chi2 + self._penalty(one.members, amplitudes), one.errors)
                best = fit if best is None or fit.score < best.score else best
                moved = self._moved(one.members, amplitudes, table / sigma, left / sigma)
                if np.abs(moved - amplitudes).max() < _SETTLED:
                    break
                amplitudes = moved
            if best is not None:
                fits.append(best)
        return sorted(fits, key=lambda one: one.score)

    def _moved(self, members: tuple[int, ...], amplitudes: Vector, table: Vector, left: Vector) -> Vector:
        """A Gauss-Newton step with the columns as they are."""
        bounds = [self.columns[member].bounds for member in members]
        free = [place for place, (low, high) in enumerate(bounds) if low < high]
        if not free:
            return amplitudes
        columns = table[[members[place] for place in free]]
        step = np.linalg.solve(columns @ columns.T + 1e-9 * np.eye(len(free)), columns @ left)
        moved = amplitudes.copy()
        for place, change in zip(free, step, strict=True):
            moved[place] = np.clip(amplitudes[place] + change, *bounds[place])
        return moved

    def _arguments(self, members: Sequence[int], amplitudes: Vector) -> tuple[str, ...]:
        pairs = zip(members, amplitudes, strict=True)
        return tuple(argument for member, amplitude in pairs for argument in self.columns[member].arguments(float(amplitude)))

    def _ranking(self, refined: Sequence[_Fit], sets: Sequence[_Fit]) -> tuple[Attribution, ...]:
        """Every cause by the best set that holds it; inside a set the one first without which it would be worse."""
        alone = {one.members[0]: one.chi2 for one in sets if len(one.members) == 1}
        seen: dict[int, Attribution] = {}
        simulated = {one.members for one in refined}
        for one in [*refined, *(one for one in sets if one.members not in simulated)]:
            order = sorted(range(len(one.members)), key=lambda place: alone[one.members[place]])
            for place in order:
                member = one.members[place]
                if member not in seen:
                    column, amplitude = self.columns[member], float(one.amplitudes[place])
                    others = tuple(self.columns[other].cause.name for other in one.members if other != member)
                    seen[member] = self._attribution(column, amplitude, float(one.errors[place]), one.score, others)
            if len(seen) == len(self.columns):
                break
        return tuple(seen.values())

    def _attribution(self, column: _Column, amplitude: float, error: float, score: float, others: tuple[str, ...]) -> Attribution:
        value = column.value(amplitude)
        spread = None
        if value is not None and isinstance(column.cause, UncertainParameter):
            moved = column.cause.slowness(value) + error * abs(column.probe - column.here)
            spread = abs(column.cause.at(moved) - value)
        return Attribution(column.cause, value, spread, score, others)


def attributed(
    scenario: Scenario, built: Built, report: Report, recorded: Recorded, progress: Callable[[str, list[Cause], int], Iterable[Cause]]
) -> Evidence:
    """The causes that a trace shows.

    Raises:
        InputError: ranks that the scenario does not have, or a schedule without an end of a step.
    """
    refuse(built)
    total = len(built.gpus)
    if outside := [rank for rank in recorded.ranks if not 0 <= rank < total]:
        text = f"rank {outside[0]} is in the trace, the scenario has {total} (0 to {total - 1})"
        told = f"; it is of {recorded.world} ranks" if recorded.world else ""
        raise ScenarioError(Finding(text + told, "--profile", outside[0], "give the scenario of the recorded run"))
    ranks = sorted(recorded.ranks)
    simulate: Callable[[Scenario, Sequence[int]], Recorded] = predicted
    if any(one.kind == OP for one in recorded.slices):
        recorded = told_apart(recorded, predicted(scenario, ranks))
        simulate = _bare
    attributor = Attributor(scenario, ranks, simulate)
    slow = suspects(recorded, attributor.base, total)
    causes: list[Cause] = [*parameters(scenario, built, report, slow), *settings(scenario, built)]
    attributor.add(progress("Trying causes", causes, len(causes)))
    shown = attributor.evidence(recorded)
    simulator = Simulator(scenario)
    strange = other_job(built, plan_of(built, clock_of(built)), recorded, attributor.base)
    return replace(
        shown,
        another_job=strange,
        ranking=tuple(replace(one, step=simulator.step(one.arguments)) for one in shown.ranking[:6]) + shown.ranking[6:],
    )


def _bare(scenario: Scenario, ranks: Sequence[int]) -> Recorded:
    return without_waits(predicted(scenario, ranks))


def suspects(recorded: Recorded, base: Recorded, total: int) -> list[int]:
    """Ranks that may be the slow one: the recorded one that computed slowest for its work, and one that was not recorded."""
    seen, expected = features(recorded), features(base)

    def slowness(rank: int) -> float:
        work = math.fsum(expected.get((rank, kind), 0.0) for kind in COMPUTE)
        return math.fsum(seen.get((rank, kind), 0.0) for kind in COMPUTE) / work if work else 0.0

    others = [rank for rank in range(total) if rank not in recorded.ranks]
    return [max(recorded.ranks, key=slowness), *others[:1]]


def _difference(one: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    return {key: one.get(key, 0.0) - other.get(key, 0.0) for key in {**one, **other}}
