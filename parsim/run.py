"""simulate(): from a scenario to a report, the whole pipeline on one screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from parsim.errors import Finding, InputError
from parsim.execution.background_saves import with_saves
from parsim.execution.faulted import faulted
from parsim.execution.prepared import Prepared, prepare
from parsim.execution.short_steps import short_steps
from parsim.execution.slow_gpu import slow_gpu as slow_gpu_in
from parsim.execution.training_faults import broken_training
from parsim.kernel import Kernel
from parsim.parallel.plan import Plan
from parsim.parallel.schedules import BIDIRECTIONAL, CUSTOM, OVERLAPPING, SPLIT
from parsim.report.assemble import assemble, model_of
from parsim.report.economics import Economics, economics
from parsim.report.estimate import Confidence
from parsim.report.measured import Measured, MemoryFacts, ModelFacts, ReportedAssumption
from parsim.report.memory_facts import CLOSE, memory_of, overfull
from parsim.report.report import Report
from parsim.report.simulated import SimulatedStep
from parsim.report.training_paths import Player
from parsim.report.variability import RunStatistics
from parsim.report.wiring import wiring_of
from parsim.scenario.build import build
from parsim.scenario.built import Built, clock_of
from parsim.scenario.confidence import confidence
from parsim.scenario.load import load
from parsim.scenario.provenance import provenance
from parsim.scenario.scenario import Scenario, place_texts
from parsim.simulation.engine import collector_paused
from parsim.theory.pipeline import bubble_fraction


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *overrides: str,
    unfolded: bool = False,
    trust_code: bool = False,
    slow_gpu: float | None = None,
) -> Report:
    """Simulate one training step of a scenario (or of the file or tree it is in, with ``a.b=c`` overrides).

    The scenario says its strategy; `parsim.simulate` also searches for one (``parallel: auto``).
    `unfolded` simulates every rank instead of one per class of equal ranks. `trust_code` lets the Python files run that the scenario
    names (a strategy or a schedule of your own); they can do whatever you can. `slow_gpu` asks what one GPU at this share of its speed
    costs. Raises `ParsimError` subclasses: an `InputError` with all findings for a scenario that cannot be simulated, `DeadlockError`
    for a program that stops.
    """
    return reported(loaded(scenario, overrides, trust_code=trust_code), unfolded=unfolded, slow_gpu=slow_gpu)


Repeat = Callable[[Prepared, float], RunStatistics | None]
"""makes the runs of a step that takes so long undisturbed [s]; None: nothing varies"""


def reported(
    scenario: Scenario,
    *,
    unfolded: bool = False,
    repeat: Repeat | None = None,
    play: Player | None = None,
    slow_gpu: float | None = None,
) -> Report:
    """The report of a scenario that is loaded, `slow_gpu` as in `simulate`.

    `repeat` makes the runs where it asks for several, and `play` sample paths of its training; else both are made in this process.
    """
    with collector_paused():
        return _simulated(scenario, unfolded=unfolded, repeat=repeat, play=play, slow_gpu=slow_gpu)


def loaded(scenario: Scenario | str | Path | Mapping[str, Any], overrides: Sequence[str], *, trust_code: bool) -> Scenario:
    """The scenario that `simulate` is given, with overrides. Raises `ScenarioError`."""
    if not isinstance(scenario, Scenario):
        return load(scenario, *overrides, trust_code=trust_code)
    if trust_code:
        scenario = replace(scenario, trust_code=True)
    return scenario.with_overrides(*overrides) if overrides else scenario


def _simulated(scenario: Scenario, *, unfolded: bool, repeat: Repeat | None, play: Player | None, slow_gpu: float | None) -> Report:
    built = build(scenario)
    began = perf_counter()
    try:
        prepared = prepare(built, unfolded=unfolded or not built.report.fold)
        run = prepared.run()
        weeks = None if built.weeks is None else with_saves(prepared, run.makespan, built.weeks)
        broken = broken_training(prepared, run.makespan, built.weeks) if built.faults and built.weeks is not None else None
        faults = faulted(prepared, run, partial(_measured, scenario)) if built.faults and built.weeks is None else None
        slow = None if slow_gpu is None else slow_gpu_in(prepared, run.step_time, slow_gpu)
    except InputError as error:
        raise type(error)(scenario.findings_at(map(_in_scenario, error.findings))) from None
    measured = replace(_measured(scenario, built, replace(run, wall=perf_counter() - began)), slow_gpu=slow)
    if faults is not None:
        warnings = (*measured.warnings, *scenario.findings_at(faults.warnings))
        measured = replace(measured, faults=faults, warnings=warnings)
    runs = scenario.settings.variability.runs
    if weeks is not None:
        measured = replace(measured, weeks=weeks, weeks_runs=runs, play=play)
    if broken is not None and weeks is not None:
        warnings = (*measured.warnings, *scenario.findings_at(broken.warnings))
        measured = replace(measured, weeks=broken.of(weeks), weeks_faults=broken.faults, warnings=warnings)
    if built.slow or runs > 1:
        from parsim.execution.lone_workers import lone_workers

        measured = replace(measured, workers=partial(lone_workers, prepared, run.step_time))
    report = Report(measured)
    if runs == 1:
        return report
    try:
        report = _repeated(report, prepared, repeat)
    except InputError as error:
        raise type(error)(scenario.findings_at(map(_in_scenario, error.findings))) from None
    if report.training_run is not None:
        report.training_run.paths  # noqa: B018 - played here, where those are who play them
    return report


def _measured(scenario: Scenario, built: Built, run: SimulatedStep) -> Measured:
    """What a run of a scenario is measured by."""
    return assemble(
        run,
        built.cluster,
        clock_of(built),
        reserve=built.memory_reserve,
        bytes_per_parameter=built.bytes_per_parameter,
        bubble_theory=bubble_theory(run.plan, run.micro_batches),
        flop_convention=built.report.flop_convention,
        training_tokens=built.tokens,
        name=scenario.name,
        scenario=scenario.document(),
        origins=place_texts(scenario.origins),
        wiring=partial(wiring_of, built.cluster, run.classes),
        assumptions=tuple(ReportedAssumption(a.name, a.value, a.source, a.origin) for a in built.assumptions),
        warnings=built.warnings,
        confidence=Confidence(**confidence(built)),
        provenance=provenance(scenario.trusted_code),
        seed=built.seed,
        steps_to_train=built.steps_to_train,
        economics=economics_of(built),
        weeks=built.weeks,
        plan=scenario.found,
    )


def _repeated(report: Report, prepared: Prepared, repeat: Repeat | None) -> Report:
    """The report with what many runs of its step say."""
    from parsim.monte_carlo.repeated import NOTHING, repeated

    measured = report.measured
    found = (repeat or repeated)(prepared, report.step_time)
    if found is None and measured.weeks is not None:  # the runs are of the training
        return report
    if found is None:
        return Report(replace(measured, warnings=(*measured.warnings, NOTHING)))
    return Report(replace(measured, variability=found, confidence=measured.confidence.disturbed()))


def economics_of(built: Built) -> Economics | None:
    """Prices, power and failures for `parsim.report.economics.bill`; None where the scenario does not ask."""
    return None if built.economics is None else economics(built.economics)


def _in_scenario(finding: Finding) -> Finding:
    """The key of a finding as the scenario spells it."""
    return replace(finding, path=f"cluster.{finding.path}") if finding.path.startswith("collectives.") else finding


@dataclass(frozen=True)
class StepResult:
    """What a search asks of one step; times are equal to what the report says to 1e-9."""

    built: Built
    step_time: float
    """one optimizer step in steady state [s]"""
    makespan: float
    """end of the last op [s]"""
    method: Literal["whole", "periods"]
    """whether every micro-batch was simulated, or as many as it took to see that the step repeats itself"""
    micro_batches_simulated: int
    _run: SimulatedStep

    @cached_property
    def memory(self) -> MemoryFacts:
        """Device memory of every class of ranks [B]. Where the peak is within 5 % of the capacity, the allocator's history is that of
        all micro-batches, as in the report, else that of those that were simulated.
        """
        facts = self.simulated_memory
        if self.method == "periods" and abs(facts.headroom) <= CLOSE * facts.capacity_bytes:
            return self._memory(execute(self.built, unfolded=not self.built.report.fold))
        return facts

    @cached_property
    def simulated_memory(self) -> MemoryFacts:
        """That of the micro-batches that were simulated, however near to the capacity [B]."""
        return self._memory(self._run)

    @property
    def flop(self) -> ModelFacts:
        """Work and samples of the whole step."""
        built = self.built
        return model_of(self._run, built.cluster, clock_of(built), built.report.flop_convention)

    def _memory(self, run: SimulatedStep) -> MemoryFacts:
        built = self.built
        with collector_paused():
            return memory_of(run, built.cluster, reserve=built.memory_reserve, bytes_per_parameter=built.bytes_per_parameter)

    @property
    def fits(self) -> bool:
        """Whether every device and every host have enough memory, as `Report.fits` says. Where the tensors alone are too large, the
        allocator is not asked.
        """
        if "memory" not in self.__dict__ and overfull(self._run, self.built.cluster, self.built.memory_reserve):
            return False
        return self.memory.headroom >= 0 and (self.memory.host is None or self.memory.host.lacks == 0)

    @property
    def peaks(self) -> dict[int, int]:
        """Representative rank -> peak of its device's memory [B]."""
        return {device.rank: device.device_used_bytes for device in self.memory.devices}


