"""Blocks where ranks of one stage are unequal: each class of ranks has its own, and the step is that of the ops."""

import pytest
from test_folding import H100, NARROW_RAILS, TWO_PER_LEAF, scenario

from parsim.run import execute
from parsim.scenario import load
from parsim.scenario.build import build

CASES = {
    "leaves across stages": scenario(
        H100, 6, {"tp": 8, "pp": 2, "strategy": "zero1"}, cluster=TWO_PER_LEAF, model="opt-1.3b", gradient_accumulation=8
    ),
    "stages over narrow leaves": scenario(
        H100, 6, {"tp": 8, "pp": 2, "strategy": "ddp"}, cluster=NARROW_RAILS, model="opt-1.3b", gradient_accumulation=8
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_equal_ops(case):
    built = build(load(CASES[case]))
    blocks, ops = execute(built), execute(built, blocks=False)
    stages = blocks.plan.mesh.size("pipeline")
    assert len(blocks.classes.representatives) > stages
    assert len(blocks.lowering.program.ops) < 0.7 * len(ops.lowering.program.ops)
    assert blocks.makespan == pytest.approx(ops.makespan, rel=1e-12)
    names = [(op.name, op.lanes, op.instance) for op in ops.trace.program.ops]
    assert [(op.name, op.lanes, op.instance) for op in blocks.trace.program.ops] == names
    for column in ("start", "end"):
        found, expected = getattr(blocks.trace, column), getattr(ops.trace, column)
        assert list(found) == pytest.approx(list(expected), rel=1e-11, abs=1e-12 * ops.makespan)
    assert execute(built, unfolded=True).makespan == pytest.approx(ops.makespan, rel=1e-9)
