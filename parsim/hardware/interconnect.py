"""Communication as a program sees it: ranks instead of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parsim.hardware.cluster import Cluster
from parsim.hardware.collectives import NCCL_SIMPLE, Latencies, collective_cost
from parsim.hardware.flows import CollectiveCost


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

    def __init__(self, cluster: Cluster, placement: Sequence[int], latencies: Latencies = NCCL_SIMPLE) -> None:
        self.cluster = cluster
        self.placement = tuple(placement)
        self.latencies = latencies
        self._costs: dict[tuple[str, tuple[int, ...], int], CollectiveCost] = {}
        self._known: dict[int, tuple[Transfer, CollectiveCost]] = {}

    def cost(self, collective: Transfer) -> CollectiveCost:
        """Latency and flows of `collective`.

        Raises:
            TopologyError: members that cannot reach each other.
        """
        known = self._known.get(id(collective))  # programs share one object; hashing 16,384 ranks for every op would be slow
        if known is not None:
            return known[1]
        key = (collective.kind, collective.group, collective.bytes)
        found = self._costs.get(key)
        if found is None:
            group = tuple(self.placement[rank] for rank in collective.group)
            found = self._costs[key] = collective_cost(self.cluster, group, collective.kind, collective.bytes, self.latencies)
        self._known[id(collective)] = (collective, found)
        return found

    def capacity(self, link: int) -> float:
        """Effective bandwidth of a link [B/s]."""
        return self.cluster.capacity(link)
