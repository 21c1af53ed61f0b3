"""FLOP conventions against published closed forms and hand-evaluated figures."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import ModelError
from parsim.model.catalogue import build_model
from parsim.model.flops import CONVENTIONS, block_flop, flop_per_step, flop_per_token, forward_flop
from parsim.model.model import Model
from parsim.scenario import files


def look_up(name: str) -> dict[str, Any]:
    return files.read(files.find("models", name)).tree


@cache
def model(name: str) -> Model:
    return build_model(look_up(name), name=name, base_lookup=look_up)


def changed(base: str, tensor: int = 1, **changes: Any) -> Model:
    return build_model({"base": base, **changes}, name=base, tensor=tensor, base_lookup=look_up)


@pytest.mark.parametrize(
    ("name", "sequence", "linears", "core", "head"),
    [
        ("gpt2", 1024, 169_869_312, 18_874_368, 77_194_752),
        ("llama-2-7b", 2048, 12_952_010_752, 536_870_912, 262_144_000),
        ("llama-3-8b", 8192, 13_958_643_712, 2_147_483_648, 1_050_673_152),
    ],
)
def test_exact_forward_is_linears_plus_half_the_core_plus_head(name: str, sequence: int, linears: int, core: int, head: int) -> None:
    assert forward_flop(model(name), sequence) == linears + core + head
    assert flop_per_token(model(name), sequence) == 3 * (linears + core + head)


@pytest.mark.parametrize(("name", "flop"), [("llama-2-7b", 14_287_896_576), ("llama-2-70b", 142_795_079_680)])
def test_exact_forward_at_4096_tokens(name: str, flop: int) -> None:
    assert forward_flop(model(name), 4096) == flop


def test_bert_layers_attend_to_all_keys() -> None:
    layers = [block for block in model("bert-base").blocks if block.kind == "layer"]
    assert sum(block_flop(block, 512).forward for block in layers) / 512 == 188_743_680


@pytest.mark.parametrize(
    ("name", "sequence", "flop"),
    [("gpt2", 1024, 859_885_056), ("llama-2-7b", 2048, 43_651_719_168), ("llama-3-8b", 8192, 61_066_469_376)],
)
def test_palm_per_token(name: str, sequence: int, flop: int) -> None:
    assert flop_per_token(model(name), sequence, "palm") == flop
    assert flop_per_token(model(name), sequence, "llm-foundry") == flop


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "batch", "flop"),
    [
        # 96 B s L h^2 (1 + s/6h + V/16Lh): Narayanan et al. 2021 (2104.04473)
        ("megatron-gpt-145.6b", 80, 12288, 2304, 5.6417e18),
        ("megatron-gpt-175b", 96, 12288, 1536, 4.5110e18),
        ("megatron-gpt-530b", 105, 20480, 2520, 2.2216e19),
        ("megatron-gpt-1t", 128, 25600, 3072, 5.1391e19),
    ],
)
def test_megatron_step_with_full_recomputation(name: str, layers: int, hidden: int, batch: int, flop: float) -> None:
    step = flop_per_step(model(name), 2048, batch, "megatron-hardware", "full")
    formula = 96 * batch * 2048 * layers * hidden**2 * (1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden))
    assert step == pytest.approx(formula, rel=1e-12)
    assert step == pytest.approx(flop, rel=1e-4)


def test_megatron_published_throughput_gives_the_step_time() -> None:
    # 145.6B on 1536 GPUs at 148 TFLOP/s each: 24.8 s; 1T on 3072 at 163: 102.6 s
    assert flop_per_step(model("megatron-gpt-145.6b"), 2048, 2304, "megatron-hardware", "full") / (1536 * 148e12) == pytest.approx(
        24.8, abs=0.05
    )
    assert flop_per_step(model("megatron-gpt-1t"), 2048, 3072, "megatron-hardware", "full") / (3072 * 163e12) == pytest.approx(
        102.6, abs=0.05
    )


def test_model_and_selective_flop_of_korthikanti() -> None:
    # 2205.05198, appendix A: 72 B L s h^2 (1 + s/6h + V/12hL), with selective recomputation (1 + s/3h + V/12hL)
    layers, hidden, s, v = 48, 6144, 2048, 51200
    m = model("megatron-gpt-22b")
    per_token = 72 * layers * hidden**2
    assert flop_per_token(m, s, "megatron") == pytest.approx(per_token * (1 + s / (6 * hidden) + v / (12 * layers * hidden)), rel=1e-12)
    selective = flop_per_token(m, s, "megatron-hardware", "selective")
    assert selective == pytest.approx(per_token * (1 + s / (6 * hidden) + s / (18 * hidden) + v / (12 * layers * hidden)), rel=1e-12)


def test_megatron_and_exact_differ_by_half_the_attention() -> None:
    m, s = model("megatron-gpt-22b"), 2048
    core = 3 * 4 * s * m.hidden * m.layers
    assert flop_per_token(m, s, "megatron") - flop_per_token(m, s, "exact") == pytest.approx(core / 2, rel=1e-12)


@given(st.integers(1, 64), st.integers(1, 32), st.integers(1, 4096))
@settings(max_examples=25, deadline=None)
def test_passes_of_a_layer_are_the_zero_bubble_table(width: int, heads: int, sequence: int) -> None:
    # Zero Bubble (2401.10241), table 1: F, B, W = sbh (24h + 4s, 24h + 8s, 24h)
    h = width * heads
    m = changed("gpt2", hidden=h, heads=heads, causal=False, layers=1)
    passes = block_flop(m.blocks[1], sequence)
    assert passes.forward == sequence * (24 * h * h + 4 * sequence * h)
    assert passes.backward_input == sequence * (24 * h * h + 8 * sequence * h)
    assert passes.backward_weight == sequence * 24 * h * h


def test_full_recomputation_adds_one_forward_of_the_layers() -> None:
    m = model("gpt2")
    layers = 169_869_312 + 18_874_368
    assert flop_per_token(m, 1024, "hfu", "full") == 3 * 265_938_432 + layers
    assert flop_per_token(m, 1024, "hfu", "selective") == 3 * 265_938_432 + 18_874_368
    assert flop_per_token(m, 1024, "hfu") == flop_per_token(m, 1024, "exact")


def test_a_sliding_window_saves_attention() -> None:
    s, w = 8192, 4096
    windowed, full = model("mistral-7b"), changed("mistral-7b", attention_window=0)
    pairs = s * w - w * w / 2  # s/2 keys per token become w (1 - w/2s)
    saved = 4 * 4096 * 32 * (s * s / 2 - pairs) / s
    assert forward_flop(full, s) - forward_flop(windowed, s) == pytest.approx(saved, rel=1e-12)


def test_six_n_counts_active_parameters() -> None:
    assert flop_per_token(model("mixtral-8x7b"), 2048, "6n") == 6 * 12_879_925_248


def test_kaplan_leaves_embeddings_out() -> None:
    # 12 L h^2 and the small vectors: 124,439,808 - (50257 + 1024) x 768
    assert flop_per_token(model("gpt2"), 1024, "6n-non-embedding") == 6 * (124_439_808 - 51_281 * 768)


def test_mixture_counts_the_experts_a_token_visits() -> None:
    m, s, h = model("mixtral-8x7b"), 2048, 4096
    attention = 2 * h * h + 2 * h * 1024
    experts = 2 * 3 * h * 14336
    linears = 32 * 2 * (attention + experts + 8 * h)
    assert forward_flop(m, s) == pytest.approx(linears + 32 * 2 * s * h + 2 * h * 32000, rel=1e-9)
    assert flop_per_token(m, s, "exact") - flop_per_token(m, s, "megatron-lm") == pytest.approx(3 * 32 * 2 * 8 * h, rel=1e-6)


def test_latent_attention_of_deepseek() -> None:
    # per token: low-rank projections, then 2s a (d_n + d_r) + 2s a d_v, half of it causal (2405.04434)
    m, s = model("deepseek-v2-lite"), 4096
    h, a, rank, plain, rotary, value = 2048, 16, 512, 128, 64, 128
    projections = h * a * (plain + rotary) + h * (rank + rotary) + rank * a * (plain + value) + a * value * h
    core = s * a * (plain + rotary) + s * a * value
    dense, expert = 3 * h * 10944, 3 * h * 1408 * 8 + 64 * h
    expected = 27 * (2 * projections + core) + 2 * dense + 26 * 2 * expert + 2 * h * 102400
    assert forward_flop(m, s) == pytest.approx(expected, rel=1e-9)


def test_a_network_without_tokens_counts_per_sample() -> None:
    tree = {"input": {"shape": [1024]}, "layers": [{"linear": 1024}, {"linear": 1024}, {"linear": 2048}]}
    mlp = build_model(tree, name="mlp", base_lookup=look_up)
    forward = 2 * (1024 * 1024 + 1024 * 1024 + 1024 * 2048)
    assert forward_flop(mlp) == forward
    assert flop_per_step(mlp, 1, 10240) == 3 * forward * 10240


def test_resnet_50_is_4_1_billion_multiply_adds() -> None:
    assert forward_flop(model("resnet50")) / 2 == 4_089_184_256


def test_padded_vocabulary_is_executed() -> None:
    padded = build_model(look_up("gpt3-175b"), name="gpt3-175b", tensor=8, divisor=128, base_lookup=look_up)
    extra = forward_flop(padded, 2048) - forward_flop(model("gpt3-175b"), 2048)
    assert extra == 2 * 12288 * (51200 - 50257)


def test_conventions_refuse_what_they_do_not_describe() -> None:
    with pytest.raises(ModelError, match="does not describe llama-3-8b"):
        flop_per_token(model("llama-3-8b"), 2048, "megatron")
    with pytest.raises(ModelError, match="known: exact, exact-full, palm"):
        flop_per_token(model("gpt2"), 1024, "chinchilla")


def test_every_convention_says_what_it_counts() -> None:
    for name, convention in CONVENTIONS.items():
        assert convention.name == name
        assert convention.meaning
