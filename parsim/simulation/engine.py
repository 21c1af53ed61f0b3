"""How time passes: an op begins when nothing blocks it, and its end unblocks others.

Waiting is a counter, and lanes are already chains of dependencies in the program, so all that is left is one loop over one queue:
SimPy's (`parsim.simulation.clock`). The end of an op is a number in it. Three things can move an end after it was put there: loads
that come to or leave a device, a network that has to share a link, and SimPy processes beside the ops (`Engine.processes`). The
program is read-only here: counters, starts and ends are the run's own columns, so running a program twice gives identical traces.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import inf, isnan, nan
from typing import Any

import numpy as np
import simpy

from parsim.errors import DeadlockError, ParsimError
from parsim.hardware.flows import CollectiveCost
from parsim.hardware.transfers import Background
from parsim.parallel.groups import OFFLOAD, USER_BUFFERS, is_stream
from parsim.program.program import COMPUTE, Collective, OpSpec, Program
from parsim.simulation.background import BackgroundTraffic
from parsim.simulation.carried import CarriedTransfers
from parsim.simulation.clock import NUMBER, Clock
from parsim.simulation.contention import Sides, Transfer, Transfers
from parsim.simulation.contention_free import add_uses, contention_free
from parsim.simulation.deadlock import explain
from parsim.simulation.devices import Interference, Kernel, LoadedDevice, LoadSet, LoadSets, Rates
from parsim.simulation.network import Network
from parsim.simulation.processes import BoundedProcess, CollectiveCosts, Process
from parsim.simulation.scaled_works import scaled
from parsim.simulation.trace import LinkUse, Trace

_PRIVATE = 10**9
"""private links, of one rank's lane of collectives, have negative ids: -1 - rank, this much lower for each lane"""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector, and restore its state also after an exception.

    A program is freed by reference counts; the collector would only walk it again and again.
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
    processes: SimPy processes beside the ops: generator functions of the run, which may wait for anything in its `env` and change
        links (`EngineRun.set_capacity`) and devices (`EngineRun.set_speed`). They end with the last op.
    factors: by op, how many times as long it takes alone: a kernel its duration, a transfer its latency and its bytes. None: 1.
    """

    def __init__(
        self,
        program: Program,
        interconnect: CollectiveCosts,
        *,
        interference: Interference | None = None,
        pause_collector: bool = True,
        capacity_changes: Iterable[tuple[float, int, float]] = (),
        background: Iterable[Background] = (),
        processes: Iterable[Process] = (),
        factors: Sequence[float] | None = None,
    ) -> None:
        self.program = program
        self.factors = factors
        self.interconnect = interconnect
        self.interference = interference
        self.pause_collector = pause_collector
        self.capacity_changes = tuple(capacity_changes)
        self.background = tuple(background)
        self.processes = tuple(processes)

    def run(self) -> Trace:
        """Run the program from time 0 to the end of its last op, or until a process ends it (`EngineRun.stop`) or stops a rank for ever.

        Raises DeadlockError if ops are left that can never begin or end, with the rank x step grid of those ops, and
        ParsimError if an op's duration or a flow is not a number that time can be made of.
        """
        with collector_paused() if self.pause_collector else nullcontext():
            run = EngineRun(self)
            try:
                return run.trace()
            finally:
                vars(run).clear()  # what it is made of refers back to it: the program would wait for the collector


class EngineRun:
    """One run of an engine: the columns that it writes."""

    def __init__(self, engine: Engine) -> None:
        self.program = engine.program
        self.env = Clock()
        self._interconnect = engine.interconnect
        self._interference = engine.interference
        self._changes = engine.capacity_changes
        self._processes = engine.processes
        self._factors = engine.factors
        self.network = Network(self.env, self._capacity)
        count = len(self.program.spec)
        self.start = array("d", [nan]) * count
        self.end = array("d", [nan]) * count
        self._costs: dict[Collective, CollectiveCost] = {}
        self._background = BackgroundTraffic(engine.background, self.network, self.env)
        self._slows_wires = engine.interference is not None and engine.interference.communication_rate(1.0) < 1
        self._elastic = bool(engine.interference is not None or self._processes)
        """kernels may take longer than their durations"""
        self._blockers: list[int] = []
        """by op: how many others it still waits for"""
        self._halted = False
        """a rank does not go on"""
        self._stopped = False
        self._sets = LoadSets(getattr(engine.interference, "alike", tuple))  # where it does not say, every set of loads is like no other
        self._devices: dict[int, dict[str, LoadedDevice]] = {}
        self._paced: list[LoadedDevice] = []
        """devices whose kernel, loads or speed have changed now"""
        self._lanes: dict[str, int] = {}
        self._works: list[Any] = []
        """by place: the seconds that nothing changes, a kernel or a transfer"""
        self._places: Sequence[int] = self.program.spec
        """by op: its place among the works"""
        self._unnoticed: dict[int, Transfer] = {}
        """by place: transfers that load no device and meet no other; their works are the seconds that they take"""
        self._carried = CarriedTransfers(self.env, self.network, self._cost, self._transfer, self.start, self._end_transfer)

    # -- what processes may do ------------------------------------------------------------------------------------

    def set_capacity(self, link: int, capacity: float) -> None:
        """Change the capacity of a link [B/s] from now on; transfers under way feel it."""
        self.network.set_capacity(link, capacity)

    def set_speed(self, rank: int, speed: float) -> None:
        """Let kernels, copies and launches of a rank run at `speed` from now on, those under way, too.

        1 = as planned, 0 = not at all; must be >= 0.
        """
        if not 0 <= speed < inf:
            raise ParsimError(f"speed of rank {rank} (={speed}) must be finite and >= 0")
        for device in self._devices.get(rank, {}).values():
            device.speed = speed
            self._paced.append(device)

    def halt(self, rank: int) -> None:
        """Let a rank stand still for ever: its kernel under way never ends, and no other op of it begins; transfers under way go on."""
        self.set_speed(rank, 0.0)
        self._halted = True
        mine = {number for number, spec in enumerate(self.program.specs) if any(lane.rank == rank for lane in spec.lanes)}
        for index, number in enumerate(self.program.spec):
            if number in mine and isnan(self.start[index]):
                self._blockers[index] += 1

    def stop(self) -> None:
        """End the run now; ops that have not ended by now have no end."""
        self._stopped = True

    def until_waited_for(self, links: Iterable[int]) -> simpy.Event:
        """Happens when a transfer waits for any of these links, which carry nothing."""
        return self.network.stall(links)

    # -- what there is to do --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        specs = self.program.specs
        apart = frozenset(self._background.links.union(link for _, link, _ in self._changes))
        bounded = [process.links for process in self._processes if isinstance(process, BoundedProcess)]
        known = len(bounded) == len(self._processes)
        apart = apart.union(*bounded)
        lazy = known and not self._slows_wires
        free = contention_free(self.program, self._cost, self._interconnect.capacity, shared=apart) if known else {}
        self._transfers = Transfers(self._cost, self._interconnect.capacity, free, apart, lazy=lazy)
        bounds: dict[float, Rates] = {}
        alone = Rates(None, 0.0)
        for spec in specs:
            if not 0 <= spec.duration < inf:
                raise ParsimError(f"duration of {self._example(spec)!r} (={spec.duration}) must be finite and >= 0 [s]")
            if spec.collective is not None:
                self._works.append(self._transfers.of(spec.collective, spec.duration, self._sides(spec)))
            elif not (self._elastic and spec.duration and spec.lanes):
                self._works.append(float(spec.duration))
            elif (lane := spec.lanes[0]).name == COMPUTE:
                bound = self.program.memory_bound.get(spec.name, 0.0)
                if (rates := bounds.get(bound)) is None:
                    rates = bounds[bound] = Rates(self._interference, bound)
                self._works.append(Kernel(self._device(lane.rank), spec.duration, rates))
            elif self._interference is not None and is_stream(lane.name):
                beside = self._device(lane.rank), self._sets.number(self._interference.kernel_load())
                self._works.append(Kernel(self._device(lane.rank, lane.name), spec.duration, alone, beside))
            elif self._processes:
                self._works.append(Kernel(self._device(lane.rank, lane.name), spec.duration, alone))
            else:
                self._works.append(float(spec.duration))
        if self._factors is not None:
            self._works, self._places = scaled(self.program, self._works, self._factors, self._transfers), range(len(self._places))
        for place, work in enumerate(self._works):
            if type(work) is Transfer and work.free is not None and not work.sides and not work.contentions:
                self._unnoticed[place], self._works[place] = work, work.seconds

    def _example(self, spec: OpSpec) -> object:
        return next((op for op in self.program.ops if op.spec is spec), spec)

    def _device(self, rank: int, lane: str = COMPUTE) -> LoadedDevice:
        """The rank's GPU as its kernels see it; copies on streams and launches, which run beside them, have one for each lane."""
        lanes = self._devices.setdefault(rank, {})
        if (found := lanes.get(lane)) is None:
            found = lanes[lane] = LoadedDevice(self._sets.nothing)
        return found

    def _sides(self, spec: OpSpec) -> Sides:
        """The devices that a transfer loads: copy engines do not, and where it holds the compute lane no kernel runs.

        What runs beside user buffers has given up its multiprocessors already.
        """
        collective = spec.collective
        if self._interference is None or collective is None or collective.axis == OFFLOAD:
            return ()
        held = {lane.rank for lane in spec.lanes if lane.name == COMPUTE}
        beside = {lane.rank: lane.name for lane in reversed(spec.lanes) if lane.rank not in held and lane.name != USER_BUFFERS}
        if not beside:
            return ()
        load = self._sets.number(self._interference.load(collective))
        return tuple((self._device(rank), load, self._wire(rank, beside[rank])) for rank in reversed(beside))

    def _wire(self, rank: int, lane: str) -> int:
        """The private link of a lane of collectives: those of one lane never overlap, those of others may."""
        return -1 - rank - _PRIVATE * (1 + self._lanes.setdefault(lane, len(self._lanes))) if self._slows_wires else 0

    def _capacity(self, link: int) -> float:
        return 1.0 if link < 0 else self._interconnect.capacity(link)

    def _cost(self, collective: Collective) -> CollectiveCost:
        """What the interconnect says, asked once per distinct collective."""
        if (cost := self._costs.get(collective)) is None:
            cost = self._costs[collective] = self._interconnect.cost(collective)
            if not 0 <= cost.latency < inf:
                raise ParsimError(f"latency of {collective} (={cost.latency}) must be finite and >= 0 [s]")
            for flow in cost.flows:
                if not 0 <= flow.volume < inf:
                    raise ParsimError(f"volume of a flow of {collective} (={flow.volume}) must be finite and >= 0 [B]")
        return cost

    # -- time -----------------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Let time pass; see `Engine.run`."""
        self._prepare()
        for time, link, capacity in self._changes:
            if not 0 <= time < inf:
                raise ParsimError(f"time of the change of link {link} (={time}) must be finite and >= 0 [s]")
            self.env.timeout(time, (link, capacity)).callbacks.append(self._change)
        self._background.begin()
        for process in self._processes:
            self.env.process(process(self))
        events = self._loop()
        if any(map(isnan, self.end)) and not (self._stopped or self._halted):
            raise DeadlockError(explain(self.program, self.start, self.end, self._stuck()))
        last = self.env.now if self._stopped or self._halted else max(self.end, default=0.0)
        return Trace(self.program, self.start, self.end, self._uses(last), events, self._elastic)

    def _loop(self) -> int:
        """The loop: begin what is ready, take the next entry of the queue. Returns how many entries were taken.

        A number below 0 is a kernel that may have ended (~index), one from `count` on a transfer (count + index).
        """
        env, start, end, paced = self.env, self.start, self.end, self._paced
        spec, successors, works, blockers = self._places, self.program.successors, self._works, self.program.blockers.copy()
        self._blockers = blockers
        queue, push, count, events, now = env.entries, env.push, len(spec), 0, 0.0
        left, under_way = count, 0
        ready = [index for index, blocking in enumerate(blockers) if not blocking]
        while True:
            # Begin
            for index in ready:
                start[index] = now
                work = works[spec[index]]
                if type(work) is float:
                    push((now + work, NUMBER, index - count, index))
                elif type(work) is Kernel:
                    device = work.device
                    device.op, device.rates, device.rate, device.work, device.looked_at = index, work.rates, 0.0, work.seconds, inf
                    paced.append(device)
                    if device.wires or work.beside is not None:
                        self._slow_neighbours(work, begins=True)
                else:
                    self._begin_transfer(index, work, now)
            under_way += len(ready)
            ready.clear()
            if paced and (not queue or queue[0][0] > now):
                self._pace(now)
            if not queue or not left:
                return events
            # Take the next entry
            events += 1
            if type(number := queue[0][3]) is not int:
                env.step()
                now = env.now
                if self._stopped or not under_way or (self._background.due() and self._over()):
                    return events
                continue
            now, number = env.pop()
            if number < 0:
                index = ~number
                work = works[spec[index]]
                device = work.device
                if device.op != index or device.looked_at != now:
                    continue  # it ended earlier, or will be looked at then
                if device.due > now:
                    device.looked_at = device.due
                    push((device.due, NUMBER, index - count, number))
                    continue
                device.op = -1
                if device.wires or work.beside is not None:
                    self._slow_neighbours(work, begins=False)
            elif number >= count:
                index = number - count
                if not self._ends(index, works[spec[index]]):
                    continue
            else:
                index = number
            # End
            end[index] = now
            left -= 1
            under_way -= 1
            for offset in successors[index]:
                other = index + offset
                blockers[other] = blocking = blockers[other] - 1
                if not blocking:
                    ready.append(other)

    def _pace(self, now: float) -> None:
        """Say when kernels end, once all loads that come and go now have done so: in whichever order, ends are equal to the last bit."""
        for device in self._paced:
            if device.op < 0 or (rate := device.rates[device.loads] * device.speed) == device.rate:
                continue
            left = device.work if not device.rate else (device.due - now) * device.rate
            if not rate:  # it stands still, with so much to do
                device.work, device.rate, device.due, device.looked_at = left, 0.0, inf, inf
                continue
            device.due = due = now + left / rate
            device.rate = rate
            if due < device.looked_at:
                device.looked_at = due
                self.env.push((due, NUMBER, device.op - len(self.end), ~device.op))
        self._paced.clear()

    def _slow_neighbours(self, kernel: Kernel, *, begins: bool) -> None:
        """What runs beside a kernel that begins or ends: transfers, and for one on a stream the kernels of the compute lane."""
        if kernel.device.wires:
            self._slow_wires(kernel.device)
        if kernel.beside is not None:
            device, load = kernel.beside
            self._load(device, (device.loads.more if begins else device.loads.less)[load])

    def _load(self, device: LoadedDevice, loads: LoadSet) -> None:
        """Other work loads a device from now on; the kernel under way is paced anew."""
        device.loads = loads
        if device.op >= 0:
            self._paced.append(device)

    # -- transfers ------------------------------------------------------------------------------------------------

    def _begin_transfer(self, index: int, transfer: Transfer, now: float) -> None:
        for device, load, wire in transfer.sides:
            self._load(device, device.loads.more[load])
            if wire:
                device.wires[index] = wire
                self._slow_wires(device)
        if not self._carried.begin(index, transfer, now):
            transfer.runs += 1
            self.env.push((now + transfer.seconds, NUMBER, index - len(self.end), len(self.end) + index))

    def _end_transfer(self, index: int) -> None:
        """The network has carried it: it ends now."""
        self.env.push((self.env.now, NUMBER, index - len(self.end), len(self.end) + index))

    def _transfer(self, index: int) -> Transfer:
        """What an op transfers."""
        transfer: Transfer = self._works[self._places[index]]
        return transfer

    def _ends(self, index: int, transfer: Transfer) -> bool:
        """Whether a transfer ends now; if so, it loads its devices no longer."""
        if not self._carried.end(index, transfer):
            return False
        for device, load, wire in transfer.sides:
            self._load(device, device.loads.less[load])
            if wire:
                del device.wires[index]
        return True

    def _slow_wires(self, device: LoadedDevice) -> None:
        """Give the transfers beside a device's kernel the rate that it leaves them."""
        rate = 1.0
        if device.op >= 0 and self._interference is not None:
            rate = self._interference.communication_rate(device.rates.memory_bound)
        for wire in device.wires.values():
            self.network.set_capacity(wire, rate)

    # -- what happens beside the ops ------------------------------------------------------------------------------

    def _change(self, event: Any) -> None:
        link, capacity = event.value
        self.set_capacity(link, capacity)

    def _over(self) -> bool:
        """Whether no op will ever end any more, though other traffic goes on."""
        if (self._processes and not self._halted) or any(time > self.env.now for time, _, _ in self._changes):
            return False
        stuck = self._stuck()
        still = (device for lanes in self._devices.values() for device in lanes.values() if not device.speed)
        stuck.update((device.op, "") for device in still)
        return all(isnan(start) or index in stuck for index, start in enumerate(self.start) if isnan(self.end[index]))

    def _stuck(self) -> dict[int, str]:
        """Ops that began and can never end -> why."""
        reasons: dict[int, str] = {}
        for bundle, ops in self.network.stuck():
            dead = [link.identity for link, _ in bundle.path if not link.capacity]
            why = f"capacity of link {', '.join(map(str, dead))} (=0 B/s)" if dead else f"rate of a flow (=0 B/s, cap {bundle.cap:g})"
            reasons.update((op, why) for op in ops if isinstance(op, int))
        return reasons

    def _uses(self, makespan: float) -> dict[int, LinkUse]:
        """What each link carried: in the network, and without it."""
        uses = {link: use for link, use in self.network.use(until=makespan).items() if link >= 0}
        began = np.bincount(np.asarray(self._places, dtype=np.int64)[~np.isnan(self.start)], minlength=len(self._works))
        for place, transfer in self._unnoticed.items():
            transfer.runs += int(began[place])  # ops that have a work each may share a transfer
        add_uses(uses, self._transfers.ran())
        for link, (size, saturated) in self._carried.before.items():
            if link >= 0:
                use = uses.get(link, LinkUse(0.0, 0.0))
                uses[link] = LinkUse(use.bytes + size, use.saturated + saturated)
        return uses
