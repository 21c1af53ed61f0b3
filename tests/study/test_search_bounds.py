"""Bounds never exceed what a simulation finds, and are near it where it matters."""

from __future__ import annotations

import sys
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parsim.errors import InputError, ParsimError
from parsim.program.pass_builder import Item
from parsim.program.program import Effect, Tensor
from parsim.run import step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.neighbours import Neighbours
from parsim.study.search.bounds import Bounder, closed
from parsim.study.search.chains import ends, levels, longest, walked
from parsim.study.search.lanes import after, moves

ROUNDING = 1 + 1e-9


def price(kind, axis, size):
    return size / 100.0


def check(built, step=None):
    """Bounds and the simulation, the first never above the second."""
    bounder = Bounder()
    cheap, tight, found = bounder.bounds(built), bounder.tight(built), step or step_of(built)
    peak, memory = max(found.peaks.values()), found.memory
    chained = bounder.chained(built)
    quick = closed(bounder.cache.costs(built))
    assert cheap.step_time == (0.0 if cheap.surely_full else quick)
    assert quick <= tight <= chained <= found.step_time * ROUNDING
    assert cheap.peak_memory <= peak
    assert (cheap.samples, cheap.gpus) == (built.training.global_batch, found.built.used_gpus)
    assert cheap.capacity == memory.capacity_bytes - memory.reserve_bytes
    return quick / found.step_time, tight / found.step_time, cheap.peak_memory / peak, chained / found.step_time


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_longest_chain_of_a_pass():
    """Compute 2 s, a 1 s collective beside 3 s of compute, 1 s of compute that waits for both: 6 s from the first item."""
    items = [
        Item("a", "compute", ("compute",), 2.0),
        Item("gather", "data_comm", ("data",), collective=("all_gather", "data", 100), needs=[0]),
        Item("b", "compute", ("compute",), 3.0),
        Item("c", "compute", ("compute",), 1.0, needs=[1]),
    ]
    assert longest(items, price, {}, arrival=0.0).compute == 6.0
    slow = [items[0], Item("gather", "data_comm", ("data",), collective=("all_gather", "data", 500), needs=[0]), *items[2:]]
    assert longest(slow, price, {}, arrival=0.0).compute == 8.0  # 2 + 5 + 1
    assert longest(items, price, {}, arrival=0.0, speed=0.5).compute == 12.0  # kernels take twice as long, the collective does not
    assert longest(items, price, {"data": 4.0}, arrival=-inf).compute == 6.0  # the queue is free at 4: 4 + 1 + 1
    assert longest(items, price, {}, arrival=0.0).busy == 6.0


def test_a_pass_is_a_matrix_of_chains():
    """A gather of 2 s ahead of 3 s of compute whose 1 s reduction nothing waits for, as max-plus algebra: one, then two micro-batches.

    From the compute lane: 2 + 3 = 5 s to its own end, 6 s to the data lane's. The message is waited for by compute only: 3 and 4 s. A
    data lane that is busy until t holds the gather up: t + 2 + 3.
    """
    items = [
        Item("gather", "data_comm", ("data",), collective=("all_gather", "shard", 200), tails=["compute"]),
        Item("a", "compute", ("compute",), 3.0, needs=[0]),
        Item("reduce", "data_comm", ("data",), collective=("reduce_scatter", "shard", 100), needs=[1]),
    ]
    found = {lane: dict(sources) for lane, sources in moves(items, price, 1.0)}
    assert found == {
        "compute": {"compute": 5.0, "data": 5.0, "arrival": 3.0},
        "data": {"compute": 6.0, "data": 6.0, "arrival": 4.0},
    }
    once = after({"compute": 0.0}, moves(items, price, 1.0), 4.0)
    assert once == {"compute": 7.0, "data": 8.0}  # the message comes at 4, the weights are there at 2
    assert after(once, moves(items, price, 1.0), -inf) == {"compute": 13.0, "data": 14.0}  # the gather waits for the reduction: 8 + 2 + 3


