"""Why a run is not what the simulation says: which change of one thing alone would explain the measured step time.

For every parameter the value is searched at which the simulated step takes the measured time; for every setting the step
with another value is simulated. What comes out is ranked by how far it lies from what was found in validation. A time alone
cannot decide between causes: each comes with the command that would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from parsim.errors import Finding, InputError, ScenarioError
from parsim.report import Report
from parsim.run import StepResult, simulate, step_of
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.scenario import Scenario
from parsim.study.diagnose_causes import LONGEST, Cause, Setting, UncertainParameter, parameters, plausible, settings

CLOSE = 1e-4
"""how close to the measured step a value is looked for"""
EXPLAINS = 2e-3
"""a value explains the step if it leaves no more than this part of it: times jump where NCCL finds other channels, and measured steps vary
by more
"""
_SAME = 1e-9
_MOST_STEPS = 40


@dataclass(frozen=True)
class TriedCause:
    """What one cause alone would make of the step."""

    cause: Cause
    value: float | None
    """of a parameter: what explains the step, or its bound where nothing does"""
    step: float
    """simulated step with it [s]"""
    peak: int
    """simulated peak of device memory with it [B]"""
    explains: bool
    beyond: float
    """distance from the range seen in validation: 0 inside, 1 as far outside as the range is wide on one side"""
    memory_beyond: float = 0.0
    """the same of the peak memory, where it was measured"""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Overrides of the scenario."""
        return self.cause.overrides(self.value)

    @property
    def rank(self) -> tuple[bool, float, bool, float]:
        """Sort key that puts the more plausible causes first."""
        return (not self.explains, self.beyond + self.memory_beyond, isinstance(self.cause, Setting), self._change)

    @property
    def _change(self) -> float:
        cause = self.cause
        if isinstance(cause, Setting) or self.value is None:
            return 1.0
        if cause.now <= 0.0 or self.value <= 0.0:
            return 1.0
        return abs(math.log(self.value / cause.now))


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step of a scenario: its time, its peak memory, or both."""

    scenario: Scenario
    step_time: float | None
    """[s]"""
    peak_memory: int | None = None
    """[B]"""


@dataclass
class Diagnosis:
    """The causes that were tried, the most plausible first."""

    question: MeasuredStep
    built: Built
    report: Report
    """what was predicted"""
    explanations: list[TriedCause] = field(default_factory=list)
    memory: list[TriedCause] = field(default_factory=list)
    """what the peak would be otherwise, the nearest first; empty where it was not measured"""
    overhead: int | None = None
    """`software.memory.overhead` that alone would explain the peak [B]; None: it would have to be negative"""
    wire_step: float | None = None
    """simulated step with the wires as a log of nccl-tests found them [s]"""

    @property
    def gap(self) -> float:
        """Measured less predicted step [s]; 0 where no time was given."""
        return self.question.step_time - self.report.step_time if self.question.step_time is not None else 0.0

    @property
    def expected(self) -> bool:
        """The measured step lies where 80 % of the published runs like it do: nothing asks for an explanation."""
        band = self.report.measured.confidence.step_band(self.report.step_time)
        return band is not None and self.question.step_time is not None and band[0] <= self.question.step_time <= band[1]


class Simulator:
    """Simulates changes of one scenario; step times are kept, and of what else a step left behind only the last."""

    def __init__(self, scenario: Scenario) -> None:
        once = scenario.settings.variability.runs == 1
        self.scenario = scenario if once else scenario.with_overrides("variability.runs=1")  # what is diagnosed is one step
        self._times: dict[tuple[str, ...], float] = {}
        self._last: tuple[tuple[str, ...], StepResult] | None = None

    def result(self, arguments: tuple[str, ...]) -> StepResult:
        """The step with overrides, and its memory on demand. Raises `InputError` where they are not possible."""
        if self._last is not None and self._last[0] == arguments:
            return self._last[1]
        scenario = self.scenario.with_overrides(*arguments)
        self._last = None  # a long step may not find room beside another
        try:
            result = step_of(build(scenario))
        except InputError as error:
            raise type(error)(scenario.findings_at(error.findings)) from None
        self._last, self._times[arguments] = (arguments, result), result.step_time
        return result

    def step(self, arguments: tuple[str, ...]) -> float:
        """Step time with overrides [s]."""
        return self._times[arguments] if arguments in self._times else self.result(arguments).step_time


def explain_step(question: MeasuredStep, progress: Callable[[str, list[Cause], int], Iterable[Cause]]) -> Diagnosis:
    """Everything that could explain what was measured.

    Raises:
        InputError: the scenario cannot be simulated.
    """
    simulator = Simulator(question.scenario)
    built = build(question.scenario)
    report = simulate(simulator.scenario)
    diagnosis = Diagnosis(question, built, report)
    causes: list[Cause] = [*parameters(question.scenario, built, report), *settings(question.scenario, built)]
    for cause in progress("Trying causes", causes, len(causes)):
        one = explained(cause, simulator, report, question)
        if one is not None:
            diagnosis.explanations.append(one)
    diagnosis.explanations.sort(key=lambda one: one.rank)
    if question.peak_memory is not None:
        _explain_memory(diagnosis, question.peak_memory)
    if question.step_time is None:
        diagnosis.explanations.clear()
    return diagnosis


def explained(cause: Cause, simulator: Simulator, report: Report, question: MeasuredStep) -> TriedCause | None:
    """What one cause does; None for a setting that is not possible here, or changes neither time nor memory."""
    target = question.step_time if question.step_time is not None else report.step_time
    if isinstance(cause, UncertainParameter):
        value, reached = solve(cause, simulator.step, report.step_time, target)
        explains = abs(reached - target) <= EXPLAINS * target
        peak = simulator.result(cause.arguments(value)).memory.peak_bytes if value != cause.now else report.peak_memory
        return TriedCause(cause, value, reached, peak, explains, cause.range.beyond(value), _memory_beyond(peak, question.peak_memory))
    try:
        other = simulator.result(cause.overrides())
    except InputError:
        return None
    peak = other.memory.peak_bytes
    if abs(other.step_time - report.step_time) <= _SAME * report.step_time and peak == report.peak_memory:
        return None
    band = plausible("setting", target)
    beyond = band.beyond(other.step_time)
    towards = abs(other.step_time - target) < abs(report.step_time - target)
    beside = _memory_beyond(peak, question.peak_memory)
    return TriedCause(cause, None, other.step_time, peak, towards and beyond == 0.0, beyond, beside)


def _memory_beyond(peak: int, measured: int | None) -> float:
    """How far a predicted peak is from the measured one, in tenths of it less one; predictions are within 10 % (validation)."""
    return 0.0 if measured is None else max(0.0, abs(math.log(peak / measured)) / math.log(1.1) - 1.0)


def solve(cause: UncertainParameter, step: Callable[[tuple[str, ...]], float], now: float, target: float) -> tuple[float, float]:
    """The value of a parameter at which the step takes `target`, and what it takes there [s]; the bound where none does.

    Brackets from today's value outwards, then the Illinois variant of the false position: time is piecewise linear in the
    coordinate, so a handful of simulations is enough.
    """
    here, bound = cause.slowness(cause.now), cause.slowness(cause.slowest if target > now else cause.fastest)
    if abs(target - now) <= CLOSE * target or here == bound:
        return cause.now, now

    def miss(place: float) -> float:
        return step(cause.arguments(cause.at(place))) - target

    inner, low = here, now - target
    scale = here if cause.rate or here > 0 else cause.slowest / LONGEST
    outer = here + (scale * (target / now - 1.0) * 1.05 if target > now else (bound - here) * min(1.0, 1.5 * (1 - target / now)))
    while True:
        outer = min(outer, bound) if bound > here else max(outer, bound)
        high = miss(outer)
        if high * low <= 0:
            break
        if outer == bound:
            return cause.at(bound), high + target
        inner, low, outer = outer, high, outer + 2 * (outer - inner)
    kept = 0
    for _ in range(_MOST_STEPS):
        if abs(high) <= 0.1 * CLOSE * target:
            return cause.at(outer), high + target
        if abs(low) <= 0.1 * CLOSE * target:
            break
        middle = (inner * high - outer * low) / (high - low)
        at = miss(middle)
        if at * high < 0:
            inner, low, kept = outer, high, 0
        else:
            kept += 1
            low *= 0.5 if kept > 0 else 1.0
        outer, high = middle, at
    return cause.at(outer), high + target


def _explain_memory(diagnosis: Diagnosis, measured: int) -> None:
    """Settings by the peak they would have, and the overhead that alone would do."""
    report = diagnosis.report
    with_memory = [one for one in diagnosis.explanations if isinstance(one.cause, Setting) and one.peak != report.peak_memory]
    diagnosis.memory = sorted(with_memory, key=lambda one: abs(math.log(one.peak / measured)))
    lacking = measured - report.peak_memory + diagnosis.question.scenario.settings.software.memory.overhead
    if lacking >= 0:
        diagnosis.overhead = lacking


def question(scenario: Scenario, step_time: str | None, peak_memory: str | None) -> MeasuredStep:
    """What a user measured, from texts with units.

    Raises:
        ScenarioError: neither was given, a unit is wrong, a value is not above zero; all at once.
    """
    from parsim.units import parse

    findings: list[Finding] = []

    def read(option: str, text: str | None, kind: str, example: str) -> float | None:
        if text is None:
            return None
        try:
            value = float(parse(text, kind))
        except ValueError as error:
            findings.append(Finding(str(error), option, text, f"for example {option} {example}", file="command line"))
            return None
        if not 0 < value < math.inf:
            findings.append(Finding(f"{text} is not above zero", option, text, f"for example {option} {example}", file="command line"))
        return value

    seconds = read("--step-time", step_time, "time", "18.2s")
    peak = read("--peak-memory", peak_memory, "bytes", "61GiB")
    if findings:
        raise ScenarioError(findings)
    return MeasuredStep(scenario, seconds, None if peak is None else int(peak))
