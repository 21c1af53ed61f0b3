"""Seconds of collectives alone on their links, asked once for all candidates on the same GPUs."""

from __future__ import annotations

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.interconnect import Interconnect
from parsim.parallel.groups import OFFLOAD, PIPELINE, Mesh
from parsim.parallel.plan import Plan
from parsim.program.program import Collective

Pattern = int
"""stands for groups that cost the same"""


class Prices:
    """Idle-fabric times by (kind, GPUs, bytes). A group inside one machine costs the same in every machine of its kind."""

    def __init__(self, cluster: Cluster, wires: Interconnect) -> None:
        self.cluster = cluster
        self.wires = wires
        self._known: dict[tuple[str, Pattern, int], float] = {}
        self._patterns: dict[tuple[int, ...], Pattern] = {}
        self._numbers: dict[tuple[object, ...], Pattern] = {}
        self._along: dict[tuple[object, ...], Pattern] = {}
        self._members: dict[tuple[object, ...], tuple[int, ...]] = {}

    def pattern(self, group: tuple[int, ...]) -> Pattern:
        """What the cost of a group of ranks depends on."""
        if (pattern := self._patterns.get(group)) is None:
            pattern = self._patterns[group] = self._numbers.setdefault(self._standing(group), len(self._numbers))
        return pattern

    def members(self, plan: Plan, axis: str, rank: int) -> tuple[int, ...]:
        """See `Groups.members`."""
        key = (plan.groups, axis, rank)
        if (members := self._members.get(key)) is None:
            members = self._members[key] = plan.groups.members(axis, rank)
        return members

    def along(self, mesh: Mesh, rank: int, *axes: str) -> Pattern:
        """That of the group of a rank along axes of a mesh."""
        key = (mesh.order, mesh.sizes, rank, axes)
        if (pattern := self._along.get(key)) is None:
            pattern = self._along[key] = self.pattern(mesh.group(rank, *axes))
        return pattern

    def _standing(self, group: tuple[int, ...]) -> tuple[object, ...]:
        """Where its GPUs are: inside a machine it does not matter in which of a kind."""
        gpus = [self.wires.placement[rank] for rank in group]
        nodes = {self.cluster.node_of(gpu) for gpu in gpus}
        if len(nodes) > 1:
            return tuple(gpus)
        return (self.cluster.machine(nodes.pop()), *map(self.cluster.local, gpus))

    def seconds(self, kind: str, group: tuple[int, ...], size: int, pattern: Pattern | None = None) -> float:
        """Latency and bytes over bandwidth of one collective [s]; 0 for a group of one (copies over host links are priced)."""
        key = (kind, self.pattern(group) if pattern is None else pattern, size)
        if (seconds := self._known.get(key)) is None:
            seconds = self._known[key] = self.wires.cost(Collective(kind, "", group, size)).time
        return seconds


class ChainPrices:
    """Prices along one line of ranks: the rank of every pipeline stage that stands at the same place on all other axes.

    The line of the slowest rank where some are slow. Where stages stand differently in their machines, the cheapest counts:
    a lower bound for each.
    """

    def __init__(self, plan: Plan, prices: Prices) -> None:
        self.plan = plan
        self.prices = prices
        slowest = min(plan.slow, key=lambda rank: (plan.slow[rank], rank)) if plan.slow else 0
        mesh = plan.mesh
        self.ranks = tuple(mesh.move(slowest, PIPELINE, stage) for stage in range(mesh.size(PIPELINE)))
        self._groups: dict[str, dict[Pattern, tuple[int, ...]]] = {}
        self._at: dict[tuple[int, str], tuple[int, ...]] = {}

    def speed(self, stage: int) -> float:
        """Relative speed of a pipeline rank's compute."""
        return self.plan.slow.get(self.ranks[stage], 1.0)

    def groups(self, axis: str) -> dict[Pattern, tuple[int, ...]]:
        """One group of each kind along an axis, over the line's ranks."""
        if (groups := self._groups.get(axis)) is None:
            groups = self._groups[axis] = {}
            for rank in self.ranks:
                group = self.prices.members(self.plan, axis, rank)
                groups.setdefault(self.prices.pattern(group), group)
        return groups

    def anywhere(self, kind: str, axis: str, size: int) -> float:
        """Seconds of a collective along `axis` on the stage where it is cheapest."""
        groups = self.groups(axis)
        if axis != OFFLOAD and any(len(group) == 1 for group in groups.values()):
            return 0.0
        return min(self.prices.seconds(kind, group, size, pattern) for pattern, group in groups.items())

    def at(self, stage: int, kind: str, axis: str, size: int) -> float:
        """Seconds of a collective of one stage's rank."""
        if (group := self._at.get((stage, axis))) is None:
            group = self._at[stage, axis] = self.prices.members(self.plan, axis, self.ranks[stage])
        return 0.0 if len(group) == 1 and axis != OFFLOAD else self.prices.seconds(kind, group, size)

    def send(self, stage: int, target: int, size: int) -> float:
        """Seconds of a message between two pipeline ranks."""
        return self.prices.seconds("send", (self.ranks[stage], self.ranks[target]), size)
