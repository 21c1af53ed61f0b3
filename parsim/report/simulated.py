"""What a simulated step leaves behind, and what a report asks of the cluster that it ran on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parsim.hardware.flows import CollectiveCost
from parsim.parallel.plan import Plan
from parsim.program.folding import Classes
from parsim.program.lowering import Lowering
from parsim.program.program import Collective
from parsim.report.local_steps import LocalSteps
from parsim.report.steady import steady_period
from parsim.report.timeline import Timeline
from parsim.simulation.trace import Trace


class Hardware(Protocol):
    """What a report asks of a cluster."""

    nodes: int
    installed_gpus: int
    link_count: int

    def device(self, gpu: int) -> Accelerator: ...
    def node_of(self, gpu: int) -> int: ...
    def machine(self, node: int) -> HostMachine: ...
    def capacity(self, number: int) -> float: ...
    def link_class_name(self, number: int) -> str: ...
    def slack(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def link(self, number: int) -> WireKind: ...


class HostMachine(Protocol):
    """One machine's host memory."""

    @property
    def host_memory(self) -> int | None: ...


class WireKind(Protocol):
    """What a report asks of a link."""

    @property
    def kind(self) -> str: ...


class Accelerator(Protocol):
    """What a report asks of a device."""

    @property
    def visible_memory(self) -> int: ...
    @property
    def peak(self) -> Mapping[str, float]: ...
    @property
    def name(self) -> str: ...
    @property
    def sms(self) -> int: ...


@dataclass(frozen=True)
class SimulatedStep:
    """Everything a simulated step left behind."""

    plan: Plan
    lowering: Lowering
    trace: Trace
    classes: Classes
    cost: Callable[[Collective], CollectiveCost]
    folded: bool
    micro_batches: int
    """of one step; the plan of a schedule without a flush has more"""
    wall: float
    loads: Callable[[Collective], CollectiveCost] | None = None
    """the same as `cost` with the load of all equals, as the engine saw it"""
    local_steps: LocalSteps | None = None
    """where groups of replicas step alone: the step's parts"""

    @property
    def makespan(self) -> float:
        """End of the last op [s]."""
        return self.trace.makespan

    @property
    def step_time(self) -> float:
        """One optimizer step in steady state [s]."""
        if not self.plan.asynchronous:
            return self.makespan
        window = steady_period(Timeline(self.trace), self.micro_batches, known=self.plan.parallelism.pipeline.step)
        return window.step_time(self.micro_batches)
