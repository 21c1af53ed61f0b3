"""One step on machines that are not all equal and never twice the same: which draws disturb it, and what it takes then.

The draws of a run have addresses (`parsim.simulation.draws`): whichever ranks are folded and whichever causes are on, an op of a rank
meets the same ones. Two ways lead to the step:

by events     every op of every replica; a tensor-parallel group is one lane, at its slowest member between two meetings
longest path  for what is too large for that: arrays over replicas and runs. Order, shared links and what communication takes from
              kernels are those of the undisturbed step; replicas wait for each other as they do
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parsim.errors import Finding, PlanError
from parsim.execution.prepared import Prepared
from parsim.parallel.groups import CONTEXT, TENSOR
from parsim.simulation.draws import Floats
from parsim.simulation.engine import collector_paused
from parsim.simulation.factors import Factors
from parsim.simulation.lone_workers import LoneWorkers
from parsim.simulation.longest_path import Chains
from parsim.simulation.op_factors import Columns, Disturbance, Integers, Kernels, OpFactors
from parsim.simulation.slowest_rank import SlowestRank
from parsim.simulation.step_arrays import StepArrays
from parsim.simulation.trace import Trace
from parsim.variability import STATIC, Variability

MOST_EVENTS = 50_000
"""ops of all replicas that a run by events may have; a larger step is a longest path (a core runs about 200,000 of them a second)"""
EVENTS = "events"
LONGEST_PATH = "longest-path: order, shared links and interference as in the undisturbed step"
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
    Raises PlanError for a schedule without a flush, whose steps overlap, and for groups of replicas that step alone.
    """

    def __init__(self, prepared: Prepared, nominal: float | None = None, *, by_events: bool | None = None) -> None:
        if prepared.plan.asynchronous:
            schedule = prepared.built.parallelism.pipeline.schedule
            text = "not supported yet: random differences under a schedule without a flush, whose steps overlap"
            raise PlanError(Finding(text, "variability", None, f"leave out jitter, gpus and host, or another schedule than {schedule}"))
        if prepared.plan.parallelism.data.outer.size > 1:
            text = (
                "not supported yet: random differences between groups of replicas that step alone, whose slowest is another one every step"
            )
            raise PlanError(Finding(text, "variability", None, "leave out jitter, gpus and host, or parallel.data.outer"))
        self._prepared = prepared
        self.variability = prepared.built.variability or Variability()
        self.causes: frozenset[str] = frozenset(self.variability.causes)
        """those that are on in the scenario"""
        self._drawn = Factors(self.variability)
        self._columns = Columns(prepared.plan)
        alike = self.causes <= ALIKE or (self.causes <= ALIKE | {"pause"} and self.variability.aligned)
        factors = OpFactors(prepared.plan, prepared.lowering.program, prepared.classes if prepared.folded else None, self._columns)
        size = sum(len(some.ops) * len(factors.columns[some.rank]) for some in factors.kernels)
        size += sum(len(some.ops) * len(some.columns) for some in factors.transfers)
        self.by_events = size <= MOST_EVENTS or not prepared.folded if by_events is None else by_events
        if self.by_events and prepared.folded and not alike:
            kinds = self._columns.of.tolist()
            if prepared.plan.mesh.size(CONTEXT) > 1 and size * prepared.plan.mesh.size(TENSOR) <= MOST_EVENTS:
                kinds = list(range(prepared.plan.mesh.ranks))  # every tensor rank has a ring of its own between the meetings
            self._prepared = prepared = prepared.apart(kinds)
            factors = OpFactors(prepared.plan, prepared.lowering.program, prepared.classes, self._columns)
        self._factors = factors
        self._known_nominal = nominal

    @property
    def method(self) -> str:
        """How samples are found."""
        return EVENTS if self.by_events else LONGEST_PATH

    @property
    def _trace(self) -> Trace:
        """The undisturbed step."""
        return self._prepared.undisturbed

    @property
    def nominal(self) -> float:
        """What the undisturbed step takes [s]."""
        return self._trace.makespan if self._known_nominal is None else self._known_nominal

    def samples(self, runs: Iterable[int], causes: Iterable[str] | None = None) -> list[StepSample]:
        """The step of each run, with all causes or with some of them only: others then change nothing, and the draws are the same."""
        chosen = self.causes if causes is None else frozenset(causes)
        return self.answers((run, chosen) for run in runs)

    def answers(self, asked: Iterable[tuple[int, Iterable[str]]]) -> list[StepSample]:
        """The steps of runs, each with some causes. As arrays, what is asked of one run shares its draws."""
        disturbances = [self._disturbance(run, self.causes & frozenset(causes)) for run, causes in asked]
        with collector_paused():
            if self.by_events:
                return [self._by_events(one) for one in disturbances]
            found = self._arrays.steps(disturbances)
        return [StepSample(one.run, seconds, *slowest.worst()) for one, (seconds, slowest) in zip(disturbances, found, strict=True)]

    @cached_property
    def _arrays(self) -> StepArrays:
        return StepArrays(self._factors, self._columns.count, self._trace)

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
        step = float(drawn.jitter(run, "step", (0, 0, 0), 1)[0]) if "step" in causes else 1.0
        return Disturbance(drawn, run, causes, ranks, step)

    def by_worker(self, runs: int, causes: Iterable[str], numbers: int) -> Floats:
        """What each worker alone costs (`LoneWorkers`) in the first runs, shape (runs, stages, replicas).

        They are `runs`, or as many as arrays of `numbers` hold. For a step whose samples are longest paths.
        """
        workers, chosen = LoneWorkers(self._factors, self._columns.count, self._trace), frozenset(causes)
        count = max(1, min(runs, numbers // max(1, workers.numbers * workers.stages)))
        with collector_paused():
            return workers.slowdowns([self._disturbance(run, chosen) for run in range(count)])

    # -- by events ------------------------------------------------------------------------------------------------------

    def _by_events(self, disturbance: Disturbance) -> StepSample:
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
        trace = self._prepared.trace(factors.tolist())
        return StepSample(disturbance.run, trace.makespan, *slowest.worst())

    def _bounds(self, some: Kernels) -> list[int]:
        """Where among some kernels of a lane the segments begin: between them nobody else waits, nor do they."""
        return np.flatnonzero(np.r_[True, np.diff(self._segments[some.ops]) != 0]).tolist()

    def _of_kernels(self, some: Kernels, disturbance: Disturbance) -> Floats:
        """Factors of kernels, shape (columns, side by side, ops), with the pauses of the hosts of their ranks."""
        factors = self._factors.of_kernels(some, disturbance)
        if "pause" in disturbance.causes & some.felt:
            starts, members = self._trace.starts[some.ops], self._factors.members[some.rank]
            for place in np.ndindex(members.shape):
                if (held := disturbance.held_up(int(members[place]), starts, self._trace.makespan)) is not None:
                    factors[place][held[0]] += held[1] / some.seconds[held[0]]
        return factors
