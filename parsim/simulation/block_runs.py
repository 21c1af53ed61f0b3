"""Runs of programs with blocks, and what they say about every op inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from parsim.hardware.flows import CollectiveCost
from parsim.program.blocks import BlockProgram, Body
from parsim.program.passes import Item
from parsim.program.program import COMPUTE, OFFLOAD, Collective, Lane, Op, Program
from parsim.simulation.blocks import Course, Inside, Loads, Log, Progress
from parsim.simulation.elastic import ElasticRun
from parsim.simulation.engine import Run
from parsim.simulation.expansion import expand_all
from parsim.simulation.overlap import Interference, Overlap
from parsim.simulation.serial import Serial, serial_collectives
from parsim.simulation.trace import LinkUse, Trace

if TYPE_CHECKING:
    from parsim.simulation.engine import Engine


class Alike(Interference, Protocol):
    """Interference that knows which loads do the same."""

    def alike(self, loads: Iterable[Any]) -> Loads:
        """Loads that slow every kernel, also with others besides, as much as these."""


@dataclass(frozen=True)
class BlockTrace(Trace):
    """The trace of a program with blocks: what each block did, and under which loads from outside."""

    courses: Mapping[int, Course] = field(default_factory=dict)
    """op index of a block -> its course"""
    logs: Mapping[int, Log] = field(default_factory=dict)
    """op index of a block whose load was not empty throughout -> its loads, from its beginning"""

    def expanded(self, program: Program) -> Trace:
        """The trace of the same program without blocks."""
        start, end = expand_all(self.start, self.end, self.courses, self.logs)
        if len(start) != len(program.ops):
            raise ValueError(f"blocks stand for {len(start)} ops, the program has {len(program.ops)}")
        extra = len(program.ops) - len(self.program.ops)
        return Trace(program, start, end, self.links, self.events + extra, self.stretched)


def changeable(
    program: Program, cost: Callable[[Collective], CollectiveCost], capacity: Callable[[int], float], shared: Iterable[int] = ()
) -> frozenset[Collective]:
    """Transfers inside blocks whose time depends on what others send; `shared` are links that carry other traffic as well."""
    if not isinstance(program, BlockProgram):
        return frozenset()
    alone = serial_collectives(program, cost, capacity, shared)
    inside = {collective for body in dict.fromkeys(program.bodies) if body is not None for collective, _, _ in body.uses}
    return frozenset(collective for collective in inside if id(collective) not in alone)


class _Courses:
    """The courses of bodies; equal ones share one."""

    def __init__(self, program: BlockProgram, serial: Mapping[int, Serial], interference: Interference | None) -> None:
        self._program = program
        self._serial = serial
        self._interference = interference
        self._shared: dict[Hashable, Course] = {}
        self._known: dict[Body, Course] = {}
        self._rates: dict[tuple[Loads, float], float] = {}
        self._loads: dict[int, Any] = {}

    def of(self, body: Body) -> Course:
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
                found = self._shared[key] = Course(inside, body.shape.segments, self._rate)
            self._known[body] = found
        return found

    def _inside(self, item: Item, speed: float, time: float, load: Any) -> Inside:
        kernel = item.collective is None and item.lanes[0] == COMPUTE and item.duration > 0
        bound = self._program.memory_bound.get(item.name, 0.0) if kernel else 0.0
        return Inside(kernel, item.duration / speed + time, bound, load)

    def _load(self, collective: Collective, lanes: tuple[Lane, ...], _: int) -> Any:
        """What a transfer inside takes from kernels beside it."""
        if self._interference is None or lanes[0].name == COMPUTE or collective.axis == OFFLOAD:
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


def run_of(engine: Engine) -> Run:
    """The run of a program with blocks."""
    if engine.interference is None:
        return BlockRun(engine)
    return ElasticBlockRun(engine, cast("Alike", engine.interference))


def _count_transfers(program: BlockProgram, serial: Mapping[int, Serial]) -> None:
    """Blocks' transfers ran, too."""
    for body, count in Counter(body for body in program.bodies if body is not None).items():
        for collective, _, times in body.uses:
            serial[id(collective)].runs += times * count


class Running(Progress):
    """A block under way in a run."""

    __slots__ = ("op", "rank")

    def __init__(self, op: Op, course: Course, start: float, loads: Loads) -> None:
        super().__init__(course, start, loads)
        self.op = op
        self.rank = op.lanes[0].rank


