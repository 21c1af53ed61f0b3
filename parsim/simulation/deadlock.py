"""Why a program cannot go on: who waits for whom, and the rank x step grid around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isnan

from parsim.columns import left, width
from parsim.program.program import Lane, Op, Program

RANKS = 16
"""rows shown at most"""
BEFORE, AFTER = 3, 7
"""steps shown before the first op of a row that has not ended, and from it on"""
CELL = 24
"""widest cell [characters]"""


def explain(program: Program, start: Sequence[float], end: Sequence[float], reasons: Mapping[int, str]) -> str:
    """Text of a deadlock: how many ops are left, a grid of the ranks' compute lanes, and the circle of waiting.

    `start` and `end` are columns by op index [s], nan where an op has not begun or ended; `reasons` says why ops that
    have begun cannot end. A row of the grid is a rank's compute lane (its first lane if it has none); its steps are shown
    around the first that has not ended: ``!`` never began, ``~`` began and never ended.
    """
    left = [op for op in program.ops if isnan(end[op.index])]
    begun = [op for op in left if not isnan(start[op.index])]
    waits = _waits(left)
    chain = _chain(left, waits)
    lines = [f"deadlock: {len(left)} of {len(program.ops)} ops never ended, {len(left) - len(begun)} of them never began"]
    lines += [f"  {_name(op)} began at {start[op.index]:.9g} s: {reasons.get(op.index, 'nothing ends it')}" for op in begun[:RANKS]]
    if len(begun) > RANKS:
        lines.append(f"  ... and {len(begun) - RANKS} more")
    lines += ["", "rank: step of its compute lane (! never began, ~ never ended)"]
    lines += _grid(program, start, end, waits, chain)
    circle = _circle(chain)
    if circle:
        lines += ["", "circle of waiting:", *circle[:RANKS]]
        if len(circle) > RANKS:
            lines.append(f"  ... and {len(circle) - RANKS} more")
    return "\n".join(lines)


def _waits(left: Sequence[Op]) -> dict[int, list[Op]]:
    """Op index -> ops that it waits for, and that have not ended."""
    waits: dict[int, list[Op]] = {op.index: [] for op in left}
    for op in left:
        for other in op.after:
            waits[other.index].append(op)
    return waits


def _chain(left: Sequence[Op], waits: Mapping[int, list[Op]]) -> list[Op]:
    """From the first op left, always to the first op it waits for, until one comes again or waits for none."""
    chain = [left[0]]
    seen = {left[0].index}
    while waits[chain[-1].index]:
        chain.append(waits[chain[-1].index][0])
        if chain[-1].index in seen:
            break
        seen.add(chain[-1].index)
    return chain


def _circle(chain: Sequence[Op]) -> list[str]:
    """Lines of the circle at the end of a chain; stretches along a lane are told in one. Empty if the chain has an end."""
    edges = list(pairwise(chain[chain.index(chain[-1]) :]))
    jumps = [(one, other) for one, other in edges if set(one.lanes).isdisjoint(other.lanes)] or edges
    lines = []
    for (one, other), (following, _) in zip(jumps, jumps[1:] + jumps[:1], strict=True):
        behind = "" if other == following else f", which comes after {_name(following)}"
        lines.append(f"  {_name(one)}  <-- waits for {_name(other)}{behind}")
    return lines


def _short(op: Op) -> str:
    """An op in a cell: ``B L3 attention#0``."""
    text = op.name if op.instance < 0 else f"{op.name}#{op.instance}"
    return text if len(text) <= CELL else f"{text[: CELL - 2]}.."


def _name(op: Op) -> str:
    """An op with where it is: ``B L3 attention#0 (rank 2 compute)``."""
    places = [f"rank {lane.rank} {lane.name}" for lane in op.lanes[:4]]
    if len(op.lanes) > 4:
        places.append(f"{len(op.lanes) - 4} more lanes")
    return f"{op.name if op.instance < 0 else f'{op.name}#{op.instance}'} ({', '.join(places) or 'no lane'})"


def _rows(program: Program, end: Sequence[float]) -> dict[int, list[Op]]:
    """Rank -> the ops of its compute lane, for ranks where one of them has not ended."""
    chosen: dict[int, Lane] = {}
    for op in program.ops:
        for lane in op.lanes:
            if lane.rank not in chosen or (lane.name == "compute" and chosen[lane.rank].name != "compute"):
                chosen[lane.rank] = lane
    rows: dict[int, list[Op]] = {rank: [] for rank in sorted(chosen)}
    for op in program.ops:
        for lane in op.lanes:
            if chosen[lane.rank] == lane:
                rows[lane.rank].append(op)
    return {rank: ops for rank, ops in rows.items() if any(isnan(end[op.index]) for op in ops)}


def _grid(program: Program, start: Sequence[float], end: Sequence[float], waits: Mapping[int, list[Op]], chain: Sequence[Op]) -> list[str]:
    """Rows of the grid in the order of ranks; where there are too many, those nearest the end of the chain."""
    rows = _rows(program, end)
    nearest = dict.fromkeys(lane.rank for op in reversed(chain) for lane in op.lanes if lane.rank in rows)
    shown = sorted([*nearest, *(rank for rank in rows if rank not in nearest)][:RANKS])
    cells, causes = [], []
    for rank in shown:
        ops = rows[rank]
        front = next(step for step, op in enumerate(ops) if isnan(end[op.index]))
        row = [f"rank {rank} step {front}"]
        for step in range(front - BEFORE, front + AFTER):
            if 0 <= step < len(ops):
                mark = " " if not isnan(end[ops[step].index]) else "!" if isnan(start[ops[step].index]) else "~"
                row.append(mark + _short(ops[step]))
            else:
                row.append("")
        cells.append(row)
        waited = waits[ops[front].index]
        others = f" and {len(waited) - 1} more" if len(waited) > 1 else ""
        causes.append(f"<-- waits for {_name(waited[0])}{others}" if waited else "<-- cannot end")
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(["", *(left(cell, columns) for cell, columns in zip(row, widths, strict=True) if columns), cause])
        for row, cause in zip(cells, causes, strict=True)
    ]
    if len(rows) > len(shown):
        lines.append(f"  ... and {len(rows) - len(shown)} more ranks")
    return lines
