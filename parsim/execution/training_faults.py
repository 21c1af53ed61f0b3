"""Faults at given moments of a training over weeks: which of them fail the job, and how fast it goes while the others last.

A training is a stream of work: while something is slow, a second of it is worth nominal / disturbed step of work, where the disturbed
step is simulated with all that is slow at that time from its begin to its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TypeVar

from parsim.errors import Finding, PlanError
from parsim.execution.faulted import FaultedStep
from parsim.execution.prepared import Prepared
from parsim.faults import Fault, LinkFault, RankFault, SlowWindow
from parsim.hardware.fabric.storage import behind
from parsim.parallel.groups import DATA
from parsim.report.training_faults import TrainingFault
from parsim.scenario.faults import Broken
from parsim.simulation.failure_times import Strike
from parsim.simulation.interrupted import FailureCause, GivenFailure, InterruptedTraining, Pace

MOST_STATES = 200
"""different sets of faults that last at one time: each is a step that is simulated"""
_ALIKE = 1e-9
"""relative: two step times this close are equal"""
Lasting = TypeVar("Lasting", SlowWindow, LinkFault)


@dataclass(frozen=True)
class BrokenTraining:
    """What the faults of a scenario make of its training."""

    given: tuple[GivenFailure, ...]
    paces: tuple[Pace, ...]
    faults: tuple[TrainingFault, ...]
    warnings: tuple[Finding, ...]

    def of(self, training: InterruptedTraining) -> InterruptedTraining:
        """A training in which they happen."""
        return replace(training, given=self.given, paces=self.paces)


@dataclass(frozen=True)
class _Phase:
    """A while in which something is slow, or all stand still."""

    path: str
    name: str
    begin: float
    end: float
    slow: Fault | None
    """as it acts on a whole step; None: nothing moves"""


def broken_training(prepared: Prepared, nominal: float, training: InterruptedTraining) -> BrokenTraining:
    """What comes of every fault. `nominal`: the undisturbed step [s].

    Raises PlanError for what has no meaning: a fabric that stays down, replicas that leave and of which none is left.
    """
    return _Breaking(prepared, nominal, training).whole()


class _Breaking:
    def __init__(self, prepared: Prepared, nominal: float, training: InterruptedTraining) -> None:
        self.prepared, self.nominal, self.training = prepared, nominal, training
        self.given: list[GivenFailure] = []
        self.phases: list[_Phase] = []
        self.rows: list[TrainingFault] = []
        self.warnings: list[Finding] = []
        self._known: dict[frozenset[Fault], float] = {}

    @cached_property
    def step(self) -> FaultedStep:
        """The step with faults; made when one of them slows it."""
        return FaultedStep(self.prepared, self.nominal)

    def whole(self) -> BrokenTraining:
        for broken in self.prepared.built.faults:
            before = len(self.rows)
            if broken.fault.begin >= self.training.horizon:
                self._nothing(broken, "it begins after economics.horizon")
            elif isinstance(broken.fault, RankFault):
                self._fail(broken, broken.fault.notice, self._replicas(broken, broken.fault.ranks))
            elif isinstance(broken.fault, SlowWindow):
                self._slow(broken, broken.fault)
            else:
                self._link(broken, broken.fault)
            if len(self.rows) == before:
                self._nothing(broken, "it changes nothing: no transfer crosses it, or what it slows hides in what others take anyway")
        return BrokenTraining(tuple(self.given), self._paces(), tuple(self.rows), tuple(self.warnings))

    def _nothing(self, broken: Broken, why: str) -> None:
        fault = broken.fault
        self.rows.append(TrainingFault(broken.path, fault.name, fault.begin, _finite(getattr(fault, "end", inf)), "nothing"))
        hint = "with economics.horizon the time counts from the begin of the training"
        self.warnings.append(Finding(f"{fault.name}: {why}", broken.path, suggestion=hint))

    # what fails the job

    def _fail(self, broken: Broken, detect: float, replicas: tuple[int, ...], *, repaired: bool = True, mended: float = 0.0) -> None:
        fault, economics = broken.fault, self.prepared.built.scenario.settings.economics
        repair = float(economics.recovery.repair) if repaired else 0.0
        memory = economics.checkpoint.mode == "memory"
        cause = FailureCause(fault.name, inf, detect, self.training.restart, repair, in_memory=memory)
        self.given.append(GivenFailure(cause, Strike(fault.begin), mended, replicas))
        self.rows.append(TrainingFault(broken.path, fault.name, fault.begin, None, "fails"))

    def _replicas(self, broken: Broken, ranks: Iterable[int], *, exchanged: bool = True) -> tuple[int, ...]:
        """The replicas that a failure takes with it; none where all stop together anyway. `exchanged`: by a machine that stands by."""
        if self.training.policy not in ("elastic", "replica"):
            return ()
        plan = self.prepared.plan
        each = max(1, plan.parallelism.data.size // self.training.replicas)
        hit = tuple(sorted({plan.mesh.coordinate(rank, DATA) // each for rank in ranks}))
        if len(hit) == self.training.replicas and not (exchanged and self.training.spares):
            count = f"all {len(hit)} replicas" if len(hit) > 1 else "the only replica"
            text = f"{broken.fault.name} takes {count} with it, and the policy {self.training.policy} leaves nobody to go on"
            raise PlanError(Finding(text, broken.path, None, "use economics.recovery.policy restart or hot_spare"))
        return hit

    def _cut_off(self, broken: Broken, fault: LinkFault) -> tuple[int, ...]:
        """The replicas on the machine of a link, or on those that reach the others over it."""
        built = self.prepared.built
        machines = {fault.machine}
        if fault.machine < 0 and self.training.policy in ("elastic", "replica"):
            machines = set(behind(built.cluster, fault.links, sorted({built.cluster.node_of(gpu) for gpu in built.gpus})))
            if not machines:
                text = f"{fault.name} cuts no machine off from the core of the network, so nobody knows which replicas leave"
                raise PlanError(Finding(text, broken.path, None, "use economics.recovery.policy restart or hot_spare"))
        ranks = [rank for rank, gpu in enumerate(built.gpus) if built.cluster.node_of(gpu) in machines]
        return self._replicas(broken, ranks, exchanged=fault.machine >= 0)

    # what makes it slower

    def _slow(self, broken: Broken, fault: SlowWindow) -> None:
        if fault.speed == 0:
            self._stand(broken, fault.begin, fault.end)
        else:
            self._last(broken, fault)

    def _link(self, broken: Broken, fault: LinkFault) -> None:
        if all(capacity for _, capacity in fault.capacities):
            self._last(broken, fault)
            return
        if self.step.outcome((replace(fault, begin=0.0, end=inf, fallback=()),)).failure is None:
            return  # no transfer crosses it
        stands = fault.waits(fault.begin) - fault.begin
        if stands <= fault.give_up or fault.give_up == inf:
            self._stand(broken, fault.begin, fault.begin + stands)
        elif fault.fallback:
            taken = fault.begin + fault.give_up
            if fault.give_up:
                self._stand(broken, fault.begin, taken)
            nothing = tuple((link, self.step.split.fabric.capacity(link)) for link, _ in fault.capacities)
            self._last(broken, replace(fault, capacities=tuple(dict((*nothing, *fault.fallback)).items()), begin=taken, fallback=()))
        elif fault.machine >= 0:
            self._fail(broken, fault.give_up, self._cut_off(broken, fault))
        elif fault.end == inf:
            text = f"{fault.name} and never comes back: the job fails, and no other machine mends a link between switches"
            raise PlanError(Finding(text, broken.path, None, "say until when, for example until: 4 d"))
        else:
            self._fail(broken, fault.give_up, self._cut_off(broken, fault), repaired=False, mended=fault.end)

    def _stand(self, broken: Broken, begin: float, end: float) -> None:
        self.phases.append(_Phase(broken.path, broken.fault.name, begin, end, None))
        self.rows.append(TrainingFault(broken.path, broken.fault.name, begin, _finite(end), "stands", None, 0.0))

    def _last(self, broken: Broken, fault: Lasting) -> None:
        whole = replace(fault, begin=0.0, end=inf)
        time = self._step_time(frozenset((whole,)))
        if abs(time - self.nominal) <= _ALIKE * self.nominal:
            return
        self.phases.append(_Phase(broken.path, fault.name, fault.begin, fault.end, whole))
        row = TrainingFault(broken.path, fault.name, fault.begin, _finite(fault.end), "slower", time, self.nominal / time)
        self.rows.append(row)

    def _step_time(self, faults: frozenset[Fault]) -> float:
        """A step that has some of them from its begin to its end [s]."""
        if not faults:
            return self.nominal
        if faults not in self._known:
            self._known[faults] = self.step.outcome(sorted(faults, key=lambda one: one.name)).end
        return self._known[faults]

    def _paces(self) -> tuple[Pace, ...]:
        """Speed of the training from each change on."""
        times = sorted({time for phase in self.phases for time in (phase.begin, phase.end) if time < self.training.horizon})
        states = [[phase for phase in self.phases if phase.begin <= time < phase.end] for time in times]
        if len({frozenset(phase.name for phase in state) for state in states}) > MOST_STATES:
            text = f"more than {MOST_STATES} different sets of faults at one time; each is a step that is simulated"
            raise PlanError(Finding(text, "variability.faults", len(self.phases), "name fewer"))
        return tuple(Pace(time, self._speed(state), " and ".join(dict.fromkeys(phase.name for phase in state))) for time, state in
                     zip(times, states, strict=True))  # fmt: skip

    def _speed(self, state: Iterable[_Phase]) -> float:
        lasting = [phase.slow for phase in state]
        known = frozenset(one for one in lasting if one is not None)
        return 0.0 if len(known) < len(lasting) and None in lasting else self.nominal / self._step_time(known)


def _finite(time: float) -> float | None:
    return None if time == inf else time
