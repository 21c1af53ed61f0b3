"""Hand-made programs, and a longest-path runner: with fixed durations that is all an engine does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as counter

import pytest

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective, Lane, Op, Program
from parsim.report import (
    DeviceMemory,
    Measured,
    MemoryCurve,
    MemoryFacts,
    ModelFacts,
    RankClass,
    Ranks,
    ReportedAssumption,
    ScheduleFacts,
)
from parsim.report.communication import LinkClass
from parsim.simulation.trace import LinkUse, Trace

GIB = 2**30


def longest_path(program: Program, links: dict[int, LinkUse] | None = None) -> Trace:
    """Start = the last end among the blockers."""
    count = len(program.ops)
    start, end, blocked = [0.0] * count, [0.0] * count, list(program.blockers)
    ready = [op for op in program.ops if not blocked[op.index]]
    for op in ready:
        end[op.index] = start[op.index] + op.duration
        for other in op.after:
            start[other.index] = max(start[other.index], end[op.index])
            blocked[other.index] -= 1
            if not blocked[other.index]:
                ready.append(other)
    assert len(ready) == count, "the program waits for itself"
    return Trace(program, start, end, links or {}, events=count)


def slots_1f1b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """PipeDream-Flush order of one stage: warm-up, then one forward and one backward in turn."""
    warm = min(micro_batches, stages - 1 - stage)
    order = [("F", i) for i in range(warm)]
    for i in range(micro_batches - warm):
        order += [("F", warm + i), ("B", i)]
    return order + [("B", i) for i in range(micro_batches - warm, micro_batches)]


def slots_gpipe(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    return [("F", i) for i in range(micro_batches)] + [("B", i) for i in range(micro_batches)]


def pipeline(
    stages: int,
    micro_batches: int,
    order: Callable[[int, int, int], list[tuple[str, int]]] = slots_1f1b,
    forward: float = 1.0,
    backward: float = 2.0,
    send: float = 0.0,
    optimizer: float = 0.0,
) -> Program:
    """One rank per stage; a send, if it takes time, stands in lanes of both ends and overlaps compute."""
    program, done = Program(), {}
    waiting = [list(order(stage, stages, micro_batches)) for stage in range(stages)]
    message = {(a, b): Collective("send", "pipeline", (a, b), 1_000_000) for a in range(stages) for b in (a - 1, a + 1) if 0 <= b < stages}

    def source(kind: str, stage: int, instance: int) -> tuple[str, int, int] | None:
        before = stage - 1 if kind == "F" else stage + 1
        return (kind, before, instance) if 0 <= before < stages else None

    for _ in counter():
        moved = False
        for stage in range(stages):
            while waiting[stage]:
                kind, i = waiting[stage][0]
                needed = source(kind, stage, i)
                if needed is not None and needed not in done:
                    break
                needs: list[Op] = []
                if needed is not None:
                    needs.append(done[needed])
                    if send:
                        lanes = (Lane(needed[1], f"send {kind}"), Lane(stage, f"receive {kind}"))
                        link = message[needed[1], stage]
                        needs = [program.add(f"send {kind}", "pipeline_comm", lanes, needs, send, link, instance=i)]
                lane = (Lane(stage, "compute"),)
                name = f"{kind} stage {stage}"
                duration = forward if kind == "F" else backward
                done[kind, stage, i] = program.add(name, "compute", lane, needs, duration, instance=i)
                waiting[stage].pop(0)
                moved = True
        if not moved:
            break
    assert not any(waiting)
    if optimizer:
        for stage in range(stages):
            program.add("optimizer", "optimizer", (Lane(stage, "compute"),), duration=optimizer, instance=-1)
    return program


def overlap_program() -> Program:
    """Two data-parallel ranks; every class of time has a length that can be read off.

    rank 0, compute lane: F 0-4 | wait for tensor 4-5 (on the compute lane) | recompute 5-6 | B 6-10 | .. | optimizer 15-16
    rank 1, compute lane: F 0-3                       | tensor 4-5          |                B 5-10
    data lane of both: bucket 0 from 8 (needs the half-way op) to 9 hidden, bucket 1 from 10 to 13 exposed.
    rank 0, copy lane: offload 12-14; then nothing 14-15 but the host (launch lane) 14-14.5.
    """
    program = Program()
    group = (0, 1)
    tensor = Collective("all_reduce", "tensor", group, 4_000_000)
    data = Collective("all_reduce", "data", group, 8_000_000)
    gather = Collective("all_gather", "data", group, 2_000_000)

    def lanes(name: str) -> tuple[Lane, ...]:
        return tuple(Lane(rank, name) for rank in group)

    compute = [(Lane(rank, "compute"),) for rank in group]
    program.add("F L0", "compute", compute[0], duration=4.0)
    program.add("F L0", "compute", compute[1], duration=3.0)
    both = lanes("compute") + lanes("tensor")
    program.add("all_reduce L0", "tensor_comm", both, duration=1.0, collective=tensor)
    program.add("R L0", "recompute", compute[0], duration=1.0)
    half = [program.add("B L0", "compute", compute[0], duration=2.0), program.add("B L0", "compute", compute[1], duration=3.0)]
    full = [program.add("B L0", "compute", compute[0], duration=2.0), program.add("B L0", "compute", compute[1], duration=2.0)]
    program.add("bucket 0", "data_comm", lanes("data"), needs=half, duration=1.0, collective=data)
    last = program.add("bucket 1", "data_comm", lanes("data"), needs=full, duration=3.0, collective=data)
    start = program.add("delay", "other", (Lane(2, "timer"),), duration=12.0)
    copy = program.add("copy", "offload", (Lane(0, "copy"),), needs=[start], duration=2.0)
    host = program.add("launch", "launch", (Lane(0, "host"),), needs=[copy], duration=0.5)
    delay = program.add("delay", "other", (Lane(2, "timer"),), needs=[host], duration=0.5)
    steps = [
        program.add("optimizer", "optimizer", compute[0], needs=[last, delay], duration=1.0, instance=-1),
        program.add("optimizer", "optimizer", compute[1], needs=[last], duration=1.0, instance=-1),
    ]
    program.add("gather", "data_comm", lanes("data"), needs=steps, duration=2.0, collective=gather)
    return program


def memory_curve(makespan: float, steps: int = 8) -> MemoryCurve:
    """Flat states, a saw tooth of activations."""
    times = [makespan * i / (2 * steps) for i in range(2 * steps)]
    activations = [(i + 1) * GIB if i < steps else (2 * steps - i) * GIB for i in range(2 * steps)]
    constant = {"context": GIB // 2, "parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer": 12 * GIB}
    return MemoryCurve(times, {name: [volume] * len(times) for name, volume in constant.items()} | {"activations": activations})


def measure(trace: Trace, stages: int, micro_batches: int = 8, capacity: int = 40 * GIB, name: str = "demo", **more: object) -> Measured:
    """A report's input for a pipeline with one rank per stage; sizes are made up but consistent."""
    at_peak = {"context": GIB // 2, "parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer": 12 * GIB, "activations": 8 * GIB}
    device = [
        DeviceMemory(
            rank=rank,
            allocated_bytes=24 * GIB - rank * GIB,
            reserved_bytes=24 * GIB - rank * GIB,
            device_used_bytes=24 * GIB + GIB // 2 - rank * GIB,
            at_peak=at_peak | {"activations": (8 - rank) * GIB},
            resident_bytes={"parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer": 12 * GIB},
            peak_time_s=trace.makespan / 2,
            peak_op="B stage 0",
            in_flight_micro_batches=stages - rank,
            drawn=lambda: memory_curve(trace.makespan),
        )
        for rank in range(stages)
    ]
    fields: dict[str, object] = {
        "name": name,
        "scenario": {"name": name, "parallel": {"pipeline": {"size": stages}}},
        "ranks": Ranks(total=stages, pipeline=stages, micro_batches=micro_batches),
        "classes": tuple(RankClass(rank, (rank,), stage=rank) for rank in range(stages)),
        "model": ModelFacts(7, 8, 7, 6.0e14, 8.0e14, 312e12, samples_per_step=8, tokens_per_step=8 * 2048.0),
        "memory": MemoryFacts(capacity, tuple(device), bytes_per_parameter="2+2+4+8 = 16"),
        "schedule": ScheduleFacts(
            "1f1b", stages, 1, (4,) * stages, ({"forward": 1.0, "backward_input": 1.0, "backward_weight": 1.0},) * stages, 0.2727
        ),
        "assumptions": (ReportedAssumption("context_memory", "0.5 GiB", "driver documentation", "catalogue/software/pytorch-2.yaml:7"),),
        "links": {0: LinkClass("gpu->nvswitch", "nvlink3", 4, 2.4e11), 1: LinkClass("nic->leaf", "ib-hdr", 4, 2.5e10)},
        "costs": lambda collective: CollectiveCost(1e-6, ()),
    }
    return Measured(trace=trace, **(fields | more))  # type: ignore[arg-type]


@pytest.fixture(name="run")
def run_fixture() -> Callable[..., Trace]:
    return longest_path


@pytest.fixture(name="make_pipeline")
def pipeline_fixture() -> Callable[..., Program]:
    return pipeline


@pytest.fixture(name="orders")
def orders_fixture() -> dict[str, Callable[[int, int, int], list[tuple[str, int]]]]:
    return {"1f1b": slots_1f1b, "gpipe": slots_gpipe}


@pytest.fixture(name="overlap")
def overlap_fixture() -> Trace:
    return longest_path(overlap_program())


@pytest.fixture(name="make_measured")
def measured_fixture() -> Callable[..., Measured]:
    return measure
