"""What experts that are spread over ranks get and send: per rank, layer and micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from parsim.model.exchange import token_bytes
from parsim.model.workload import Workload, dispatched
from parsim.parallel.expert_load import Rows, mixtures
from parsim.parallel.experts import expert_load, loaded
from parsim.parallel.plan import Plan
from parsim.parallel.settings import EXCHANGE_SMS


@dataclass(frozen=True)
class ExpertFacts:
    """Of the busiest rank, in the mean over layers."""

    layers: int
    """with experts"""
    experts_per_rank: int
    imbalance: float
    """rows of the busiest rank over the mean"""
    dispatch_bytes: int
    """tokens on their way to the experts, with what stays on the rank [B]"""
    combine_bytes: int
    """and on their way back [B]"""
    rows_per_expert: float
    """rows that an expert works on"""
    dropped_share: float
    """share of the copies of tokens that no expert works on"""


def experts_of(plan: Plan) -> ExpertFacts | None:
    """The facts of a plan; None where every rank holds all experts."""
    if (routing := plan.routing) is None:
        return None
    layers = mixtures(plan.model)
    load = expert_load(plan.parallelism.expert, max(1, plan.workload.local_tokens))
    rows: list[Rows] = [plan.loads.get(block) or load.rows(layer) for block, layer in layers.items()]
    at = [loaded(plan.workload, one) for one in rows]
    count, each = len(rows), routing.experts // routing.slots
    return ExpertFacts(
        layers=count,
        experts_per_rank=each,
        imbalance=fsum(one.busiest for one in rows) / count,
        dispatch_bytes=round(fsum(_moved(plan, one, fp8=one.dispatch_fp8) for one in at) / count),
        combine_bytes=round(fsum(_moved(plan, one, fp8=one.combine_fp8) for one in at) / count),
        rows_per_expert=fsum(dispatched(one, routing.top_k) for one in at) / count / each,
        dropped_share=max(0.0, 1 - fsum(one.kept for one in rows) / count),
    )


def _moved(plan: Plan, at: Workload, *, fp8: bool) -> float:
    """Bytes of the tokens that a rank exchanges one way; the router's weights are not counted."""
    routing = plan.routing
    if routing is None:
        return 0.0
    most, token = max(at.expert_imbalance, at.expert_sent), token_bytes(plan.model.hidden, at, fp8=fp8)
    if at.dispatcher in EXCHANGE_SMS:
        return at.local_tokens * most * routing.visited() * token
    if at.dispatcher == "allgather":
        return at.local_tokens * at.expert * at.expert_width * token
    sent = round(at.local_tokens * routing.top_k * most) if at.expert > 1 else 0
    shared = dispatched(at, routing.top_k) if at.expert_width > 1 else 0
    return float((sent + shared) * token)
