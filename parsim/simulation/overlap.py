"""Compute and communication that slow each other down on a rank while they overlap.

A kernel is a flow of `duration` "bytes" at cap 1 over a private link of its rank, whose capacity falls while
collectives run beside it; a collective that leaves the compute lane free crosses one more private link per rank, whose
capacity falls while a kernel runs. The network then does the rest, also when things change halfway through.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from parsim.program.program import COMPUTE, Collective, Op, Program
from parsim.simulation.network import Network

_LANE = 10**9
"""private links have negative ids: -1 - rank for compute, this much lower for each lane of collectives"""


class Interference(Protocol):
    """How strong the effect is."""

    def load(self, collective: Collective) -> Any:
        """What a collective takes."""

    def compute_rate(self, loads: Iterable[Any], memory_bound: float) -> float:
        """Rate of a kernel beside these, 1 = undisturbed."""

    def communication_rate(self, memory_bound: float) -> float:
        """Rate of a collective beside a kernel."""


def private(link: int) -> bool:
    """Whether a link id is one of those made here; their capacity is 1 while nothing disturbs."""
    return link < 0


class Overlap:
    """Keeps the private links' capacities in step with what runs."""

    def __init__(self, program: Program, interference: Interference, network: Network) -> None:
        self._interference = interference
        self._network = network
        self._memory_bound = program.memory_bound
        self._loads: dict[int, Any] = {}
        self._beside: dict[int, tuple[int, ...]] = {}
        self.ranks = self._overlapping(program)
        self._active: dict[int, dict[int, tuple[Any, int]]] = {rank: {} for rank in self.ranks}
        """rank -> op index -> (load, private link of its lane)"""
        self._lanes: dict[str, int] = {}
        self.slows_wires = interference.communication_rate(1.0) < 1
        self._kernel: dict[int, float] = {}

    def _overlapping(self, program: Program) -> frozenset[int]:
        ranks: set[int] = set()
        for op in program.ops:
            if op.collective is not None:
                ranks.update(self.beside(op))
        return frozenset(ranks)

    def beside(self, op: Op) -> tuple[int, ...]:
        """The ranks whose compute lane a collective leaves free."""
        key = id(op.lanes)
        if (ranks := self._beside.get(key)) is None:
            held = {lane.rank for lane in op.lanes if lane.name == COMPUTE}
            ranks = self._beside[key] = tuple(dict.fromkeys(lane.rank for lane in op.lanes if lane.rank not in held))
        return ranks

    def elastic(self, op: Op) -> int | None:
        """The rank of a kernel that a collective may slow; None for ops that nothing disturbs."""
        lane = op.lanes[0]
        return lane.rank if lane.name == COMPUTE and lane.rank in self.ranks and op.duration > 0 else None

    @staticmethod
    def kernel_path(rank: int) -> tuple[tuple[int, float], ...]:
        """Path of a kernel's flow."""
        return ((-1 - rank, 1.0),)

    def _wire(self, op: Op, rank: int) -> int:
        """The private link of a collective's lane: collectives of one lane never overlap, those of others may."""
        name = next(lane.name for lane in op.lanes if lane.rank == rank)
        return -1 - rank - _LANE * (1 + self._lanes.setdefault(name, len(self._lanes)))

    def wire_path(self, op: Op, cap: float, flows: int) -> tuple[tuple[int, float], ...]:
        """What each of the `flows` of a collective crosses besides its links; all together at their caps fill it."""
        return tuple((self._wire(op, rank), 1.0 / (cap * flows)) for rank in self.beside(op)) if self.slows_wires else ()

    def kernel_begins(self, op: Op, rank: int) -> None:
        self._kernel[rank] = self._memory_bound.get(op.name, 0.0)
        self._settle(rank)

    def kernel_ends(self, rank: int) -> None:
        del self._kernel[rank]
        if self._active[rank]:
            self._settle(rank)

    def collective_begins(self, op: Op) -> None:
        collective = op.collective
        if collective is None:
            return
        if (load := self._loads.get(id(collective))) is None:
            load = self._loads[id(collective)] = self._interference.load(collective)
        for rank in self.beside(op):
            self._active[rank][op.index] = (load, self._wire(op, rank))
            self._settle(rank)

    def collective_ends(self, op: Op) -> None:
        for rank in self.beside(op):
            del self._active[rank][op.index]
            self._settle(rank)

    def _settle(self, rank: int) -> None:
        memory_bound = self._kernel.get(rank)
        active = self._active[rank].values()
        if memory_bound is not None:
            self._network.set_capacity(-1 - rank, self._interference.compute_rate([load for load, _ in active], memory_bound))
        if active and self.slows_wires:
            rate = 1.0 if memory_bound is None else self._interference.communication_rate(memory_bound)
            for _, wire in active:
                self._network.set_capacity(wire, rate)
