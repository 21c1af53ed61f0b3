"""What a collective asks of the links: the shape in which communication costs reach the engine."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Flow(NamedTuple):
    """One channel of a collective: all its edges advance together at one rate.

    Alone on its links a flow runs at `cap`, so an uncontended collective takes exactly its idle-fabric time.
    """

    path: tuple[tuple[int, float], ...]
    """(directed link id, bytes on that link per byte of progress)"""
    volume: float
    """bytes of progress [B]"""
    cap: float
    """highest rate [B/s], finite"""
    weight: float = 1.0
    """share under contention (weighted max-min)"""


class CollectiveCost(NamedTuple):
    """Cost of one collective: latency first (it occupies no link), then all flows; done when the last flow is."""

    latency: float
    flows: tuple[Flow, ...]
    algorithm: str = "ring"
    protocol: str = "simple"
    blocks: int = 0
    """CUDA blocks of its kernel on every member; 0: not known"""

    @property
    def time(self) -> float:
        """Time on an idle fabric [s]."""
        return self.latency + max((flow.volume / flow.cap for flow in self.flows), default=0.0)


class CollectiveFacts(Protocol):
    """What a collective must say about itself (`parsim.program.Collective` does)."""

    @property
    def kind(self) -> str:
        """all_reduce, all_gather, ..."""

    @property
    def group(self) -> tuple[int, ...]:
        """Global ranks that take part."""

    @property
    def bytes(self) -> int:
        """Size by nccl-tests semantics [B]."""
