"""The exchange between groups of replicas that step alone: every rank with those at its place in the other groups, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parsim.hardware.interconnect import Interconnect
from parsim.hardware.transfers import Background
from parsim.parallel.groups import DATA, OUTER
from parsim.parallel.plan import Plan
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.engine import Engine


def exchange_time(plan: Plan, wires: Interconnect, sizes: Mapping[int, int], background: Iterable[Background] = ()) -> float:
    """Seconds of all-reduces of `sizes` bytes (by pipeline rank) among the ranks at the same place in every group, all at the same time."""
    program = Program()
    for pipeline_rank, size in sizes.items():
        for group in plan.groups.rows(OUTER, pipeline_rank).tolist():
            lanes = tuple(Lane(rank, OUTER) for rank in group)
            program.add("outer all_reduce", "data_comm", lanes, collective=Collective("all_reduce", DATA, tuple(group), size))
    return Engine(program, wires, background=background).run().makespan
