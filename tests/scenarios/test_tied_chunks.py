"""Embedding and head are one weight in two chunks of a pipeline rank, as where stages lie in a V: counted, reduced and stepped once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs import job, tree

from parsim.errors import PlanError
from parsim.model.catalogue import build_model
from parsim.parallel.schedules import SlotKind, schedule
from parsim.parallel.schedules.slot import Slot
from parsim.parallel.training import Optimizer
from parsim.program.check import check
from parsim.program.stage_passes import StagePasses
from parsim.run import execute, step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.precision import PRESETS

HIDDEN, VOCABULARY, STAGES, MICRO_BATCHES = 64, 50_000, 2, 4
TABLE = VOCABULARY * HIDDEN
"""elements of the weight"""
WEIGHT = "embedding.word_embeddings.weight"
HEAD = 2 * STAGES - 1
"""global stage of the head; the embedding's is 0"""
WIDE = PRESETS["bf16-fp32grad"]
ADAM = Optimizer("adamw", "fused", clip_gradients=False)
V = {"schedule": "zb-v", "virtual_stages": 2}


def model(*, tied):
    changes = {"hidden": HIDDEN, "heads": 4, "layers": 4, "vocabulary": VOCABULARY, "tied_embeddings": tied}
    return build_model({"base": "gpt2", **changes}, name="small", base_lookup=tree)


def run(*, tied=True, fused=True, profile="megatron-core", **recipe):
    recipe = {"micro_batches": MICRO_BATCHES, "sequence_length": 64, "precision": WIDE, "optimizer": ADAM, "pipeline_settings": V} | recipe
    runtime = {"profile": profile, "gradient_accumulation_fusion": fused}
    return job(model(tied=tied), pipeline=STAGES, runtime=runtime, **recipe)


def delayed():
    """ZB-V's order, but the head's last weight gradient comes at the very end of the first rank's step."""
    rows = list(schedule("zb-v", STAGES, MICRO_BATCHES, 2))
    late = [slot for slot in rows[0] if slot.kind == SlotKind.BACKWARD_WEIGHT and slot.stage == HEAD][-1]
    rows[0] = (*(slot for slot in rows[0] if slot != late), late)
    return {"schedule": "custom", "virtual_stages": 2, "slots": tuple(rows)}


def unsplit():
    """Whole backwards in the order of ZB-V's gradients of inputs."""
    whole = {
        SlotKind.FORWARD: SlotKind.FORWARD,
        SlotKind.BACKWARD_INPUT: SlotKind.FULL_BACKWARD,
        SlotKind.FULL_BACKWARD: SlotKind.FULL_BACKWARD,
    }
    rows = schedule("zb-v", STAGES, MICRO_BATCHES, 2)
    slots = tuple(tuple(Slot(whole[slot.kind], *slot[1:]) for slot in row if slot.kind in whole) for row in rows)
    return {"schedule": "custom", "virtual_stages": 2, "slots": slots}


HALF, LEAST = ({"schedule": name, "virtual_stages": 2} for name in ("v-half", "v-min"))
ORDERS = {"zb-v": V, "v-half": HALF, "v-min": LEAST, "head last": delayed(), "whole backwards": unsplit()}


def peaks(found, rank=0):
    """Most of each kind of memory [B]."""
    return {category: int(max(levels)) for category, levels in found.memory(rank).levels.items()}


def uses(found, tensor):
    """How often the first rank allocates and frees a tensor."""
    rows = found.program.tensors[0]
    effects = [e for op in found.program.ops for rank, several in op.effects if rank == 0 for e in several if rows[e.tensor].name == tensor]
    return sum(e.allocate for e in effects), sum(not e.allocate for e in effects)


def written(found, stage, block):
    """When the first rank has written the gradients of a block's weights, by micro-batch [s]."""
    row = [slot for slot in found.plan.slots[0] if slot.stage == stage and slot.kind in (SlotKind.FULL_BACKWARD, SlotKind.BACKWARD_WEIGHT)]
    return [found.end(f"{slot.kind}{stage} {block}", slot.micro_batch) for slot in row]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("data", "strategy", "states"), [(1, "none", 12), (2, "ddp", 12), (2, "zero1", 6)])
def test_model_states_are_those_of_the_untied_job_minus_one_table(order, data, strategy, states):
    """bf16 weights 2 B, fp32 gradients 4 B, fp32 masters and Adam's two states 12 B per element, or a rank's half; other ranks do not
    differ.
    """
    split = {"data": data, "data_settings": {"strategy": strategy}, "pipeline_settings": ORDERS[order]}
    tied, untied = run(**split), run(tied=False, **split)
    bytes_per_element = {"parameters": 2, "gradients": 4, "optimizer": states}
    first, other = (zip(peaks(untied, rank).items(), peaks(tied, rank).values(), strict=True) for rank in (0, STAGES * data - 1))
    assert {name: more - less for (name, more), less in first if name in bytes_per_element} == {
        name: size * TABLE for name, size in bytes_per_element.items()
    }
    assert all(more == less for (_, more), less in other)


@pytest.mark.parametrize("order", ORDERS)
def test_the_step_is_shorter_by_the_work_on_one_table(order):
    """At 1 TB/s: 4 B set to zero, 28 B by Adam, 4 + 2 B copied from the master to the weight, and nothing else."""
    tied, untied = run(pipeline_settings=ORDERS[order]), run(tied=False, pipeline_settings=ORDERS[order])
    assert untied.makespan - tied.makespan == pytest.approx((4 + 28 + 6) * TABLE / 1e12, rel=1e-9)


