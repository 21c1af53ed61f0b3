"""Who meets in a collective, and whose time it is.

Context ranks hold the same parameters, so what is done for parameters along data is done along context too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parsim.errors import Finding, PlanError
from parsim.parallel.fsdp import REPLICA, SHARD
from parsim.parallel.own import PATH as STRATEGY
from parsim.parallel.plan import Plan
from parsim.program.program import OFFLOAD


def group(plan: Plan, axis: str, rank: int) -> tuple[int, ...]:
    """The ranks that meet `rank` in a collective along `axis`, ascending.

    A mesh axis (data takes context in); model: the ranks of one copy of the parameters; world; tied-A-B: the same place on
    two pipeline ranks; shard and replica: the groups of sharded data parallelism; offload: the rank and its own host.
    """
    mesh = plan.mesh
    if axis == "model":
        return mesh.group(rank, "tensor", "pipeline")
    if axis == "world":
        return tuple(range(mesh.ranks))
    if axis == OFFLOAD:
        return (rank,)
    if axis.startswith("tied-"):
        owner, copy = (int(part) for part in axis.split("-")[1:])
        return tuple(sorted((mesh.move(rank, "pipeline", owner), mesh.move(rank, "pipeline", copy))))
    if axis in ("data", SHARD, REPLICA):
        replicas, size = mesh.group(rank, "data", "context"), plan.shard_size
        place = replicas.index(rank)
        first = place - place % size
        return {SHARD: replicas[first : first + size], REPLICA: replicas[place % size :: size]}.get(axis, replicas)
    if axis not in mesh.order:
        known = ", ".join((*mesh.order, SHARD, REPLICA, "model", "world"))
        raise PlanError(Finding(f"a collective along {axis!r}, which is no axis", STRATEGY, axis, f"use one of {known}"))
    return mesh.group(rank, axis)


def groups_of(plan: Plan, axis: str, pipeline_rank: int) -> NDArray[np.int64]:
    """Every group along `axis` that a rank of this pipeline rank is in (see `group`), a row each."""
    mesh = plan.mesh
    if axis == "model":
        return _rows(plan, pipeline_rank, "tensor", "pipeline")
    if axis == "world":
        return np.arange(mesh.ranks)[None, :]
    if axis == OFFLOAD:
        return _rows(plan, pipeline_rank)
    if axis.startswith("tied-"):
        ends = np.array([int(part) for part in axis.split("-")[1:]])
        return np.asarray(_rows(plan, 0) + np.sort(ends) * mesh.stride("pipeline"))
    if axis in ("data", SHARD, REPLICA):
        replicas = _rows(plan, pipeline_rank, "data", "context")
        if axis == "data":
            return replicas
        shards = replicas.reshape(len(replicas), -1, plan.shard_size)
        if axis == REPLICA:
            shards = shards.transpose(0, 2, 1)
        return shards.reshape(-1, shards.shape[2])
    return _rows(plan, pipeline_rank, axis) if axis in mesh.order else np.array([group(plan, axis, 0)])


def sends_of(plan: Plan, source: int, target: int) -> NDArray[np.int64]:
    """(sender, receiver) of every message from one pipeline rank to another, a row each."""
    return np.asarray(_rows(plan, source) + np.array([0, (target - source) * plan.mesh.stride("pipeline")]))


def _rows(plan: Plan, pipeline_rank: int, *axes: str) -> NDArray[np.int64]:
    """The groups along mesh axes of the ranks of one pipeline rank."""
    mesh = plan.mesh
    firsts = mesh.at(**{"pipeline": pipeline_rank, **dict.fromkeys(axes, 0)})
    offsets = np.array(mesh.group(0, *axes) if axes else (0,))
    return np.asarray(np.array(firsts)[:, None] + offsets)


def breakdown_axis(plan: Plan, axis: str) -> str:
    """The axis whose time a collective counts as."""
    if axis.startswith("tied"):
        return "pipeline"
    if axis in (SHARD, REPLICA):
        return "data"
    if axis == "world":
        return "data" if plan.replicas > 1 else breakdown_axis(plan, "model")
    if axis == "model":
        return "pipeline" if plan.mesh.size("pipeline") > 1 else "tensor"
    return axis
