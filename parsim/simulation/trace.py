"""What happened: two float columns beside the program, and what the links carried."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parsim.program.program import Lane, Op, Program
from parsim.simulation.op_columns import OpColumns


@dataclass(frozen=True)
class LinkUse:
    """What one link carried during the run."""

    bytes: float
    saturated: float
    """time at >= 99.9 % of capacity [s]"""


@dataclass(frozen=True)
class Trace:
    """Start and end of every op [s], by op index. The program itself is never changed by a run."""

    program: Program
    start: Sequence[float]
    end: Sequence[float]
    links: Mapping[int, LinkUse] = field(default_factory=dict)
    """link id -> use (links that carried nothing are absent)"""
    events: int = 0
    """simulation events processed"""
    stretched: bool = False
    """kernels took longer than their durations because communication ran beside them"""

    @cached_property
    def makespan(self) -> float:
        """End of the last op [s]."""
        return max(self.end, default=0.0)

    @cached_property
    def starts(self) -> NDArray[np.float64]:
        """Start of every op as a numpy column [s]; do not write to it."""
        return np.asarray(self.start, dtype=np.float64)

    @cached_property
    def ends(self) -> NDArray[np.float64]:
        """End of every op as a numpy column [s]; do not write to it."""
        return np.asarray(self.end, dtype=np.float64)

    @cached_property
    def columns(self) -> OpColumns:
        """What the ops are, as columns."""
        return OpColumns(self.program)

    @cached_property
    def lanes(self) -> dict[Lane, list[Op]]:
        """Every lane with its ops in order; lanes in the order in which the program first uses them."""
        lanes: dict[Lane, list[Op]] = {}
        for op in self.program.ops:
            for lane in op.lanes:
                if lane in lanes:
                    lanes[lane].append(op)
                else:
                    lanes[lane] = [op]
        return lanes

    def lane(self, rank: int, name: str) -> list[Op]:
        """Ops of one lane in order; empty if the rank has no such lane."""
        return self.lanes.get(Lane(rank, name), [])

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks that have lanes in the program, ascending."""
        return sorted({lane.rank for lane in self.lanes})

    def duration(self, op: Op) -> float:
        """How long an op took, its waiting for blockers not counted [s]."""
        return self.end[op.index] - self.start[op.index]

    def busy(self, rank: int, name: str) -> float:
        """Time in which a lane had an op under way [s]."""
        return math.fsum(self.end[op.index] - self.start[op.index] for op in self.lane(rank, name))
