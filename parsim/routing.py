"""How many places a token visits that goes to several experts: what a model asks of an exchange that sends it to each place once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb, fsum, gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DRAWN, MOST_SCORES = 20_000, 10_000_000
"""tokens that are drawn where routing is limited to groups (the mean of places is then known to 0.002), and scores at most"""


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts spread over `slots` ranks in order, as many on each; every token visits `top_k` of them, all alike."""

    experts: int
    """E"""
    top_k: int
    """K"""
    slots: int
    """ranks that hold all experts together (ep)"""
    width: int = 1
    """ranks that share the width of each expert: all of them get its tokens (etp)"""
    groups: int = 0
    """groups of neighbouring experts among which a token chooses first (DeepSeek-V3's nodes); 0: no such choice"""
    kept: int = 0
    """groups that it chooses"""
    in_turn: bool = False
    """token t visits experts t K to t K + K - 1, modulo E, instead: neighbours, on few ranks"""

    def distinct(self, places: tuple[tuple[int, ...], ...]) -> float:
        """Expected number of `places` that a token visits, each given by the slots of its experts; in turn: their mean.

        K of E experts without replacement miss a place that has e of them with probability C(E - e, K) / C(E, K); the same expression
        as DeepEP's (deepseek-ai/DeepEP deep_ep/buffers/elastic.py, get_theoretical_num_sms). Routing that is limited to groups
        chooses those whose best two experts score most together, so that nearly every chosen group is visited: scores
        are drawn (DeepSeek-V3, arXiv 2412.19437, section 2.1.2; Megatron-LM: moe_utils.py, group_limited_topk).

        >>> round(Routing(256, 8, 8).distinct(tuple((slot,) for slot in range(8))), 6)
        5.294652
        """
        if self.in_turn:
            return self._counted(places)
        if self.kept and self.kept < self.groups:
            return _drawn(self, places)
        each = self.experts // self.slots
        all_ways = comb(self.experts, self.top_k)
        return fsum(1 - comb(self.experts - each * len(place), self.top_k) / all_ways for place in places)

    def _counted(self, places: tuple[tuple[int, ...], ...]) -> float:
        """The mean over the tokens until the first expert is again the first."""
        each = self.experts // self.slots
        starts = range(0, self.experts, gcd(self.experts, self.top_k))
        slots = [{(first + k) % self.experts // each for k in range(self.top_k)} for first in starts]
        return sum(not visited.isdisjoint(place) for visited in slots for place in places) / len(starts)

    def visited(self) -> float:
        """Expected number of ranks of one copy of the experts that get a token."""
        return self.width * self.distinct(tuple((slot,) for slot in range(self.slots)))


@lru_cache(maxsize=64)
def _drawn(routing: Routing, places: tuple[tuple[int, ...], ...]) -> float:
    """The mean over tokens with independent scores, always the same ones."""
    visited = _visits(routing.experts, routing.top_k, routing.slots, routing.groups, routing.kept)
    return fsum(float(visited[:, list(place)].any(axis=1).mean()) for place in places)


@lru_cache(maxsize=4)
def _visits(experts: int, top_k: int, slots: int, groups: int, kept: int) -> NDArray[np.bool_]:
    """Which slots each drawn token visits, shape (tokens, slots)."""
    import numpy as np

    tokens = max(1, min(DRAWN, MOST_SCORES // experts))
    scores = np.random.default_rng(0).random((tokens, experts))
    grouped = scores.reshape(tokens, groups, -1)
    best = min(max(1, top_k // kept), grouped.shape[2])
    worth = np.partition(grouped, -best, axis=2)[:, :, -best:].sum(axis=2)
    allowed = np.zeros((tokens, groups), dtype=bool)
    np.put_along_axis(allowed, np.argpartition(worth, -kept, axis=1)[:, -kept:], values=True, axis=1)
    scores = np.where(allowed.repeat(experts // groups, axis=1), scores, -1.0)
    winners = np.argpartition(scores, -top_k, axis=1)[:, -top_k:]
    visited = np.zeros((tokens, slots), dtype=bool)
    visited[np.arange(tokens)[:, None], winners // (experts // slots)] = True
    return visited
