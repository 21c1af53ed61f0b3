"""Zero-bubble schedules: the backward is split into I (backward-input) and W (backward-weight), and W fills the bubble.

ZB-H1 and ZB-H2: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241. ZB-V: the same, section 6; its order follows
``ScheduleZBVZeroBubble`` of torch.distributed.pipelining. Interleaved: ``ScheduleInterleavedZeroBubble`` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parsim.errors import Finding, PlanError
from parsim.parallel.schedules.classic import alternate, in_rounds
from parsim.parallel.schedules.slot import Schedule, Slot, SlotKind


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """1F1B's order of F and I; rank s runs W of micro-batch j right after I of j + s: no more in flight than rank 0 of 1F1B.

    T = m (tF + tI + tW) + (p - 1)(tF + tI - tW) for tI >= tW.

    >>> print(*zb_h1(2, 3)[1])
    F1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 W1.2
    """
    return tuple(_delayed(*_one_chunk(rank, micro_batches), warm_up=stages - 1 - rank, delay=rank) for rank in range(stages))


def zb_h2(stages: int, micro_batches: int) -> Schedule:
    """Twice the warm-up of 1F1B, W delayed by 2 s: no rank idles between its first and last slot, but they end at different times.

    The span of a rank is m (tF + tI + tW) + (p - 1) max(0, tF + tI - 2 tW) for m >= 2p - 1; up to 2p - 1 in flight.

    >>> print(*zb_h2(2, 3)[0])
    F0.0 F0.1 F0.2 I0.0 W0.0 I0.1 W0.1 I0.2 W0.2
    """
    return tuple(_delayed(*_one_chunk(rank, micro_batches), warm_up=2 * (stages - 1 - rank), delay=2 * rank) for rank in range(stages))


def interleaved_zb(stages: int, micro_batches: int, virtual_stages: int) -> Schedule:
    """Chunk c on rank s is global stage c p + s; with one chunk it would be ZB-H1, whose bubble v chunks divide by v.

    The micro-batches go round in r = max(1, floor(m/p)) equal groups. Rank s warms up with (v - 1) m/r + p - 1 - s forwards and runs W
    right after the I that comes s later. T = m (tF + tI + tW) + (p - 1)/v (tF + tI - tW) for tF, tI >= tW and m >= p. Raises `PlanError`
    unless m is divisible by r.

    >>> print(*interleaved_zb(2, 2, 2)[1])
    F1.0 F1.1 F3.0 I3.0 F3.1 I3.1 W3.0 I1.0 W3.1 I1.1 W1.0 W1.1
    """
    rounds = _rounds(stages, micro_batches)
    if rest := micro_batches % rounds:
        legal = (count for count in range(micro_batches, 0, -1) if not count % _rounds(stages, count))
        above = next(count for count in range(micro_batches, 2 * micro_batches) if not count % _rounds(stages, count))
        text = (
            f"interleaved-zb needs micro-batches in equal groups of at least {stages}, but {micro_batches} in {rounds} groups leave {rest}"
        )
        repair = f"use {next(legal)} or {above} micro-batches, or schedule zb-h1"
        raise PlanError(Finding(text, "parallel.pipeline.schedule", micro_batches, repair))
    group = micro_batches // rounds
    return tuple(
        _delayed(
            *in_rounds(rank, stages, micro_batches, virtual_stages, group, SlotKind.BACKWARD_INPUT),
            warm_up=(virtual_stages - 1) * group + stages - 1 - rank,
            delay=rank,
        )
        for rank in range(stages)
    )


def _rounds(stages: int, micro_batches: int) -> int:
    return max(1, micro_batches // stages)


def _one_chunk(rank: int, micro_batches: int) -> tuple[list[Slot], list[Slot]]:
    forwards, inputs = ([Slot(kind, rank, i) for i in range(micro_batches)] for kind in (SlotKind.FORWARD, SlotKind.BACKWARD_INPUT))
    return forwards, inputs


def _delayed(forwards: Sequence[Slot], inputs: Sequence[Slot], warm_up: int, delay: int) -> tuple[Slot, ...]:
    """One forward and one I in turn after the warm-up; every W right after the I that is `delay` behind its own."""
    weights = [Slot(SlotKind.BACKWARD_WEIGHT, stage, micro_batch) for _, stage, micro_batch in inputs]

    def order() -> Iterator[Slot]:
        done = 0
        for slot in alternate(forwards, inputs, warm_up):
            yield slot
            if slot.kind == SlotKind.BACKWARD_INPUT:
                done += 1
                if done > delay:
                    yield weights[done - delay - 1]
        yield from weights[max(0, len(weights) - delay) :]  # the weight gradients that are left

    return tuple(order())


def zb_v(stages: int, micro_batches: int) -> Schedule:
    """Two chunks per rank in the shape of a V: rank s holds global stages s and 2p - 1 - s.

    No rank idles between its first and last slot where tF = tI = tW and m >= 2p - 1; p micro-batches in flight on all ranks.

    >>> print(*zb_v(1, 2)[0])
    F0.0 F1.0 I1.0 W1.0 F0.1 I0.0 W0.0 F1.1 I1.1 W1.1 I0.1 W0.1
    """
    # the pattern needs 2p - 1 micro-batches; a shorter run leaves out what it does not have
    count = max(micro_batches, 2 * stages - 1)
    return tuple(tuple(slot for slot in _folded(rank, stages, count) if slot.micro_batch < micro_batches) for rank in range(stages))


def _folded(rank: int, stages: int, micro_batches: int) -> Iterator[Slot]:
    first, second = rank, 2 * stages - 1 - rank
    done: dict[tuple[SlotKind, int], int] = {}

    def run(letters: str, stage: int) -> Iterator[Slot]:
        for kind in map(SlotKind, letters):
            done[kind, stage] = done.get((kind, stage), 0) + 1
            yield Slot(kind, stage, done[kind, stage] - 1)

    def left(letter: str, stage: int) -> int:
        return micro_batches - done.get((SlotKind(letter), stage), 0)

    # warm-up: forwards through both chunks
    yield from run("F" * (2 * (stages - rank) - 1), first)
    for _ in range(rank):
        yield from run("F", second)
        yield from run("F", first)
    for _ in range(stages - rank):
        yield from run("FIW", second)
    # steady state: a forward, an input gradient and a weight gradient of either chunk in turn
    while left("F", first) or left("F", second):
        if left("F", first):
            yield from run("F", first)
        yield from run("IW", first)
        yield from run("FIW", second)
    # drain: input gradients first, because others wait for them
    for _ in range(rank):
        yield from run("I", first)
        yield from run("I", second)
    for _ in range(stages - rank):
        yield from run("IW", first)
    yield from run("W" * left("W", second), second)
    yield from run("W" * left("W", first), first)
