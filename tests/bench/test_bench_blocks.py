"""Lowering and running one step in blocks: seconds are printed, counts are asserted (run with -m benchmark).

`FIGURES` are of 2026-11-22 on 2 cores of a cloud machine shared with other work (Python 3.11): read each as this, or half of this.
"""

from time import process_time

import pytest

from parsim.run import execute
from parsim.scenario import files, load
from parsim.scenario.build import build
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
