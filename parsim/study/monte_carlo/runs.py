"""simulate_runs(): the report of a scenario whose step is simulated many times, by this process or by others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

from parsim.errors import ParsimError
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.monte_carlo.gather import Answer
from parsim.monte_carlo.question import RunQuestion, Sampled, Sampler, answers
from parsim.monte_carlo.repeated import repeated
from parsim.monte_carlo.stopping import Until
from parsim.report.report import Report
from parsim.run import reported
from parsim.scenario.build import build
from parsim.scenario.scenario import Scenario
from parsim.simulation.engine import collector_paused
from parsim.study.monte_carlo.paths import played
from parsim.study.monte_carlo.run_journal import RunJournal
from parsim.study.variants import QueueJob, Runner, Work
from parsim.study.workers import Crew, at_work, crew, stamp

_PROBE, _WORTHWHILE = 1.0, 8.0
"""how long this process tries alone, and how long the rest would have to take it for others to be asked [s]"""
_TOGETHER = 150
"""questions that are one array"""
Watch = Callable[[Iterable[Any], int], Iterable[Any]]
"""is given the runs as they come and how many there will be; passes them on"""


def simulate_runs(  # noqa: PLR0913 - one keyword per option of the command, who simulates it, and who listens
    scenario: Scenario,
    *,
    unfolded: bool = False,
    out: Path | None = None,
    until: Until | None = None,
    workers: int | None = 1,
    executor: Executor | None = None,
    dask: str | None = None,
    watch: Watch | None = None,
    slow_gpu: float | None = None,
) -> Report:
    """Simulate a scenario, and its step as often as ``variability.runs`` says, or less often where `until` says that it is enough.

    `workers` processes make the runs (1: this one; None: one per CPU where this one would take long), or any `executor`, or the Dask
    scheduler at address `dask`: the answer is the same to the last bit. Runs are kept in the directory `out` as they come; what is there
    is not made again. `slow_gpu` as in `parsim.run.simulate`.

    Raises as `parsim.run.simulate`; ParsimError: the workers cannot work.
    """
    with ExitStack() as stack:
        patient = workers is None and executor is None and dask is None
        hands = partial(_hands, stack, crew_of=lambda work: crew(workers, executor, dask, work))
        journal = None

        def answer(sampler: Sampler) -> Answer:
            nonlocal journal
            if out is not None and journal is None:
                journal = stack.enter_context(RunJournal(out, scenario, unfolded=unfolded))
            return _Answers(scenario, sampler, journal, hands, watch, unfolded=unfolded, patient=patient)

        play = partial(played, hands=hands, patient=patient, watch=watch or (lambda came, _: came))
        return reported(scenario, unfolded=unfolded, repeat=partial(repeated, answer=answer, until=until), play=play, slow_gpu=slow_gpu)


def _hands(stack: ExitStack, work: int, crew_of: Callable[[int], Crew]) -> Crew:
    """A crew that is sent home at the end, whatever happens."""
    found = crew_of(work)
    stack.push(lambda kind, *_: found.close(now=kind is not None))
    return found


class _Answers:
    """Gets questions answered, and keeps the answers first."""

    def __init__(
        self,
        scenario: Scenario,
        sampler: Sampler,
        journal: RunJournal | None,
        hands: Callable[[int], Crew],
        watch: Watch | None,
        *,
        unfolded: bool,
        patient: bool,
    ) -> None:
        self._scenario, self._sampler, self._journal, self._unfolded = scenario, sampler, journal, unfolded
        self._patient = patient
        """whether this process begins alone, and others help where it would take long"""
        self._hands, self._watch = hands, watch or (lambda came, _: came)
        self._crew: Crew | None = None

    def __call__(self, questions: Sequence[RunQuestion]) -> Iterator[tuple[RunQuestion, Sampled]]:
        known = {} if self._journal is None else {one: before for one in questions if (before := self._journal.known(one)) is not None}
        yield from known.items()
        asked = [one for one in questions if one not in known]
        if asked:
            with closing(self._came(asked)) as came:
                yield from self._watch(came, len(asked))

    def _came(self, asked: Sequence[RunQuestion]) -> Generator[tuple[RunQuestion, Sampled], None, None]:
        here = partial(answers, self._sampler)
        done: set[RunQuestion] = set()
        if self._crew is None and self._patient:
            began = monotonic()
            for found in self._made(Crew(), _RunQueue(asked, here, self._fewest(len(asked)))):
                yield from found
                done |= {one for one, _ in found}
                spent = monotonic() - began
                if spent > _PROBE and spent * (len(asked) - len(done)) / len(done) > _WORTHWHILE:
                    break
        left = [one for one in asked if one not in done]
        if not left:
            return
        if self._crew is None:
            self._crew = self._hands(len(left))
        alone = type(self._crew) is Crew
        queue = _RunQueue(
            left, here if alone else partial(_answered, self._scenario, self._unfolded), self._fewest(len(left) // self._crew.workers)
        )
        for found in self._made(self._crew, queue):
            yield from found

    def _fewest(self, share: int) -> int:
        """Runs that are asked for together, of so many for each worker: as longest paths they share most of their work."""
        return 1 if self._sampler.by_events else max(1, min(_TOGETHER, share))

    def _made(self, crew: Crew, queue: _RunQueue) -> Generator[list[tuple[RunQuestion, Sampled]], None, None]:
        """Answers as a crew gives them, kept first."""
        with closing(Runner(queue, crew).run(keep=True)) as came:
            for answered in came:
                found = [(job.place, answer) for job, answer in answered]
                if self._journal is not None:
                    self._journal.keep(found)
                yield found


class _RunQueue:
    """The queue of runs, in their order; those of one number share their draws, so that they are answered together."""

    def __init__(self, asked: Sequence[RunQuestion], job: Callable[[Sequence[RunQuestion]], Sequence[Sampled]], fewest: int) -> None:
        self._left = iter(sorted(asked, key=lambda one: one.number))
        self._job, self._fewest = job, fewest

    def take(self, sizes: Mapping[str, int]) -> list[QueueJob[RunQuestion]]:
        return [QueueJob("run", one) for one in islice(self._left, max(self._fewest, sizes["run"]))]

    def work(self, jobs: Sequence[QueueJob[RunQuestion]]) -> Work:
        asked = [job.place for job in jobs]
        return (self._job, (asked,)) if self._is_here else (at_work, (stamp(), self._job, asked))

    @property
    def _is_here(self) -> bool:
        return isinstance(self._job, partial) and self._job.func is answers

    def tell(self, answered: Sequence[tuple[QueueJob[RunQuestion], Any]]) -> None:
        """Nothing follows from it."""

    def lost(self, job: QueueJob[RunQuestion], reason: str) -> Sampled:
        """A run is not a candidate that may be missing: without it there is no mean."""
        raise ParsimError(f"run {job.place.number} cannot be made: {reason}; the runs so far are kept")


def _answered(scenario: Scenario, unfolded: bool, asked: Sequence[RunQuestion]) -> list[Sampled]:
    """What a worker does: it prepares the step once for all its runs."""
    return answers(_sampler(_Kept(scenario), unfolded), asked)


class _Kept:
    """A scenario by what it says, so that a worker finds again what it prepared for it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._hash = scenario.hash()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and other._hash == self._hash

    def __hash__(self) -> int:
        return hash(self._hash)


@lru_cache(maxsize=2)
def _sampler(kept: _Kept, unfolded: bool) -> DisturbedStep:
    with collector_paused():
        built = build(kept.scenario)
        return DisturbedStep(prepare(built, unfolded=unfolded or not built.report.fold))
