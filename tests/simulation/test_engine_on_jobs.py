"""Real jobs on the engine: as the naive reference runs them, one event per op at least, lowered once, open to other processes."""

from __future__ import annotations

from collections import Counter
from math import isclose

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_engine import Reference

from parsim import simulate
from parsim.errors import ParsimError
from parsim.execution.prepared import interference_of
from parsim.hardware.interconnect import Interconnect
from parsim.parallel.schedules import V_SHAPED
from parsim.program.folding import FoldedInterconnect
from parsim.program.lowering import Lowering
from parsim.run import execute, step_of
from parsim.scenario import files
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of
from parsim.scenario.load import load
from parsim.simulation.engine import Engine

SCENARIOS = sorted(files.home("scenarios").glob("*.yaml"))
LARGE = (
    "gpt3-1",
    "gpt3-530b",
    "llama-3-405b",
    "llama-3-70b",
    "llama-2-70b",
    "deepseek-v3",
    "kimi",
    "qwen3-235b",
    "llama-4",
    "mixtral-8x22b",
)
"""ten times as many ops as a small job with the same strategies"""


def scenario(**parallel):
    """Four layers of GPT on up to two nodes of eight."""
    chosen = dict(parallel)
    training = {"sequence_length": 512, "micro_batch": 1, "global_batch": 16, "precision": "bf16"} | chosen.pop("training", {})
    cluster = {"topology": "dgx-a100-80gb", "nodes": 2} | chosen.pop("cluster", {})
    tied = chosen.get("pipeline", {}).get("schedule") not in V_SHAPED  # embedding and head are two chunks of one rank
    return {
        "model": {"base": "gpt3-1.3b", "layers": 4, "tied_embeddings": tied},
        "training": training, "parallel": chosen, "cluster": cluster,
    }  # fmt: skip


def same(built):
    """Run a job, and every op of it with the reference."""
    run = execute(built)
    wires = Interconnect(built.cluster, run.plan.gpus, built.collectives)
    fabric = FoldedInterconnect(wires, run.classes)
    wanted = Reference(run.trace.program, fabric, interference_of(built, wires), background=map(fabric.background, built.background))
    assert list(run.trace.end) == pytest.approx(wanted.end, rel=1e-10, abs=1e-11 * run.makespan)
    for link, use in run.trace.links.items():
        assert use.bytes == pytest.approx(wanted.carried[link], rel=1e-9)
    return run


PIPELINES = [
    {"size": 1},
    {"size": 2},
    {"size": 4, "schedule": "gpipe"},
    {"size": 2, "schedule": "interleaved", "virtual_stages": 2},
    {"size": 2, "overlap_sends": False},
    {"size": 4, "schedule": "zb-h1"},
    {"size": 2, "schedule": "zb-v"},
    {"size": 2, "schedule": "v-half"},
    {"size": 2, "schedule": "interleaved-zb", "virtual_stages": 2},
]
WAYS = st.fixed_dictionaries(
    {
        "tensor": st.fixed_dictionaries(
            {"size": st.sampled_from([1, 2, 4]), "sequence_parallel": st.booleans(), "overlap": st.sampled_from(["none", "backward"])}
        ),
        "pipeline": st.sampled_from(PIPELINES),
        "data": st.fixed_dictionaries({"strategy": st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp"])}),
        "context": st.fixed_dictionaries({"size": st.sampled_from([1, 1, 2])}),
        "training": st.fixed_dictionaries({"recompute": st.sampled_from(["none", "full", {"selective": ["attention"]}])}),
        "cluster": st.fixed_dictionaries({"interference": st.sampled_from(["off", "simple", "full"])}),
    }
)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(WAYS)
def test_any_small_job(ways):
    if ways["tensor"]["size"] == 1:
        ways = ways | {"tensor": {"size": 1}}
    try:
        built = build(load(scenario(**ways)))
        plan_of(built, clock_of(built))
    except ParsimError:
        return
    same(built)


def test_a_pass_without_compute_between_blocking_messages():
    """Frozen layers have no weight gradients: the pass is empty, and what comes after it waits for the messages before it."""
    pipeline = {"size": 2, "schedule": "zb-h2", "overlap_sends": False}
    same(build(load(scenario(pipeline=pipeline, training={"finetune": {"method": "freeze"}}))))


def test_a_slow_rank():
    tree = scenario(tensor={"size": 8}, pipeline={"size": 2}) | {"variability": {"slow": [{"rank": 3, "speed": 0.5}]}}
    assert same(build(load(tree))).plan.slow == {3: 0.5}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem.startswith(LARGE) else []) for path in SCENARIOS],
)
def test_every_op_is_an_event_and_a_step_is_lowered_once(path, monkeypatch):
    lowered = Counter()
    plain = Lowering.run
    monkeypatch.setattr(Lowering, "run", lambda self: lowered.update(["run"]) or plain(self))
    run = execute(build(load(path, trust_code=True)))
    assert run.trace.events >= len(run.trace.program.ops)
    assert lowered["run"] == 1


@pytest.mark.parametrize("name", ["gpt3-22b-8x-a100", "gpt2-xl-gpipe-4x-v100", "pipeline-unit-pipedream", "llama-7b-zero3-8x-a100"])
def test_the_step_of_a_search_is_what_the_report_says(name):
    path = files.home("scenarios") / f"{name}.yaml"
    quick, report = step_of(build(load(path))), simulate(path)
    assert quick.step_time == pytest.approx(report.step_time, rel=1e-12)
    assert quick.makespan == pytest.approx(report.timeline.makespan, rel=1e-12)
    assert quick.peaks == {device.rank: device.device_used_bytes for device in report.measured.memory.devices}


def test_a_process_beside_the_ops_changes_later_ones():
    """Half speed from the middle of a job that only computes: the rest takes twice as long, what came before is untouched."""
    run = execute(build(load(files.home("scenarios") / "mlp-1x-a100.yaml")))
    program, half = run.trace.program, run.makespan / 2

    def brown_out(beside):
        yield beside.env.timeout(half)
        beside.set_speed(0, 0.5)

    class NoWires:
        def cost(self, collective):
            raise AssertionError(collective)

        def capacity(self, link):
            raise AssertionError(link)

    trace = Engine(program, NoWires(), processes=[brown_out]).run()
    computing = [op.index for op in program.ops if op.lanes[0].name == "compute" and op.duration]
    for index in computing:
        before = sum(min(run.trace.end[i], half) - min(run.trace.start[i], half) for i in computing if i <= index)
        after = sum(max(run.trace.end[i], half) - max(run.trace.start[i], half) for i in computing if i <= index)
        busy = sum(trace.end[i] - trace.start[i] for i in computing if i <= index)
        assert isclose(busy, before + 2 * after, rel_tol=1e-9)
    assert trace.makespan > 1.3 * run.makespan