def step_of(built: Built) -> StepResult:
    """The step time of a scenario, and its memory on demand, without a report. Raises as `simulate`.

    Long steps are answered from shorter ones, where these prove that the step repeats itself (`parsim.simulation.periods`).
    """
    with suppress(InputError):  # what is wrong is said of the step that was asked for
        if (step := step_from_periods(built)) is not None:
            return step
    run = execute(built, unfolded=not built.report.fold)
    return StepResult(built, run.step_time, run.makespan, "whole", run.plan.training.micro_batches, run)


def step_from_periods(built: Built) -> StepResult | None:
    """The step from a shorter one that repeats itself; None where none is known to. Raises as `simulate`."""
    for short in short_steps(built):
        run = execute(short.built, unfolded=not built.report.fold)
        if (end := short.makespan(run)) is not None:
            return StepResult(built, end, end, "periods", short.built.training.micro_batches, run)
    return None


def execute(built: Built, *, unfolded: bool = False, clock: Callable[[Kernel], float] | None = None) -> SimulatedStep:
    """Plan, fold, lower and run; the garbage collector rests meanwhile. `clock` instead of that of the job's GPUs."""
    with collector_paused():
        return prepare(built, unfolded=unfolded, clock=clock).run()


def bubble_theory(job: Plan, micro_batches: int) -> float | None:
    """The closed form for equal stages and free communication, where there is one."""
    p, pipeline = job.mesh.size("pipeline"), job.parallelism.pipeline
    if job.kinds or job.training.shares:  # stages or replicas that are not equal
        return None
    if p == 1:
        return 0.0
    if pipeline.schedule == CUSTOM or pipeline.schedule in (
        *SPLIT,
        *OVERLAPPING,
        *BIDIRECTIONAL,
    ):  # these depend on how the backward divides
        return None
    return bubble_fraction(pipeline.schedule, p, micro_batches, pipeline.virtual_stages)
