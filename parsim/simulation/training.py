"""A training over weeks: steps are a stream of work, and failures, checkpoints, restarts and spare machines are events of one clock.

What a second of training yields is decided by `parsim.simulation.engine`; here only whether it is spent on training. Times are wall
time in seconds, work is in seconds of undisturbed training with all replicas.

Four answers to a failure: `restart` and `hot_spare` stop the job and go on from the last checkpoint on other machines; `elastic` does
the same without the replica that broke until it is repaired; with `replica` the others only stop for the time of a restart and lose
nothing (fault tolerant HSDP, arXiv 2602.00277).

What breaks at a moment that is given either fails the job like what is drawn, or changes its pace: how much work a second of training is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import simpy

from parsim.simulation.clock import Clock
from parsim.simulation.failure_times import Strike, drawn
from parsim.simulation.interrupted import FailureCause, GivenFailure, InterruptedTraining, Kind, Pace, Piece, TrainingRun

REJOIN = "rejoin"
"""cause of the stop in which repaired replicas come back (elastic)"""
_DONE = 1.0 - 1e-12


def train(training: InterruptedTraining, strikes: Mapping[str, Iterable[Strike]] | None = None) -> TrainingRun:
    """Let the weeks pass. `strikes`: when which cause strikes, instead of the seed's draws.

    >>> job = InterruptedTraining((FailureCause("gpu", 1e9, 0.0, 20.0),), interval=100.0, stall=10.0, horizon=1e6, work=300.0)
    >>> train(job, {"gpu": [Strike(150.0)]}).wall
    380.0
    """
    return _Job(training, strikes).run()


@dataclass(frozen=True, slots=True)
class _Failure:
    cause: FailureCause
    replicas: tuple[int, ...]
    """that it takes with it"""
    mended: float = 0.0
    """before which nothing goes on, or these do not come back"""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A checkpoint: how many pieces came before its end, and the work in it."""

    pieces: int = 0
    work: float = 0.0


_Happening = _Failure | None
_Passing = Generator[simpy.Event, Any, _Happening]


@dataclass
class _Open:
    """The piece that is passing."""

    begin: float
    kind: Kind
    cause: str
    rate: float


@dataclass
class _Machines:
    """Spare machines, and replicas that are away."""

    free: int
    lacking: int = 0
    """machines that the job waits for"""
    away: set[int] = field(default_factory=set)
    """replicas that are not in the job"""
    broken: list[tuple[int, ...]] = field(default_factory=list)
    """those of them that lack the same machine; the first get one first"""
    back: set[int] = field(default_factory=set)
    """those that have one again, and are not in the job yet"""


