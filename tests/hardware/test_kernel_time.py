"""Kernel times: quantisation oracles, hand-computed times, laws, and published matrix products of one A100."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
from hardware_graphs import device
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import TopologyError
from parsim.hardware.device import AttentionEfficiency, device_from_tree
from parsim.hardware.kernels import (
    attention_ramp,
    attention_table,
    head_size_share,
    kernel_time,
    memory_rate,
    tile_share,
    tiles,
    wave_efficiency,
    waves,
)
from parsim.kernel import Attention, Fixed, Gemm, Memory
from parsim.parallel.optimizer import step_kernels
from parsim.parallel.training import Optimizer, Precision

PLAIN = {
    "name": "plain",
    "memory": {"size": "80 GiB", "bandwidth": "1 TB/s", "efficiency": 1.0, "l2_gain": 0.0},
    "compute": {"sms": 100, "peak": {"fp32": "10 TFLOP/s", "bf16": "100 TFLOP/s", "fp16": "100 TFLOP/s"}},
    "gemm": {"efficiency": 0.5, "k_half": 0, "wave_quantisation": 1.0, "tile_128": 0.8, "weight_gradient": 0.9},
    "attention": {"flash2": {"forward": 0.5, "backward": 0.4, "s_half": 36, "d64": 0.8, "d256": 0.6}},
    "kernel_latency": "2 us",
}


def plain():
    return device_from_tree(PLAIN)


@pytest.mark.parametrize(
    ("m", "n", "tile", "sms", "count", "expected_waves", "percent"),
    [
        (2048, 12288, (128, 256), 108, 768, 8, 88.9),
        (2048, 12288, (128, 256), 132, 768, 6, 97.0),
        (8192, 14336, (128, 256), 132, 3584, 28, 97.0),
        (8192, 14336, (128, 256), 148, 3584, 25, 96.9),
        (8192, 14336, (128, 256), 152, 3584, 24, 98.2),
        (4096, 4096, (128, 256), 108, 512, 5, 94.8),
        (4096, 4096, (128, 256), 132, 512, 4, 97.0),
        (1024, 1024, (128, 256), 108, 32, 1, 29.6),
        (1792, 1792, (256, 128), 108, 98, 1, 90.7),  # the example of NVIDIA's matrix multiplication guide
        (2048, 2048, (256, 128), 108, 128, 2, 59.3),
    ],
)
def test_tiles_and_waves(m, n, tile, sms, count, expected_waves, percent):
    assert tiles(m, n, 1, tile) == count
    assert waves(count, sms) == expected_waves
    assert wave_efficiency(m, n, tile, sms) * 100 == pytest.approx(percent, abs=0.06)


def test_fractional_quantisation_lies_between_share_and_ceiling():
    assert waves(150, 100, 0.0) == 1.5
    assert waves(150, 100, 1.0) == 2.0
    assert waves(150, 100, 0.65) == pytest.approx(1.825)
    assert waves(30, 100, 0.65) == 1.0


def test_gemm_by_hand():
    # 2560 x 1280 is exactly 100 tiles of 256 x 128: one wave of 2 * 256 * 128 * 1024 FLOP at 1 TFLOP/s * 0.5 per SM
    time = kernel_time(plain(), Gemm(2560, 1280, 1024))
    assert time == pytest.approx(2 * 256 * 128 * 1024 / (100e12 / 100 * 0.5) + 2e-6, rel=1e-12)
    # the same product accumulating into a gradient
    time = kernel_time(plain(), Gemm(2560, 1280, 1024, weight_gradient=True))
    assert time == pytest.approx(2 * 256 * 128 * 1024 / (100e12 / 100 * 0.5 * 0.9) + 2e-6, rel=1e-12)


def test_prologue_and_epilogue_take_as_long_in_any_type():
    # k_half 100 elements of a 16-bit product: twice as many of an 8-bit one, whose main loop is twice as fast
    card = device_from_tree(
        {
            **PLAIN,
            "compute": {"sms": 100, "peak": {**PLAIN["compute"]["peak"], "fp8": "200 TFLOP/s"}},
            "gemm": {**PLAIN["gemm"], "k_half": 100},
        }
    )
    wide, narrow = Gemm(2560, 1280, 1024), Gemm(2560, 1280, 1024, dtype="fp8", element=1)
    assert kernel_time(card, wide) == pytest.approx(2 * 256 * 128 * 1124 / 0.5e12 + 2e-6, rel=1e-12)
    assert kernel_time(card, narrow) == pytest.approx(2 * 256 * 128 * 1224 / 1e12 + 2e-6, rel=1e-12)


def test_bytes_of_products():
    assert Gemm(3, 5, 7).bytes == 2 * (21 + 35 + 15)
    assert Gemm(3, 5, 7, dtype="fp8", element=1).bytes == 21 + 35 + 2 * 15
    assert Gemm(3, 5, 7, 4, dtype="fp32", element=4).bytes == 4 * 4 * (21 + 35 + 15)
    # a grouped weight gradient reads and writes an fp32 or bf16 gradient
    assert Gemm(3, 5, 7, 4, weight_gradient=True, layout="NT", grouped=True).bytes == 4 * (2 * (21 + 35) + 8 * 15)
    assert Gemm(3, 5, 7, 4, weight_gradient=True, layout="NT", grouped=True, gradient=2).bytes == 4 * (2 * (21 + 35) + 4 * 15)


@given(
    m=st.integers(1, 40).map(lambda x: 64 * x),
    n=st.integers(1, 40).map(lambda x: 64 * x),
    k=st.integers(1, 80).map(lambda x: 64 * x),
    groups=st.integers(1, 300),
    exposed=st.floats(0, 1),
)
def test_a_grouped_product_lies_between_perfect_overlap_and_none(m, n, k, groups, exposed):
    card = device_from_tree({**PLAIN, "gemm": {**PLAIN["gemm"], "exposed": exposed}})
    plain_one, grouped = Gemm(m, n, k, groups), Gemm(m, n, k, groups, grouped=True)
    moving = grouped.bytes / 1e12
    overlapped = kernel_time(card, plain_one) - 2e-6
    infinite = device_from_tree({**PLAIN, "memory": {**PLAIN["memory"], "bandwidth": "100 PB/s"}})
    computing = kernel_time(infinite, plain_one) - 2e-6
    found = kernel_time(card, grouped) - 2e-6
    assert overlapped - 1e-15 <= found
    # splitting K, whose partial sums move as well, only makes the compute side longer than it is with an infinite memory
    assert found >= max(computing, moving) + exposed * min(computing, moving) - 1e-15
    if exposed == 0:
        assert found == overlapped


def test_gemm_takes_the_smaller_tile_when_it_saves_a_wave():
    # one more column: 110 tiles of 256 x 128 need two waves; 440 of 128 x 64 need five of a quarter of the work at 0.8 of the rate
    time = kernel_time(plain(), Gemm(2560, 1408, 1024))
    assert time == pytest.approx(5 * 2 * 128 * 64 * 1024 / (0.5e12 * 0.8) + 2e-6, rel=1e-12)
    assert 5 / 4 / 0.8 < 2


def test_gemm_bound_by_memory():
    gemm = Gemm(64, 8192, 64)
    assert kernel_time(plain(), gemm) >= gemm.bytes / 1e12 + 2e-6


def test_split_k_helps_few_tiles_with_long_k():
    # 8 tiles on 100 SMs: K = 65536 is cut in 8, partial sums cost 4 bytes each way and a second kernel
    gemm = Gemm(512, 512, 65536)
    whole = 2 * 256 * 128 * 65536 / 0.5e12 + 2e-6
    split = 2 * 256 * 128 * 8192 / 0.5e12 + 512 * 512 * (4 * 8 + 2) / 1e12 + 2e-6 + 2e-6
    assert kernel_time(plain(), gemm) <= split < whole


def test_long_k_is_cut_until_the_device_is_full():
    # one tile of 32 x 32 (0.375 of the rate of 128 x 64, itself 0.8) at K = 2^20: 64 pieces, still one wave; rows of 64 bytes: 0.9
    gemm = Gemm(32, 32, 2**20)
    time = 2 * 32 * 32 * 2**14 / (0.5e12 * 0.8 * 0.375 * 0.9) + 32 * 32 * (4 * 64 + 2) / 1e12 + 2e-6 + 2e-6
    assert kernel_time(plain(), gemm) == pytest.approx(time, rel=1e-12)


def test_rate_of_tiles():
    shares = [(256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.8), (128, 64, 0.8), (64, 64, 0.6), (64, 32, 0.4), (32, 32, 0.3)]
    for m, n, share in shares:  # m n / (m + n) of a tile under 128 x 64 over 42.7
        assert tile_share((m, n), 0.8) == pytest.approx(share)


def with_gemm(**numbers):
    return device_from_tree({**PLAIN, "gemm": {**PLAIN["gemm"], **numbers}})


def test_operands_along_k():
    # TN: both operands are contiguous along K, NN: the first, NT: none
    whole = 2 * 256 * 128 * 1024 / 0.5e12
    for layout, operands in (("TN", 2), ("NN", 1), ("NT", 0)):
        time = kernel_time(with_gemm(k_major=0.9), Gemm(2560, 1280, 1024, layout=layout))
        assert time == pytest.approx(whole / 0.9**operands + 2e-6, rel=1e-12)
    # a skinny product streams its large operand; only where that one lies along K is it slow
    device = replace(with_gemm(k_major_stream=0.5), bandwidth=0.1e12)
    for m, n, layout, slow in ((16, 8192, "TN", 1), (16, 8192, "NN", 0), (8192, 16, "TN", 1), (8192, 16, "NN", 1), (8192, 16, "NT", 0),
                               (128, 8192, "TN", 0)):  # fmt: skip
        gemm = Gemm(m, n, 8192, layout=layout)
        assert kernel_time(device, gemm) == pytest.approx(gemm.bytes / 0.1e12 * (2 if slow else 1) + 2e-6, rel=1e-12)


def test_launch_of_a_product():
    assert kernel_time(with_gemm(latency="5 us"), Gemm(2560, 1280, 1024)) == pytest.approx(
        kernel_time(plain(), Gemm(2560, 1280, 1024)) + 3e-6, rel=1e-12
    )


def test_alignment_penalties():
    fast, line, odd = (kernel_time(plain(), Gemm(2560, 1280, k)) - 2e-6 for k in (1024, 1024 - 8, 1024 - 3))
    assert line == pytest.approx(fast * 1016 / 1024 / 0.9)
    assert odd == pytest.approx(fast * 1021 / 1024 / 0.44)
    tokens = kernel_time(plain(), Gemm(2559, 1280, 1024)) - 2e-6  # rows are not contiguous: no penalty beyond the tile
    assert tokens == pytest.approx(fast)


def test_fp32_uses_its_own_peak():
    assert kernel_time(plain(), Gemm(2560, 1280, 1024, dtype="fp32", element=4)) == pytest.approx(
        2 * 256 * 128 * 1024 / (10e12 / 100 * 0.5) + 2e-6
    )


def test_prologue_without_tensor_cores():
    # K = 1024 and 100 for prologue and epilogue on tensor cores; the same time is 10 steps of arithmetic at a tenth of the rate
    device = with_gemm(k_half=100)
    assert kernel_time(device, Gemm(2560, 1280, 1024)) == pytest.approx(2 * 256 * 128 * 1124 / 0.5e12 + 2e-6)
    assert kernel_time(device, Gemm(2560, 1280, 1024, dtype="fp32", element=4)) == pytest.approx(2 * 256 * 128 * 1034 / 0.05e12 + 2e-6)


def test_attention_by_hand():
    attention = Attention(batch=8, heads=32, kv_heads=32, queries=2048, keys=2048, head_dim=128, causal=True)
    flop = 2 * (2048 * 2049 / 2) * 8 * 32 * 256
    assert attention.flop == flop
    ramp = 2048 / 2248
    assert kernel_time(plain(), attention) == pytest.approx(flop / (100e12 * 0.5 * ramp) + 2e-6, rel=1e-12)
    backward = Attention(8, 32, 32, 2048, 2048, 128, causal=True, backward=True)
    assert kernel_time(plain(), backward) == pytest.approx(2.5 * flop / (100e12 * 0.4 * ramp) + 2e-6, rel=1e-12)
    small = Attention(8, 32, 32, 2048, 2048, 64, causal=True)
    assert kernel_time(plain(), small) == pytest.approx(flop / 2 / (100e12 * 0.5 * 0.8 * ramp) + 2e-6, rel=1e-12)


def test_attention_occupancy():
    # one sample, two heads, 512 queries: 8 blocks of 128 queries on 100 SMs
    attention = Attention(1, 2, 2, 512, 512, 128, causal=False)
    assert kernel_time(plain(), attention) == pytest.approx(attention.flop / (100e12 * 0.5 * 512 / 548 * 0.08) + 2e-6, rel=1e-12)
    # causal blocks differ: the last one, with all keys, works twice as long as their mean (but for the diagonal)
    causal = Attention(1, 2, 2, 512, 512, 128, causal=True)
    longest = 2 * 128 * 512 * 256
    assert kernel_time(plain(), causal) == pytest.approx(longest / (1e12 * 0.5 * 512 / 712) + 2e-6, rel=1e-12)


def with_attention(**numbers):
    return device_from_tree({**PLAIN, "attention": {"flash2": {"forward": 0.5, "backward": 0.4, "s_half": 0, **numbers}}})


def test_causal_blocks_end_late():
    # 64 heads of 16 blocks: 1024 blocks on 100 SMs; Graham: no later than the mean and one longest block
    attention = Attention(1, 64, 64, 2048, 2048, 128, causal=True)
    rate, longest = 1e12 * 0.5 * 2048 / 2176, 2 * 128 * 2048 * 256
    for tail in (0.0, 0.5, 1.0):
        time = kernel_time(with_attention(tail_forward=tail), attention)
        assert time == pytest.approx((attention.flop / 100 + tail * longest) / rate + 2e-6, rel=1e-12)
    # taller blocks are fewer and longer, and the backward pass has its own
    time = kernel_time(with_attention(tail_forward=1.0, block=256), attention)
    assert time == pytest.approx((attention.flop / 100 + 2 * longest) / rate + 2e-6, rel=1e-12)
    backward = Attention(1, 64, 64, 2048, 2048, 128, causal=True, backward=True)
    time = kernel_time(with_attention(tail_forward=1.0, tail_backward=0.25, block=256), backward)
    assert time == pytest.approx(2.5 * (attention.flop / 100 + 0.25 * longest) / (rate * 0.8) + 2e-6, rel=1e-12)
    # without a mask all blocks are equal
    assert kernel_time(with_attention(tail_forward=1.0), Attention(1, 64, 64, 2048, 2048, 128, causal=False)) == pytest.approx(
        2 * 2048 * 2048 * 64 * 256 / 50e12 + 2e-6
    )


@pytest.mark.parametrize(
    ("head", "value", "share"),
    [
        (64, 0, 0.8), (128, 0, 1.0), (256, 0, 0.6), (192, 0, 0.8), (96, 0, 0.9), (32, 0, 0.8),
        (80, 0, 0.9 * 80 / 96),  # runs as 96
        (160, 0, 0.8 * 160 / 192),
        (192, 128, 0.8),  # multi-head latent attention
    ],
)  # fmt: skip
def test_head_sizes(head, value, share):
    table = plain().attention["flash2"]
    assert head_size_share(table, Attention(1, 8, 8, 512, 512, head, causal=True, value_dim=value)) == pytest.approx(share)


@pytest.mark.parametrize(("value", "backward", "share"), [(128, True, 0.3), (128, False, 0.8), (192, True, 0.8), (0, True, 0.8)])
def test_values_with_smaller_heads_have_a_backward_kernel_of_their_own(value, backward, share):
    table = with_attention(d256=0.6, unequal_backward=0.3).attention["flash2"]
    kernel = Attention(1, 8, 8, 512, 512, 192, causal=True, backward=backward, value_dim=value)
    assert head_size_share(table, kernel) == pytest.approx(share)


def test_short_sequences_and_causal_masks_derate():
    table = with_attention(s_half=100).attention["flash2"]
    ramp = {(causal, head): attention_ramp(table, Attention(1, 8, 8, 512, 512, head, causal=causal)) for causal in (False, True)
            for head in (64, 128, 256)}  # fmt: skip
    assert ramp == {(False, 64): 100, (False, 128): 100, (False, 256): 200, (True, 64): 328, (True, 128): 328, (True, 256): 528}
    # n blocks of 128: n (n + 1) / 2 tiles are computed where n^2 / 2 are counted: 512 tokens 0.8, 8192 tokens 0.985
    table = with_attention(s_half=0).attention["flash2"]
    for blocks in (4, 64):
        sequence = 128 * blocks
        half = attention_ramp(table, Attention(1, 8, 8, sequence, sequence, 128, causal=True))
        assert sequence / (sequence + half) == pytest.approx(blocks / (blocks + 1))


def test_training_clock_slows_products_and_attention_alike():
    slow = device_from_tree({**PLAIN, "compute": {**PLAIN["compute"], "clock_derate": 0.8}})
    for kernel in (Gemm(2560, 1280, 1024), Attention(8, 32, 32, 2048, 2048, 128, causal=True)):
        assert kernel_time(slow, kernel) - 2e-6 == pytest.approx((kernel_time(plain(), kernel) - 2e-6) / 0.8)
    assert kernel_time(slow, Memory(1e9)) == kernel_time(plain(), Memory(1e9))


def test_memory_and_fixed():
    assert kernel_time(plain(), Memory(3e9, launches=2)) == pytest.approx(3e-3 + 4e-6, rel=1e-12)
    assert kernel_time(plain(), Memory(0, launches=0)) == 0.0
    assert kernel_time(plain(), Fixed(0.0185)) == 0.0185


def test_bandwidth_ramp_of_small_kernels():
    # x / (x + x0): half of the rate at x0, which 2 us and the streaming rate make 2-4 MiB for each 2 TB/s
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb"):
        card = device(name)
        rate = card.bandwidth * card.memory_efficiency
        half = card.kernel_latency * rate
        assert 2 * 2**20 <= half / (card.bandwidth / 2e12) <= 4 * 2**20
        for size in (half / 4, half, 16 * half):
            assert size / kernel_time(card, Memory(size)) == pytest.approx(rate * size / (size + half), rel=1e-12)
    slow = device_from_tree({**PLAIN, "memory": {**PLAIN["memory"], "half_size": "8 MiB"}})
    assert kernel_time(slow, Memory(2**23)) == pytest.approx(2 * 2**23 / 1e12)
    assert kernel_time(slow, Memory(2**23, launches=2)) == pytest.approx(3 * 2**23 / 1e12)


def test_foreach_adamw_on_a_b200():
    # stas00/ml-engineering: 46.6 ms for the 8.03e9 bf16 parameters of Llama-3.1-8B, states in bf16 too: 20 passes of 2 B
    precision = Precision("pure-bf16", parameters=2, gradients=2, master=0, optimizer_element=2)
    count = 8_030_261_248
    (step,) = step_kernels(Optimizer("adamw", "foreach", clip_gradients=False), precision, count, 4 * count, 291)
    assert step.bytes == pytest.approx(40 * count)
    assert kernel_time(device("b200-sxm-180gb"), step) == pytest.approx(46.6e-3, rel=0.02)
    (fused,) = step_kernels(Optimizer("adamw", "fused", clip_gradients=False), precision, count, 4 * count, 291)
    assert fused.bytes == 14 * count


def test_cached_tensors_move_faster():
    """Where a device file says so: no shipped one does, for want of a measured kernel."""
    a100 = device("a100-sxm-80gb")
    large, small = memory_rate(replace(a100, l2_gain=0.3), 2**33), memory_rate(replace(a100, l2_gain=0.3), 2**20)
    assert large == pytest.approx(0.82 * 2039e9)
    assert small == pytest.approx(0.82 * 2039e9 * (1 + 0.3 * math.exp(-(2**19) / (40 * 2**20))))
    assert memory_rate(a100, 2**20) == large


def test_impossible_kernels_are_errors():
    with pytest.raises(TopologyError, match="bf16"):
        kernel_time(device("v100-sxm2-32gb"), Gemm(128, 128, 128))
    with pytest.raises(TopologyError, match="flash2"):
        kernel_time(device("v100-sxm2-32gb"), Attention(1, 8, 8, 512, 512, 64, causal=True, dtype="fp16"))
    with pytest.raises(TopologyError, match="fp8"):
        kernel_time(device("a100-sxm-80gb"), Gemm(128, 128, 128, dtype="fp8"))


# MooreThreads/SimuMax configs/system/a100_pcie.json: (m, n, k, accumulates into fp32, TFLOP/s measured)
PUBLISHED = [
    (5120, 16384, 4096, True, 224.3),
    (4096, 5120, 102400, False, 237.7),
    (4096, 7168, 18432, False, 230.5),
    (4096, 6144, 4096, False, 223.6),
    (4096, 2048, 4096, True, 187.9),
    (4096, 3584, 4096, False, 201.2),
    (4096, 4096, 16128, False, 236.5),
    (4096, 128256, 8192, False, 232.3),
    (2560, 8192, 4096, True, 219.1),
    (4096, 7168, 8192, False, 225.0),
]


@pytest.mark.parametrize(("dtype", "element", "milliseconds"), [("bf16", 2, 12.758), ("fp8", 1, 6.812)])
def test_products_of_a_layer_on_a_b300(dtype, element, milliseconds):
    """NVIDIA/TransformerEngine docs/examples/gemm_profiling: 15872 tokens, hidden size 4096, MLP 16384, forward and both gradients."""
    tokens, hidden = 15872, 4096
    seconds = 0.0
    for k, n in ((hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)):
        for gemm in (
            Gemm(tokens, n, k, dtype=dtype, element=element),
            Gemm(tokens, k, n, dtype=dtype, element=element, layout="NN"),
            Gemm(n, k, tokens, dtype=dtype, element=element, layout="NT", weight_gradient=True),
        ):
            seconds += kernel_time(device("b300-sxm-288gb"), gemm)
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.01)


def test_published_matrix_products_of_an_a100():
    card = device("a100-pcie-80gb")
    errors = []
    for m, n, k, accumulates, teraflops in PUBLISHED:
        gemm = Gemm(m, n, k, weight_gradient=accumulates)
        errors.append(abs(gemm.flop / kernel_time(card, gemm) / (teraflops * 1e12) - 1))
    assert median(errors) < 0.02
    assert max(errors) < 0.09


sizes = st.integers(1, 20000)


@settings(max_examples=100, deadline=None)
@given(sizes, sizes, sizes)
def test_no_gemm_beats_peak_or_memory(m, n, k):
    card = device("a100-sxm-80gb")
    gemm = Gemm(m, n, k)
    time = kernel_time(card, gemm)
    assert time > gemm.flop / 312e12
    assert time > gemm.bytes / 2039e9


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 160), st.integers(1, 160), st.integers(1, 160), st.sampled_from(["m", "n", "k"]))
def test_gemm_grows_with_every_dimension(m, n, k, which):
    card = device("h100-sxm-80gb")
    dims = {"m": 64 * m, "n": 64 * n, "k": 64 * k}
    longer = {**dims, which: 2 * dims[which]}
    assert kernel_time(card, Gemm(**longer)) >= kernel_time(card, Gemm(**dims)) * (1 - 1e-12)


@settings(max_examples=50, deadline=None)
@given(st.floats(1, 1e11), st.integers(1, 50))
def test_memory_work_never_beats_the_bandwidth(size, launches):
    card = device("a100-sxm-80gb")
    time = kernel_time(card, Memory(size, launches=launches))
    assert time >= size / (2039e9 * 0.82) + launches * 2e-6 - 1e-15


class TestAttentionTables:
    """fp8 kernels, head size 64 backward and windows by numbers of their own."""

    CORE = Attention(1, 64, 8, 8192, 8192, 64, causal=True, implementation="cudnn")

    def table(self, **numbers):
        card = device("gb200-186gb")
        return replace(card, attention=dict(card.attention) | {"cudnn": AttentionEfficiency(0.8, 0.5, 0.0, **numbers)})

    def test_head_size_64_backward(self):
        same, own = self.table(d64=0.5), self.table(d64=0.5, d64_backward=0.8)
        assert kernel_time(own, self.CORE) == kernel_time(same, self.CORE)
        backward = replace(self.CORE, backward=True)
        times = [kernel_time(one, backward) - one.kernel_latency for one in (same, own)]
        assert times[0] / times[1] == pytest.approx(0.8 / 0.5)

    def test_backward_kernels_that_do_not_skip_keys_outside_of_a_window(self):
        skips, not_so = self.table(), self.table(window_backward=False)
        near = replace(self.CORE, window=128)
        assert kernel_time(skips, near) == kernel_time(not_so, near)
        back = replace(near, backward=True)
        assert kernel_time(not_so, back) == kernel_time(not_so, replace(back, window=0)) > kernel_time(skips, back)

    def test_fp8_kernels(self):
        card = device("gb200-186gb")
        narrow = replace(self.CORE, dtype="fp8")
        assert attention_table(card, narrow) == "cudnn-fp8"
        assert attention_table(card, self.CORE) == "cudnn"
        assert attention_table(card, replace(narrow, implementation="flash3")) == "flash3"
        assert "cudnn-fp8" not in card.attention_kernels
        # measured: at head size 128 an fp8 forward is 1.2 times as fast as bf16, not twice
        wide = [replace(one, head_dim=128) for one in (self.CORE, narrow)]
        assert kernel_time(card, wide[0]) / kernel_time(card, wide[1]) == pytest.approx(1.2, abs=0.08)


def test_a_kernel_that_issues_more_than_it_moves():
    """1 GB at 1 TB/s are 1 ms; multiprocessors busy for 2e10 operations at 10 TFLOP/s 2 ms, whatever the memory; launches take 2 us."""
    plain = device_from_tree(PLAIN)
    moved, issued, less = Memory(1e9), Memory(1e9, vector=2e10, launches=3), Memory(1e9, vector=2e9)
    assert kernel_time(plain, moved) == pytest.approx(1e-3 + 2e-6)
    assert kernel_time(plain, issued) == pytest.approx(2e-3 + 3 * 2e-6)
    assert kernel_time(plain, less) == kernel_time(plain, moved)
    assert kernel_time(replace(plain, bandwidth=4e12), issued) == kernel_time(plain, issued)
    assert kernel_time(replace(plain, compute_capability=8.0), issued) == pytest.approx(1e-3 + 3 * 2e-6), "two slots per fp32 lane"
