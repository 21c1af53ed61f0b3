"""Jobs for tests: a model of the catalogue or of plain durations, planned, lowered and run without a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import parsim
from parsim.hardware.flows import CollectiveCost
from parsim.kernel import Fixed, Memory
from parsim.model.catalogue import build_model
from parsim.model.stages import build_stages
from parsim.parallel.plan import plan
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import ContextParallel, DataParallel, ExpertParallel, Parallelism, PipelineParallel, TensorParallel
from parsim.parallel.training import Training
from parsim.program.lowering import Lowering
from parsim.scenario.files import read
from parsim.scenario.precision import PRESETS
from parsim.simulation.engine import Engine
from parsim.simulation.ledger import Ledger

FP32 = PRESETS["fp32"]
CATALOGUE = Path(parsim.__file__).parent / "catalogue"
GIB, MIB = 2**30, 2**20


@cache
def tree(name):
    return read(CATALOGUE / "models" / f"{name}.yaml").tree


@cache
def model_of(name, tensor=1, loss="auto"):
    """A model of the catalogue; over several tensor ranks with Megatron's padded vocabulary."""
    return build_model(tree(name), name=name, tensor=tensor, base_lookup=tree, loss=loss, divisor=128 if tensor > 1 else 0)


def layers(count, forward=1.0, backward_input=1.0, backward_weight=1.0, parameters=1000):
    """`count` equal layers that take the given seconds."""
    row = {"forward": f"{forward} s", "backward_input": f"{backward_input} s", "backward_weight": f"{backward_weight} s"}
    return build_stages({"stages": [row | {"parameters": parameters}] * count}, name="layers")


def stages(*rows, send=0.0, parameters=0):
    """Profiled stages, each (forward, backward) or (forward, backward_input, backward_weight) in seconds; one stands for all."""
    keys = {2: ("forward", "backward"), 3: ("forward", "backward_input", "backward_weight")}
    entries = [dict(zip(keys[len(row)], (f"{t!r} s" for t in row), strict=True)) for row in rows]
    return build_stages({"stages": [entry | {"send": f"{send!r} s", "parameters": parameters} for entry in entries]}, name="stages")


def measured(kernel):
    """A clock in which only measured durations take time."""
    return kernel.seconds if isinstance(kernel, Fixed) else 0.0


def roofline(kernel):
    """100 TFLOP/s, 1 TB/s and a microsecond per kernel."""
    if isinstance(kernel, Fixed):
        return kernel.seconds
    return (kernel.bytes / 1e12 if isinstance(kernel, Memory) else kernel.flop / 1e14) + 1e-6


@dataclass(frozen=True)
class Machine:
    """Nodes of eight GPUs."""

    gpus: int

    def node_of(self, gpu):
        return gpu // 8


@dataclass(frozen=True)
class Wires:
    """Collectives that take a constant time, by axis or by (kind, axis) [s]."""

    seconds: dict

    def cost(self, collective):
        time = self.seconds.get((collective.kind, collective.axis), self.seconds.get(collective.axis, 0.0))
        return CollectiveCost(time, ())

    def capacity(self, link):
        raise AssertionError


@dataclass(frozen=True)
class Job:
    """A planned job; its program, its trace and its memory on demand."""

    plan: object
    clock: object
    wires: object
    one_per_stage: bool = False
    """lower one rank of each pipeline stage for all its equals"""

    @cached_property
    def lowering(self):
        lowering = Lowering(self.plan, self.clock)
        if self.one_per_stage:
            mesh = self.plan.mesh
            chosen = [mesh.at(pipeline=stage)[0] for stage in range(mesh.size("pipeline"))]
            represents = {rank: chosen[mesh.coordinate(rank, "pipeline")] for rank in range(mesh.ranks)}
            lowering = Lowering(self.plan, self.clock, chosen, represents)
        lowering.run()
        return lowering

    @property
    def program(self):
        return self.lowering.program

    @cached_property
    def trace(self):
        return Engine(self.program, self.wires).run()

    @property
    def makespan(self):
        return self.trace.makespan

    @cached_property
    def ledger(self):
        return Ledger(self.program, self.trace)

    def memory(self, rank=0, **options):
        return self.ledger.measure(rank, **options)

    def collectives(self, rank=0, axis=None, kind=None):
        """The collective ops in which `rank` takes part, in the order of the program."""
        found = [op for op in self.program.ops if op.collective is not None and any(lane.rank == rank for lane in op.lanes)]
        return [op for op in found if axis in (None, op.collective.axis) and kind in (None, op.collective.kind)]

    def bytes(self, rank=0, axis=None, kind=None):
        """Sum of the sizes (nccl-tests semantics) of those collectives [B]."""
        return sum(op.collective.bytes for op in self.collectives(rank, axis, kind))

    def end(self, name, instance=0, rank=0):
        """End of the last op of `rank` whose name begins with `name` [s]."""
        found = [op for op in self.program.ops if op.name.startswith(name) and op.instance == instance and op.lanes[0].rank == rank]
        return max(self.trace.end[op.index] for op in found)


def job(
    model,
    *,
    tensor=1,
    context=1,
    pipeline=1,
    data=1,
    clock=roofline,
    wires=None,
    slow=None,
    runtime=None,
    tensor_settings=None,
    context_settings=None,
    pipeline_settings=None,
    data_settings=None,
    expert_settings=None,
    one_per_stage=False,
    **training,
):
    """A job of tensor x context x data x pipeline ranks. `model` is a name of the catalogue or a model; `training` are its settings.

    The other settings are mappings of fields that differ from their defaults.
    """
    chosen = model_of(model, tensor) if isinstance(model, str) else model
    split = Parallelism(
        tensor=replace(TensorParallel(tensor), **(tensor_settings or {})),
        context=replace(ContextParallel(context), **(context_settings or {})),
        pipeline=replace(PipelineParallel(pipeline), **(pipeline_settings or {})),
        data=replace(DataParallel(data), **(data_settings or {})),
        expert=replace(ExpertParallel(), **(expert_settings or {})),
    )
    ranks = tensor * context * pipeline * data
    recipe = replace(Training(sequence_length=128 if chosen.sequence else 1), **training)
    job_plan = plan(chosen, Machine(ranks), recipe, split, replace(Runtime(), **(runtime or {})), clock, tuple(range(ranks)), slow)
    return Job(job_plan, clock, wires if hasattr(wires, "cost") else Wires(wires or {}), one_per_stage)
