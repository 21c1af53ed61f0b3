"""Weights that travel in fp8, or are stored in it alone (`training.precision.gather: fp8`), and what making them so costs.

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
distrib_optimizer.py. With mxfp8 weights travel there in 16 bits, in the buffer of the gradients
(``--reuse-grad-buf-for-mxfp8-param-ag``, which it then needs), and are cast in both directions behind the gather, once a step.
"""

from __future__ import annotations

from collections.abc import Iterable

from parsim.parallel.hooks import Weight
from parsim.parallel.training import KEPT_LAYER, Precision

VALUE = 4
"""bytes of a largest value"""


def travels_narrow(weight: Weight, precision: Precision) -> bool:
    """Whether the gathers of a sharded strategy carry this weight in fp8."""
    return precision.gathers_narrow and _multiplies_narrow(weight, precision)


def stored_narrow(weight: Weight, precision: Precision) -> bool:
    """Whether this weight is stored in fp8 alone: one of its copies is the weight."""
    return precision.stores_narrow and _multiplies_narrow(weight, precision)


def _multiplies_narrow(weight: Weight, precision: Precision) -> bool:
    """Whether it is a trained matrix of products that a stack which stores or gathers in fp8 multiplies so."""
    casts = precision.quantisation
    if casts is None:
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
