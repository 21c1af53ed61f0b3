"""Is a program legal, and small enough? Rules that every lowering must keep, checked without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, isfinite
from typing import NamedTuple

from parsim.errors import Finding, PlanError
from parsim.parallel.custom_strategy import PATH as STRATEGY
from parsim.parallel.groups import CONTEXT, OFFLOAD
from parsim.parallel.plan import Plan
from parsim.program.program import Effect, Lane, Op, Program

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "scatter", "gather", "all_to_all", "token_exchange", "sendrecv",
    "send", "barrier",
)  # fmt: skip
COPIES = ("d2h", "h2d", "nvme_read", "nvme_write", "cpu_step")
"""transfers of one rank with its own host"""
_OPS_PER_LAYER = 5
MOST_OPS = 15_000_000
"""programs are refused beyond; an op takes about 300 B"""
_MOST_SHOWN = 8
"""findings about one program that are shown"""


def check(program: Program) -> list[Finding]:
    """All that is wrong with a program; empty when it can run.

    1. No op waits for itself, blocker counts match the edges, and ops follow each other in every lane they stand in.
    2. Durations are finite and not negative; an effect falls inside its op, at infinity (the end) only in a collective.
    3. Collectives are of a known kind, their members are distinct, and the ranks in whose lanes they stand are members;
       a send has two ranks and stands in lanes of both.
    4. Effects name tensors of the rank's table; a tensor is allocated when it does not exist and freed when it does,
       in the order of an idle machine (`resident` tensors exist from the start, a ``per_micro_batch`` tensor once per micro-batch).
    """
    findings = [*_edges(program), *_numbers(program), *_collectives(program), *_references(program)]
    return findings or [*_cycle(program)] or [*_queues(program), *_lives(program)]


def _at(op: Op, message: str) -> Finding:
    return Finding(f"op {op.index} ({op.name} of micro-batch {op.instance}): {message}", path=f"ops.{op.index}", value=op.name)


def _edges(program: Program) -> Iterator[Finding]:
    if len(program.blockers) != len(program.ops):
        yield Finding(f"{len(program.ops)} ops, but {len(program.blockers)} blocker counts", path="blockers")
        return
    counts = [0] * len(program.ops)
    for position, op in enumerate(program.ops):
        if op.index != position:
            yield _at(op, f"stands at position {position}")
            return
        for other in op.after:
            counts[other.index] += 1
    for op, count, blockers in zip(program.ops, counts, program.blockers, strict=True):
        if count != blockers:
            yield _at(op, f"{blockers} blockers are counted, but {count} ops point here")


def _numbers(program: Program) -> Iterator[Finding]:
    for op in program.ops:
        if not (isfinite(op.duration) and op.duration >= 0):
            yield _at(op, f"its duration is {op.duration!r} s")
        latest = op.duration if op.collective is None else inf
        for rank, effects in op.effects:
            for effect in effects:
                if not 0 <= effect.offset <= latest * (1 + 1e-12):
                    yield _at(op, f"an effect on rank {rank} is {effect.offset!r} s after the start of an op of {op.duration!r} s")


def _collectives(program: Program) -> Iterator[Finding]:
    for op in program.ops:
        collective = op.collective
        if collective is None:
            continue
        group = collective.group
        if collective.kind not in (COPIES if collective.axis == OFFLOAD else COLLECTIVES):
            yield _at(op, f"{collective.kind!r} is not a collective")
        if collective.axis == OFFLOAD and len(group) != 1:
            yield _at(op, f"a copy is of one rank, not of {group}")
        if len(set(group)) != len(group) or not group:
            yield _at(op, f"members {group} are not distinct ranks")
        if collective.bytes < 0:
            yield _at(op, f"moves {collective.bytes} B")
        ranks = dict.fromkeys(lane.rank for lane in op.lanes)
        if strangers := [rank for rank in ranks if rank not in group]:
            yield _at(op, f"stands in lanes of rank {strangers[0]}, which is not a member of {group}")
        if collective.kind == "send" and (len(group) != 2 or len(ranks) != 2):
            yield _at(op, f"a send needs lanes of its two ranks, but group is {group} and its lanes are of {list(ranks)}")


def _references(program: Program) -> Iterator[Finding]:
    for rank, rows in program.resident.items():
        table = program.tensors.get(rank, [])
        for row in rows:
            if not 0 <= row < len(table):
                yield Finding(f"rank {rank}: resident tensor {row} is not in its table of {len(table)}", path=f"resident.{rank}", value=row)
            elif table[row].per_micro_batch:
                yield Finding(f"rank {rank}: {table[row].name} exists per micro-batch and cannot be resident", path=f"resident.{rank}")
        if twice := [row for row, count in Counter(rows).items() if count > 1]:
            yield Finding(f"rank {rank}: tensor {twice[0]} is resident twice", path=f"resident.{rank}", value=twice[0])
    for op in program.ops:
        for rank, effects in op.effects:
            size = len(program.tensors.get(rank, []))
            for effect in effects:
                if not 0 <= effect.tensor < size:
                    yield _at(op, f"rank {rank} has no tensor {effect.tensor}, its table has {size}")


def _cycle(program: Program) -> Iterator[Finding]:
    order = idle(program).order
    if len(order) == len(program.ops):
        return
    import networkx as nx

    done = {op.index for op in order}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from((op.index, other.index) for op in program.ops if op.index not in done for other in op.after)
    ring = [before for before, _ in nx.find_cycle(graph)]
    names = " -> ".join(f"{index} {program.ops[index].name}" for index in [*ring, ring[0]])
    yield Finding(f"{len(ring)} ops wait for each other: {names}", path=f"ops.{ring[0]}")


def _queues(program: Program) -> Iterator[Finding]:
    for lane, ops in lanes(program).items():
        for before, op in pairwise(ops):
            if op not in before.after:
                yield _at(op, f"does not follow op {before.index} in lane {lane.rank}:{lane.name}")


def _lives(program: Program) -> Iterator[Finding]:
    order, start = idle(program)
    moments: list[tuple[float, int, int, Op, int, Effect]] = []
    for place, op in enumerate(order):
        for rank, effects in op.effects:
            for step, effect in enumerate(effects):
                offset = op.duration if effect.offset == inf else effect.offset
                moments.append((start[op.index] + offset, place, step, op, rank, effect))
    moments.sort(key=lambda moment: moment[:3])
    live = {(rank, row, 0) for rank, rows in program.resident.items() for row in rows}
    for *_, op, rank, effect in moments:
        tensor = program.tensors[rank][effect.tensor]
        key = (rank, effect.tensor, op.instance if tensor.per_micro_batch else 0)
        if effect.allocate == (key in live):
            problem = "allocates what already exists" if effect.allocate else "frees what does not exist (freed twice, or never allocated)"
            yield _at(op, f"{problem}: {tensor.name} on rank {rank}")
        elif effect.allocate:
            live.add(key)
        else:
            live.remove(key)


# -- refusals ---------------------------------------------------------------------------------------------------------


def refuse_too_large(plan: Plan, lowered: Sequence[int]) -> None:
    """Raise `PlanError` for a program of more than `MOST_OPS`; `lowered`: simulated ranks of each pipeline rank."""
    layers = {p: max(len(chunk.blocks) for chunk in plan.of_rank(p)) for p in range(len(plan.slots))}
    each = _OPS_PER_LAYER + 2 * plan.mesh.size(CONTEXT) * (plan.mesh.size(CONTEXT) > 1)
    ops = sum(each * len(row) * layers[p] * lowered[p] for p, row in enumerate(plan.slots))
    if ops > MOST_OPS:
        size = f"{plan.training.micro_batches:,} micro-batches, {sum(lowered):,} ranks simulated"
        text = f"about {ops:,.0f} ops ({size}); at most {MOST_OPS:,}"
        hint = "simulate fewer micro-batches: beyond a few times the pipeline's depth the step grows in proportion"
        raise PlanError(Finding(text, "training.global_batch", plan.training.global_batch, hint))


def refuse_illegal(plan: Plan, program: Program) -> None:
    """Raise `PlanError` if a custom strategy made a program that cannot be."""
    custom = plan.parallelism.data.custom
    if custom is None:
        return
    findings = [replace(finding, path=STRATEGY, value=custom.kind.__name__) for finding in check(program)[:_MOST_SHOWN]]
    if findings and not all("wait for each other" in finding.message for finding in findings):  # a deadlock is shown when it happens
        raise PlanError(findings)


# -- on an idle machine -----------------------------------------------------------------------------------------------


class Idle(NamedTuple):
    """A program on an idle machine: an order that respects all edges, and the starts it allows."""

    order: list[Op]
    """every op behind all its blockers; ops that wait for themselves are missing"""
    start: list[float]
    """by op index [s], if every op took its duration alone (a collective: the time before its latency)"""


def idle(program: Program) -> Idle:
    """Run a program without wires and without contention."""
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
