"""Who waits for whom: the order that the slots of a schedule impose on each other, whatever they cost."""

from __future__ import annotations

from collections.abc import Iterable

from parsim.parallel.schedules.slot import APART, Overlapped, Schedule, Slot


class Precedence:
    """The slots that each slot of a schedule needs, besides its predecessor on its own rank.

    F(s) needs F(s - 1). B(s), or I(s), needs F(s) and the B or I of s + 1. W(s) needs I(s). Two passes that overlap in one slot
    need what either needs: the slot begins when the inputs of both are there, and ends both.
    """

    def __init__(self, schedule: Schedule, overlapped: Overlapped = APART) -> None:
        self.rank = {slot: rank for rank, row in enumerate(schedule) for slot in row}
        """which rank runs a slot"""
        self.last_stage = max((slot.stage for slot in self.rank), default=-1)
        self._pairs = {slot: pair for pair in overlapped for slot in pair}

    def source(self, slot: Slot) -> Slot | None:
        """The slot of the neighbouring stage whose result arrives here; None at the ends of the pipeline and for W."""
        kind, stage, micro_batch = slot
        if kind == "F":
            return Slot("F", stage - 1, micro_batch) if stage else None
        if kind == "W" or stage == self.last_stage:
            return None
        split = Slot("I", stage + 1, micro_batch)
        return split if split in self.rank else Slot("B", stage + 1, micro_batch)

    def own(self, slot: Slot) -> Slot | None:
        """The earlier slot of the same stage and micro-batch: F for B and I, I for W."""
        if slot.kind == "F":
            return None
        return Slot("I" if slot.kind == "W" else "F", slot.stage, slot.micro_batch)

    def pair(self, slot: Slot) -> tuple[Slot, ...]:
        """The passes that begin and end together with `slot`, in the order of the row; usually itself alone."""
        return self._pairs.get(slot, (slot,))

    def needs(self, slot: Slot) -> list[Slot]:
        """The slots that must have ended before `slot` begins."""
        if slot not in self._pairs:
            return [other for other in (self.source(slot), self.own(slot)) if other is not None]
        return [other for part in self._pairs[slot] for other in (self.source(part), self.own(part)) if other is not None]

    def name(self, slot: Slot) -> str:
        """``F0.3``, or ``F0.3&B7.1`` in an overlapped slot."""
        return "&".join(map(str, self.pair(slot)))

    def travels(self, slot: Slot) -> bool:
        """Whether the slot waits for a message from another rank."""
        source = self.source(slot)
        return source is not None and self.rank.get(source) != self.rank[slot]


def run_in_order(schedule: Schedule, overlapped: Overlapped = APART) -> tuple[list[Slot], list[int]]:
    """Run each rank's list as far as it goes: (slots in an order that respects all needs, position reached per rank).

    A schedule deadlocks exactly if some rank does not reach the end of its list.
    """
    precedence = Precedence(schedule, overlapped)
    reached = [0] * len(schedule)
    done: dict[Slot, None] = {}
    waiting: dict[Slot, list[int]] = {}
    ready: Iterable[int] = range(len(schedule))
    while ready:
        awake: list[int] = []
        for rank in ready:
            row = schedule[rank]
            while reached[rank] < len(row):
                slot = row[reached[rank]]
                missing = next((need for need in precedence.needs(slot) if need not in done), None)
                if missing is not None:
                    waiting.setdefault(missing, []).append(rank)
                    break
                done[slot] = None
                reached[rank] += 1
                awake += waiting.pop(slot, ())
        ready = awake
    return list(done), reached
