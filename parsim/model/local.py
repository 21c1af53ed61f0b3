"""Sizes on one tensor-parallel rank, and what evaluation does to saved tensors: the arithmetic all operators share."""

from __future__ import annotations

from dataclasses import replace

from parsim.model.model import Split, Work, Workload


def shard(width: int, at: Workload) -> int:
    """A sharded dimension on one rank, rounded up."""
    return -(-width // at.tensor)


def rows(at: Workload, split: Split = "replicated", per_sample: bool = False, copies: int = 0) -> int:
    """Rows of a tensor: tokens, of which a replicated operator holds 1/t under sequence parallelism; samples for
    pooled tensors; `copies` per token behind a mixture-of-experts router, the busiest expert rank counted.
    """
    if per_sample:
        return at.batch
    if copies:
        return dispatched(at, copies)
    return at.local_tokens if split == "replicated" else at.tokens


def dispatched(at: Workload, top_k: int) -> int:
    """Token copies that the experts of one rank receive; dispatch evens out over expert ranks up to the imbalance."""
    return round(at.tokens * top_k * at.expert_imbalance)


def elements(at: Workload, width: int, split: Split = "replicated", per_sample: bool = False, copies: int = 0) -> int:
    """Elements of an activation tensor of `width` features on one rank."""
    return rows(at, split, per_sample, copies) * (width if split == "replicated" else shard(width, at))


def kept(at: Workload, work: Work, named: tuple[str, ...]) -> Work:
    """`work` as it is when nothing is kept for backward: by-products that are no tensors of the block become temporaries."""
    if at.backward:
        return work
    by_products = sum(save.bytes for save in work.saves if save.tensor not in named)
    return replace(
        work,
        backward_input=(),
        backward_weight=(),
        saves=(),
        forward_temporary=work.forward_temporary + by_products,
        backward_temporary=0,
    )
