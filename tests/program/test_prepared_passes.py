"""What is prepared once and repeated is what is written anew every time: the same programs, op by op."""

import pytest
from test_folding import H100, scenario
from test_text import content

from parsim.hardware.interconnect import Interconnect
from parsim.program.blocked import BlockLowering
from parsim.program.folding import fold_with
from parsim.program.lowering import Lowering
from parsim.program.slots import Slots
from parsim.program.stage import StagePasses
from parsim.program.together import Together
from parsim.run import clock_of, plan_of
from parsim.scenario import load
from parsim.scenario.build import build

INTERLEAVED = {"schedule": "interleaved", "virtual_stages": 2}
ZERO_BUBBLE = "F0.0 F0.1 I0.0 W0.0 I0.1 F0.2 W0.1 F0.3 I0.2 W0.2 I0.3 W0.3\nF1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 F1.3 I1.3 W1.2 W1.3"
CASES = {
    "1F1B": scenario(H100, 2, {"tp": 4, "pp": 4}, gradient_accumulation=8),
    "buckets": scenario(H100, 2, {"tp": 2, "pp": 2, "strategy": "ddp"}),
    "gathers under forward": scenario(
        H100, 2, {"tp": 2, "pp": 2, "pipeline": INTERLEAVED, "data": {"strategy": "zero1", "overlap_gather": True}}
    ),
    "gradients in shards": scenario(H100, 2, {"tp": 2, "pp": 2, "pipeline": INTERLEAVED, "strategy": "zero2"}),
    "fsdp": scenario(H100, 2, {"tp": 2, "pp": 2, "strategy": "fsdp"}),
    "backward in halves": scenario(H100, 2, {"tp": 2, "pp": 2, "pipeline": {"schedule": ZERO_BUBBLE}}),
    "recomputation": scenario(H100, 2, {"tp": 4, "strategy": "zero1", "tensor": {"sequence_parallel": True}}, recompute="full"),
    "the first step": scenario(H100, 2, {"tp": 2, "pp": 2}, iteration="first"),
    "blocking sends": scenario(H100, 2, {"tp": 2, "pp": 4, "pipeline": {"overlap_sends": False}}),
    "a smaller micro-batch": scenario(H100, 2, {"tp": 4, "pp": 2}, gradient_accumulation=1)
    | {"training": {"sequence_length": 512, "micro_batch": 2, "global_batch": 14, "partial_micro_batch": True}},
    "a slow rank": scenario(H100, 2, {"tp": 2, "pp": 2}) | {"variability": {"slow": [{"rank": 3, "speed": 0.8}]}},
    "pipedream": scenario(H100, 1, {"pp": 4, "strategy": "ddp", "pipeline": {"schedule": "pipedream"}}),
}


def programs(tree):
    """Folded in ops, folded in blocks, and of all ranks."""
    built = build(load(tree))
    clock = clock_of(built)
    plan = plan_of(built, clock)
    wires = Interconnect(built.cluster, plan.gpus, built.collectives)
    _, blocks = fold_with(BlockLowering, plan, wires, clock)
    every = Lowering(plan, clock)
    every.run()
    inside = [None if body is None else (body.shape.items, body.shape.segments, body.speed, body.uses) for body in blocks.blocks.bodies]
    return [content(blocks.whole().program), content(every.program), content(blocks.program), inside]


@pytest.mark.parametrize("case", CASES)
def test_prepared_is_written_anew(case, monkeypatch):
    prepared = programs(CASES[case])
    monkeypatch.setattr(StagePasses, "_equal", lambda *_: None)
    monkeypatch.setattr(Slots, "_learn", lambda *_: None)
    monkeypatch.setattr(Together, "possible", lambda *_: False)
    anew = programs(CASES[case])
    assert prepared == anew
