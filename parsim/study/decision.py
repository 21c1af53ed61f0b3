"""What decides a comparison, for its head: step time, memory or price, by how much, and whether the bands leave it open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parsim.report.quantities import gib, percent, seconds
from parsim.scenario.ratios import features_of, ratio_band
from parsim.study.comparison import ComparisonData
from parsim.study.differences import has_band, work
from parsim.study.winner import TIE, thriftiest
from parsim.units import format_count

_MANY = 1000
"""tokens or samples that a time is given for where steps do unequal work"""


@dataclass(frozen=True)
class Decision:
    """Who wins, and the reasons, one sentence each."""

    title: str
    lines: tuple[str, ...]
    open: bool = False
    """a tie, or nothing wins"""


@dataclass(frozen=True)
class _Times:
    """Estimated times, per step or per unit of work."""

    documents: Mapping[int, Mapping[str, Any]]
    unit: str
    """empty: per step"""

    def _share(self, place: int) -> float:
        return (work(self.documents[place])[0] or 1.0) / _MANY if self.unit else 1.0

    def of(self, place: int) -> float:
        """[s]"""
        return float(self.documents[place]["estimate"]["step_time_s"]) / self._share(place)

    def band(self, place: int) -> tuple[float, float] | None:
        """Of published runs alike [s]."""
        ends = self.documents[place]["estimate"]["step_time_band_s"]
        return None if ends is None else (ends[0] / self._share(place), ends[1] / self._share(place))


def decision(comparison: ComparisonData) -> Decision:
    """What to say at the head of a comparison."""
    won = comparison.winner
    if won is None:
        return Decision("Nothing could be simulated", tuple(f"{run.label}: {run.reason}" for run in comparison.runs), open=True)
    memory = thriftiest(comparison.labels, comparison.documents)
    rest = () if memory is None else (memory[1],)
    if won.place is None:
        return Decision("Nothing fits", (won.why, *rest), open=True)
    documents = {place: document for place, document in enumerate(comparison.documents) if document is not None}
    times = _Times(documents, "" if won.criterion == "estimate.step_time_s" else won.criterion.removeprefix("seconds_per_"))
    fitting = sorted((place for place in documents if documents[place]["memory"]["fits"] and place != won.place), key=times.of)
    label = comparison.labels[won.place]
    title = f"{label} wins: {_time(times, won.place)}"
    if won.tie is not None:
        title = f"{label} and {comparison.labels[won.tie]} are a tie: {_time(times, won.place)} and {_time(times, won.tie)}"
    decided = _decided(comparison, times, won.place, fitting)
    why = won.why if won.tie is None else won.why.replace(f"{label} wins: ", f"{label} is ahead: ", 1)
    explained = "step time decides" in decided and won.against == fitting[0]  # the reasons name the same numbers
    lines = [f"{decided.partition(':')[0]}. {why}"] if explained else [decided, why]
    lines += [*_bands(comparison, times, won.place, fitting), *rest, *_money(comparison)]
    return Decision(title, tuple(filter(None, lines)), won.tie is not None)


def _time(times: _Times, place: int) -> str:
    return f"{seconds(times.of(place))} per {f'{_MANY:,} {times.unit}s' if times.unit else 'step'}"


def _decided(comparison: ComparisonData, times: _Times, best: int, fitting: Sequence[int]) -> str:
    """Which number decides, and by how much."""
    if not fitting:
        only = "it is the only one that fits" if len(times.documents) > 1 else "nothing else could be simulated"
        return f"Memory decides: {only}." if len(times.documents) > 1 else f"No choice: {only}."
    rival = fitting[0]
    name, ours, theirs = comparison.labels[rival], times.of(best), times.of(rival)
    of = f" per {_MANY:,} {times.unit}s" if times.unit else ""
    if abs(ours - theirs) <= TIE * max(ours, theirs):
        peaks = [int(times.documents[place]["memory"]["peak_bytes"]) for place in (best, rival)]
        costs = [times.documents[place].get("cost_to_train") for place in (best, rival)]
        if peaks[0] == peaks[1] and costs[0] and costs[1] and costs[0] < costs[1]:
            more = percent(costs[1] / costs[0] - 1)
            return f"Price decides: {name} takes the same time{of} ({seconds(ours)}) and memory, and costs {more} more."
        if peaks[0] == peaks[1]:
            return f"Nothing decides: {name} takes the same time{of} ({seconds(ours)}) and the same memory."
        less = gib(peaks[1] - peaks[0])
        return f"Memory decides: {name} takes the same time{of} ({seconds(ours)}) and peaks {less} GiB higher."
    what = "The estimated step time" if any(map(has_band, times.documents.values())) else "The step time"
    return (
        f"{what} decides: {seconds(ours)}{of}, {percent(1 - ours / theirs)} less than the next best that fits, {name} ({seconds(theirs)})."
    )


def _bands(comparison: ComparisonData, times: _Times, best: int, fitting: Sequence[int]) -> list[str]:
    """Whether the errors of the predictions leave it open."""
    if not fitting:
        return []
    rival = fitting[0]
    ours, theirs = times.band(best), times.band(rival)
    if ours is None or theirs is None or abs(times.of(best) - times.of(rival)) <= TIE * times.of(best):
        return []
    ends = f"{_span(ours)} and {_span(theirs)}"
    if ours[1] < theirs[0]:
        return [f"Their 80 % bands do not overlap: {ends}."]
    if comparison.winner is not None and comparison.winner.tie is not None:
        return [f"Their 80 % bands overlap: {ends}."]
    features = [features_of(times.documents[place]) for place in (best, rival)]
    ratio = ratio_band(features[0], features[1]) if features[0] and features[1] else None
    if ratio is None:
        return [f"Their 80 % bands overlap ({ends}), and no pair of published runs differs as these two do: measure a few steps of each."]
    return [f"Their 80 % bands overlap ({ends}), but the two share most of that error: {ratio.words()}, so the difference is no tie."]


def _span(ends: tuple[float, float]) -> str:
    return f"{seconds(ends[0])} to {seconds(ends[1])}"


def _money(comparison: ComparisonData) -> list[str]:
    """The cheapest training, where several have a price in one currency."""
    costs = {
        place: document["estimate"]["cost_to_train"] or document["cost_to_train"]
        for place, document in enumerate(comparison.documents)
        if document is not None and document.get("cost") is not None and document.get("cost_to_train") is not None
    }
    currencies = {(comparison.documents[place] or {})["cost"]["currency"] for place in costs}
    if len(costs) < 2 or len(currencies) != 1:
        return []
    (currency,) = currencies
    least, most = min(costs, key=lambda place: costs[place]), max(costs, key=lambda place: costs[place])
    if costs[most] - costs[least] <= TIE * costs[most]:
        return [f"All cost the same to train: {_amount(costs[least])} {currency}."]
    cheap, dear = (f"{comparison.labels[place]}, {_amount(costs[place])} {currency}" for place in (least, most))
    return [f"Least cost to train: {cheap}; most: {dear}."]


def _amount(value: float) -> str:
    return format_count(value, digits=3) if value >= 1e5 else f"{value:,.0f}"
