"""What a run of a program with blocks says about every op inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from parsim.hardware.flows import CollectiveCost
from parsim.program.blocks import BlockProgram
from parsim.program.program import Collective, Program
from parsim.simulation.blocks import Log
from parsim.simulation.courses import Courses
from parsim.simulation.expansion import expand_all
from parsim.simulation.paths import Regime
from parsim.simulation.serial import serial_collectives
from parsim.simulation.trace import Trace


@dataclass(frozen=True)
class BlockTrace(Trace):
    """The trace of a program with blocks: what each block did, and under which loads from outside."""

    courses: Courses | None = None
    changes: Sequence[tuple[int, float, Regime]] = field(default_factory=list)
    """(op index of a block or kernel, time [s], loads from then on) in order of time, unless there were none throughout"""

    @cached_property
    def logs(self) -> dict[int, Log]:
        """Op index -> its loads from its beginning, where there were any."""
        found: dict[int, Log] = {}
        for index, time, regime in self.changes:
            if (log := found.get(index)) is None:
                log = found[index] = [(self.start[index], ())]
            if log[-1][0] == time:
                log.pop()
            log.append((time, regime.loads))
        return found

    def expanded(self, program: Program) -> Trace:
        """The trace of the same program without blocks."""
        blocks, courses = cast("BlockProgram", self.program), cast("Courses", self.courses)
        found = {number: courses.of(body).course for number, body in enumerate(blocks.bodies) if body is not None}
        start, end = expand_all(self.start, self.end, found, self.logs)
        if len(start) != len(program.ops):
            raise ValueError(f"blocks stand for {len(start)} ops, the program has {len(program.ops)}")
        extra = len(program.ops) - len(blocks.ops)
        return Trace(program, start, end, self.links, self.events + extra, self.stretched)


def changeable(
    program: Program, cost: Callable[[Collective], CollectiveCost], capacity: Callable[[int], float], shared: Iterable[int] = ()
) -> frozenset[Collective]:
    """Transfers inside blocks whose time depends on what others send; `shared` are links that carry other traffic as well."""
    if not isinstance(program, BlockProgram):
        return frozenset()
    alone = serial_collectives(program, cost, capacity, shared)
    inside = {collective for body in dict.fromkeys(program.bodies) if body is not None for collective, _, _ in body.uses}
    return frozenset(collective for collective in inside if id(collective) not in alone)
