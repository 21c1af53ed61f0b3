"""From a run to what a report is made of: the ledger of every class, counts of the model, facts of the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from parsim.kernel import Kernel, Memory
from parsim.model.flops import CONVENTIONS, Again, flop_per_step, repeated_flop, untrained_flop
from parsim.model.model import OUTER
from parsim.model.parameter_counts import active_parameter_count, padded_parameter_count, parameter_count, trainable_parameter_count
from parsim.parallel.groups import AXES, OPERATOR_AXES
from parsim.report.communication import LinkClass
from parsim.report.experts import experts_of
from parsim.report.measured import (
    Measured,
    ModelFacts,
    Profiled,
    ProfiledGpu,
    RankClass,
    Ranks,
    ScheduleFacts,
)
from parsim.report.memory_facts import memory_of
from parsim.report.simulated import Hardware, SimulatedStep
from parsim.report.steady import steady_period
from parsim.report.timeline import Timeline


def ranks_of(run: SimulatedStep, hardware: Hardware) -> Ranks:
    """The sizes of the job."""
    mesh = run.plan.mesh
    used = {hardware.node_of(gpu) for gpu in run.plan.gpus}
    return Ranks(
        total=mesh.ranks,
        **{axis: mesh.size(axis) for axis in AXES},
        **_expert_ranks(run),
        outer=run.plan.parallelism.data.outer.size,
        micro_batches=run.micro_batches,
        nodes=len(used),
        idle_gpus=hardware.installed_gpus - mesh.ranks,
    )


def _expert_ranks(run: SimulatedStep) -> dict[str, int]:
    """Sizes of the grid of experts, where they are spread over ranks."""
    ep, etp, edp = run.plan.groups.expert
    return {"expert": ep, "expert_tensor": etp, "expert_data": edp} if ep else {}


def classes_of(run: SimulatedStep) -> tuple[RankClass, ...]:
    """One entry per class of equal ranks, in folded and unfolded runs alike."""
    members: dict[int, list[int]] = {}
    for rank, representative in run.classes.represents.items():
        members.setdefault(representative, []).append(rank)
    mesh = run.plan.mesh
    return tuple(RankClass(rank, tuple(members[rank]), mesh.coordinate(rank, "pipeline")) for rank in sorted(members))


def links_of(run: SimulatedStep, hardware: Hardware) -> dict[int, LinkClass]:
    """Simulated link -> class."""
    known: dict[int, LinkClass] = {}
    counts = run.classes.link_counts
    slack = hardware.slack(np.array(list(counts), dtype=np.int64)).tolist()
    for (representative, count), never_binds in zip(counts.items(), slack, strict=True):
        kind = hardware.link(representative).kind
        name = hardware.link_class_name(representative)
        known[representative] = LinkClass(name, kind, count, hardware.capacity(representative), representative, not never_binds)
    if run.folded:
        return known
    return {link: known[representative] for link, representative in run.classes.links.items()}


def model_of(run: SimulatedStep, hardware: Hardware, clock: Callable[[Kernel], float], convention: str = "palm") -> ModelFacts:
    """Counts and floating-point work under `convention`; hardware FLOP add what recomputation repeats.

    palm stands for exact where its formula does not describe the model (no sequences).
    """
    plan = run.plan
    model, training = plan.model, plan.training
    samples = training.global_batch
    profiled = model.facts.get("family") == "stages"
    if convention == "palm" and not CONVENTIONS["palm"].applies(model):
        convention = "exact"
    sequence = training.mean_length if model.sequence else 1
    share = 1.0 if training.backward else 1 / 3
    whole = flop = 0.0 if profiled else share * flop_per_step(model, sequence, samples, convention)
    if training.finetune is not None and training.backward:
        flop -= samples * untrained_flop(model, sequence, convention)
    flop += 0.0 if profiled else len(training.objective.unsaved) / 3 * flop_per_step(model, sequence, samples, convention)
    repeated = 0.0
    if training.backward and not profiled:
        micro_batches = samples / max(1, training.micro_batch)
        repeated = repeated_flop(convention, whole / micro_batches, _recomputed(run)) * micro_batches
    peaks = [hardware.device(gpu).peak[training.precision.matmul] for gpu in plan.gpus]
    peak = peaks[0] if not plan.kinds else math.fsum(peaks) / len(peaks)
    return ModelFacts(
        parameters=0 if profiled else parameter_count(model),
        parameters_padded=0 if profiled else padded_parameter_count(model),
        parameters_active=0 if profiled else active_parameter_count(model),
        flop_per_step=flop,
        hardware_flop_per_step=flop + repeated,
        peak_flop_per_gpu=peak,
        samples_per_step=training.samples,
        tokens_per_step=float(samples * sequence) if model.sequence else None,
        flop_convention=convention,
        memory_bound_fraction=_memory_bound(run, clock),
        trainable=None if profiled else trainable_parameter_count(model),
    )


def _recomputed(run: SimulatedStep) -> Again:
    """What one micro-batch recomputes over all stages, of the whole model (all tensor and context ranks)."""
    repeated = [passes.recomputed() for passes in run.lowering.all_passes()]
    ranks = math.prod(map(run.plan.mesh.size, OPERATOR_AXES))
    return Again(
        products=math.fsum(again.products for again in repeated) * ranks,
        core=math.fsum(again.core for again in repeated) * ranks,
        square=math.fsum(again.square for again in repeated) * ranks,
        layers=math.fsum(again.layers for again in repeated) * ranks,
    )


def _memory_bound(run: SimulatedStep, clock: Callable[[Kernel], float]) -> float | None:
    """Share of the compute time in kernels that wait for HBM."""
    bound = whole = 0.0
    for passes in run.lowering.all_passes():
        for kernel in passes.kernels():
            seconds = clock(kernel)
            whole += seconds
            bound += seconds if isinstance(kernel, Memory) else 0.0
    return bound / whole if whole else None


def schedule_of(run: SimulatedStep, theory: float | None) -> ScheduleFacts:
    """The schedule, and how long each stage's passes take without communication."""
    plan = run.plan
    pipeline = plan.parallelism.pipeline
    times: list[Mapping[str, float]] = []
    for chunk in plan.chunks:
        passes = run.lowering.passes_of(chunk.pipeline_rank)
        times.append(passes.seconds(chunk.stage))
    layers = [sum(1 for b in chunk.blocks if plan.model.blocks[b].kind not in OUTER) for chunk in plan.chunks]
    name = pipeline.schedule if pipeline.size > 1 else "none"
    return ScheduleFacts(name, pipeline.size, pipeline.virtual_stages, tuple(layers), tuple(times), theory)