class BlockRun(Run):
    """As `Run`; nothing disturbs a block."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._blocks = cast("BlockProgram", engine.program)
        self._courses = _Courses(self._blocks, self._serial, None)

    def _begin(self, op: Op) -> None:
        body = self._blocks.bodies[op.index]
        if body is None:
            super()._begin(op)
            return
        self.start[op.index] = self.env.now
        self.env.timeout(self._courses.of(body).cuts()[-1], op).callbacks.append(self._finish)

    def _uses(self, makespan: float) -> dict[int, LinkUse]:
        _count_transfers(self._blocks, self._serial)
        return super()._uses(makespan)

    def trace(self) -> BlockTrace:
        """See `Run.trace`."""
        return _with_courses(super().trace(), self._blocks, self._courses, {})


class ElasticBlockRun(ElasticRun):
    """As `ElasticRun`; loads from outside change how far blocks are."""

    def __init__(self, engine: Engine, interference: Alike) -> None:
        super().__init__(engine, interference)
        self._blocks = cast("BlockProgram", engine.program)
        self._courses = _Courses(self._blocks, self._serial, interference)
        self.overlap: BlockOverlap = BlockOverlap(interference, self, self._end)
        self.logs: dict[int, Log] = {}

    def _begin(self, op: Op) -> None:
        body = self._blocks.bodies[op.index]
        if body is None:
            super()._begin(op)
            return
        now = self.start[op.index] = self.env.now
        course = self._courses.of(body)
        rank = op.lanes[0].rank
        if rank not in self.overlap.ranks:
            self.env.timeout(course.cuts()[-1], op).callbacks.append(self._finish)
            return
        loads = self.overlap.loads(rank)
        progress = Running(op, course, now, loads)
        self.overlap.running[rank] = progress
        if loads:
            self.logs[op.index] = progress.log
        self.arm(progress)

    def arm(self, progress: Running) -> None:
        """Look at a block when it should be over; a look that comes too early looks again."""
        if progress.end < progress.armed:
            progress.armed = progress.end
            self.env.timeout(max(0.0, progress.end - self.env.now), (progress, progress.end)).callbacks.append(self._look)

    def _look(self, event: Any) -> None:
        progress, armed = event.value
        if armed != progress.armed:
            return
        if progress.end > self.env.now:
            progress.armed = float("inf")
            self.arm(progress)
            return
        progress.armed = -1.0
        del self.overlap.running[progress.rank]
        self._end(progress.op)

    def _uses(self, makespan: float) -> dict[int, LinkUse]:
        _count_transfers(self._blocks, self._serial)
        return super()._uses(makespan)

    def trace(self) -> BlockTrace:
        """See `Run.trace`."""
        return _with_courses(super().trace(), self._blocks, self._courses, self.logs)


class BlockOverlap(Overlap):
    """As `Overlap`, for ranks on which blocks run."""

    def __init__(self, interference: Alike, run: ElasticBlockRun, then: Callable[[Op], None]) -> None:
        super().__init__(run.program, interference, run.network, run.env, then)
        self._run = run
        self._alike = interference.alike
        self._same: dict[Loads, Loads] = {}
        self.running: dict[int, Running] = {}
        """rank -> the block it runs now"""

    def loads(self, rank: int) -> Loads:
        """What loads a rank now, in a form that is equal for sets that do the same."""
        active = self._active[rank]
        if not active:
            return ()
        loads = tuple([load for load, _ in active.values()])
        if (same := self._same.get(loads)) is None:
            same = self._same[loads] = self._alike(loads)
        return same

    def _changed(self, rank: int) -> None:
        if (progress := self.running.get(rank)) is None:
            super()._changed(rank)
            return
        loads, now = self.loads(rank), self._env.now
        if loads == progress.loads or now >= progress.end:
            return
        self._run.logs[progress.op.index] = progress.log
        progress.log.append((now, loads))
        progress.advance(now, loads)
        self._run.arm(progress)


def _with_courses(trace: Trace, program: BlockProgram, courses: _Courses, logs: dict[int, Log]) -> BlockTrace:
    found = {index: courses.of(body) for index, body in enumerate(program.bodies) if body is not None}
    return BlockTrace(program, trace.start, trace.end, trace.links, trace.events, trace.stretched, found, logs)
