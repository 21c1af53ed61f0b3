"""1F1B with a flush (PipeDream-Flush / DAPPLE; Narayanan et al., arXiv 2006.09503 and 2104.04473)."""

from __future__ import annotations

from collections.abc import Sequence

from parsim.parallel.schedules.slot import Schedule, Slot


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Rank s warms up with min(m, p - 1 - s) forwards, then alternates F and B, then drains.

    The time of GPipe at zero latency, with min(m, p - s) instead of m micro-batches in flight.
    """
    return tuple(
        alternate(
            [Slot("F", rank, i) for i in range(micro_batches)],
            [Slot("B", rank, i) for i in range(micro_batches)],
            warm_up=stages - 1 - rank,
        )
        for rank in range(stages)
    )


def alternate(forwards: Sequence[Slot], backwards: Sequence[Slot], warm_up: int) -> tuple[Slot, ...]:
    """`warm_up` forwards, then one forward and one backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    steady = len(forwards) - warm_up
    pairs = zip(forwards[warm_up:], backwards[:steady], strict=True)
    return (*forwards[:warm_up], *(slot for pair in pairs for slot in pair), *backwards[steady:])
