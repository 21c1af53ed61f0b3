"""How time passes: an op begins when nothing blocks it, and its end unblocks others.

Waiting is a counter and an op is one SimPy timeout with one callback; lanes are already chains of dependencies in the
program. The program is read-only here: counters, starts and ends are the engine's own columns, so running a program
twice gives identical traces. `parsim.simulation.heap_run` does the same with fewer events.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from math import inf, isnan, nan
from typing import Any, Protocol

import simpy

from parsim.errors import DeadlockError, ParsimError
from parsim.hardware.background import Background
from parsim.hardware.flows import CollectiveCost
from parsim.program.blocks import BlockProgram
from parsim.program.program import Collective, Op, Program
from parsim.simulation.deadlock import explain
from parsim.simulation.network import Network
from parsim.simulation.others import OtherTraffic
from parsim.simulation.overlap import Interference
from parsim.simulation.serial import Serial, add_uses, serial_collectives
from parsim.simulation.sharing import Bundle
from parsim.simulation.trace import LinkUse, Trace


class Interconnect(Protocol):
    """What the engine asks of the hardware."""

    def cost(self, collective: Collective) -> CollectiveCost:
        """Latency and flows of a collective on an idle fabric."""

    def capacity(self, link: int) -> float:
        """Capacity of a link by id [B/s]."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector, and restore its state also after an exception.

    Ops point forward only, so a program is freed by reference counts; the collector would only walk it again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # what was built is old now: the next young collection need not walk it
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class Engine:
    """Runs a program on an interconnect: counters and a clock.

    An op without a collective takes its duration. A collective begins when all its members have arrived, waits for the
    op's duration and the collective's latency, then carries all its flows, and ends with the last of them.

    Parameters
    ----------
    program: what to run; never changed.
    interconnect: what collectives cost and links can carry; each distinct collective is asked for once.
    interference: how compute and communication slow each other down while they overlap; None: they do not.
    pause_collector: switch the cyclic garbage collector off during the run.
    capacity_changes: (time [s], link id, new capacity [B/s]) of links that change during the run.
    background: traffic of other jobs on the links; it is there from time 0 until the last op has ended.
    quick: only what contends is an event of SimPy (`parsim.simulation.heap_run`): the same figures to rounding. Programs with
        blocks always run like that, and those whose kernels slow transfers never.
    """

    def __init__(
        self,
        program: Program,
        interconnect: Interconnect,
        *,
        interference: Interference | None = None,
        pause_collector: bool = True,
        capacity_changes: Iterable[tuple[float, int, float]] = (),
        background: Iterable[Background] = (),
        quick: bool = False,
    ) -> None:
        self.program = program
        self.interconnect = interconnect
        self.interference = interference
        self.pause_collector = pause_collector
        self.capacity_changes = tuple(capacity_changes)
        self.background = tuple(background)
        self.quick = quick or isinstance(program, BlockProgram)

    def run(self) -> Trace:
        """Run the program from time 0 to the end of its last op.

        Raises DeadlockError if ops are left that can never begin or end, with the rank x step grid of those ops, and
        ParsimError if an op's duration or a flow is not a number that time can be made of.
        """
        with collector_paused() if self.pause_collector else nullcontext():
            run = self._run()
            try:
                return run.trace()
            finally:
                vars(run).clear()  # what it is made of refers back to it: the program would wait for the collector

    def _run(self) -> Run:
        both = self.interference is not None and self.interference.communication_rate(1.0) < 1
        if both and isinstance(self.program, BlockProgram):
            raise ParsimError("kernels in blocks slow no transfers: lower the program without blocks")
        if self.quick and not both:
            from parsim.simulation.heap_run import HeapRun

            return HeapRun(self)
        if self.interference is None:
            return Run(self)
        from parsim.simulation.elastic import ElasticRun

        return ElasticRun(self, self.interference)


