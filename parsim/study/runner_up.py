"""Why the next best strategy loses: which parts of its step take longer, and whether the difference can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.report.quantities import gib, percent, seconds
from parsim.report.timeline import KEYS
from parsim.report.verdict import WORDS
from parsim.scenario.ratios import features_of, ratio_band

_EQUAL = 1e-3
"""step times closer than this are the same"""
_NOTABLE = 0.05
"""share of the difference below which a part is not named"""
_NAMED = 3
_SECONDS = 1e-9
"""a difference below this is none [s]"""


def why_slower(best: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Sentences about the report `other` of a strategy beside that of the `best` (JSON documents of the same work)."""
    ours, theirs = float(best["step_time_s"]), float(other["step_time_s"])
    more = theirs / ours - 1.0
    if abs(more) <= _EQUAL:
        text = f"Its simulated step is as long, {seconds(theirs)}"
    else:
        text = f"Its simulated step takes {seconds(theirs)}, {percent(more)} longer"
    parts = _parts(best, other, theirs - ours)
    return " ".join(filter(None, (f"{text}{parts}.", _memory(best, other), _trust(best, other))))


def _parts(best: Mapping[str, Any], other: Mapping[str, Any], difference: float) -> str:
    """Which parts of the step differ, the longer ones first."""
    parts = {key: float(other["breakdown_s"][key]) - float(best["breakdown_s"][key]) for key in KEYS}
    least = max(_NOTABLE * abs(difference), _SECONDS)
    notable = sorted((key for key in parts if abs(parts[key]) >= least), key=lambda key: -abs(parts[key]))[:_NAMED]
    longer = [f"{seconds(parts[key])} more {_word(key)}" for key in notable if parts[key] > 0]
    shorter = [f"{seconds(-parts[key])} less {_word(key)}" for key in notable if parts[key] < 0]
    if longer and shorter:
        return f": {_joined(longer)}, and only {_joined(shorter)}"
    return f": {_joined(longer or shorter)}" if longer or shorter else ""


def _memory(best: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How the peaks differ, where they do in what is printed."""
    ours, theirs = (gib(int(one["memory"]["peak_bytes"])) for one in (best, other))
    return "" if ours == theirs else f"Its peak is {theirs} GiB instead of {ours} GiB."


def _trust(best: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Whether published runs tell two strategies so close apart."""
    ours, theirs = (features_of(one) for one in (best, other))
    band = ratio_band(ours, theirs) if ours and theirs else None
    if band is None:
        return ""
    estimates = [float(one["estimate"]["step_time_s"]) for one in (best, other)]
    if not band.ties(*estimates):
        return ""
    within = percent(band.factor - 1.0)
    return f"Simulation cannot tell them apart: predicted ratios of published runs are off by up to {within}. Measure a few steps of both."


def _word(key: str) -> str:
    return f"exposed {WORDS[key]}" if key.endswith("_comm") else "time in the optimizer step" if key == "optimizer" else WORDS[key]


def _joined(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
