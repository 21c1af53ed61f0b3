"""Memory of a simulated step: on the devices of every class of ranks, and on the hosts.

On a device: the ledger, the allocator's replay, and what lives outside the allocator. On a host: offloaded tensors and the buffers
they pass through. The training processes themselves, the data loader and the page cache come on top (a few GiB per rank), and so does
what a pinned allocator rounds up.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from parsim.hardware.nccl.token_exchange import deepep_buffers
from parsim.parallel.fsdp import ROOT
from parsim.parallel.groups import OFFLOAD
from parsim.parallel.hooks import Weight
from parsim.parallel.optimizer import state_bytes, weight_bytes
from parsim.parallel.plan import Chunk, Plan
from parsim.parallel.tensor_overlap import user_buffer_bytes
from parsim.report.measured import AT_PEAK, DeviceMemory, HostMemory, MemoryCurve, MemoryFacts
from parsim.report.simulated import Hardware, SimulatedStep
from parsim.simulation.ledger import Ledger, MemoryTimeline
from parsim.simulation.replay import Replay

GIB = 2**30
FIRST_COMMUNICATOR = int(0.3 * GIB)
FURTHER_COMMUNICATOR = int(0.2 * GIB)
"""NCCL buffers outside the allocator: about 0.3 GiB for a rank's first communicator and 0.15-0.4 GiB for each further one
(NVIDIA/nccl issues 964 and 1685; assumption)"""
CURVES = 16
"""classes whose curve over time can be drawn: those with the highest peaks"""
CURVE_POINTS = 8_000
CLOSE = 0.05
"""part of the capacity within which a class is replayed whole: nine times the largest error of a shortened replay that was seen"""


def memory_of(run: SimulatedStep, hardware: Hardware, *, reserve: int, bytes_per_parameter: str) -> MemoryFacts:
    """The ledger of every class's representative, replayed through the caching allocator.

    Every allocation and release is replayed of the fullest classes (most in use, reserved or allocated) and of those whose peak
    is within 5 % of the capacity, on either side of it: what is reported as the job's peak, and whether it fits, rest on them.
    For the other classes the replay leaves periods out of long steps, see `parsim.simulation.replay.repeats`.
    """
    plan = run.plan
    classes = _Classes(run, hardware)
    devices = dict(classes.devices(classes.ranks, whole=False))
    decisive: set[int] = set()
    for capacity in sorted(set(classes.capacity.values())):
        alike = [device for device in devices.values() if classes.capacity[device.rank] == capacity]
        decisive |= _decisive(alike, capacity - reserve, CLOSE * capacity)
    devices |= dict(classes.devices([rank for rank in classes.ranks if rank in decisive], whole=True))
    ordered = tuple(devices[rank] for rank in sorted(devices))
    host = host_memory(run, hardware)
    return MemoryFacts(
        classes.smallest,
        _with_curves(ordered),
        reserve,
        host_bytes=0 if host is None else host.bytes,
        at_save_bytes=at_save(run, ordered),
        bytes_per_parameter=bytes_per_parameter,
        states=state_bytes(plan.training.precision, plan.training.optimizer),
        host=host,
    )


def overfull(run: SimulatedStep, hardware: Hardware, reserve: int) -> bool:
    """Whether the tensors of some class are larger than its device. Then no allocator makes it fit, and none is asked.

    The allocator reserves at least the blocks that are live, and each is at least its tensor rounded up to 512 B: what the
    ledger adds up. The opposite must be replayed: tensors may fit where the segments that hold them do not.
    """
    classes = _Classes(run, hardware)
    return any(classes.ledger.measure(rank).peak + sum(classes.fixed(rank)) > classes.capacity[rank] - reserve for rank in classes.ranks)


class _Classes:
    """The classes of ranks of one run, each by its representative."""

    def __init__(self, run: SimulatedStep, hardware: Hardware) -> None:
        self.run = run
        self.joined = communicators(run)
        mesh = run.plan.mesh
        representatives = set(run.classes.represents.values())
        self.capacity = {rank: hardware.device(run.plan.gpus[rank]).visible_memory for rank in representatives}
        """what the driver reports on the device of each [B]: where it is reached, the allocator gives back segments that are free"""
        self.smallest = min(self.capacity.values())
        self.ranks = sorted(representatives, key=lambda rank: (mesh.coordinate(rank, "pipeline"), rank))
        """those of one stage together: they often do the same"""
        self.ledger = Ledger(run.trace.program, run.trace, representatives)

    def fixed(self, rank: int) -> tuple[int, int]:
        """What lies outside the allocator: context and overhead, buffers of communicators [B]."""
        plan, runtime = self.run.plan, self.run.plan.runtime
        buffers = user_buffer_bytes(plan.workload, plan.model.hidden, plan.parallelism.tensor)
        buffers += _exchange_buffers(plan, plan.mesh.coordinate(rank, "pipeline"))
        return runtime.context + runtime.overhead, _buffers(runtime.communicators, self.joined.get(rank, 0)) + buffers

    def devices(self, ranks: Iterable[int], *, whole: bool) -> Iterator[tuple[int, DeviceMemory]]:
        """The memory of each, every event replayed if `whole`. Ranks that do the same at different times are replayed once."""
        plain = played = had = None
        for rank in ranks:
            curve = self.ledger.measure(rank)
            room = self.capacity[rank] - sum(self.fixed(rank))
            if plain is None or played is None or curve.delta is not plain.delta or room != had:
                had = room
                plain, played = curve, curve.replayed(self.run.plan.runtime.allocator, room, whole=whole)
            drawn = None if played.replay is None else partial(self._drawn, rank, played.replay)
            own = self.capacity[rank] if self.capacity[rank] != self.smallest else None
            yield rank, replace(_device(self.run, played.at_other_times(curve), self.fixed(rank), drawn), capacity_bytes=own)

    def _drawn(self, rank: int, replay: Replay) -> MemoryCurve:
        """Its curve over time; the ledger measures it again, so that nobody keeps what is not drawn."""
        return _thinned(self.ledger.measure(rank).with_blocks(replay), *self.fixed(rank))


def _decisive(devices: Collection[DeviceMemory], usable: int, close: float) -> set[int]:
    """Ranks of classes that the peaks of the report are taken from, or whose peak is within `close` bytes of what they may use."""
    ranks = {device.rank for device in devices if abs(usable - device.device_used_bytes) <= close}
    for name in ("device_used_bytes", "reserved_bytes", "allocated_bytes"):
        most = max(getattr(device, name) for device in devices)
        ranks |= {device.rank for device in devices if getattr(device, name) == most}
    return ranks - {device.rank for device in devices if device.method == "replayed"}


def _with_curves(devices: Sequence[DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """The same with the curves of the `CURVES` classes that allocate most, and no others."""
    order = sorted(devices, key=lambda device: (-device.allocated_bytes, device.rank))
    drawn = {device.rank for device in order[:CURVES]}
    return tuple(device if device.rank in drawn else replace(device, drawn=None) for device in devices)


def _buffers(stated: int | None, groups: int) -> int:
    if stated is not None:
        return stated
    return FIRST_COMMUNICATOR + FURTHER_COMMUNICATOR * (groups - 1) if groups else 0


def at_save(run: SimulatedStep, devices: Sequence[DeviceMemory]) -> int:
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
    kept = recipe is not None and not recipe.base_sharded and not weight.trains
    return 0 if kept or weight.parameter.buffer else weight_bytes(weight, plan.training)


def _exchange_buffers(plan: Plan, pipeline_rank: int) -> int:
    """What DeepEP's kernels send from and receive in, on a rank that has experts [B]."""
    expert = plan.parallelism.expert
    blocks = (plan.model.blocks[block] for chunk in plan.of_rank(pipeline_rank) for block in chunk.blocks)
    if expert.dispatcher != "deepep" or plan.routing is None or not any(p.expert for block in blocks for p in block.parameters()):
        return 0
    return sum(deepep_buffers(expert.size * plan.parallelism.expert_width, plan.model.hidden, expert.multiprocessors))


