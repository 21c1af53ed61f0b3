"""Who wins a comparison, and why: which parts of the step, or of the memory, make the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parsim.report.quantities import gib, percent, seconds
from parsim.report.timeline import KEYS
from parsim.report.variability import runs_of
from parsim.report.verdict import WORDS
from parsim.scenario.ratios import RatioBand, features_of, ratio_band
from parsim.study.differences import Document, fullest, has_band, same, work

TIE = 1e-3
"""Step times closer than this are the same: less memory wins then. No prediction is better than that."""
_NOTABLE = 0.05
"""share of a difference below which a part is not named"""
_NAMED = 3
_MANY = 1000
"""tokens or samples that a time is given for where steps do unequal work"""
_EXPOSED = "exposed "
_MEMORY = {"optimizer": "optimizer states", "context": "driver context"}


@dataclass(frozen=True)
class Winner:
    """The fastest variant that fits, and a sentence about it."""

    place: int | None
    """None where nothing fits"""
    criterion: str
    """estimate.step_time_s, or seconds_per_token or seconds_per_sample of the estimate where steps do unequal work"""
    why: str
    against: int | None = None
    """the variant that it is explained by"""
    parts_s: Mapping[str, float] | None = None
    """where the difference of time lies: the winner's parts less the other's [s]; they sum to the difference of the simulated times"""
    tie: int | None = None
    """the next best, where published pairs do not tell which of the two is faster"""


@dataclass(frozen=True)
class _Contest:
    """What can be chosen from; times are estimates per step, or per unit of work."""

    labels: Sequence[str]
    documents: Mapping[int, Document]
    fits: Mapping[int, bool]
    unit: str
    """empty: per step"""

    def time(self, place: int) -> float:
        return float(self.documents[place]["estimate"]["step_time_s"]) / self.share(place)

    def simulated(self, place: int) -> float:
        return float(self.documents[place]["step_time_s"]) / self.share(place)

    def share(self, place: int) -> float:
        """What the times of a step are divided by."""
        return (work(self.documents[place])[0] or 1.0) if self.unit else 1.0

    def peak(self, place: int) -> int:
        return int(self.documents[place]["memory"]["peak_bytes"])

    def cost(self, place: int) -> float:
        """Of the whole training; 0 where it has none."""
        return float(self.documents[place].get("cost_to_train") or 0.0)

    def text(self, place: int) -> str:
        time, of = (self.time(place), "step") if not self.unit else (_MANY * self.time(place), f"{_MANY:,} {self.unit}s")
        if not has_band(self.documents[place]):
            return f"{seconds(time)} per {of}"
        return f"{seconds(time)} per {of}, simulated {seconds((_MANY if self.unit else 1) * self.simulated(place))}"


def winner(labels: Sequence[str], documents: Sequence[Document | None], baseline: int) -> Winner | None:
    """The fastest that fits; of equally fast ones the smallest, of these the cheapest. None if nothing was simulated."""
    known = {place: document for place, document in enumerate(documents) if document is not None}
    if not known:
        return None
    units = {work(document)[1] for document in known.values()}
    amounts = [work(document)[0] for document in known.values()]
    equal = len(units) == 1 and all(same(amount, amounts[0]) for amount in amounts)
    unit = "" if equal else units.pop() if len(units) == 1 else "sample"
    contest = _Contest(labels, known, {place: bool(document["memory"]["fits"]) for place, document in known.items()}, unit)
    criterion = f"seconds_per_{unit}" if unit else "estimate.step_time_s"
    fitting = [place for place in known if contest.fits[place]]
    if not fitting:
        closest = max(known, key=lambda place: int(known[place]["memory"]["headroom_bytes"]))
        lacking = -int(known[closest]["memory"]["headroom_bytes"])
        words = f", {gib(lacking)} GiB too much" if lacking > 0 else ""
        return Winner(None, criterion, f"None fits; {labels[closest]} comes closest{words}.")
    fastest = min(contest.time(place) for place in fitting)
    tied = [place for place in fitting if contest.time(place) <= fastest * (1.0 + TIE)]
    chosen = min(tied, key=lambda place: (contest.peak(place), contest.cost(place), contest.time(place)))
    other = _other(contest, chosen, baseline)
    if other is None:
        return Winner(chosen, criterion, f"{labels[chosen]} is the only one that can be simulated: {contest.text(chosen)}.")
    parts = _parts(contest, chosen, other)
    rival, open_ratio = _undecided(contest, chosen)
    why = _sentence(contest, chosen, other, parts)
    if rival is not None and open_ratio is not None:
        why += f" {labels[chosen]} and {labels[rival]} are a tie: {open_ratio.words()}; measure a few steps of each to decide."
    return Winner(chosen, criterion, why, other, parts, rival)


def _undecided(contest: _Contest, chosen: int) -> tuple[int | None, RatioBand | None]:
    """The next best that fits, where nobody can say that it is slower, and the band that says so."""
    rest = [place for place in contest.documents if place != chosen and contest.fits[place]]
    rival = min(rest, key=contest.time, default=None)
    if rival is None:
        return None, None
    ours, theirs = (features_of(contest.documents[place]) for place in (chosen, rival))
    band = ratio_band(ours, theirs) if ours and theirs else None
    apart = abs(contest.time(chosen) - contest.time(rival)) > TIE * contest.time(chosen)
    return (rival, band) if band is not None and apart and band.ties(contest.time(chosen), contest.time(rival)) else (None, None)


def _other(contest: _Contest, chosen: int, baseline: int) -> int | None:
    """Whom to explain the winner by: the baseline; if it won or is not there, the next best."""
    if baseline != chosen and baseline in contest.documents:
        return baseline
    rest = [place for place in contest.documents if place != chosen]
    return min(rest, key=lambda place: (not contest.fits[place], contest.time(place)), default=None)


def _parts(contest: _Contest, chosen: int, other: int) -> dict[str, float]:
    ours, theirs = contest.documents[chosen]["breakdown_s"], contest.documents[other]["breakdown_s"]
    return {key: float(ours[key]) / contest.share(chosen) - float(theirs[key]) / contest.share(other) for key in KEYS}


def _sentence(contest: _Contest, chosen: int, other: int, parts: Mapping[str, float]) -> str:
    name, rival = contest.labels[chosen], contest.labels[other]
    ours, theirs = contest.time(chosen), contest.time(other)
    alone = sum(contest.fits.values()) == 1
    if not contest.fits[other]:
        head = f"{name} is {'the only one' if alone else 'the fastest'} that fits, {contest.text(chosen)}"
        lack = f"{rival} needs {_lack(contest, other)}"
        return f"{head}; {lack}{_saved(contest, chosen, other)}{_gpus(contest, chosen, other)}{_quicker(contest, chosen, other)}."
    if abs(ours - theirs) <= TIE * max(ours, theirs):
        saved = contest.peak(other) - contest.peak(chosen)
        gain = f" and needs {gib(saved)} GiB less memory{_saved(contest, chosen, other)}" if saved > 0 else ""
        return f"{name} is as fast as {rival} ({contest.text(chosen)}){gain}{_quicker(contest, chosen, other)}."
    head = f"{name} wins: {contest.text(chosen)}, {percent(1.0 - ours / theirs)} less than {rival} ({contest.text(other)})"
    shorter = contest.simulated(other) - contest.simulated(chosen)
    because = _because(contest, parts, shorter) if shorter > 0 else f"; simulated it is no faster, but {_despite(contest, chosen, other)}"
    return f"{head}{because}{_gpus(contest, chosen, other)}{_quicker(contest, chosen, other)}."


def _despite(contest: _Contest, chosen: int, other: int) -> str:
    """Why what is not simulated to be faster is estimated to be."""
    ours, theirs = (runs_of(contest.documents[place]) for place in (chosen, other))
    if (ours is None) == (theirs is None):
        reason = "its step varies less" if ours is not None else None
        return reason or f"published runs like {contest.labels[other]} exceed their simulation by more"
    return "only one of the two has runs in which things vary: give both the same variability"


def _because(contest: _Contest, parts: Mapping[str, float], gain: float) -> str:
    """The largest parts of a difference of time, the ones that help first."""
    many = _MANY if contest.unit else 1
    notable = sorted((key for key in parts if abs(parts[key]) >= _NOTABLE * gain), key=lambda key: -abs(parts[key]))[:_NAMED]
    less = [f"{seconds(-many * parts[key])} less {_word(key)}" for key in notable if parts[key] < 0]
    more = [f"{seconds(many * parts[key])} more {_word(key)}" for key in notable if parts[key] > 0]
    of = ": simulated, " if any(map(has_band, contest.documents.values())) else ": "
    words = f"{of}{_joined(less)}" if less else ""
    return f"{words}{', against ' if words else of}{_joined(more)}" if more else words


def _word(key: str) -> str:
    return f"{_EXPOSED}{WORDS[key]}" if key.endswith("_comm") else WORDS[key]


def _lack(contest: _Contest, place: int) -> str:
    memory = contest.documents[place]["memory"]
    capacity = int(memory["capacity_bytes"]) - int(memory["reserve_bytes"])
    host = int(memory["headroom_bytes"]) >= 0
    return "more host memory than a node has" if host else f"{gib(contest.peak(place))} of {gib(capacity)} GiB"


def _saved(contest: _Contest, chosen: int, other: int) -> str:
    """Which categories of the fullest device make the difference of memory."""
    ours, theirs = fullest(contest.documents[chosen]), fullest(contest.documents[other])
    if ours is None or theirs is None:
        return ""
    gains = {key: int(theirs["at_peak"][key]) - int(ours["at_peak"][key]) for key in ours["at_peak"]}
    total = contest.peak(other) - contest.peak(chosen)
    notable = sorted((key for key, gain in gains.items() if gain > max(2 * _NOTABLE * total, 0)), key=lambda key: -gains[key])[:_NAMED]
    words = [f"{gib(gains[key])} GiB less of {_MEMORY.get(key, key)}" for key in notable]
    return f" ({_joined(words)})" if words else ""


def _gpus(contest: _Contest, chosen: int, other: int) -> str:
    """What it costs in GPUs, where that differs."""
    ours, theirs = (int(contest.documents[place]["ranks"]["total"]) for place in (chosen, other))
    if ours == theirs:
        return ""
    ratio = contest.time(chosen) * ours / (contest.time(other) * theirs) - 1.0
    cost = f"{percent(abs(ratio))} {'more' if ratio > 0 else 'fewer'} GPU-seconds" if abs(ratio) > TIE else "as many GPU-seconds"
    return f"; on {ours} GPU{'s' * (ours != 1)} instead of {theirs}, {cost}"


def _quicker(contest: _Contest, chosen: int, other: int) -> str:
    """The fastest of those that would be faster, but do not fit."""
    faster = [
        place
        for place in contest.documents
        if not contest.fits[place] and place != other and contest.time(place) < contest.time(chosen) * (1.0 - TIE)
    ]
    if not faster:
        return ""
    best = min(faster, key=contest.time)
    return f"; {contest.labels[best]} would take {contest.text(best)}, but needs {_lack(contest, best)}"


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def thriftiest(labels: Sequence[str], documents: Sequence[Document | None]) -> tuple[int, str] | None:
    """The variant with the lowest peak, and a sentence; None where no memory was simulated."""
    known: dict[int, Any] = {place: document["memory"]["peak_bytes"] for place, document in enumerate(documents) if document is not None}
    known = {place: peak for place, peak in known.items() if peak}
    if len(known) < 2:
        return None
    place = min(known, key=lambda one: int(known[one]))
    if same(float(known[place]), float(max(known.values()))):
        return place, f"All need {gib(int(known[place]))} GiB at the peak."
    return place, f"Least memory: {labels[place]}, {gib(int(known[place]))} GiB at the peak; most: {gib(int(max(known.values())))} GiB."
