"""The host waits for the counts of tokens: once per mixture layer and forward, and with nothing launched ahead."""

import copy

import pytest
from test_experts import scenario

from parsim import simulate
from parsim.parallel.hooks import COUNTS

LAYERS, MICRO_BATCHES, KERNEL = 2, 2, 1e-6


def job(host=None, **expert):
    tree = scenario(expert={"size": 8, **expert}, data={"strategy": "ddp", "overlap_reduce": False})
    tree["training"]["sequence_length"] = 4096
    tree["software"]["host"] = host or {"per_kernel_forward": "1 us", "per_kernel_backward": "1 us"}
    return tree


def waits(report):
    program = report.measured.trace.program
    return [op for op in program.ops if op.name == COUNTS and op.lanes[0].rank == 0]


def test_once_per_layer_and_micro_batch():
    """Kernels are longer than their launches: every wait adds the copy of the counts and the launch of what comes next."""
    busy, free = simulate(job()), simulate(job({"graphs": True}))
    assert [op.duration for op in waits(busy)] == [10e-6 + KERNEL] * LAYERS * MICRO_BATCHES
    assert not waits(free)
    assert busy.step_time - free.step_time == pytest.approx(LAYERS * MICRO_BATCHES * (10e-6 + KERNEL), rel=1e-6)


@pytest.mark.parametrize(
    ("expert", "times"),
    [({}, 1), ({"dispatcher": "deepep"}, 1), ({"dispatcher": "allgather"}, 1), ({"capacity_factor": 1.5}, 1),
     ({"capacity_factor": 1.5, "pad_to_capacity": True}, 0)],
)  # fmt: skip
def test_padded_experts_have_no_counts(expert, times):
    assert len(waits(simulate(job(**expert)))) == times * LAYERS * MICRO_BATCHES


def test_recomputation_waits_again():
    tree = job()
    tree["training"]["recompute"] = "full"
    assert len(waits(simulate(tree))) == 2 * LAYERS * MICRO_BATCHES


def test_nothing_is_launched_ahead():
    """A slow host launches what comes before the wait, then the wait, then the rest: a layer's forward takes all three."""
    slow = job({"per_kernel_forward": "1 ms", "per_kernel_backward": "0 s"})
    slow["training"] |= {"gradient_accumulation": 1, "sequence_length": 128}
    report = simulate(slow)
    program, trace = report.measured.trace.program, report.measured.trace
    rank0 = [op for op in program.ops if op.lanes[0].rank == 0]
    floors = [op.duration for op in rank0 if op.name == "launch kernels" and op.kind == "launch"]
    padded = copy.deepcopy(slow)
    padded["parallel"]["expert"] |= {"capacity_factor": 1.0, "pad_to_capacity": True}
    whole = [op.duration for op in simulate(padded).measured.trace.program.ops if op.name == "launch kernels" and op.lanes[0].rank == 0]
    assert len(floors) == len(whole) + LAYERS
    assert sum(floors) == pytest.approx(sum(whole))
    first, second = (op for op in rank0 if op.name == COUNTS)
    early, late = floors[1], floors[2]
    assert trace.start[second.index] - trace.end[first.index] == pytest.approx(late + early, rel=1e-6)


def test_folded_is_unfolded():
    tree = job({"per_kernel_forward": "50 us", "per_kernel_backward": "20 us"}, dispatcher="deepep")
    tree["parallel"]["pipeline"] = {"size": 2}
    assert simulate(tree).step_time == pytest.approx(simulate(tree, unfolded=True).step_time, rel=1e-9)
