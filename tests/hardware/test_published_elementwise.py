"""Norms, losses and what Megatron-LM spells out for experts against times of their kernels, one by one.

linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv: medians in ms of ``torch.nn.LayerNorm`` (rows "huggingface", fp32, 4096 rows;
backward of the A100 is full less forward), of ``torch.nn.CrossEntropyLoss`` (fp32 logits of 8 x 2048 tokens; "full" adds the gradient of
the logits to the one before: three passes more) and of Megatron-LM's cross entropy (bf16 logits of 4 x 2048 tokens; its mode "backward"
runs the forward, too). NVIDIA/apex pull request 1037: norms of 32 x 512 tokens of width 1024 in fp16 on an A100 of 1555 GB/s.
Megatron-LM's formulas for experts (fused_bias_swiglu.py, fused_bias_geglu.py, experts.py: _apply_bias, rope_utils.py) on an H100 SXM:
validation/gemm/elementwise.csv; a copy of 1 GiB reaches 3.02 TB/s there (the device streams 2.73, as its norms do). Its operations that
put tokens in order (moe_utils.py: permute, unpermute, sort_chunks_by_idxs), and what transformers leaves to PyTorch, on an H200 SXM, in
the same file.
ROCm/TransformerEngine pull request 598, column B200: casts of Transformer Engine.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hardware_graphs import device

from parsim.hardware.kernels import kernel_time
from parsim.kernel import WIDENED, Memory
from parsim.model.attention import Rotary
from parsim.model.elementwise import GatedActivation
from parsim.model.loss import Loss
from parsim.model.low_precision import TRANSFORMER_ENGINE, Quantisation
from parsim.model.mixture import Combine, Dispatch, GroupedLinear
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.permutation import Permutation, chunks_sorted
from parsim.model.workload import Workload
from parsim.parallel.optimizer import step_kernels
from parsim.parallel.training import Optimizer
from parsim.scenario.precision import PRESETS

ROOT = Path(__file__).parent.parent.parent
A100, H100, A100_40, H200 = "a100-sxm-80gb", "h100-sxm-80gb", "a100-sxm-40gb", "h200-sxm-141gb"


def milliseconds(name, kernels):
    return 1e3 * sum(kernel_time(device(name), kernel) for kernel in kernels)


@pytest.mark.parametrize(
    ("gpu", "width", "forward", "backward"),
    [
        (A100, 4096, 0.1218, 0.4314 - 0.1218),
        (A100, 8192, 0.2576, 0.8296 - 0.2576),
        (A100, 16384, 0.5067, 1.6213 - 0.5067),
        (H100, 4096, 0.0662, 0.1788),
        (H100, 8192, 0.1527, 0.3337),
        (H100, 16384, 0.3068, 0.6424),
    ],
)
def test_layer_norm_of_pytorch(gpu, width, forward, backward):
    work = LayerNorm("n", ("x",), "y", width).work(Workload(1, 4096, element=4))
    assert milliseconds(gpu, work.forward) == pytest.approx(forward, rel=0.14)
    assert milliseconds(gpu, work.backward_input) == pytest.approx(backward, rel=0.12)


@pytest.mark.parametrize(("reads_twice", "forward", "backward"), [(True, 0.0751, 0.1762), (False, 0.0535, 0.0866)])
def test_layer_norms_of_apex(reads_twice, forward, backward):
    """The kernels before and after FastLayerNorm. Tensors of 34 MB: the cache helps kernels that come back to their input."""
    work = LayerNorm("n", ("x",), "y", 1024).work(Workload(32, 512, fused=True, two_pass_norm=reads_twice))
    assert milliseconds(A100_40, work.forward) == pytest.approx(forward, rel=0.15)
    assert milliseconds(A100_40, work.backward_input) == pytest.approx(backward, rel=0.15)


@pytest.mark.parametrize(("classes", "forward", "full"), [(32768, 5.3168, 15.486), (65536, 10.6151, 30.7781), (131072, 20.7264, 60.4383)])
def test_cross_entropy_of_pytorch(classes, forward, full):
    at = Workload(8, 2048, element=4)
    work = Loss("l", ("x",), "y", classes).work(at)
    accumulated = [type(work.forward[0])(3 * 4.0 * at.tokens * classes)]
    assert milliseconds(A100, work.forward) == pytest.approx(forward, rel=0.05)
    assert milliseconds(A100, (*work.forward, *work.backward_input, *accumulated)) == pytest.approx(full, rel=0.05)


@pytest.mark.parametrize(("classes", "forward", "full"), [(32768, 4.0231, 5.4121), (65536, 7.9344, 10.6697), (131072, 15.8124, 21.2467)])
def test_cross_entropy_of_megatron(classes, forward, full):
    work = Loss("l", ("x",), "y", classes).work(Workload(4, 2048, fused=True, loss_kernel="vocab-parallel"))
    assert milliseconds(H100, work.forward) == pytest.approx(forward, rel=0.1)
    assert milliseconds(H100, (*work.forward, *work.backward_input)) == pytest.approx(full, rel=0.1)


@pytest.mark.parametrize(("classes", "forward", "full"), [(32768, 2.8313, 4.4489), (65536, 5.7631, 8.9818), (131072, 11.8098, 18.2319)])
def test_fused_cross_entropy_of_megatron(classes, forward, full):
    work = Loss("l", ("x",), "y", classes).work(Workload(4, 2048, fused=True, loss_kernel="vocab-parallel-fused"))
    assert milliseconds(H100, work.forward) == pytest.approx(forward, rel=0.1)
    assert milliseconds(H100, (*work.forward, *work.backward_input)) == pytest.approx(full, rel=0.1)


def measured(kernel: str) -> list[dict[str, str]]:
    """Rows of validation/gemm/elementwise.csv."""
    rows = csv.DictReader((ROOT / "validation" / "gemm" / "elementwise.csv").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["kernel"].startswith(kernel)]


def microseconds(kernels, gpu=H100) -> float:
    return 1e3 * milliseconds(gpu, kernels)


@pytest.mark.parametrize("row", measured("weighted swiglu"), ids=lambda row: f"{row['rows']}x{row['columns']}")
def test_weighted_swiglu_of_megatron(row):
    work = GatedActivation("a", ("x",), "y", int(row["columns"]), copies=8).work(Workload(1, int(row["rows"]) // 8, fused=True, expert=8))
    assert microseconds(work.forward) == pytest.approx(float(row["forward_us"]), rel=0.13)
    assert microseconds(work.backward_input) == pytest.approx(float(row["backward_us"]), rel=0.06)


def test_bounded_experts_of_megatron():
    """The bounds of 65,536 rows, and quick GELU with its weights, of which half as many were measured."""
    (bounds,), (gelu,) = measured("bounds"), measured("weighted quick geglu")
    work = GatedActivation("a", ("x",), "y", 2880, copies=4, clamp=True).work(Workload(1, 16384, fused=True, expert=8))
    for kernels, way in ((work.forward, "forward_us"), (work.backward_input, "backward_us")):
        assert microseconds(kernels) == pytest.approx(float(bounds[way]) + 2 * float(gelu[way]), rel=0.05)


@pytest.mark.parametrize("row", measured("weighted bias"), ids=lambda row: row["weights"])
def test_weighted_bias_of_megatron(row):
    """16 experts of 4,096 rows of 2,880; HybridEP hands weights out in fp32, all-to-all in bf16."""
    linear = GroupedLinear("down", ("x",), "y", 2880, 2880, 128, 4, "row", bias=True)
    dispatcher = {"fp32": "hybridep", "bf16": "alltoall"}[row["weights"]]
    work = linear.work(Workload(1, 16384, fused=True, expert=8, expert_tensor=1, dispatcher=dispatcher))
    kernels = [[kernel for kernel in kernels if isinstance(kernel, Memory)] for kernels in (work.forward, work.backward_input)]
    assert microseconds(kernels[0]) == pytest.approx(float(row["forward_us"]), rel=0.16)
    assert microseconds(kernels[1]) == pytest.approx(float(row["backward_us"]), rel=0.09)


def test_rotary_positions_that_are_spelt_out():
    (row,) = measured("scaled rotary positions")
    work = Rotary("r", ("q",), "y", 64, 0, 64, scaled=True).work(Workload(4, 4096, fused=True))
    assert microseconds(work.forward) == pytest.approx(float(row["forward_us"]), rel=0.06)
    assert microseconds(work.backward_input) == pytest.approx(float(row["backward_us"]), rel=0.06)


HOST = 64.0
"""what the host takes in either forward operation until the device goes on with the next, beside the kernels [us]"""


def permutation(row) -> tuple[Permutation, int]:
    """Of a row of measurements, and the bytes of a row of tokens."""
    top_k, experts = (int(word) for word in row["kernel"].split() if word.isdigit())
    tokens, columns = int(row["rows"]), int(row["columns"])
    return Permutation(tokens, experts, tokens * top_k, columns), 2 * columns


def shape(row) -> str:
    return f"{row['rows']}x{row['columns']}, {row['kernel'].partition(', ')[2]}"


@pytest.mark.parametrize("row", measured("permute"), ids=shape)
def test_copies_of_tokens_by_operations(row):
    """What many experts read comes out of the cache: 16 % too slow at most."""
    order, width = permutation(row)
    forward, backward = microseconds((order.choice, order.copied(width)), H200), microseconds(order.added(width), H200)
    assert forward + HOST == pytest.approx(float(row["forward_us"]), rel=0.16)
    assert backward == pytest.approx(float(row["backward_us"]), rel=0.052)


@pytest.mark.parametrize("row", measured("unpermute"), ids=shape)
def test_sums_of_weighted_rows_by_operations(row):
    order, width = permutation(row)
    forward = (order.weights, order.weighted(width), *order.summed(width))
    backward = (order.gathered(width), *order.weighting_gradients(width), order.weight_gradients)
    assert microseconds(forward, H200) + HOST == pytest.approx(float(row["forward_us"]), rel=0.075)
    assert microseconds(backward, H200) == pytest.approx(float(row["backward_us"]), rel=0.05)


@pytest.mark.parametrize("row", measured("sorted chunks"), ids=shape)
def test_sorted_chunks_of_experts(row):
    """A copy reaches 4.24 TB/s on this card, where the device streams 3.94."""
    order, width = permutation(row)
    kernel = chunks_sorted(order.rows, width, order.experts, weights=False)
    assert microseconds((kernel,), H200) == pytest.approx(float(row["forward_us"]), rel=0.1)


@pytest.mark.parametrize("row", measured("index_select"), ids=shape)
def test_copies_of_rows_alone(row):
    order, width = permutation(row)
    assert microseconds((order.copied(width),), H200) == pytest.approx(float(row["forward_us"]), rel=0.33)


@pytest.mark.parametrize("gpu", ["v100-sxm2-32gb", "a100-sxm-80gb", H100, H200, "b200-sxm-180gb", "mi300x-192gb", "mi355x-288gb"])
@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep", "hybridep"])
@pytest.mark.parametrize("expert", [1, 4])
def test_fused_kernels_are_no_slower_than_operations(gpu, dispatcher, expert):
    for operator in (Dispatch, Combine):
        layer = operator("o", ("x", "choice"), "y", 512, 2, 8)
        fused, operations = (
            layer.work(Workload(1, 1000, fused=True, expert=expert, expert_tensor=1, dispatcher=dispatcher, permute_fusion=fusion))
            for fusion in (True, False)
        )
        assert microseconds(fused.forward, gpu) <= microseconds(operations.forward, gpu)
        assert microseconds(fused.backward_input, gpu) <= microseconds(operations.backward_input, gpu)


@pytest.mark.parametrize(("trains", "measured"), [(False, 0.03484), (True, 0.05234)])
def test_mxfp8_casts_of_transformer_engine(trains, measured):
    """8,192 x 8,192, by rows, by rows and columns; the launch counts once more here."""
    casts = Quantisation("mxfp8", TRANSFORMER_ENGINE, tn_only=False, caches_weights=True)
    kernels = casts.input(8192 * 8192, trains=trains, gathers=False, after_norm=False)
    assert milliseconds("b200-sxm-180gb", kernels) == pytest.approx(measured, rel=0.07)


def test_norms_of_transformers():
    (row,) = measured("rms norm of transformers")
    work = RMSNorm("n", ("x",), "y", int(row["columns"])).work(Workload(1, int(row["rows"])))
    assert microseconds(work.forward, H200) == pytest.approx(float(row["forward_us"]), rel=0.03)
    assert microseconds(work.backward_input, H200) == pytest.approx(float(row["backward_us"]), rel=0.05)


def test_rotary_positions_of_transformers():
    (row,) = measured("rotary positions of transformers")
    work = Rotary("r", ("qkv",), "y", 32, 8, 64).work(Workload(8, 2048))
    assert microseconds(work.forward, H200) == pytest.approx(float(row["forward_us"]), rel=0.05)
    assert microseconds(work.backward_input, H200) == pytest.approx(float(row["backward_us"]), rel=0.05)


def test_adam_of_sixteen_bits():
    (row,) = measured("adamw fused")
    count = int(row["rows"]) * int(row["columns"])
    (step,) = step_kernels(Optimizer("adamw", "fused", clip_gradients=False), PRESETS["pure-bf16"], count, 4 * count, 2)
    assert microseconds((step,), H200) == pytest.approx(float(row["forward_us"]), rel=0.03)


def test_copies_to_fp32():
    (row,) = measured("copy to fp32")
    count = int(row["rows"]) * int(row["columns"])
    assert microseconds((Memory(6 * count, vector=WIDENED * count),), H200) == pytest.approx(float(row["forward_us"]), rel=0.03)
