"""Stages that lie on two pipeline ranks (DualPipe, Chimera): whose gradients are reduced with whose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parsim.parallel.experts import expert_mesh

if TYPE_CHECKING:
    from parsim.parallel.plan import Chunk, Plan


def stage_copies(plan: Plan, pipeline_rank: int) -> list[tuple[int, int, int]]:
    """What lies on this pipeline rank and another, stage by stage: (both ranks, elements of its gradients on one rank).

    Both ranks have the same list, so that they come to the reductions in one order.
    """
    if plan.directions == 1:
        return []
    length = plan.stages // plan.directions
    shared = []
    for chunk in sorted(plan.of_rank(pipeline_rank), key=lambda chunk: chunk.stage % length):
        one, other = sorted((pipeline_rank, plan.chunks[(chunk.stage + length) % plan.stages].pipeline_rank))
        shared.append((one, other, _reduced(plan, chunk)))
    return shared


def _reduced(plan: Plan, chunk: Chunk) -> int:
    """Gradients of a chunk that a rank has once they are reduced over the replicas: all, or its share."""
    trained = [weight for weight in plan.weights(chunk) if weight.trains]
    if not plan.shares_gradients:
        return sum(weight.count for weight in trained)
    experts = expert_mesh(plan.parallelism)[2] if plan.parallelism.exchanges_tokens else plan.replicas
    return sum(-(-weight.count // (experts if weight.parameter.expert else plan.replicas)) for weight in trained)
