"""Lowering and running one step in blocks: seconds are printed, counts are asserted (run with -m benchmark).

`FIGURES` are of 2026-11-22 on 2 cores of a cloud machine shared with other work (Python 3.11): read each as this, or half of this.
"""

from time import process_time

import pytest

from parsim.hardware.interconnect import Interconnect
from parsim.program.blocked import BlockLowering
from parsim.program.folding import fold_with
from parsim.run import clock_of, execute, plan_of
from parsim.scenario import files, load
from parsim.scenario.build import build
from parsim.simulation.engine import collector_paused
from parsim.simulation.heap_run import HeapRun

FIGURES = {
    "gpt3-175b-64x-a100": (6_066, 163_890, "0.15, of which 0.03 the run / 1.4"),
    "gpt3-1t-512x-a100": (130_178, 1_777_794, "1.3, of which 0.4 the run / 20"),
    "llama-3-405b-16384x-h100": (4_959, 52_525, "1.0, of which 0.04 the run / 8"),
}
"""scenario -> ops in blocks, ops, CPU seconds of `execute` with and without blocks (or before there were any)"""


@pytest.mark.benchmark
@pytest.mark.parametrize("name", FIGURES)
def test_a_step_in_blocks(name, capsys, monkeypatch):
    built = build(load(files.home("scenarios") / f"{name}.yaml"))
    seconds, runs = [], []
    trace = HeapRun.trace

    def timed(run):
        began = process_time()
        found = trace(run)
        runs.append(process_time() - began)
        return found

    monkeypatch.setattr(HeapRun, "trace", timed)
    for _ in range(3):
        began = process_time()
        run = execute(built)
        seconds.append(process_time() - began)
    ops = len(run.lowering.program.ops)
    with capsys.disabled():
        print(
            f"\n{name}: {ops:,} ops for {run.lowering.blocks.expanded:,}, plan to makespan {min(seconds):.2f} s CPU, "
            f"of which the run {min(runs):.3f} s, {min(runs) / ops * 1e6:.1f} us per op"
        )
    assert (ops, run.lowering.blocks.expanded) == FIGURES[name][:2]


def small(dp, layers, micro_batches):
    return {
        "model": {"base": "megatron-gpt-22b", "layers": layers},
        "training": {"sequence_length": 2048, "micro_batch": 1, "gradient_accumulation": micro_batches},
        "parallel": {"tensor": {"size": 8}, "pipeline": {"size": 4}, "data": {"strategy": "zero1"}},
        "cluster": {"topology": "hgx-h100", "nodes": 4 * dp},
    }


def folded(built):
    """Plan, fold and lower: GPUs, ops in blocks, ops they stand for, links, CPU seconds after the plan."""
    with collector_paused():
        clock = clock_of(built)
        plan = plan_of(built, clock)
        wires = Interconnect(built.cluster, plan.gpus, built.collectives)
        began = process_time()
        classes, lowering = fold_with(BlockLowering, plan, wires, clock)
        seconds = process_time() - began
    return plan.mesh.ranks, len(lowering.program.ops), lowering.blocks.expanded, len(classes.used_links), seconds


@pytest.mark.benchmark
def test_ops_grow_with_layers_and_micro_batches_and_not_with_replicas():
    def counts(*shape):
        return folded(build(load(small(*shape))))[1:3]

    assert counts(4, 16, 16) == counts(16, 16, 16)
    for first, second, third in zip(*(counts(2, 16, count) for count in (16, 32, 48)), strict=True):
        assert third - second == second - first
    for first, second, third in zip(*(counts(2, count, 16) for count in (16, 32, 48)), strict=True):
        assert third - second == second - first


@pytest.mark.benchmark
@pytest.mark.parametrize(("dp", "expected"), [(8, (5_337, 52_903)), (32, (5_337, 52_903)), (128, (4_959, 52_525))])
def test_folding_of_405b_with_more_and_more_replicas(dp, expected, capsys):
    """Megatron-Core's buckets are max(40, replicas) million elements, so there are fewer of them in the end."""
    path = files.home("scenarios") / "llama-3-405b-16384x-h100.yaml"
    built = build(load(path, f"cluster.nodes={16 * dp}", f"training.global_batch={16 * dp}"))
    found = [folded(built) for _ in range(3)]
    gpus, ops, expanded, links, _ = found[0]
    with capsys.disabled():
        print(f"\n{gpus:,} GPUs: {ops:,} ops for {expanded:,}, {links:,} links, fold + lower {min(row[-1] for row in found):.2f} s CPU")
    assert (ops, expanded) == expected
