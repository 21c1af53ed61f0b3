"""GPipe (Huang et al., arXiv 1811.06965): all forwards, a flush, all backwards."""

from __future__ import annotations

from parsim.parallel.schedules.slot import Schedule, Slot


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """F of every micro-batch, then B of every micro-batch, both in ascending order (as torch's ScheduleGPipe).

    T = (m + p - 1)(tF + tB); every rank holds the activations of all m micro-batches at the flush.
    """
    return tuple(tuple(Slot(kind, rank, i) for kind in "FB" for i in range(micro_batches)) for rank in range(stages))
