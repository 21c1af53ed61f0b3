"""One step on machines that are not all equal and never twice the same: which draws disturb it, and what it takes then.

The draws of a run have addresses (`parsim.simulation.draws`): whichever ranks are folded and whichever causes are on, an op of a rank
meets the same ones. Two ways lead to the step:

by events     every op of every replica; a tensor-parallel group is one lane, at its slowest member between two meetings
longest path  for what is too large for that: arrays over replicas and runs. Order, shared links and what communication takes from
              kernels are those of the undisturbed step; replicas wait for each other as they do

What of a run is the step says `parsim.execution.readings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice

import numpy as np

from parsim.execution.prepared import Prepared
from parsim.execution.readings import STEP_BITS, reading_of
from parsim.parallel.groups import CONTEXT, TENSOR
from parsim.simulation.draws import Floats
from parsim.simulation.engine import collector_paused
from parsim.simulation.factors import EVERYWHERE, Factors
from parsim.simulation.lone_workers import LoneWorkers
from parsim.simulation.longest_path import Chains
from parsim.simulation.op_factors import Columns, Disturbance, Integers, Kernels, OpFactors
from parsim.simulation.slowest_rank import SlowestRank
from parsim.simulation.step_arrays import StepArrays
from parsim.simulation.trace import Trace
from parsim.simulation.watched import Watched
from parsim.variability import STATIC, Variability

MOST_EVENTS = 50_000
"""ops of all replicas that a run by events may have; a larger step is a longest path (a core runs about 200,000 of them a second)"""
EVENTS = "events"
LONGEST_PATH = "longest-path: order, shared links and interference as in the undisturbed step"
_TOGETHER = 512
"""runs of a program whose results are held at one time"""
HASHING = "hashing"
"""the cause that is another cluster, on which the step is prepared again"""
ALIKE = frozenset({"step"})
"""causes that touch all replicas alike"""


@dataclass(frozen=True)
class StepSample:
    """One disturbed step."""

    run: int
    """which one: the same number has the same draws"""
    step_time: float
    """[s]"""
    slowest: int
    """the rank whose kernels take longest, in proportion to what they take undisturbed; -1: none is slower than all others"""
    slowness: float
    """how many times as long they take"""


class DisturbedStep:
    """Samples of the step of a scenario with `variability`; what all of them need is made once.

    `prepared` is the undisturbed step, `nominal` what it takes [s] (None: it is run). `by_events` chooses the way; None: by size.
    """

    def __init__(self, prepared: Prepared, nominal: float | None = None, *, by_events: bool | None = None) -> None:
        self._reading = reading_of(prepared)
        self._known_nominal = nominal
        self._whole = prepared
        self._last_hash: tuple[int, DisturbedStep] | None = None
        prepared = prepared if prepared.local_step is None else prepared.local_step
        self._prepared = prepared
        self.variability = prepared.built.variability or Variability()
        self.causes: frozenset[str] = frozenset(self.variability.causes)
        """those that are on in the scenario"""
        self._drawn = Factors(self.variability)
        self._columns = Columns(prepared.plan)
        drawn = self.causes - {HASHING}
        alike = drawn <= ALIKE or (drawn <= ALIKE | {"pause"} and self.variability.aligned)
        factors = OpFactors(prepared.plan, prepared.lowering.program, prepared.classes if prepared.folded else None, self._columns)
        size = sum(len(some.ops) * len(factors.columns[some.rank]) for some in factors.kernels)
        size += sum(len(some.ops) * len(some.columns) for some in factors.transfers)
        size *= self._reading.programs(self.causes)
        self.by_events = size <= MOST_EVENTS or not prepared.folded if by_events is None else by_events
        if self.by_events and prepared.folded and not alike:
            kinds = self._columns.of.tolist()
            if prepared.plan.mesh.size(CONTEXT) > 1 and size * prepared.plan.mesh.size(TENSOR) <= MOST_EVENTS:
                kinds = list(range(prepared.plan.mesh.ranks))  # every tensor rank has a ring of its own between the meetings
            self._prepared = prepared = prepared.apart(kinds)
            factors = OpFactors(prepared.plan, prepared.lowering.program, prepared.classes, self._columns)
        self._factors = factors

    @property
    def method(self) -> str:
        """How samples are found."""
        return EVENTS if self.by_events else LONGEST_PATH

    @property
    def _trace(self) -> Trace:
        """The undisturbed step."""
        return self._prepared.undisturbed

    @cached_property
    def nominal(self) -> float:
        """What the undisturbed step takes [s]."""
        return self._reading.nominal if self._known_nominal is None else self._known_nominal

    def samples(self, runs: Iterable[int], causes: Iterable[str] | None = None) -> list[StepSample]:
        """The step of each run, with all causes or with some of them only: others then change nothing, and the draws are the same."""
        chosen = self.causes if causes is None else frozenset(causes)
        return self.answers((run, chosen) for run in runs)

    def answers(self, asked: Iterable[tuple[int, Iterable[str]]]) -> list[StepSample]:
        """The steps of runs, each with some causes. As arrays, what is asked of one run shares its draws."""
        samples = [(run, self.causes & frozenset(causes)) for run, causes in asked]
        hashed = sorted((place for place, (_, causes) in enumerate(samples) if HASHING in causes), key=lambda place: samples[place][0])
        if hashed:
            found = {
                place: self._of_hash(samples[place][0]).answers([(samples[place][0], samples[place][1] - {HASHING})])[0] for place in hashed
            }
            others = iter(self._answers([one for place, one in enumerate(samples) if place not in found]))
            return [found[place] if place in found else next(others) for place in range(len(samples))]
        return self._answers(samples)

    def _of_hash(self, run: int) -> DisturbedStep:
        """The step on the cluster of a run, whose flows are hashed onto paths of their own; the last one is kept."""
        if self._last_hash is None or self._last_hash[0] != run:
            seed = int(self._drawn.draws.uniform(run, HASHING, EVERYWHERE, 1)[0] * 2**53)
            step = DisturbedStep(self._whole.hashed_anew(seed), by_events=self.by_events)
            self._last_hash = run, step
        return self._last_hash[1]

    def _answers(self, samples: Sequence[tuple[int, frozenset[str]]]) -> list[StepSample]:
        """The same where all flows take the paths of this cluster."""
        read: list[list[Floats]] = [[] for _ in samples]
        slowest = [SlowestRank(self._prepared.plan.mesh.ranks) for _ in samples]
        first: dict[int, Disturbance] = {}
        with collector_paused():
            programs = self._programs(samples)
            while some := list(islice(programs, _TOGETHER)):
                for (place, one), (ends, worst) in zip(some, self._ends([one for _, one in some]), strict=True):
                    first.setdefault(place, one)
                    read[place].append(ends)
                    slowest[place].join(worst)
            return [
                StepSample(run, self._reading.seconds(np.array(ends), first[place], self._plain), *worst.worst())
                for place, ((run, _), ends, worst) in enumerate(zip(samples, read, slowest, strict=True))
            ]

    def _plain(self) -> tuple[Floats, float]:
        """What is read off where nothing is drawn, and the undisturbed step [s]."""
        return self._undisturbed, self.nominal

    def _programs(self, samples: Sequence[tuple[int, frozenset[str]]]) -> Iterator[tuple[int, Disturbance]]:
        """(place of the sample, disturbance) of every run of the program; those that share draws stand together."""
        order = sorted(range(len(samples)), key=lambda place: samples[place][0])
        for _, same in groupby(order, key=lambda place: samples[place][0]):
            whole = {place: self._disturbance(*samples[place]) for place in same}
            count = {place: self._reading.programs(one.causes) for place, one in whole.items()}
            for number in range(max(count.values())):
                for place, one in whole.items():
                    if number < count[place]:
                        yield place, self._again(one, number) if number else one

    def _ends(self, disturbances: Sequence[Disturbance]) -> Iterable[tuple[Floats, SlowestRank]]:
        """(what is read off, who was slowest) of each."""
        return map(self._by_events, disturbances) if self.by_events else self._arrays.steps(disturbances)

    @cached_property
    def _undisturbed(self) -> Floats:
        ((ends, _),) = self._ends([self._disturbance(0, frozenset())])
        return ends

    @cached_property
    def _watched(self) -> tuple[Watched, ...]:
        return self._reading.watched(self._prepared)

    @cached_property
    def _arrays(self) -> StepArrays:
        return StepArrays(self._factors, self._columns.count, self._trace, self._watched)

    @cached_property
    def _segments(self) -> Integers:
        return Chains(self._prepared.lowering.program).segment

    def _disturbance(self, run: int, causes: frozenset[str]) -> Disturbance:
        """What one run does."""
        drawn, built = self._drawn, self._prepared.built
        ranks = None
        if causes & set(STATIC):
            cluster = built.cluster
            gpus = drawn.of_gpus(run, max(built.gpus) + 1, cluster.node_of, spread="gpus" in causes, slow_nodes="slow_nodes" in causes)
            ranks = gpus[list(built.gpus)]
        return Disturbance(drawn, run, causes, ranks, self._of_step(run, causes), self._spans if "pause" in self.causes else ())

    def _again(self, one: Disturbance, number: int) -> Disturbance:
        """The same cluster in another step of the same run."""
        run = one.run | number << STEP_BITS
        return replace(one, run=run, step=self._of_step(run, one.causes))

    def _of_step(self, run: int, causes: frozenset[str]) -> float:
        return float(self._drawn.jitter(run, "step", EVERYWHERE, 1)[0]) if "step" in causes else 1.0

    @cached_property
    def _spans(self) -> Sequence[tuple[float, float]]:
        return self._reading.spans(self._prepared)

    def by_worker(self, runs: int, causes: Iterable[str], numbers: int) -> Floats:
        """What each worker alone costs (`LoneWorkers`) in the first runs, shape (runs, stages, replicas).

        They are `runs`, or as many as arrays of `numbers` hold. For a step whose samples are longest paths.
        """
        workers, chosen = LoneWorkers(self._factors, self._columns.count, self._trace), frozenset(causes)
        count = max(1, min(runs, numbers // max(1, workers.numbers * workers.stages)))
        with collector_paused():
            return workers.slowdowns([self._disturbance(run, chosen) for run in range(count)])

    # -- by events ------------------------------------------------------------------------------------------------------

    def _by_events(self, disturbance: Disturbance) -> tuple[Floats, SlowestRank]:
        factors = np.ones(len(self._prepared.lowering.program.spec))
        slowest = SlowestRank(self._prepared.plan.mesh.ranks)
        for some in self._factors.kernels:
            found = self._of_kernels(some, disturbance)[0]
            seconds, segments = found * some.seconds, self._bounds(some)
            if some.cause != "host":
                slowest.add(self._factors.members[some.rank][0], seconds.sum(axis=1), float(some.seconds.sum()))
            longest = np.argmax(np.add.reduceat(seconds, segments, axis=1), axis=0)
            factors[some.ops] = found[np.repeat(longest, np.diff([*segments, len(some.ops)])), np.arange(len(some.ops))]
        if "collective" in disturbance.causes:
            for transfer in self._factors.transfers:
                factors[transfer.ops] = self._factors.of_transfers(transfer, disturbance)[0]
        ends = self._prepared.trace(factors.tolist()).ends
        return np.array([ends[ops].max(initial=0.0) for ops in self._seen]), slowest

    @cached_property
    def _seen(self) -> list[Integers]:
        """By watched, its ops."""
        program = self._prepared.lowering.program
        ranks = [{lane.rank for lane in spec.lanes} for spec in program.specs]
        found = []
        for one in self._watched:
            ops = np.arange(len(program.spec)) if one.ops is None else one.ops
            if one.columns is not None:
                here = {rank for rank, columns in self._factors.columns.items() if np.isin(columns, one.columns).any()}
                ops = ops[np.array([not here.isdisjoint(some) for some in ranks])[np.array(program.spec)[ops]]]
            found.append(ops)
        return found

    def _bounds(self, some: Kernels) -> list[int]:
        """Where among some kernels of a lane the segments begin: between them nobody else waits, nor do they."""
        return np.flatnonzero(np.r_[True, np.diff(self._segments[some.ops]) != 0]).tolist()

    def _of_kernels(self, some: Kernels, disturbance: Disturbance) -> Floats:
        """Factors of kernels, shape (columns, side by side, ops), with the pauses of the hosts of their ranks."""
        factors = self._factors.of_kernels(some, disturbance)
        if "pause" in disturbance.causes & some.felt:
            starts, members = self._trace.starts[some.ops], self._factors.members[some.rank]
            for place in np.ndindex(members.shape):
                for struck, late in disturbance.held_up(int(members[place]), starts):
                    factors[place][struck] += late / some.seconds[struck]
        return factors
