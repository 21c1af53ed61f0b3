"""How far the ratio of two predictions may be off: what decides whether one choice is really faster than another.

Two predictions of one stack on one machine share most of their errors, so their ratio is better known than either, and overlapping bands
say little. Here the ratio is judged by pairs of published runs of one source that differ in the same kinds of things as the two choices
do, each predicted without its family: the error of the pair's ratio is the ratio of the errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from parsim.scenario.confidence import SHARE, KnownRun, known_runs

NAMED = ("gpu", "stack", "precision", "strategy", "gpus", "parameters")
"""what two jobs may differ in; what else differs (batch, schedule, recomputation) is none of these"""
WORDS = {
    "gpu": "the GPU", "stack": "the software stack", "precision": "the type of matrix products", "strategy": "the kind of strategy",
    "gpus": "the number of GPUs", "parameters": "the model",
}  # fmt: skip
_MOST = 300
"""pairs of a source that are looked at, evenly spread"""


@dataclass(frozen=True, slots=True)
class RatioBand:
    """Factor to either side of a predicted ratio of two step times that holds 80 % of published pairs."""

    factor: float
    differing: tuple[str, ...]
    """keys of `NAMED` in which the pairs differ"""
    pairs: int
    sources: int
    alone: bool = True
    """the pairs differ in nothing else of `NAMED`"""

    def ties(self, ours: float, theirs: float) -> bool:
        """Whether the band of the ratio of two times holds 1."""
        return abs(math.log(ours / theirs)) <= math.log(self.factor)

    def words(self) -> str:
        """``of 300 published pairs that differ in the number of GPUs, 80 % have a ratio within 6 % of the predicted one``."""
        kinds = listed(self.differing) if self.alone else f"{listed(self.differing)}, and in more"
        pairs = f"{self.pairs} published pairs that differ in {kinds}"
        return f"of {pairs}, {100 * SHARE:.0f} % have a ratio within {100 * (self.factor - 1):.0f} % of the predicted one"


def listed(differing: Sequence[str]) -> str:
    """``the GPU and the number of GPUs``."""
    kinds = [WORDS[name] for name in differing]
    return " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1]))) if kinds else "none of the machine, the stack and the model"


def differing_in(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of `NAMED` in which the features of two jobs differ."""
    return tuple(name for name in NAMED if ours[name] != theirs[name])


def ratio_band(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> RatioBand | None:
    """The band of the ratio of two jobs with these features (keys `NAMED`); None where no published pair differs so."""
    return _band(differing_in(ours, theirs))


@cache
def _band(differing: tuple[str, ...]) -> RatioBand | None:
    return band_of(differing, known_runs())


def band_of(differing: Sequence[str], runs: Sequence[KnownRun]) -> RatioBand | None:
    """The same from some runs. Every source counts the same; pairs that differ in more than asked serve where none differ in just that."""
    wanted = set(differing)
    exact: dict[str, list[float]] = {}
    more: dict[str, list[float]] = {}
    sources: dict[str, list[KnownRun]] = {}
    for run in runs:
        if run.step_error is not None:
            sources.setdefault(run.source, []).append(run)
    for source, mine in sources.items():
        for one, other in combinations(mine, 2):
            kinds = {name for name in NAMED if getattr(one.features, name) != getattr(other.features, name)}
            if wanted <= kinds:
                error = abs(math.log1p(one.step_error or 0.0) - math.log1p(other.step_error or 0.0))
                (exact if kinds == wanted else more).setdefault(source, []).append(error)
    found = exact or more
    if not found:
        return None
    kept = {source: errors[:: -(-len(errors) // _MOST)] for source, errors in found.items()}
    weighted = sorted((error, 1.0 / len(errors)) for errors in kept.values() for error in errors)
    passed = 0.0
    for error, weight in weighted:
        passed += weight
        if passed >= SHARE * len(kept) - 1e-12:
            return RatioBand(math.exp(error), tuple(differing), sum(map(len, kept.values())), len(kept), bool(exact))
    raise AssertionError("the weights of all sources sum to their number")


def features_of(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The features of a report's JSON document; None in one that was written before it had them."""
    features: Mapping[str, Any] | None = document.get("confidence", {}).get("features")
    return features
