"""Lowering to blocks: the same program as `Lowering` makes, with what nobody outside can change as one op each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from parsim.kernel import Kernel
from parsim.parallel.plan import Plan
from parsim.program.blocks import BlockProgram, CutPass, Layout, Row, cut_pass, layout
from parsim.program.lowering import Lowering
from parsim.program.passes import Item
from parsim.program.program import COMPUTE, Collective, Program, Stamp


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
        super().__init__(plan, clock, representatives, represents)
        self._whole = partial(Lowering, plan, clock, representatives, represents)
        self._again = partial(BlockLowering, plan, clock, representatives, represents)
        self._outside = outside
        self._open: dict[int, frozenset[str]] = {}
        """rank -> lanes that may be busy beyond the end of a pass's compute"""
        self._layouts: dict[tuple[tuple[Row, ...], frozenset[str]], Layout] = {}
        self._cut: dict[tuple[int, int, frozenset[str]], tuple[Sequence[Stamp] | None, CutPass | None, frozenset[str]]] = {}

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

    def compiled(self, rank: int, items: Sequence[Item]) -> Sequence[Stamp] | None:
        """See `Lowering.compiled`."""
        opened = self._open.get(rank, frozenset())
        key = (rank, id(items), opened)
        if (found := self._cut.get(key)) is None:
            found = self._cut[key] = self._cut_up(rank, items, opened)
        _, cut, left = found
        if not left <= opened:
            self._open[rank] = opened | left
        return cut

    def _cut_up(
        self, rank: int, items: Sequence[Item], opened: frozenset[str]
    ) -> tuple[Sequence[Stamp] | None, CutPass | None, frozenset[str]]:
        whole = super().compiled(rank, items)
        if whole is None:
            return None, None, frozenset(lane for item in items if COMPUTE not in item.lanes for lane in item.lanes)
        rows = tuple(
            Row(item.lanes, tuple(item.needs), tuple(item.tails), stamp[4] is None or stamp[4] not in self._outside)
            for item, stamp in zip(items, whole, strict=True)
        )
        shape = (rows, opened)
        if (found := self._layouts.get(shape)) is None:
            found = self._layouts[shape] = layout(rows, opened)
        return whole, cut_pass(whole, found), found.left_open
