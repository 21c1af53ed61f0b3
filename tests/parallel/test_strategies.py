"""Data and tensor parallelism as lowered programs: when they communicate, how much, and how long it takes.

Timing oracles are four equal layers: DDP overlap as in Li et al. 2020 (arXiv 2006.15704), FSDP as in Zhao et al. 2023
(arXiv 2304.11277). Volumes are those of ZeRO (arXiv 1910.02054, section 7) and of Megatron-LM (arXiv 1909.08053, 2205.05198).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from jobs import FP32, MIB, job, layers, measured, model_of, tree

from parsim import theory
from parsim.kernel import Gemm
from parsim.model.catalogue import build_model
from parsim.model.plain import plain_model
from parsim.parallel.training import Recompute
from parsim.report.timeline import Timeline, breakdown
from parsim.scenario.precision import PRESETS

GPT2 = 124_439_808
LLAMA_7B = 6_738_415_616


def four_layers(wires, *, size=4, count=4, training=None, **data):
    """Four layers of tF = 1, tB = 2; a bucket and a unit is one layer of 1000 fp32 parameters; no optimizer step."""
    settings = {"bucket": (4000, "bytes"), "first_bucket": 4000} | data
    recipe = {"precision": FP32, "step": False} | (training or {})
    return job(layers(count), data=size, clock=measured, wires=wires, data_settings=settings, **recipe)


def sizes(program_job, axis="data", rank=0):
    """(kind, bytes) of the collectives of a rank, in order."""
    return [(op.collective.kind, op.collective.bytes) for op in program_job.collectives(rank, axis)]


def counts(program_job, axis="tensor"):
    """How often each (kind, bytes) occurs on rank 0."""
    return Counter(sizes(program_job, axis))


# -- DDP ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("all_reduce", "end", "exposed"), [(1, 9, 1), (2, 10, 2), (3, 14, 6)])
def test_ddp_hides_all_reduces_behind_backward(all_reduce, end, exposed):
    run = four_layers({"data": all_reduce})
    assert run.makespan - 4 == end == theory.ddp_backward_time(4, 2, all_reduce)
    assert breakdown(Timeline(run.trace), 0)["data_comm"] == exposed == theory.ddp_exposed_time(4, 2, all_reduce)


def test_ddp_without_overlap_reduces_after_backward():
    run = four_layers({"data": 1.0}, overlap_reduce=False)
    assert run.makespan == 4 + 8 + 4
    assert min(run.trace.start[op.index] for op in run.collectives()) == 12


def test_ddp_reduces_in_the_last_micro_batch_only():
    run = four_layers({"data": 1.0}, training={"micro_batches": 3})
    assert [op.instance for op in run.collectives()] == [2, 2, 2, 2]
    assert run.makespan == 3 * 12 + 1
    every = four_layers({"data": 1.0}, accumulate="every", training={"micro_batches": 3})
    assert [op.instance for op in every.collectives()] == [0] * 4 + [1] * 4 + [2] * 4


def test_the_first_iteration_of_ddp_has_one_bucket():
    run = four_layers({"data": 3.0}, training={"iteration": "first"})
    assert sizes(run) == [("all_reduce", 16_000)]
    assert run.makespan == 12 + 3


def test_a_complete_bucket_waits_for_the_one_before():
    """Buckets go in index order: the tied embedding of GPT-2 closes the last bucket, but is in backward's first gradient."""
    run = job("gpt2", data=2, precision=FP32)
    assert [op.name for op in run.collectives(axis="data")] == [f"all_reduce bucket {number}" for number in range(13)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", [9.0088, *[27.0381] * 11, 168.2725]),
        ("bert-base", [2.2529, *[27.0381] * 12, 90.9316]),
        ("resnet50", [7.8163, 30.043, 27.043, 25.0703, 7.5198]),
        ("mlp", [8.0078, 8.0078]),
    ],
)
def test_ddp_buckets_of_real_models(name, expected):
    """MiB of fp32 gradients, as torch.distributed's compute_bucket_assignment_by_size makes them."""
    mlp = {"input": {"shape": [1024], "dtype": "fp32"}, "layers": [{"linear": {"out": out}} for out in (1024, 1024, 2048)]}
    model = {
        "mlp": lambda: plain_model(mlp, "mlp"),
        "bert-base": lambda: build_model({"base": name, "task": "encoder"}, name=name, base_lookup=tree),
    }.get(name, lambda: model_of(name))()
    run = job(model, data=8, precision=FP32)
    buckets = run.plan.sharding(run.plan.chunks[0], "").buckets
    assert [round(4 * bucket.count / MIB, 4) for bucket in buckets] == expected
    assert [size for kind, size in sizes(run) if kind == "all_reduce"] == [4 * bucket.count for bucket in buckets]


