"""Where blocking sends stand between the slots, when communication is not overlapped with compute.

A blocking message occupies both ranks: the sender right after the slot that made it, the receiver between two of
its slots. Two ranks that hold a message for each other swap them in one exchange, as Megatron-LM's
``send_forward_recv_backward`` does. Because messages are put in one order for all ranks, they cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from parsim.parallel.schedules.slot import Precedence, Schedule, Slot, SlotKind


class MessageExchange(NamedTuple):
    """One message between two ranks, or two that cross."""

    sender: int
    receiver: int
    slots: tuple[Slot, ...]
    """the slots whose results travel: the first from sender to receiver, the second (if any) back"""


SlotOrExchange: TypeAlias = Slot | MessageExchange

_UNITS = {SlotKind.FORWARD: 1.0, SlotKind.FULL_BACKWARD: 2.0, SlotKind.BACKWARD_INPUT: 1.0, SlotKind.BACKWARD_WEIGHT: 1.0}


def blocking_order(
    schedule: Schedule, duration: Callable[[Slot], float] | None = None, latency: Callable[[MessageExchange], float] | None = None
) -> list[SlotOrExchange]:
    """Slots and messages in the order in which they start; append them to their ranks' lanes in this order.

    A message starts when its sender has nothing else to do (it cannot go on) and its receiver is between two slots;
    messages go before slots that could start at the same time. `duration` and `latency` (default: F 1, B 2, I 1,
    W 1, messages 0) decide who is free first. Slots that a deadlock keeps from running are left out.
    """
    cost = duration or (lambda slot: _UNITS[slot.kind])
    delay = latency or (lambda _: 0.0)
    precedence = Precedence(schedule)
    targets = {source: slot for slot in precedence.rank if precedence.travels(slot) and (source := precedence.source(slot)) is not None}
    free = [0.0] * len(schedule)
    position = [0] * len(schedule)
    outgoing: list[Slot | None] = [None] * len(schedule)
    known: set[tuple[Slot, int]] = set()
    order: list[SlotOrExchange] = []
    while True:
        choice = _earliest_message(precedence, targets, free, outgoing)
        runnable = _earliest_slot(schedule, precedence, free, position, outgoing, known)
        if choice and (not runnable or choice[0] <= runnable[0]):
            start, exchange = choice
            order.append(exchange)
            ends = (exchange.sender, exchange.receiver)
            for result, origin, target in zip(exchange.slots, ends, reversed(ends), strict=False):
                outgoing[origin] = None
                known.add((result, target))
            free[exchange.sender] = free[exchange.receiver] = start + delay(exchange)
        elif runnable:
            start, rank = runnable
            slot = schedule[rank][position[rank]]
            order.append(slot)
            position[rank] += 1
            free[rank] = start + cost(slot)
            known.add((slot, rank))
            if slot in targets:
                outgoing[rank] = slot
        else:
            return order


def _earliest_message(
    precedence: Precedence, targets: dict[Slot, Slot], free: list[float], outgoing: list[Slot | None]
) -> tuple[float, MessageExchange] | None:
    best: tuple[float, MessageExchange] | None = None
    for sender, slot in enumerate(outgoing):
        if slot is None:
            continue
        receiver = precedence.rank[targets[slot]]
        start = max(free[sender], free[receiver])
        if best is None or start < best[0]:
            back = outgoing[receiver]
            crossing = back is not None and precedence.rank[targets[back]] == sender
            best = (start, MessageExchange(sender, receiver, (slot, back) if crossing and back is not None else (slot,)))
    return best


def _earliest_slot(
    schedule: Schedule,
    precedence: Precedence,
    free: list[float],
    position: list[int],
    outgoing: list[Slot | None],
    known: set[tuple[Slot, int]],
) -> tuple[float, int] | None:
    best: tuple[float, int] | None = None
    for rank, row in enumerate(schedule):
        if outgoing[rank] is not None or position[rank] == len(row):
            continue
        if best is not None and free[rank] >= best[0]:
            continue
        slot = row[position[rank]]
        if all((need, rank) in known for need in precedence.needs(slot)):
            best = (free[rank], rank)
    return best
