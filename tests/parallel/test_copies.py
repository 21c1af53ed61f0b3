"""Copies around the collectives of sharded strategies: bytes, streams, and what waits for what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job, layers, measured

from parsim.kernel import Memory
from parsim.parallel.copies import ShardedCopies, predivide_factor
from parsim.parallel.fsdp import GATHERS, REDUCTIONS
from parsim.parallel.groups import stream_lane
from parsim.parallel.training import Precision

MIXED = {"gathered": 2, "kept": 4, "reduce": 4}
"""fp32 shards, bf16 weights and gradients, reduced in fp32"""
PURE = {"gathered": 2, "kept": 4, "reduce": 2}
"""the same reduced in bf16"""


def moved(kernels: list[Memory]) -> float:
    return sum(kernel.bytes for kernel in kernels)


@pytest.mark.parametrize(
    ("stack", "types", "before_gather", "behind_gather", "join", "before_reduce", "behind_reduce"),
    [
        ("fsdp1", MIXED, 4 + 2, 0, 2 + 2, (2 + 4) + (4 + 4), 4 + 4),
        ("fsdp1", PURE, 4 + 2, 0, 2 + 2, 2 + 2, (2 + 2) + (2 + 4)),
        ("fsdp2", MIXED, (4 + 2) + (2 + 2), 2 + 2, 2 + 4, 0, 0),
        ("fsdp2", PURE, (4 + 2) + (2 + 2), 2 + 2, 2 + 2, 0, 2 + 4),
        ("zero3", {"gathered": 2, "kept": 2, "reduce": 2}, 2 + 2, 2 + 2, 0, (2 + 2) + (2 + 2) + (2 + 2), 2 + 2),
        ("zero3", {"gathered": 2, "kept": 4, "reduce": 4}, 2 + 2, 2 + 2, 0, (2 + 2) + (2 + 4) + (4 + 4) + (4 + 4), 4 + 4),
    ],
)
def test_bytes_of_an_element(stack, types, before_gather, behind_gather, join, before_reduce, behind_reduce):
    """A weight of a unit of 1000 that 8 ranks share."""
    copies = ShardedCopies(stack, 8, **types)
    assert moved(copies.before_gather(125, 0)) == 125 * before_gather
    assert moved(copies.behind_gather(2 * 1000)) == 1000 * behind_gather
    assert moved(copies.join(1000)) == 1000 * join
    assert moved(copies.before_reduce(1000)) == 1000 * before_reduce
    assert moved(copies.behind_reduce(125, adds=False)) == 125 * behind_reduce


@pytest.mark.parametrize(("stack", "extra"), [("fsdp1", 12), ("fsdp2", 12), ("zero3", 12 - 8)])
def test_a_later_micro_batch_is_added(stack, extra):
    """Read, read, written in fp32; DeepSpeed adds where it copied the first one."""
    copies = ShardedCopies(stack, 8, **MIXED)
    assert moved(copies.behind_reduce(125, adds=True)) - moved(copies.behind_reduce(125, adds=False)) == 125 * extra


def test_quantised_weights_are_copied_as_they_are_stored():
    for stack, cast in (("fsdp1", 0), ("fsdp2", 2 * 70), ("zero3", 2 * 70)):
        assert moved(ShardedCopies(stack, 8, **MIXED).before_gather(0, 70)) == cast


def test_fp16_gradients_are_divided_around_fsdp2s_reduction():
    copies = ShardedCopies("fsdp2", 8, 2, 4, 2, fp16=True)
    assert moved(copies.before_reduce(1000)) == 1000 * (2 + 2)
    assert moved(copies.behind_reduce(125, adds=False)) == 125 * ((2 + 2) + (2 + 4))


@given(st.integers(1, 12))
def test_fsdp1_divides_by_the_root_of_a_power_of_two(power):
    """The smallest power of two that is not below the root of N: 2 for 2, 2 for 4, 4 for 8, 4 for 16."""
    assert predivide_factor(2**power) == 2 ** ((power + 1) // 2)


def test_two_ranks_do_not_divide_behind_the_reduction():
    assert moved(ShardedCopies("fsdp1", 2, **MIXED).behind_reduce(500, adds=False)) == 0


TYPES = Precision("bf16-fp32grad", 2, 0, 4, 4, reduce=4)


def sharded(strategy="fsdp", version=2, data=2, **training):
    settings = {"strategy": strategy, "fsdp_version": version, "accumulate": "every"}
    return job(layers(3), data=data, data_settings=settings, precision=TYPES, **training)


def test_which_stream_runs_which_copy():
    """FSDP1 casts beside compute, FSDP2 copies in beside it, DeepSpeed copies everything beside it."""
    lanes = {}
    for strategy, version in (("fsdp", 1), ("fsdp", 2), ("zero3", 2)):
        ops = [op for op in sharded(strategy, version).program.ops if op.lanes[0].rank == 0 and op.name.startswith(("copy", "add"))]
        lanes[strategy, version] = {(op.name.split()[0], op.name.split()[-1], op.lanes[0].name) for op in ops}
    gathers, reductions = stream_lane(GATHERS), stream_lane(REDUCTIONS)
    assert lanes["fsdp", 1] == {("copy", "in", gathers), ("copy", "in", reductions)}
    assert lanes["fsdp", 2] == {("copy", "in", gathers)}
    assert lanes["zero3", 2] == {("copy", "in", gathers), ("copy", "out", gathers), ("copy", "in", reductions), ("copy", "out", reductions)}


@pytest.mark.parametrize(("strategy", "version"), [("fsdp", 1), ("fsdp", 2), ("zero3", 2)])
def test_a_reduction_waits_for_its_copies_and_compute_for_the_last_reduction(strategy, version):
    run = sharded(strategy, version, micro_batches=2)
    ops = {(op.name, op.instance): op for op in run.program.ops if op.lanes[0].rank == 0}
    for name, instance in [key for key in ops if key[0].startswith("copy") and key[0].endswith("grads in")]:
        reduction = ops[f"reduce_scatter {name.removeprefix('copy ').removesuffix(' in')}", instance]
        assert run.trace.start[reduction.index] >= run.trace.end[ops[name, instance].index]
    last = max(run.trace.end[op.index] for (name, instance), op in ops.items() if "reduce_scatter" in name and instance == 0)
    first = min(run.trace.start[op.index] for (name, instance), op in ops.items() if name.startswith("F0") and instance == 1)
    assert first >= last


def test_fsdp2_joins_gradients_when_the_reduction_before_has_ended():
    """Backwards of 2 s under reductions of 5 s: FSDP1 computes on; FSDP2's second unit waits for the first reduction, and so on."""
    slow = {("reduce_scatter", "data"): 5.0}
    for version, ends in ((1, [2.0, 4.0, 6.0]), (2, [2.0, 4.0, 9.0])):
        settings = {"strategy": "fsdp", "fsdp_version": version, "queues": "separate"}
        run = job(layers(3), data=2, data_settings=settings, precision=TYPES, wires=slow, clock=measured)
        begun = [run.trace.start[op.index] - 3.0 for op in run.collectives(kind="reduce_scatter")]
        assert begun == pytest.approx([2.0, 7.0, 12.0])
        backward = [op for op in run.program.ops if op.name.startswith("B0") and op.lanes[0].rank == 0 and op.duration]
        assert [run.trace.end[op.index] - 3.0 for op in backward] == pytest.approx(ends)


def test_one_rank_copies_nothing():
    for strategy, version in (("fsdp", 1), ("fsdp", 2), ("zero3", 2)):
        assert not [op for op in sharded(strategy, version, data=1).program.ops if op.name.startswith("copy")]
