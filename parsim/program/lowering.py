"""From a plan to a program: write every rank's passes, walk the schedule, stamp them.

What ranks do is written once per pipeline rank and role (`parsim.program.script`), made into a stamp for all lowered ranks of a
stage, so that a collective is one op in the lanes of all its members (`parsim.program.stamping`), and stamped per micro-batch in
the order of `parsim.program.slots`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parsim.kernel import Kernel
from parsim.parallel.groups import PIPELINE
from parsim.parallel.plan import Plan
from parsim.program.check import refuse_too_large
from parsim.program.lowered_ranks import LoweredRanks
from parsim.program.pass_builder import Item
from parsim.program.program import Program, StampBuilder
from parsim.program.script import Scripts, script_of, write
from parsim.program.slots import ScheduleLowering
from parsim.program.stage_passes import StagePasses
from parsim.program.stamping import Stamping


class Lowering:
    """Builds the program of a plan for the ranks in `representatives` (all ranks, or one per class of equals).

    `represents` maps every rank to the representative that stands for it. `clock` turns a kernel into seconds. `scripts` are
    those of the plan, if they are written already.
    """

    def __init__(
        self,
        plan: Plan,
        clock: Callable[[Kernel], float],
        representatives: Sequence[int] | None = None,
        represents: Mapping[int, int] | None = None,
        scripts: Scripts | None = None,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.program = Program()
        self.scripts = write(plan, clock) if scripts is None else scripts
        """what every pipeline rank does"""
        self._ranks = LoweredRanks(plan, representatives, represents)

    def run(self) -> Program:
        """The program. Raises `PlanError` for one that would not fit in memory."""
        refuse_too_large(self.plan, [len(ranks) for ranks in self._ranks.of_stage])
        self._declare()
        self._stamp({rank: script_of(self.scripts, self.plan, rank).begin for rank in self._ranks.all}, 0)
        ScheduleLowering(self._ranks, self.program, self.scripts, self.clock).run()
        self._stamp({rank: script_of(self.scripts, self.plan, rank).end for rank in self._ranks.all}, -1)
        self._describe()
        return self.program

    def passes_of(self, pipeline_rank: int) -> StagePasses:
        """The passes of one pipeline rank (of any role)."""
        return next(iter(self.scripts[pipeline_rank].values())).passes

    def all_passes(self) -> list[StagePasses]:
        """One per pipeline rank."""
        return [self.passes_of(p) for p in range(len(self.scripts))]

    def _declare(self) -> None:
        """What the program knows about ranks before it has ops."""
        for rank in self._ranks.all:
            passes = script_of(self.scripts, self.plan, rank).passes
            self.program.tensors[rank] = passes.table.rows
            self.program.resident[rank] = passes.resident
            self.program.slots[rank] = slots = self.plan.slots[self.plan.mesh.coordinate(rank, PIPELINE)]
            self.program.begins[rank] = [-1] * len(slots)

    def _describe(self) -> None:
        """What it knows about its ops beyond what the engine needs."""
        speeds = {1.0, *self.plan.slow.values()}
        for by_role in self.scripts:
            for script in by_role.values():
                self.program.memory_bound.update(script.passes.memory_bound())
                for (name, seconds), work in script.passes.work().items():
                    self.program.work.update({(name, seconds / speed): work for speed in speeds})

    def _stamp(self, items: Mapping[int, Sequence[Item]], instance: int) -> None:
        stamp = StampBuilder(self.program)
        Stamping(self._ranks, stamp, items).run()
        self.program.stamp(stamp.finish(), instance)
