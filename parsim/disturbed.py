"""One step on machines that are not all equal and never twice the same: which draws disturb it, and what it takes then.

The draws of a run have addresses (`parsim.simulation.draws`): whichever ranks are folded and whichever causes are on, an op of a rank
meets the same ones. Two ways lead to the step:

by events     every op of every replica; a tensor-parallel group is one lane, at its slowest member between two meetings
longest path  for what is too large for that: arrays over replicas and runs. Order, shared links and what communication takes from
              kernels are those of the undisturbed step; replicas wait for each other as they do
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parsim.errors import Finding, PlanError
from parsim.parallel.groups import CONTEXT, TENSOR
from parsim.prepared import Prepared
from parsim.simulation.draws import Floats
from parsim.simulation.engine import collector_paused
from parsim.simulation.factors import Factors
from parsim.simulation.longest_path import Chains, Meeting, ends
from parsim.simulation.op_factors import Columns, Disturbance, Kernels, OpFactors
from parsim.simulation.trace import Trace
from parsim.variability import STATIC, Variability

MOST_EVENTS = 50_000
"""ops of all replicas that a run by events may have; a larger step is a longest path (a core runs about 200,000 of them a second)"""
MOST_NUMBERS = 2**25
"""numbers of one array: it says how many runs go together"""
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

    @cached_property
    def _trace(self) -> Trace:
        """The undisturbed step."""
        return self._prepared.trace()

    @property
    def nominal(self) -> float:
        """What the undisturbed step takes [s]."""
        return self._trace.makespan if self._known_nominal is None else self._known_nominal

    def samples(self, runs: Iterable[int], causes: Iterable[str] | None = None) -> list[StepSample]:
        """The step of each run, with all causes or with some of them only: others then change nothing, and the draws are the same."""
        chosen = self.causes if causes is None else self.causes & frozenset(causes)
        disturbances = [self._disturbance(run, chosen) for run in runs]
        with collector_paused():
            if self.by_events:
                return [self._by_events(one) for one in disturbances]
            together = max(1, MOST_NUMBERS // (self._chains.count * self._columns.count))
            parts = [disturbances[first : first + together] for first in range(0, len(disturbances), together)]
            return [sample for part in parts for sample in self._longest_paths(part)]

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

    # -- by events ------------------------------------------------------------------------------------------------------

    def _by_events(self, disturbance: Disturbance) -> StepSample:
        factors = np.ones(len(self._prepared.lowering.program.spec))
        slowness = _Slowness()
        for some in self._factors.kernels:
            column = slice(0, 1)
            found = self._of_kernels(some, disturbance, column, some.seconds)[0]
            slowness.add(self._factors.members[some.rank][column], some, found[None])
            nodes = self._bounds(some)
            sums = np.add.reduceat(found * some.seconds, nodes, axis=1)
            slowest = np.repeat(np.argmax(sums, axis=0), np.diff([*nodes, len(some.ops)]))
            factors[some.ops] = found[slowest, np.arange(len(some.ops))]
        if "collective" in disturbance.causes:
            for transfer in self._factors.transfers:
                factors[transfer.ops] = self._factors.of_transfers(transfer, disturbance)[0]
        trace = self._prepared.trace(factors.tolist())
        return StepSample(disturbance.run, trace.makespan, *slowness.worst())

    # -- longest path ---------------------------------------------------------------------------------------------------

    @cached_property
    def _chains(self) -> Chains:
        return Chains(self._prepared.lowering.program)

    @cached_property
    def _order(self) -> list[tuple[int, list[int]]]:
        return self._chains.order()

    @cached_property
    def _meetings(self) -> dict[int, Meeting]:
        """Nodes in which columns wait for each other, or which only some have."""
        count, found = self._columns.count, {}
        for transfer in self._factors.transfers:
            groups, present = transfer.groups, None
            numbers = np.arange(count) + len(transfer.columns)
            if groups is not None:
                numbers[transfer.columns] = groups
                numbers = np.unique(numbers, return_inverse=True)[1]
            if len(transfer.columns) < count:
                present = np.isin(np.arange(count), transfer.columns)
            if groups is not None or present is not None:
                meeting = Meeting(present, None if groups is None else numbers)
                found.update(dict.fromkeys(self._chains.node[transfer.ops].tolist(), meeting))
        for some in self._factors.kernels:
            if len(columns := self._factors.columns[some.rank]) < count:
                meeting = Meeting(np.isin(np.arange(count), columns))
                found.update(dict.fromkeys(self._chains.node[some.ops].tolist(), meeting))
        return found

    def _longest_paths(self, disturbances: Sequence[Disturbance]) -> list[StepSample]:
        trace, node = self._trace, self._chains.node
        took = trace.ends - trace.starts
        seconds = np.zeros((self._chains.count, len(disturbances), self._columns.count))
        slowness = [_Slowness() for _ in disturbances]
        for some in self._factors.kernels:
            columns, nodes = self._factors.columns[some.rank], self._bounds(some)
            rows = max(1, MOST_NUMBERS // 4 // (len(some.ops) * self._factors.members[some.rank].shape[1]))
            for first in range(0, len(columns), rows):
                part = slice(first, first + rows)
                for number, one in enumerate(disturbances):
                    found = self._of_kernels(some, one, part, took[some.ops])
                    slowness[number].add(self._factors.members[some.rank][part], some, found)
                    sums = np.add.reduceat(found * took[some.ops], nodes, axis=2).max(axis=1)
                    seconds[node[some.ops[nodes]][:, None], number, columns[part]] += sums.T
        for transfer in self._factors.transfers:
            own = took[transfer.ops][:, None]
            for number, one in enumerate(disturbances):
                factors = self._factors.of_transfers(transfer, one).T if "collective" in one.causes else 1.0
                seconds[node[transfer.ops][:, None], number, transfer.columns] = own * factors
        latest = ends(self._order, seconds, self._meetings).max(axis=(0, 2))
        return [
            StepSample(one.run, float(end), *slow.worst()) for one, end, slow in zip(disturbances, latest, slowness, strict=True)
        ]  # fmt: skip

    # -- both -----------------------------------------------------------------------------------------------------------

    def _bounds(self, some: Kernels) -> list[int]:
        """Where among some kernels of a lane the nodes begin: between them nobody else waits, nor do they."""
        nodes = self._chains.node[some.ops]
        return np.flatnonzero(np.r_[True, np.diff(nodes) != 0]).tolist()

    def _of_kernels(self, some: Kernels, disturbance: Disturbance, rows: slice, seconds: Floats) -> Floats:
        """Factors of kernels, shape (columns, side by side, ops), with the pauses of the hosts of their ranks."""
        factors = self._factors.of_kernels(some, disturbance, rows)
        if "pause" not in disturbance.causes or some.cause == "host" or not some.on_compute:
            return factors
        starts = self._trace.starts[some.ops]
        for place in np.ndindex(factors.shape[:2]):
            share = self._drawn.pause(disturbance.run, int(self._factors.members[some.rank][rows][place]))
            if share is None:
                continue
            moment = share * self._trace.makespan
            struck = min(int(np.searchsorted(starts, moment)), len(starts) - 1)
            late = moment + self.variability.pause - max(moment, float(starts[struck]))
            if late > 0:
                factors[place][struck] += late / seconds[struck]
        return factors


class _Slowness:
    """Which rank's kernels take longest in proportion."""

    def __init__(self) -> None:
        self._own: dict[int, float] = {}
        self._whole: dict[int, float] = {}

    def add(self, members: np.ndarray[tuple[int, ...], np.dtype[np.int64]], some: Kernels, factors: Floats) -> None:
        """Some kernels of ranks, shapes (columns, side by side) and (columns, side by side, ops)."""
        if some.cause == "host":
            return
        whole = float(some.seconds.sum())
        for rank, own in zip(members.ravel().tolist(), (factors @ some.seconds).ravel().tolist(), strict=True):
            self._own[rank] = self._own.get(rank, 0.0) + own
            self._whole[rank] = self._whole.get(rank, 0.0) + whole

    def worst(self) -> tuple[int, float]:
        """(rank, how many times as long); -1 where no one is slower than all others."""
        times = sorted(((own / self._whole[rank], -rank) for rank, own in self._own.items()), reverse=True)
        if not times or (len(times) > 1 and times[0][0] <= times[1][0] * (1 + 1e-12)):
            return -1, times[0][0] if times else 1.0
        return -times[0][1], times[0][0]
