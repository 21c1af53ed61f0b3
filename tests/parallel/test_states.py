"""Model states as the ledger of a lowered step sees them: bytes per parameter, and what each strategy shards.

ZeRO (arXiv 1910.02054, figure 1 and section 5); Megatron-LM's distributed optimizer (docs/source/api-guide/dist_optimizer.md);
8-bit states (arXiv 2110.02861), Adafactor (arXiv 1804.04235), Lion (arXiv 2302.06675).
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from jobs import FP32, GIB, job, model_of

from parsim.model.plain import plain_model
from parsim.parallel.optimizer import states, step_kernels
from parsim.parallel.training import Optimizer
from parsim.scenario.precision import PRESETS

STATES = ("parameters", "gradients", "optimizer")
BF16, FP32_GRADIENTS = PRESETS["bf16"], PRESETS["bf16-fp32grad"]
MEGATRON = {"profile": "megatron-core"}


def linear(inputs=1024, outputs=2048):
    """One weight of inputs x outputs."""
    layers = [{"linear": {"out": outputs, "bias": False}}]
    return plain_model({"input": {"shape": [inputs], "dtype": "fp32"}, "layers": layers}, "linear")


def at_step(run, rank=0):
    """Bytes by category when the first optimizer kernel is about to run: all states are there, nothing else is."""
    memory = run.memory(rank)
    ops = run.program.ops
    first = next(row for row, op in enumerate(memory.op.tolist()) if op >= 0 and ops[op].kind == "optimizer")
    return memory.composition(first - 1)


def states_of(run, rank=0):
    """Bytes of all states in that moment, without the allocator's rounding."""
    memory = run.memory(rank)
    first = next(row for row, op in enumerate(memory.op.tolist()) if op >= 0 and run.program.ops[op].kind == "optimizer")
    return sum(tensor.bytes for tensor, *_ in memory.live_at(first - 1) if tensor.category in STATES)


# -- bytes per parameter --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "optimizer", "expected"),
    [
        ("fp32", "sgd", (4, 4, 0)),
        ("fp32", "momentum", (4, 4, 4)),
        ("fp32", "adam", (4, 4, 8)),
        ("fp32", "adamw", (4, 4, 8)),
        ("tf32", "adamw", (4, 4, 8)),
        ("amp-bf16", "adamw", (4 + 2, 4, 8)),
        ("amp-fp16", "adamw", (4 + 2, 4, 8)),
        ("fp16", "adamw", (2, 2, 4 + 8)),
        ("bf16", "adamw", (2, 2, 4 + 8)),
        ("bf16-fp32grad", "adamw", (2, 4, 4 + 8)),
        ("fp16-fp32grad", "adamw", (2, 4, 4 + 8)),
        ("pure-bf16", "adamw", (2, 2, 4)),
        ("fp8", "adamw", (2 + 1, 4, 4 + 8)),
        ("fp32", "lion", (4, 4, 4)),
        ("bf16", "lion", (2, 2, 4 + 4)),
        ("bf16", "sgd", (2, 2, 4)),
        ("fp32", "adam-8bit", (4, 4, 2 + Fraction(8, 256))),
        ("bf16", "adam-8bit", (2, 2, 4 + 2 + Fraction(8, 256))),
        ("fp32", "adam-4bit", (4, 4, 1 + Fraction(8, 128))),
        ("bf16", "adam-4bit", (2, 2, 4 + 1 + Fraction(8, 128))),
        ("bf16", "adam-mini", (2, 2, 4 + 4)),
        ("bf16", "lamb", (2, 2, 4 + 8)),
        ("fp32", "adafactor", (4, 4, Fraction(4 * (1024 + 2048), 1024 * 2048))),
        ("bf16", "adafactor", (2, 2, 4 + Fraction(4 * (1024 + 2048), 1024 * 2048))),
    ],
)
def test_bytes_per_parameter(precision, optimizer, expected):
    run = job(linear(), precision=PRESETS[precision], optimizer=Optimizer(optimizer))
    found = at_step(run)
    assert tuple(Fraction(found[category], 1024 * 2048) for category in STATES) == expected


