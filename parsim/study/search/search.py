"""The exact best of many candidates by branch and bound, best bound first, whoever works and however long it takes.

Every candidate enters with lower bounds of its objectives. `next` names the most promising one that may still belong to the answer;
whoever asked finds something out about it and says so: better bounds (`raised`, and it waits for its turn again) or what it is
(`known`). When nobody is left, nothing that is not known can belong to the answer: it is that of simulating everything, with any
number of candidates under way at once and in any order of arrival. Of equals the lower number wins.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from operator import le
from typing import Protocol, Self


class Search:
    """One search under way. Candidates are numbers here."""

    def __init__(self, answer: Incumbents) -> None:
        self.answer = answer
        self._open: list[tuple[Values, int]] = []
        self._exact: set[int] = set()
        """candidates whose bounds are likely all there is to find"""
        self._away: dict[int, Values] = {}
        """candidates that somebody works on, and their bounds"""
        self._left: dict[int, Values] = {}

    @property
    def left(self) -> Mapping[int, Values]:
        """Candidates that cannot belong to the answer, with the bounds that prove it."""
        return self._left

    def enter(self, number: int, least: Values) -> None:
        """A candidate, and what its objectives do not fall below."""
        heappush(self._open, (least, number))

    def raised(self, number: int, least: Values, *, exact: bool = False) -> None:
        """Better bounds of a candidate that `next` has named; `exact`: hardly anything but a broken constraint can change them."""
        before = self._away.pop(number)
        if exact:
            self._exact.add(number)
        heappush(self._open, (tuple(map(max, before, least)), number))

    def known(self, number: int, values: Values | None) -> None:
        """What a candidate that `next` has named is; None: it breaks a constraint."""
        del self._away[number]
        if values is not None:
            self.answer.add(values, number)

    def next(self) -> int | None:
        """The candidate whose turn it is; None: nobody until something under way is told, or nobody at all.

        One that cannot belong to the answer if those with exact bounds are what they seem waits for them, and they wait for whoever may
        turn out to be better. So the last and dearest question is asked about few, and hardly depends on who is faster.
        """
        likely = self.answer.joined({number: least for number, least in self._away.items() if number in self._exact})
        waiting: list[tuple[Values, int]] = []
        chosen = None
        while self._open and chosen is None:
            least, number = heappop(self._open)
            if not self.answer.admits(least, number):
                self._left[number] = least
            elif likely.admits(least, number) and not (number in self._exact and self._may_be_beaten(least)):
                chosen = number
                self._away[number] = least
            else:
                waiting.append((least, number))
                if number in self._exact:
                    likely.add(least, number)
        for one in waiting:
            heappush(self._open, one)
        return chosen

    def _may_be_beaten(self, least: Values) -> bool:
        """Somebody under way may turn out to be better in everything."""
        rivals = (other for number, other in self._away.items() if number not in self._exact)
        return any(all(map(le, other, least)) for other in rivals)


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
        both = Best(self.count, self.limit)
        both._found = sorted([*self._found, *((values, number) for number, values in others.items() if values[0] <= self.limit)])
        del both._found[self.count :]
        return both

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
        both = Front()
        both._found = list(self._found)
        for number, values in others.items():
            both.add(values, number)
        return both

    def kept(self) -> list[int]:
        """See `Incumbents.kept`."""
        return [number for _, number in self._found]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """No worse in everything and better in something."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A row among those that keep all constraints."""

    place: int
    """in the given sequence"""
    layer: int
    """1: nothing is better in all objectives; 2: only layer 1 is; and so on. With one objective always 1"""


def ranked(scores: Sequence[Values], ties: Sequence[Values] = ()) -> list[Ranked]:
    """The order of rows by their scores, equal ones by their `ties`; what is equal in both stays in the order given.

    With several objectives, the Pareto layers in order, each by the first objective.
    """
    if not scores:
        return []
    order = sorted(range(len(scores)), key=lambda place: (scores[place], ties[place] if ties else (), place))
    if len(scores[0]) == 1:
        return [Ranked(place, 1) for place in order]
    layers = _layers(scores, order)
    return [Ranked(place, layers[place]) for place in sorted(order, key=lambda place: (layers[place], scores[place], place))]


def _layers(scores: Sequence[Values], order: Sequence[int]) -> dict[int, int]:
    """Layer of each place. In the sorted order only earlier ones can dominate; the last of a layer is asked first."""
    layers: list[list[int]] = []
    layer_of: dict[int, int] = {}
    for place in order:
        number = next(
            (
                number
                for number, layer in enumerate(layers)
                if not any(dominates(scores[other], scores[place]) for other in reversed(layer))
            ),
            len(layers),
        )
        if number == len(layers):
            layers.append([])
        layers[number].append(place)
        layer_of[place] = number + 1
    return layer_of
