"""Communication as a program sees it: ranks instead of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parsim.hardware.batches import Batch, Numbers, batches, shapes, signatures
from parsim.hardware.cluster import Cluster
from parsim.hardware.collectives import collective_cost as ring_cost
from parsim.hardware.flows import CollectiveCost
from parsim.hardware.host import COPIES, host_cost
from parsim.hardware.nccl.cost import collective_cost as nccl_cost
from parsim.hardware.nccl.cost import collective_estimate
from parsim.hardware.nccl.inputs import COLLECTIVES, Settings

TINY = 16 * 1024
"""Messages of up to this many bytes are latency and occupy no link: a scalar all-reduce over a tree would otherwise make every
node of the tree a class of its own, for a load that nobody can measure."""


class Transfer(Protocol):
    """What a collective must say about itself (`parsim.program.Collective` does)."""

    @property
    def kind(self) -> str:
        """all_reduce, all_gather, ..."""

    @property
    def group(self) -> tuple[int, ...]:
        """Global ranks that take part."""

    @property
    def bytes(self) -> int:
        """Size by nccl-tests semantics [B]."""


class Interconnect:
    """Costs of collectives among ranks that sit on the GPUs of `placement`; equal questions are answered once."""

    def __init__(self, cluster: Cluster, placement: Sequence[int], settings: Settings | None = None) -> None:
        self.cluster = cluster
        self.placement = tuple(placement)
        self.settings = settings
        """profile, algorithm and protocol of NCCL's model; None: rings and trees on the graph's capacities"""
        self._costs: dict[tuple[str, tuple[int, ...], int], CollectiveCost] = {}
        """by kind, GPUs and bytes"""
        self._known: dict[tuple[str, tuple[int, ...], int], CollectiveCost] = {}
        """the same by ranks"""
        self._examples: dict[bytes, tuple[int, ...]] = {}
        """how a group lies on the machines -> the first such group"""

    def cost(self, collective: Transfer) -> CollectiveCost:
        """Latency and flows of `collective`.

        Raises:
            TopologyError: members that cannot reach each other.
        """
        key = (collective.kind, collective.group, collective.bytes)
        if (known := self._known.get(key)) is None:
            group = tuple(map(self.placement.__getitem__, collective.group))
            known = self._known[key] = self._of(group, collective.kind, collective.bytes)
        return known

    def batches(self, kind: str, groups: Numbers, size: int) -> list[Batch]:
        """What many transfers of `size` bytes cost (a row of ranks each), those together that cost the same on other links."""
        placed = np.array(self.placement)[groups]
        return batches(self.cluster, placed, lambda group: self._of(group, kind, size))

    def examples(self, groups: Numbers) -> list[tuple[int, ...]]:
        """One group for every way in which groups (a row of ranks each) lie on the machines: what holds for one holds for its likes."""
        placed = np.array(self.placement)[groups]
        firsts = [int(alike[0]) for alike in shapes(self.cluster, placed)]
        rows = signatures(self.cluster, placed[firsts])
        return [self._examples.setdefault(row.tobytes(), tuple(groups[first].tolist())) for first, row in zip(firsts, rows, strict=True)]

    def _of(self, group: tuple[int, ...], kind: str, size: int) -> CollectiveCost:
        """What a transfer among GPUs costs."""
        key = (kind, group, size)
        if (found := self._costs.get(key)) is None:
            found = self._costs[key] = self._price(group, kind, size)
        return found

    def _price(self, group: tuple[int, ...], kind: str, size: int) -> CollectiveCost:
        if kind in COPIES:
            return host_cost(self.cluster, group[0], kind, size)
        if self.settings is None:
            return ring_cost(self.cluster, group, kind, size)
        if size > TINY:
            return nccl_cost(self.cluster, group, kind, size, self.settings)
        if kind in COLLECTIVES and len(group) > 1:
            one = collective_estimate(self.cluster, group, kind, size, self.settings)
            return CollectiveCost(one.time, (), one.choice.algorithm, one.choice.protocol)
        found = nccl_cost(self.cluster, group, kind, size, self.settings)
        return CollectiveCost(found.time, (), found.algorithm, found.protocol)

    def capacity(self, link: int) -> float:
        """Effective bandwidth of a link [B/s]."""
        return self.cluster.capacity(link)

    def capacities(self, links: Numbers) -> NDArray[np.float64]:
        """Effective bandwidths of many links [B/s]."""
        return self.cluster.capacities(links)

    def slack(self, links: Numbers) -> Numbers:
        """Links that can never be full before others on every path through them are: 1 up, 2 down; 0: any other."""
        return self.cluster.slack(links)
