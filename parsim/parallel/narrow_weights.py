"""Weights that travel in fp8 (`training.precision.gather: fp8`), and what making them so costs.

=======================  ========================================  ==============================================================
                         torchao, FSDP2                            Megatron-LM, distributed optimizer
=======================  ========================================  ==============================================================
which                    matrices of linear layers with fp8        those, and experts: primary weights in fp8, no 16-bit copy
                         products
on the wire              1 B an element in every gather            1 B an element
cast                     own share, before each gather             own share, behind the optimizer's update
largest values           of the own share, behind the step; one    of the own share, behind the update (recipes that look for them
                         all-reduce of all weights' values         first); one all-reduce of all weights' values
behind the gather        backward copies a weight by columns       Hopper and blocks: transposed once a step
=======================  ========================================  ==============================================================

pytorch/torchao ``float8/fsdp_utils.py`` (WeightWithDynamicFloat8CastTensor: fsdp_pre_all_gather and fsdp_post_all_gather;
precompute_float8_dynamic_scale_for_fsdp, which torchtitan calls behind the step), ``float8/README.md`` (tensorwise only).
NVIDIA/Megatron-LM ``--fp8-param-gather``: megatron/core/fp8_utils.py (quantize_param_shard, post_all_gather_processing),
distrib_optimizer.py; mxfp8 shares the gradient buffer there instead (``--reuse-grad-buf-for-mxfp8-param-ag``).
"""

from __future__ import annotations

from collections.abc import Iterable

from parsim.parallel.hooks import Weight
from parsim.parallel.training import KEPT_LAYER, Precision

VALUE = 4
"""bytes of a largest value"""


def travels_narrow(weight: Weight, precision: Precision) -> bool:
    """Whether the gathers of a sharded strategy carry this weight in fp8."""
    casts = precision.quantisation
    if not precision.gathers_narrow or casts is None:
        return False
    if weight.part in (*precision.keep, KEPT_LAYER) or not (weight.product and weight.trains) or weight.parameter.storage:
        return False
    return weight.parameter.dimensions == 2 and not (weight.parameter.expert and casts.in_layers_only)


def narrow_elements(weights: Iterable[Weight], precision: Precision) -> int:
    """How many elements of `weights` travel in fp8."""
    return sum(weight.count for weight in weights if travels_narrow(weight, precision)) if precision.gathers_narrow else 0


def narrow_tensors(weights: Iterable[Weight], precision: Precision) -> int:
    """How many of `weights` travel in fp8."""
    return sum(travels_narrow(weight, precision) for weight in weights)
