"""Closed forms against published and hand-computed figures; the source of each formula is in its docstring."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import theory

GB, MIB, GIB, DAY = 1e9, 2**20, 2**30, 86_400

P7 = theory.llama_parameters(4096, 11008, 32, 32, 32000)
P8 = theory.llama_parameters(4096, 14336, 32, 32, 128256, key_value_heads=8)
P13 = theory.llama_parameters(5120, 13824, 40, 40, 32000)
P70 = theory.llama_parameters(8192, 28672, 80, 64, 32000, key_value_heads=8)
P405 = theory.llama_parameters(16384, 53248, 126, 128, 128256, key_value_heads=8)
GPT2 = theory.gpt_parameters(768, 12, 50257, 1024)
LORA7 = 32 * theory.lora_parameters(16, [(4096, 4096)] * 4 + [(4096, 11008)] * 3)
LINEARS7 = 32 * theory.llama_layer_parameters(4096, 11008, 32, norms=False)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (GPT2, 124_439_808),
        (theory.gpt_parameters(1024, 24, 50257, 1024), 354_823_168),
        (theory.gpt_parameters(1280, 36, 50257, 1024), 774_030_080),
        (theory.gpt_parameters(1600, 48, 50257, 1024), 1_557_611_200),
        (theory.gpt_parameters(12288, 96, 50257, 2048), 174_604_259_328),
        (theory.bert_parameters(768, 3072, 12, 30522), 109_482_240),
        (theory.bert_parameters(1024, 4096, 24, 30522), 335_141_888),
        (P7, 6_738_415_616),
        (P13, 13_015_864_320),
        (theory.llama_parameters(6656, 17920, 60, 52, 32000), 32_528_943_616),
        (theory.llama_parameters(8192, 22016, 80, 64, 32000), 65_285_660_672),
        (P70, 68_976_648_192),
        (P8, 8_030_261_248),
        (theory.llama_parameters(8192, 28672, 80, 64, 128256, key_value_heads=8), 70_553_706_496),
        (P405, 405_853_388_800),
        (theory.llama_parameters(2048, 8192, 16, 32, 128256, key_value_heads=8, tied=True), 1_235_814_400),
        (theory.llama_parameters(3072, 8192, 28, 24, 128256, key_value_heads=8, tied=True), 3_212_749_824),
        (theory.llama_parameters(2048, 5632, 22, 32, 32000, key_value_heads=4), 1_100_048_384),
        (theory.llama_parameters(4096, 14336, 32, 32, 32000, key_value_heads=8), 7_241_732_096),
        (theory.mixture_parameters(4096, 14336, 32, 32, 32000, 8, 8), 46_702_792_704),
        (theory.mixture_parameters(4096, 14336, 32, 32, 32000, 8, 8, active=2), 12_879_925_248),
        (theory.mixture_parameters(6144, 16384, 56, 48, 32768, 8, 8), 140_630_071_296),
        (LORA7, 39_976_960),
        (32 * theory.lora_parameters(8, [(4096, 4096)] * 2), 4_194_304),
    ],
)
def test_parameters(parameters, expected):
    assert parameters == expected


def test_mixtral_active_parameters_are_two_of_eight_experts():
    expert = 3 * 4096 * 14336
    assert expert == 176_160_768
    assert 32 * 6 * expert == 46_702_792_704 - 12_879_925_248


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2 * 10**9, 2_000_000_000),
        (theory.state_bytes(10**9, "fp32-adam"), 16_000_000_000),
        (theory.state_bytes(10**9, "pure-bf16-adam"), 8_000_000_000),
        (theory.state_bytes(P7, "mixed-adam"), 107_814_649_856),
        (theory.state_bytes(P13, "mixed-adam"), 208_253_829_120),
        (theory.state_bytes(10**9, "mixed-adam-fp32-gradients"), 18_000_000_000),
        (theory.state_bytes(10**9, "mixed-lion"), 12_000_000_000),
        (theory.state_bytes(GPT2, "fp32-adam"), 1_991_036_928),
        (2 * P13, 26_031_728_640),
        (4 * P13, 52_063_457_280),
        (12 * P13, 156_190_371_840),
        (theory.lora_bytes(P7, LORA7), 14_116_462_592),
        (theory.qlora_bytes(LINEARS7, P7 - LINEARS7, LORA7), 4_505_223_168),
        (theory.distributed_optimizer_bytes(P70, 64), 426_793_010_688),
        (theory.distributed_optimizer_bytes(P70, 16) / 32, 14_549_761_728),
        (theory.distributed_optimizer_bytes(P7, 1), 18 * P7),
        (2 * P7 + 4096 * theory.key_value_bytes_per_token(32, 32, 128), 15_624_314_880),
    ],
)
def test_states(size, expected):
    assert size == expected


def test_qlora_without_double_quantisation():
    assert theory.qlora_bytes(16, 0, 0, double_quantisation=False) == 16 * 4.5 / 8


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [(P7, (34.516, 23.534, 12.551)), (P8, (41.133, 28.045, 14.958)), (P13, (66.671, 45.457, 24.244)), (P70, (353.317, 240.898, 128.479))],
)
def test_zero_on_eight_ranks(parameters, expected):
    assert tuple(round(theory.zero_bytes(parameters, 8, stage) / GIB, 3) for stage in (1, 2, 3)) == expected


def test_zero_on_sixty_four_ranks():
    assert [theory.zero_bytes(7.5e9, 64, stage) / GB for stage in range(4)] == [120, 31.40625, 16.640625, 1.875]
    assert [round(theory.zero_bytes(P7, 64, stage) / GIB, 3) for stage in (1, 2, 3)] == [26.279, 13.924, 1.569]
    assert [round(theory.zero_bytes(P70, 64, stage) / GIB, 2) for stage in (1, 2, 3)] == [269.0, 142.53, 16.06]
    assert round(theory.distributed_optimizer_bytes(P7, 8) / GIB, 3) == 47.067


@given(st.integers(1, 10**12), st.integers(1, 4096), st.integers(0, 12))
def test_zero_laws(parameters, ranks, optimizer):
    stages = [theory.zero_bytes(parameters, ranks, stage, optimizer=optimizer) for stage in range(4)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(stages))
    assert ranks * stages[3] == pytest.approx(stages[0], rel=1e-12)
    assert theory.zero_bytes(parameters, 1, 3, optimizer=optimizer) == stages[0]


def test_deepspeed_estimator():
    assert round(theory.deepspeed_zero2_bytes(2851e6, 8) / GIB, 2) == 15.93
    assert round(theory.deepspeed_zero2_bytes(2851e6, 8, offload=True) / GIB, 2) == 5.31
    assert round(theory.deepspeed_zero2_host_bytes(2851e6, 8) / GIB, 2) == 127.45
    t5 = [theory.deepspeed_zero3_bytes(737.67e6, 32.90e6, 4, *offload) / MIB for offload in ((False, False), (True, True), (True, False))]
    assert t5 == pytest.approx([3291, 125, 477], abs=1)


def test_key_value_cache():
    shapes = {
        (32, 32, 128): 524_288,
        (40, 40, 128): 819_200,
        (80, 8, 128): 327_680,
        (32, 8, 128): 131_072,
        (126, 8, 128): 516_096,
        (12, 12, 64): 36_864,
    }
    assert {shape: theory.key_value_bytes_per_token(*shape) for shape in shapes} == shapes
    assert [
        tokens * theory.key_value_bytes_per_token(*shape) / GIB
        for shape, tokens in (((32, 32, 128), 4096), ((80, 8, 128), 4096), ((32, 8, 128), 8192))
    ] == [2, 1.25, 1]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ((2048, 1, 12288, 96), (2736, 552, 342, 312, 102, 48)),
        ((2048, 4, 6144, 64), (6752, 1264, 844, 624, 204, 96)),
        ((2048, 1, 20480, 128), (3920, 840, 490, 520, 170, 80)),
        ((2048, 1, 25600, 160), (4900, 1050, 612.5, 650, 212.5, 100)),
    ],
    ids=["175B", "22B", "530B", "1T"],
)
def test_activations_of_a_layer(model, expected):
    """arXiv 2205.05198: whole; 8-way tensor; with sequence parallel; tensor and selective; all three; full recomputation."""
    law = theory.transformer_layer_activation_bytes
    values = (
        law(*model),
        law(*model, 8),
        law(*model, 8, sequence_parallel=True),
        law(*model, 8, recompute="selective"),
        law(*model, 8, sequence_parallel=True, recompute="selective"),
        law(*model, recompute="full"),
    )
    assert tuple(value / MIB for value in values) == pytest.approx(expected, rel=1e-12)
    assert law(*model, 8, sequence_parallel=True, recompute="full") == law(*model, recompute="full") / 8


def test_activations_of_a_first_stage():
    gpt3 = theory.transformer_layer_activation_bytes(2048, 1, 12288, 96, 8, sequence_parallel=True, recompute="selective")
    held = gpt3 * 12 * 8 * theory.interleaved_activation_factor(8, 3)
    assert round(held / GIB, 4) == 12.3516
    mtnlg = theory.transformer_layer_activation_bytes(2048, 1, 20480, 128, 8, sequence_parallel=True, recompute="selective")
    assert round(mtnlg * 3 * theory.in_flight("1f1b", 35, 280, 0) / GIB, 4) == 17.4316


@pytest.mark.parametrize(
    ("shape", "layers", "expected"),
    [
        ((2048, 4096, 11008, 32), 32, 11.383),
        ((4096, 4096, 11008, 32), 32, 22.767),
        ((1024, 5120, 13824, 40), 40, 8.913),
        ((4096, 4096, 14336, 32, 8), 32, 24.517),
        ((8192, 4096, 14336, 32, 8), 32, 49.033),
    ],
)
def test_activations_of_llama(shape, layers, expected):
    assert round(layers * theory.llama_saved_bytes_per_layer(*shape) / GIB, 3) == expected


def test_fused_kernels_save_less():
    eager, fused = (theory.llama_saved_bytes_per_layer(1, 4096, 11008, 32, fused=fused) for fused in (False, True))
    assert eager - fused == 8 * 4096 + 2 * 11008


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 14_599_688_192),
        ({"dropout": True}, 20_954_058_752),
        ({"eager_attention": False}, 9_777_287_360),
        ({"eager_attention": False, "dropout": True}, 10_091_860_160),
    ],
)
def test_activations_of_bert_as_measured(options, expected):
    """Unique saved storages of Hugging Face's BertModel, 32 x 512 in fp32, torch 2.13.

    They include token ids and positions, and 16 B of random state per layer where a fused attention kernel draws the dropout.
    """
    extras = 8 * 32 * 512 + 8 * 512 + (0 if options.get("eager_attention", True) else 12 * 16)
    assert theory.bert_saved_bytes(32, 512, 768, 3072, 12, 12, **options) + extras == expected


def test_activations_of_a_stack_of_linears():
    assert theory.mlp_saved_bytes(10240, (1024, 1024, 1024, 2048)) == 125_829_120


def test_loss():
    assert theory.loss_peak_bytes(8192, 128256) == 14 * 8192 * 128256 == 14_709_424_128
    assert theory.loss_peak_bytes(512, 32000, element=4) == 16 * 512 * 32000


@given(st.integers(1, 200), st.floats(0.01, 1))
def test_the_best_checkpoint_interval_is_best(layers, ratio):
    best = theory.optimal_checkpoint_interval(layers, ratio, 1)
    smooth = [layers / k * ratio + k for k in (best, best * 0.9, best * 1.1)]
    assert smooth[0] == min(smooth)
    assert theory.checkpointed_bytes(layers, ratio, 1, every=layers) == ratio + layers


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((12 * 768**2, 12, 768, 1024, 768 * 50257), 265_938_432),
        ((LINEARS7 // 32, 32, 4096, 2048, 4096 * 32000), 13_751_025_664),
        ((LINEARS7 // 32, 32, 4096, 4096, 4096 * 32000), 14_287_896_576),
        ((theory.llama_layer_parameters(4096, 14336, 32, 8, norms=False), 32, 4096, 8192, 4096 * 128256), 17_156_800_512),
        ((theory.llama_layer_parameters(8192, 28672, 64, 8, norms=False), 80, 8192, 4096, 8192 * 32000), 142_795_079_680),
    ],
    ids=["gpt2", "llama2-7b 2048", "llama2-7b 4096", "llama3-8b", "llama2-70b"],
)
def test_forward_flops(arguments, expected):
    assert theory.transformer_forward_flops(*arguments) == expected


def test_flops_under_other_conventions():
    assert theory.transformer_forward_flops(12 * 768**2, 12, 768, 512, 0, causal=False) == 188_743_680
    assert theory.flops_palm(GPT2, 12, 768, 1024) == 859_885_056
    assert theory.flops_palm(P7, 32, 4096, 2048) == 43_651_719_168
    assert theory.flops_palm(P8, 32, 4096, 8192) == 61_066_469_376
    assert f"{8192 * 17_156_800_512:.6e}" == "1.405485e+14"
    assert f"{theory.flops_6n(P405, 15.6e12):.4e}" == "3.7988e+25"
    assert theory.attention_forward_flops(1, 2048, 32, 128) * 32 == 2 * 536_870_912 * 2048


def test_attention_core_for_a_whole_batch():
    """Two per-token conventions agree: 4 s a d per token is 4 b s^2 a d per batch."""
    assert theory.attention_forward_flops(2, 64, 3, 5) == 2 * 64 * (4 * 64 * 15)


@pytest.mark.parametrize(
    ("layers", "hidden", "batch", "expected"),
    [(80, 12288, 2304, "5.6417e+18"), (96, 12288, 1536, "4.5110e+18"), (105, 20480, 2520, "2.2216e+19"), (128, 25600, 3072, "5.1391e+19")],
)
def test_megatron_steps(layers, hidden, batch, expected):
    whole = theory.megatron_step_flops(batch, 2048, layers, hidden, 51200)
    assert f"{whole:.4e}" == expected
    assert whole / theory.megatron_step_flops(batch, 2048, layers, hidden, 51200, recompute=False) == pytest.approx(theory.hfu_over_mfu())


def test_utilisation():
    mpt7 = 6_649_286_656
    assert theory.flops_palm(mpt7, 32, 4096, 2048) == 43_116_945_408
    assert round(10_643 * theory.flops_palm(mpt7, 32, 4096, 2048) / 1e12, 1) == 458.9
    assert round(100 * theory.mfu(10_643, theory.flops_palm(mpt7, 32, 4096, 2048), 989e12), 1) == 46.4
    assert [round(100 * theory.mfu(rate, theory.flops_6n(P7), 312e12), 2) for rate in (3300, 1536)] == [42.76, 19.90]
    assert round(100 * theory.mfu(380, theory.flops_6n(65_285_660_672), 312e12), 2) == 47.71


@pytest.mark.parametrize(("parameters", "hours", "expected"), [(P7, 184_320, 39.06), (P13, 368_640, 37.72), (P70, 1_720_320, 42.84)])
def test_gpu_hours_of_llama_2(parameters, hours, expected):
    """arXiv 2307.09288, table 2: GPU hours on A100 for 2e12 tokens."""
    flop = theory.flops_6n(parameters, 2e12)
    assert round(100 * flop / (hours * 3600 * 312e12), 2) == expected
    assert theory.gpu_hours(flop, 312e12, expected / 100) == pytest.approx(hours, rel=2e-4)


def test_llama_3_gpu_hours():
    assert round(100 * theory.flops_6n(P405, 15.6e12) / (30.84e6 * 3600 * 989e12), 2) == 34.60


def test_time_to_train():
    assert round(theory.time_to_train(175e9, 300e9, 1024, 140e12) / DAY, 2) == 33.91
    assert round(theory.time_to_train(1e12, 450e9, 3072, 163e12) / DAY, 1) == 83.2
    assert round(theory.tokens_time(1.4e12, 380, 2048) / DAY, 2) == 20.82


def test_memory_bound_floors():
    assert round(theory.memory_bound_time(2 * P7, 3.35e12) * 1e3, 3) == 4.023
    assert round(theory.memory_bound_time(30 * P7, 2.039e12, 0.85) * 1e3, 1) == 116.6


@pytest.mark.parametrize(
    ("checkpoint", "hours", "interval", "overhead"), [(60, 3, 1138, 10.54), (300, 24, 7200, 8.33), (60, 10, 2078, 5.77)]
)
def test_young(checkpoint, hours, interval, overhead):
    mtbf = 3600 * hours
    best = theory.young_interval(checkpoint, mtbf)
    assert round(best) == interval
    assert round(100 * theory.checkpoint_overhead(best, checkpoint, mtbf), 2) == overhead
    assert theory.checkpoint_overhead(best, checkpoint, mtbf) <= theory.checkpoint_overhead(1.1 * best, checkpoint, mtbf)
    assert theory.checkpoint_overhead(best, checkpoint, mtbf, restart=mtbf / 100) == pytest.approx(0.01 + overhead / 100, abs=1e-4)


def test_daly_is_young_with_a_correction():
    ratio = 60 / (2 * 10800)
    expected = theory.young_interval(60, 10800) * (1 + ratio**0.5 / 3 + 60 / (18 * 10800)) - 60
    assert theory.daly_interval(60, 10800) == pytest.approx(expected, rel=1e-12)


def test_failures_and_stragglers():
    assert round(theory.job_mtbf(54 * 24 / 419 * 16_384, 16_384), 2) == 3.09
    assert theory.slowest_of(1, 2.0, 0.1) == 2.0
    assert theory.slowest_of(1024, 1.0, 0.05) == pytest.approx(1.186, abs=1e-3)
    assert theory.checkpoint_bytes(P70) == 14 * P70
    assert round(theory.checkpoint_bytes(P70, with_weights=False) / 1e12, 3) == 0.828


def test_collectives():
    assert theory.ring_all_reduce_time(4, 1e9, 100e9, 1e-6) == pytest.approx(15.006e-3, rel=1e-12)
    assert theory.ring_all_gather_time(8, 1e9, 240e9) == pytest.approx(3.645833e-3, rel=1e-6)
    assert theory.ring_reduce_scatter_time(8, 1e9, 240e9) == theory.ring_all_gather_time(8, 1e9, 240e9)
    assert theory.chain_broadcast_time(4, 64 * MIB, 25e9, MIB) == pytest.approx(2.76824064e-3, rel=1e-12)
    assert theory.all_to_all_time(4, 1e9, 50e9) == pytest.approx(15e-3, rel=1e-12)
    assert theory.send_time(1e9, 24e9, 3.3e-6) == pytest.approx(41.669967e-3, rel=1e-7)
    assert theory.hierarchical_all_reduce_time(4, 8, 1e9, 235e9, 24e9) == pytest.approx(15.259309e-3, rel=1e-7)
    assert theory.ring_all_reduce_time(32, 1e9, 192e9) == pytest.approx(10.091146e-3, rel=1e-7)
    assert theory.ring_all_reduce_bytes(8, 4 * GPT2) == 871_078_656
    assert theory.fsdp_traffic_bytes(8, 2 * P7) == 35_376_681_984
    assert theory.tree_all_reduce_time(256, 0, 1e9, 1.0) == 16


def test_ring_attention():
    """Llama-3-8B, 32,768 tokens on 8 ranks: K and V of 4096 tokens are 16 MiB; forward 7 of them, backward 14."""
    key_value = 2 * 4096 * 8 * 128 * 2
    assert key_value == 16 * MIB
    assert theory.ring_attention_bytes(8, key_value) == 112 * MIB
    assert theory.ring_attention_bytes(8, key_value, backward=True) == 224 * MIB
    assert theory.ring_attention_bytes(1, key_value) == 0
    assert [theory.ring_attention_time(8, 2.0, message) for message in (0.0, 2.0, 3.0)] == [16.0, 16.0, 23.0]
    assert [theory.ring_attention_time(8, 2.0, message, backward=True) for message in (0.0, 2.0, 3.0)] == [16.0, 16.0, 24.0]
    assert theory.ring_attention_time(1, 2.0, 5.0) == theory.ring_attention_time(1, 2.0, 5.0, backward=True) == 2.0


@given(st.integers(1, 512), st.floats(1, 1e10), st.floats(1e6, 1e12), st.floats(0, 1e-3))
def test_collective_laws(ranks, size, bandwidth, latency):
    gather = theory.ring_all_gather_time(ranks, size, bandwidth, latency)
    scatter = theory.ring_reduce_scatter_time(ranks, size, bandwidth, latency)
    assert theory.ring_all_reduce_time(ranks, size, bandwidth, latency) == pytest.approx(gather + scatter, rel=1e-12)
    assert theory.ring_all_reduce_time(1, size, bandwidth, latency) == 0
    assert theory.chain_broadcast_time(ranks + 1, size, bandwidth, size, latency) == pytest.approx(ranks * (size / bandwidth + latency))


@pytest.mark.parametrize(
    ("schedule", "v", "expected"),
    [
        ("naive", 1, 0.75),
        ("gpipe", 1, 0.2727),
        ("1f1b", 1, 0.2727),
        ("interleaved", 2, 0.1579),
        ("interleaved", 4, 0.0857),
        ("pipedream", 1, 0),
    ],
)
def test_bubbles(schedule, v, expected):
    assert round(theory.bubble_fraction(schedule, 4, 8, v), 4) == expected


def test_schedules_that_split_the_backward():
    assert [theory.zb_h1_makespan(p, m, 1, 1, 1) for p, m in ((4, 8), (4, 4), (4, 16), (8, 16), (8, 32), (2, 4))] == [
        27,
        15,
        51,
        55,
        103,
        13,
    ]
    assert [theory.zb_h2_span(p, m, 1, 1, 1) for p, m in ((4, 8), (4, 16), (8, 16), (8, 32), (2, 4))] == [24, 48, 48, 96, 12]
    assert theory.zb_h2_span(4, 8, 1, 1.2, 0.8) == pytest.approx(25.8)
    assert [theory.dualpipe_makespan(p, m, 1, 2, 1, pair=3) for p, m in ((4, 8), (4, 16), (8, 16), (8, 32), (8, 20))] == [
        26,
        50,
        54,
        102,
        66,
    ]


@given(st.integers(1, 64), st.integers(1, 64), st.floats(0.1, 10), st.floats(0.1, 10))
def test_pipeline_laws(p, rounds, forward, backward):
    m = p * rounds
    gpipe = theory.gpipe_makespan(p, m, forward, backward)
    assert theory.one_f_one_b_makespan(p, m, forward, backward) == gpipe
    assert theory.interleaved_makespan(p, m, 1, forward, backward) == gpipe
    assert theory.interleaved_makespan(p, m, 2, forward, backward) <= gpipe * (1 + 1e-12)
    ideal = m * (forward + backward)
    assert theory.bubble_fraction("1f1b", p, m) == pytest.approx(1 - ideal / gpipe, abs=1e-12)
    assert theory.zb_h1_makespan(p, m, forward, backward, 0) == pytest.approx(gpipe, rel=1e-12)


def test_pipedream():
    assert theory.pipedream_period([1, 1, 2, 1], [2, 2, 4, 2], replicas=[1, 1, 2, 1]) == 3
    assert theory.pipedream_noam(8, 3) == 3
    assert [theory.pipedream_versions(4, s) for s in range(4)] == [4, 3, 2, 1]
    assert [theory.pipedream_staleness(4, s) for s in range(4)] == [3, 2, 1, 0]


def test_in_flight_of_one_chunk_is_one_f_one_b():
    assert [theory.in_flight("interleaved", 4, 8, s) for s in range(4)] == [theory.in_flight("1f1b", 4, 8, s) for s in range(4)]


@given(st.integers(1, 100), st.floats(0.01, 10), st.floats(0.01, 10))
def test_overlap_laws(layers, compute, collective):
    exposed = theory.ddp_exposed_time(layers, compute, collective)
    assert 0 < exposed <= layers * collective * (1 + 1e-9)
    forward = theory.fsdp_forward_time(layers, compute, collective)
    assert forward >= layers * max(compute, collective)
    assert forward <= layers * (compute + collective) * (1 + 1e-12)