def test_ddp_buckets_of_tinyllama():
    run = job("tinyllama-1.1b", data=2, precision=FP32)
    buckets = run.plan.sharding(run.plan.chunks[0], "").buckets
    assert (len(buckets), 4 * buckets[0].count / MIB) == (90, 250.0)


def test_ddp_bytes():
    """Ring all-reduce: each of 8 GPUs sends 2 (N-1)/N of 4 B per parameter."""
    run = job("gpt2", data=8, precision=FP32)
    assert run.bytes(axis="data", kind="all_reduce") * 2 * 7 // 8 == 871_078_656


def test_batch_norm_statistics_are_broadcast_before_forward():
    """One message of 53 layers' means, variances (fp32) and counters (int64); none while gradients accumulate."""
    run = job("resnet50", data=2, micro_batches=2)
    (broadcast,) = run.collectives(kind="broadcast")
    assert broadcast.collective.bytes == 2 * 4 * 26_560 + 8 * 53
    assert (broadcast.instance, run.trace.start[broadcast.index]) == (0, 0)
    every = job("resnet50", data=2, micro_batches=2, data_settings={"accumulate": "every"})
    assert [op.instance for op in every.collectives(kind="broadcast")] == [0, 1]


# -- ZeRO ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_zero_1_and_2_volume(stage, micro_batches):
    """Stage 1 reduces once a step, stage 2 (DeepSpeed) after every micro-batch; both gather the weights once."""
    run = job("gpt2", data=8, micro_batches=micro_batches, data_settings={"strategy": f"zero{stage}", "bucket": (1e7, "elements")})
    reductions = micro_batches if stage == 2 else 1
    buckets = run.plan.sharding(run.plan.chunks[0], "").buckets
    assert run.bytes(kind="reduce_scatter") == 2 * GPT2 * reductions
    assert run.bytes(kind="all_gather") == 2 * GPT2
    assert len(run.collectives(kind="reduce_scatter")) == len(buckets) * reductions
    assert len(run.collectives(kind="all_gather")) == len(buckets)
    # without accumulation the same as an all-reduce: 2 (N-1)/N x 2 B x P
    if micro_batches == 1:
        assert (run.bytes(kind="reduce_scatter") + run.bytes(kind="all_gather")) * 7 // 8 == 2 * 7 * 2 * GPT2 // 8


def test_zero_2_reduces_in_every_micro_batch():
    run = job("gpt2", data=2, micro_batches=3, data_settings={"strategy": "zero2"})
    assert [op.instance for op in run.collectives(kind="reduce_scatter")] == [0, 1, 2]


def test_zero_buckets_hold_the_gradients_that_fit():
    """DeepSpeed: a gradient that would overflow reduce_bucket_size elements begins the next bucket."""
    run = job("gpt2", data=2, data_settings={"strategy": "zero1", "bucket": (1e7, "elements")})
    buckets = run.plan.sharding(run.plan.chunks[0], "").buckets
    assert sum(bucket.count for bucket in buckets) == GPT2
    for bucket, following in pairwise(buckets):
        assert bucket.count + following.weights[0].count > 1e7
        assert bucket.count <= 1e7
    assert buckets[-1].weights[-1].name.endswith("word_embeddings.weight")  # alone it is larger than a bucket
    default = job("gpt2", data=2, data_settings={"strategy": "zero1"})
    assert sizes(default)[0] == ("reduce_scatter", 2 * GPT2)  # 5e8 elements hold everything


@pytest.mark.parametrize(("size", "cap"), [(2, 40e6), (64, 64e6)])
def test_megatron_buckets(size, cap):
    """Megatron-LM's distributed optimizer closes a bucket at max(40e6, 1e6 x data-parallel size) elements."""
    run = job("gpt2-large", data=size, data_settings={"strategy": "zero1"}, runtime={"profile": "megatron-core"})
    buckets = run.plan.sharding(run.plan.chunks[0], "").buckets
    assert sum(bucket.count for bucket in buckets) == 774_030_080
    for bucket in buckets[:-1]:
        assert bucket.count >= cap > bucket.count - bucket.weights[-1].count


def zero_1(gather, **data):
    wires = {("all_gather", "data"): gather, ("reduce_scatter", "data"): 1.0}
    return four_layers(wires, strategy="zero1", bucket=(1000, "elements"), training={"step": True}, **data)


def test_zero_1_gathers_after_the_step():
    assert zero_1(3.0).makespan == 4 + 8 + 1 + 4 * 3


