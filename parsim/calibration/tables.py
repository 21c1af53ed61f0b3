"""What was measured, before it is written: rows with a time and how much it spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from parsim.kernel import Attention, Gemm

BYTES_PER_PARAMETER = 28
"""fp32 Adam: gradient, weight and two moments read, the latter three written: (1 + 2 x 3) x 4 B"""


@dataclass(frozen=True, slots=True)
class Timing:
    """A repeated measurement."""

    seconds: float
    """median [s]"""
    spread: float = 0.0
    """distance of the quartiles over the median"""


def timing(samples: Sequence[float]) -> Timing:
    """Median and spread of repeated times [s]."""
    ordered = sorted(samples)
    middle = median(ordered)
    if len(ordered) < 4 or middle <= 0:
        spread = (ordered[-1] - ordered[0]) / middle if middle > 0 else 0.0
    else:
        quarter = len(ordered) // 4
        spread = (ordered[-1 - quarter] - ordered[quarter]) / middle
    return Timing(middle, spread)


@dataclass(frozen=True, slots=True)
class Product:
    """A measured matrix product."""

    shape: Gemm
    step: str
    """forward | backward_input | backward_weight"""
    time: Timing


@dataclass(frozen=True, slots=True)
class Core:
    """A measured attention core."""

    shape: Attention
    time: Timing


@dataclass(frozen=True, slots=True)
class Copy:
    """A measured copy inside the device's memory."""

    bytes: int
    """read plus written [B]"""
    time: Timing


@dataclass(frozen=True, slots=True)
class Step:
    """A measured fp32 Adam step."""

    kernels: str
    """fused | foreach"""
    parameters: int
    time: Timing

    @property
    def bytes(self) -> int:
        """What any implementation must move [B]."""
        return BYTES_PER_PARAMETER * self.parameters


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """A measured collective, with sizes as nccl-tests counts them."""

    kind: str
    ranks: int
    bytes: int
    time: Timing
    note: str = ""


@dataclass(slots=True)
class Tables:
    """Everything that one calibration or one trace measured."""

    gemm: list[Product] = field(default_factory=list)
    attention: list[Core] = field(default_factory=list)
    copy: list[Copy] = field(default_factory=list)
    optimizer: list[Step] = field(default_factory=list)
    kernel: Timing | None = None
    """the smallest kernel on the device"""
    issue: Timing | None = None
    """one operation on the host"""
    collectives: list[CollectiveTime] = field(default_factory=list)
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    source: str = ""
    notes: list[str] = field(default_factory=list)
    """what could not be measured, and why"""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data types of the products, in the order in which they were measured."""
        return tuple(dict.fromkeys(row.shape.dtype for row in self.gemm))


def best_rate(rows: Iterable[Product], dtype: str) -> float:
    """The fastest product of a data type [FLOP/s]; 0 if none was measured."""
    return max((row.shape.flop / row.time.seconds for row in rows if row.shape.dtype == dtype), default=0.0)


def streaming_rate(rows: Sequence[Copy]) -> float:
    """Rate of the largest copy [B/s], read plus write; 0 if none was measured."""
    largest = max(rows, key=lambda row: row.bytes, default=None)
    return 0.0 if largest is None else largest.bytes / largest.time.seconds
