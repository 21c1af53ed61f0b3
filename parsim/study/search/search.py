"""The exact best of many candidates by branch and bound, best bound first, whoever works and however long it takes.

Every candidate enters with lower bounds of its objectives. `next` names the most promising one that may still belong to the answer;
whoever asked finds something out about it and says so: better bounds (`raised`, and it waits for its turn again) or what it is
(`known`). When nobody is left, nothing that is not known can belong to the answer: it is that of simulating everything, with any
number of candidates under way at once and in any order of arrival. Of equals the lower number wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from operator import le

from parsim.study.search.incumbents import Incumbents, Values


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

        One that cannot belong to the answer if those under way are what they seem waits for them. So the last and dearest
        question is asked about few, and the same ones whoever is faster.
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
        for one in waiting:
            heappush(self._open, one)
        return chosen

    def _may_be_beaten(self, least: Values) -> bool:
        """Somebody under way may turn out to be better in everything."""
        rivals = (other for number, other in self._away.items() if number not in self._exact)
        return any(all(map(le, other, least)) for other in rivals)