@pytest.mark.parametrize("gather", [0.5, 1.0, 3.0])
def test_gathers_under_the_next_forward_hold_each_layer_up_until_its_weights_are_there(gather):
    run = zero_1(gather, overlap_gather=True)
    assert run.makespan == theory.fsdp_forward_time(4, 1, gather) + 8 + 1
    assert [op.name for op in run.collectives()][:4] == [f"all_gather weights bucket {number}" for number in (3, 2, 1, 0)]


def test_gathers_under_forward_belong_to_the_first_micro_batch():
    run = four_layers(
        {("all_gather", "data"): 3.0},
        strategy="zero1",
        bucket=(1000, "elements"),
        overlap_gather=True,
        training={"step": True, "micro_batches": 3},
    )
    assert len(run.collectives(kind="all_gather")) == 4
    assert run.makespan == (4 * 3 + 1) + 8 + 2 * 12


def test_interleaved_chunks_wait_for_their_own_gathers():
    settings = {"size": 2, "schedule": "interleaved", "virtual_stages": 2}
    common = {"strategy": "zero1", "bucket": (1000, "elements")}
    runs = [
        job(
            layers(4), pipeline=2, data=2, clock=measured, wires={("all_gather", "data"): gather}, micro_batches=2, precision=FP32,
            pipeline_settings=settings, data_settings=common | {"overlap_gather": overlap},
        )
        for gather, overlap in ((0.0, False), (10.0, False), (10.0, True))
    ]  # fmt: skip
    free, after, under = (run.makespan for run in runs)
    assert after == free + 2 * 10
    assert under == free + 18  # the second chunk would begin at 2, but its weights come at 20


# -- FSDP and ZeRO-3 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fsdp", "zero3"])
@pytest.mark.parametrize(("gather", "total"), [(0.5, 13.5), (1, 15), (1.5, 20), (2.5, 31)])
def test_fsdp_with_one_queue(strategy, gather, total):
    assert four_layers({"data": gather}, strategy=strategy, bucket=None).makespan == total


@pytest.mark.parametrize(("gather", "total"), [(1.5, 18), (2.5, 25.5)])
def test_fsdp_with_a_queue_for_reductions(gather, total):
    assert four_layers({"data": gather}, strategy="fsdp", queues="separate").makespan == total


@pytest.mark.parametrize("gather", [0.25, 0.5, 1, 1.5, 2.5])
@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_fsdp_forward_law(gather, count):
    """g + (L-1) max(tF, g) + tF."""
    run = four_layers({"data": gather}, strategy="fsdp", count=count, training={"backward": False})
    assert run.makespan == theory.fsdp_forward_time(count, 1, gather) == gather + (count - 1) * max(1, gather) + 1


def test_fsdp_issues_the_next_gather_before_computing():
    """AG 3, AG 2, B 3, RS 3, AG 1, B 2, RS 2, AG 0, B 1, ...: BACKWARD_PRE of FullyShardedDataParallel."""
    run = four_layers({"data": 0.5}, strategy="fsdp")
    words = {"all_gather": "AG", "reduce_scatter": "RS"}
    issued = [f"{words[op.collective.kind]}{op.name.split()[2]}" for op in run.collectives()]
    assert " ".join(issued) == "AG0 AG1 AG2 AG3 AG3 AG2 RS3 AG1 RS2 AG0 RS1 RS0"


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_fsdp_keeps_at_most_limit_units_gathered_in_forward(limit):
    run = four_layers({"data": 0.1}, strategy="fsdp", limit_gathers=limit, training={"backward": False})
    memory = run.memory()
    unit = 4096  # 1000 fp32 parameters, rounded to blocks of 512 B
    # those on their way or at work, and the buffer out of which the last one was copied
    assert memory.levels["buffers"].max() == (limit + 1) * unit
    flat = four_layers({"data": 0.1}, strategy="fsdp", fsdp_version=1, limit_gathers=limit, training={"backward": False})
    assert flat.memory().levels["buffers"].max() == limit * unit


def test_fsdp_without_resharding_does_not_gather_again():
    run = four_layers({"data": 0.5}, strategy="fsdp", reshard_after_forward=False)
    assert Counter(kind for kind, _ in sizes(run)) == {"all_gather": 4, "reduce_scatter": 4}
    assert run.makespan == 13