def communicators(run: SimulatedStep) -> dict[int, int]:
    """How many communicators each simulated rank belongs to: one per group of its collectives, the default group of all ranks (barriers,
    the norm of the gradients), and for its sends one of its pipeline, or one per neighbour.

    PyTorch makes a communicator for every pair of ranks that sends alone and uses the group's for sends in a batch
    (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, pointToPoint: getKeySendRecv). Megatron-LM sends in batches
    (megatron/core/pipeline_parallel/p2p_communication.py, batch_isend_irecv), DeepSpeed does not (runtime/pipe/p2p.py).
    """
    pairs, ranks = run.plan.runtime.sends_alone, run.plan.mesh.ranks
    groups: dict[int, set[tuple[int, ...]]] = {}
    for op in run.trace.columns.examples:
        collective = op.collective
        if collective is None or collective.axis == OFFLOAD:
            continue
        for lane in op.lanes:
            groups.setdefault(lane.rank, set()).add(() if collective.kind == "send" and not pairs else tuple(sorted(collective.group)))
    return {rank: len(joined) + all(len(group) < ranks for group in joined) for rank, joined in groups.items()}


def _device(run: SimulatedStep, curve: MemoryTimeline, fixed: tuple[int, int], drawn: Callable[[], MemoryCurve] | None) -> DeviceMemory:
    context, buffers = fixed
    reserved = curve.peak_reserved or 0
    at_peak = dict.fromkeys(AT_PEAK, 0) | {name: size for name, size in curve.at_peak.items() if name in AT_PEAK}
    at_peak |= {"context": context, "communicators": buffers}
    at_peak["fragmentation"] = reserved - curve.peak
    p = run.plan.mesh.coordinate(curve.rank, "pipeline")
    return DeviceMemory(
        rank=curve.rank,
        allocated_bytes=curve.peak,
        reserved_bytes=reserved,
        device_used_bytes=reserved + context + buffers,
        at_peak=at_peak,
        resident_bytes=curve.resident,
        peak_time_s=curve.peak_time,
        peak_op=None if curve.peak_op is None else _name(run, curve.peak_op),
        in_flight_micro_batches=in_flight(run.plan, p),
        weight_versions=run.lowering.passes_of(p).weight_versions(),
        method="replayed" if curve.replay is not None and curve.replay.whole else "shortened",
        drawn=drawn,
    )


