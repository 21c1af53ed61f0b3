"""What breaks or changes while a step runs, as SimPy processes beside its ops.

A link that changes its capacity re-rates the transfers on it: what is left of S bytes at B after t0 ends at t0 + (S - B t0) / (x B). A
rank that changes its speed re-rates the kernel under way. What does not come back ends the step: after so long as somebody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, prod
from typing import Any

from parsim.faults import Capacities, Fault, LinkFault, RankFault, SlowWindow
from parsim.program.program import COMPUTE, OpSpec, Program
from parsim.simulation.engine import EngineRun
from parsim.simulation.processes import BoundedProcess, Process
from parsim.simulation.trace import Trace
from parsim.units import format_time


@dataclass(frozen=True)
class Failure:
    """The step does not end."""

    at: float
    """when it is given up [s]"""
    why: str


@dataclass(frozen=True)
class FaultedRun:
    """What came of a step with faults."""

    trace: Trace
    failure: Failure | None
    """None: the step ends"""

    @property
    def end(self) -> float:
        """End of the last op, or when the step is given up [s]."""
        return self.trace.makespan if self.failure is None else self.failure.at


@dataclass(frozen=True)
class Likes:
    """Which link and which rank of a program stands for each; nobody: the program does not know it."""

    links: Mapping[int, int] | None = None
    """None: each for itself"""
    ranks: Mapping[int, int] | None = None

    def link(self, link: int) -> int | None:
        """The link that stands for it."""
        return link if self.links is None else self.links.get(link)

    def rank(self, rank: int) -> int | None:
        """The rank that stands for it."""
        return rank if self.ranks is None else self.ranks.get(rank)


@dataclass
class Breaking:
    """The processes of one run, and what ends it."""

    faults: Sequence[Fault]
    likes: Likes
    capacity: Callable[[int], float]
    failures: list[Failure] = field(default_factory=list)
    """a step that does not end has failed at the first of them"""
    hung: dict[int, RankFault] = field(default_factory=dict)
    """ranks whose collectives wait for a watchdog"""
    holds: dict[int, LinkFault] = field(default_factory=dict)
    """link -> what changed it last: another fault may begin when one ends"""

    def outcome(self, trace: Trace) -> FaultedRun:
        """What came of the run."""
        return FaultedRun(trace, self._failure(trace) if any(map(isnan, trace.end)) else None)

    def processes(self) -> list[Process]:
        """One per fault of links, or of ranks that stop, and one per rank that is slow at times."""
        made: list[Process] = []
        for fault in self.faults:
            if isinstance(fault, LinkFault):
                links = frozenset(link for link, _ in self._known((*fault.capacities, *fault.fallback)))
                made.append(BoundedProcess(self._link(fault), links))
            elif isinstance(fault, RankFault):
                made.append(BoundedProcess(self._stop(fault)))
        windows = [fault for fault in self.faults if isinstance(fault, SlowWindow)]
        ranks = dict.fromkeys(rank for window in windows for rank in self._ranks(window))
        made += [BoundedProcess(self._slow(rank, [window for window in windows if rank in self._ranks(window)])) for rank in ranks]
        return made

    def _failure(self, trace: Trace) -> Failure | None:
        """Why a step did not end: what is noticed first."""
        found = list(self.failures)
        if self.hung:
            fault = min(self.hung.values(), key=lambda one: one.begin)
            waits = first_wait(trace.program, trace.start, trace.end, self.hung)
            begin = fault.begin if waits is None else waits
            who = "no rank waits for it" if waits is None else f"the first rank waits for it from {format_time(waits)} on"
            found.append(Failure(begin + fault.notice, f"{fault.name}; {who}, and the job is given up {format_time(fault.notice)} later"))
        return min(found, key=lambda one: one.at, default=None)

    def _known(self, capacities: Capacities) -> Capacities:
        """The same on the links of the program."""
        known = [(self.likes.link(link), capacity) for link, capacity in capacities]
        return tuple({link: capacity for link, capacity in known if link is not None}.items())

    def _ranks(self, fault: SlowWindow | RankFault) -> list[int]:
        known = (self.likes.rank(rank) for rank in fault.ranks)
        return list(dict.fromkeys(rank for rank in known if rank is not None))

    def _link(self, fault: LinkFault) -> Process:
        def process(run: EngineRun) -> Generator[Any, Any, None]:
            env, changed = run.env, self._known(fault.capacities)
            yield env.timeout(fault.begin)
            self._set(run, fault, changed)
            back = env.timeout(fault.end - env.now) if fault.end < inf else env.event()
            if any(not capacity for _, capacity in changed) and (fault.give_up < inf or fault.retry):
                if fault.give_up:
                    waited = run.until_waited_for(link for link, capacity in changed if not capacity)
                    yield waited | back
                if not back.processed:
                    wait = fault.waits(env.now) - env.now
                    if wait <= fault.give_up:  # whoever waits goes on when it tries again, at the earliest when the link is back
                        yield back if not fault.retry else env.timeout(wait)
                    else:
                        yield env.timeout(fault.give_up)
                        if not fault.fallback:
                            why = f"{fault.name}: a transfer has waited {format_time(fault.give_up)} for it and is given up"
                            self.failures.append(Failure(env.now, why))
                            run.stop()
                            return
                        changed = self._known((*((link, self.capacity(link)) for link, _ in changed), *fault.fallback))
                        self._set(run, fault, changed)
            yield back
            for link, _ in changed:
                if self.holds[link] is fault:
                    run.set_capacity(link, self.capacity(link))

        return process

    def _set(self, run: EngineRun, fault: LinkFault, capacities: Capacities) -> None:
        for link, capacity in capacities:
            self.holds[link] = fault
            run.set_capacity(link, capacity)

    def _stop(self, fault: RankFault) -> Process:
        def process(run: EngineRun) -> Generator[Any, Any, None]:
            yield run.env.timeout(fault.begin)
            for rank in self._ranks(fault):
                run.halt(rank)
                if fault.kind == "hang":
                    self.hung[rank] = fault
            if fault.kind == "crash":
                why = f"{fault.name}, which is noticed {format_time(fault.notice)} later"
                self.failures.append(Failure(fault.begin + fault.notice, why))
                yield run.env.timeout(fault.notice)
                run.stop()

        return process

    def _slow(self, rank: int, windows: Sequence[SlowWindow]) -> Process:
        """Speeds of several causes multiply."""

        def process(run: EngineRun) -> Generator[Any, Any, None]:
            for time in sorted({time for window in windows for time in (window.begin, window.end) if time < inf}):
                yield run.env.timeout(time - run.env.now)
                run.set_speed(rank, prod(window.speed for window in windows if window.begin <= time < window.end))

        return process


def first_wait(program: Program, starts: Sequence[float], ends: Sequence[float], gone: Collection[int] = ()) -> float | None:
    """When the first rank that is not `gone` began to wait for what never came [s]; None: no rank waits.

    A rank waits in a collective that never began from when all that it needs of that rank has ended, and for what it receives from when it
    has nothing else to compute.
    """
    waits = [*_in_collectives(program, starts, ends, gone), *_without_work(program, starts, ends, gone)]
    return min(waits, default=None)


def _in_collectives(program: Program, starts: Sequence[float], ends: Sequence[float], gone: Collection[int]) -> list[float]:
    waiting = {
        index: {lane.rank: 0.0 for lane in program.specs[number].lanes if lane.rank not in gone}
        for index, number in enumerate(program.spec)
        if isnan(starts[index]) and _met(program.specs[number])
    }
    for index, number in enumerate(program.spec):
        for offset in program.successors[index]:
            if (arrived := waiting.get(index + offset)) is None:
                continue
            for rank in {lane.rank for lane in program.specs[number].lanes} & arrived.keys():
                arrived[rank] = inf if isnan(ends[index]) else max(arrived[rank], ends[index])
    return [time for arrived in waiting.values() for time in arrived.values() if time < inf]


def _without_work(program: Program, starts: Sequence[float], ends: Sequence[float], gone: Collection[int]) -> list[float]:
    idle: dict[int, float] = {}
    blocked = set()
    for index, number in enumerate(program.spec):
        for lane in program.specs[number].lanes:
            if lane.name != COMPUTE or lane.rank in gone:
                continue
            if isnan(starts[index]):
                blocked.add(lane.rank)
            else:
                idle[lane.rank] = max(idle.get(lane.rank, 0.0), inf if isnan(ends[index]) else ends[index])
    return [time for rank in blocked if (time := idle.get(rank, 0.0)) < inf]


def _met(spec: OpSpec) -> bool:
    """Whether ranks meet in an op; the lane of a receiver stands ready all the time."""
    return spec.collective is not None and spec.collective.kind != "send" and len({lane.rank for lane in spec.lanes}) > 1
