"""Device memory of every class of ranks: the ledger, the allocator's replay, and what lives outside the allocator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from parsim.parallel.fsdp import ROOT
from parsim.parallel.hooks import Weight
from parsim.parallel.optimizer import state_bytes
from parsim.parallel.plan import Chunk, Plan
from parsim.parallel.storage import trains, weight_bytes
from parsim.program.program import OFFLOAD
from parsim.report.host_memory import Machines, host_memory
from parsim.report.measured import AT_PEAK, DeviceMemory, MemoryCurve, MemoryFacts
from parsim.simulation.ledger import Ledger, MemoryTimeline

if TYPE_CHECKING:
    from parsim.report.assemble import Run

GIB = 2**30
FIRST_COMMUNICATOR = int(0.3 * GIB)
FURTHER_COMMUNICATOR = int(0.2 * GIB)
"""NCCL buffers outside the allocator: about 0.3 GiB for a rank's first communicator and 0.15-0.4 GiB for each further one
(NVIDIA/nccl issues 964 and 1685; assumption)"""
CURVES = 16
"""classes whose curve over time is kept: those with the highest peaks"""
CURVE_POINTS = 8_000
REPLAYED_EVENTS = 600_000
"""allocations and releases that are replayed through the allocator at most, those of the fullest classes first"""


class Memories(Machines, Protocol):
    """What this file asks of a cluster."""

    def device(self, gpu: int) -> Visible: ...


class Visible(Protocol):
    """A device's memory."""

    @property
    def visible_memory(self) -> int: ...


def memory_of(run: Run, hardware: Memories, *, reserve: int, bytes_per_parameter: str) -> MemoryFacts:
    """The ledger of every class's representative, fullest classes replayed through the caching allocator.

    Where a program has more than `REPLAYED_EVENTS` events, the classes that do not decide (their allocated peaks are
    lower) get the largest ratio of reserved to allocated memory among those that were replayed.
    """
    plan, runtime = run.plan, run.plan.runtime
    representatives = sorted(set(run.classes.represents.values()))
    ledger = Ledger(run.trace.program, run.trace, representatives)
    plain = {rank: ledger.measure(rank) for rank in representatives}
    order = sorted(representatives, key=lambda rank: (-plain[rank].peak, rank))
    joined = communicators(run)
    devices: dict[int, DeviceMemory] = {}
    ratio, events = 1.0, 0
    for place, rank in enumerate(order):
        curve, reserved = plain[rank], None
        if place == 0 or events + len(curve.times) <= REPLAYED_EVENTS:
            events += len(curve.times)
            curve = curve.replayed(runtime.allocator)
            reserved = curve.peak_reserved
            ratio = max(ratio, (reserved or curve.peak) / max(1, curve.peak))
        buffers = _buffers(runtime.communicators, joined.get(rank, 0))
        fixed = (runtime.context + runtime.overhead, buffers)
        size = round(curve.peak * ratio) if reserved is None else reserved
        devices[rank] = _device(run, rank, curve, size, fixed, keep=place < CURVES)
    capacity = min(hardware.device(plan.gpus[rank]).visible_memory for rank in representatives)
    ordered = tuple(devices[rank] for rank in representatives)
    host = host_memory(run, hardware)
    return MemoryFacts(
        capacity,
        ordered,
        reserve,
        host_bytes=0 if host is None else host.bytes,
        at_save_bytes=at_save(run, ordered),
        bytes_per_parameter=bytes_per_parameter,
        states=state_bytes(plan.training.precision, plan.training.optimizer),
        host=host,
    )


def _buffers(stated: int | None, groups: int) -> int:
    if stated is not None:
        return stated
    return FIRST_COMMUNICATOR + FURTHER_COMMUNICATOR * (groups - 1) if groups else 0


def at_save(run: Run, devices: Sequence[DeviceMemory]) -> int:
    """Device memory while a consolidated checkpoint of the weights is written, between two steps: what stays resident on the
    fullest rank, and what saving gathers on top.

    Replicated weights are referred to, not copied. FSDP's full state dict (rank 0, offloaded to the CPU) unshards in full
    precision one unit after the other below the root unit; DeepSpeed's stage3_gather_16bit_weights_on_model_save gathers the
    parameters of one module at a time. The gathered dict itself is in rank 0's host memory, P x the weight's bytes.
    """
    base = max(sum(d.resident_bytes.values()) + d.at_peak["context"] + d.at_peak["communicators"] for d in devices)
    strategy = run.plan.parallelism.data.strategy
    if not run.plan.sharded or run.plan.replicas == 1:
        return base
    return base + max((_at_once(run.plan, chunk, strategy) for chunk in run.plan.chunks), default=0)


