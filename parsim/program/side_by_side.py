"""A forward and a backward that run in one slot: their kernels take turns on the compute lane, their messages run beside the other's.

Megatron-LM (``core/models/common/model_chunk_schedule_plan.py``) and DualPipe (arXiv 2412.19437, figure 4) run a layer of the one with a
layer of the other: while one exchanges, the other computes, and gradients of weights run when nobody waits for them:

    messages   combine B |  dispatch F, dispatch B  | combine F
    compute    attention F |  MLP B, MLP W, MLP F   | attention B

Where tokens are exchanged, other collectives stay where they are: tensor parallelism's are part of attention or MLP, which run on one
stream. A slot begins when the inputs of both passes are there, and ends both at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest

from parsim.parallel.groups import EXPERT, EXPERT_MODEL, EXPERT_TENSOR
from parsim.parallel.hooks import COUNTS
from parsim.program.pass_builder import Item
from parsim.program.program import COMPUTE

_Turn = list[int]
"""places of items of a pass: compute, and the messages that it then waits for"""


def side_by_side(forward: Sequence[Item], backward: Sequence[Item]) -> list[Item]:
    """The items of both passes as those of one; `Item.turn` says whose they are: 0 the forward's, 1 the backward's.

    Blocks of the model run in pairs, the forward's first with the backward's first. In a pair the passes take turns, the backward first;
    a turn ends where a pass would wait for a message.
    """
    exchanges = any(_exchange(item) for item in (*forward, *backward))
    slot = _Slot((forward, backward), _exchange if exchanges else _blocking)
    slot.gate()
    for ahead, behind in zip_longest(slot.blocks(0), slot.blocks(1), fillvalue=()):
        for own, other in zip_longest(behind, ahead, fillvalue=()):
            slot.take(1, own)
            slot.take(0, other)
    slot.gate()
    return slot.items


def _blocking(item: Item) -> bool:
    return item.collective is not None and COMPUTE in item.lanes


def _exchange(item: Item) -> bool:
    """It waits for tokens that go to experts or come from them."""
    return _blocking(item) and item.collective is not None and item.collective[1] in (EXPERT, EXPERT_MODEL, EXPERT_TENSOR)


def _blocks(items: Sequence[Item], ends: Callable[[Item], bool]) -> list[list[_Turn]]:
    """The turns of a pass by block of the model, as compute is called: ``F0 layer 3``. The host's wait for counts is part of its block."""
    blocks: list[list[_Turn]] = [[[]]]
    block, over = None, False
    for place, item in enumerate(items):
        if item.lanes[0] == COMPUTE and item.collective is None and item.name != COUNTS:
            name = item.name.partition(" ")[2]
            if block is not None and name != block:
                blocks.append([[]])
            elif over:
                blocks[-1].append([])
            block, over = name, False
        over = over or ends(item)
        blocks[-1][-1].append(place)
    return blocks


class _Slot:
    """Both passes while they are put together."""

    def __init__(self, passes: tuple[Sequence[Item], Sequence[Item]], beside: Callable[[Item], bool]) -> None:
        """`beside`: whether the other pass goes on during an item."""
        self._passes = passes
        self._beside = beside
        self._new: tuple[dict[int, int], dict[int, int]] = ({}, {})
        """by pass: place of an item -> its place here"""
        self._last: list[int] = [-1, -1]
        """by pass: the item here that its next one follows"""
        self.items: list[Item] = []

    def blocks(self, which: int) -> list[list[_Turn]]:
        """The turns of a pass, by block of the model."""
        return _blocks(self._passes[which], self._beside)

    def gate(self) -> None:
        """An empty op at which both passes wait for each other."""
        first = next(item for item in self._passes[0] if item.lanes[0] == COMPUTE)
        self._last = [self._add(Item(first.name, COMPUTE, (COMPUTE,), needs=[last for last in dict.fromkeys(self._last) if last >= 0]))] * 2

    def take(self, which: int, turn: Sequence[int]) -> None:
        """The next items of a pass."""
        for place in turn:
            item = self._passes[which][place]
            in_order = COMPUTE in item.lanes
            needs = [self._new[which][need] for need in item.needs]
            lanes = tuple(lane for lane in item.lanes if lane != COMPUTE) if self._beside(item) else item.lanes
            if in_order:  # it follows its pass; on the compute lane the other pass may stand between
                needs = list(dict.fromkeys([*needs, self._last[which]]))
            at = self._new[which][place] = self._add(replace(item, lanes=lanes, needs=needs, turn=which))
            if in_order and not item.aside:
                self._last[which] = at

    def _add(self, item: Item) -> int:
        self.items.append(item)
        return len(self.items) - 1
