"""What the channel search returns: rings, and how many of them run at which speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parsim.hardware.routes import Route


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """One channel inside a machine, in local link ids: closed, or in by a port, past the members and out by a port.

    Equal rings of one search are one object, so a ring is compared and hashed by identity.
    """

    order: tuple[int, ...]
    """local GPU indices in ring order; with a network, from the GPU where the ring comes in to the last one before it leaves"""
    hops: tuple[Route, ...]
    """closed: hops[i] leads from order[i] to order[i + 1]; with a network: port to first GPU, member to member, last GPU to port"""
    load: tuple[tuple[int, float], ...]
    """(directed link, times the ring crosses it)"""
    tier: int
    """worst path of a hop, those to and from the ports included (see `parsim.hardware.routes`)"""
    cap: float = math.inf
    """rate limit besides the links [B/s]"""
    entry: int = -1
    """port by which the ring comes in; -1 for a closed ring"""
    exit: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The channels of a group of GPUs of one machine; kept per question, so compared and hashed by identity."""

    channels: tuple[Ring, ...]
    count: int
    """channels; a ring that is run twice is listed twice"""
    speed: float
    """what the library plans for each [B/s]; count x speed ranks algorithms"""
    carried: float
    """what all channels together move, not rounded to a list of speeds [B/s]"""
    tier: int
    """worst path of any hop"""
    kind: Literal["nvlink", "pcie"]
    """worst wire between members; nvlink where there is none"""
    evaluations: int = 0
    """look-ups of a cheapest ring that the search took; 0 for closed forms"""

    @property
    def bandwidth(self) -> float:
        """Planned bandwidth of all channels [B/s]."""
        return self.count * self.speed

    @property
    def rate(self) -> float:
        """What each channel moves while all run [B/s]."""
        return self.carried / self.count


@dataclass(frozen=True, slots=True)
class Heads:
    """Channels of an all-reduce inside the NVSwitch: every GPU is the head of one."""

    count: int
    speed: float
    """of one head, from the list [B/s]; 0 where every entry is too fast"""
    unquantised: float
    """NVLink bandwidth of a GPU / (heads + 1) [B/s]"""


def make_ring(order: Sequence[int], hops: Sequence[Route], entry: int = -1, leave: int = -1) -> Ring:
    """A ring over the GPUs `order` by the routes `hops`."""
    load: dict[int, float] = {}
    for hop in hops:
        for link, coefficient in zip(hop.links, hop.coefficients, strict=True):
            load[link] = load.get(link, 0.0) + coefficient
    tier = max((hop.tier for hop in hops), default=0)
    cap = min((hop.cap for hop in hops), default=math.inf)
    return Ring(tuple(order), tuple(hops), tuple(load.items()), tier, cap, entry, leave)
