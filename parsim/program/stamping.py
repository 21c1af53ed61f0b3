"""One rank's copy of a pass while it is being added to the program, where other ranks take part in its collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parsim.program.passes import Item
from parsim.program.program import COMPUTE, Effect, Effects, Lane, Op

if TYPE_CHECKING:
    from parsim.program.lowering import Lowering


class Stamping:
    """One rank's copy of a pass while it is being added to the program."""

    __slots__ = ("begin", "instance", "items", "lowering", "made", "position", "rank", "speed", "start", "waits")

    def __init__(self, lowering: Lowering, rank: int, items: Sequence[Item], instance: int, waits: list[Op]) -> None:
        self.lowering = lowering
        self.rank = rank
        self.items = items
        self.instance = instance
        self.waits = waits
        self.made: list[Op | None] = []
        self.position = 0
        self.start: Op | None = None
        self.begin = lowering.program.last(Lane(rank, COMPUTE))
        self.speed = lowering.plan.slow.get(rank, 1.0)

    @property
    def item(self) -> Item:
        return self.items[self.position]

    def all(self) -> None:
        """Add everything: no other lowered rank of this stage takes part."""
        while self.to_collective():
            group, members = self.lowering.groups(self.item.collective[1], self.rank)[0]  # type: ignore[index]
            self.lowering.join([self], group, members)
            self.position += 1

    def to_collective(self) -> bool:
        """Add compute up to the next collective; False at the end of the pass."""
        program = self.lowering.program
        while self.position < len(self.items):
            item = self.items[self.position]
            if item.collective is not None:
                return True
            lanes = self.lowering.lane_tuple(self.rank, item.lanes)
            effects: Effects = ()
            duration = item.duration
            if self.speed != 1.0:
                duration /= self.speed
                if item.effects:
                    effects = ((self.rank, self.lowering.stretched(self.rank, item, self.speed)),)
            elif item.effects:
                effects = item.stamped(self.rank)
            op = program.add(item.name, item.kind, lanes, self.needs(item), duration, None, effects, self.instance)
            self.record(op)
            self.position += 1
        return False

    def needs(self, item: Item) -> list[Op]:
        """What this rank's part of an item waits for besides its lanes."""
        made, program = self.made, self.lowering.program
        needs = [op for i in item.needs if (op := made[i]) is not None]
        for tail in item.tails:
            op = self.begin if tail == COMPUTE else program.last(Lane(self.rank, tail))
            if op is not None:
                needs.append(op)
        if self.waits and item.lanes[0] == COMPUTE:
            needs += self.waits
            self.waits = []
        return needs

    def record(self, op: Op) -> None:
        self.made.append(op)
        if self.start is None and self.item.lanes[0] == COMPUTE:
            self.start = op

    def skip(self) -> None:
        """A collective of one rank does not happen; its order and its memory effects stay."""
        item, lowering = self.item, self.lowering
        needs = self.needs(item)
        if not (needs or item.effects):
            # on the compute lane it ends when the compute before it does, and others may wait for that
            self.made.append(lowering.program.last(Lane(self.rank, COMPUTE)) if item.lanes[0] == COMPUTE else None)
            return
        lanes = lowering.lane_tuple(self.rank, item.lanes)
        # what a transfer frees at its end is free at once
        now = tuple(Effect(0.0, effect.tensor, effect.allocate) for effect in item.effects)
        effects = ((self.rank, now),) if now else ()
        self.record(lowering.program.add(item.name, "compute", lanes, needs, 0.0, None, effects, self.instance))