def test_fsdp_bytes():
    """Llama-7B in bf16 on 8 GPUs: each receives 3 (N-1)/N x 2 B x P in a step without accumulation."""
    run = job("llama-7b", data=8, sequence_length=1, data_settings={"strategy": "fsdp", "unit": "block"})
    received = run.bytes(axis="data", kind="all_gather") + run.bytes(axis="data", kind="reduce_scatter")
    assert received * 7 // 8 == 35_376_681_984
    # embedding and head in a root unit are gathered once: it stays from forward to backward
    rooted = job("llama-7b", data=8, sequence_length=1, data_settings={"strategy": "fsdp"})
    root = 2 * (2 * 32_000 * 4096 + 4096)
    assert rooted.bytes(axis="data", kind="all_gather") == 4 * LLAMA_7B - root
    assert rooted.bytes(axis="data", kind="reduce_scatter") == 2 * LLAMA_7B


def test_fsdp_gathers_what_the_layers_read():
    """MixedPrecision(param_dtype=bf16, reduce_dtype=fp32): half the bytes in gathers, whole ones in reductions."""
    run = job("gpt2", data=2, precision=PRESETS["amp-bf16"], data_settings={"strategy": "fsdp", "unit": "block"})
    assert run.bytes(axis="data", kind="all_gather") == 2 * 2 * GPT2
    assert run.bytes(axis="data", kind="reduce_scatter") == 4 * GPT2


@pytest.mark.parametrize(("accumulate", "reductions"), [("no_sync", 1), ("every", 3)])
def test_fsdp_accumulation(accumulate, reductions):
    run = four_layers({}, strategy="fsdp", accumulate=accumulate, training={"micro_batches": 3})
    found = Counter(kind for kind, _ in sizes(run))
    assert found == {"all_gather": 3 * 8, "reduce_scatter": 4 * reductions}
    whole, shard = 4096, 1024
    # a unit's whole gradients go when they have been joined in the buffer of the reduction, before the shard is there
    assert run.memory().levels["gradients"].max() == (4 * whole if accumulate == "no_sync" else whole + 4 * shard)


# -- DataParallel and parameter server ------------------------------------------------------------------------------------


def through_the_server(run, size):
    """Bytes into and out of rank 0: (n-1)/n of each gather's and scatter's total."""
    into = run.bytes(kind="gather") * (size - 1) // size
    out = run.bytes(kind="scatter") * (size - 1) // size
    return into, out


def test_parameter_server_volume():
    """Push and pull: (n-1) P e each way through the server's link, once per step."""
    run = job("gpt2", data=4, micro_batches=2, precision=FP32, data_settings={"strategy": "parameter-server"})
    assert through_the_server(run, 4) == (3 * 4 * GPT2, 3 * 4 * GPT2)


def test_data_parallel_volume():
    """torch.nn.DataParallel: weights out, gradients in and outputs both ways, in every micro-batch."""
    run = job("gpt2", data=4, precision=FP32, micro_batch=2, data_settings={"strategy": "torch-data-parallel"})
    outputs, inputs = 2 * 128 * 50_257 * 4, 2 * 128 * 8
    assert through_the_server(run, 4) == (3 * (4 * GPT2 + outputs), 3 * (4 * GPT2 + outputs + inputs))
    twice = job("gpt2", data=4, precision=FP32, micro_batch=2, micro_batches=2, data_settings={"strategy": "torch-data-parallel"})
    assert through_the_server(twice, 4) == tuple(2 * volume for volume in through_the_server(run, 4))


def test_data_parallel_overlaps_nothing():
    run = job("gpt2", data=4, precision=FP32, wires={"data": 1.0}, data_settings={"strategy": "torch-data-parallel"})
    alone = job("gpt2", precision=FP32)
    assert run.makespan == pytest.approx(alone.makespan + 5, rel=0.2)
    timeline = Timeline(run.trace)
    assert breakdown(timeline, 0)["data_comm"] == pytest.approx(5.0)


def test_only_the_first_gpu_of_data_parallel_steps():
    run = job("gpt2", data=4, precision=FP32, data_settings={"strategy": "torch-data-parallel"})
    timeline = Timeline(run.trace)
    assert breakdown(timeline, 0)["optimizer"] > 0
    assert all(breakdown(timeline, rank)["optimizer"] == 0 for rank in (1, 2, 3))


# -- tensor parallelism ----------------------------------------------------------------------------------------------------


def tensor(name="gpt2", size=2, **settings):
    return job(name, tensor=size, loss_kernel="vocab-parallel", tensor_settings=settings)


BSH = 128 * 768 * 2
"""b s h e of the GPT-2 jobs here [B]"""


def test_tensor_parallel_layers_all_reduce_twice_each_way():
    found = counts(tensor())
    embedding, head = 1, 1
    assert found["all_reduce", BSH] == 12 * (2 + 2) + embedding + head
    assert found["all_reduce", 4 * 128] == 3  # maximum, target's logit, sum of exponentials
    assert found["all_reduce", 4] == 1  # gradient norm
    assert sum(found.values()) == 12 * 4 + 2 + 3 + 1


