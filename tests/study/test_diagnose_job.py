"""What tells a trace of another job from the scenario's: ranks, shapes and numbers of products, groups of collectives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parsim import load
from parsim.calibration.recorded import read_recorded
from parsim.errors import ScenarioError
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of
from parsim.study.diagnose_classes import GpuSlice, Recorded, predicted
from parsim.study.diagnose_job import other_job, shapes_of

DDP = {
    "model": {"base": "gpt2", "layers": 1},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 2},
    "training": {"sequence_length": 512, "micro_batch": 2, "gradient_accumulation": 1},
    "parallel": {"data": {"strategy": "ddp"}},
}
SAMPLE = Path(__file__).parent.parent / "data" / "kineto" / "gpu-step.json"


@pytest.fixture(scope="module")
def job():
    built = build(load(DDP))
    return built, plan_of(built, clock_of(built)), predicted(load(DDP), [0])


def test_the_scenarios_own_step_is_its_job(job):
    built, plan, base = job
    # rows x tokens: 1024 tokens; gradients have the sizes of their products
    assert {(768, 1024, 2304), (768, 1024, 3072), (768, 768, 1024)} <= set(shapes_of(plan))
    mine = replace(base, world=2, products={(1024, 3072, 768): 2, (1024, 768, 3072): 2, (3072, 768, 1024): 2})
    assert other_job(built, plan, mine, base) == ()


def test_another_job_is_told_by_all_that_differs(job):
    built, plan, base = job
    window = base.ranks[0][0]
    slices = [one for one in window.stretches if not one.kind.startswith("comm ")]
    other = replace(window, stretches=(*slices, *slices, GpuSlice("comm all_reduce x8", "ncclKernel", 0.0, 1e-3)))
    trace = Recorded({0: (other,)}, world=8, products={(4096, 11008, 4096): 3, (1024, 3072, 768): 1})
    world, shapes, numbers, groups = other_job(built, plan, trace, base)
    assert world == "the trace is of 8 ranks, the scenario has 2"
    # 3 x 2 x 4096 x 11008 x 4096 of that and 2 x 1024 x 3072 x 768
    assert shapes.startswith(
        "100% of the work of its matrix products is in shapes that the scenario does not have: the most in 4096 x 11008 x 4096 (3"
    )
    assert "matrix products per step on rank 0, the scenario has" in numbers
    assert groups == "its collectives are among 8 ranks, the scenario's among 2"


def test_shapes_and_ranks_are_read_from_the_trace():
    recorded = read_recorded([SAMPLE], 1)
    assert recorded.products[(4096, 16384, 4096)] >= 1


def test_a_trace_without_products_is_refused_with_what_it_holds(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ts": 1, "dur": 2},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 4, "dur": 2},
        {"ph": "X", "cat": "kernel", "name": "vectorized_elementwise_kernel", "ts": 7, "dur": 2},
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(ScenarioError, match="holds no matrix product, but 1 kernels of collectives, 1 copies and fills, 1 other kernels"):
        read_recorded([tmp_path / "t.json"])
