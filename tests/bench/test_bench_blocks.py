"""Lowering and running one step in blocks: seconds are printed, counts are asserted (run with -m benchmark).

Figures of 2026-11-22, CPU seconds on 2 shared cores of a cloud machine (Python 3.11), in blocks / op by op: see `FIGURES`.
"""

from time import process_time

import pytest

from parsim.run import execute
from parsim.scenario import files, load
from parsim.scenario.build import build

FIGURES = {
    "gpt3-175b-64x-a100": (6066, "0.3 / 1.5 s"),
    "gpt3-1t-512x-a100": (None, ""),
    "llama-3-405b-16384x-h100": (None, ""),
}
"""scenario -> ops in blocks, seconds of `execute`"""


@pytest.mark.benchmark
@pytest.mark.parametrize("name", FIGURES)
def test_a_step_in_blocks(name, capsys):
    built = build(load(files.home("scenarios") / f"{name}.yaml"))
    seconds = []
    for _ in range(3):
        began = process_time()
        run = execute(built)
        seconds.append(process_time() - began)
    ops = len(run.lowering.program.ops)
    with capsys.disabled():
        print(f"\n{name}: {ops:,} ops for {run.lowering.blocks.expanded:,}, plan to makespan {min(seconds):.2f} s CPU")
    assert ops == FIGURES[name][0]
