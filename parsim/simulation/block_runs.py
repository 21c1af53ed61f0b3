"""What a run of a program with blocks says about every op inside."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import cast

from parsim.hardware.flows import CollectiveCost
from parsim.program.blocks import BlockProgram
from parsim.program.program import Collective, Program
from parsim.simulation.blocks import Log, expand
from parsim.simulation.courses import Courses
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
        blocks, courses, logs = cast("BlockProgram", self.program), cast("Courses", self.courses), self.logs
        start = array("d", [nan]) * len(program.ops)
        end = array("d", [nan]) * len(program.ops)
        nothing: Log = [(0.0, ())]
        index = 0
        for number, body in enumerate(blocks.bodies):
            if body is None:
                start[index], end[index] = self.start[number], self.end[number]
                index += 1
                continue
            begun, over = expand(courses.of(body).course, self.start[number], self.end[number], logs.get(number, nothing))
            behind = index + len(begun)
            start[index:behind], end[index:behind] = array("d", begun), array("d", over)
            index = behind
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
