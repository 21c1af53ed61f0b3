"""V-Half and V-Min: two chunks per rank in the shape of a V, with about half and a third of the activations of 1F1B.

Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362. All micro-batches repeat one building block: the slots of the
four passes of a micro-batch on every rank. How long an activation lives in the block, over the six slots from one block to the next, is
how many are alive at once. The ends of the step, where the blocks leave slots empty, are then filled without a higher peak, by the authors'
greedy rule (github.com/sail-sg/zero-bubble-pipeline-parallelism, ``zbv_greedy.py``, version 064369d6), from which these orders follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from parsim.parallel.schedules.slot import Schedule, Slot, SlotKind

# A micro-batch goes down the V, up, down and up again: two legs of forwards, two of gradients of inputs.
_FIRST_FORWARD, _SECOND_FORWARD, _SECOND_INPUT, _FIRST_INPUT, _WEIGHT, _EMPTY = range(6)
_LEGS = 4
_DOWN = (_FIRST_FORWARD, _SECOND_INPUT)
"""the legs that go from rank 0 to the last rank; the others come back"""
_PERIOD = 6
"""slots from one micro-batch to the next: F, I and W of two chunks"""

_Slots: TypeAlias = list[list[int]]
"""of one rank, by leg and micro-batch; a fifth list, where there is one, has the slots of weight gradients in the order of time"""


class _Pass(NamedTuple):
    """In the order in which passes are taken up: by slot, at the same slot by rank."""

    slot: int
    rank: int
    leg: int
    number: int
    """micro-batch; of weight gradients the how-manieth of the rank"""


def v_half(stages: int, micro_batches: int) -> Schedule:
    """Rank s holds global stages s and 2p - 1 - s; at most p + 2 (p even) or p + 1 chunks in flight, where zb-v has 2p.

    Where tF = tI = tW the bubble is up to half of 1F1B's.

    >>> print(*v_half(2, 2)[1])
    F1.0 F2.0 F1.1 F2.1 I2.0 W2.0 I1.0 W1.0 I2.1 W2.1 I1.1 W1.1
    """
    gap = 3 if stages % 2 == 0 else 0  # else two passes of a rank would meet in one slot
    block = [
        (2 * rank, 3 * stages - rank - 2, 3 * stages + gap + 2 * rank - 1, 6 * stages + gap - rank - 2) for rank in range(stages)
    ]  # fmt: skip
    return _repeated(block, micro_batches)


def v_min(stages: int, micro_batches: int) -> Schedule:
    """Rank s holds global stages s and 2p - 1 - s; about two thirds of p chunks in flight, where zb-v has 2p.

    Where tF = tI = tW the bubble is up to two thirds of 1F1B's. Where they differ it grows with every micro-batch: ranks wait for each
    other in every block.

    >>> print(*v_min(2, 2)[1])
    F1.0 F2.0 I2.0 I1.0 F1.1 F2.1 W2.0 W1.0 I2.1 I1.1 W2.1 W1.1
    """
    gap = 2 if stages % 3 == 0 else 0
    block = [(rank, 2 * stages - 1 - rank, 2 * stages + gap + rank, 4 * stages + gap - 1 - rank) for rank in range(stages)]
    return _repeated(block, micro_batches)


def _repeated(block: Sequence[tuple[int, ...]], micro_batches: int) -> Schedule:
    """The schedule of a building block: its slots by rank and leg."""
    ranks: list[_Slots] = [[[begin + _PERIOD * i for i in range(micro_batches)] for begin in legs] for legs in block]
    # both ends of the step, with weight gradients in fixed slots; then its end again, with weight gradients wherever there is room
    ranks = _played(_pulled(_with_weights(ranks)))
    ranks = _played(_with_weights(_pulled([slots[:_LEGS] for slots in ranks])))
    return tuple(tuple(_row(rank, len(ranks), slots[:_LEGS])) for rank, slots in enumerate(ranks))


def _with_weights(ranks: Sequence[_Slots]) -> list[_Slots]:
    return [[*slots, [slot for slot, _ in _weights(slots)]] for slots in ranks]


def _row(rank: int, stages: int, slots: _Slots) -> Iterator[Slot]:
    first, second = rank, 2 * stages - 1 - rank
    forward, inputs, weight = SlotKind.FORWARD, SlotKind.BACKWARD_INPUT, SlotKind.BACKWARD_WEIGHT
    of_leg = ((forward, first), (forward, second), (inputs, second), (inputs, first))
    passes = [(slot, Slot(*of_leg[leg], number)) for leg, of in enumerate(slots) for number, slot in enumerate(of)]
    done = {_SECOND_INPUT: 0, _FIRST_INPUT: 0}
    for slot, leg in _weights(slots):
        passes.append((slot, Slot(weight, of_leg[leg][1], done[leg])))
        done[leg] += 1
    for _, one in sorted(passes):
        yield one


def _weights(slots: _Slots) -> Iterator[tuple[int, int]]:
    """(slot, leg of its I) of every weight gradient: in empty slots as soon as there are any, those of the second chunk first."""
    taken = {slot: leg for leg, of in enumerate(slots) for slot in of}
    due = {_SECOND_INPUT: 0, _FIRST_INPUT: 0}
    slot, left = 0, 2 * len(slots[_FIRST_INPUT])
    while left:
        leg = taken.get(slot)
        if leg in due:
            due[leg] += 1
        elif leg is None and any(due.values()):
            chosen = next(leg for leg, count in due.items() if count)
            due[chosen] -= 1
            left -= 1
            yield slot, chosen
        slot += 1


class _Rank:
    """One rank's passes by slot, and what it holds after each: (chunk activations, weight gradients that are due)."""

    def __init__(self, slots: _Slots) -> None:
        self.slots = [list(of) for of in slots]
        self._implied = len(slots) == _LEGS  # empty slots are where weight gradients run that are due
        self.row = [_EMPTY] * (1 + max(of[-1] for of in slots))
        for leg, of in enumerate(slots):
            for slot in of:
                self.row[slot] = leg
        self._held = list(accumulate(self.row, self._after, initial=(0, 0)))[1:]

    @property
    def peak(self) -> int:
        """Most chunk activations."""
        return max(alive for alive, _ in self._held)

    def inputs(self, number: int) -> int:
        """The slot of the rank's gradient of inputs number so and so, of either chunk."""
        return sorted(self.slots[_SECOND_INPUT] + self.slots[_FIRST_INPUT])[number]

    def move(self, leg: int, number: int, target: int, most: int) -> bool:
        """Move a pass to an empty earlier slot, unless more than `most` activations would then be alive anywhere."""
        source = self.slots[leg][number]
        held = self._held[target - 1] if target else (0, 0)
        anew: list[tuple[int, int]] = []
        for slot in range(target, len(self.row)):
            held = self._after(held, leg if slot == target else _EMPTY if slot == source else self.row[slot])
            if held[0] > most:
                return False
            if slot >= source and held == self._held[slot]:
                break  # from here on nothing differs
            anew.append(held)
        self._held[target : target + len(anew)] = anew
        self.row[source], self.row[target] = _EMPTY, leg
        self.slots[leg][number] = target
        return True

    def _after(self, held: tuple[int, int], leg: int) -> tuple[int, int]:
        alive, due = held
        if leg in (_FIRST_FORWARD, _SECOND_FORWARD):
            return alive + 1, due
        if leg in (_SECOND_INPUT, _FIRST_INPUT):
            return alive, due + 1
        if leg == _WEIGHT or (self._implied and due):
            return alive - 1, due - 1
        return held


