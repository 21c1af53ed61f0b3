"""Naive model parallelism: one micro-batch at a time through all stages and back."""

from __future__ import annotations

from parsim.parallel.schedules.slot import Schedule, Slot


def naive(stages: int, micro_batches: int) -> Schedule:
    """Each rank runs F and B of one micro-batch before the next; with one rank this is gradient accumulation.

    Only one rank works at any time: T = m p (tF + tB).
    """
    return tuple(tuple(Slot(kind, rank, i) for i in range(micro_batches) for kind in "FB") for rank in range(stages))
