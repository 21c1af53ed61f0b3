"""PipeDream (Narayanan et al., SOSP 2019): 1F1B without a flush, an update after every backward.

A stage keeps the weight version that a micro-batch's forward used until its backward has used it too (weight
stashing); how many versions live and how stale they are follows from the order alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from parsim.errors import Finding, PlanError
from parsim.parallel.schedules.slot import Schedule, Slot


def endless(rank: int, stages: int) -> Iterator[Slot]:
    """The slots of one rank for ever: p - 1 - s forwards, then F and B in turn.

    >>> from itertools import islice
    >>> print(*islice(endless(2, 4), 6))
    F2.0 F2.1 B2.0 F2.2 B2.1 F2.3
    """
    ahead = stages - 1 - rank
    for i in count():
        yield Slot("F", rank, i)
        if i >= ahead:
            yield Slot("B", rank, i - ahead)


def pipedream(stages: int, micro_batches: int) -> Schedule:
    """The first m micro-batches of the endless order, started empty and drained.

    Raises `PlanError` unless m >= p: a shorter run never reaches the steady state that PipeDream's step time is about.
    """
    if micro_batches < stages:
        raise PlanError(
            Finding(
                f"pipedream needs at least as many micro-batches as pipeline stages (m >= p), but {micro_batches} < {stages}",
                path="parallel.pipeline.schedule",
                value=micro_batches,
                suggestion=f"use at least {stages} micro-batches, or schedule 1f1b",
            )
        )
    return tuple(tuple(_first(micro_batches, endless(rank, stages))) for rank in range(stages))


def _first(micro_batches: int, slots: Iterator[Slot]) -> Iterator[Slot]:
    for slot in slots:
        if slot.micro_batch < micro_batches:
            yield slot
        if slot.kind == "B" and slot.micro_batch == micro_batches - 1:
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
        if slot.kind == "F":
            seen[slot] = updates
        else:
            stale[slot.micro_batch] = updates - seen[Slot("F", slot.stage, slot.micro_batch)]
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
        if kind == "F":
            self._used[micro_batch] = self._latest
            return
        if kind not in "BW":
            return
        mine = self._used.pop(micro_batch)
        old, self._latest = self._latest, self._latest + 1
        if mine in self._stashed and mine not in self._used.values():
            self._stashed.discard(mine)
            yield mine, False
        if old in self._used.values():
            self._stashed.add(old)
            yield old, True
