"""Scenarios of a small GPT under V-Half, V-Min and interleaved zero bubble: without communication a step takes what its order takes."""

from __future__ import annotations

from collections import defaultdict

import pytest
from jobs import Job, Wires

from parsim.errors import InputError
from parsim.parallel.schedules import homes
from parsim.parallel.schedules.slot import Precedence, run_in_order
from parsim.run import bubble_theory, step_of
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of
from parsim.scenario.load import load

STAGES, MICRO_BATCHES = 4, 8
SCHEDULES = [("v-half", {}), ("v-min", {}), ("interleaved-zb", {"virtual_stages": 2}), ("interleaved-zb", {"virtual_stages": 4})]


def scenario(name, pipeline, **training):
    """16 wide layers, so that kernels hide what the host does, and an embedding and a head that make the stages unequal."""
    return {
        "model": {"base": "gpt2", "hidden": 2048, "heads": 16, "layers": 16, "tied_embeddings": False},
        "cluster": {"topology": "hgx-h100", "gpus": STAGES},
        "training": {"sequence_length": 1024, "micro_batch": 4, "gradient_accumulation": MICRO_BATCHES, "precision": "bf16"} | training,
        "parallel": {"pipeline": {"size": STAGES, "schedule": name} | pipeline},
        "software": {"effects": "none"},
    }


@pytest.mark.parametrize(("name", "pipeline"), SCHEDULES)
def test_a_step_without_communication_is_the_makespan_of_its_order(name, pipeline):
    """Every pass ends when the schedule says it does, from what its kernels take: after the one before it and what it waits for."""
    built = build(load(scenario(name, pipeline)))
    clock = clock_of(built)
    run = Job(plan_of(built, clock), clock, Wires({}))
    taken, ended, begun = defaultdict(float), {}, []
    for rank in range(STAGES):
        passes = [op for op in run.trace.lane(rank, "compute") if op.name[0] in "FIW" and op.name.split()[0][1:].isdigit()]
        begun.append(min(run.trace.start[op.index] for op in passes))
        for op in passes:
            key = op.name.split()[0], op.instance
            taken[key] += op.duration
            ended[key] = run.trace.end[op.index]
    slots = run.plan.slots
    assert len(ended) == 3 * MICRO_BATCHES * len(homes(slots))
    precedence = Precedence(slots)
    free, end = [min(begun)] * STAGES, {}
    for slot in run_in_order(slots)[0]:
        rank, key = precedence.rank[slot], (f"{slot.kind}{slot.stage}", slot.micro_batch)
        free[rank] = end[slot] = max([free[rank], *(end[need] for need in precedence.needs(slot))]) + taken[key]
        assert ended[key] == pytest.approx(end[slot], rel=1e-12)
    makespan = max(end.values())
    assert makespan <= run.makespan <= 1.1 * makespan  # behind it the optimizer steps
    assert makespan < step_of(built).step_time  # messages take time
    assert bubble_theory(run.plan, MICRO_BATCHES) is None  # it depends on how the backward divides


@pytest.mark.parametrize(("name", "pipeline"), SCHEDULES)
def test_activations_follow_what_is_in_flight(name, pipeline):
    """Ranks hold p + 2 half chunks (V-Half), p (V-Min) and v p of v-ths (interleaved) of 4 ranks."""
    held = {"v-half": 6 / 2, "v-min": 4 / 2, "interleaved-zb": 4}[name]
    (most, reference) = (
        max(max(measured.levels["activations"]) for measured in map(run.memory, (1, 2))) for run in (_job(name, pipeline), _job("1f1b", {}))
    )
    assert most / reference == pytest.approx(held / 3, rel=0.1)  # rank 1 of 1F1B holds three micro-batches


def _job(name, pipeline):
    built = build(load(scenario(name, pipeline)))
    clock = clock_of(built)
    return Job(plan_of(built, clock), clock, Wires({}))


@pytest.mark.parametrize(
    ("name", "pipeline", "training", "message"),
    [
        ("v-half", {"virtual_stages": 3}, {}, "v-half runs 2 stages per rank, but virtual_stages = 3"),
        ("v-min", {"virtual_stages": 4}, {}, "v-min runs 2 stages per rank, but virtual_stages = 4"),
        ("interleaved-zb", {}, {}, "interleaved-zb needs at least 2 stages per rank, but virtual_stages = 1"),
        ("interleaved-zb", {"virtual_stages": 2}, {"gradient_accumulation": 9}, "but 9 in 2 groups leave 1"),
        ("v-half", {"size": 1}, {}, "2 virtual stages on 1 pipeline rank"),
        ("interleaved-zb", {"size": 1, "virtual_stages": 2}, {}, "2 virtual stages on 1 pipeline rank"),
    ],
)
def test_what_is_not_allowed_is_said(name, pipeline, training, message):
    tree = scenario(name, pipeline, **training)
    tree["cluster"]["gpus"] = pipeline.get("size", STAGES)
    with pytest.raises(InputError) as caught:
        step_of(build(load(tree)))
    assert message in str(caught.value)
    assert all(finding.suggestion for finding in caught.value.findings)


def test_fewer_micro_batches_than_ranks():
    for name, pipeline in SCHEDULES:
        assert step_of(build(load(scenario(name, pipeline, gradient_accumulation=3)))).step_time > 0


def test_uneven_groups_are_not_answered_from_shorter_steps():
    """45 micro-batches on 8 ranks go round in five groups of nine: no shorter step has such groups."""
    tree = scenario("interleaved-zb", {"size": 8, "virtual_stages": 2}, gradient_accumulation=45)
    tree["cluster"]["gpus"] = 8
    assert step_of(build(load(tree))).method == "whole"
