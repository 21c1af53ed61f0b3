"""Recomputation operator by operator, as torchtitan's ``selective_ac_option = "op"``: what a layer keeps of its products.

torchtitan (torchtitan/parallelisms/parallelize_llama.py of 2024, torchtitan/distributed/activation_checkpoint.py of 2025, ``_save_list``
and "every second mm") counts the matrix products of a layer in the order in which they run and keeps the results of the first, third,
... and those of fused attention (``_scaled_dot_product_flash_attention``, its log-sum-exp included) and of reduce-scatters; everything
else, every second product too, runs again from the layer's input. A Llama layer so keeps queries, values, the core's output and the
gate, and computes keys, attention's output projection and the up projection again. A result that backward does not need (the last
product's) is kept in eager PyTorch, whose cache is filled by the policy alone (torch/utils/checkpoint.py, _CachingTorchDispatchMode),
but not under torch.compile, whose minimum cut saves no tensor without a use. ``[matmuls, attention]`` computes fused attention again too,
as torchtitan did with cuDNN's kernel, its first choice on B200, which the list has since December 2025 (PR 2095).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from parsim.kernel import Gemm, Kernel
from parsim.model.linear import Linear
from parsim.model.model import Operator, Work
from parsim.model.workload import Workload

MATMULS = "matmuls"
"""the word of `training.recompute.selective` for it"""


class KeptProduct(NamedTuple):
    """What stays of one operator's products."""

    kept: int
    """bytes of its output that stay"""
    again: tuple[Kernel, ...]
    """kernels that make the rest again, and low-precision copies of its input"""


def kept_products(operators: Sequence[Operator], works: Sequence[Work], at: Workload) -> Mapping[int, KeptProduct]:
    """The products of a block, by the operator's place. Query, key and value, or gate and up, count one by one where they are several
    weights; of a row-parallel product under sequence parallelism the reduce-scatter's result stays.
    """
    found: dict[int, KeptProduct] = {}
    count = 0
    for place, (operator, work) in enumerate(zip(operators, works, strict=True)):
        if not isinstance(operator, Linear):
            continue
        widths = operator.out_features
        stays = [(count + number) % 2 == 0 for number in range(len(widths))]
        count += len(widths)
        scattered = operator.split == "row" and at.sequence_parallel and at.tensor > 1
        kept = sum(width for width, keep in zip(widths, stays, strict=True) if keep or scattered)
        size = work.output * kept // sum(widths)
        casts = tuple(kernel for kernel in work.forward if not isinstance(kernel, Gemm))
        found[place] = KeptProduct(size, casts if size == work.output else _again(operator, stays, at))
    return found


def _again(operator: Linear, stays: Sequence[bool], at: Workload) -> tuple[Kernel, ...]:
    """The forward kernels of the weights whose results do not stay."""
    bias = operator.bias if isinstance(operator.bias, tuple) else (operator.bias,) * len(stays)
    lost = tuple(width for width, keep in zip(operator.out_features, stays, strict=True) if not keep)
    part = replace(operator, out_features=lost, parameter_names=(), bias=tuple(b for b, keep in zip(bias, stays, strict=True) if not keep))
    return part.work(at).forward