def _at_once(plan: Plan, chunk: Chunk, strategy: str) -> int:
    """Bytes of a chunk's weights that saving gathers at once; frozen ones are gathered as they are stored."""
    if strategy != "zero3":
        sizes = {unit.name: sum(_gathered(weight, plan) for weight in unit.weights) for unit in plan.units(chunk)}
        root = sizes.pop(ROOT, 0)
        return root + max(sizes.values(), default=0)
    modules: dict[str, int] = {}
    for weight in plan.weights(chunk):
        module = weight.name.rpartition(".")[0]
        modules[module] = modules.get(module, 0) + _gathered(weight, plan)
    return max(modules.values(), default=0)


def _gathered(weight: Weight, plan: Plan) -> int:
    """Bytes of a weight when it is whole, 0 if it is whole already."""
    recipe = plan.training.finetune
    kept = recipe is not None and not recipe.base_sharded and not trains(weight)
    return 0 if kept or weight.parameter.buffer else weight_bytes(weight, plan.training)


def communicators(run: Run) -> dict[int, int]:
    """How many communicators each simulated rank belongs to: one per group of its collectives, one for all its sends."""
    groups: dict[int, set[tuple[int, ...]]] = {}
    for op in run.trace.columns.examples:
        collective = op.collective
        if collective is None or collective.axis == OFFLOAD:
            continue
        for lane in op.lanes:
            groups.setdefault(lane.rank, set()).add(() if collective.kind == "send" else collective.group)
    return {rank: len(found) for rank, found in groups.items()}


def _device(run: Run, rank: int, curve: MemoryTimeline, reserved: int, fixed: tuple[int, int], *, keep: bool) -> DeviceMemory:
    program = run.trace.program
    context, buffers = fixed
    allocated = curve.replay.peak_allocated if curve.replay is not None else curve.peak
    at_peak = dict.fromkeys(AT_PEAK, 0) | {name: size for name, size in curve.at_peak.items() if name in AT_PEAK}
    at_peak |= {"context": context, "communicators": buffers}
    at_peak["fragmentation"] = reserved - curve.peak
    op = None if curve.peak_op is None else program.ops[curve.peak_op]
    p = run.plan.mesh.coordinate(rank, "pipeline")
    return DeviceMemory(
        rank=rank,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_used_bytes=reserved + context + buffers,
        at_peak=at_peak,
        resident_bytes=curve.resident,
        peak_time_s=curve.peak_time,
        peak_op=None if op is None else op.name if op.instance < 0 else f"{op.name}.{op.instance}",
        in_flight_micro_batches=in_flight(run.plan, p),
        weight_versions=run.lowering.passes_of(p).weight_versions(),
        curve=_thinned(curve, context, buffers) if keep else None,
    )


def _thinned(curve: MemoryTimeline, context: int, buffers: int) -> MemoryCurve:
    """The curve over time with few enough points to draw, peaks kept; what is resident is there at once."""
    begin = max(0, int(np.count_nonzero(curve.op < 0)) - 1)
    tensors = {name: volume[begin:] for name, volume in curve.levels.items()}
    flat = {"context": np.full(len(curve.times) - begin, context), "communicators": np.full(len(curve.times) - begin, buffers)}
    whole = MemoryCurve(curve.times[begin:], tensors | flat)  # type: ignore[arg-type]
    times, levels = whole.thinned(CURVE_POINTS)
    return MemoryCurve(times.tolist(), {name: values.astype(int).tolist() for name, values in levels.items()}, _reserved(curve))


def _reserved(curve: MemoryTimeline) -> tuple[tuple[float, int], ...]:
    """Each change of the reserved memory."""
    if curve.replay is None:
        return ()
    times = np.asarray(curve.times)[curve.replay.reserved_at]
    return tuple(zip(times.tolist(), curve.replay.reserved_to.tolist(), strict=True))


def in_flight(plan: Plan, pipeline_rank: int) -> int:
    """Most micro-batches (rounded up from chunks) whose forward is done and whose backward is not, on one pipeline rank."""
    live = most = 0
    for slot in plan.slots[pipeline_rank]:
        live += {"F": 1, "B": -1, "W": -1}.get(slot.kind, 0)
        most = max(most, live)
    return -(-most // len(plan.of_rank(pipeline_rank)))