def test_gathers_of_a_sharded_pass_are_chained_as_they_are_simulated():
    """Where nothing slows anything beside it, the chain is the step to 0.05 %, alone, in a pipeline and with tensor parallelism."""
    for words in (
        ("strategy=fsdp",),
        ("strategy=fsdp", "pipeline=2"),
        ("strategy=fsdp", "pipeline=2", "tensor=2"),
        ("strategy=zero3", "pipeline=4"),
    ):
        keys = [f"parallel.data.{word}" if "strategy" in word else f"parallel.{word.replace('=', '.size=')}" for word in words]
        chained = check(build(load("llama-7b-zero3-8x-a100", "cluster.interference=off", *keys)))[3]
        assert chained >= 0.9995, words


@pytest.mark.parametrize(
    ("overlap", "recipe"), [("none", "delayed"), ("backward", "current"), ("full", "rowwise"), ("async", "delayed"), ("full", "current")]
)
def test_bounds_hold_for_overlapped_products_and_fp8_recipes(overlap, recipe):
    tree = {
        "model": "llama-3-8b",
        "cluster": {"topology": "hgx-h100"},
        "training": {"sequence_length": 4096, "micro_batch": 1, "global_batch": 8, "precision": {"preset": "fp8", "recipe": recipe}},
        "parallel": {
            "tensor": {"size": 4, "sequence_parallel": True, "overlap": overlap}, "pipeline": {"size": 2}, "data": {"strategy": "zero1"}
        },
        "software": {"profile": "megatron-core"},
    }  # fmt: skip
    tight = check(build(load(tree)))[1]
    assert tight > 0.9


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
@pytest.mark.parametrize("objective", ["dpo", "kto", "grpo"])
def test_bounds_hold_for_passes_without_gradients(objective, algorithm):
    """Whose blocks hand their outputs on within the slot; with tensor parallelism, whose single blocks receive scattered messages."""
    machine = [f"cluster.collectives.algorithm={algorithm}", "parallel.data.strategy=zero2", "software.profile=megatron-2021"]
    small = ["model={base: phi-2, layers: 4, hidden: 256, heads: 8, mlp: 512, vocabulary: 2048}", "training.sequence_length=64"]
    job = ["training.recompute=selective", f"training.objective={objective}", "parallel.tensor={size: 4, sequence_parallel: false}"]
    check(build(load("llama-7b-zero2-8x-a100", *small, *machine, *job)))


@pytest.mark.parametrize(
    ("profile", "parallel", "tied"),
    [
        ("llm-foundry-2023", {"data": {"strategy": "zero1"}}, True),  # gradients do not wait for the trainer's metrics of the last logits
        (
            "deepspeed",
            {"tensor": {"size": 2}, "pipeline": {"size": 2}, "data": {"strategy": "zero1"}},
            True,
        ),  # a pair sends and shares a table
        ("megatron-core", {"pipeline": {"size": 4, "schedule": "zb-h2", "post_validation": True}}, False),
    ],
)
def test_what_ranks_and_queues_have_is_counted_once(profile, parallel, tied):
    model = {"base": "gpt2", "layers": 8, "hidden": 256, "heads": 8, "vocabulary": 2048, "tied_embeddings": tied}
    training = {"sequence_length": 256, "micro_batch": 3, "gradient_accumulation": 8 if "post_validation" in str(parallel) else 1}
    cluster = {"topology": "hgx-h100", "gpus": 8 if "tensor" in parallel else 4}
    check(build(load({"model": model, "cluster": cluster, "training": training, "parallel": parallel, "software": {"profile": profile}})))


