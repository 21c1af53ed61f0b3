"""How a step time spreads over steps, or over clusters: what the report says of many runs of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from parsim.report.order_statistics import mean_interval, quantile, quantile_ranks

Over = Literal["steps", "clusters"]
FEWEST_P95, FEWEST_P99 = 60, 299
"""runs from which on a quantile of 5 or 95 %, and of 99 %, has an interval at all that holds it in 95 % of cases"""
LISTED = 10_000
"""runs whose values stand in the document one by one"""
_BINS = 30
_FAR = 2.0
"""how far beyond p5 and p95 values are left out of a histogram, in distances of these: a normal distribution has none there"""


@dataclass(frozen=True, eq=False)
class Spread:
    """What one number was in many runs, in the order of the runs, and what that says of all there might be."""

    values: tuple[float, ...]
    nominal: float
    """undisturbed"""

    @cached_property
    def ordered(self) -> list[float]:
        """The values, the least first."""
        return sorted(self.values)

    @cached_property
    def mean(self) -> float:
        """Of the values; exactly summed, so that it does not depend on their order."""
        return math.fsum(self.values) / len(self.values)

    @cached_property
    def deviation(self) -> float | None:
        """Standard deviation of what the values come from; None for one value."""
        if len(self.values) < 2:
            return None
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1))

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the runs do not exceed; None where they are too few to say."""
        fewest = FEWEST_P99 if share > 0.98 else 1 if share == 0.5 else FEWEST_P95
        return None if len(self.values) < fewest else quantile(self.ordered, share)

    @cached_property
    def mean_interval(self) -> tuple[float, float] | None:
        """Holds the true mean in 95 % of cases."""
        return None if self.deviation is None else mean_interval(self.mean, self.deviation, len(self.values))

    @cached_property
    def p95_interval(self) -> tuple[float, float] | None:
        """Holds the true 95 % quantile in 95 % of cases, whatever the distribution."""
        if len(self.values) < FEWEST_P95 or (ranks := quantile_ranks(len(self.values), 0.95)) is None:
            return None
        return self.ordered[ranks[0] - 1], self.ordered[ranks[1] - 1]

    def mapped(self, function: Callable[[float], float]) -> Spread:
        """The same runs seen through a function of the number."""
        return Spread(tuple(map(function, self.values)), function(self.nominal))

    def bins(self) -> tuple[list[float], list[int], list[float]]:
        """Edges of a histogram, how many runs lie between each two (the last bin has both its edges), and values far from all others."""
        low, high = (quantile(self.ordered, share) for share in (0.05, 0.95))
        reach = _FAR * (high - low) or self.ordered[-1] - self.ordered[0]
        near = [value for value in self.ordered if low - reach <= value <= high + reach]
        far = [value for value in self.ordered if not low - reach <= value <= high + reach]
        low, high = near[0], near[-1]
        if low == high:
            return [low, high], [len(near)], far
        count = max(5, min(_BINS, round(2 * len(near) ** (1 / 3))))  # Rice's rule
        counts = [0] * count
        for value in near:
            counts[min(count - 1, int((value - low) / (high - low) * count))] += 1
        return [low + (high - low) * place / count for place in range(count + 1)], counts, far

    def document(self) -> dict[str, Any]:
        """The mapping that stands in the report's JSON document."""
        intervals = {"mean": self.mean_interval, "p95": self.p95_interval}
        return {
            "nominal": self.nominal,
            "mean": self.mean,
            "sd": self.deviation,
            **{f"p{round(100 * share)}": self.quantile(share) for share in (0.05, 0.5, 0.95, 0.99)},
            "interval_95": {name: None if ends is None else list(ends) for name, ends in intervals.items()},
        }


@dataclass(frozen=True)
class CauseEffect:
    """What one cause does; means over the same runs, with the same draws."""

    cause: str
    alone_s: float
    """the step with this cause alone"""
    removed_s: float
    """the step with all others"""
    exposed_s: float
    """what removing it would save: mean of the differences, run by run"""


@dataclass(frozen=True)
class Slowest:
    """Ranks that were the slowest of a run."""

    ranks: str
    share: float
    """of the runs"""


@dataclass(frozen=True, eq=False)
class RunStatistics:
    """Many runs of one step."""

    step_times: Spread
    """[s]"""
    over: Over
    """what differs from run to run: the step, or the cluster that it is simulated on"""
    seed: int = 0
    causes: tuple[CauseEffect, ...] = ()
    """the most expensive first"""
    cause_runs: int = 0
    """over how many runs those are means"""
    slowest: tuple[Slowest, ...] = ()
    method: str = ""
    """how the runs were found"""
    steps: RunStatistics | None = None
    """with `over` clusters, where steps vary, too: steps on the undisturbed cluster. The two are never pooled"""
    together: Spread | None = None
    """there: runs that are another cluster and another step each; only their mean is of any use"""

    @property
    def runs(self) -> int:
        """How many."""
        return len(self.step_times.values)

    @property
    def expected(self) -> float:
        """Mean step of a training [s], over all that varies: what an estimate rests on."""
        return (self.step_times if self.together is None else self.together).mean

    def document(self, tokens: float | None) -> dict[str, Any]:
        """The mapping that stands in the report's JSON document; `tokens` of a step, None for models without sequences."""
        times = self.step_times
        return {
            "runs": self.runs,
            "seed": self.seed,
            "over": self.over,
            "step_time_s": times.document(),
            "tokens_per_s": None if tokens is None or not times.ordered[0] else times.mapped(lambda time: tokens / time).document(),
            "by_cause": [{"cause": one.cause, **_seconds(one)} for one in self.causes],
            "by_cause_runs": self.cause_runs,
            "slowest": [{"ranks": one.ranks, "share": one.share} for one in self.slowest],
            "method": self.method,
            "sampled_s": list(times.values) if self.runs <= LISTED else None,
            "steps": None if self.steps is None else self.steps.document(tokens),
            "together": None if self.together is None else means(self.together),
        }


def _seconds(one: CauseEffect) -> dict[str, float]:
    return {"alone_s": one.alone_s, "removed_s": one.removed_s, "exposed_s": one.exposed_s}


def means(spread: Spread) -> dict[str, Any]:
    """The mean of runs and its interval, for a document."""
    document = spread.document()
    return {"mean": document["mean"], "interval_95": {"mean": document["interval_95"]["mean"]}}


def runs_of(document: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a report's document says of many runs; None where there is one, whatever breaks in it."""
    varied: Mapping[str, Any] | None = None if document is None else document.get("variability")
    return None if varied is None or "step_time_s" not in varied else varied


def paired(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Spread | None:
    """Differences of the step time of two reports' variability, run by run [s]; None unless their runs have the same draws."""
    if first is None or second is None or (first["seed"], first["over"]) != (second["seed"], second["over"]):
        return None
    one, other = first["sampled_s"], second["sampled_s"]
    if not one or not other:
        return None
    differences = tuple(b - a for a, b in zip(one, other, strict=False))
    return Spread(differences, second["step_time_s"]["nominal"] - first["step_time_s"]["nominal"])


def most_expensive(causes: Sequence[CauseEffect]) -> tuple[CauseEffect, ...]:
    """By what removing them would save."""
    return tuple(sorted(causes, key=lambda one: (-one.exposed_s, one.cause)))
