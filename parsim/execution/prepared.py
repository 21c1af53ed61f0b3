"""A step made ready: planned, folded, lowered and priced once, run as often as one likes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from parsim.hardware.interconnect import Interconnect
from parsim.hardware.interference import MODELS, DeviceInterference
from parsim.hardware.transfers import Background
from parsim.kernel import Kernel
from parsim.parallel.custom_strategy import blamed
from parsim.parallel.groups import PIPELINE
from parsim.parallel.local_steps import fragment_elements
from parsim.parallel.plan import Plan
from parsim.program.check import refuse_illegal
from parsim.program.folding import Classes, FoldedInterconnect, classes_of, lower
from parsim.program.lowering import Lowering
from parsim.program.script import Scripts, write
from parsim.report.local_steps import LocalSteps
from parsim.report.simulated import SimulatedStep
from parsim.scenario.built import Built, clock_of, plan_of, wires_of
from parsim.scenario.cluster import background_traffic
from parsim.simulation.engine import Engine, collector_paused
from parsim.simulation.outer_exchange import exchange_time
from parsim.simulation.processes import Process
from parsim.simulation.trace import Trace


@dataclass(frozen=True, eq=False)
class Prepared:
    """All that a step needs before time passes. Nothing of it changes by running it."""

    built: Built
    plan: Plan
    scripts: Scripts
    classes: Classes
    """who stands for whom in a folded program"""
    lowering: Lowering
    wires: Interconnect
    """the whole fabric"""
    fabric: Interconnect | FoldedInterconnect
    """the fabric as the lowered ranks see it, with the load of all they stand for"""
    interference: DeviceInterference | None
    background: tuple[Background, ...]
    """traffic of other jobs as the lowered ranks see it"""
    folded: bool
    clock: Callable[[Kernel], float]
    local_steps: LocalSteps | None = None
    """where groups of replicas step alone: the step's parts"""
    local_step: Prepared | None = None
    """there: a local step, without its share of the exchange"""

    @cached_property
    def undisturbed(self) -> Trace:
        """The step as it is planned."""
        return self.trace()

    def trace(self, factors: Sequence[float] | None = None, processes: Iterable[Process] = ()) -> Trace:
        """Let time pass. `factors`: by op of the program, how many times as long it takes alone; see `Engine`."""
        engine = Engine(
            self.lowering.program,
            self.fabric,
            interference=self.interference,
            background=self.background,
            factors=factors,
            processes=processes,
        )
        return engine.run()

    def run(self, factors: Sequence[float] | None = None, processes: Collection[Process] = ()) -> SimulatedStep:
        """Let time pass, as `trace`; with all that a report asks for."""
        trace = self.undisturbed if factors is None and not processes else self.trace(factors, processes)
        micro_batches = self.built.training.micro_batches
        return SimulatedStep(
            self.plan, self.lowering, trace, self.classes, self.wires.cost, self.folded, micro_batches, 0.0, self.fabric.cost,
            self.local_steps,
        )  # fmt: skip

    def hashed_anew(self, seed: int) -> Prepared:
        """The same step on a network that hashes its flows by another seed."""
        cluster = self.built.cluster.hashed_anew(seed)
        others = background_traffic(cluster, self.built.scenario.settings.cluster.background)
        return prepare(replace(self.built, cluster=cluster, background=others), unfolded=not self.folded, clock=self.clock)

    def apart(self, kinds: Sequence[int], changing: Mapping[int, Hashable] | None = None) -> Prepared:
        """The same step with ranks told apart that differ in `kinds` (one number per rank), though they do the same.

        `changing`: links that change while it runs, and how.
        """
        with collector_paused():
            classes = classes_of(self.plan, self.wires, self.scripts, self.built.background, kinds, changing)
            step = _lowered(self.built, self.clock, self.plan, self.wires, self.scripts, classes, unfolded=False)
            return replace(step, local_steps=self.local_steps, local_step=self.local_step)

    def slower(self, rank: int, speed: float) -> Prepared:
        """The same step with the compute of one rank at `speed` of what it is; layers and batch stay split as they are."""
        with collector_paused():
            plan = replace(self.plan, slow={**self.plan.slow, rank: speed * self.plan.slow.get(rank, 1.0)})
            classes = classes_of(plan, self.wires, self.scripts, self.built.background)
            step = _lowered(self.built, self.clock, plan, self.wires, self.scripts, classes, unfolded=not self.folded)
            return replace(step, local_steps=self.local_steps)


def prepare(built: Built, *, unfolded: bool = False, clock: Callable[[Kernel], float] | None = None) -> Prepared:
    """Plan, fold and lower; the garbage collector rests meanwhile. `clock` instead of that of the job's GPUs. Raises as `simulate`."""
    with collector_paused():
        clock = clock or clock_of(built)
        job = plan_of(built, clock)
        wires = wires_of(built, job)
        step = _written(built, clock, job, wires, unfolded=unfolded)
        if job.parallelism.data.outer.size == 1:
            return step
        local = _local_steps(step)
        job = replace(job, outer_share=local.exposed / local.outer.local_steps)
        return replace(_written(built, clock, job, wires, unfolded=unfolded), local_steps=local, local_step=step)


def _written(built: Built, clock: Callable[[Kernel], float], job: Plan, wires: Interconnect, *, unfolded: bool) -> Prepared:
    with blamed(job.parallelism.data.custom):
        scripts = write(job, clock)
        classes = classes_of(job, wires, scripts, built.background)
    return _lowered(built, clock, job, wires, scripts, classes, unfolded=unfolded)


def _local_steps(step: Prepared) -> LocalSteps:
    """The parts of a period, of a local step without its share of the exchange."""
    plan, outer = step.plan, step.plan.parallelism.data.outer
    trained = {rank: step.lowering.passes_of(rank).trained_here for rank in range(plan.mesh.size(PIPELINE))}
    sizes = {rank: outer.bytes * fragment_elements(plan, count) for rank, count in trained.items()}
    fragment = exchange_time(plan, step.wires, sizes, step.built.background)
    return LocalSteps(outer, step.trace().makespan, outer.bytes * max(trained.values()), fragment)


def _lowered(
    built: Built, clock: Callable[[Kernel], float], job: Plan, wires: Interconnect, scripts: Scripts, classes: Classes, *, unfolded: bool
) -> Prepared:
    with blamed(job.parallelism.data.custom):
        lowering = lower(job, clock, scripts, None if unfolded else classes)
    refuse_illegal(job, lowering.program)
    folded = FoldedInterconnect(wires, classes)
    others = built.background if unfolded else tuple(map(folded.background, built.background))
    fabric = wires if unfolded else folded
    return Prepared(
        built, job, scripts, classes, lowering, wires, fabric, interference_of(built, wires), others, not unfolded, clock
    )  # fmt: skip


def interference_of(built: Built, wires: Interconnect) -> DeviceInterference | None:
    """How compute and communication slow each other down; None for off."""
    model = MODELS[built.interference]
    return None if model is None else DeviceInterference(model, wires.cost, built.cluster, built.gpus)