@pytest.mark.parametrize("order", ORDERS)
def test_one_gradient_comes_once_and_goes_once(order):
    found = run(pipeline_settings=ORDERS[order])
    assert uses(found, f"{WEIGHT}.grad") == (1, 1)
    assert not [row.name for row in found.program.tensors[0] if "lm_head" in row.name and "grad" in row.name and "weight" in row.name]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("precision", "adds"), [("bf16-fp32grad", 2 * MICRO_BATCHES), ("bf16", 2 * MICRO_BATCHES - 1)])
def test_without_fusion_every_backward_but_the_first_adds(order, precision, adds):
    """Where gradients are as wide as weights the first backward writes them; a wider buffer is always added to."""
    found = run(fused=False, precision=PRESETS[precision], pipeline_settings=ORDERS[order])
    assert uses(found, f"{WEIGHT}.grad.new") == (adds, adds)


@pytest.mark.parametrize(
    ("strategy", "bucket"), [("ddp", None), ("ddp", (100_000, "elements")), ("zero1", None), ("zero1", (100_000, "elements"))]
)
@pytest.mark.parametrize("order", ORDERS)
def test_it_is_reduced_once_behind_the_last_backward_of_both_chunks(order, strategy, bucket):
    settings = {"strategy": strategy, "bucket": bucket, "first_bucket": 1}
    found = run(data=2, data_settings=settings, pipeline_settings=ORDERS[order], wires={"data": 1e-3})
    reductions = [op for op in found.collectives(0, axis="data") if op.collective.kind != "all_gather"]
    weights = sum(w.count for chunk in found.plan.of_rank(0) for w in found.plan.weights(chunk) if w.trains)
    assert sum(op.collective.bytes for op in reductions) == 4 * weights
    (table,) = (op for op in reductions if op.collective.bytes >= 4 * TABLE)
    embedding, head = written(found, 0, "embedding"), written(found, HEAD, "head")
    assert len(embedding) == len(head) == MICRO_BATCHES
    assert found.trace.start[table.index] >= max(*embedding, *head) - 1e-12
    assert (max(head) > max(embedding)) == (order == "head last")
    steps = [op for op in found.program.ops if op.name == "optimizer" and op.lanes[0].rank == 0]
    assert found.trace.end[table.index] <= min(found.trace.start[op.index] for op in steps)


def test_no_copy_of_the_weight_is_kept_equal_to_another():
    names = {op.name for op in run(data=2).program.ops}
    assert "all_reduce tied embedding" not in names
    assert "all_reduce tied embedding" in {op.name for op in run(pipeline_settings={"schedule": "zb-h1"}).program.ops}


@pytest.mark.parametrize("order", ORDERS)
def test_repeated_passes_are_what_writing_them_gives(order):
    """Rank by rank, pass by pass, with and without repeating what equal blocks add."""

    class Forgetful(dict):
        def get(self, _, default=None):
            return default

    found = run(data=2, fused=False, pipeline_settings=ORDERS[order])
    for p in range(STAGES):
        repeated, anew = (StagePasses(found.plan, p, "", found.clock, known) for known in ({}, Forgetful()))
        for stage in repeated.chunks:
            for kind in dict.fromkeys(slot.kind for slot in found.plan.slots[p]):
                for first, last in ((True, False), (False, False), (False, True)):
                    assert repeated.template(kind, stage, first, last) == anew.template(kind, stage, first, last)


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": "pytorch-2"},
        {"profile": "deepspeed", "data_settings": {"strategy": "zero1"}},
        *({"data_settings": {"strategy": strategy}} for strategy in ("zero2", "zero3", "fsdp")),
        {"data_settings": {"strategy": "hsdp", "shard_size": 2}},
        {"data_settings": {"strategy": "ddp", "accumulate": "every"}},
    ],
)
def test_what_has_no_whole_gradient_of_both_is_refused(changes):
    with pytest.raises(PlanError, match=r"tied to embedding\.word_embeddings\.weight, in another chunk of pipeline rank 0"):
        run(data=2, **changes)


@pytest.mark.parametrize(("schedule", "strategy"), [("zb-v", "none"), ("zb-v", "ddp"), ("v-half", "ddp"), ("v-min", "none")])
def test_a_scenario_of_megatron_takes_it_as_it_is(schedule, strategy):
    """Long steps too, which are answered from shorter ones: to what the whole step takes."""
    recipe = {
        "model": {"base": "gpt2", "hidden": 256, "heads": 8, "layers": 8, "vocabulary": VOCABULARY},
        "cluster": {"topology": "hgx-h100", "gpus": STAGES * (1 if strategy == "none" else 2)},
        "training": {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 40, "precision": "bf16-fp32grad"},
        "parallel": {"pipeline": {"size": STAGES, "schedule": schedule}, "data": {"strategy": strategy}},
        "software": {"profile": "megatron-core"},
    }
    built = build(load(recipe))
    step, whole = step_of(built), execute(built)
    assert step.step_time == pytest.approx(whole.makespan, rel=1e-9)
    assert len({device.device_used_bytes for device in step.memory.devices}) > 1


def test_programs_are_sound():
    assert not check(run(data=2).program)
    assert not check(run(data=2, fused=False, pipeline_settings=ORDERS["head last"]).program)
    assert not check(run(micro_batch=3, last_micro_batch=2, tensor=2).program)
    assert not check(run(backward=False).program)
    assert replace(run().plan, chunks=run(pipeline_settings={}).plan.chunks).ties.chunks == {}
