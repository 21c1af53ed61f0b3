"""Quantised copies of a block's weights that are made once a step (Transformer Engine: is_first_microbatch)."""

from __future__ import annotations

from parsim.kernel import Kernel
from parsim.model.adapters import AS_READ, FrozenLinear
from parsim.model.linear import Linear
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Block, Operator
from parsim.model.workload import Workload


def weight_casts(block: Block, at: Workload) -> tuple[Kernel, ...]:
    """The kernels that make them; none where the block has no fp8 products, or where every pass casts for itself."""
    casts = at.inside(block).casts
    if casts is None or not casts.caches_weights:
        return ()
    made = casts.behind_gather if casts.arrives else casts.weight
    return tuple(kernel for operator in block.operators for count in _matrices(operator, at) for kernel in made(count))


def _matrices(operator: Operator, at: Workload) -> tuple[int, ...]:
    """Elements of the matrices that an operator multiplies by, on one rank."""
    if isinstance(operator, GroupedLinear):
        return tuple(p.rank_count(at) for p in operator.parameters() if p.expert and len(p.shape) == 3)
    if isinstance(operator, FrozenLinear) and operator.storage in AS_READ:  # quantised when it was loaded
        return ()
    if isinstance(operator, Linear):
        return tuple(p.local_count(at.tensor) for p in Linear.parameters(operator) if len(p.shape) == 2)
    return ()
