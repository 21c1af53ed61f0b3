"""Where each part of a model stands under the device's roofline, at the shapes of the job.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 2009: a part that does I FLOP per byte
can reach min(peak, I x memory bandwidth). Beside it stands what the kernel model says it does reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from parsim.kernel import Fixed, Kernel
from parsim.model.parts import PASSES, blocks_by_group, operators_by_part
from parsim.scenario.built import Built, clock_of, plan_of


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One kind of work in one group of equal blocks, forward and backward of one micro-batch on one rank."""

    group: str
    name: str
    flop: float
    bytes: float
    """that its kernels move [B]"""
    seconds: float
    """that its kernels take, alone on the device [s]"""

    @property
    def intensity(self) -> float:
        """[FLOP/B]."""
        return self.flop / self.bytes if self.bytes else 0.0

    @property
    def rate(self) -> float:
        """Reached [FLOP/s]."""
        return self.flop / self.seconds if self.seconds else 0.0

    @property
    def bandwidth(self) -> float:
        """Used [B/s]."""
        return self.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """The device's two limits, and the parts below them, the longest first."""

    device: str
    dtype: str
    peak: float
    """dense datasheet peak of the matmul type [FLOP/s]"""
    bandwidth: float
    """datasheet memory bandwidth [B/s]"""
    points: tuple[RooflinePoint, ...]

    @property
    def ridge(self) -> float:
        """FLOP per byte from which the peak, not the memory, is the limit."""
        return self.peak / self.bandwidth

    def limit(self, point: RooflinePoint) -> float:
        """What a part could reach [FLOP/s]."""
        return min(self.peak, point.intensity * self.bandwidth)

    def bound(self, point: RooflinePoint) -> str:
        """compute | memory."""
        return "compute" if point.intensity >= self.ridge else "memory"


def roofline(built: Built) -> Roofline:
    """The parts of a scenario's model on its device."""
    clock = clock_of(built)
    at = plan_of(built, clock).workload
    device = built.cluster.device(built.gpus[0])
    passes = PASSES if at.backward else PASSES[:1]
    points = []
    for group, count, block in blocks_by_group(built.model):
        for name, operators in operators_by_part(block).items():
            works = [operator.work(at.inside(block)) for operator in operators]
            kernels = [kernel for work in works for kernel in _kernels(work, passes)]
            flop = count * math.fsum(kernel.flop for kernel in kernels)
            moved = count * math.fsum(kernel.bytes for kernel in kernels if not isinstance(kernel, Fixed))
            points.append(RooflinePoint(group, name, flop, moved, count * math.fsum(map(clock, kernels))))
    points.sort(key=lambda point: -point.seconds)
    return Roofline(device.name, at.dtype, device.peak[at.dtype], device.bandwidth, tuple(point for point in points if point.seconds))


def _kernels(work: object, passes: tuple[str, ...]) -> Iterator[Kernel]:
    for key in passes:
        yield from getattr(work, key)
