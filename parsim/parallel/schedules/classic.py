"""Schedules whose backward is one pass: naive, GPipe, looped breadth-first, 1F1B, interleaved 1F1B and PipeDream.

Naive model parallelism runs one micro-batch at a time through all stages and back. GPipe: Huang et al., arXiv 1811.06965. Looped
breadth-first: Lamy-Poirier, arXiv 2211.05953, in the order of ``ScheduleLoopedBFS`` of torch.distributed.pipelining. 1F1B with a flush
(PipeDream-Flush, DAPPLE): Narayanan et al., arXiv 2006.09503 and 2104.04473. Interleaved 1F1B: arXiv 2104.04473; its order and warm-up
follow Megatron-LM, ``core/pipeline_parallel/schedules.py`` (commit d98e8a64), as do its passes side by side. PipeDream, which has no
flush: Narayanan et al., SOSP 2019; a stage keeps the weight version that a micro-batch's forward used until its backward has used it too
(weight stashing), and how many versions live and how stale they are follows from the order alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from parsim.errors import Finding, PlanError
from parsim.parallel.schedules.slot import GRADIENTS_OF_WEIGHTS, Overlapped, Schedule, Slot, SlotKind

_BOTH = (SlotKind.FORWARD, SlotKind.FULL_BACKWARD)


def naive(stages: int, micro_batches: int) -> Schedule:
    """Each rank runs F and B of one micro-batch before the next; with one rank this is gradient accumulation.

    Only one rank works at any time: T = m p (tF + tB).
    """
    return tuple(tuple(Slot(kind, rank, i) for i in range(micro_batches) for kind in _BOTH) for rank in range(stages))


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """F of every micro-batch, then B of every micro-batch, both in ascending order (as torch's ScheduleGPipe).

    T = (m + p - 1)(tF + tB); every rank holds the activations of all m micro-batches at the flush.
    """
    return tuple(tuple(Slot(kind, rank, i) for kind in _BOTH for i in range(micro_batches)) for rank in range(stages))


def looped_bfs(stages: int, micro_batches: int, virtual_stages: int) -> Schedule:
    """F of every micro-batch through one chunk after the other, then B of every micro-batch in the reverse of that order.

    Chunk c on rank s is global stage c p + s. T = (m + (p - 1)/v)(tF + tB) for m >= p, with the activations of all m v chunks at the flush.

    >>> print(*looped_bfs(2, 2, 2)[1])
    F1.0 F1.1 F3.0 F3.1 B3.1 B3.0 B1.1 B1.0
    """
    steps = [(chunk, micro_batch) for chunk in range(virtual_stages) for micro_batch in range(micro_batches)]
    return tuple(
        (
            *(Slot(SlotKind.FORWARD, chunk * stages + rank, i) for chunk, i in steps),
            *(Slot(SlotKind.FULL_BACKWARD, chunk * stages + rank, i) for chunk, i in reversed(steps)),
        )
        for rank in range(stages)
    )


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Rank s warms up with min(m, p - 1 - s) forwards, then alternates F and B, then drains.

    The time of GPipe at zero latency, with min(m, p - s) instead of m micro-batches in flight.
    """
    return tuple(
        alternate(
            [Slot(SlotKind.FORWARD, rank, i) for i in range(micro_batches)],
            [Slot(SlotKind.FULL_BACKWARD, rank, i) for i in range(micro_batches)],
            warm_up=stages - 1 - rank,
        )
        for rank in range(stages)
    )


def alternate(forwards: Sequence[Slot], backwards: Sequence[Slot], warm_up: int) -> tuple[Slot, ...]:
    """`warm_up` forwards, then one forward and one backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    steady = len(forwards) - warm_up
    pairs = zip(forwards[warm_up:], backwards[:steady], strict=True)
    return (
        *forwards[:warm_up],  # warm-up: fill the pipeline
        *(slot for pair in pairs for slot in pair),  # steady state: one forward, one backward
        *backwards[steady:],  # drain
    )


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
    return tuple(
        alternate(
            *in_rounds(rank, stages, micro_batches, virtual_stages, stages, SlotKind.FULL_BACKWARD),
            warm_up=2 * (stages - rank - 1) + (virtual_stages - 1) * stages,
        )
        for rank in range(stages)
    )


def combined(stages: int, micro_batches: int, virtual_stages: int) -> tuple[Schedule, Overlapped]:
    """Interleaved 1F1B with one more forward in the warm-up, so that each forward runs beside the backward behind it.

    That forward makes the two independent; a rank keeps the activations of one more chunk (Megatron-LM,
    --overlap-moe-expert-parallel-comm: ``get_pp_rank_microbatches`` and ``combined_1f1b.py``). With one rank: F0, (F1 & B0), ..., B(m-1).
    Raises `PlanError` unless m is divisible by p, and v > 1 where p > 1.
    """
    rows = []
    pairs: list[tuple[Slot, Slot]] = []
    if virtual_stages == 1 < stages:
        message = f"combined-1f1b needs at least 2 stages per rank where there are several ranks, but virtual_stages = 1 on {stages} ranks"
        raise PlanError(Finding(message, "parallel.pipeline.virtual_stages", virtual_stages, "use virtual_stages: 2 or more"))
    interleaved(stages, micro_batches, virtual_stages)  # has the same rules
    for rank in range(stages):
        forwards, backwards = in_rounds(rank, stages, micro_batches, virtual_stages, stages, SlotKind.FULL_BACKWARD)
        warm_up = min(2 * (stages - rank - 1) + (virtual_stages - 1) * stages + 1, len(forwards))
        rows.append(alternate(forwards, backwards, warm_up))
        pairs += zip(forwards[warm_up:], backwards, strict=False)
    return tuple(rows), frozenset(pairs)


def in_rounds(rank: int, stages: int, micro_batches: int, chunks: int, group: int, backward: SlotKind) -> tuple[list[Slot], list[Slot]]:
    """Forwards and backwards of one rank, `group` micro-batches at a time through all chunks; backwards through the last chunk first."""
    forwards, backwards = [], []
    for step in range(micro_batches * chunks):
        before, within = divmod(step, group * chunks)
        chunk, offset = divmod(within, group)
        micro_batch = before * group + offset
        forwards.append(Slot(SlotKind.FORWARD, chunk * stages + rank, micro_batch))
        backwards.append(Slot(backward, (chunks - 1 - chunk) * stages + rank, micro_batch))
    return forwards, backwards


def endless(rank: int, stages: int) -> Iterator[Slot]:
    """The slots of one rank for ever: p - 1 - s forwards, then F and B in turn.

    >>> from itertools import islice
    >>> print(*islice(endless(2, 4), 6))
    F2.0 F2.1 B2.0 F2.2 B2.1 F2.3
    """
    ahead = stages - 1 - rank  # the warm-up; no drain follows
    for i in count():
        yield Slot(SlotKind.FORWARD, rank, i)
        if i >= ahead:
            yield Slot(SlotKind.FULL_BACKWARD, rank, i - ahead)


def pipedream(stages: int, micro_batches: int, name: str = "pipedream") -> Schedule:
    """The first m micro-batches of the endless order, started empty and drained.

    Raises `PlanError` unless m >= p: a shorter run never reaches the steady state that PipeDream's step time is about.
    """
    if micro_batches < stages:
        raise PlanError(
            Finding(
                f"{name} needs at least as many micro-batches as pipeline stages (m >= p), but {micro_batches} < {stages}",
                path="parallel.pipeline.schedule",
                value=micro_batches,
                suggestion=f"use at least {stages} micro-batches, or schedule 1f1b",
            )
        )
    return tuple(tuple(_first(micro_batches, endless(rank, stages))) for rank in range(stages))


def pipedream_2bw(stages: int, micro_batches: int) -> Schedule:
    """PipeDream's order with an update after every m micro-batches; every micro-batch of a step uses the weights of the step before.

    Two weight versions on every rank, gradients one update late (Narayanan et al., arXiv 2006.09503, section 3.1). Raises `PlanError`
    unless m >= p: with fewer, micro-batches in flight would need a third version.
    """
    return pipedream(stages, micro_batches, "pipedream-2bw")


def _first(micro_batches: int, slots: Iterator[Slot]) -> Iterator[Slot]:
    for slot in slots:
        if slot.micro_batch < micro_batches:
            yield slot
        if slot.kind == SlotKind.FULL_BACKWARD and slot.micro_batch == micro_batches - 1:
            return


def staleness(slots: Sequence[Slot]) -> list[int]:
    """Updates between a micro-batch's forward and its backward on one rank, by micro-batch, when every B updates.

    >>> staleness(pipedream(4, 6)[0])
    [0, 1, 2, 3, 3, 3]
    """
    seen: dict[Slot, int] = {}
    stale: dict[int, int] = {}
    updates = 0
    for slot in slots:
        if slot.kind == SlotKind.FORWARD:
            seen[slot] = updates
        else:
            stale[slot.micro_batch] = updates - seen[Slot(SlotKind.FORWARD, slot.stage, slot.micro_batch)]
            updates += 1
    return [stale[i] for i in sorted(stale)]


def weight_versions(slots: Sequence[Slot]) -> int:
    """Most weight versions that one rank holds at once: the newest and those that micro-batches in flight still need.

    >>> [weight_versions(row) for row in pipedream(4, 8)]
    [4, 3, 2, 1]
    """
    versions, most = Versions(), 0
    for slot in slots:
        for _ in versions.step(slot.kind, slot.micro_batch):
            most = max(most, versions.stashed)
    return 1 + most


class Versions:
    """Which weight versions a PipeDream stage keeps besides the latest: those that micro-batches in flight still need."""

    def __init__(self) -> None:
        self._latest = 0
        self._used: dict[int, int] = {}
        self._stashed: set[int] = set()

    @property
    def stashed(self) -> int:
        """Old versions kept now."""
        return len(self._stashed)

    def step(self, kind: str, micro_batch: int) -> Iterator[tuple[int, bool]]:
        """(version, True) when it becomes old but needed, (version, False) when nobody needs it any more."""
        if kind == SlotKind.FORWARD:
            self._used[micro_batch] = self._latest
            return
        if kind not in GRADIENTS_OF_WEIGHTS:
            return
        mine = self._used.pop(micro_batch)
        old, self._latest = self._latest, self._latest + 1
        if mine in self._stashed and mine not in self._used.values():
            self._stashed.discard(mine)
            yield mine, False
        if old in self._used.values():
            self._stashed.add(old)
            yield old, True
