"""What has been found so far, and whether something with these bounds could still belong to it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol, Self

Values = tuple[float, ...]
"""what is to be small, one number per objective"""


class Incumbents(Protocol):
    """The answer so far."""

    def admits(self, least: Values, number: int) -> bool:
        """Whether candidate `number` could belong to the answer if none of its objectives falls below `least`."""

    def add(self, values: Values, number: int) -> None:
        """A candidate is known."""

    def joined(self, others: Mapping[int, Values]) -> Self:
        """What it would be with others, too."""

    def kept(self) -> list[int]:
        """The answer: candidates' numbers, best first."""


class Best:
    """The `count` best by one objective, none above `limit`; of equals those with the lower numbers."""

    def __init__(self, count: int = 1, limit: float = inf) -> None:
        self.count, self.limit = count, limit
        self._found: list[tuple[Values, int]] = []

    def admits(self, least: Values, number: int) -> bool:
        """See `Incumbents.admits`."""
        return least[0] <= self.limit and (len(self._found) < self.count or (least, number) < self._found[-1])

    def add(self, values: Values, number: int) -> None:
        """See `Incumbents.add`."""
        if values[0] <= self.limit:
            insort(self._found, (values, number))
            del self._found[self.count :]

    def joined(self, others: Mapping[int, Values]) -> Best:
        """See `Incumbents.joined`."""
        found = Best(self.count, self.limit)
        found._found = sorted([*self._found, *((values, number) for number, values in others.items() if values[0] <= self.limit)])
        del found._found[self.count :]
        return found

    def kept(self) -> list[int]:
        """See `Incumbents.kept`."""
        return [number for _, number in self._found]


class Front:
    """The Pareto front of several objectives: everything that nothing else is better than in one and no worse in all. Equals all stay."""

    def __init__(self) -> None:
        self._found: list[tuple[Values, int]] = []

    def admits(self, least: Values, number: int) -> bool:
        """See `Incumbents.admits`."""
        return not any(dominates(values, least) for values, _ in self._found)

    def add(self, values: Values, number: int) -> None:
        """See `Incumbents.add`."""
        if self.admits(values, number):
            self._found = [one for one in self._found if not dominates(values, one[0])]
            insort(self._found, (values, number))

    def joined(self, others: Mapping[int, Values]) -> Front:
        """See `Incumbents.joined`."""
        found = Front()
        found._found = list(self._found)
        for number, values in others.items():
            found.add(values, number)
        return found

    def kept(self) -> list[int]:
        """See `Incumbents.kept`."""
        return [number for _, number in self._found]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """No worse in everything and better in something."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)