def test_small_tensors_of_8_bit_adam_stay_fp32():
    precision, optimizer = FP32, Optimizer("adam-8bit")
    assert sum(state.bytes for state in states(optimizer, precision, (4095,), 4095)) == 8 * 4095
    assert sum(state.bytes for state in states(optimizer, precision, (4096,), 4096)) == 2 * 4096 + 8 * 16
    assert sum(state.bytes for state in states(optimizer, precision, (4097,), 4097)) == 2 * 4097 + 8 * 17  # a block may be part full


def test_two_elements_of_4_bit_adam_share_a_byte():
    precision, optimizer = FP32, Optimizer("adam-4bit")
    assert sum(state.bytes for state in states(optimizer, precision, (4095,), 4095)) == 8 * 4095
    assert sum(state.bytes for state in states(optimizer, precision, (4097,), 4097)) == 2 * 2049 + 8 * 33


def test_lamb_moves_twelve_elements_where_adam_moves_seven():
    """In fp32: apex's multi_tensor_lamb in three passes, FusedAdam in one."""
    (adam,), (lamb,) = (step_kernels(Optimizer(name, "fused", clip_gradients=False), FP32, 1000, 8000, 1) for name in ("adam", "lamb"))
    assert (adam.bytes, lamb.bytes) == (7 * 4000, 12 * 4000)


def test_adafactor_keeps_whole_second_moments_of_vectors():
    assert [state.bytes for state in states(Optimizer("adafactor"), FP32, (768,), 768)] == [4 * 768]


def test_autocast_copies_what_matrix_products_read():
    """llama-2-7b: not the embedding, which only looks rows up, nor the norms; GPT-2's embedding is its head's weight too."""
    precision = PRESETS["amp-bf16"]
    llama = job("llama-2-7b", sequence_length=1, precision=precision)
    weights, norms = 6_738_415_616, 65 * 4096
    assert at_step(llama)["parameters"] == 4 * weights + 2 * (weights - norms - 32_000 * 4096)
    gpt2 = job("gpt2", sequence_length=1, precision=precision)
    matrices = sum(w.count for w in gpt2.plan.weights(gpt2.plan.chunks[0]) if len(w.parameter.shape) == 2)
    assert at_step(gpt2)["parameters"] == 4 * 124_439_808 + 2 * (matrices - 1024 * 768)


def test_gpt2_with_adam_in_fp32():
    run = job("gpt2", precision=FP32)
    assert states_of(run) == 1_991_036_928 == 16 * 124_439_808


# -- sharding ---------------------------------------------------------------------------------------------------------------


def sharded(model, size, strategy, precision=BF16, **options):
    """One rank of `size` data-parallel ranks."""
    return job(model, data=size, precision=precision, data_settings={"strategy": strategy}, one_per_stage=True, **options)


@pytest.mark.parametrize(("strategy", "gigabytes"), [("ddp", 120), ("zero1", 31.40625), ("zero2", 16.640625), ("zero3", 1.875)])
def test_zero_paper(strategy, gigabytes):
    """7.5e9 parameters on 64 GPUs, K = 12: figure 1 of the ZeRO paper (120, 31.4, 16.6, 1.9 GB)."""
    assert states_of(sharded(linear(75_000, 100_000), 64, strategy)) == gigabytes * 1e9


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("llama-7b", 8, (34.516, 23.534, 12.551)),
        ("llama-7b", 64, (26.279, 13.924, 1.569)),
        ("llama-13b", 8, (66.671, 45.457, 24.244)),
        ("llama-3-8b", 8, (41.133, 28.045, 14.958)),
        ("llama-2-70b", 8, (353.317, 240.898, 128.479)),
        ("llama-2-70b", 64, (269.00, 142.53, 16.06)),
    ],
)
def test_zero_on_llama(name, size, expected):
    """GiB per GPU of stages 1, 2, 3: 4P + 12P/N, 2P + 14P/N, 16P/N."""
    for strategy, gibibytes in zip(("zero1", "zero2", "zero3"), expected, strict=True):
        digits = 2 if name == "llama-2-70b" and size == 64 else 3
        assert round(states_of(sharded(name, size, strategy, sequence_length=1)) / GIB, digits) == gibibytes


def test_states_never_grow_with_the_stage():
    found = [states_of(sharded("gpt2", 4, strategy)) for strategy in ("ddp", "zero1", "zero2", "zero3")]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp"])