class Run:
    """One run of an engine: the columns that it writes."""

    stretches = False
    """kernels may take longer than their durations"""

    def __init__(self, engine: Engine) -> None:
        self.program = engine.program
        self.interconnect = engine.interconnect
        self.changes = engine.capacity_changes
        self.env = simpy.Environment()
        self.network = Network(self.env, self._capacity)
        self.blockers = list(self.program.blockers)
        self.start = array("d", [nan]) * len(self.program.ops)
        self.end = array("d", [nan]) * len(self.program.ops)
        self._transfers: dict[int, tuple[float, tuple[tuple[Bundle, float, int], ...]]] = {}
        """id of a collective (kept alive by the program) -> latency [s], (bundle, bytes, equal flows) of its flows"""
        self._costs: dict[int, CollectiveCost] = {}
        self._others = OtherTraffic(engine.background, self.network, self.env)
        self._apart = self._others.links.union(link for _, link, _ in self.changes)
        """links that carry other traffic, or change"""
        self._serial: dict[int, Serial] = serial_collectives(self.program, self._cost, engine.interconnect.capacity, shared=self._apart)
        self._ended = 0
        """ops with smaller indices have ended"""
        self._pending: dict[int, int] = {}
        """op index -> flows still under way"""

    def _capacity(self, link: int) -> float:
        return self.interconnect.capacity(link)

    def trace(self) -> Trace:
        ops, blockers = self.program.ops, self.program.blockers
        for op in ops:
            if not 0 <= op.duration < inf:
                raise ParsimError(f"duration of {op!r} (={op.duration}) must be finite and >= 0 [s]")
        for time, link, capacity in self.changes:
            if not 0 <= time < inf:
                raise ParsimError(f"time of the change of link {link} (={time}) must be finite and >= 0 [s]")
            self.env.timeout(time, (link, capacity)).callbacks.append(self._change)
        self._others.begin()
        for op in ops:
            if not blockers[op.index]:
                self._begin(op)
        if self._others.repeats:
            self._others.run(self._over)
        else:
            self.env.run()
        if any(map(isnan, self.end)):
            raise DeadlockError(explain(self.program, self.start, self.end, self._stuck()))
        makespan = max(self.end, default=0.0)
        events = len(ops) + len(self.changes) + self.network.events
        return Trace(self.program, self.start, self.end, self._uses(makespan), events, self.stretches)

    def _over(self, thorough: bool) -> bool:
        """Whether no op will ever end any more; only if `thorough` those are found that cannot."""
        ops, end = self.program.ops, self.end
        while self._ended < len(ops) and not isnan(end[self._ended]):
            self._ended += 1
        if self._ended == len(ops) or not thorough:
            return self._ended == len(ops)
        if any(time > self.env.now for time, _, _ in self.changes):
            return False
        stuck = self._stuck()
        return all(isnan(start) or index in stuck for index, start in enumerate(self.start) if isnan(end[index]))

    def _uses(self, makespan: float) -> dict[int, LinkUse]:
        return add_uses(dict(self.network.use(until=makespan)), self._serial.values())

    def _begin(self, op: Op) -> None:
        env = self.env
        self.start[op.index] = env.now
        if op.collective is None:
            env.timeout(op.duration, op).callbacks.append(self._finish)
            return
        if (serial := self._serial.get(id(op.collective))) is not None:
            serial.runs += 1
            env.timeout(op.duration + serial.time, op).callbacks.append(self._finish)
            return
        latency, flows = self._transfers.get(id(op.collective)) or self._transfer(op.collective)
        env.timeout(op.duration + latency, op).callbacks.append(self._send if flows else self._finish)

    def _finish(self, event: Any) -> None:
        self._end(event.value)

    def _end(self, op: Op) -> None:
        self.end[op.index] = self.env.now
        blockers = self.blockers
        for other in op.after:
            index = other.index
            blockers[index] -= 1
            if not blockers[index]:
                self._begin(other)

    def _send(self, event: Any) -> None:
        op = event.value
        _, flows = self._transfers[id(op.collective)]
        if len(flows) == 1:
            bundle, volume, members = flows[0]
            self.network.start(bundle, volume, self._end, op, members=members)
            return
        self._pending[op.index] = len(flows)
        for bundle, volume, members in flows:
            self.network.start(bundle, volume, self._part, op, members=members)

    def _part(self, op: Op) -> None:
        """One of several flows of a collective has ended."""
        left = self._pending[op.index] - 1
        if left:
            self._pending[op.index] = left
        else:
            del self._pending[op.index]
            self._end(op)

    def _cost(self, collective: Collective) -> CollectiveCost:
        """What the interconnect says, asked once per distinct collective."""
        if (cost := self._costs.get(id(collective))) is None:
            cost = self._costs[id(collective)] = self.interconnect.cost(collective)
            if not 0 <= cost.latency < inf:
                raise ParsimError(f"latency of {collective} (={cost.latency}) must be finite and >= 0 [s]")
            for flow in cost.flows:
                if not 0 <= flow.volume < inf:
                    raise ParsimError(f"volume of a flow of {collective} (={flow.volume}) must be finite and >= 0 [B]")
        return cost

    def _transfer(self, collective: Collective) -> tuple[float, tuple[tuple[Bundle, float, int], ...]]:
        """Latency of a collective and its flows, equal ones counted; flows without bytes are left out."""
        cost = self._cost(collective)
        equal: Counter[tuple[Bundle, float]] = Counter()
        for flow in cost.flows:
            if flow.volume:
                equal[self.network.bundle(flow.path, flow.cap, flow.weight), flow.volume] += 1
        flows = tuple((bundle, volume, members) for (bundle, volume), members in equal.items())
        self._transfers[id(collective)] = cost.latency, flows
        return cost.latency, flows

    def _change(self, event: Any) -> None:
        link, capacity = event.value
        self.network.set_capacity(link, capacity)

    def _stuck(self) -> dict[int, str]:
        """Ops that began and can never end -> why."""
        reasons: dict[int, str] = {}
        for bundle, ops in self.network.stuck():
            dead = [link.identity for link, _ in bundle.path if not link.capacity]
            why = f"capacity of link {', '.join(map(str, dead))} (=0 B/s)" if dead else f"rate of a flow (=0 B/s, cap {bundle.cap:g})"
            reasons.update((op.index, why) for op in ops if isinstance(op, Op))
        return reasons
