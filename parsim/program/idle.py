"""A program on an idle machine: an order that respects all edges, and the starts it allows."""

from __future__ import annotations

from typing import NamedTuple

from parsim.program.program import Lane, Op, Program


class Idle(NamedTuple):
    """What `idle` found."""

    order: list[Op]
    """every op behind all its blockers; ops that wait for themselves are missing"""
    start: list[float]
    """by op index [s], if every op took its duration alone (a collective: the time before its latency)"""


def idle(program: Program) -> Idle:
    """Run the program without wires and without contention."""
    left = list(program.blockers)
    start = [0.0] * len(left)
    order = [op for op in program.ops if not left[op.index]]
    for op in order:
        end = start[op.index] + op.duration
        for other in op.after:
            start[other.index] = max(start[other.index], end)
            left[other.index] -= 1
            if not left[other.index]:
                order.append(other)
    return Idle(order, start)


def lanes(program: Program) -> dict[Lane, list[Op]]:
    """Every lane with its ops in order, lanes in order of rank and first use."""
    rows: dict[Lane, list[Op]] = {}
    for op in program.ops:
        for lane in op.lanes:
            rows.setdefault(lane, []).append(op)
    return dict(sorted(rows.items(), key=lambda row: row[0].rank))
