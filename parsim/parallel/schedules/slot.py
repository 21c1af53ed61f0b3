"""One slot of a pipeline schedule, its text form, and the order that the slots impose on each other, whatever they cost.

A schedule is pure order: it knows neither bytes nor seconds. Stages are *global* virtual stages: with v chunks per
rank there are p*v of them, and `parsim.parallel.schedules.homes` says which rank holds which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from parsim.errors import Finding, PlanError


class SlotKind(StrEnum):
    """What a slot computes, in the letters of torch.distributed.pipelining."""

    FORWARD = "F"
    FULL_BACKWARD = "B"
    """gradients of inputs and weights in one pass"""
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


GRADIENTS_OF_INPUTS = (SlotKind.FULL_BACKWARD, SlotKind.BACKWARD_INPUT)
"""what the stage before waits for"""
GRADIENTS_OF_WEIGHTS = (SlotKind.FULL_BACKWARD, SlotKind.BACKWARD_WEIGHT)
"""what ends a micro-batch on its stage"""

_OURS = re.compile(r"([FBIW])([0-9]{1,9})\.([0-9]{1,9})")
_TORCH = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


class Slot(NamedTuple):
    """One pass of one micro-batch through one stage: ``F0.3`` is the forward of micro-batch 3 on stage 0."""

    kind: SlotKind
    stage: int
    """global virtual stage"""
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Slot:
        """Read ``F0.3``, or ``0F3`` as torch.distributed.pipelining spells it ([stage][kind][micro-batch]).

        Raises `PlanError` for anything else.

        >>> Slot.parse("B2.7")
        Slot(kind=<SlotKind.FULL_BACKWARD: 'B'>, stage=2, micro_batch=7)
        >>> str(Slot.parse("2B7"))
        'B2.7'
        """
        if match := _OURS.fullmatch(text):
            kind, stage, micro_batch = match.groups()
        elif match := _TORCH.fullmatch(text):
            stage, kind, micro_batch = match.groups()
        else:
            message = f"{text!r} is not a slot" if len(text) <= 40 else f"{text[:40]!r}... is not a slot: it has {len(text):,} characters"
            raise PlanError(
                Finding(message, value=text[:40], suggestion="write F0.3 (kind, stage, micro-batch), kind one of F B I W, or 0F3")
            )
        return cls(SlotKind(kind), int(stage), int(micro_batch))


Schedule: TypeAlias = tuple[tuple[Slot, ...], ...]
"""per rank of the pipeline, its slots in the order in which it runs them"""

Overlapped: TypeAlias = frozenset[tuple[Slot, Slot]]
"""(forward, backward) of the slots that run both at once: neighbours in a rank's row, begun together and ended together"""

APART: Overlapped = frozenset()
"""no overlapped slots: every pass has its rank to itself"""


def to_text(schedule: Schedule) -> str:
    """A schedule as text: one line per rank, slots separated by spaces (`custom.from_text` reads it back).

    >>> to_text(((Slot(SlotKind.FORWARD, 0, 0), Slot(SlotKind.FULL_BACKWARD, 0, 0)),))
    'F0.0 B0.0'
    """
    return "\n".join(" ".join(map(str, row)) for row in schedule)


def row_text(row: Iterable[Slot], overlapped: Overlapped = APART) -> str:
    """The slots of one rank, those that overlap two passes as ``F0.3&B7.1``.

    >>> forward, backward = Slot.parse("F0.1"), Slot.parse("B0.0")
    >>> row_text((forward, backward), frozenset({(forward, backward)}))
    'F0.1&B0.0'
    """
    pairs = dict(overlapped)
    seconds = set(pairs.values())
    return " ".join(f"{slot}&{pairs[slot]}" if slot in pairs else str(slot) for slot in row if slot not in seconds)


class Precedence:
    """The slots that each slot of a schedule needs, besides its predecessor on its own rank.

    F(s) needs F(s - 1). B(s), or I(s), needs F(s) and the B or I of s + 1. W(s) needs I(s). Two passes that overlap in one slot
    need what either needs: the slot begins when the inputs of both are there, and ends both.
    """

    def __init__(self, schedule: Schedule, overlapped: Overlapped = APART, directions: int = 1) -> None:
        """`directions`: equal parts of the global stages, each of them a whole model with micro-batches of its own."""
        self.rank = {slot: rank for rank, row in enumerate(schedule) for slot in row}
        """which rank runs a slot"""
        self.last_stage = max((slot.stage for slot in self.rank), default=-1)
        self.length = (self.last_stage + 1) // directions
        """stages that a micro-batch goes through"""
        self._pairs = {slot: pair for pair in overlapped for slot in pair}

    def source(self, slot: Slot) -> Slot | None:
        """The slot of the neighbouring stage whose result arrives here; None at the ends of the pipeline and for W."""
        kind, stage, micro_batch = slot
        if kind == SlotKind.FORWARD:
            return Slot(SlotKind.FORWARD, stage - 1, micro_batch) if stage % self.length else None
        if kind == SlotKind.BACKWARD_WEIGHT or (stage + 1) % self.length == 0:
            return None
        split = Slot(SlotKind.BACKWARD_INPUT, stage + 1, micro_batch)
        return split if split in self.rank else Slot(SlotKind.FULL_BACKWARD, stage + 1, micro_batch)

    def own(self, slot: Slot) -> Slot | None:
        """The earlier slot of the same stage and micro-batch: F for B and I, I for W."""
        if slot.kind == SlotKind.FORWARD:
            return None
        before = SlotKind.BACKWARD_INPUT if slot.kind == SlotKind.BACKWARD_WEIGHT else SlotKind.FORWARD
        return Slot(before, slot.stage, slot.micro_batch)

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


def run_in_order(schedule: Schedule, overlapped: Overlapped = APART, directions: int = 1) -> tuple[list[Slot], list[int]]:
    """Run each rank's list as far as it goes: (slots in an order that respects all needs, position reached per rank).

    A schedule deadlocks exactly if some rank does not reach the end of its list.
    """
    precedence = Precedence(schedule, overlapped, directions)
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


def repeated(schedule: Schedule, step: int, micro_batches: int) -> Schedule:
    """Steps of `step` micro-batches behind each other, as many as make `micro_batches`.

    >>> from parsim.parallel.schedules import schedule
    >>> print(*repeated(schedule("1f1b", 1, 1), 1, 2)[0])
    F0.0 B0.0 F0.1 B0.1
    """
    begins = range(0, micro_batches, step)
    if len(begins) == 1:
        return schedule
    return tuple(tuple(Slot(kind, stage, begin + i) for begin in begins for kind, stage, i in row) for row in schedule)
