"""A run in which kernels and collectives that overlap on a device slow each other down."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from parsim.program.program import Op
from parsim.simulation.engine import Run
from parsim.simulation.overlap import Interference, Overlap, private
from parsim.simulation.sharing import Bundle
from parsim.simulation.trace import LinkUse

if TYPE_CHECKING:
    from parsim.simulation.engine import Engine


class ElasticRun(Run):
    """As `Run`, but kernels of ranks that ever overlap with collectives have a rate that changes; see `Overlap`."""

    stretches = True

    def __init__(self, engine: Engine, interference: Interference) -> None:
        super().__init__(engine)
        self.overlap = Overlap(self.program, interference, self.network, self.env, self._end)
        self._bundles: dict[tuple[int, int], tuple[float, tuple[tuple[Bundle, float], ...]]] = {}

    def _capacity(self, link: int) -> float:
        return 1.0 if private(link) else super()._capacity(link)

    def _begin(self, op: Op) -> None:
        if op.collective is None:
            rank = self.overlap.elastic(op)
            if rank is None:
                super()._begin(op)
                return
            self.start[op.index] = self.env.now
            self.overlap.kernel_begins(op, rank)
            return
        if not self.overlap.beside(op):
            super()._begin(op)
            return
        self.start[op.index] = self.env.now
        self.overlap.collective_begins(op)
        if not self.overlap.slows_wires and (serial := self._serial.get(id(op.collective))) is not None:
            serial.runs += 1
            self.env.timeout(op.duration + serial.time, op).callbacks.append(self._alone)
            return
        latency, flows = self._flows(op)
        self.env.timeout(op.duration + latency, op).callbacks.append(partial(self._carry, flows))

    def _alone(self, event: Any) -> None:
        self._collective_over(event.value)

    def _flows(self, op: Op) -> tuple[float, tuple[tuple[Bundle, float], ...]]:
        key = (id(op.collective), id(op.lanes))
        if key not in self._bundles and op.collective is not None:
            cost = self._cost(op.collective)
            moving = [flow for flow in cost.flows if flow.volume]
            made = [
                (self.network.bundle((*flow.path, *self.overlap.wire_path(op, flow.cap, len(moving))), flow.cap, flow.weight), flow.volume)
                for flow in moving
            ]
            self._bundles[key] = (cost.latency, tuple(made))
        return self._bundles[key]

    def _carry(self, flows: tuple[tuple[Bundle, float], ...], event: Any) -> None:
        op = event.value
        if not flows:
            self._collective_over(op)
            return
        self._pending[op.index] = len(flows)
        for bundle, volume in flows:
            self.network.start(bundle, volume, self._flow_over, op)

    def _flow_over(self, op: Op) -> None:
        self._pending[op.index] -= 1
        if not self._pending[op.index]:
            del self._pending[op.index]
            self._collective_over(op)

    def _collective_over(self, op: Op) -> None:
        self.overlap.collective_ends(op)
        self._end(op)

    def _uses(self, makespan: float) -> dict[int, LinkUse]:
        return {link: use for link, use in super()._uses(makespan).items() if not private(link)}
