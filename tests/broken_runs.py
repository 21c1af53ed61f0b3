"""Programs that run while things break."""

from __future__ import annotations

from collections.abc import Sequence

from parsim.faults import Fault
from parsim.program.program import Program
from parsim.simulation.engine import CollectiveCosts, Engine
from parsim.simulation.faults import Breaking, FaultedRun, Likes


def run_with_faults(program: Program, interconnect: CollectiveCosts, faults: Sequence[Fault], likes: Likes | None = None) -> FaultedRun:
    """Run a program while things break."""
    broken = Breaking(faults, likes or Likes(), interconnect.capacity)
    return broken.outcome(Engine(program, interconnect, processes=broken.processes()).run())
