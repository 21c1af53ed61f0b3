"""A pass of several ranks as one stamp: everyone goes ahead to the next collective, which begins when all its members are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from parsim.errors import Finding, PlanError
from parsim.parallel.groups import OFFLOAD
from parsim.program.lowered_ranks import LoweredRanks, Ranks
from parsim.program.pass_builder import Item
from parsim.program.program import COMPUTE, Effect, Effects, Lane, OpSpec, StampBuilder

_BEFORE = -1
"""stands for what the compute lane did before the pass, among the rows that a rank has made"""


class _Cursor:
    """How far one rank has come in its items."""

    def __init__(self, rank: int, items: Sequence[Item], speed: float) -> None:
        self.rank = rank
        self.items = items
        self.speed = speed
        """of its compute, 1 = as planned"""
        self.position = 0
        self.made: list[int | None] = []
        """by item: its row, `_BEFORE`, or None if it is no op"""

    @property
    def item(self) -> Item:
        return self.items[self.position]

    def record(self, row: int | None) -> None:
        """The row of the item at hand."""
        self.made.append(row)
        self.position += 1

    def waits(self) -> tuple[list[int], list[Lane], list[Lane]]:
        """What the item at hand waits for besides its lanes: rows, lanes as they are, lanes as they were before the pass."""
        item = self.item
        rows = [row for need in item.needs if (row := self.made[need]) is not None]
        compute = Lane(self.rank, COMPUTE)
        before = [compute] if COMPUTE in item.tails or _BEFORE in rows else []
        return [row for row in rows if row != _BEFORE], [Lane(self.rank, tail) for tail in item.tails if tail != COMPUTE], before


class Stamping:
    """Writes the passes of some ranks, which may meet, into a stamp."""

    def __init__(self, lowered: LoweredRanks, stamp: StampBuilder, items: Mapping[int, Sequence[Item]]) -> None:
        self._lowered = lowered
        self._stamp = stamp
        self._items = items

    def run(self) -> None:
        """Add all rows: ranks that never meet one after the other, ranks that do up to each meeting.

        Raises `PlanError` if a rank waits in a collective that another member never comes to.
        """
        for ranks in self._companies():
            cursors = [_Cursor(rank, self._items[rank], self._lowered.plan.slow.get(rank, 1.0)) for rank in ranks]
            while waiting := self._advance(cursors):
                complete = [(key, arrived) for key, arrived in waiting.items() if len(arrived) == len(key[2])]
                if not complete:
                    (name, group, members), arrived = next(iter(waiting.items()))
                    late = sorted(set(members) - {cursor.rank for cursor in arrived})
                    text = f"rank {arrived[0].rank} is in {name!r} with the ranks {group}, but rank {late[0]} never comes to it"
                    raise PlanError(Finding(text, path="collective", value=name))
                for (_, group, _), arrived in complete:
                    self._meet(arrived, group)

    def _companies(self) -> Iterator[list[int]]:
        """Ranks that meet, directly or through others; in order."""
        left = dict.fromkeys(self._items)
        while left:
            company = [next(iter(left))]
            del left[company[0]]
            for rank in company:  # grows while it is walked
                for axis in dict.fromkeys(item.collective[1] for item in self._items[rank] if item.collective is not None):
                    for other in self._lowered.meeting(axis, rank)[1]:
                        if other in left:
                            del left[other]
                            company.append(other)
            yield sorted(company)

    def _advance(self, cursors: Sequence[_Cursor]) -> dict[tuple[str, Ranks, Ranks], list[_Cursor]]:
        """Everyone up to its next collective: (name, members, lowered members) -> who stands at it. Empty at the end of the pass."""
        waiting: dict[tuple[str, Ranks, Ranks], list[_Cursor]] = {}
        for cursor in cursors:
            while cursor.position < len(cursor.items):
                item = cursor.item
                if item.collective is None:
                    self._compute(cursor)
                    continue
                group, members = self._lowered.meeting(item.collective[1], cursor.rank)
                if len(group) == 1 and item.collective[1] != OFFLOAD:
                    self._skip(cursor)
                    continue
                waiting.setdefault((item.name, group, members), []).append(cursor)
                break
        return waiting

    def _compute(self, cursor: _Cursor) -> None:
        item = cursor.item
        speed = 1.0 if item.waits else cursor.speed
        effects: Effects = ()
        if item.effects:
            effects = item.on(cursor.rank) if speed == 1.0 else ((cursor.rank, _stretched(item.effects, speed)),)
        lanes = self._lowered.lane_tuple((cursor.rank,), item.lanes)
        self._stamp.turn = item.turn
        cursor.record(self._stamp.add(OpSpec(item.name, item.kind, lanes, item.duration / speed, None, effects), *cursor.waits()))

    def _skip(self, cursor: _Cursor) -> None:
        """A collective of one rank does not happen; its order and its memory effects stay."""
        item, rank = cursor.item, cursor.rank
        rows, behind, before = cursor.waits()
        if not (rows or behind or before or item.effects):
            # on the compute lane it ends when the compute before it does, and others may wait for that
            last = self._stamp.last(Lane(rank, COMPUTE))
            cursor.record((_BEFORE if last is None else last) if item.lanes[0] == COMPUTE else None)
            return
        now = tuple(Effect(0.0, effect.tensor, effect.allocate) for effect in item.effects)  # what it frees at its end is free at once
        lanes = self._lowered.lane_tuple((rank,), item.lanes)
        self._stamp.turn = item.turn
        spec = OpSpec(item.name, COMPUTE, lanes, 0.0, None, ((rank, now),) if now else ())
        cursor.record(self._stamp.add(spec, rows, behind, before))

    def _meet(self, arrived: Sequence[_Cursor], group: Ranks) -> None:
        """One op in the lanes of all who stand at a collective."""
        lowered, item = self._lowered, arrived[0].item
        assert item.collective is not None
        kind, axis, size = item.collective
        lanes = lowered.lane_tuple(tuple(cursor.rank for cursor in arrived), item.lanes)
        effects = tuple(pair for cursor in arrived if cursor.item.effects for pair in cursor.item.on(cursor.rank))
        rows, behind, before = (
            [one for cursor_waits in column for one in cursor_waits] for column in zip(*(c.waits() for c in arrived), strict=True)
        )
        whole = lowered.plan.groups.timed(axis)
        whose = item.kind if axis == OFFLOAD else f"{whole}_comm"
        collective = lowered.transfer(kind, whole, group, size)
        self._stamp.turn = item.turn
        row = self._stamp.add(OpSpec(item.name, whose, lanes, item.duration, collective, effects), rows, behind, before)
        for cursor in arrived:
            cursor.record(row)


def _stretched(effects: Sequence[Effect], speed: float) -> tuple[Effect, ...]:
    """Effects of an item on a rank whose compute runs at `speed`."""
    return tuple(Effect(effect.offset / speed, effect.tensor, effect.allocate) for effect in effects)
