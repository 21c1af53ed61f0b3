"""The plan of a scenario and the clock of its GPUs: what can be said before anything is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parsim.hardware.kernels import kernel_time
from parsim.kernel import Kernel
from parsim.parallel.plan import Plan, plan
from parsim.scenario.built import Built


def plan_of(built: Built, clock: Callable[[Kernel], float]) -> Plan:
    """The plan; a schedule without a flush gets enough micro-batches to reach its steady state."""
    training, parallelism = built.training, built.parallelism
    if parallelism.pipeline.schedule == "pipedream":
        training = replace(training, micro_batches=training.micro_batches + 4 * parallelism.pipeline.size + 8)
    return plan(built.model, built.cluster, training, parallelism, built.runtime, clock, built.gpus, built.slow)


def clock_of(built: Built) -> Callable[[Kernel], float]:
    """Seconds of a kernel on the job's GPUs; the first GPU's device stands for all."""
    device = built.cluster.device(built.gpus[0])
    known: dict[Kernel, float] = {}

    def clock(kernel: Kernel) -> float:
        if (seconds := known.get(kernel)) is None:
            seconds = known[kernel] = kernel_time(device, kernel)
        return seconds

    return clock
