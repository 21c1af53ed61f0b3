"""What has been found so far, and whether something with these bounds could still belong to it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Protocol

Values = tuple[float, ...]


class Incumbents(Protocol):
    """The answer so far."""

    def admits(self, least: Values, index: int) -> bool:
        """Whether candidate `index` could belong to the answer if none of its objectives falls below `least`."""

    def add(self, values: Values, index: int) -> None:
        """A candidate was simulated."""

    def kept(self) -> list[int]:
        """The answer: candidates' numbers, best first."""


class Best:
    """The k best by one objective; of equals those that come first."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._found: list[tuple[Values, int]] = []

    def admits(self, least: Values, index: int) -> bool:
        """See `Incumbents.admits`."""
        return len(self._found) < self.count or (least, index) < self._found[-1]

    def add(self, values: Values, index: int) -> None:
        """See `Incumbents.add`."""
        insort(self._found, (values, index))
        del self._found[self.count :]

    def kept(self) -> list[int]:
        """See `Incumbents.kept`."""
        return [index for _, index in self._found]


class Front:
    """The Pareto front of several objectives: everything that nothing else is better than in one and no worse in all. Equals all stay."""

    def __init__(self) -> None:
        self._found: list[tuple[Values, int]] = []

    def admits(self, least: Values, index: int) -> bool:
        """See `Incumbents.admits`."""
        return not any(dominates(values, least) for values, _ in self._found)

    def add(self, values: Values, index: int) -> None:
        """See `Incumbents.add`."""
        if self.admits(values, index):
            self._found = [(other, number) for other, number in self._found if not dominates(values, other)]
            insort(self._found, (values, index))

    def kept(self) -> list[int]:
        """See `Incumbents.kept`."""
        return [index for _, index in self._found]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """No worse in everything and better in something."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(a < b for a, b in zip(one, other, strict=True))
