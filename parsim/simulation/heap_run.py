"""Runs whose events are mostly entries of one heap.

An end that nobody can change, or that only the loads of one device can change, needs no event of SimPy: it is known when the op
begins, and put right when a load comes or goes. That holds for blocks, for kernels, and for transfers as long as nobody crosses
their links with whom they could fill them. All others are given to the network as they stand; SimPy's next event is one more
entry of the heap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from heapq import heappop, heappush
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, cast

from parsim.errors import DeadlockError, ParsimError
from parsim.program.blocks import BlockProgram, Body
from parsim.program.program import COMPUTE, OFFLOAD, Collective, Lane, Op
from parsim.simulation.block_runs import BlockTrace
from parsim.simulation.courses import Courses
from parsim.simulation.crossings import Sides, Transfer, Transfers
from parsim.simulation.deadlock import explain
from parsim.simulation.devices import Device, LoadSets
from parsim.simulation.engine import Run
from parsim.simulation.paths import Paths, Regime
from parsim.simulation.serial import add_uses
from parsim.simulation.sharing import TOLERANCE
from parsim.simulation.trace import LinkUse, Trace

if TYPE_CHECKING:
    from parsim.simulation.engine import Engine

_CARRIED, _ARRIVED, _GONE = range(3)
"""what has become of a transfer that the network was given"""


class Clock:
    """Stands in the heap for the next event of SimPy."""


class HeapRun(Run):
    """One run of an engine; `interference` must not slow transfers."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        alike = getattr(engine.interference, "alike", tuple)  # where it does not say, every set of loads is like no other
        self.stretches = engine.interference is not None
        self._courses = Courses(self.program.memory_bound, self._serial, engine.interference)
        self._sets = LoadSets(alike)
        self._nothing = self._sets.nothing.regime
        self._devices: dict[int, Device] = {}
        self._moves = Transfers(self._cost, engine.interconnect.capacity, self._serial, self._apart)
        self._works: list[Any] = []
        """by op index: the seconds that nothing changes, (device, paths) of a block or kernel, or a transfer"""
        self._heap: list[tuple[float, int, Any]] = []
        """time [s], op index, what ends: a transfer, what its device runs, something that nothing changes (None), or the clock"""
        self._clock = Clock()
        self._clock_at = inf
        """when the clock stands in the heap"""
        self._given: dict[int, int] = {}
        """op index of a transfer that the network was given -> what has become of it"""
        self._before: dict[int, tuple[float, float]] = {}
        """link -> bytes [B] and saturated time [s] of such transfers from before"""
        self._reloaded: list[Device] = []
        """devices whose loads have changed now while they run a block"""
        self._changes: list[tuple[int, float, Regime]] = []

    # -- what there is to do --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        ops, bodies = self.program.ops, self._bodies()
        first = dict(zip(reversed(bodies), reversed(ops), strict=True))
        blocks: dict[Body | None, Any] = {body: self._paced(first[body], self._courses.of(body)) for body in first if body is not None}
        works = self._works = list(map(blocks.get, bodies))
        known = self._moves.known
        kernels: dict[tuple[int, str, float], Any] = {}
        for i, work in enumerate(works):
            if work is not None:
                continue
            op = ops[i]
            if not 0 <= op.duration < inf:
                raise ParsimError(f"duration of {op!r} (={op.duration}) must be finite and >= 0 [s]")
            if (collective := op.collective) is not None:
                found = known.get(id(collective))
                transfer = None if found is None else found.get(id(op.lanes))
                works[i] = self._moves.of(collective, op.lanes, self._sides) if transfer is None else transfer
            elif op.duration and op.lanes and op.lanes[0].name == COMPUTE and self.stretches:
                key = (op.lanes[0].rank, op.name, op.duration)
                if (kernel := kernels.get(key)) is None:
                    kernel = kernels[key] = self._paced(op, self._courses.of_kernel(op))
                works[i] = kernel
            else:
                works[i] = op.duration

    def _bodies(self) -> list[Body | None]:
        return self.program.bodies if isinstance(self.program, BlockProgram) else [None] * len(self.program.ops)

    def _paced(self, op: Op, paths: Paths) -> Any:
        """A block, or a kernel; without interference nothing changes it."""
        return (self._device(op.lanes[0].rank), paths) if self.stretches else paths[self._nothing].total

    def _device(self, rank: int) -> Device:
        if (found := self._devices.get(rank)) is None:
            found = self._devices[rank] = Device(self._sets.nothing)
        return found

    def _sides(self, collective: Collective, lanes: tuple[Lane, ...]) -> Sides:
        """The devices that a transfer loads: copy engines do not, and where it holds the compute lane no kernel runs."""
        if not self.stretches or collective.axis == OFFLOAD:
            return ()
        held = {lane.rank for lane in lanes if lane.name == COMPUTE}
        ranks = [rank for rank in dict.fromkeys(lane.rank for lane in lanes) if rank not in held]
        if not ranks:
            return ()
        load = self._sets.number(self._courses.load(collective))
        return tuple([(self._device(rank), load) for rank in ranks])

    # -- time -----------------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """See `Run.trace`."""
        self._prepare()
        for time, link, capacity in self.changes:
            if not 0 <= time < inf:
                raise ParsimError(f"time of the change of link {link} (={time}) must be finite and >= 0 [s]")
            self.env.timeout(time, (link, capacity)).callbacks.append(self._change)
        self._others.begin()
        self._wind()
        self._pass()
        if any(map(isnan, self.end)):
            raise DeadlockError(explain(self.program, self.start, self.end, self._stuck()))
        uses = self._uses(max(self.end, default=0.0))
        events = len(self.program.ops) + len(self.changes) + self.network.events + self._moves.ends
        if isinstance(self.program, BlockProgram):
            return BlockTrace(self.program, self.start, self.end, uses, events, self.stretches, self._courses, self._changes)
        return Trace(self.program, self.start, self.end, uses, events, self.stretches)

    def _pass(self) -> None:
        """Let time pass until nothing happens any more."""
        ops, works, heap, blockers, end, given = self.program.ops, self._works, self._heap, self.blockers, self.end, self._given
        ready = [i for i, count in enumerate(blockers) if not count]
        transfers = [i for i in ready if type(works[i]) is Transfer]
        kernels = [i for i in ready if type(works[i]) is not Transfer]
        reloaded = self._reloaded
        now = 0.0
        while True:
            if transfers:  # first: a kernel begins under the loads that begin with it
                self._send_off(transfers, now)
                transfers.clear()
            if kernels:
                self._start(kernels, now)
                kernels.clear()
            if reloaded and (not heap or heap[0][0] > now):  # once, whatever came and went now
                for device in reloaded:
                    if device.index >= 0 and device.loads.regime is not device.path.regime and now < device.end:
                        self._reload(device, now)
                reloaded.clear()
            if not heap:
                return
            now, i, work = heappop(heap)
            kind = type(work)
            if kind is Transfer:
                if i not in given:
                    for crossing in work.crossings:
                        del crossing[i]
                elif not self._arrived(i):
                    continue
                for device, load in work.sides:
                    device.loads = device.loads.less[load]
                    if device.index >= 0:
                        reloaded.append(device)
            elif kind is Device:
                if work.index != i or work.armed != now:
                    continue  # somebody has looked, or will
                if work.end > now:
                    work.armed = work.end
                    heappush(heap, (work.end, i, work))
                    continue
                work.index, work.progress = -1, None
            elif kind is Clock:
                self._tick(now)
                continue
            end[i] = now
            for other in ops[i].after:
                j = other.index
                left = blockers[j] - 1
                blockers[j] = left
                if not left:
                    if type(works[j]) is Transfer:
                        transfers.append(j)
                    else:
                        kernels.append(j)

    def _send_off(self, transfers: list[int], now: float) -> None:
        start, works, heap, ops, reloaded = self.start, self._works, self._heap, self.program.ops, self._reloaded
        for i in transfers:
            start[i] = now
            transfer: Transfer = works[i]
            for device, load in transfer.sides:
                device.loads = device.loads.more[load]
                if device.index >= 0:
                    reloaded.append(device)
            met = transfer.free is None
            for crossing in transfer.crossings:
                if crossing or crossing.given:
                    met = True
                crossing[i] = transfer
            if met and self._contends(i, transfer, now):
                continue
            transfer.runs += 1
            heappush(heap, (now + transfer.seconds + ops[i].duration, i, transfer))

    def _start(self, kernels: list[int], now: float) -> None:
        start, works, heap, nothing = self.start, self._works, self._heap, self._nothing
        for i in kernels:
            start[i] = now
            work = works[i]
            if type(work) is not tuple:
                heappush(heap, (now + work, i, None))
                continue
            device: Device
            device, paths = work
            regime = device.loads.regime
            path = device.path = paths[regime]
            device.index = i
            device.origin = now
            device.end = time = now + path.total
            if regime is not nothing:
                self._changes.append((i, now, regime))
                time = now + path.least
            device.armed = time
            heappush(heap, (time, i, device))

    def _reload(self, device: Device, now: float) -> None:
        """Have the block on a device go on under the loads that there are now."""
        path, regime = device.path, device.loads.regime
        self._changes.append((device.index, now, regime))
        reached = nan
        if device.progress is None or now >= device.progress.at:
            other, knots, ratios = path.to.get(regime) or path.onto(regime)
            time = now - device.origin
            k = bisect_right(path.knots, time, 1) - 1
            reached = knots[k] + (time - path.knots[k]) * ratios[k]
        if isnan(reached):
            device.replay(now)
        else:
            device.path = other
            device.origin = now - reached
            device.end = device.origin + other.total
            device.progress = None
        if device.end < device.armed:
            device.armed = max(now, device.end)
            heappush(self._heap, (device.armed, device.index, device))

    # -- the network ----------------------------------------------------------------------------------------------

    def _contends(self, index: int, transfer: Transfer, now: float) -> bool:
        """Whether the network carries a transfer that begins; others on links that may be full are given to it, too."""
        full = [crossing for crossing in transfer.crossings if crossing.full()]
        if over := {i for crossing in full for i in crossing if self._over_by(i, now * (1 + TOLERANCE))}:
            full = [crossing for crossing in full if crossing.full(over)]  # these only have not been asked yet
        if not full and transfer.free is not None:
            return False
        if self.env.now < now:
            self.env.run(until=now)  # nothing happens there before
        for i in dict.fromkeys(i for crossing in full for i in crossing if i not in over):
            if i != index:
                self._give(i, now)
                self._works[i].runs -= 1
        self._give(index, now)
        self._wind()
        return True

    def _over_by(self, index: int, time: float) -> bool:
        """Whether a transfer ends until then without the network."""
        transfer: Transfer = self._works[index]
        return self.start[index] + transfer.seconds + self.program.ops[index].duration <= time

    def _give(self, index: int, now: float) -> None:
        """Have the network carry what is left of a transfer."""
        self._given[index] = _CARRIED
        op = self.program.ops[index]
        transfer: Transfer = self._works[index]
        for crossing in transfer.crossings:
            crossing.give(index)
        _, flows = self._transfers.get(id(op.collective)) or self._transfer(cast("Collective", op.collective))
        moving = now - (self.start[index] + op.duration + transfer.latency)
        if moving <= 0:
            self.env.timeout(-moving, op).callbacks.append(self._send)
            return
        self._pending[index] = len(flows)
        for link, _, full in transfer.free.loads if transfer.free is not None else ():
            self._carried(link, 0.0, min(full, moving))
        for bundle, volume, members in flows:
            done = min(volume, moving * bundle.cap)
            for crossed, coefficient in bundle.path:
                self._carried(crossed.identity, coefficient * done * members, 0.0)
            self.network.start(bundle, volume - done, self._part, op, members=members)

    def _carried(self, link: int, size: float, saturated: float) -> None:
        before = self._before.get(link, (0.0, 0.0))
        self._before[link] = before[0] + size, before[1] + saturated

    def _end(self, op: Op) -> None:
        """The network has carried all of a transfer."""
        self._given[op.index] = _ARRIVED
        heappush(self._heap, (self.env.now, op.index, self._works[op.index]))

    def _arrived(self, index: int) -> bool:
        """Whether a transfer that the network was given ends now, and not where it would have without."""
        if self._given[index] != _ARRIVED:
            return False
        self._given[index] = _GONE
        for crossing in self._works[index].crossings:
            crossing.leave(self._works[index])
        return True

    def _tick(self, now: float) -> None:
        """SimPy's next event."""
        if now != self._clock_at:
            return  # it came earlier
        self._clock_at = inf
        others = self._others
        if others.repeats and self._over(thorough=False):
            return  # only others would go on
        self.env.step()
        if not (others.repeats and others.due() and self._over(thorough=True)):
            self._wind()

    def _wind(self) -> None:
        """Put the clock into the heap where SimPy's next event is; behind all else that happens then."""
        if (time := self.env.peek()) < self._clock_at:
            self._clock_at = time
            heappush(self._heap, (time, len(self.program.ops), self._clock))

    def _uses(self, makespan: float) -> dict[int, LinkUse]:
        for body, count in Counter(self._bodies()).items():
            for collective, _, times in body.uses if body is not None else ():
                self._serial[id(collective)].runs += times * count
        free = self._moves.ran()
        uses = add_uses(super()._uses(makespan), free)
        for link, (size, saturated) in self._before.items():
            use = uses.get(link, LinkUse(0.0, 0.0))
            uses[link] = LinkUse(use.bytes + size, use.saturated + saturated)
        return uses
