"""What experts keep for backward, packed into pages behind their forward and taken out before their backward (--moe-paged-stash).

Where a whole iteration is one CUDA graph, the tensors of experts have room for more rows than there are. Transformer Engine's fused
experts mark those that they keep (pytorch/ops/fused/grouped_mlp.py, fuser_forward: mark_grouped_tensor), and Megatron-LM copies the rows
that are filled, one Triton kernel a tensor (megatron/core/transformer/moe/paged_stash.py and ops/paged_stash.py):

==============  ============================================================  ================================
product         tensor                                                        bytes of n rows
==============  ============================================================  ================================
the first       its input, quantised along columns, and a scale of 32 rows    n h and n h / 32
                its result, in 16 bit                                         2 n times the width
                the router's weights, fp32 as HybridEP hands them out         4 n
the second      its input, quantised along columns, and a scale of 32 rows    n f and n f / 32
==============  ============================================================  ================================

Kernels of a few bytes beside them, which clear the record of pages and note the next free one, are left out. So is that nothing is copied
of a layer whose backward follows its forward at once, the last of a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parsim.kernel import Memory
from parsim.model.workload import Workload, dispatched, expert_shard

if TYPE_CHECKING:
    from parsim.model.mixture import GroupedLinear

SCALED = 32
"""rows of a scale (SCALE_INV_BLOCK_SIZE)"""
WEIGHT = 4
"""bytes of a router's weight"""
HEADROOM = 0.1
"""of the pages over what is kept at most (moe_paged_stash_buffer_size_factor_cuda, 1.10)"""


def kept(product: GroupedLinear, at: Workload) -> tuple[int, ...]:
    """Tensors that the fused experts keep around one of their products, in the order of the copies [B]."""
    rows, first = dispatched(at, product.top_k), product.split == "column"
    width = rows * (product.in_features if first else expert_shard(product.in_features, at))
    tensors = (width, width // SCALED) if product.trainable else ()
    return (*tensors, at.element * rows * expert_shard(product.out_features, at), WEIGHT * rows) if first else tensors


def copies(product: GroupedLinear, at: Workload) -> tuple[Memory, ...]:
    """Into the pages, or out of them: each tensor read once and written once."""
    return tuple(Memory(2.0 * size) for size in kept(product, at))


def headroom(product: GroupedLinear, at: Workload) -> int:
    """What the pages have room for beyond what is kept [B]."""
    return round(HEADROOM * sum(kept(product, at)))
