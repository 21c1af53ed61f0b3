"""What breaks while a step runs, as `variability.faults` says it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import model_validator

from parsim.scenario.values import Choice, Flag, JsonSchema, Kind, Quantity, Section, Text, Whole, shown
from parsim.units import physical

_DAY = 86400.0
LATEST = 100 * 365 * _DAY
"""moment at which something may break [s]"""
_TIME = Quantity("time", LATEST)
_OPTIONAL_TIME = Quantity("time", LATEST, optional=True)
_AUTO_TIME = Quantity("time", _DAY, ("auto",))
_SHARE = re.compile(r"[x×] ?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?)")


@dataclass(frozen=True)
class Less:
    """What a link still carries."""

    share: float | None
    """of its capacity; None: `rate` says it"""
    rate: float = 0.0
    """[B/s]"""
    text: str = ""
    """as written"""


@dataclass(frozen=True)
class LessKind(Kind):
    """A share of a link's capacity, ``x0.5``, or a rate, ``10 GB/s``."""

    def check(self, value: Any) -> Any:
        if value is None or isinstance(value, Less):
            return value
        if isinstance(value, str) and (match := _SHARE.fullmatch(value.strip())):
            share = float(match[1])
            if not (math.isfinite(share) and share <= 1):
                raise ValueError(f"{shown(value)} is more than the link has; write a share from x0 to x1")
            return Less(share, text=f"x{share:g}")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value:
            raise ValueError(f'{shown(value)} is not a share or a rate; write "x{value:g}" or "{value:g} GB/s"')
        return Less(None, physical(value, "rate"), str(value))

    def json_schema(self) -> JsonSchema:
        rate = Quantity("rate", optional=True).json_schema()
        return {"anyOf": [{"type": "string", "pattern": "^[x×] ?[0-9.]+([eE][+-]?[0-9]+)?$", "examples": ["x0.5"]}, *rate["anyOf"]]}


class FaultSection(Section):
    """A link or NIC that carries less or nothing, or a rank or node that crashes or hangs."""

    link: Annotated[Any, Text("leaf0-spine", optional=True)] = None
    """both directions between two vertices, leaf0-spine or node0.gpu0-nvswitch; one with leaf0->spine"""
    nic: Annotated[Any, Text("node3/nic2", optional=True)] = None
    """the links between a NIC and the fabric"""
    rank: Annotated[Any, Whole(0, 10**7, optional=True)] = None
    """a rank that crashes or hangs"""
    node: Annotated[Any, Whole(0, 10**6, optional=True)] = None
    """all ranks of a machine"""
    at: Annotated[float, _TIME]
    """when it happens, from the begin of the step on; with economics.horizon, from that of the training"""
    until: Annotated[Any, _OPTIONAL_TIME] = None
    """of links and NICs: when it is over; left out: not within the step"""
    bandwidth: Annotated[Any, LessKind()] = None
    """of links and NICs: what is left, x0.5 or 10 GB/s"""
    down: Annotated[bool, Flag()] = False
    """of links and NICs: nothing is left"""
    fallback: Annotated[Any, Choice(("none", "neighbour", "respread"), {"neighbor": "write neighbour"})] = "none"
    """of a NIC that is down, what its transfers do: none = they fail, and the job with them (NCCL's default); neighbour = they share the
    next NIC; respread = all others of the machine take an equal part"""
    give_up: Annotated[Any, _AUTO_TIME] = "auto"
    """how long a transfer waits for what is down; auto = InfiniBand's retries as NCCL sets them, 30.06 s, or the watchdog of collectives
    where nothing retries; 0 s with a fallback: `at` is when it has taken over"""
    retry: Annotated[Any, _AUTO_TIME] = "0 s"
    """of links and NICs that are down and come back: after how long, again and again, a transfer that waits tries anew; auto =
    InfiniBand's timer as NCCL sets it, 4.29 s, or 0 s where nothing retries; 0 s: it goes on at once"""
    kind: Annotated[str, Choice(("crash", "hang"))] = "crash"
    """of ranks: crash = the process dies; hang = it never arrives"""
    detect: Annotated[Any, _AUTO_TIME] = "auto"
    """of ranks: time until a crash is noticed (auto = 10 s), or how long others wait for a rank that hangs (auto = 10 min)"""

    @property
    def subject(self) -> str:
        """Which of the first four keys is given."""
        return next(name for name in ("link", "nic", "rank", "node") if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _consistent(self) -> FaultSection:
        given = [name for name in ("link", "nic", "rank", "node") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("exactly one of link, nic, rank and node; for example {nic: node3/nic2, at: 5 s, down: true}")
        wires = {"until", "bandwidth", "down", "fallback", "give_up", "retry"}
        outside = self.model_fields_set & ({"kind", "detect"} if given[0] in ("link", "nic") else wires)
        if outside:
            raise ValueError(f"{', '.join(sorted(outside))} says nothing about a {given[0]}; leave it out")
        if given[0] in ("link", "nic"):
            self._wire(given[0])
        return self

    def _wire(self, what: str) -> None:
        if self.down == (self.bandwidth is not None):
            raise ValueError("either down: true, or bandwidth, what is left; for example bandwidth: x0.5")
        nothing = self.down or self.bandwidth.share == 0
        if self.fallback != "none" and (what == "link" or not nothing):
            raise ValueError("a fallback is for a NIC that is down; leave it out")
        if "give_up" in self.model_fields_set and not nothing:
            raise ValueError("give_up applies only to links that are down; leave it out")
        if "retry" in self.model_fields_set and (not nothing or self.until is None):
            raise ValueError("retry applies only to links that are down and come back (until); leave it out")
        if self.until is not None and self.until <= self.at:
            raise ValueError(f"it is over (until, {self.until:g} s) before it happens (at, {self.at:g} s)")
