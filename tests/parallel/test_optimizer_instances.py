"""Several instances of Megatron-LM's distributed optimizer: reduced and gathered inside each, summed across (param_and_grad_buffer.py)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import GIB, job

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.parallel.groups import EXPERT_DATA, EXPERT_REPLICA, EXPERT_SHARD, REPLICA, SHARD, Groups, Mesh
from parsim.program.check import check
from parsim.run import step_of
from parsim.scenario.build import build
from parsim.scenario.precision import PRESETS
from parsim.study.search.bounds import Bounder
from parsim.theory.memory import distributed_optimizer_bytes

ORDER = ("tensor", "context", "data", "pipeline")
MEGATRON = {"profile": "megatron-core", "gradient_accumulation_fusion": False}
SMALL = {"base": "mixtral-8x7b", "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024}


def sharded(instances, data=8, **more):
    settings = {"strategy": "zero1", "optimizer_instances": instances}
    return job("gpt2", data=data, data_settings=settings, runtime=MEGATRON, precision=PRESETS["bf16-fp32grad"], **more)


def tree(instances, model="gpt2", **parallel):
    return {
        "model": model,
        "cluster": {"topology": "hgx-h100", "nodes": 2},
        "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 1, "precision": "bf16-fp32grad"},
        "parallel": {"data": {"strategy": "zero1", "optimizer_instances": instances}, **parallel},
    }


def moved(run, rank):
    found = Counter()
    for op in run.collectives(rank, "data"):
        found[op.collective.kind, op.collective.group] += op.collective.bytes
    return found


@pytest.mark.parametrize("instances", [2, 4, 8])
def test_reduced_inside_summed_across_gathered_inside(instances):
    """Rank 5 of eight: 4 P reduced and 2 P gathered in its instance, and 4 P I/N summed with the same place of every other."""
    run, plain = sharded(instances), sharded(1)
    assert check(run.program) == []
    inside = 8 // instances
    own = tuple(range(5 // inside * inside, 5 // inside * inside + inside))
    across = tuple(range(5 % inside, 8, inside))
    whole = moved(plain, 5)
    expected = {
        ("reduce_scatter", own): whole["reduce_scatter", tuple(range(8))],
        ("all_gather", own): whole["all_gather", tuple(range(8))],
        ("all_reduce", across): whole["reduce_scatter", tuple(range(8))] // inside,
    }
    found = {key: size for key, size in moved(run, 5).items() if size > 4}
    assert found == {key: pytest.approx(size, rel=1e-5) for key, size in expected.items() if len(key[1]) > 1}


def test_sums_follow_their_own_bucket_in_one_queue():
    """One bucket after the other: its reduction, then its sum, as in the one stream of start_grad_sync."""
    kinds = [op.collective.kind for op in sharded(2).collectives(0, "data") if op.collective.bytes > 4]
    reductions = [kind for kind in kinds if kind != "all_gather"]
    assert len(reductions) >= 4
    assert reductions == ["reduce_scatter", "all_reduce"] * (len(reductions) // 2)


def test_one_instance_is_all_replicas():
    groups = Groups(Mesh.of(ORDER, {"tensor": 2, "context": 1, "data": 8, "pipeline": 1}), 8)
    assert groups.members(SHARD, 3) == groups.members("data", 3)
    assert groups.members(REPLICA, 3) == (3,)


@pytest.mark.parametrize(("instances", "gib"), [(1, 46.2748), (2, 47.6771), (8, 56.0907)])
def test_states_of_eight_billion_parameters_on_64_ranks(instances, gib):
    """(6 + 12 I/N) P: Llama 3 8B with bf16 weights, fp32 gradients and Adam."""
    settings = {"strategy": "zero1", "optimizer_instances": instances}
    more = {"data_settings": settings, "runtime": MEGATRON, "precision": PRESETS["bf16-fp32grad"], "attention": "flash2"}
    program = job("llama-3-8b", data=64, one_per_stage=True, **more).program
    kept = {"parameters", "gradients", "optimizer"}
    states = sum(tensor.bytes for number in program.resident[0] if (tensor := program.tensors[0][number]).category in kept)
    assert distributed_optimizer_bytes(8_030_261_248, 64, instances) / GIB == pytest.approx(gib, abs=5e-5)
    assert states == distributed_optimizer_bytes(8_030_261_248, 64, instances)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4]), st.data())
def test_every_copy_of_an_expert_is_in_one_part_and_meets_its_equals(t, n, ep, data):
    stage = t * n
    copies = stage // ep if stage % ep == 0 else 0
    if not copies:
        return
    instances = data.draw(st.sampled_from([i for i in range(1, copies + 1) if copies % i == 0 and n % i == 0]))
    mesh = Mesh.of(ORDER, {"tensor": t, "context": 1, "data": n, "pipeline": 1})
    found = Groups(mesh, n // instances, (ep, 1, copies))
    for rank in range(stage):
        copies_of, inside = found.members(EXPERT_DATA, rank), found.members(EXPERT_SHARD, rank)
        assert len(inside) == copies // instances
        assert len(found.members(EXPERT_REPLICA, rank)) == instances
        assert set(inside) | {r for one in inside for r in found.members(EXPERT_REPLICA, one)} == set(copies_of)
        assert set(inside) & set(found.members(EXPERT_REPLICA, rank)) == {rank}


def test_experts_have_instances_of_their_own():
    """Sixteen ranks, ep = 4: four copies of every expert, in two instances of two; the others' states over eight ranks."""
    document = simulate(tree(2, model=SMALL, expert={"size": 4})).document()
    rows = {(row["kind"], row["group_size"]) for row in document["collectives"] if row["axis"] == "data" and row["bytes"] > 4}
    assert rows == {(kind, size) for kind in ("reduce_scatter", "all_gather") for size in (8, 2)} | {("all_reduce", 2)}


@pytest.mark.parametrize(("instances", "more"), [(2, {}), (4, {"tensor": {"size": 2}}), (2, {"expert": {"size": 4}})])
def test_folded_is_unfolded(instances, more):
    job_tree = tree(instances, model=SMALL if "expert" in more else "gpt2", **more)
    folded, whole = simulate(job_tree), simulate(job_tree, unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)


@pytest.mark.parametrize("instances", [2, 8, 16])
def test_no_simulation_beats_its_bounds(instances):
    built = build(load(tree(instances)))
    bounder = Bounder()
    step = step_of(built)
    assert bounder.tight(built) <= bounder.chained(built) <= step.step_time * (1 + 1e-9)
    assert bounder.bounds(built).peak_memory <= max(step.peaks.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ("parallel.data.optimizer_instances=3",),
            r"16 replicas \(data x context\) / 3 instances = 5.333 is not whole; use 1 or 2 or 4 or 8 or 16",
        ),
        (("parallel.data.strategy=ddp",), "ddp is no optimizer that is sharded alone"),
        (("software.profile=deepspeed",), "only Megatron-Core's distributed optimizer has instances, and the stack is deepspeed"),
        (("parallel.data.optimizer_instances=8", "parallel.expert.size=4"), "4 copies of every expert / 8 instances = 0.5 is not whole"),
    ],
)
def test_what_does_not_go_is_said(changes, message):
    with pytest.raises(ParsimError, match=message):
        simulate(tree(2, model=SMALL), *changes)


def test_the_stack_is_megatrons_unless_written():
    assert build(load(tree(2))).runtime.profile == "megatron-core"
    assert build(load(tree(1))).runtime.profile == "deepspeed"
