"""Norms and losses against published times of their kernels, one by one.

linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv: medians in ms of ``torch.nn.LayerNorm`` (rows "huggingface", fp32, 4096 rows;
backward of the A100 is full less forward), of ``torch.nn.CrossEntropyLoss`` (fp32 logits of 8 x 2048 tokens; "full" adds the gradient of
the logits to the one before: three passes more) and of Megatron-LM's cross entropy (bf16 logits of 4 x 2048 tokens; its mode "backward"
runs the forward, too). NVIDIA/apex pull request 1037: norms of 32 x 512 tokens of width 1024 in fp16 on an A100 of 1555 GB/s.
"""

from __future__ import annotations

import pytest
from hardware_graphs import device

from parsim.hardware.kernels import kernel_time
from parsim.model.elementwise import LayerNorm
from parsim.model.loss import Loss
from parsim.model.model import Workload

A100, H100, A100_40 = "a100-sxm-80gb", "h100-sxm-80gb", "a100-sxm-40gb"


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
