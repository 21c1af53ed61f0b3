"""Programs too large to hold in memory are refused before they are built."""

from __future__ import annotations

from collections.abc import Sequence

from parsim.errors import Finding, PlanError
from parsim.parallel.groups import CONTEXT
from parsim.parallel.plan import Plan

_OPS_PER_LAYER = 5
MOST_OPS = 15_000_000
"""programs are refused beyond; an op takes about 300 B"""


def refuse_too_large(plan: Plan, lowered: Sequence[int]) -> None:
    """Raise `PlanError` for a program of more than `MOST_OPS`; `lowered`: simulated ranks of each pipeline rank."""
    layers = {p: max(len(chunk.blocks) for chunk in plan.of_rank(p)) for p in range(len(plan.slots))}
    each = _OPS_PER_LAYER + 2 * plan.mesh.size(CONTEXT) * (plan.mesh.size(CONTEXT) > 1)
    ops = sum(each * len(row) * layers[p] * lowered[p] for p, row in enumerate(plan.slots))
    if ops > MOST_OPS:
        size = f"{plan.training.micro_batches:,} micro-batches, {sum(lowered):,} ranks simulated"
        text = f"about {ops:,.0f} ops ({size}); at most {MOST_OPS:,}"
        hint = "simulate fewer micro-batches: beyond a few times the pipeline's depth the step grows in proportion"
        raise PlanError(Finding(text, "training.global_batch", plan.training.global_batch, hint))