def test_stages_that_are_alike_have_groups_of_their_own():
    """The second and the third pipeline rank hold the same, and are measured once."""
    model = {"base": "qwen3-30b-a3b", "layers": 6, "hidden": 256, "heads": 8, "mlp": 512, "kv_heads": 4, "head_dim": 32, "vocabulary": 2048}
    pipeline = {"size": 3, "schedule": "v-min", "virtual_stages": 2, "split": [1] * 6}
    parallel = {"tensor": {"size": 4, "sequence_parallel": True}, "expert": {"size": 2, "tensor": 4}, "pipeline": pipeline}
    tree = {
        "model": model | {"experts": {"count": 8, "top_k": 2, "mlp": 128}},
        "cluster": {"topology": "dgx-1-v100", "nodes": 3},
        "training": {"sequence_length": 128, "micro_batch": 3, "gradient_accumulation": 8, "precision": "fp32"},
        "parallel": parallel | {"data": {"strategy": "ddp"}},
    }
    check(build(load(tree)))


def test_a_stage_that_lies_on_the_rank_of_the_next_sends_nothing():
    """Profiled stages of a V, whose messages have a measured duration."""
    stage = {
        "forward": "2 ms",
        "backward_input": "2 ms",
        "backward_weight": "2 ms",
        "activation": "10 MiB",
        "parameters": 1000,
        "send": "0.5 ms",
    }
    tree = {"model": {"stages": [stage] * 4}, "cluster": "2x a100-80gb", "training": {"global_batch": 8, "micro_batch": 1}}
    check(build(load(tree | {"parallel": {"pipeline": {"size": 2, "schedule": "v-min", "virtual_stages": 2}}})))


@pytest.mark.parametrize("schedule", ["v-min", "zb-v"])
def test_where_stages_turn_in_a_v_nothing_is_received(schedule):
    """Two stages of one rank hand over without a message, and no tensor rank gathers its parts."""
    model = "model={base: llama-3-8b, layers: 4, hidden: 256, heads: 8, kv_heads: 4, mlp: 512, vocabulary: 2048}"
    split = f"parallel={{tensor: {{size: 2}}, pipeline: {{size: 2, schedule: {schedule}, virtual_stages: 2}}, data: {{strategy: zero1}}}}"
    sizes = ("training.sequence_length=64", "training.global_batch=4", "training.micro_batch=1", "software.profile=megatron-2021")
    check(build(load("llama-7b-zero1-8x-a100", model, split, *sizes)))


def test_a_reference_model_that_is_sharded_hands_no_buffers_around():
    """DistributedDataParallel would: the biases of its routers."""
    few = {"count": 8, "groups": 0, "groups_kept": 0, "mlp": 128, "shared": 128, "dense_layers": 0}
    model = {"base": "deepseek-v3", "layers": 3, "hidden": 256, "heads": 4, "mlp": 512, "vocabulary": 1024, "experts": few}
    training = {"sequence_length": 64, "micro_batch": 2, "gradient_accumulation": 1, "objective": "dpo"}
    parallel = {"data": {"strategy": "zero3"}}
    tree = {
        "model": model,
        "cluster": {"topology": "hgx-h100"},
        "training": training,
        "parallel": parallel,
        "software": {"profile": "megatron-core"},
    }
    check(build(load(tree)))


def test_memory_that_is_surely_live():
    """A gathered buffer counts from the compute that waits for it; what a reduction frees is gone with what it waits for."""
    tensors = [Tensor("saved", 1024, "activations"), Tensor("whole", 4096, "buffers"), Tensor("grad", 2000, "gradients")]
    items = [
        Item("gather", "data_comm", ("data",), collective=("all_gather", "data", 8), effects=[Effect(0.0, 1, allocate=True)]),
        Item("a", "compute", ("compute",), 1.0, effects=[Effect(0.0, 0, allocate=True)]),
        Item("b", "compute", ("compute",), 1.0, needs=[0], effects=[Effect(0.0, 2, allocate=True), Effect(1.0, 1, allocate=False)]),
        Item(
            "reduce", "data_comm", ("data",), collective=("reduce_scatter", "data", 8), needs=[2], effects=[Effect(inf, 2, allocate=False)]
        ),
    ]
    found = levels(items, tensors)
    assert (found.high, found.net) == (1024 + 4096 + 2048, 1024)  # 2000 B take 2048
    assert levels(items, tensors, without=("gradients",)).high == 1024 + 4096


