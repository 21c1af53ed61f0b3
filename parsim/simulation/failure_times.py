"""When failures strike: draws that depend on nothing but the seed, the run and the cause."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

_AT_ONCE = 64


class Strike(NamedTuple):
    """One failure."""

    at: float
    """time since the training began [s]"""
    where: float = 0.0
    """which part of the job is hit, in [0, 1)"""


def drawn(mtbf: float, cause: str, seed: int, run: int = 0) -> Iterator[Strike]:
    """Failures at a constant rate, without end.

    The generator is counter based (Philox) and keyed by seed, run and cause, so that another cause, another order of events or
    another number of runs changes no draw; a rate that is k times higher brings the same failures k times as early.
    """
    key = int.from_bytes(blake2b(f"failures/{run}/{cause}".encode(), digest_size=8).digest(), "little")
    source = np.random.Generator(np.random.Philox(key=np.array([seed, key], dtype=np.uint64)))
    now = 0.0
    while True:
        gaps, places = source.standard_exponential(_AT_ONCE), source.random(_AT_ONCE)
        for gap, place in zip(gaps.tolist(), places.tolist(), strict=True):
            now += gap * mtbf
            yield Strike(now, place)
