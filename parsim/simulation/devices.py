"""Kernels, and what slows them: the transfers that load a device while it runs one.

A device runs one kernel at a time, so its progress is one number: when the kernel ends if nothing changes any more. When a load
comes or goes, or somebody changes the device's speed, the rest of the kernel takes longer or shorter from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import Any, Protocol

from parsim.program.program import Collective

Loads = tuple[Any, ...]


class Interference(Protocol):
    """How compute and communication slow each other down on a device while they overlap.

    It may have a method `alike(loads)`: a tuple of loads that slow every kernel, also with others besides, as much as these.
    """

    def load(self, collective: Collective) -> Any:
        """What a collective takes."""

    def kernel_load(self) -> Any:
        """What a kernel on a stream of its own takes, which copies or sums."""

    def compute_rate(self, loads: Iterable[Any], memory_bound: float) -> float:
        """Rate of a kernel beside these, 1 = undisturbed."""

    def communication_rate(self, memory_bound: float) -> float:
        """Rate of a collective beside a kernel."""


class LoadSet:
    """The transfers that load a device at one time. There is one object for each set."""

    __slots__ = ("less", "loads", "more")

    def __init__(self, loads: Loads, more: NeighbouringLoads, less: NeighbouringLoads) -> None:
        self.loads = loads
        """one form for all sets that slow kernels alike"""
        self.more = more
        """number of a load -> the set with it"""
        self.less = less
        """number of a load -> the set without it"""


class NeighbouringLoads(dict[int, LoadSet]):
    """Sets that differ from one by one load; made on first use."""

    def __init__(self, make: Callable[[int], LoadSet]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, load: int) -> LoadSet:
        found = self[load] = self._make(load)
        return found


class LoadSets:
    """All sets of loads. `alike` gives a form of loads that is equal for those that do the same."""

    def __init__(self, alike: Callable[[Loads], Loads]) -> None:
        self._alike = alike
        self._numbers: dict[Hashable, int] = {}
        self._loads: list[Any] = []
        self._sets: dict[tuple[int, ...], LoadSet] = {}
        self.nothing = self._set(())

    def number(self, load: Any) -> int:
        """The number of a load; equal loads have one."""
        if (found := self._numbers.get(load)) is None:
            found = self._numbers[load] = len(self._loads)
            self._loads.append(load)
        return found

    def _set(self, numbers: tuple[int, ...]) -> LoadSet:
        if (found := self._sets.get(numbers)) is None:
            loads = self._alike(tuple([self._loads[number] for number in numbers])) if numbers else ()
            found = self._sets[numbers] = LoadSet(
                loads,
                NeighbouringLoads(lambda load: self._set(tuple(sorted((*numbers, load))))),
                NeighbouringLoads(lambda load: self._set(_without(numbers, load))),
            )
        return found


def _without(numbers: tuple[int, ...], load: int) -> tuple[int, ...]:
    at = numbers.index(load)
    return numbers[:at] + numbers[at + 1 :]


class Rates(dict[LoadSet, float]):
    """Set of loads -> rate of kernels of which `memory_bound` is the share of time that waits for HBM; computed on first use."""

    def __init__(self, interference: Interference | None, memory_bound: float) -> None:
        super().__init__()
        self._interference = interference
        self.memory_bound = memory_bound
        self._known: dict[Loads, float] = {}

    def __missing__(self, found: LoadSet) -> float:
        if found.loads not in self._known:
            rate = 1.0 if self._interference is None else self._interference.compute_rate(found.loads, self.memory_bound)
            self._known[found.loads] = rate
        self[found] = self._known[found.loads]
        return self[found]


class Kernel:
    """What ops of one spec do: `seconds` of work on a device.

    `beside` is the device whose kernels it slows meanwhile, with the number of that load; None: it slows nothing.
    """

    __slots__ = ("beside", "device", "rates", "seconds")

    def __init__(self, device: LoadedDevice, seconds: float, rates: Rates, beside: tuple[LoadedDevice, int] | None = None) -> None:
        self.device = device
        self.seconds = seconds
        self.rates = rates
        self.beside = beside


class LoadedDevice:
    """One lane of a rank: what loads it now, and the kernel under way on it."""

    __slots__ = ("due", "loads", "looked_at", "op", "rate", "rates", "speed", "wires", "work")

    rates: Rates
    """of the kernel under way"""

    def __init__(self, loads: LoadSet) -> None:
        self.loads = loads
        self.speed = 1.0
        self.op = -1
        """index of the op under way; -1: none"""
        self.work = 0.0
        """of the kernel [s at rate 1]"""
        self.rate = 0.0
        """of the kernel, 1 = undisturbed, 0 = it begins now"""
        self.due = inf
        """when it ends, if nothing changes any more [s]"""
        self.looked_at = inf
        """when the clock says its number [s]: at its end, or earlier if that has moved back meanwhile"""
        self.wires: dict[int, int] = {}
        """op index of a transfer that kernels slow -> the link that stands for it here"""
