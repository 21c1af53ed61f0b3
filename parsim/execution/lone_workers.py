"""What each worker costs, alone as it is while all others run as planned: the ranks of one pipeline stage in one replica."""

from __future__ import annotations

from math import fsum

import numpy as np

from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import Prepared
from parsim.parallel.groups import PIPELINE
from parsim.report.measured import compress_ranges
from parsim.report.workers import WorkerSlowdowns
from parsim.simulation.op_factors import Columns

RUNS = 20
"""that are averaged, at most"""
_NUMBERS = 2**27
"""of the arrays of all runs: about five seconds; larger steps are averaged over fewer runs"""
MOST_WORKERS = 10_000
"""in a report"""
OWN = frozenset({"gpus", "slow_nodes", "kernel", "host"})
"""causes that a worker has for itself"""


def lone_workers(prepared: Prepared, nominal: float) -> WorkerSlowdowns | None:
    """The slowdown by every worker of a step that takes `nominal` seconds, over the first runs of its scenario.

    None where no worker has anything for itself, there is one only, there are too many for a report, or steps overlap.
    """
    plan, variability = prepared.plan, prepared.built.variability
    causes = frozenset[str]()
    if variability is not None and variability.runs > 1:
        causes = frozenset(variability.causes) & (OWN if variability.aligned else OWN | {"pause"})
    overlapping = plan.asynchronous or plan.parallelism.data.outer.size > 1
    if not (causes or plan.slow) or overlapping:
        return None
    columns, stages = Columns(plan), plan.mesh.size(PIPELINE)
    if not 1 < stages * columns.count <= MOST_WORKERS:
        return None
    step = DisturbedStep(prepared, nominal, by_events=False)
    found = step.by_worker(min(RUNS, variability.runs) if causes and variability is not None else 1, causes, _NUMBERS)
    members: list[list[list[int]]] = [[[] for _ in range(columns.count)] for _ in range(stages)]
    for rank, (stage, replica) in enumerate(zip(plan.mesh.coordinates(PIPELINE), columns.of.tolist(), strict=True)):
        members[stage][replica].append(rank)
    means = tuple(tuple(fsum(of) / len(found) for of in row) for row in np.moveaxis(found, 0, 2).tolist())
    return WorkerSlowdowns(means, tuple(tuple(map(compress_ranges, row)) for row in members), len(found) if causes else 0)
