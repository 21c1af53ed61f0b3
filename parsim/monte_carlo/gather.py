"""From runs to what the report says of them.

Draws that stay (which GPUs one gets) and draws that come anew with every step are two questions, whose answers are never pooled:
quantiles over clusters say what may be promised before a cluster is known, quantiles over steps what one cluster does. Where both
vary, runs over clusters leave out what varies from step to step, and runs over steps are those of the undisturbed cluster. A third
row of runs has both, another cluster and another step each; its mean is that of a training on whatever cluster it gets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from parsim.monte_carlo.question import RunQuestion, Sampled, ask
from parsim.monte_carlo.stopping import BETWEEN, Until
from parsim.report.variability import CauseEffect, Over, RunStatistics, Slowest, Spread, most_expensive

Answer = Callable[[Sequence[RunQuestion]], Iterable[tuple[RunQuestion, Sampled]]]
"""gets questions answered, in any order"""
CAUSE_RUNS = 100
"""runs that say what each cause does: differences of equal draws need few"""
_RANKS = 8
"""slowest ranks that are named"""


@dataclass(frozen=True)
class Disturbed:
    """What a step is disturbed by."""

    causes: frozenset[str]
    static: frozenset[str]
    """those that stay as long as a cluster does"""
    nominal: float
    """the undisturbed step [s]"""
    seed: int = 0
    method: str = ""
    """how a run is found"""


def gather(answer: Answer, of: Disturbed, runs: int, *, until: Until | None = None) -> RunStatistics:
    """Ask for `runs` runs, or for as many of them as `until` needs."""
    return _Gathering(answer, of).whole(runs, until)


class _Gathering:
    def __init__(self, answer: Answer, of: Disturbed) -> None:
        self._answer, self._of = answer, of
        self._known: dict[RunQuestion, Sampled] = {}

    def whole(self, runs: int, until: Until | None) -> RunStatistics:
        causes, static = self._of.causes, self._of.static
        stays, comes = causes & static, causes - static
        count = self._enough(stays or comes, runs, until)
        first: Over = "clusters" if stays else "steps"
        rows = [stays or comes, *([comes, causes] if stays and comes else [])]
        self._ahead([(row, count) for row in rows], causes, min(count, CAUSE_RUNS))
        steps = together = None
        if stays and comes:
            steps = self._document(comes, "steps", count)
            together = self._spread(causes, count)
        return self._document(stays or comes, first, count, steps, together, causes)

    def _document(
        self,
        chosen: frozenset[str],
        over: Over,
        count: int,
        steps: RunStatistics | None = None,
        together: Spread | None = None,
        causes: frozenset[str] = frozenset(),
    ) -> RunStatistics:
        """What is said of one row of runs; `causes` are those whose effects are asked for."""
        few = min(count, CAUSE_RUNS)
        return RunStatistics(
            self._spread(chosen, count), over, self._of.seed, self._effects(causes, few), few if causes else 0,
            self._slowest(chosen, count), self._of.method, steps, together,
        )  # fmt: skip

    def _enough(self, causes: frozenset[str], most: int, until: Until | None) -> int:
        """How many runs are made: `most`, or the first multiple after which the interval is narrow enough."""
        if until is None:
            return most
        count = min(most, until.first)
        while not until.enough(self._spread(causes, count)) and count < most:
            count = min(most, count + BETWEEN)
        return count

    def _ahead(self, rows: Sequence[tuple[frozenset[str], int]], causes: frozenset[str], few: int) -> None:
        """Ask at once for all that will be asked for: workers then never wait for each other."""
        sides = [(some, few) for cause in sorted(causes) for some in (causes, frozenset({cause}), causes - {cause})]
        asked = dict.fromkeys(one for some, count in (*rows, *sides) if some for one in ask(some, range(count)))
        if unknown := [one for one in asked if one not in self._known]:
            self._known.update(self._answer(unknown))

    def _spread(self, causes: frozenset[str], count: int) -> Spread:
        return Spread(tuple(one.step_time for one in self._runs(causes, count)), self._of.nominal)

    def _runs(self, causes: frozenset[str], count: int) -> list[Sampled]:
        """The answers of the first `count` runs; what is known already is not asked again."""
        asked = list(ask(causes, range(count)))
        if not causes:  # nothing differs from what is known
            return [Sampled(self._of.nominal, -1)] * count
        if unknown := [one for one in asked if one not in self._known]:
            self._known.update(self._answer(unknown))
        return [self._known[one] for one in asked]

    def _effects(self, causes: frozenset[str], count: int) -> tuple[CauseEffect, ...]:
        found = []
        for cause in sorted(causes):
            whole, alone, without = (
                [one.step_time for one in self._runs(some, count)] for some in (causes, frozenset({cause}), causes - {cause})
            )
            saved = math.fsum(a - b for a, b in zip(whole, without, strict=True)) / count
            found.append(CauseEffect(cause, math.fsum(alone) / count, math.fsum(without) / count, saved))
        return most_expensive(found)

    def _slowest(self, causes: frozenset[str], count: int) -> tuple[Slowest, ...]:
        times = Counter(one.slowest for one in self._runs(causes, count) if one.slowest >= 0)
        ordered = sorted(times.items(), key=lambda item: (-item[1], item[0]))
        return tuple(Slowest(str(rank), often / count) for rank, often in ordered[:_RANKS])
