"""Schedules in which every stage lies on two ranks: what they hold, what they reduce, that programs are legal, what is refused."""

from __future__ import annotations

import pytest
from test_folding import H100, scenario

from parsim.errors import PlanError
from parsim.program.check import check
from parsim.run import execute, simulate
from parsim.scenario import load
from parsim.scenario.build import build

GPT = {"base": "gpt2", "tied_embeddings": False, "layers": 8}
FEW = {"gradient_accumulation": 4}


def tree(schedule, strategy="ddp", *, pp=4, **more):
    return scenario(H100, 1, {"pp": pp, "pipeline": {"schedule": schedule}, "strategy": strategy}, model=GPT, **more)


def run(asked):
    return execute(build(load(asked)), unfolded=True)


def gradients(result, rank):
    """Bytes of the gradients that a rank reduces with its twin, in order."""
    return [
        op.collective.bytes
        for op in result.trace.program.ops
        if op.collective is not None and op.name == "all_reduce copies of a stage" and rank in {lane.rank for lane in op.lanes}
    ]


@pytest.mark.parametrize(
    ("schedule", "strategy", "count"),
    [("dualpipe", "ddp", 8), ("dualpipe", "zero1", 8), ("dualpipe", "zero2", 9), ("chimera", "ddp", 4), ("chimera", "zero2", 10)],
)
def test_programs_are_legal(schedule, strategy, count):
    result = run(tree(schedule, strategy, gradient_accumulation=count - count % 2))
    assert check(result.trace.program) == []


@pytest.mark.parametrize(("strategy", "share"), [("ddp", 1), ("zero1", 2)])
def test_twins_hold_the_same_and_reduce_their_gradients(strategy, share):
    """Rank r and p - 1 - r have the weights of each other, twice those of 1F1B together, and reduce both stages once a step."""
    both, single = run(tree("dualpipe", strategy, gradient_accumulation=8)), run(tree("1f1b", strategy, gradient_accumulation=8))
    plan = both.plan
    counts = [sum(w.count for w in plan.weights(chunk) if w.trains) for chunk in plan.chunks]
    assert counts[:4] == counts[4:] == [sum(w.count for w in single.plan.weights(chunk) if w.trains) for chunk in single.plan.chunks]
    assert [chunk.pipeline_rank for chunk in plan.chunks] == [0, 1, 2, 3, 3, 2, 1, 0]
    element = plan.training.precision.gradients
    for p in range(4):
        shares = [sum(-(-w.count // share) for w in plan.weights(plan.chunks[stage]) if w.trains) for stage in sorted((p, 3 - p))]
        assert gradients(both, plan.mesh.at(pipeline=p)[0]) == [element * count for count in shares]
        assert sum(shares) == pytest.approx((counts[p] + counts[3 - p]) / share, rel=1e-5)


def resident(result, category):
    """Bytes of a category that every pipeline rank keeps."""
    program, mesh = result.trace.program, result.plan.mesh
    firsts = [mesh.at(pipeline=p)[0] for p in range(4)]
    return [sum(t.bytes for n in program.resident[rank] if (t := program.tensors[rank][n]).category == category) for rank in firsts]


def test_a_device_holds_two_stages():
    both, single = (run(tree(name, "ddp", gradient_accumulation=8)) for name in ("dualpipe", "1f1b"))
    for category in ("parameters", "optimizer"):
        once = resident(single, category)
        assert resident(both, category) == [once[p] + once[3 - p] for p in range(4)]
    devices = simulate(tree("dualpipe", gradient_accumulation=8)).document()["memory"]["devices"]
    assert [device["in_flight_micro_batches"] for device in devices] == [5] * 4


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_rank_has_both_ends_of_a_model_with_a_tied_head(strategy):
    """Their one table is in its gradients once, and is reduced with the twin's."""
    result = run(tree("dualpipe", strategy, gradient_accumulation=8) | {"model": "gpt2"})
    plan = result.plan
    assert check(result.trace.program) == []
    assert {(rank, name) for rank, name in plan.ties.chunks} == {(p, "embedding.word_embeddings.weight") for p in (0, 3)}
    assert [(tied.owner, tied.last) for tied in plan.ties.chunks.values()] == [(0, 0), (4, 4)]
    names = [weight.name for stage in (0, 7) for weight in plan.weights(plan.chunks[stage])]
    assert len(names) == len(set(names))
    assert not [name for name in names if "lm_head" in name]
    assert "all_reduce tied embedding" not in {op.name for op in result.trace.program.ops}


def test_each_direction_gets_half_of_the_micro_batches():
    result = run(tree("chimera", **FEW))
    ends = [result.plan.slots[p] for p in (0, 3)]
    assert [sorted({slot.micro_batch for slot in row if slot.stage < 4}) for row in ends] == [[0, 1], [0, 1]]
    assert [sorted({slot.micro_batch for slot in row if slot.stage >= 4}) for row in ends] == [[2, 3], [2, 3]]
    document = simulate(tree("chimera", **FEW)).document()
    plain = simulate(tree("1f1b", **FEW)).document()
    assert document["model"] == plain["model"]
    assert document["samples_per_s"] * document["step_time_s"] == pytest.approx(plain["samples_per_s"] * plain["step_time_s"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (tree("dualpipe", "fsdp", gradient_accumulation=8), "lie on two ranks (dualpipe) with fsdp: both ranks hold their weights whole"),
        (
            tree("dualpipe", gradient_accumulation=8) | {"model": "gpt2", "software": {"profile": "pytorch-2"}},
            "head is tied to embedding.word_embeddings.weight, in another chunk of pipeline rank 0",
        ),
        (tree("dualpipe", gradient_accumulation=6), "m >= 2 p), but 6 < 2 x 4"),
        (tree("chimera", gradient_accumulation=5), "5 micro-batches cannot be halved"),
        (tree("chimera", pp=2, gradient_accumulation=2, backward=False), "chimera is a training schedule"),
    ],
)
def test_what_is_refused(asked, words):
    with pytest.raises(PlanError) as caught:
        simulate(asked)
    assert words in str(caught.value)


def test_blocking_messages_are_refused():
    asked = tree("chimera", **FEW)
    asked["parallel"]["pipeline"]["overlap_sends"] = False
    with pytest.raises(PlanError, match="sends both ways at once: not supported yet"):
        simulate(asked)
