"""Lowering to blocks: the same program as `Lowering` makes, with what nobody outside can change as one op each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from parsim.kernel import Kernel
from parsim.parallel.plan import Plan
from parsim.program.blocks import BlockProgram, Body, CutPass, Layout, Part, Row, Spec, layout, parts
from parsim.program.lowering import Lowering
from parsim.program.passes import Item, Passes
from parsim.program.program import COMPUTE, OFFLOAD, Collective, Lane, Program, Stamp
from parsim.program.shared import SharedPasses
from parsim.program.stage import StagePasses

_NONE: frozenset[str] = frozenset()
"""lanes of a rank that may be busy beyond the end of a pass's compute, until one is"""


class BlockLowering(Lowering):
    """As `Lowering`; transfers in `outside` stay ops, because others can change how long they take."""

    def __init__(
        self,
        plan: Plan,
        clock: Callable[[Kernel], float],
        representatives: Sequence[int] | None = None,
        represents: Mapping[int, int] | None = None,
        outside: frozenset[Collective] = frozenset(),
    ) -> None:
        self._shared = SharedPasses(plan, clock)
        super().__init__(plan, clock, representatives, represents)
        self._whole = partial(Lowering, plan, clock, representatives, represents)
        self._again = partial(BlockLowering, plan, clock, representatives, represents)
        self._outside = outside
        self._layouts: dict[tuple[tuple[Row, ...], frozenset[str]], Layout] = {}
        self._parts: dict[tuple[int, frozenset[str], frozenset[Spec]], tuple[list[Part], frozenset[str]]] = {}
        self._cut: dict[tuple[int, int, frozenset[str]], tuple[Sequence[Item], CutPass | None, frozenset[str]]] = {}
        self._own_passes: dict[int, StagePasses] = {}

    def whole(self) -> Lowering:
        """The same in ops, lowered."""
        lowering = self._whole()
        lowering.run()
        return lowering

    def without(self, outside: frozenset[Collective]) -> BlockLowering:
        """The same, lowered, with these transfers as ops too."""
        lowering = self._again(outside | self._outside)
        lowering.run()
        return lowering

    def new_program(self) -> Program:
        """See `Lowering.new_program`."""
        return BlockProgram()

    def new_passes(self, pipeline_rank: int, role: str) -> Passes:
        """See `Lowering.new_passes`: equal chunks are written once."""
        return self._shared.of(pipeline_rank, role)

    @property
    def blocks(self) -> BlockProgram:
        """The program."""
        return cast("BlockProgram", self.program)

    def declare(self) -> None:
        """See `Lowering.declare`: nothing is asked about the memory of blocks."""

    def describe(self) -> None:
        """See `Lowering.describe`."""
        self.program.memory_bound.update(self._shared.memory_bound())

    def passes_of(self, pipeline_rank: int) -> StagePasses:
        """The passes of one pipeline rank, with its own names."""
        if (found := self._own_passes.get(pipeline_rank)) is None:
            role = next(iter(self.passes[pipeline_rank]))
            found = self._own_passes[pipeline_rank] = StagePasses(self.plan, pipeline_rank, role, self.clock)
        return found

    def apart(self, templates: Mapping[str, Sequence[Item]]) -> bool:
        """See `Lowering.apart`: blocks are of one rank."""
        return True

    def compiled(self, rank: int, items: Sequence[Item]) -> Sequence[Stamp] | None:
        """See `Lowering.compiled`."""
        opened = cast("frozenset[str]", self.conditions.get(rank, _NONE))
        key = (rank, id(items), opened)
        if (found := self._cut.get(key)) is None:
            found = self._cut[key] = self._cut_up(rank, items, opened)
        _, cut, left = found
        if not left <= opened:
            self.conditions[rank] = opened | left
        return cut

    def _cut_up(self, rank: int, items: Sequence[Item], opened: frozenset[str]) -> tuple[Sequence[Item], CutPass | None, frozenset[str]]:
        transfers = self._transfers(rank, items)
        if transfers is None:
            return items, None, frozenset(lane for item in items if COMPUTE not in item.lanes for lane in item.lanes)
        apart = frozenset(spec for spec, collective in transfers.items() if collective in self._outside)
        key = (id(items), opened, apart)
        if (found := self._parts.get(key)) is None:
            found = self._parts[key] = self._divide(items, opened, apart)
        made, left = found
        return items, self._on(rank, made, transfers), left

    def _transfers(self, rank: int, items: Sequence[Item]) -> dict[Spec, Collective] | None:
        """The transfers of a pass; None if other lowered ranks take part in one."""
        found: dict[Spec, Collective] = {}
        for item in items:
            if (spec := item.collective) is None or spec in found:
                continue
            what, axis, size = spec
            group, members = self.meeting(axis, rank)
            if members != (rank,) or (len(group) == 1 and axis != OFFLOAD):
                return None
            found[spec] = self.transfer(what, self.breakdown_axis(axis), group, size)
            self.note(what, axis, self.plan.mesh.coordinate(rank, "pipeline"), -1, size)
        return found

    def _divide(self, items: Sequence[Item], opened: frozenset[str], apart: frozenset[Spec]) -> tuple[list[Part], frozenset[str]]:
        rows = tuple(Row(item.lanes, tuple(item.needs), tuple(item.tails), item.collective not in apart) for item in items)
        if (found := self._layouts.get((rows, opened))) is None:
            found = self._layouts[rows, opened] = layout(rows, opened)
        return parts(items, found), found.left_open

    def _on(self, rank: int, made: Sequence[Part], transfers: dict[Spec, Collective]) -> CutPass:
        """The parts of a pass as stamps of one rank."""
        speed = self.plan.slow.get(rank, 1.0)
        result = CutPass()
        result.bodies = []
        for part in made:
            item, shape = part.item, part.shape
            collective = None if shape is not None or item.collective is None else transfers[item.collective]
            kind = item.kind if collective is None or collective.axis == OFFLOAD else f"{collective.axis}_comm"
            lanes = self.lane_tuple(rank, part.lanes)
            tails = tuple(Lane(rank, tail) for tail in item.tails)
            result.append(Stamp(item.name, kind, lanes, item.duration / speed, collective, (), part.needs, tails))
            body = None
            if shape is not None:
                uses = tuple((transfers[spec], self.lane_tuple(rank, names), count) for spec, names, count in shape.uses)
                body = Body(shape, speed, transfers, uses)
            result.bodies.append(body)
        return result
