"""Every one of 512 ranks lowered and run: seconds are printed, op counts are asserted (run with -m benchmark)."""

from time import process_time

import pytest

from parsim.program.lowering import Lowering
from parsim.run import execute
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of
from parsim.simulation.engine import collector_paused

MODEL = {"base": "gpt3-1.3b", "layers": 16}
CASES = {
    "dp64 tp8, 8 micro-batches": ({"tensor": {"size": 8}}, 512, 590_416),
    "pp4 dp16 tp8, 16 micro-batches": ({"tensor": {"size": 8}, "pipeline": {"size": 4}}, 256, 309_424),
}
"""name -> parallel, global batch, ops"""


@pytest.mark.benchmark
@pytest.mark.parametrize("case", CASES)
def test_512_ranks_unfolded(case, capsys):
    parallel, batch, expected = CASES[case]
    training = {"sequence_length": 2048, "micro_batch": 1, "global_batch": batch}
    cluster = {"topology": "dgx-a100-80gb", "nodes": 64}
    built = build(load({"model": MODEL, "training": training, "parallel": parallel, "cluster": cluster}))
    clock = clock_of(built)
    with collector_paused():
        plan = plan_of(built, clock)
        began = process_time()
        lowering = Lowering(plan, clock)
        lowering.run()
        lowered = process_time() - began
    ops = len(lowering.program.ops)
    began = process_time()
    run = execute(built, unfolded=True)
    whole = process_time() - began
    with capsys.disabled():
        print(f"\n{case}: {ops:,} ops, lowered in {lowered:.2f} s CPU ({1e6 * lowered / ops:.1f} us/op), plan to makespan {whole:.2f} s")
    assert run.makespan == pytest.approx(execute(built).makespan, rel=1e-9)
    assert ops == expected
