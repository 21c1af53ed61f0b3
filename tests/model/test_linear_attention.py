"""Linear attention: FLOP, parameters, state and saved tensors of its layers, and where it costs as much as attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structures import look_up, shipped

from parsim.errors import ModelError
from parsim.kernel import Attention, ChunkScan
from parsim.model.activations import caches
from parsim.model.catalogue import build_model
from parsim.model.flops import block_flop, flop_per_token, operator_flop
from parsim.model.linear_attention import GatedNorm, Kind, LinearAttention, OutputGate, ShortConvolution, scan_flop
from parsim.model.liveness import tape
from parsim.model.model import Block, Model
from parsim.model.parameter_counts import active_parameter_count, parameter_count
from parsim.model.workload import Workload

HUGGING_FACE = {
    # transformers 5.23 on the meta device; RetNet: half of the 2,703,483,944 B of its bf16 file, less 29,736 B of header
    "mamba2-2.7b": 2_702_599_680,
    "mamba-codestral-7b": 7_285_403_648,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-h-47b": 46_791_554_816,
    "nemotron-h-56b": 56_324_350_464,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "nemotron-nano-12b-v2": 12_310_001_152,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "nemotron-3-super-120b-a12b": 120_668_687_360,
    "retnet-1.3b": 1_351_727_104,
}
FLASH_LINEAR_ATTENTION = {
    "model_type": "gla", "hidden_size": 2048, "num_hidden_layers": 24, "num_heads": 4, "expand_k": 0.5, "expand_v": 1, "hidden_ratio": 4,
    "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
"""fla-hub/gla-1.3B-100B"""
KINDS: tuple[Kind, ...] = ("retention", "gla", "mamba2", "gated-delta", "kda")


def core(kind: Kind, heads: int = 32, size: int = 128, **more: Any) -> LinearAttention:
    return LinearAttention("core", ("qkv", "projected"), "o", kind, heads, more.pop("key_heads", heads), size, size, **more)


def changed(base: str, **changes: Any) -> Model:
    return build_model({"base": base, **changes}, name="changed", base_lookup=look_up)


def layer(model: Model, operator: str) -> Block:
    return next(block for block in model.blocks if any(one.name == operator for one in block.operators))


def test_gated_linear_attention_has_the_parameters_of_its_layers() -> None:
    """fla/layers/gla.py: keys half as wide as values, gates of the keys through 16 numbers, one norm for all heads; MLP of 5,632."""
    h, keys = 2048, 1024
    attention = 2 * h * keys + 3 * h * h + (h * 16 + 16 * keys + keys) + h // 4
    expected = 24 * (attention + 2 * h + 3 * h * 5632) + 2 * 32000 * h + h
    assert parameter_count(build_model(FLASH_LINEAR_ATTENTION, name="gla", base_lookup=look_up)) == expected == 1_365_514_240


@pytest.mark.parametrize(
    ("kind", "flop", "tokens"), [("mamba2", 3_145_728, 384), ("retention", 3_145_728, 384), ("gated-delta", 5_767_168, 704)]
)
def test_forward_flop_of_a_token(kind: Kind, flop: int, tokens: int) -> None:
    # 32 heads of 128, chunks of 64: 4 d_k d_v + 2 C (d_k + d_v); with the delta rule 6 d_k d_v + 6 C d_k + 4 C d_v
    assert core(kind).flop().forward == flop
    counted = operator_flop(core(kind), Workload(2, 1024))
    assert (counted.forward, counted.backward_input, counted.backward_weight) == (2048 * flop, 2 * 2048 * flop, 0)
    # as much as causal attention of so many tokens, 2 s a d of them counted by half
    assert 2 * tokens * 32 * 128 == flop


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 8), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_flop_are_the_products_of_a_chunk(kind: Kind, heads: int, keys: int, values: int, chunk: int) -> None:
    def product(m: int, n: int, k: int) -> int:
        return 2 * m * n * k

    scores, outputs = product(chunk, chunk, keys), product(chunk, values, chunk)
    update, read = product(keys, values, chunk), product(chunk, values, keys)
    forward, again = scores + outputs + update + read, scores + update
    if kind in ("gated-delta", "kda"):  # K K^T, W = T K, U = T V, W S
        forward += 2 * product(chunk, keys, chunk) + product(chunk, values, chunk) + read
        again += product(chunk, keys, chunk) + product(chunk, values, chunk) + read
    found = scan_flop(kind, heads, heads, keys, values, chunk)
    assert found.forward * chunk == heads * forward
    assert found.again * chunk == heads * again


def test_scores_of_mamba_2_are_those_of_its_groups() -> None:
    one, eight = (core("mamba2", 128, 64, key_heads=groups).flop().forward for groups in (1, 8))
    assert eight - one == 2 * 64 * 7 * 64


@pytest.mark.parametrize(("kind", "ratio"), [("mamba2", 2.5), ("gated-delta", 2 + 114_688 / 180_224)])
def test_backward_computes_again_what_is_not_kept(kind: Kind, ratio: float) -> None:
    work = core(kind).work(Workload(1, 4096))
    flop = [sum(kernel.flop for kernel in kernels if isinstance(kernel, ChunkScan)) for kernels in (work.forward, work.backward_input)]
    assert flop[1] / flop[0] == pytest.approx(ratio, rel=1e-12)


def test_megatrons_count_of_a_mamba_2_layer() -> None:
    # hidden 4096, state 128, 8 groups, 128 heads: 2 h (2 d + 2 g N + H) + 7 d N + 2 d h
    model = shipped("mamba-codestral-7b")
    products = 2 * 4096 * (2 * 8192 + 2 * 8 * 128 + 128) + 2 * 8192 * 4096
    assert products + 7 * 8192 * 128 == 226_492_416
    head = 2 * 4096 * 32768
    assert flop_per_token(model, 4096, "megatron-lm") == 3 * (64 * 226_492_416 + head)
    exact = flop_per_token(model, 4096)
    assert exact == 3 * (64 * (products + 4 * 8192 * 128 + 2 * 256 * (8 * 128 + 8192)) + head)


def test_megatrons_count_of_a_gated_delta_layer() -> None:
    # hidden 2048, 16 heads of keys and 32 of values of 128
    model = shipped("qwen3-next-80b-a3b")
    only = changed("qwen3-next-80b-a3b", layer_pattern="M", layers=1, position="none", experts=None, mlp=1)
    rest = 3 * 2 * 2048 + 2 * 2048 * 151936
    assert flop_per_token(only, 4096, "megatron-lm") == 3 * (71_630_848 + rest)
    assert model.facts["attention_layers"] == 12
    # PaLM's attention term counts the layers that attend
    assert flop_per_token(model, 4096, "palm") == 6 * active_parameter_count(model) + 12 * 12 * 4096 * 4096


@pytest.mark.parametrize(("name", "count"), HUGGING_FACE.items())
def test_parameters(name: str, count: int) -> None:
    assert parameter_count(shipped(name)) == count


def test_parameters_of_a_layer_stand_in_hugging_faces_order() -> None:
    def parameters(name: str, operator: str) -> list[tuple[int, ...]]:
        return [p.shape for p in layer(shipped(name), operator).parameters()]

    assert parameters("mamba2-2.7b", "mixer_core") == [
        (2560,), (80,), (80,), (80,), (5376, 1, 4), (5376,), (10576, 2560), (5120,), (2560, 5120),
    ]  # fmt: skip
    assert parameters("qwen3-next-80b-a3b", "mixer_core")[:7] == [
        (32,), (32,), (8192, 1, 4), (12288, 2048), (64, 2048), (128,), (2048, 4096),
    ]  # fmt: skip
    assert [p.shape[0] for p in layer(shipped("qwen3-next-80b-a3b"), "attention").parameters()][:3] == [8192, 512, 512]


def test_what_a_gated_delta_layer_keeps() -> None:
    # flash-linear-attention's kernels: per token q, k, v, o in bf16, the inverse of the triangle (64 per head), decay in fp32,
    # beta, a statistic of q, k and o each; and the projections, which the convolution and the gate need: 12,288 + 64
    heads, size, tokens = 32, 128, 4096
    block = layer(shipped("qwen3-next-80b-a3b"), "mixer_core")
    at = Workload(1, tokens, fused=True)
    taped = tape(block, at)
    names = [name for name in taped.saved if name.startswith(("mixer_core", "mixer_in", "mixer_gate_norm.", "mixer_convolution"))]
    found = sum(taped.tensors[name].bytes for name in names)
    core_bytes = 2 * 4 * heads * size + 2 * 64 * heads + 4 * heads + 2 * heads + 8 * heads + 4 * heads
    assert found == tokens * (core_bytes + 2 * (12_288 + 64))


def test_mamba_2_keeps_its_projections_and_its_output() -> None:
    # mamba_ssm's fused function: zxbcdt and the scan's output; convolution, steps and states are made again
    block = layer(shipped("mamba2-2.7b"), "mixer_core")
    taped = tape(block, Workload(1, 4096, fused=True))
    kept = {name: taped.tensors[name].bytes for name in taped.saved if name.startswith("mixer_")}
    assert kept["mixer_in"] == 4096 * 10576 * 2
    assert kept["mixer_core"] == 4096 * 5120 * 2
    assert "mixer_convolution" not in kept


def test_the_state_does_not_grow() -> None:
    # 128 heads of 64 x 128 in bf16 are 2 MiB; the convolution keeps three inputs of 10,240 channels
    (cache,) = set(caches(shipped("mamba-codestral-7b")))
    assert (cache.elements, 2 * (cache.state - 3 * 10_240)) == (0, 2 * 2**20)
    retnet = caches(shipped("retnet-1.3b"))
    assert 2 * sum(one.state for one in retnet) == 48 * 2**20
    mixed = caches(shipped("qwen3-next-80b-a3b"))
    assert [bool(one.state) for one in mixed[:4]] == [True, True, True, False]
    assert caches(shipped("mamba-codestral-7b"), tensor=8)[0].state * 8 == cache.state


@given(st.sampled_from(KINDS), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=20, deadline=None)
def test_tensor_ranks_share_heads(kind: Kind, tensor: int) -> None:
    whole, part = (core(kind, key_heads=32).work(Workload(1, 512, tensor=t)) for t in (1, tensor))
    assert sum(k.flop for k in whole.forward) == pytest.approx(tensor * sum(k.flop for k in part.forward), rel=1e-12)
    assert sum(k.bytes for k in whole.backward_input) == pytest.approx(tensor * sum(k.bytes for k in part.backward_input), rel=1e-12)
    assert sum(save.bytes for save in whole.saves) == tensor * sum(save.bytes for save in part.saves)
    assert whole.output == tensor * part.output


def test_work_grows_with_the_tokens_alone() -> None:
    def flop(tokens: int) -> float:
        return block_flop(layer(shipped("mamba2-2.7b"), "mixer_core"), tokens).forward / tokens

    assert flop(4096) == flop(65536)
    assert flop(128) < flop(256) == flop(512)  # shorter than a chunk


def test_operators_around_the_core() -> None:
    at = Workload(2, 64)
    convolution = ShortConvolution("c", ("x",), "y", 96, 4, bias=True, source_features=128)
    assert [p.count for p in convolution.parameters()] == [384, 96]
    work = convolution.work(at)
    assert (work.output, work.input_gradients, work.saves[0].bytes) == (128 * 96 * 2, (128 * 128 * 2,), 128 * 128 * 2)
    norm = GatedNorm("n", ("o", "x"), "y", 96, 32, gate_in=128)
    assert [p.shape for p in norm.parameters()] == [(32,)]
    assert [save.bytes for save in norm.work(at).saves] == [128 * 96 * 2, 128 * 128 * 2, 4 * 128 * 3]
    gate = OutputGate("g", ("o", "qkv"), "y", 96, 224)
    assert sum(save.bytes for save in gate.work(at).saves) == 2 * 128 * 96 * 2
    assert sum(save.bytes for save in gate.work(Workload(2, 64, fused=True)).saves) == 128 * (96 + 224) * 2


@pytest.mark.parametrize("kind", ["gla", "kda"])
def test_low_rank_decays(kind: Kind) -> None:
    mixer = {"kind": kind, "heads": 8, "key_dim": 64, "value_dim": 128}
    model = changed("retnet-1.3b", mixer=mixer, position="none")
    shapes = {p.name: p.shape for p in model.blocks[1].parameters()}
    rank = 16 if kind == "gla" else 128
    assert shapes["mixer_decay_down.weight"] == (rank, 2048)
    assert shapes["mixer_decay_up.weight"] == (512, rank)
    assert math.isfinite(flop_per_token(model, 1024))
    assert ("mixer_gate_up.weight" in shapes) == (kind == "kda")


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        ("llama-2-7b", {"layer_pattern": "MMM*"}, "M layers (the mixer) need mixer"),
        ("llama-2-7b", {"mixer": {"kind": "gated-delta"}}, "nothing says which layers have the gated-delta mixer"),
        ("llama-2-7b", {"layer_pattern": "*-"}, "stand where every layer is one sublayer"),
        ("llama-2-7b", {"one_sublayer": True}, "need a layer_pattern"),
        ("retnet-1.3b", {"mixer": {"key_heads": 4}}, "retention has as many key_heads as heads"),
        ("mamba2-2.7b", {"mixer": {"key_heads": 3}}, "80 / 3 is not whole"),
        ("mamba2-2.7b", {"mixer": {"chunk": 0}}, "at least one token"),
        ("mamba2-2.7b", {"position": "rotary"}, "rotates nothing"),
        ("deepseek-v2-lite", {"attention_gate": True}, "latent attention has no output gate"),
    ],
)
def test_contradictions_are_refused(base: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        changed(base, **changes)
    assert words in str(caught.value)


def test_attention_and_a_state_cost_the_same_where_they_should() -> None:
    scan = core("gated-delta").flop().forward
    attention = Attention(1, 32, 32, 704, 704, 128, causal=True)
    assert attention.flop / 704 == pytest.approx(scan, rel=2e-3)  # the diagonal


FALCON_H1 = {
    "model_type": "falcon_h1", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 32784, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64,
    "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_chunk_size": 128,
}  # fmt: skip
"""tiiuae/Falcon-H1-0.5B-Base: 521,411,104 parameters in transformers 5.23 on the meta device"""


def test_attention_and_mixer_side_by_side() -> None:
    """Falcon-H1 (2507.22448): both read one norm, and their outputs are added to the stream together."""
    model = build_model(FALCON_H1, name="falcon-h1", base_lookup=lambda _: {})
    assert parameter_count(model) == 521_411_104
    tokens, block = 2048, model.blocks[1]
    by_name = {operator.name: operator for operator in block.operators}
    assert by_name["attention_residual"].inputs == ("attention_scale", "mixer_scale", "input")
    attention = 2 * 1024 * (512 + 2 * 128) + 2 * 512 * 1024 + 4 * 512 * tokens / 2
    projections = 2 * 1024 * (2 * 1536 + 2 * 128 + 24) + 2 * 1536 * 1024
    state, scores, values = 24 * 128 * 64, 128 * 128, 128 * 1536  # of a token in chunks of 128
    mlp = 3 * 2 * 1024 * 2048
    expected = attention + projections + 4 * state + 2 * scores + 2 * values + mlp
    assert block_flop(block, tokens).forward == tokens * expected
    assert {(cache.elements, cache.state) for cache in caches(model)} == {(2 * 2 * 64, state + 3 * (1536 + 2 * 128))}
