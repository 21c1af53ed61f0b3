"""Interleaved 1F1B (Narayanan et al., arXiv 2104.04473): v model chunks per rank.

Order and warm-up follow Megatron-LM, ``core/pipeline_parallel/schedules.py`` (commit d98e8a64).
"""

from __future__ import annotations

from parsim.errors import Finding, PlanError
from parsim.parallel.schedules.one_f_one_b import alternate, one_f_one_b
from parsim.parallel.schedules.slot import Schedule, Slot


def interleaved(stages: int, micro_batches: int, virtual_stages: int) -> Schedule:
    """Chunk c on rank s is global stage c p + s; T = (m + (p - 1)/v)(tF + tB); v = 1 is 1F1B.

    The micro-batches go round in groups of p: p of them through chunk 0, the same p through chunk 1, and so on.
    Warm-up on rank s: min(m v, 2 (p - s - 1) + (v - 1) p). Raises `PlanError` unless m is divisible by p.
    """
    if rest := micro_batches % stages:
        nearest = [count for count in (micro_batches - rest, micro_batches - rest + stages) if count]
        raise PlanError(
            Finding(
                f"interleaved needs micro-batches divisible by pipeline stages (m % p = 0), but {micro_batches} % {stages} = {rest}",
                path="parallel.pipeline.schedule",
                value=micro_batches,
                suggestion=f"use {' or '.join(map(str, nearest))} micro-batches, or schedule 1f1b",
            )
        )
    if virtual_stages == 1:
        return one_f_one_b(stages, micro_batches)
    return tuple(_rank(rank, stages, micro_batches, virtual_stages) for rank in range(stages))


def _rank(rank: int, stages: int, micro_batches: int, chunks: int) -> tuple[Slot, ...]:
    forwards, backwards = [], []
    for step in range(micro_batches * chunks):
        group, within = divmod(step, stages * chunks)
        chunk, offset = divmod(within, stages)
        micro_batch = group * stages + offset
        forwards.append(Slot("F", chunk * stages + rank, micro_batch))
        backwards.append(Slot("B", (chunks - 1 - chunk) * stages + rank, micro_batch))
    return alternate(forwards, backwards, warm_up=2 * (stages - rank - 1) + (chunks - 1) * stages)