def test_the_shards_of_all_ranks_make_a_whole(strategy):
    """Sum over ranks of what is sharded = KP, up to padding each unit to a multiple of N."""
    size, parameters = 6, 124_439_808
    run = job("gpt2", data=size, precision=FP32, sequence_length=1, data_settings={"strategy": strategy})
    total = sum(at_step(run, rank)["optimizer"] for rank in range(size))
    units = 14
    assert 8 * parameters <= total <= 8 * (parameters + size * units) + size * units * 2 * 512


def test_a_shard_is_padded_to_whole_elements():
    run = job(linear(3, 5), data=4, precision=FP32, data_settings={"strategy": "zero1"})
    assert run.plan.sharding(run.plan.chunks[0], "").shard == 4


@pytest.mark.parametrize(
    ("name", "size", "expected"), [("llama-7b", 8, 6_738_415_616), ("llama-2-70b", 64, 68_976_648_192), ("gpt2", 1, 124_439_808)]
)
def test_megatron_distributed_optimizer(name, size, expected):
    """(6 + 12/N) P; a single replica is Megatron's plain 18 P."""
    run = sharded(name, size, "zero1", FP32_GRADIENTS, sequence_length=1, runtime=MEGATRON)
    assert states_of(run) == pytest.approx((6 + 12 / size) * expected, rel=1e-5)
    if name == "llama-2-70b":
        assert states_of(run) == pytest.approx(426_793_010_688, rel=1e-6)


def test_megatron_keeps_gradients_in_one_buffer_from_the_start():
    """18 P for plain data parallelism, without a second copy in buckets."""
    run = sharded("gpt2", 4, "ddp", FP32_GRADIENTS, runtime=MEGATRON)
    assert states_of(run) == pytest.approx(18 * 124_439_808, rel=1e-5)
    assert run.memory().resident["gradients"] == pytest.approx(4 * 124_439_808, rel=1e-5)
    # Transformer Engine's placeholders: one 16-bit tensor per shape of a layer's weights (QKV, projection, fc1, fc2)
    assert run.memory().resident["buffers"] == 2 * (3 + 1 + 4 + 4) * 768**2


def test_tensor_and_pipeline_parallel_shards():
    """Llama-2-70B, t = 8, p = 4, N = 16: on average P/32 x (6 + 12/16) = 13.5505 GiB, plus norms that t does not shard."""
    run = job(
        "llama-2-70b", tensor=8, pipeline=4, data=16, precision=FP32_GRADIENTS, runtime=MEGATRON, sequence_length=8, micro_batches=4,
        data_settings={"strategy": "zero1"}, one_per_stage=True,
    )  # fmt: skip
    found = [states_of(run, rank) for rank in run.lowering.program.tensors]
    norms, padding = 161 * 8192, 2 * 768 * 8192  # 32,000 tokens are padded to a multiple of 128 x 8
    exact = (68_976_648_192 - norms + padding) / 32 * 6.75 + norms / 4 * 6.75
    assert sum(found) / 4 == pytest.approx(exact, rel=1e-7)
    assert exact / GIB == pytest.approx(13.5505, rel=1e-3)
    assert found[0] > found[1] == found[2] < found[3]  # embedding and head


# -- what comes on top --------------------------------------------------------------------------------------------------------


def test_ddp_buckets_are_copies_unless_gradients_are_views_of_them():
    plain = job("gpt2", data=2, precision=FP32)
    view = job("gpt2", data=2, precision=FP32, data_settings={"bucket_view": True})
    assert plain.memory().resident["buffers"] == 4 * 124_439_808
    assert view.memory().resident["buffers"] == 0
    assert at_step(plain)["gradients"] == at_step(view)["gradients"] == 4 * 124_439_808


def test_deepspeed_reduces_through_two_buffers():
    run = job("gpt2", data=2, data_settings={"strategy": "zero2", "bucket": (5e7, "elements")})
    largest = max(bucket.count for bucket in run.plan.sharding(run.plan.chunks[0], "").buckets)
    assert run.memory().resident["buffers"] == 2 * 2 * largest
    alone = job("gpt2", data=2, data_settings={"strategy": "zero2", "bucket": (5e7, "elements"), "overlap_reduce": False})
    assert alone.memory().resident["buffers"] == 2 * largest