@pytest.mark.parametrize(
    ("name", "virtual", "makespan"),
    [("gpipe", 1, 33.0), ("1f1b", 1, 33.0), ("interleaved", 2, 28.5), ("interleaved", 4, 26.25), ("naive", 1, 96.0)],
)
def test_a_walked_schedule_has_the_published_makespan(name, virtual, makespan):
    """p = 4, m = 8, forward 1, backward 2 (Narayanan et al., arXiv 2104.04473)."""
    order = walked(name, 4, 8, virtual)
    seconds = [{"F": 1.0, "B": 2.0}[kind] / virtual for kind, _, _ in order.names]
    lanes, _ = ends(order, 4, seconds, [0.0] * len(seconds))
    assert max(lanes) == makespan


def test_a_walked_schedule_waits_for_messages():
    """1F1B, c = 0.5: 41 s, a window of p micro-batches."""
    order = walked("1f1b", 4, 8, 1)
    lanes, _ = ends(order, 4, [{"F": 1.0, "B": 2.0}[kind] for kind, _, _ in order.names], [0.5] * len(order.names))
    assert max(lanes) == 41.0


# -- against simulations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cheap", "tight", "memory", "chained"),
    [
        ("pipeline-unit-gpipe", 1.0, 1.0, 0.98, 1.0),
        ("pipeline-unit-1f1b", 1.0, 1.0, 0.98, 1.0),
        ("pipeline-unit-interleaved", 1.0, 1.0, 0.98, 1.0),
        ("pipeline-unit-naive", 0.34, 1.0, 0.98, 1.0),
        ("pipeline-unit-pipedream", 0.999, 0.999, 0.98, 0.999),
        ("custom-schedule", 0.92, 1.0, 0.99, 1.0),
        ("mlp-1x-a100", 1.0, 1.0, 0.94, 1.0),
        # gradients leave in every micro-batch, as with ZeRO-2: compute beside them is slower, and beside the copies of sharded strategies
        ("llama-7b-ddp-8x-a100", 0.93, 0.93, 0.98, 0.96),
        ("llama-7b-ddp-8x-a100 parallel.data.accumulate=no_sync", 0.99, 0.99, 0.98, 0.994),
        ("llama-7b-zero1-8x-a100", 0.99, 0.99, 0.90, 0.993),
        ("llama-7b-zero2-8x-a100", 0.92, 0.92, 0.93, 0.961),
        ("llama-7b-zero3-8x-a100", 0.88, 0.88, 0.77, 0.897),
        ("llama-13b-fsdp-16x-a100", 0.92, 0.92, 0.67, 0.97),
        ("gpt2-xl-gpipe-4x-v100", 0.99, 0.997, 0.86, 0.999),
        ("gpt2-ddp-straggler", 0.99, 0.99, 0.92, 0.996),
        ("resnet50-ddp-8x-v100", 0.99, 0.99, 0.87, 0.997),
        ("llama-7b-lora-1x-rtx-4090", 0.99, 0.99, 0.97, 1.0),
        ("llama-7b-zero3-offload-2x-rtx-3090", 0.5, 0.5, 0.6, 0.907),
        ("bert-torch-dp-8x-v100-pcie", 0.05, 0.05, 0.7, 0.05),
    ],
)
def test_shipped_scenarios_are_bounded_tightly(name, cheap, tight, memory, chained):
    found = check(build(load(*name.split())))
    assert all(value >= least * (1 - 1e-8) for value, least in zip(found, (cheap, tight, memory, chained), strict=True)), found


