"""Steps behind each other without a barrier: zero-bubble schedules with post-validation, and PipeDream-2BW."""

from __future__ import annotations

import pytest
from test_folding import H100, scenario

from parsim.errors import PlanError
from parsim.parallel.schedules import ZERO_BUBBLE, chunks
from parsim.program.check import check
from parsim.run import execute, simulate, step_of
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.study.schedule import simulate as lab
from parsim.study.schedule_inputs import entries, times

UNTIED = {"base": "gpt2", "tied_embeddings": False, "layers": 4}


def measured(schedule, post_validation=False, micro_batches=8, passes=(1.0, 1.0, 1.0)):
    """Four ranks whose passes take so many milliseconds per micro-batch, all chunks together, and whose updates take no time."""
    virtual = 2 if schedule == "interleaved-zb" else chunks(schedule)
    forward, inputs, weight = (f"{seconds / virtual!r} ms" for seconds in passes)
    tree = {
        "model": {"stages": [{"forward": forward, "backward_input": inputs, "backward_weight": weight}]},
        "training": {"micro_batch": 1, "gradient_accumulation": micro_batches},
        "parallel": {
            "pipeline": {"size": 4, "schedule": schedule, "virtual_stages": virtual, "post_validation": post_validation},
            "data": {"strategy": "none"},
        },
        "cluster": {"topology": H100, "gpus": 4},
        "software": {"profile": "pytorch-2", "effects": "none"},
    }
    return simulate(tree).document()


@pytest.mark.parametrize("passes", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.8)])
@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_a_step_with_post_validation_takes_the_period(schedule, passes):
    """The period that the schedule has as a max-plus system, found without the engine."""
    f, i, w = passes
    (result,) = lab(entries([schedule], 4, 8, [2]), times(f"F={f},I={i},W={w}"))
    assert measured(schedule, True, passes=passes)["step_time_s"] == pytest.approx(result.period * 1e-3, rel=1e-9)
    assert measured(schedule, passes=passes)["step_time_s"] == pytest.approx(result.makespan * 1e-3, rel=1e-9)


@pytest.mark.parametrize(("schedule", "flushed"), [("zb-v", 25.5), ("zb-h2", 27)])
def test_the_span_is_the_step(schedule, flushed):
    """arXiv 2401.10241, section 4: no bubble is left where ranks do not wait for each other."""
    assert measured(schedule)["step_time_s"] == pytest.approx(flushed * 1e-3)
    document = measured(schedule, True)
    assert document["step_time_s"] == pytest.approx(24e-3)
    assert document["bubble_fraction"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("micro_batches", [4, 7, 8])
def test_2bw_takes_a_ranks_own_work(micro_batches):
    document = measured("pipedream-2bw", micro_batches=micro_batches)
    assert document["step_time_s"] == pytest.approx(micro_batches * 3e-3)
    assert [device["weight_versions"] for device in document["memory"]["devices"]] == [2] * 4
    assert max(device["in_flight_micro_batches"] for device in document["memory"]["devices"]) == 4


def run(schedule, strategy="ddp", **pipeline):
    chosen = {"pp": 4, "pipeline": {"schedule": schedule, **pipeline}, "strategy": strategy}
    return execute(build(load(scenario(H100, 1, chosen, model=UNTIED, gradient_accumulation=4))))


def reductions(result, steps):
    """Bytes of gradients that pipeline rank 1 reduces in a step."""
    rank = next(r for r in result.classes.representatives if result.plan.mesh.coordinate(r, "pipeline") == 1)
    sent = [
        op.collective.bytes
        for op in result.trace.program.ops
        if op.collective and op.collective.axis == "data" and op.lanes[0].rank == rank
    ]
    return sum(sent) / steps


def test_2bw_reduces_once_a_step_and_holds_a_second_version():
    flushed, double, every = run("1f1b"), run("pipedream-2bw"), run("pipedream")
    steps = double.plan.training.micro_batches // 4
    assert check(double.trace.program) == []
    assert reductions(double, steps) == reductions(flushed, 1)
    assert reductions(every, every.plan.training.micro_batches / 4) == 4 * reductions(flushed, 1)
    for result, versions in ((double, 1), (flushed, 0)):
        program = result.trace.program
        second = [sum(t.bytes for n in program.resident[r] if "step before" in (t := program.tensors[r][n]).name) for r in program.resident]
        weights = [sum(w.count for w in result.plan.weights(chunk) if w.trains) for chunk in result.plan.chunks]
        assert second == [versions * result.plan.training.precision.parameters * count for count in weights]


@pytest.mark.parametrize(("schedule", "strategy"), [("zb-h2", "zero1"), ("zb-v", "ddp"), ("interleaved-zb", "zero1")])
def test_programs_are_legal(schedule, strategy):
    more = {"virtual_stages": 2} if schedule == "interleaved-zb" else {}
    parallel = {"pp": 2, "pipeline": {"schedule": schedule, "post_validation": True, **more}, "strategy": strategy}
    built = build(load(scenario(H100, 1, parallel, model=UNTIED, gradient_accumulation=4)))
    result = execute(built)
    assert check(result.trace.program) == []
    plain = build(load(scenario(H100, 1, parallel | {"pipeline": {"schedule": schedule, **more}}, model=UNTIED, gradient_accumulation=4)))
    assert step_of(built).step_time < step_of(plain).step_time


@pytest.mark.parametrize(
    ("pipeline", "more", "words"),
    [
        ({"schedule": "1f1b", "post_validation": True}, {}, "and 1f1b is none; use schedule zb-h1, zb-h2"),
        ({"schedule": "zb-h2", "post_validation": True}, {"strategy": "fsdp"}, "not supported yet: zb-h2 with post-validation with fsdp"),
        ({"schedule": "zb-h2", "post_validation": True}, {"model": "gpt2"}, "that step independently, with an embedding tied to the head"),
        ({"schedule": "pipedream-2bw"}, {"strategy": "zero1"}, "no public stack shards states under pipedream-2bw"),
        ({"schedule": "pipedream-2bw"}, {"m": 3}, "(m >= p), but 3 < 4"),
        ({"schedule": "pipedream-2bw"}, {"iteration": "first"}, "measured in its steady state"),
    ],
)
def test_what_is_refused(pipeline, more, words):
    parallel = {"pp": 4, "pipeline": pipeline, "strategy": more.pop("strategy", "ddp")}
    tree = scenario(H100, 1, parallel, model=more.pop("model", UNTIED), gradient_accumulation=more.pop("m", 4), **more)
    with pytest.raises(PlanError) as caught:
        simulate(tree)
    assert words in str(caught.value)