class _Job:
    """The processes of one sample path."""

    def __init__(self, training: InterruptedTraining, strikes: Mapping[str, Iterable[Strike]] | None) -> None:
        self.training = training
        self.clock = Clock()
        self.pieces: list[Piece] = []
        self.open: _Open | None = None
        self.work = 0.0
        self.durable = self.copied = _Mark()
        """the last checkpoints in storage and in memory"""
        self.writing: tuple[float, _Mark] | None = None
        """when a checkpoint will be durable"""
        self.machines = _Machines(training.spares)
        self.changed = self.clock.event()
        """a machine or a replica is back"""
        self.struck: list[tuple[float, str]] = []
        self.pace = Pace(0.0, 1.0)
        self.paced = self.clock.event()
        """training goes faster or slower from now on"""
        self.mended = 0.0
        """before which nothing goes on"""
        self.trainer = self.clock.process(self._train())
        for one in training.given:
            self.clock.process(self._strike(one))
        if training.paces:
            self.clock.process(self._run_through(training.paces))
        for cause in training.causes:
            times = drawn(cause.mtbf, cause.name, training.seed, training.run) if strikes is None else strikes.get(cause.name, ())
            self.clock.process(self._fail(cause, times))

    def run(self) -> TrainingRun:
        training = self.training
        self.clock.run(self.clock.any_of([self.trainer, self.clock.timeout(training.horizon)]))
        if self.open is not None:
            self._close()
        failures = dict(Counter(cause for _, cause in self.struck).most_common())
        return TrainingRun(training, self.clock.now, self.work, tuple(self.pieces), failures, tuple(self.struck))

    # what happens to the job

    def _fail(self, cause: FailureCause, times: Iterable[Strike]) -> Generator[simpy.Event, Any, None]:
        """One cause strikes again and again."""
        began = self.clock.now
        for strike in times:
            yield self.clock.timeout(max(0.0, began + strike.at - self.clock.now))
            if not self.trainer.is_alive:
                return
            self._hit(cause, strike)

    def _strike(self, given: GivenFailure) -> Generator[simpy.Event, Any, None]:
        """What strikes once."""
        yield self.clock.timeout(given.strike.at)
        if self.trainer.is_alive:
            self._hit(given.cause, given.strike, given.mended, given.replicas)

    def _hit(self, cause: FailureCause, strike: Strike, mended: float = 0.0, replicas: tuple[int, ...] = ()) -> None:
        """A failure, unless it hits what is away."""
        where = replicas or (min(int(strike.where * self.training.replicas), self.training.replicas - 1),)
        if hit := tuple(one for one in where if one not in self.machines.away):
            self.struck.append((self.clock.now, cause.name))
            self.trainer.interrupt(_Failure(cause, hit, mended))

    def _run_through(self, paces: Iterable[Pace]) -> Generator[simpy.Event, Any, None]:
        """Training goes faster and slower."""
        for pace in paces:
            yield self.clock.timeout(pace.at - self.clock.now)
            self.pace = pace
            self._tell_pace()

    def _tell_pace(self) -> None:
        self.paced.succeed()
        self.paced = self.clock.event()

    def _repair(self, cause: FailureCause) -> Generator[simpy.Event, Any, None]:
        """A machine is away and comes back: for the replicas that have lacked one longest, else into the pool."""
        yield self.clock.timeout(cause.repair)
        machines = self.machines
        if machines.broken:
            self._back(machines.broken.pop(0))
        else:
            machines.free += 1
            self._back(())

    def _mend(self, failure: _Failure) -> Generator[simpy.Event, Any, None]:
        """Replicas are away until nothing keeps them from the others."""
        yield self.clock.timeout(failure.mended - self.clock.now)
        self._back(failure.replicas)

    def _back(self, replicas: Iterable[int]) -> None:
        """Somebody may go on who waits; with the policy `replica` these train with the others from now on."""
        self.machines.back.update(replicas)
        if replicas and self.training.policy == "replica":
            self._rejoin()
            self._tell_pace()
        self.changed.succeed()
        self.changed = self.clock.event()

    # what the job does

    def _train(self) -> Generator[simpy.Event, Any, None]:
        training = self.training
        enough = training.work * _DONE
        while self.work < enough:
            happened = yield from self._weather("train", training.interval)
            if happened is None and self.work < enough:
                happened = yield from self._weather("save", training.stall)
                if happened is None:
                    self._saved()
                    if training.policy == "elastic" and self.machines.back:
                        self._rejoin()
                        happened = yield from self._pass("restart", training.restart, REJOIN)
            if happened is not None:
                self._roll_back(happened.cause)
                yield from self._stop(happened)

    def _weather(self, kind: Kind, seconds: float) -> _Passing:
        """Pass `seconds`, or for training as long as there is work; stops that lose nothing come between. The failure that does not."""
        left = seconds
        while left > 0.0:
            began = self.clock.now
            if kind == "train" and self._rate <= 0.0:
                happened = yield from self._pass("wait", self.paced, self.pace.cause)
            else:
                lasts = left
                if kind == "train":
                    lasts = min(left, max(0.0, (self.training.work - self.work) / self._rate))
                timer = self.clock.timeout(lasts)
                until = timer | self.paced if kind == "train" and self._may_change else timer
                happened = yield from self._pass(kind, until, self.pace.cause if kind == "train" else "")
                if happened is None and timer.processed:
                    return None
                left -= self.clock.now - began
            if happened is None:
                continue
            if self.training.policy != "replica" or len(self.machines.away.union(happened.replicas)) == self.training.replicas:
                return happened
            yield from self._stop(happened)
        return None

    def _stop(self, failure: _Failure) -> _Passing:
        """The job stands: the failure is noticed, a machine is found, everything starts. A failure meanwhile begins it again."""
        again: _Failure | None = failure
        while again is not None:
            cause = again.cause
            if not self._leave:
                self.mended = max(self.mended, again.mended)
            self._exchange(again)
            again = yield from self._pass("lost" if cause.silent else "detect", cause.detect, cause.name)
            while again is None and (self.machines.lacking > self.machines.free or self._share <= 0.0):
                again = yield from self._pass("wait", self.changed, cause.name)
                if self.training.policy == "elastic":
                    self._rejoin()
            if again is None and self.mended > self.clock.now:
                again = yield from self._pass("wait", self.mended - self.clock.now, cause.name)
            if again is None:
                self.machines.free -= self.machines.lacking
                self.machines.lacking = 0
                again = yield from self._pass("restart", cause.restart, cause.name)
        if self.training.policy == "elastic":
            self._rejoin()
        return None

    def _exchange(self, failure: _Failure) -> None:
        """Send the machine that failed to be repaired; another takes its place where there is one, else its replicas leave."""
        cause, machines, training = failure.cause, self.machines, self.training
        if self._leave and failure.mended:
            machines.away.update(failure.replicas)
            self.clock.process(self._mend(failure))
        if cause.repair <= 0.0:
            return
        pooled = training.spares > 0
        if not self._leave:
            if pooled:
                machines.lacking += 1
                self.clock.process(self._repair(cause))
        elif pooled and machines.free > 0:
            machines.free -= 1
            self.clock.process(self._repair(cause))
        else:
            machines.away.update(failure.replicas)
            machines.broken.append(failure.replicas)
            self.clock.process(self._repair(cause))

    def _rejoin(self) -> None:
        """Repaired replicas are in the job again."""
        self.machines.away -= self.machines.back
        self.machines.back.clear()

    @property
    def _leave(self) -> bool:
        """Whether the others go on without the replicas that a failure takes with it."""
        return self.training.policy in ("elastic", "replica")

    @property
    def _share(self) -> float:
        """Replicas that train, of all."""
        return 1.0 - len(self.machines.away) / self.training.replicas

    @property
    def _rate(self) -> float:
        """Work per time of training."""
        speed = self.pace.speed * (self.training.writing_speed if self._writes else 1.0)
        return self._share * speed

    @property
    def _writes(self) -> bool:
        """Whether a checkpoint is on its way to storage."""
        return self.writing is not None and self.clock.now < self.writing[0]

    @property
    def _may_change(self) -> bool:
        """Whether the rate may change while training goes on."""
        training = self.training
        return bool(
            training.paces or (training.writing_speed != 1.0 and self._writes) or (training.policy == "replica" and self.machines.away)
        )

    # books

    def _pass(self, kind: Kind, how_long: float | simpy.Event, cause: str = "") -> _Passing:
        """Let time pass; the failure that ended it early."""
        if how_long == 0.0:
            return None
        happened: _Happening = None
        self._begin(kind, cause)
        try:
            yield how_long if isinstance(how_long, simpy.Event) else self.clock.timeout(how_long)
        except simpy.Interrupt as interrupt:
            happened = interrupt.cause
        self._close()
        return happened

    def _begin(self, kind: Kind, cause: str = "") -> None:
        self.open = _Open(self.clock.now, kind, cause, self._rate)

    def _close(self) -> None:
        """Write down the piece that has been passing."""
        one, now = self.open, self.clock.now
        self.open = None
        if one is None or now <= one.begin:
            return
        if one.kind == "train":
            self.work += (now - one.begin) * one.rate
        self.pieces.append(Piece(one.begin, now, one.kind, one.cause))

    def _saved(self) -> None:
        """A stall has ended: the copy is taken, and becomes durable after the lag."""
        self._settle()
        mark = self.copied = _Mark(len(self.pieces), self.work)
        if self.training.lag == 0.0:
            self.durable = mark
        elif self.writing is None:  # one at a time: what is still being written is not overtaken
            self.writing = (self.clock.now + self.training.lag, mark)
            if self.training.writing_speed != 1.0:
                self.clock.timeout(self.training.lag).callbacks.append(lambda _: self._tell_pace())

    def _settle(self) -> None:
        """What has been written by now is durable."""
        if self.writing is not None and self.writing[0] <= self.clock.now:
            self.durable, self.writing = self.writing[1], None

    def _roll_back(self, cause: FailureCause) -> None:
        """Training goes on from the last checkpoint that survives; what came after it is lost."""
        self._settle()
        if cause.in_memory:
            mark = self.copied
        else:
            mark, self.writing = self.durable, None
            self.copied = mark
        for place in range(mark.pieces, len(self.pieces)):
            piece = self.pieces[place]
            if piece.kind in ("train", "save"):
                self.pieces[place] = replace(piece, kind="lost", cause=cause.name)
        self.work = mark.work