def test_a_pipeline_of_the_paper_is_bounded_within_two_percent():
    """Korthikanti et al. 2022, 175B on 64 A100: 8 tensor x 8 pipeline ranks, 3 chunks each."""
    cheap, tight, memory, chained = check(build(load("gpt3-175b-64x-a100", "training.global_batch=16")))
    assert cheap > 0.97
    assert tight > 0.98
    assert chained > 0.98
    assert memory > 0.99


SECTIONS = {
    "interference": st.sampled_from(["off", "simple", "full"]),
    "model": st.sampled_from(["gpt2", "llama-3.2-1b", "bert-base", "tinyllama-1.1b"]),
    "layers": st.integers(1, 6),
    "topology": st.sampled_from(["dgx-a100-80gb", "hgx-h100", "8x rtx-3090"]),
    "training": st.fixed_dictionaries(
        {
            "sequence_length": st.sampled_from([128, 256]),
            "micro_batch": st.integers(1, 3),
            "gradient_accumulation": st.integers(1, 8),
            "recompute": st.sampled_from(["none", "full", "selective", {"every": 2}, {"blocks": 1}]),
            "optimizer": st.fixed_dictionaries({"name": st.just("adamw"), "clip_gradients": st.booleans()}),
        },
        optional={
            "backward": st.just(False),
            "iteration": st.just("first"),
            "finetune": st.sampled_from([{"method": "lora"}, {"method": "freeze"}]),
            "mean_sequence_length": st.just(100),
            "offload": st.sampled_from([{"activations": "cpu"}, {"optimizer": "cpu"}]),
        },
    ),
    "tensor": st.fixed_dictionaries(
        {"size": st.sampled_from([1, 1, 2, 4]), "sequence_parallel": st.booleans(), "overlap": st.sampled_from(["none", "backward"])}
    ),
    "context": st.fixed_dictionaries({"size": st.sampled_from([1, 1, 2]), "method": st.sampled_from(["ring", "all-gather", "ulysses"])}),
    "pipeline": st.fixed_dictionaries(
        {
            "size": st.sampled_from([1, 2, 4]),
            "schedule": st.sampled_from(["1f1b", "gpipe", "interleaved", "naive", "pipedream", "zb-h1", "zb-h2", "interleaved-zb"]),
            "virtual_stages": st.sampled_from([1, 1, 2]),
            "overlap_sends": st.booleans(),
        }
    ),
    "data": st.fixed_dictionaries(
        {
            "strategy": st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"]),
            "overlap_reduce": st.booleans(),
            "overlap_gather": st.booleans(),
            "accumulate": st.sampled_from(["no_sync", "every"]),
            "reshard_after_forward": st.booleans(),
        }
    ),
    "profile": st.sampled_from(["auto", "pytorch-2", "deepspeed", "megatron-core", "megatron-2021"]),
    "slow": st.sampled_from([[], [], [{"rank": 0, "speed": 0.7}], [{"rank": 1, "speed": 0.8}]]),
}