def _name(run: SimulatedStep, op: int) -> str:
    """An op with its micro-batch."""
    columns = run.trace.columns
    name, instance = columns.examples[int(columns.kind[op])].name, int(columns.instance[op])
    return name if instance < 0 else f"{name}.{instance}"


def _thinned(curve: MemoryTimeline, context: int, buffers: int) -> MemoryCurve:
    """The curve over time with few enough points to draw, peaks kept; what is resident is there at once."""
    begin = max(0, int(np.count_nonzero(curve.op < 0)) - 1)
    tensors = {name: volume[begin:] for name, volume in curve.levels.items()}
    flat = {"context": np.full(len(curve.times) - begin, context), "communicators": np.full(len(curve.times) - begin, buffers)}
    whole = MemoryCurve(curve.times[begin:], tensors | flat)  # type: ignore[arg-type]
    times, levels = whole.thinned(CURVE_POINTS)
    volumes = {name: array("q", values.astype(np.int64).tobytes()) for name, values in levels.items()}
    return MemoryCurve(array("d", times.tobytes()), volumes, _reserved(curve))


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
    return -(-most * plan.directions // len(plan.of_rank(pipeline_rank)))


def host_memory(run: SimulatedStep, hardware: Hardware) -> HostMemory | None:
    """Host memory of the node that lacks most, or has most in use; None if nothing is offloaded."""
    offload = run.plan.training.offload
    if not offload.states and offload.activations == "none":
        return None
    ranks_of: dict[int, Counter[int]] = {}
    for rank, gpu in enumerate(run.plan.gpus):
        ranks_of.setdefault(hardware.node_of(gpu), Counter())[run.classes.represents[rank]] += 1
    ledger = Ledger(run.trace.program, run.trace, sorted(set(run.classes.represents.values())))
    known: dict[tuple[tuple[tuple[int, int], ...], int | None], HostMemory] = {}
    for node, counts in ranks_of.items():
        capacity = hardware.machine(node).host_memory
        key = (tuple(sorted(counts.items())), capacity)
        if key not in known:
            known[key] = _node(ledger, node, counts, capacity)
    return min(known.values(), key=lambda host: (host.headroom if host.headroom is not None else 0, -host.bytes, host.node))


def _node(ledger: Ledger, node: int, counts: Mapping[int, int], capacity: int | None) -> HostMemory:
    """The ranks of one node together; `counts`: representative -> how many of the node's ranks it stands for."""
    curves = {rank: ledger.measure(rank, where="host") for rank in counts}
    size, row_of = _peak(curves, counts)
    at_peak: dict[str, int] = {}
    for rank, curve in curves.items():
        for category, held in curve.composition(row_of[rank]).items():
            if held:
                name = category.removeprefix("host ")
                at_peak[name] = at_peak.get(name, 0) + held * counts[rank]
    drives = sum(ledger.measure(rank, where="nvme").peak * count for rank, count in counts.items())
    return HostMemory(node, size, at_peak, capacity, drives)


def _peak(curves: Mapping[int, MemoryTimeline], counts: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """Highest sum of the curves [B], and the row of each curve at that moment."""
    times = np.concatenate([curve.times for curve in curves.values()])
    deltas = np.concatenate([curve.delta * counts[rank] for rank, curve in curves.items()])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(deltas[order])
    if not len(level):
        return 0, dict.fromkeys(curves, -1)
    top = int(level.argmax())
    taken = order[: top + 1]
    rows, begin = {}, 0
    for rank, curve in curves.items():
        rows[rank] = int(np.count_nonzero((taken >= begin) & (taken < begin + len(curve.times)))) - 1
        begin += len(curve.times)
    return int(level[top]), rows
