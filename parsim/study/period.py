"""The time from one step to the next, when every rank goes on as soon as its own list is done.

A step is a max-plus linear map of the times at which the ranks are free; its eigenvalue, the largest mean weight of a circuit of
ranks, is the period (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, ch. 3; Karp 1978 for the algorithm).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from parsim.program.program import COMPUTE, Program


def period(program: Program, ranks: int) -> float:
    """Seconds between two steps of `program` in steady state, without a barrier between them.

    A rank begins its next step when the last op of its compute lane has ended; messages take their time. At least the span of any
    rank's own list, at most the makespan.
    """
    return largest_cycle_mean(step_matrix(program, ranks))


def step_matrix(program: Program, ranks: int) -> list[list[float]]:
    """[r][q]: seconds from rank q's being free to the end of rank r's list, -inf where r never waits for q."""
    order = _in_order(program)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index in order:
        for lane in program.ops[index].lanes:
            if lane.name == COMPUTE:
                first.setdefault(lane.rank, index)
                last[lane.rank] = index
    matrix = [[-inf] * ranks for _ in range(ranks)]
    for source in range(ranks):
        if source not in first:
            continue
        start = [-inf] * len(program.ops)
        start[first[source]] = 0.0
        end = [-inf] * len(program.ops)
        for index in order:
            op = program.ops[index]
            end[index] = finish = start[index] + op.duration
            for other in op.after:
                start[other.index] = max(start[other.index], finish)
        for rank, index in last.items():
            matrix[rank][source] = end[index]
    return matrix


def largest_cycle_mean(matrix: Sequence[Sequence[float]]) -> float:
    """Largest mean weight of a circuit, by Karp's algorithm; -inf where there is no circuit.

    >>> largest_cycle_mean([[1.0, 5.0], [4.0, 2.0]])
    4.5
    """
    size = len(matrix)
    rows = [[0.0] * size]
    for _ in range(size):
        before = rows[-1]
        rows.append([max(before[q] + weight for q, weight in enumerate(row)) for row in matrix])
    final = rows[-1]
    reached = [r for r, end in enumerate(final) if end > -inf]
    means = [min((final[r] - row[r]) / (size - k) for k, row in enumerate(rows[:-1]) if row[r] > -inf) for r in reached]
    return max(means, default=-inf)


def _in_order(program: Program) -> list[int]:
    """Ops so that blockers come first, lanes in their order."""
    left = list(program.blockers)
    ready = [op.index for op in program.ops if not left[op.index]]
    for index in ready:
        for other in program.ops[index].after:
            left[other.index] -= 1
            if not left[other.index]:
                ready.append(other.index)
    return ready
