"""Samples of unequal length: tensors are made for the longest, kernels and messages take what the mean takes.

An allocator keeps what the longest sample of a run once needed, so memory is that of `sequence_length`; the time of a
step is the mean over many, and kernels at the mean length stand for it. What attention does with the square of the length
is underestimated by the variance of the lengths over their squared mean, of the attention core's share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from parsim.model.tape import Step, Tape


@lru_cache(maxsize=4096)
def at_mean_length(longest: Tape, mean: Tape) -> Tape:
    """The tape of the longest sample with the kernels of one of mean length."""

    def timed(steps: Sequence[Step], others: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(replace(step, kernels=other.kernels) for step, other in zip(steps, others, strict=True))

    return replace(
        longest,
        forward=timed(longest.forward, mean.forward),
        forward_unsaved=timed(longest.forward_unsaved, mean.forward_unsaved),
        backward=timed(longest.backward, mean.backward),
    )
