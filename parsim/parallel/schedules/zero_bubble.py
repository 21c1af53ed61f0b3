"""Zero-bubble schedules: the backward is split into I (backward-input) and W (backward-weight), and W fills the bubble.

ZB-H1 and ZB-H2: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241. ZB-V: the same, section 6; its order follows
``ScheduleZBVZeroBubble`` of torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Iterator

from parsim.parallel.schedules.classic import alternate
from parsim.parallel.schedules.slot import Schedule, Slot, SlotKind


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """1F1B's order of F and I; rank s runs W of micro-batch j right after I of j + s: no more in flight than rank 0 of 1F1B.

    T = m (tF + tI + tW) + (p - 1)(tF + tI - tW) for tI >= tW.

    >>> print(*zb_h1(2, 3)[1])
    F1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 W1.2
    """
    return tuple(_handcrafted(rank, micro_batches, warm_up=stages - 1 - rank, delay=rank) for rank in range(stages))


def zb_h2(stages: int, micro_batches: int) -> Schedule:
    """Twice the warm-up of 1F1B, W delayed by 2 s: no rank idles between its first and last slot, but they end at different times.

    The span of a rank is m (tF + tI + tW) + (p - 1) max(0, tF + tI - 2 tW) for m >= 2p - 1; up to 2p - 1 in flight.

    >>> print(*zb_h2(2, 3)[0])
    F0.0 F0.1 F0.2 I0.0 W0.0 I0.1 W0.1 I0.2 W0.2
    """
    return tuple(_handcrafted(rank, micro_batches, warm_up=2 * (stages - 1 - rank), delay=2 * rank) for rank in range(stages))


def _handcrafted(rank: int, micro_batches: int, warm_up: int, delay: int) -> tuple[Slot, ...]:
    def order() -> Iterator[Slot]:
        forwards, inputs = ([Slot(kind, rank, i) for i in range(micro_batches)] for kind in (SlotKind.FORWARD, SlotKind.BACKWARD_INPUT))
        for slot in alternate(forwards, inputs, warm_up):
            yield slot
            if slot.kind == SlotKind.BACKWARD_INPUT and slot.micro_batch >= delay:
                yield Slot(SlotKind.BACKWARD_WEIGHT, rank, slot.micro_batch - delay)
        for i in range(max(0, micro_batches - delay), micro_batches):  # the weight gradients that are left
            yield Slot(SlotKind.BACKWARD_WEIGHT, rank, i)

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
