"""What breaks or changes while a step runs: links that carry less, ranks that are slow for a while, stand still or are gone. Times in s."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

Capacities = tuple[tuple[int, float], ...]
"""(link, what it carries [B/s])"""


_SAME = 1e-9
"""of a retry timer: a link that is back so long after a retry was back at it"""


@dataclass(frozen=True)
class LinkFault:
    """Links that carry less from `begin` to `end` [s]."""

    name: str
    """what a report calls it"""
    capacities: Capacities
    begin: float
    end: float = inf
    give_up: float = inf
    """how long a transfer waits for a link that carries nothing [s]"""
    fallback: Capacities = ()
    """what links carry after that; none: the step fails"""
    retry: float = 0.0
    """after how long, again and again, a transfer looks whether the link is back [s]; 0: it goes on at once"""
    machine: int = -1
    """the machine with which it is exchanged; -1: none"""

    @property
    def links(self) -> tuple[int, ...]:
        """All that it changes."""
        return tuple(dict.fromkeys(link for link, _ in (*self.capacities, *self.fallback)))

    def waits(self, since: float) -> float:
        """Until when a transfer waits that began to wait at `since` [s]: the first retry that finds the link back."""
        if not self.retry or self.end == inf or since >= self.end:
            return self.end
        return since + ceil((self.end - since) / self.retry - _SAME) * self.retry

    def mark(self, link: int) -> tuple[float, ...]:
        """What it does to a link: two links of one mark change alike."""
        ways = (dict(self.capacities).get(link, -1.0), dict(self.fallback).get(link, -1.0))
        return ways if max(ways) >= 0 else ()


@dataclass(frozen=True)
class SlowWindow:
    """Ranks that compute at `speed` from `begin` to `end` [s]; 0: they stand still."""

    name: str
    ranks: tuple[int, ...]
    speed: float
    begin: float
    end: float = inf


@dataclass(frozen=True)
class RankFault:
    """Ranks that compute no more from `begin` on."""

    name: str
    ranks: tuple[int, ...]
    kind: Literal["crash", "hang"]
    begin: float
    notice: float
    """crash: time until somebody knows; hang: how long a collective waits for a member before the job is given up [s]"""


Fault = LinkFault | SlowWindow | RankFault