def _pulled(slots: Sequence[_Slots]) -> list[_Slots]:
    """Slots after the passes at the ends of the step have moved to earlier empty slots, one after the other.

    The beginning (up to rank 0's first I of the first chunk) moves only where weight gradients have slots; the end is what follows the last
    F of the first chunk. What lies between repeats itself and stays. No rank holds more than the fullest did.
    """
    ranks = [_Rank(of) for of in slots]
    most = max(rank.peak for rank in ranks)
    last = len(slots[0][_FIRST_FORWARD]) - 1
    steady = _Pass(slots[0][_FIRST_INPUT][0], 0, _FIRST_INPUT, 0)
    lasts = (_Pass(of[_FIRST_FORWARD][last], rank, _FIRST_FORWARD, last) for rank, of in enumerate(slots))
    drain = min((one for one in lasts if one > steady), default=None)  # None: a step too short for a steady state
    whole = len(slots[0]) > _LEGS
    for one in _in_order(slots):
        if not ((whole and one < steady) or (drain is not None and one > drain)):
            continue
        rank = ranks[one.rank]
        for target in range(1 + _blocker(ranks, one), one.slot):
            if rank.row[target] == _EMPTY and rank.move(one.leg, one.number, target, most):
                break
    return [rank.slots for rank in ranks]


def _in_order(slots: Sequence[_Slots]) -> list[_Pass]:
    return sorted(
        _Pass(slot, rank, leg, number) for rank, legs in enumerate(slots) for leg, of in enumerate(legs) for number, slot in enumerate(of)
    )


def _source(one: _Pass, stages: int) -> tuple[int, int] | None:
    """(rank, leg) of the pass of the same micro-batch whose result a pass waits for; None for the first forward."""
    before = one.rank - 1 if one.leg in _DOWN else one.rank + 1
    if 0 <= before < stages:
        return before, one.leg
    return (one.rank, one.leg - 1) if one.leg else None  # the V turns


def _blocker(ranks: Sequence[_Rank], one: _Pass) -> int:
    """The last slot of what a pass needs: its input, and the micro-batch before on the same stage; -1 for none."""
    own = ranks[one.rank].slots[one.leg]
    before = own[one.number - 1] if one.number else -1
    if one.leg == _WEIGHT:
        return max(before, ranks[one.rank].inputs(one.number))
    source = _source(one, len(ranks))
    return before if source is None else max(before, ranks[source[0]].slots[source[1]][one.number])


def _played(slots: Sequence[_Slots]) -> list[_Slots]:
    """The slots in which every pass begins as soon as it can, in the same order, when all take one slot."""
    begun: list[_Slots] = [[[] for _ in legs] for legs in slots]
    free = [0] * len(slots)
    for one in _in_order(slots):
        source = None if one.leg == _WEIGHT else _source(one, len(slots))
        ready = 0 if source is None else 1 + begun[source[0]][source[1]][one.number]
        begun[one.rank][one.leg].append(max(free[one.rank], ready))
        free[one.rank] = begun[one.rank][one.leg][-1] + 1
    return begun
