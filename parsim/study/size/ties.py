"""Which machines cannot be told from the best one: ties of the ranking, and pairs that published runs say nothing about.

The ranking follows estimates of the step time, and time, cost and energy of a training grow in proportion to it where the GPUs, the prices
and the failures are given. So the ratio of two costs is as far off as the ratio of the two step times, and that is known from pairs of
published runs (`parsim.scenario.ratios`). The number of GPUs is not an estimate: nothing is said about ties where it is minimised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parsim.report.quantities import percent
from parsim.scenario.ratios import RatioBand, differing_in, listed, ratio_band
from parsim.study.size.strategies import Configuration

Bands = Callable[[Mapping[str, Any], Mapping[str, Any]], RatioBand | None]
"""the band of the ratio of two step times, from the features of both jobs"""
_SETTLED = "measure a few steps of each to decide"


@dataclass(frozen=True, slots=True)
class Tie:
    """The best machine and another that is not known to be worse."""

    best: str
    other: str
    ratio: float
    """of what is minimised, the other's over that of the best"""
    differing: tuple[str, ...]
    """keys of `parsim.scenario.ratios.NAMED` in which the two jobs differ"""
    band: RatioBand | None
    """of the ratio; None: no published pair differs in these"""

    @property
    def verdict(self) -> str:
        """tie: the band of the ratio holds 1; unknown: published pairs do not tell.

        Two machines with the same GPU differ in what no published pair is described by, such as the network: a difference within the band
        is unknown there instead of a tie.
        """
        return "tie" if self.band is not None and "gpu" in self.differing else "unknown"

    @property
    def why(self) -> str:
        """One sentence: how far apart the two are, what published pairs say about that, and what would settle it."""
        apart = f"{percent(self.ratio - 1)} apart"
        if self.band is None:
            lack = f"there is no published pair that differs in {listed(self.differing)}"
            return f"published runs cannot separate {self.best} and {self.other} ({apart}): {lack}; {_SETTLED}"
        if self.verdict == "tie":
            return f"{self.best} and {self.other} are a tie, {apart}: {self.band.words()}; {_SETTLED}"
        network = "both have the same GPU, and published pairs do not say what another network does"
        return f"published runs cannot separate {self.best} and {self.other} ({apart}): {network}; {self.band.words()}; {_SETTLED}"

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        band = self.band
        return {
            "machines": [self.best, self.other], "verdict": self.verdict, "ratio": self.ratio, "differing": list(self.differing),
            "factor": None if band is None else band.factor, "pairs": 0 if band is None else band.pairs,
            "sources": 0 if band is None else band.sources, "why": self.why,
        }  # fmt: skip


def ties(ranked: Sequence[Configuration], minimise: str, bands: Bands = ratio_band) -> list[Tie]:
    """The others that cannot be told from the first one, in the order of the ranking.

    Left out are those that are known to be worse: farther from the first one than the band of the ratio of the two. Left out as well is
    what has no price, or costs nothing: it has no ratio.
    """
    if not ranked or minimise == "gpus":
        return []
    best = ranked[0]
    found = [_tie(best, other, minimise, bands) for other in ranked[1:]]
    return [tie for tie in found if tie is not None]


def _tie(best: Configuration, other: Configuration, minimise: str, bands: Bands) -> Tie | None:
    """None: the other is worse, or the two have no ratio."""
    ours, theirs = best.objective(minimise), other.objective(minimise)
    if not ours or not theirs:
        return None
    band = bands(best.features, other.features)
    if band is not None and not band.ties(ours, theirs):
        return None
    return Tie(best.machine, other.machine, theirs / ours, differing_in(best.features, other.features), band)