MIXTURE = {"base": "mixtral-8x7b", "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024}
SPREAD = {
    "interference": st.sampled_from(["off", "simple", "full"]),
    "layers": st.integers(1, 5),
    "nodes": st.integers(1, 2),
    "training": st.fixed_dictionaries(
        {
            "sequence_length": st.sampled_from([128, 1024]),
            "micro_batch": st.integers(1, 2),
            "gradient_accumulation": st.integers(1, 4),
            "recompute": st.sampled_from(["none", "full", {"blocks": 1}]),
        },
        optional={"finetune": st.just({"method": "lora"}), "offload": st.just({"optimizer": "cpu"})},
    ),
    "tensor": st.sampled_from([1, 2]),
    "pipeline": st.sampled_from([1, 1, 2]),
    "expert": st.fixed_dictionaries(
        {
            "size": st.sampled_from([2, 4, 8]), "tensor": st.sampled_from([1, 1, 2]), "imbalance": st.sampled_from([1.0, 1.5]),
        },
        optional={"capacity_factor": st.just(1.25), "dispatcher": st.sampled_from(["allgather", "hybridep"])},
    ),
    "data": st.fixed_dictionaries(
        {
            "strategy": st.sampled_from(["ddp", "zero1", "zero2", "fsdp", "fsdp", "hsdp"]),
            "accumulate": st.sampled_from(["auto", "no_sync", "every"]),
            "queues": st.sampled_from(["shared", "separate"]),
            "reshard_after_forward": st.booleans(),
            "prefetch": st.integers(0, 2),
            "limit_gathers": st.integers(1, 3),
        }
    ),
    "profile": st.sampled_from(["auto", "torchtitan", "deepspeed", "megatron-core"]),
}  # fmt: skip


@settings(max_examples=25)
@given(st.fixed_dictionaries(SPREAD))
def test_no_simulation_with_spread_experts_beats_its_bounds(case):
    tree = {
        "model": MIXTURE | {"layers": case["layers"]},
        "cluster": {"topology": "hgx-h100", "nodes": case["nodes"], "interference": case["interference"]},
        "training": case["training"],
        "parallel": {
            "tensor": {"size": case["tensor"], "sequence_parallel": case["tensor"] > 1}, "pipeline": {"size": case["pipeline"]},
            "expert": case["expert"], "data": case["data"],
        },
        "software": {"profile": case["profile"]},
    }  # fmt: skip
    try:
        built = build(load(tree))
        Bounder().bounds(built)
        step = step_of(built)
    except (InputError, ParsimError):
        assume(False)
    check(built, step)


@settings(max_examples=40)
@given(st.fixed_dictionaries(SECTIONS))
def test_no_simulation_beats_its_bounds(case):
    tree = {
        "model": {"base": case["model"], "layers": case["layers"]},
        "cluster": {"topology": case["topology"], "interference": case["interference"]},
        "training": case["training"],
        "parallel": {axis: case[axis] for axis in ("tensor", "context", "pipeline", "data")},
        "software": {"profile": case["profile"]},
        "variability": {"slow": case["slow"]},
    }
    try:
        built = build(load(tree))
        Bounder().bounds(built)
        step = step_of(built)
        assume(step.memory)
    except (InputError, ParsimError):
        assume(False)
    check(built, step)


# -- work -------------------------------------------------------------------------------------------------------------


def calls_of_a_known_candidate(layers: int, model: str, parallel: dict[str, object]) -> int:
    """Python calls of the bounds of a candidate whose blocks and stages are known from its neighbours."""
    training = {"sequence_length": 1024, "global_batch": 64, "micro_batch": 1}
    tree = {"name": "deep", "model": {"base": model, "layers": layers}, "cluster": {"topology": "hgx-h100", "nodes": 2}}
    neighbours, bounder = Neighbours(load({**tree, "training": training, "parallel": parallel})), Bounder()
    bounder.bounds(neighbours.built({"training.micro_batch": 1}))
    again, calls = neighbours.built({"training.micro_batch": 1}), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        bounder.bounds(again)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("model", "parallel"),
    [
        ("llama-2-7b", {"data": {"strategy": "zero1"}}),
        ("gpt2", {"pipeline": {"size": 4}, "data": {"strategy": "ddp"}}),
        ("mixtral-8x7b", {"tensor": {"size": 2, "sequence_parallel": True}, "expert": {"size": 8}, "data": {"strategy": "zero1"}}),
        ("deepseek-v2-lite", {"expert": {"size": 8}, "data": {"strategy": "fsdp"}}),
    ],
)
def test_layers_cost_a_search_nothing(model, parallel):
    """What equal layers share is asked once: thousands of candidates would ask every one of a hundred layers again."""
    few, many = (calls_of_a_known_candidate(layers, model, parallel) for layers in (24, 96))
    assert many <= few + 24
