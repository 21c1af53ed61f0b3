"""Overlap of collectives with compute, as programs of four equal layers: DDP (arXiv 2006.15704) and FSDP (arXiv 2304.11277)."""

from __future__ import annotations

import pytest

from parsim import theory
from parsim.program.program import Lane, Program

COMPUTE, DATA, REDUCE = Lane(0, "compute"), Lane(0, "data"), Lane(0, "reduce")


def makespan(program):
    left = list(program.blockers)
    start = [0.0] * len(left)
    order = [op for op in program.ops if not left[op.index]]
    for op in order:
        for other in op.after:
            start[other.index] = max(start[other.index], start[op.index] + op.duration)
            left[other.index] -= 1
            if not left[other.index]:
                order.append(other)
    return max(start[op.index] + op.duration for op in order)


def ddp(backward, all_reduce, layers=4):
    program = Program()
    for layer in reversed(range(layers)):
        gradient = program.add(f"B L{layer}", "compute", (COMPUTE,), duration=backward)
        program.add(f"all_reduce L{layer}", "data_comm", (DATA,), (gradient,), all_reduce)
    return program


def fsdp(forward, backward, collective, *, layers=4, keep_last=False, own_reduce_lane=False, backward_too=True):
    """Two units live at most: a gather waits for the forward two before it; in backward it is issued one unit ahead."""
    program = Program()
    reduce = REDUCE if own_reduce_lane else DATA
    passes = []
    for layer in range(layers):
        room = passes[layer - 2 : layer - 1] if layer >= 2 else []
        gather = program.add(f"all_gather L{layer}", "data_comm", (DATA,), room, collective)
        passes.append(program.add(f"F L{layer}", "compute", (COMPUTE,), (gather,), forward))
    if not backward_too:
        return program
    turn = passes[-1]
    order = list(reversed(range(layers)))

    def gather_for(layer, after):
        return [program.add(f"all_gather L{layer}", "data_comm", (DATA,), after, collective)]

    ready = [] if keep_last else gather_for(order[0], [turn])
    for place, layer in enumerate(order):
        ahead = gather_for(order[place + 1], [turn]) if place + 1 < layers else []
        turn = program.add(f"B L{layer}", "compute", (COMPUTE,), ready, backward)
        program.add(f"reduce_scatter L{layer}", "data_comm", (reduce,), (turn,), collective)
        ready = ahead
    return program


@pytest.mark.parametrize(("all_reduce", "end", "exposed"), [(1, 9, 1), (2, 10, 2), (3, 14, 6)])
def test_ddp(all_reduce, end, exposed):
    assert makespan(ddp(2, all_reduce)) == end == theory.ddp_backward_time(4, 2, all_reduce)
    assert theory.ddp_exposed_time(4, 2, all_reduce) == exposed


@pytest.mark.parametrize(("gather", "end"), [(0.5, 4.5), (1, 5), (1.5, 7), (2.5, 11)])
def test_fsdp_forward(gather, end):
    assert makespan(fsdp(1, 2, gather, backward_too=False)) == end == theory.fsdp_forward_time(4, 1, gather)


@pytest.mark.parametrize(("collective", "total"), [(0.5, 13.5), (1, 15), (1.5, 20), (2.5, 31)])
def test_fsdp_step_with_one_queue(collective, total):
    assert makespan(fsdp(1, 2, collective)) == total


def test_fsdp_variants():
    assert makespan(fsdp(1, 2, 0.5, keep_last=True)) == 13
    assert makespan(fsdp(1, 2, 1.5, own_reduce_lane=True)) == 18
    assert makespan(fsdp(1, 2, 2.5, own_reduce_lane=True)) == 25.5
