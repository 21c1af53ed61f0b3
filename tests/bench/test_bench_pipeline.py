"""Lower + run of large programs, every op simulated; figures are printed, only op counts are asserted (run with -m benchmark)."""

from time import process_time

import pytest

from parsim.hardware.interconnect import Interconnect
from parsim.program.folding import FoldedInterconnect, fold
from parsim.program.lowering import Lowering
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of
from parsim.simulation.engine import Engine, collector_paused

CASES = {
    "GPT-3 175B tp8 pp8 m64": {
        "model": "megatron-gpt-175b",
        "training": {"sequence_length": 2048, "micro_batch": 1, "global_batch": 64},
        "parallel": {"tensor": {"size": 8}, "pipeline": {"size": 8}},
        "cluster": {"topology": "dgx-a100-80gb", "nodes": 8},
    },
    "GPT-3 1T tp8 pp64 m512": {
        "model": "megatron-gpt-1t",
        "training": {"sequence_length": 2048, "micro_batch": 1, "global_batch": 512},
        "parallel": {"tensor": {"size": 8}, "pipeline": {"size": 64}},
        "cluster": {"topology": "dgx-a100-80gb", "nodes": 64},
    },
    "Llama-3-405B FSDP on 16,384 H100": {
        "model": "llama-3.1-405b",
        "training": {"sequence_length": 8192, "micro_batch": 1, "global_batch": 2048, "precision": "bf16"},
        "parallel": {"tensor": {"size": 8, "sequence_parallel": True}, "pipeline": {"size": 16}, "data": {"strategy": "fsdp"}},
        "cluster": {"topology": "hgx-h100", "nodes": 2048},
    },
    "16 layers on 512 ranks, unfolded": {
        "model": {"base": "gpt3-1.3b", "layers": 16},
        "training": {"sequence_length": 2048, "micro_batch": 1, "global_batch": 512},
        "parallel": {"tensor": {"size": 8}},
        "cluster": {"topology": "dgx-a100-80gb", "nodes": 64},
    },
}


@pytest.mark.benchmark
@pytest.mark.parametrize("case", CASES)
def test_lower_and_run(case, capsys):
    built = build(load(CASES[case]))
    with collector_paused():
        began = process_time()
        clock = clock_of(built)
        plan = plan_of(built, clock)
        wires = Interconnect(built.cluster, plan.gpus, built.collectives)
        if "unfolded" in case:
            lowering = Lowering(plan, clock)
            lowering.run()
            seen = wires
        else:
            classes, lowering = fold(plan, wires, clock)
            seen = FoldedInterconnect(wires, classes)
        lowered = process_time()
        trace = Engine(lowering.program, seen).run()
        ended = process_time()
    ops = len(lowering.program.ops)
    with capsys.disabled():
        figures = f"fold + lower {lowered - began:.2f} s, run {ended - lowered:.2f} s, {1e6 * (ended - began) / ops:.1f} us/op"
        print(f"\n{case}: {ops:,} ops, {figures}")
    assert trace.makespan > 0
    assert ops < 1_000_000
