"""Compute and communication that slow each other down on a rank while they overlap.

A rank runs one kernel at a time, so its progress is one number: work left [s], at a rate that falls while collectives run
beside it. When the rate changes the kernel's end is put on the clock again. A collective that is slowed by kernels crosses
one private link per rank, whose capacity falls while a kernel runs; the network does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import simpy

from parsim.program.program import COMPUTE, OFFLOAD, Collective, Lane, Op, Program
from parsim.simulation.network import Network

_LANE = 10**9
"""private links have negative ids: -1 - rank, this much lower for each lane of collectives"""


class Interference(Protocol):
    """How strong the effect is.

    It may have a method `alike(loads)`: a tuple of loads that slow every kernel, also with others besides, as much as these.
    """

    def load(self, collective: Collective) -> Any:
        """What a collective takes."""

    def compute_rate(self, loads: Iterable[Any], memory_bound: float) -> float:
        """Rate of a kernel beside these, 1 = undisturbed."""

    def communication_rate(self, memory_bound: float) -> float:
        """Rate of a collective beside a kernel."""


def private(link: int) -> bool:
    """Whether a link id is one of those made here; their capacity is 1 while nothing disturbs."""
    return link < 0


class Kernel:
    """The kernel that a rank runs now."""

    __slots__ = ("left", "memory_bound", "op", "rate", "since")

    def __init__(self, op: Op, memory_bound: float, now: float) -> None:
        self.op = op
        self.memory_bound = memory_bound
        self.left = op.duration
        self.rate = 0.0
        self.since = now


class Overlap:
    """Keeps kernels and private links in step with what runs beside them. `then` is called with a kernel's op at its end."""

    def __init__(
        self, program: Program, interference: Interference, network: Network, env: simpy.Environment, then: Callable[[Op], None]
    ) -> None:
        self._interference = interference
        self._network = network
        self._env = env
        self._then = then
        self._memory_bound = program.memory_bound
        self._loads: dict[int, Any] = {}
        self._beside: dict[int, tuple[int, ...]] = {}
        self.ranks = self._overlapping(program)
        self._active: dict[int, dict[int, tuple[Any, int]]] = {rank: {} for rank in self.ranks}
        """rank -> op index -> (load, private link of its lane)"""
        self._kernel: dict[int, Kernel] = {}
        self._rates: dict[tuple[Any, ...], float] = {}
        self._lanes: dict[str, int] = {}
        self.slows_wires = interference.communication_rate(1.0) < 1

    def _overlapping(self, program: Program) -> frozenset[int]:
        ranks: set[int] = set()
        for collective, lanes in program.transfers():
            ranks.update(self.free(collective, lanes))
        return frozenset(ranks)

    def beside(self, op: Op) -> tuple[int, ...]:
        """The ranks whose compute lane a collective leaves free; none for copies, which copy engines make and not kernels."""
        return self.free(op.collective, op.lanes)

    def free(self, collective: Collective | None, lanes: tuple[Lane, ...]) -> tuple[int, ...]:
        """The same of a transfer that holds these lanes."""
        if collective is not None and collective.axis == OFFLOAD:
            return ()
        key = id(lanes)
        if (ranks := self._beside.get(key)) is None:
            held = {lane.rank for lane in lanes if lane.name == COMPUTE}
            ranks = self._beside[key] = tuple(dict.fromkeys(lane.rank for lane in lanes if lane.rank not in held))
        return ranks

    def elastic(self, op: Op) -> int | None:
        """The rank of a kernel that a collective may slow; None for ops that nothing disturbs."""
        lane = op.lanes[0]
        return lane.rank if lane.name == COMPUTE and op.duration > 0 and lane.rank in self.ranks else None

    # -- kernels --------------------------------------------------------------------------------------------------

    def kernel_begins(self, op: Op, rank: int) -> None:
        """Start a kernel; its end comes through `then`."""
        kernel = self._kernel[rank] = Kernel(op, self._memory_bound.get(op.name, 0.0), self._env.now)
        self._pace(rank, kernel)
        if self.slows_wires:
            self._wires(rank)

    def _pace(self, rank: int, kernel: Kernel) -> None:
        """Give the kernel the rate that the collectives beside it leave, and put its end on the clock if that changed it."""
        loads = tuple([load for load, _ in self._active[rank].values()])
        key = (kernel.memory_bound, *loads)
        if (rate := self._rates.get(key)) is None:
            rate = self._rates[key] = self._interference.compute_rate(loads, kernel.memory_bound)
        if rate == kernel.rate:
            return
        now = self._env.now
        kernel.left -= kernel.rate * (now - kernel.since)
        kernel.rate, kernel.since = rate, now
        self._env.timeout(max(0.0, kernel.left / rate), (rank, kernel, now, rate)).callbacks.append(self._due)

    def _due(self, event: Any) -> None:
        rank, since, rate = event.value[0], event.value[2], event.value[3]
        kernel: Kernel = event.value[1]
        if self._kernel.get(rank) is not kernel or (kernel.since, kernel.rate) != (since, rate):
            return  # paced anew meanwhile
        del self._kernel[rank]
        if self.slows_wires:
            self._wires(rank)
        self._then(kernel.op)

    # -- collectives ----------------------------------------------------------------------------------------------

    def collective_begins(self, op: Op) -> None:
        """From now on it loads its ranks."""
        collective = op.collective
        if collective is None:
            return
        if (load := self._loads.get(id(collective))) is None:
            load = self._loads[id(collective)] = self._interference.load(collective)
        for rank in self.beside(op):
            self._active[rank][op.index] = (load, self._wire(op, rank) if self.slows_wires else 0)
            self._changed(rank)

    def collective_ends(self, op: Op) -> None:
        """It has gone."""
        for rank in self.beside(op):
            del self._active[rank][op.index]
            self._changed(rank)

    def _changed(self, rank: int) -> None:
        if (kernel := self._kernel.get(rank)) is not None:
            self._pace(rank, kernel)
        if self.slows_wires:
            self._wires(rank)

    # -- private links --------------------------------------------------------------------------------------------

    def _wire(self, op: Op, rank: int) -> int:
        """The private link of a collective's lane: collectives of one lane never overlap, those of others may."""
        name = next(lane.name for lane in op.lanes if lane.rank == rank)
        return -1 - rank - _LANE * (1 + self._lanes.setdefault(name, len(self._lanes)))

    def wire_path(self, op: Op, cap: float, flows: int) -> tuple[tuple[int, float], ...]:
        """What each of the `flows` of a collective crosses besides its links; all together at their caps fill it."""
        return tuple((self._wire(op, rank), 1.0 / (cap * flows)) for rank in self.beside(op)) if self.slows_wires else ()

    def _wires(self, rank: int) -> None:
        kernel = self._kernel.get(rank)
        rate = 1.0 if kernel is None else self._interference.communication_rate(kernel.memory_bound)
        for _, wire in self._active[rank].values():
            self._network.set_capacity(wire, rate)