def test_sequence_parallel_layers():
    """2 gathers and 2 scatters each way, and the saved input of both column linears gathered again for its weight gradient."""
    found = counts(tensor(sequence_parallel=True))
    assert found["all_gather", BSH] == 12 * (2 + 2 + 2) + 2 + 1  # head: input and saved input; embedding: its gradient
    assert found["reduce_scatter", BSH] == 12 * (2 + 2) + 1 + 1  # head's gradient; embedding
    assert not found["all_reduce", BSH]
    norms_and_row_biases = 2 * (12 * (2 * 2 * 768 + 2 * 768) + 2 * 768)
    assert found["all_reduce", norms_and_row_biases] == 1
    assert sum(found.values()) == 12 * 10 + 3 + 2 + 3 + 1 + 1


def test_sequence_parallel_moves_the_bytes_of_the_all_reduces_and_one_gather_more():
    plain, sequence = (tensor("llama-3.2-1b", sequence_parallel=on) for on in (False, True))

    def moved(run, kind, steps):
        return sum(op.collective.bytes for op in run.collectives(axis="tensor", kind=kind) if op.collective.bytes > 10_000) * steps

    again = sum(op.collective.bytes for op in sequence.collectives(kind="all_gather") if "saved input" in op.name)
    backward_of_embedding = 128 * 2048 * 2
    norms = 2 * sum(w.count for w in sequence.plan.weights(sequence.plan.chunks[0]) if len(w.parameter.shape) == 1)
    assert moved(sequence, "all_gather", 1) + moved(sequence, "reduce_scatter", 1) + 2 * norms == (
        moved(plain, "all_reduce", 2) + again + 2 * norms
    )
    assert again == (2 * 16 + 1) * backward_of_embedding
    assert moved(sequence, "all_reduce", 1) == norms


def test_full_recomputation_repeats_the_forward_collectives_of_layers():
    plain, again = tensor(), job("gpt2", tensor=2, loss_kernel="vocab-parallel", recompute=Recompute("full"))
    assert counts(again)["all_reduce", BSH] - counts(plain)["all_reduce", BSH] == 12 * 2


def weight_gradients(kernel):
    """Only weight gradients of linears take time."""
    return 2.0 if isinstance(kernel, Gemm) and kernel.weight_gradient else 0.0


@pytest.mark.parametrize(("all_reduce", "hidden"), [(1.0, 1.0), (2.0, 2.0), (5.0, 2.0)])
def test_gradient_all_reduces_hide_under_the_weight_gradient(all_reduce, hidden):
    """2 column linears per layer and the head: each hides min(AR, tW)."""
    common = {"loss_kernel": "vocab-parallel", "tensor": 2, "clock": weight_gradients, "wires": {"tensor": all_reduce}, "step": False}
    blocking, beside = (job("gpt2", tensor_settings={"overlap": overlap}, **common) for overlap in ("none", "backward"))
    collectives = 12 * 4 + 2 + 3
    assert blocking.makespan == (12 * 4 + 1) * 2 + collectives * all_reduce
    assert blocking.makespan - beside.makespan == pytest.approx((2 * 12 + 1) * hidden)


def freeze(operator):
    return replace(operator, trainable=False) if hasattr(operator, "trainable") else operator


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("overlap", ["none", "backward"])
def test_nothing_hides_the_all_reduce_of_a_frozen_linear(overlap, sequence_parallel):
    """It has no weight gradient, and what comes next needs the summed input gradient."""
    model = model_of("gpt2", 2)
    blocks = {block: replace(block, operators=tuple(freeze(o) for o in block.operators)) for block in dict.fromkeys(model.blocks)}
    model = replace(model, blocks=tuple(blocks[block] if block.kind == "layer" else block for block in model.blocks))
    chosen = {"overlap": overlap, "sequence_parallel": sequence_parallel}
    run = job(model, tensor=2, wires={"tensor": 1e-3}, step=False, tensor_settings=chosen)
    begin, end = run.trace.start, run.trace.end
    work = [(begin[op.index], end[op.index]) for op in run.trace.lane(0, "compute") if op.duration]
    sums = [op for op in run.collectives() if op.name.endswith(("query_key_value grad", "mlp_up grad"))]
    assert len(sums) == 24
    for op in sums:
        assert not [times for times in work if times[0] < end[op.index] and times[1] > begin[op.index]]
    assert len([op for op in run.collectives() if op.name.endswith("saved input")]) == sequence_parallel  # the head's
