"""A training over weeks in words: what fails, what is saved, what is given; and the path that comes of it. All times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, inf
from typing import Literal

from parsim.simulation.failure_times import Strike

Kind = Literal["train", "save", "lost", "detect", "restart", "wait"]
Policy = Literal["restart", "elastic", "replica", "hot_spare"]


@dataclass(frozen=True)
class FailureCause:
    """One cause of failures of the job; all times in seconds."""

    name: str
    mtbf: float
    """mean time between failures of the whole job by this cause"""
    detect: float
    """from a failure until somebody notices"""
    restart: float
    """from then until training goes on"""
    repair: float = 0.0
    """for which the machine that failed is away; 0: none is exchanged"""
    in_memory: bool = False
    """a copy of the last checkpoint survives in the memory of another machine"""
    silent: bool = False
    """until somebody notices the job trains on, for nothing"""


@dataclass(frozen=True)
class GivenFailure:
    """A failure that strikes at a moment that somebody named."""

    cause: FailureCause
    strike: Strike
    mended: float = 0.0
    """wall time before which nothing can go on, whatever is exchanged; where replicas leave, before which these do not come back"""
    replicas: tuple[int, ...] = ()
    """all that it takes with it; none: the one where it strikes"""


@dataclass(frozen=True)
class Pace:
    """How fast training goes from a moment on."""

    at: float
    speed: float
    """work per time, of that with nothing broken; 0: it stands still"""
    cause: str = ""
    """what makes it so; empty: nothing any more"""


@dataclass(frozen=True)
class InterruptedTraining:
    """What happens over weeks; all times in seconds."""

    causes: tuple[FailureCause, ...]
    interval: float
    """training between two checkpoints"""
    stall: float
    """training stands still for this long to save"""
    horizon: float
    """wall time after which nobody looks any more"""
    lag: float = 0.0
    """from the end of the stall until the checkpoint is durable; at most interval + stall unless there are copies in memory"""
    policy: Policy = "restart"
    replicas: int = 1
    spares: int = 0
    """machines that stand by; 0: there is always one, at once"""
    restart: float = 0.0
    """of a planned stop, in which repaired replicas come back"""
    work: float = inf
    """after which the training is done"""
    seed: int = 0
    run: int = 0
    """which sample path of this seed"""
    given: tuple[GivenFailure, ...] = ()
    """failures that strike in every path, beside those that are drawn"""
    paces: tuple[Pace, ...] = ()
    """ascending in time; before the first training goes at its full speed"""
    bytes: float = 0.0
    """of a checkpoint [B]; 0: nobody says"""
    writing_speed: float = 1.0
    """work per time while a checkpoint is written in the background"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of wall time."""

    begin: float
    end: float
    kind: Kind
    cause: str = ""


@dataclass(frozen=True)
class TrainingRun:
    """One sample path."""

    training: InterruptedTraining
    wall: float
    work: float
    """useful work [s]"""
    pieces: tuple[Piece, ...]
    """they follow each other from 0 to `wall`"""
    failures: Mapping[str, int]
    """by cause, the most frequent first"""
    struck: tuple[tuple[float, str], ...]
    """when, and by which cause"""

    def spent(self, kind: Kind) -> float:
        """Wall time of a kind [s]."""
        return fsum(piece.end - piece.begin for piece in self.pieces if piece.kind == kind)

    @property
    def goodput(self) -> float:
        """Useful work over wall time."""
        return self.work / self.wall if self.wall else 1.0

    @property
    def ettr(self) -> float:
        """Effective training time ratio: wall time in which training went on that was kept; fewer replicas count as all."""
        return self.spent("train") / self.wall if self.wall else 1.0