def test_fsdp_gathers_units_and_keeps_their_shards():
    run = job("gpt2", data=4, precision=FP32, data_settings={"strategy": "fsdp"})
    layer, root = 7_087_872, 124_439_808 - 12 * 7_087_872
    assert sum(tensor.bytes for tensor in run.memory().tensors if tensor.category == "parameters") == 124_439_808
    memory = run.memory()
    # the root in what it arrived in and copied out of it, and two layers on their way
    assert memory.levels["buffers"].max() == pytest.approx(4 * (2 * root + 2 * layer), abs=4 * 512)
    streams = {tensor.stream for tensor in memory.tensors if tensor.category in ("buffers", "gradients")}
    assert streams == {"", "gathers", "reductions"}
    flat = job("gpt2", data=4, precision=FP32, data_settings={"strategy": "fsdp", "fsdp_version": 1})
    assert flat.memory().levels["buffers"].max() == pytest.approx(4 * (root + 2 * layer), abs=3 * 512)


def test_data_parallel_puts_everything_on_the_first_gpu():
    """GPT-2 in fp32 with Adam on 4 GPUs: states of 16 P on GPU 0; a replica and its gradients, 8 P, on the others."""
    run = job("gpt2", data=4, precision=FP32, data_settings={"strategy": "torch-data-parallel"})
    assert states_of(run) == 1_991_036_928
    worker = run.memory(1)
    assert worker.resident == dict.fromkeys(worker.resident, 0) | {"workspace": 2 * 8_519_680}
    assert (worker.levels["parameters"] + worker.levels["gradients"]).max() == 8 * 124_439_808


def test_the_gathered_outputs_of_all_shards_wait_on_the_first_gpu():
    run = job("gpt2", data=4, precision=FP32, data_settings={"strategy": "torch-data-parallel"})
    gather = next(op for op in run.collectives() if op.name == "gather gather outputs")
    held = [run.program.tensors[0][e.tensor] for rank, effects in gather.effects if rank == 0 for e in effects]
    assert [(tensor.category, tensor.bytes) for tensor in held] == [("buffers", 4 * 128 * 50_257 * 4)]
    assert all(rank == 0 for rank, _ in gather.effects)


def test_foreach_adam_makes_a_copy_of_the_parameters_and_fused_adam_none():
    found = {}
    for implementation in ("fused", "foreach", "loop"):
        run = job("gpt2", precision=FP32, optimizer=Optimizer("adamw", implementation))
        memory = run.memory()
        steps = [row for row, op in enumerate(memory.op.tolist()) if op >= 0 and run.program.ops[op].kind == "optimizer"]
        found[implementation] = max(memory.levels["temporaries"][steps].tolist())
    assert found == {"fused": 0, "foreach": 4 * 124_439_808, "loop": 4 * 50_257 * 768}


def test_the_first_iteration_has_no_states_before_its_step():
    run = job("gpt2", precision=FP32, iteration="first")
    assert run.memory().resident["optimizer"] == 0
    assert run.memory().levels["optimizer"].max() == 8 * 124_439_808
    assert job("gpt2", precision=FP32, step=False).memory().resident["optimizer"] == 0


@pytest.mark.parametrize(("precision", "size"), [(FP32, 4), (BF16, 2), (FP32_GRADIENTS, 2)])
def test_accumulation_that_is_not_fused_needs_a_second_gradient(precision, size):
    """Autograd makes a gradient of the weight's type; where the kept one is wider, from the first micro-batch on."""
    runs = [
        job(linear(), precision=precision, micro_batches=m, runtime={"gradient_accumulation_fusion": fused}).memory()
        for m, fused in ((2, True), (2, False), (1, False))
    ]
    tensors = [{tensor.name: tensor.bytes for tensor in memory.tensors} for memory in runs]
    fresh = [next((size for name, size in row.items() if name.endswith(".grad.new")), 0) for row in tensors]
    assert fresh == [0, size * 1024 * 2048, size * 1024 * 2048 if precision is FP32_GRADIENTS else 0]


def test_models_are_the_published_ones():
    for name, parameters in (("llama-7b", 6_738_415_616), ("llama-13b", 13_015_864_320), ("llama-2-70b", 68_976_648_192)):
        assert sum(p.count for block in model_of(name).blocks for p in block.parameters()) == parameters
