"""The courses of the blocks of a program: how long their transfers take and what they take from kernels beside them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from parsim.program.blocks import Body, Segment
from parsim.program.passes import Item
from parsim.program.program import COMPUTE, OFFLOAD, Collective, Lane, Op
from parsim.simulation.blocks import Course, Inside, Loads
from parsim.simulation.overlap import Interference
from parsim.simulation.paths import Paths
from parsim.simulation.serial import Serial


class Courses:
    """The courses of bodies; equal ones share one."""

    def __init__(self, memory_bound: Mapping[str, float], serial: Mapping[int, Serial], interference: Interference | None) -> None:
        self._memory_bound = memory_bound
        self._serial = serial
        self._interference = interference
        self._shared: dict[Hashable, Paths] = {}
        self._known: dict[Body, Paths] = {}
        self._kernels: dict[tuple[float, float], Paths] = {}
        self._rates: dict[tuple[Loads, float], float] = {}
        self._loads: dict[int, Any] = {}

    def of(self, body: Body) -> Paths:
        if (found := self._known.get(body)) is None:
            times = tuple([self._serial[id(collective)].time for collective, _, _ in body.uses])
            loads = tuple([self._load(*use) for use in body.uses])
            key = (body.shape, body.speed, times, loads)
            if (found := self._shared.get(key)) is None:
                known: dict[Hashable, tuple[float, Any]] = {
                    (spec, lanes): (time, load) for (spec, lanes, _), time, load in zip(body.shape.uses, times, loads, strict=True)
                }
                found_in = [(item, known.get((item.collective, item.lanes), (0.0, None))) for item in body.shape.items]
                inside = [self._inside(item, body.speed, time, load) for item, (time, load) in found_in]
                found = self._shared[key] = Paths(Course(inside, body.shape.segments, self._rate))
            self._known[body] = found
        return found

    def of_kernel(self, op: Op) -> Paths:
        """A kernel that is an op of its own."""
        bound = self._memory_bound.get(op.name, 0.0)
        key = (op.duration, bound)
        if (found := self._kernels.get(key)) is None:
            inside = Inside(kernel=True, seconds=op.duration, memory_bound=bound, load=None)
            found = self._kernels[key] = Paths(Course([inside], [Segment(0, 1, ((),), (0,))], self._rate))
        return found

    def _inside(self, item: Item, speed: float, time: float, load: Any) -> Inside:
        kernel = item.collective is None and item.lanes[0] == COMPUTE and item.duration > 0
        bound = self._memory_bound.get(item.name, 0.0) if kernel else 0.0
        return Inside(kernel, item.duration / speed + time, bound, load)

    def _load(self, collective: Collective, lanes: tuple[Lane, ...], _: int) -> Any:
        """What a transfer inside takes from kernels beside it."""
        if lanes[0].name == COMPUTE or collective.axis == OFFLOAD:
            return None
        return self.load(collective)

    def load(self, collective: Collective) -> Any:
        """What a transfer takes from kernels beside it."""
        if self._interference is None:
            return None
        if id(collective) not in self._loads:
            self._loads[id(collective)] = self._interference.load(collective)
        return self._loads[id(collective)]

    def _rate(self, loads: Loads, memory_bound: float) -> float:
        if not loads or self._interference is None:
            return 1.0
        key = (loads, memory_bound)
        if (rate := self._rates.get(key)) is None:
            rate = self._rates[key] = self._interference.compute_rate(loads, memory_bound)
        return rate
