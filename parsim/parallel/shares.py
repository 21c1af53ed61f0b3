"""An uneven batch: replicas of different speed get different numbers of micro-batches, and wait less for each other.

Every replica does its own number of micro-batches and all reduce their gradients once, behind the last: each gradient is weighted by
the samples of its replica (else the result would be another), which takes no time. What meets in every micro-batch cannot differ in
their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parsim.errors import Finding
from parsim.model.model import Model
from parsim.parallel.schedules import BIDIRECTIONAL, CUSTOM, ENDLESS, schedule
from parsim.parallel.schedules.slot import Schedule, Slot
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training

BATCH_SPLIT = "parallel.data.batch_split"
MEETING_ONCE = ("ddp", "zero1")
"""strategies whose replicas meet behind the last micro-batch only"""


def balanced_shares(speeds: Sequence[float], count: int) -> tuple[int, ...]:
    """`count` micro-batches over replicas of these speeds such that the last one ends first: min over b of max(b_i / v_i), all b_i >= 1.

    >>> balanced_shares([1.0, 1.0, 0.45], 49)
    (20, 20, 9)
    """
    level = count / math.fsum(speeds)
    shares = [max(1, math.floor(level * speed)) for speed in speeds]
    replicas = range(len(shares))
    while sum(shares) > count:  # slow replicas had less than one
        shares[max((at for at in replicas if shares[at] > 1), key=lambda at: shares[at] / speeds[at])] -= 1
    while sum(shares) < count:
        shares[min(replicas, key=lambda at: (shares[at] + 1) / speeds[at])] += 1
    return tuple(shares)


def without_first(rows: Schedule, skipped: int) -> Schedule:
    """A schedule without its first micro-batches, the others counted from 0 again."""
    return tuple(
        tuple(Slot(slot.kind, slot.stage, slot.micro_batch - skipped) for slot in row if slot.micro_batch >= skipped) for row in rows
    )


def share_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """What an uneven batch does not go with."""
    shares = training.shares
    if not shares:
        return []
    data = parallelism.data
    found: list[Finding] = []

    def refuse(text: str, hint: str) -> None:
        found.append(Finding(text, BATCH_SPLIT, list(shares), hint))

    if data.custom is not None or data.strategy not in MEETING_ONCE:
        name = "a strategy of your own" if data.custom is not None else data.strategy
        text = f"replicas with {min(shares)} to {max(shares)} micro-batches: under {name} they synchronise in each; some would never arrive"
        refuse(text, f"use parallel.data.strategy {' or '.join(MEETING_ONCE)}, or batch_split: even")
    if data.accumulate == "every":
        refuse("gradients are reduced after every micro-batch, and replicas have different numbers of them", "use accumulate: no_sync")
    if data.overlap_gather and data.strategy == "zero1":
        refuse(
            "not supported yet: parameters gathered under the first forward of replicas that begin at different ones",
            "use overlap_gather: false",
        )
    if parallelism.exchanges_tokens:
        refuse(
            "replicas with different numbers of micro-batches exchange tokens in every one",
            "keep parallel.expert.size 1 and batch_split: even",
        )
    if any(parameter.buffer for block in model.distinct_blocks for parameter in block.parameters()):
        refuse(
            f"{model.name} has buffers, which DDP broadcasts as replicas begin; they begin at different micro-batches",
            "use batch_split: even",
        )
    if data.outer.size > 1:
        refuse("not supported yet: an uneven batch with local steps", "use batch_split: even")
    if training.last_micro_batch:
        refuse("not supported yet: a smaller last micro-batch and an uneven batch", "use partial_micro_batch: false")
    if not training.backward:
        refuse("without a backward pass no replica waits for another", "use batch_split: even")
    if not found:
        found += _schedule_findings(training, parallelism, refuse_with=list(shares))
    return found


def _schedule_findings(training: Training, parallelism: Parallelism, refuse_with: list[int]) -> list[Finding]:
    """Pipelines of replicas with fewer micro-batches must work in the order of the longest."""
    pipeline = parallelism.pipeline
    if pipeline.size == 1:
        return []
    name = pipeline.schedule
    hint = "use schedule 1f1b or gpipe, or batch_split: even"
    if name == CUSTOM or name in (*ENDLESS, *BIDIRECTIONAL) or pipeline.post_validation:
        text = f"not supported yet: replicas with different numbers of micro-batches under schedule {name}"
        return [Finding(text, BATCH_SPLIT, refuse_with, hint)]
    if not pipeline.overlap_sends:
        text = "not supported yet: blocking messages between stages and an uneven batch"
        return [Finding(text, BATCH_SPLIT, refuse_with, "use overlap_sends: true, or batch_split: even")]
    longest = schedule(name, pipeline.size, training.micro_batches, pipeline.virtual_stages)
    for share in dict.fromkeys(training.shares):
        own = schedule(name, pipeline.size, share, pipeline.virtual_stages)
        if own != without_first(longest, training.micro_batches - share):
            most = training.micro_batches
            text = f"not supported yet: schedule {name} orders {share} micro-batches otherwise than the last {share} of {most}"
            return [Finding(text, BATCH_SPLIT, refuse_with, hint)]
    return []