def profiled_of(run: SimulatedStep, hardware: Hardware) -> Profiled:
    """What the profiler would know of a run."""
    plan, precision = run.plan, run.plan.training.precision
    short = "Half" if precision.matmul == "fp16" else "BFloat16"
    named = {1: "Float8_e4m3fn", 2: short, 4: "Float"}
    sizes = {
        "activations": precision.activations,
        "parameters": precision.cached_casts or precision.parameters,
        "gradients": precision.gradients,
        "reduce": precision.reduce,
    }
    gpus = {rank: hardware.device(gpu) for rank, gpu in enumerate(plan.gpus)}
    return Profiled(
        gpus={rank: ProfiledGpu(device.name, device.visible_memory, device.sms) for rank, device in gpus.items()},
        types={what: named.get(size, "Byte") for what, size in sizes.items()},
        allocator=plan.runtime.allocator,
        loads=run.loads,
    )


def assemble(
    run: SimulatedStep,
    hardware: Hardware,
    clock: Callable[[Kernel], float],
    *,
    reserve: int = 0,
    bytes_per_parameter: str = "",
    bubble_theory: float | None = None,
    flop_convention: str = "palm",
    **facts: object,
) -> Measured:
    """Everything a `Report` needs; `facts` are the fields of `Measured` that only the scenario knows."""
    window = None
    steps = 1.0
    if run.plan.asynchronous:
        window = steady_period(Timeline(run.trace), run.micro_batches, known=run.plan.parallelism.pipeline.step)
        steps = run.plan.training.micro_batches / run.micro_batches
    return Measured(
        trace=run.trace,
        ranks=ranks_of(run, hardware),
        classes=classes_of(run),
        model=model_of(run, hardware, clock, flop_convention),
        memory=memory_of(run, hardware, reserve=reserve, bytes_per_parameter=bytes_per_parameter),
        schedule=schedule_of(run, bubble_theory),
        experts=experts_of(run.plan),
        local_steps=run.local_steps,
        window=window,
        costs=run.cost,
        links=links_of(run, hardware),
        idle_links=hardware.link_count - len(run.classes.links),
        steps_simulated=steps,
        folded=run.folded,
        wall_s=run.wall,
        profiled=profiled_of(run, hardware),
        **facts,  # type: ignore[arg-type]
    )
