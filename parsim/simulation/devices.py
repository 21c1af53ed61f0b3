"""What loads a device from outside, and the block that it runs meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from typing import Any

from parsim.simulation.blocks import Loads, Progress
from parsim.simulation.paths import Path, Regime


class LoadSet:
    """The transfers that load a device at one time, as far as kernels feel them. There is one object for each such set."""

    __slots__ = ("less", "more", "regime")

    def __init__(self, regime: Regime, more: Neighbours, less: Neighbours) -> None:
        self.regime = regime
        self.more = more
        """number of a load -> the set with it"""
        self.less = less
        """number of a load -> the set without it"""


class Neighbours(dict[int, LoadSet]):
    """Sets that differ from one by one load; made on first use."""

    def __init__(self, make: Callable[[int], LoadSet]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, load: int) -> LoadSet:
        found = self[load] = self._make(load)
        return found


class LoadSets:
    """All of them. `alike` gives a form of loads that is equal for those that do the same."""

    def __init__(self, alike: Callable[[Loads], Loads]) -> None:
        self._alike = alike
        self._numbers: dict[Hashable, int] = {}
        self._loads: list[Any] = []
        self._sets: dict[tuple[int, ...], LoadSet] = {}
        self._regimes: dict[Loads, Regime] = {}
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
            regime = self._regimes.setdefault(loads, Regime(loads))
            found = self._sets[numbers] = LoadSet(
                regime,
                Neighbours(lambda load: self._set(tuple(sorted((*numbers, load))))),
                Neighbours(lambda load: self._set(_without(numbers, load))),
            )
        return found


def _without(numbers: tuple[int, ...], load: int) -> tuple[int, ...]:
    at = numbers.index(load)
    return numbers[:at] + numbers[at + 1 :]


class Device:
    """One rank: what loads it now, and the block under way on it.

    The block has come as far as if it had set out at `origin` under the loads of `path` and nothing had changed since; while
    it goes through states in which that cannot be said, `progress` knows more.
    """

    __slots__ = ("armed", "end", "index", "loads", "origin", "path", "progress")

    path: Path

    def __init__(self, loads: LoadSet) -> None:
        self.loads = loads
        self.index = -1
        """of the op that it runs; -1: none"""
        self.origin = 0.0
        self.end = inf
        """of the block, if nothing changes any more [s]"""
        self.armed = inf
        """when somebody looks whether it has ended [s]"""
        self.progress: Progress | None = None

    def replay(self, now: float) -> None:
        """Go on under the loads that there are now, where the block's path does not say how it stands."""
        path, regime = self.path, self.loads.regime
        if (progress := self.progress) is None or now >= progress.at:
            progress = self.progress = Progress(path.course, self.origin, path.regime.loads)
        progress.advance(now, regime.loads)
        self.path = path.paths[regime]
        self.origin = progress.at - progress.cuts[progress.cut]
        self.end = progress.end
