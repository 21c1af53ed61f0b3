"""The names by which people call the numbers of a report: ``bubble`` is ``bubble_fraction`` wherever a number is named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

SHORT: Mapping[str, str] = {
    "bubble": "bubble_fraction",
    "peak": "peak_bytes",
    "peak_memory": "peak_bytes",
    "memory": "peak_bytes",
    "memory.peak_bytes": "peak_bytes",
    "throughput": "tokens_per_s",
    "energy": "energy_J",
    "co2": "co2_kg",
    "mean_step_time": "step_time_s",
    "exposed": "exposed_communication",
    "breakdown": "breakdown_s",
}
"""what people write -> the report's key; a key without its unit (``step_time``) needs no entry"""
_UNITS = ("_s", "_bytes", "_fraction", "_J", "_kg", "_Bps")


def named(word: str, known: Collection[str], short: Mapping[str, str] = SHORT) -> str | None:
    """Which of `known` a word means: as it is, by a short name, in other letters (``Step time``), or without its unit; None: none."""
    plain = word.strip()
    lowered = plain.lower().replace("-", "_").replace(" ", "_")
    for text in (plain, lowered):
        if text in known:
            return text
        if (long := short.get(text, SHORT.get(text))) is not None and long in known:
            return long
    return next((lowered + unit for unit in _UNITS if lowered + unit in known), None)


def nearest(word: str, known: Collection[str], short: Mapping[str, str] = SHORT) -> str:
    """``did you mean 'x'?``, or an empty text."""
    words = [*known, *(name for name, long in {**SHORT, **short}.items() if long in known)]
    close = get_close_matches(word.strip().lower(), words, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""
