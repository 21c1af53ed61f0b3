"""What `build` returns: the objects the other rooms work with; and the plan that follows from them before anything is simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding
from parsim.hardware.kernels import kernel_time
from parsim.kernel import Clocks, Kernel
from parsim.parallel.plan import Plan, plan
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training
from parsim.scenario.effects import Effects
from parsim.scenario.faults import Broken
from parsim.scenario.schema import ReportSection
from parsim.scenario.software import Assumption

if TYPE_CHECKING:
    from parsim.hardware.device import Device
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.interconnect import Interconnect
    from parsim.hardware.nccl.inputs import Settings
    from parsim.hardware.transfers import Background
    from parsim.model.model import Model
    from parsim.scenario.scenario import Scenario
    from parsim.simulation.interrupted import InterruptedTraining
    from parsim.variability import Variability


@dataclass(frozen=True)
class Built:
    """A scenario as domain objects, every auto resolved."""

    scenario: Scenario
    model: Model
    cluster: Cluster
    training: Training
    parallelism: Parallelism
    runtime: Runtime
    gpus: tuple[int, ...]
    """GPU of each rank"""
    slow: Mapping[int, float]
    """rank -> relative compute speed"""
    batch_arithmetic: str
    """how the third batch number follows from the other two"""
    bytes_per_parameter: str
    """``2+2+4+8 = 16 B/parameter``"""
    memory_reserve: int
    """memory of every device that must stay free [B]"""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Finding, ...]
    report: ReportSection
    collectives: Settings | None = None
    """how NCCL's model prices collectives; None: rings and trees on the graph's capacities"""
    interference: str = "off"
    """off | simple | full"""
    seed: int = 0
    tokens: float | None = None
    """of the whole training; None: not asked about"""
    steps_to_train: int | None = None
    """optimizer steps of the whole training; None: the scenario does not say"""
    economics: Mapping[str, Any] | None = None
    """facts for `parsim.report.economics.economics`; None: nobody asked"""
    weeks: InterruptedTraining | None = None
    """the training with its failures, without its length in work; None: no horizon"""
    effects: Effects = field(default_factory=Effects)
    """what training steps show and single kernels do not"""
    variability: Variability | None = None
    """what is random; None: nothing"""
    effects_of_kinds: tuple[Effects, ...] = ()
    """the same for every kind of GPU, in the order of `kinds`; empty: all are of one kind"""
    background: tuple[Background, ...] = ()
    """traffic of other jobs"""
    faults: tuple[Broken, ...] = ()
    """what breaks, or is slow for a while, and so makes the disturbed step"""

    @cached_property
    def kinds(self) -> tuple[Device, ...]:
        """The different GPUs of the job, in the order of the ranks."""
        return tuple(dict.fromkeys(self.cluster.device(gpu) for gpu in self.gpus))

    @property
    def used_gpus(self) -> int:
        """Ranks."""
        return len(self.gpus)


_STEPS = 5
"""of which the middle ones repeat themselves"""


def plan_of(built: Built, clock: Callable[[Kernel], float]) -> Plan:
    """The plan; a schedule without a flush gets enough micro-batches to reach its steady state."""
    training, parallelism = built.training, built.parallelism
    pipeline = parallelism.pipeline
    if pipeline.schedule == "pipedream":
        training = replace(training, micro_batches=training.micro_batches + 4 * pipeline.size + 8)
    elif pipeline.schedule == "pipedream-2bw" or pipeline.post_validation:
        step = training.micro_batches
        parallelism = replace(parallelism, pipeline=replace(pipeline, step=step))
        training = replace(training, micro_batches=step * (_STEPS - -2 * pipeline.size // step))
    return plan(built.model, built.cluster, training, parallelism, built.runtime, clock, built.gpus, built.slow)


def wires_of(built: Built, job: Plan) -> Interconnect:
    """What collectives among the ranks of a plan cost."""
    from parsim.hardware.interconnect import Interconnect
    from parsim.hardware.nccl.token_exchange import TokenExchange

    expert = job.parallelism.expert
    tokens = None
    if job.routing is not None and expert.multiprocessors:
        tokens = TokenExchange(expert.dispatcher, job.routing, expert.multiprocessors)
    return Interconnect(built.cluster, job.gpus, built.collectives, tokens)


def clock_of(built: Built) -> Callable[[Kernel], float]:
    """Seconds of a kernel on the job's GPUs: `Clocks` where they are of several kinds."""
    if built.effects_of_kinds:
        each = zip(built.effects_of_kinds, built.kinds, strict=True)
        kinds = {device: kind for kind, device in enumerate(built.kinds)}
        of_ranks = [kinds[built.cluster.device(gpu)] for gpu in built.gpus]
        return Clocks([_clock(effects.on_device(device)) for effects, device in each], of_ranks)
    return _clock(built.effects.on_device(built.cluster.device(built.gpus[0])))


def _clock(device: Device) -> Callable[[Kernel], float]:
    known: dict[Kernel, float] = {}

    def clock(kernel: Kernel) -> float:
        if (seconds := known.get(kernel)) is None:
            seconds = known[kernel] = kernel_time(device, kernel)
        return seconds

    return clock
