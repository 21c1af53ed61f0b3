"""A pass of all lowered ranks of a stage, prepared once and added for every micro-batch.

The same ops in the same order as `parsim.program.stamping` adds, rank by rank up to a collective and then the collective, without
asking anything again. Only where the ranks do the same, and meet nobody of other stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from parsim.program.passes import Item
from parsim.program.program import COMPUTE, OFFLOAD, Collective, Effects, Lane, Op, Tail

if TYPE_CHECKING:
    from parsim.program.lowering import Lowering


class _Row(NamedTuple):
    """An item on every rank: columns by the place of the rank."""

    name: str
    kind: str
    duration: float
    lanes: Sequence[tuple[Lane, ...]]
    tails: Sequence[Sequence[Tail]]
    effects: Sequence[Effects]
    needs: tuple[int, ...]
    """places of items"""
    others: Sequence[Sequence[Tail]] | None
    """other lanes whose last op it waits for"""
    behind: bool
    """it waits for what the compute lane did before the pass"""


class _Joint(NamedTuple):
    """A collective of one group."""

    places: tuple[int, ...]
    """of the ranks"""
    lanes: tuple[Lane, ...]
    tails: Sequence[Tail]
    collective: Collective
    effects: Effects


class Together:
    """A pass of some ranks, ready to be added."""

    def __init__(self, lowering: Lowering, ranks: Sequence[int], items: Sequence[Item]) -> None:
        self._program = lowering.program
        self._ranks = ranks
        self._begins = [lowering.program.tail(Lane(rank, COMPUTE)) for rank in ranks]
        self._columns: dict[tuple[str, ...], tuple[list[tuple[Lane, ...]], list[list[Tail]]]] = {}
        self._first = next((place for place, item in enumerate(items) if item.lanes[0] == COMPUTE), -1)
        self._parts: list[tuple[list[_Row], tuple[_Row, list[_Joint]] | None]] = []
        rows: list[_Row] = []
        for item in items:
            row = self._row(lowering, item)
            if item.collective is None:
                rows.append(row)
            else:
                self._parts.append((rows, (row, self._joints(lowering, item))))
                rows = []
        self._parts.append((rows, None))

    @staticmethod
    def possible(lowering: Lowering, ranks: Sequence[int], items: Sequence[Item]) -> bool:
        """All groups of the pass are groups of several of these ranks, which are equally fast."""
        speeds = {lowering.plan.slow.get(rank, 1.0) for rank in ranks}
        axes = {item.collective[1] for item in items if item.collective is not None}
        groups = [(axis, *found) for axis in axes for found in lowering.groups(axis, ranks[0])]
        inside = set(ranks)
        return speeds == {1.0} and all(
            inside.issuperset(members) and (len(group) > 1 or axis == OFFLOAD) for axis, group, members in groups
        )

    def add(self, instance: int, waits: Mapping[int, Sequence[Op]]) -> dict[int, Op]:
        """Append the ops; returns each rank's first op on the compute lane, which begins behind `waits`."""
        begins = [tail[0] if tail else None for tail in self._begins]
        made: list[list[Op]] = []
        for rows, joint in self._parts:
            if rows:
                self._alone(rows, instance, made, begins)
            if joint is not None:
                self._join(*joint, instance, made, begins)
        self._program.grown()
        if self._first < 0:
            return {}
        starts = dict(zip(self._ranks, made[self._first], strict=True))
        for rank, ops in waits.items():
            for op in ops:
                self._program.block(op, starts[rank])
        return starts

    def _alone(self, rows: Sequence[_Row], instance: int, made: list[list[Op]], begins: Sequence[Op | None]) -> None:
        """What every rank does by itself."""
        ops, blockers = self._program.ops, self._program.blockers
        place, index = len(made), len(ops)
        made += [[] for _ in rows]
        for k, begin in enumerate(begins):
            for number, (name, kind, duration, lanes, tails, effects, needs, others, behind) in enumerate(rows, place):
                op = Op(index, name, kind, lanes[k], duration, None, effects[k] if effects else (), instance)
                index += 1
                count = 0
                for tail in tails[k]:
                    if tail:
                        tail[0].after.append(op)
                        count += 1
                        tail[0] = op
                    else:
                        tail.append(op)
                for need in needs:
                    made[need][k].after.append(op)
                    count += 1
                if others is not None:
                    count += _wait(op, others[k])
                if behind and begin is not None:
                    begin.after.append(op)
                    count += 1
                made[number].append(op)
                ops.append(op)
                blockers.append(count)

    def _join(self, row: _Row, joints: Sequence[_Joint], instance: int, made: list[list[Op]], begins: Sequence[Op | None]) -> None:
        """One op per group."""
        program = self._program
        mine: dict[int, Op] = {}
        for places, lanes, tails, collective, effects in joints:
            op = Op(len(program.ops), row.name, row.kind, lanes, 0.0, collective, effects, instance)
            count = 0
            for tail in tails:
                if tail:
                    tail[0].after.append(op)
                    count += 1
                    tail[0] = op
                else:
                    tail.append(op)
            for k in places:
                mine[k] = op
                for need in row.needs:
                    made[need][k].after.append(op)
                    count += 1
                if row.others is not None:
                    count += _wait(op, row.others[k])
                begin = begins[k]
                if row.behind and begin is not None:
                    begin.after.append(op)
                    count += 1
            program.ops.append(op)
            program.blockers.append(count)
        made.append([mine[k] for k in range(len(self._ranks))])

    # -- preparing ------------------------------------------------------------------------------------------------

    def _row(self, lowering: Lowering, item: Item) -> _Row:
        ranks, program = self._ranks, self._program
        if item.lanes not in self._columns:
            lanes = [lowering.lane_tuple(rank, item.lanes) for rank in ranks]
            self._columns[item.lanes] = lanes, [list(map(program.tail, mine)) for mine in lanes]
        kind, effects = item.kind, []
        if item.collective is None:
            effects = [item.stamped(rank) for rank in ranks] if item.effects else []
        elif item.collective[1] != OFFLOAD:
            kind = f"{lowering.breakdown_axis(item.collective[1])}_comm"
        others = [tail for tail in item.tails if tail != COMPUTE]
        waits = [[program.tail(Lane(rank, name)) for name in others] for rank in ranks] if others else None
        behind = len(others) < len(item.tails)
        return _Row(item.name, kind, item.duration, *self._columns[item.lanes], effects, tuple(item.needs), waits, behind)

    def _joints(self, lowering: Lowering, item: Item) -> list[_Joint]:
        kind, axis, size = item.collective  # type: ignore[misc]
        place = {rank: k for k, rank in enumerate(self._ranks)}
        found = []
        whole, own = lowering.breakdown_axis(axis), tuple(item.effects)
        for group, members in lowering.groups(axis, self._ranks[0]):
            collective = lowering.transfer(kind, whole, group, size)
            lowering.note(kind, axis, lowering.plan.mesh.coordinate(self._ranks[0], "pipeline"), -1, size)
            lanes = lowering.all_lanes(members, item.lanes)
            effects: Effects = tuple((rank, own) for rank in members) if own else ()
            tails = list(map(self._program.tail, lanes))
            found.append(_Joint(tuple(place[rank] for rank in members), lanes, tails, collective, effects))
        return found


def _wait(op: Op, tails: Sequence[Tail]) -> int:
    """Make an op wait for the ends of lanes; how many there were."""
    count = 0
    for tail in tails:
        if tail and tail[0] is not op:
            tail[0].after.append(op)
            count += 1
    return count
