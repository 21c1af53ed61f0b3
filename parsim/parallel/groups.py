"""Which ranks meet: the axes along which work is split, the grid of ranks, and the process groups on it by name.

A collective names its group, and everybody who has to know its members asks here, for one rank or for many at a time:

=========  ========================================================================================
group      members
=========  ========================================================================================
an axis    the ranks that differ along it only; data: along all axes that replicate the parameters
expert     the ranks over which the experts of a layer are spread
shard      equal parts of data, consecutive ranks: together they hold one copy of the model states
replica    the ranks that stand at the same place in each shard group
secondary  neighbours that share a second copy of the parameters (ZeRO++)
local, remote   replicas on one machine, and those at the same place on every machine
model      the ranks of one copy of the parameters: they differ along the axes that split them
world      all ranks
tied-A-B   the same place on pipeline ranks A and B, which both hold a parameter (Megatron: embedding)
offload    the rank and its own host
outer      ranks at the same place in every group of replicas that step alone; data, shard, replica and world end at these groups
=========  ========================================================================================

Experts lie on a grid of their own over the ranks of a pipeline stage: etp ranks share the width of an expert, ep of these parts hold
all experts, and the edp copies of them are the groups expert-tensor, expert and expert-data (Megatron-LM: parallel_state.py,
expert_decoder_rank_generator). Neighbours along the first are consecutive, then along the second; context parallelism is not told apart.
A shard group that holds one copy of the other model states holds copies of the experts, too: those edp ranks that are in one are the
group expert-shard, those at the same place in each the group expert-replica (torchtitan: parallel_dims.py, efsdp and dp_replicate).
The ranks of one copy of all experts together are the group expert-model.

The axes may be laid out in any order (`parallel.order`). A group of a part of an axis, or of parts of several axes together, is a
row in `Groups.table`: its axes, and which of the ranks along them meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING

from parsim.errors import Finding, PlanError

TENSOR, CONTEXT, DATA, PIPELINE = "tensor", "context", "data", "pipeline"

AXES = (TENSOR, CONTEXT, DATA, PIPELINE)
"""Axes of the grid of ranks, in the order in which they are laid out by default: neighbours along the first are consecutive ranks."""

REPLICATING = (CONTEXT, DATA)
"""Axes whose ranks hold the same parameters: gradients are reduced, and model states are sharded, over all of them together."""

OPERATOR_AXES = (TENSOR, CONTEXT)
"""Axes whose ranks share the operators of a layer, and so meet between them."""

EXPERT, EXPERT_TENSOR, EXPERT_DATA = "expert", "expert-tensor", "expert-data"
EXPERT_SHARD, EXPERT_REPLICA, EXPERT_MODEL = "expert-shard", "expert-replica", "expert-model"
OPERATOR_GROUPS = (*OPERATOR_AXES, EXPERT, EXPERT_TENSOR, EXPERT_MODEL)
"""Groups whose collectives stand between the operators of a layer."""

TIMED = (TENSOR, CONTEXT, EXPERT, PIPELINE, DATA)
"""Axes whose communication a report tells apart, in its order."""

SHARD, REPLICA, MODEL, WORLD = "shard", "replica", "model", "world"
SECONDARY, LOCAL, REMOTE = "secondary", "local", "remote"
OUTER = "outer"
_TIED = "tied-"
STAGE = (TENSOR, *REPLICATING)
"""Axes of the ranks of one pipeline stage."""

OFFLOAD = "offload"
"""Copies over the host's links, and the optimizer's step in host memory: transfers of one rank with its own host."""

USER_BUFFERS = "user buffers"
"""Lane of exchanges that run through copy engines, or on multiprocessors that the products beside them leave free."""
_STREAM = "stream "


def stream_lane(stream: str) -> str:
    """Name of the lane of a stream whose kernels run beside those of the compute lane."""
    return f"{_STREAM}{stream}"


def is_stream(lane: str) -> bool:
    """Whether a lane is such a stream."""
    return lane.startswith(_STREAM)


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks. `order` names the axes fastest varying first; `sizes` are their lengths, in that order.

    Under Megatron's default order, which is that of `AXES`, tensor-parallel neighbours are consecutive ranks, hence on one node.
    """

    order: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, order: tuple[str, ...], sizes: Mapping[str, int]) -> Mesh:
        """The grid whose axes, in this order, have the lengths that `sizes` gives by name."""
        return cls(order, tuple(sizes[axis] for axis in order))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    @property
    def replicas(self) -> int:
        """Copies of the parameters."""
        return prod(map(self.size, REPLICATING))

    def size(self, axis: str) -> int:
        """Length of one axis."""
        return self._shape[axis][0]

    def stride(self, axis: str) -> int:
        """Distance in rank numbers between neighbours along an axis."""
        return self._shape[axis][1]

    @cached_property
    def _shape(self) -> dict[str, tuple[int, int]]:
        """axis -> (size, stride)"""
        return {axis: (size, prod(self.sizes[:i])) for i, (axis, size) in enumerate(zip(self.order, self.sizes, strict=True))}

    def coordinate(self, rank: int, axis: str) -> int:
        """Where `rank` stands along `axis`."""
        size, stride = self._shape[axis]
        return rank // stride % size

    def coordinates(self, axis: str) -> list[int]:
        """Where every rank stands along `axis`."""
        size, stride = self._shape[axis]
        return [rank // stride % size for rank in range(self.ranks)]

    def move(self, rank: int, axis: str, coordinate: int) -> int:
        """The rank that differs from `rank` only by standing at `coordinate` along `axis`."""
        size, stride = self._shape[axis]
        return rank + (coordinate - rank // stride % size) * stride

    def group(self, rank: int, *axes: str) -> Ranks:
        """The ranks that share all coordinates with `rank` except along `axes`, ascending."""
        base = rank - sum(self.coordinate(rank, axis) * self.stride(axis) for axis in axes)
        return tuple(base + offset for offset in _offsets(self.order, self.sizes, axes))

    def at(self, **coordinates: int) -> list[int]:
        """All ranks with the given coordinates, ascending."""
        ranks = [0]
        for axis, (size, stride) in self._shape.items():
            chosen = [coordinates[axis]] if axis in coordinates else range(size)
            ranks = [rank + coordinate * stride for rank in ranks for coordinate in chosen]
        return sorted(ranks)


@lru_cache(maxsize=64)
def _offsets(order: tuple[str, ...], sizes: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """What the members of a group along some axes add to its first rank, ascending: the same for all of its groups."""
    mesh = Mesh(order, sizes)
    offsets = [0]
    for axis in axes:
        offsets = [offset + step * mesh.stride(axis) for offset in offsets for step in range(mesh.size(axis))]
    return tuple(sorted(offsets))


@dataclass(frozen=True, eq=False, slots=True)
class ProcessGroups:
    """One kind of group: the ranks that differ along `axes` only, or those of them that stand at the places of one of the `parts`."""

    axes: tuple[str, ...]
    timed: str
    """axis whose time its collectives take in a breakdown"""
    parts: tuple[tuple[int, ...], ...] = ()
    """places among the ranks along `axes`, of the members of each group; empty: all of them meet"""


@dataclass(frozen=True)
class Groups:
    """The process groups of a grid of ranks."""

    mesh: Mesh
    shard_size: int
    """ranks that hold one copy of the model states together"""
    expert: tuple[int, int, int] = (0, 0, 0)
    """ranks over which experts are spread (ep), ranks that share the width of one (etp), copies of an expert (edp); 0: all hold all"""
    secondary: int = 1
    """ranks that share a second copy of the parameters"""
    local: int = 0
    """replicas on one machine; 0: no groups of them"""
    outer: int = 1
    """equal parts of the replicas that step alone"""

    @property
    def _experts(self) -> Mapping[str, ProcessGroups]:
        """The groups along the axes of the experts' grid, where there is one."""
        ep, etp, edp = self.expert
        if ep * etp * edp != self.mesh.ranks // self.mesh.size(PIPELINE):
            return {}
        grid = Mesh((EXPERT_TENSOR, EXPERT, EXPERT_DATA), (etp, ep, edp))

        def along(*axes: str) -> tuple[Ranks, ...]:
            return tuple(grid.group(first, *axes) for first in grid.at(**dict.fromkeys(axes, 0)))

        shard = min(edp, max(1, self.shard_size * self.mesh.size(TENSOR) // (ep * etp)))
        copies = along(EXPERT_DATA)
        shards = tuple(part for ranks in copies for part in _equal_parts(ranks, edp // shard))
        replicas = tuple(ranks[first::shard] for ranks in copies for first in range(shard))
        return {
            EXPERT_SHARD: ProcessGroups(STAGE, DATA, shards),
            EXPERT_REPLICA: ProcessGroups(STAGE, DATA, replicas),
            EXPERT_DATA: ProcessGroups(STAGE, DATA, copies),
            EXPERT: ProcessGroups(STAGE, EXPERT, along(EXPERT)),
            EXPERT_TENSOR: ProcessGroups(STAGE, EXPERT, along(EXPERT_TENSOR)),
            EXPERT_MODEL: ProcessGroups(STAGE, EXPERT, along(EXPERT, EXPERT_TENSOR)),
        }

    @cached_property
    def table(self) -> Mapping[str, ProcessGroups]:
        """Every kind of group by its name, but for the tied ones."""
        mesh = self.mesh
        splitting = tuple(axis for axis in AXES if axis not in REPLICATING)
        whole = PIPELINE if mesh.size(PIPELINE) > 1 else TENSOR
        replicas, shard = mesh.replicas, self.shard_size
        shards = _equal_parts(tuple(range(replicas)), replicas // shard)
        return {
            **{axis: ProcessGroups((axis,), axis) for axis in AXES},
            DATA: ProcessGroups(REPLICATING, DATA),
            SHARD: ProcessGroups(REPLICATING, DATA, shards),
            REPLICA: ProcessGroups(REPLICATING, DATA, self._same_places(shards)),
            MODEL: ProcessGroups(splitting, whole),
            WORLD: ProcessGroups(AXES, DATA if replicas > 1 else whole),
            OFFLOAD: ProcessGroups((), OFFLOAD),
            **self._experts,
            **self._second,
            **self._apart,
        }

    def _same_places(self, shards: tuple[Ranks, ...]) -> tuple[Ranks, ...]:
        """Which replicas stand at the same place in the shard groups, of those that step together."""
        together = len(shards) // self.outer
        return tuple(ranks for first in range(0, len(shards), together) for ranks in zip(*shards[first : first + together], strict=True))

    @property
    def _apart(self) -> Mapping[str, ProcessGroups]:
        """Groups that end where replicas step alone, and those between them. Neighbouring replicas step together."""
        if self.outer == 1:
            return {}
        mesh = self.mesh
        parts = _equal_parts(tuple(range(mesh.replicas)), self.outer)
        whole = tuple(range(mesh.ranks))
        each = mesh.size(DATA) // self.outer
        worlds = tuple(tuple(rank for rank in whole if mesh.coordinate(rank, DATA) // each == part) for part in range(self.outer))
        return {
            DATA: ProcessGroups(REPLICATING, DATA, parts),
            OUTER: ProcessGroups(REPLICATING, DATA, tuple(zip(*parts, strict=True))),
            WORLD: ProcessGroups(AXES, DATA, worlds),
        }

    @property
    def _second(self) -> Mapping[str, ProcessGroups]:
        """Groups of neighbouring replicas besides shard groups."""
        replicas = tuple(range(self.mesh.replicas))
        found = {}
        if self.secondary > 1:
            found[SECONDARY] = ProcessGroups(REPLICATING, DATA, _equal_parts(replicas, len(replicas) // self.secondary))
        if self.local:
            machines = _equal_parts(replicas, len(replicas) // self.local)
            found[LOCAL] = ProcessGroups(REPLICATING, DATA, machines)
            found[REMOTE] = ProcessGroups(REPLICATING, DATA, tuple(zip(*machines, strict=True)))
        return found

    def kind(self, name: str) -> ProcessGroups:
        """The kind of group called `name`. Raises `PlanError` for one that does not exist."""
        if name.startswith(_TIED):
            return ProcessGroups((PIPELINE,), PIPELINE, (tuple(sorted(map(int, name.removeprefix(_TIED).split("-")))),))
        if (kind := self.table.get(name)) is None:
            known = ", ".join((*self.mesh.order, SHARD, REPLICA, MODEL, WORLD))
            raise PlanError(
                Finding(f"a collective along {name!r}, which is no axis", "parallel.data.strategy", name, f"use one of {known}")
            )
        return kind

    def timed(self, name: str) -> str:
        """The axis whose time the collectives of a group take."""
        return self.kind(name).timed

    def members(self, name: str, rank: int) -> Ranks:
        """The ranks that meet `rank` in a collective of the group `name`, ascending."""
        kind = self.kind(name)
        along = self.mesh.group(rank, *kind.axes)
        if not kind.parts:
            return along
        place = along.index(rank)
        return tuple(along[other] for other in next(part for part in kind.parts if place in part))

    def rows(self, name: str, pipeline_rank: int) -> NDArray[np.int64]:
        """Every group `name` that a rank of this pipeline rank is in, shape (groups, members)."""
        import numpy as np

        kind, mesh = self.kind(name), self.mesh
        firsts = mesh.at(**{PIPELINE: pipeline_rank, **dict.fromkeys(kind.axes, 0)})
        along = np.array(firsts)[:, None] + np.array(mesh.group(0, *kind.axes))
        return np.asarray(along[:, np.array(kind.parts)].reshape(-1, len(kind.parts[0])) if kind.parts else along)

    def sends(self, source: int, target: int) -> NDArray[np.int64]:
        """(sender, receiver) of every message from one pipeline rank to another, shape (messages, 2)."""
        import numpy as np

        senders = np.array(self.mesh.at(**{PIPELINE: source}))
        return np.asarray(senders[:, None] + np.array([0, (target - source) * self.mesh.stride(PIPELINE)]))


def _equal_parts(ranks: Ranks, parts: int) -> tuple[Ranks, ...]:
    """Neighbours among `ranks` together, in `parts` equal parts."""
    each = len(ranks) // parts
    return tuple(ranks[first : first + each] for first in range(0, len(ranks), each))


def tied_group(owner: int, copy: int) -> str:
    """Name of the group of two pipeline ranks that hold copies of one parameter."""
    return f"{_TIED}{owner}-{copy}"
