"""Is a schedule legal? Every rule is checked and every break is named with its rank and position (from 0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding
from parsim.limits import MOST_PASSES, beyond
from parsim.parallel.schedules.slot import APART, GRADIENTS_OF_INPUTS, Overlapped, Precedence, Schedule, Slot, SlotKind, run_in_order

PATH = "parallel.pipeline.schedule"
MOST_MISSING = 10_000
"""missing slots that are listed one by one"""


@dataclass(frozen=True, slots=True)
class SlotFinding(Finding):
    """What is wrong with one slot; a slot that is missing has no position (-1)."""

    rank: int = -1
    position: int = -1

    def as_dict(self) -> dict[str, Any]:
        """As every other finding: rank and position are in its message."""
        return {key: value for key, value in Finding.as_dict(self).items() if key not in ("rank", "position")}


def check(
    schedule: Schedule,
    placement: Sequence[int] | None = None,
    micro_batches: int | None = None,
    overlapped: Overlapped = APART,
    directions: int = 1,
) -> list[Finding]:
    """All that is wrong with a schedule; empty when it can run.

    1. Every (stage, micro-batch) has F once, and either B once or I and W once each.
    2. On its rank F comes before B or I, and I before W.
    3. All slots of a stage are on the rank that holds it: `placement` (rank by global stage) where given, else the
       rank of the stage's first slot.
    4. A slot that overlaps two passes has one forward and one backward (B or I), of different stages or micro-batches.
    5. In list order no rank waits for ever. Sends never add a deadlock: see `parsim.parallel.schedules.blocking`.

    `micro_batches` is how many there should be; None: as many as the highest number in the schedule says. With several `directions` every
    part of the stages has an equal part of the micro-batches.
    """
    findings = [*_counted(schedule, placement, micro_batches, directions), *_placed(schedule, placement), *_sequenced(schedule)]
    findings += _overlapping(schedule, overlapped)
    return findings or deadlock(schedule, overlapped, directions)


def deadlock(schedule: Schedule, overlapped: Overlapped = APART, directions: int = 1) -> list[Finding]:
    """One finding for each rank that gets stuck when every rank runs its list in order."""
    precedence = Precedence(schedule, overlapped, directions)
    done, reached = run_in_order(schedule, overlapped, directions)
    finished = set(done)
    where = {slot: f"rank {rank} position {position}" for rank, row in enumerate(schedule) for position, slot in enumerate(row)}
    findings = []
    for rank, position in enumerate(reached):
        if position < len(schedule[rank]):
            slot = schedule[rank][position]
            missing = next(need for need in precedence.needs(slot) if need not in finished)
            place = f", which is at {where[missing]}" if missing in where else ", which is not in the schedule"
            findings.append(_at(rank, position, precedence.name(slot), f"deadlock: waits for {missing}{place}"))
    return findings


def circle(schedule: Schedule, overlapped: Overlapped = APART, directions: int = 1) -> list[tuple[int, int, Slot, Slot]]:
    """The ranks of a deadlock that wait for each other: (rank, position, its slot there, the slot that it waits for).

    Each waits for a slot that stands behind the next one's; the last waits for the first. Empty if there is no deadlock, or if a
    rank waits for a slot that the schedule does not have.
    """
    precedence = Precedence(schedule, overlapped, directions)
    done, reached = run_in_order(schedule, overlapped, directions)
    finished = set(done)
    waiting: dict[int, tuple[int, int, Slot, Slot]] = {}
    for rank, position in enumerate(reached):
        if position < len(schedule[rank]):
            slot = schedule[rank][position]
            waiting[rank] = (rank, position, slot, next(need for need in precedence.needs(slot) if need not in finished))
    chain: list[int] = []
    member = next(iter(waiting), None)
    while member is not None and member not in chain:
        chain.append(member)
        member = precedence.rank.get(waiting[member][3])
    return [] if member is None else [waiting[one] for one in chain[chain.index(member) :]]


def _at(rank: int, position: int, slot: Slot | str, message: str, suggestion: str = "") -> Finding:
    text = f"rank {rank} position {position}, {slot}: {message}"
    return SlotFinding(text, path=PATH, value=str(slot), suggestion=suggestion, rank=rank, position=position)


def _counted(schedule: Schedule, placement: Sequence[int] | None, micro_batches: int | None, directions: int) -> list[Finding]:
    findings: list[Finding] = []
    first: dict[Slot, tuple[int, int]] = {}
    for rank, row in enumerate(schedule):
        for position, slot in enumerate(row):
            if slot.kind not in list(SlotKind):  # of a table that a function made
                findings.append(_at(rank, position, slot, f"{str(slot.kind)!r} is not a kind of slot", "use F, B, I or W"))
            elif slot.stage < 0 or slot.micro_batch < 0:
                findings.append(_at(rank, position, slot, "stages and micro-batches are numbered from 0"))
            elif slot in first:
                findings.append(_at(rank, position, slot, "occurs twice, first at rank {} position {}".format(*first[slot])))
            else:
                first[slot] = (rank, position)
    if findings:
        return findings
    if not first:
        return [Finding("the schedule has no slots", path=PATH)]
    stages = len(placement) if placement is not None else 1 + max(slot.stage for slot in first)
    count = micro_batches if micro_batches is not None else 1 + max(slot.micro_batch for slot in first)
    if many := beyond(stages * count, MOST_PASSES, "forward passes", PATH, f"{count:,} micro-batches x {stages:,} stages"):
        return many
    missing = 2 * stages * count // directions - len(first)
    if missing > MOST_MISSING:
        text = f"at least {missing:,} slots are missing of {stages:,} stages and {count:,} micro-batches, the highest numbers that occur"
        return [*findings, Finding(text, path=PATH)]
    for slot, (rank, position) in first.items():
        if slot.stage >= stages:
            findings.append(_at(rank, position, slot, f"there are {stages} stages, numbered from 0"))
        if slot.micro_batch >= count:
            findings.append(_at(rank, position, slot, f"there are {count} micro-batches, numbered from 0"))
    for stage in range(stages):
        way = stage * directions // stages
        for i in range(count * way // directions, count * (way + 1) // directions):
            findings += _complete(stage, i, {kind: first[slot] for kind in SlotKind if (slot := Slot(kind, stage, i)) in first})
    return findings


def _complete(stage: int, micro_batch: int, present: dict[SlotKind, tuple[int, int]]) -> list[Finding]:
    forward, whole, halves = SlotKind.FORWARD, SlotKind.FULL_BACKWARD, (SlotKind.BACKWARD_INPUT, SlotKind.BACKWARD_WEIGHT)

    def missing(kind: SlotKind, why: str = "") -> Finding:
        slot = Slot(kind, stage, micro_batch)
        return Finding(f"{slot} is missing{why}", path=PATH, value=str(slot))

    findings = [] if forward in present else [missing(forward)]
    if whole in present:
        message = "stands beside B{}.{} at rank {} position {}".format(stage, micro_batch, *present[whole])
        slots = [Slot(kind, stage, micro_batch) for kind in halves if kind in present]
        findings += [_at(*present[slot.kind], slot, message, "a backward is either B, or I and W") for slot in slots]
    elif not any(kind in present for kind in halves):
        findings.append(missing(whole, " (or I and W)"))
    else:
        pairs = zip(halves, reversed(halves), strict=True)
        findings += [missing(kind, f" beside {other}{stage}.{micro_batch}") for kind, other in pairs if kind not in present]
    return findings


def _placed(schedule: Schedule, placement: Sequence[int] | None) -> list[Finding]:
    home = dict(enumerate(placement)) if placement is not None else {}
    findings = []
    for rank, row in enumerate(schedule):
        for position, slot in enumerate(row):
            if (holder := home.setdefault(slot.stage, rank)) != rank:
                findings.append(_at(rank, position, slot, f"stage {slot.stage} is on rank {holder}"))
    return findings


def _sequenced(schedule: Schedule) -> list[Finding]:
    precedence = Precedence(schedule)
    findings = []
    for rank, row in enumerate(schedule):
        positions = {slot: position for position, slot in reversed(list(enumerate(row)))}
        for position, slot in enumerate(row):
            before = precedence.own(slot)
            if before is not None and positions.get(before, -1) > position:
                findings.append(_at(rank, position, slot, f"comes before {before} at position {positions[before]}"))
    return findings


def _overlapping(schedule: Schedule, overlapped: Overlapped) -> list[Finding]:
    findings = []
    where = {slot: (rank, position) for rank, row in enumerate(schedule) for position, slot in enumerate(row)}
    for forward, backward in sorted(overlapped, key=lambda pair: where[pair[0]]):
        name = f"{forward}&{backward}"
        if forward.kind != SlotKind.FORWARD or backward.kind not in GRADIENTS_OF_INPUTS:
            text, suggestion = (
                "an overlapped slot is one forward and one backward",
                "write F0.3&B1.2 (or I), other passes in slots of their own",
            )
            findings.append(_at(*where[forward], name, text, suggestion))
        elif forward[1:] == backward[1:]:
            text = f"{backward} needs what {forward} makes, so they cannot overlap"
            findings.append(_at(*where[forward], name, text, f"write {forward}, {backward}"))
    return findings
