"""One way to run variants of a scenario: what each is, what came of it, and the loop that gets them done, here or on workers.

Comparisons, explanations, questions about memory, sweeps and sizing all go through it: whatever goes wrong with a variant becomes its
outcome, in the words of `STATUSES`, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from os import cpu_count
from pathlib import Path
from time import monotonic
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from parsim.errors import DeadlockError, Finding, InputError, ParsimError, PlanError
from parsim.execution.prepared import prepare
from parsim.execution.slow_gpu import slow_gpu
from parsim.report.report import Report
from parsim.report.slow_gpu import SlowGpu
from parsim.run import simulate, step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.scenario import Scenario
from parsim.study.axes import Partial
from parsim.study.workers import Crew, Processes

T = TypeVar("T")
S = TypeVar("S")
J = TypeVar("J", bound="Numbered")
J_co = TypeVar("J_co", bound="Numbered", covariant=True)
Source = str | Path | Mapping[str, Any] | Scenario
Status = Literal["fits", "does not fit", "deadlock", "refused", "failed"]
STATUSES: tuple[Status, ...] = ("fits", "does not fit", "deadlock", "refused", "failed")
"""the last: parsim or its process broke, which is nobody's fault but ours"""
Look = Callable[[Scenario], tuple[T, str]]
"""simulates a scenario: what is kept of it, and why it does not fit (empty: it fits)"""
LACKING = "it needs more memory than there is"
CHUNK_TIME = 0.5
"""what a chunk of jobs should take [s]: long beside sending it, short beside the patience of whoever looks at the bar"""
LARGEST_CHUNK = 64
_LOOK = 5.0
"""how often the crew is looked after [s]"""


# -- one variant ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A scenario with keys changed, not loaded yet."""

    source: Source
    arguments: tuple[str, ...] = ()
    """``key=value`` on top"""
    named: tuple[str, ...] = ()
    """blocks of the file's overrides"""
    partials: tuple[Partial, ...] = ()
    """parts of a scenario that stand in another file"""
    trust_code: bool = False
    """whether the Python files that the scenario names may run, in whatever process"""
    label: str = ""

    def scenario(self) -> Scenario:
        """Load it; a strategy that is to be searched for is found first.

        Raises:
            ScenarioError: all problems.
        """
        loaded = self._loaded()
        if loaded.settings.parallel.search == "none":
            return loaded
        from parsim.study.automatic import decided  # which simulates variants itself

        return decided(loaded)

    def _loaded(self) -> Scenario:
        if isinstance(self.source, Scenario):
            source = replace(self.source, trust_code=self.trust_code or self.source.trust_code)
            return source.with_overrides(*self.arguments) if self.arguments else source
        return load(self.source, *self.arguments, named=self.named, partials=self.partials, trust_code=self.trust_code)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of a variant."""

    status: Status
    answer: T | None = None
    """what was kept of its simulation; None where it was not simulated"""
    reason: str = ""
    """why it does not fit, or why there is no answer"""
    findings: tuple[Finding, ...] = ()
    """what is wrong with it"""
    scenario: Scenario | None = None
    """None where it could not be loaded"""

    @property
    def refusal(self) -> str:
        """Why it was not simulated, in one line without a place; empty where it was."""
        if self.status in ("fits", "does not fit"):
            return ""
        return self.findings[0].message if self.status == "refused" else self.reason


class Figures(NamedTuple):
    """What a change of a scenario does to its step."""

    step_time: float
    """[s]"""
    samples: int
    """per step"""
    peak: int
    """highest device memory in use on any rank [B]"""
    reserved: int = 0
    """most that the allocator of any rank holds in a short step, in which it may need a little less than in the whole one; 0 where it saw
    every micro-batch [B]"""

    @property
    def seconds_per_sample(self) -> float:
        """Comparable where a change also changes the batch."""
        return self.step_time / self.samples if self.samples else 0.0


def outcome(variant: Variant, look: Look[T]) -> Outcome[T]:
    """What `look` finds of one variant; whatever is wrong with it becomes its status and its reason."""
    return attempted(variant.scenario, look)


def attempted(load_or_build: Callable[[], S], look: Callable[[S], tuple[T, str]]) -> Outcome[T]:
    """The same of a scenario, or of the domain objects of one, that has yet to be made."""
    scenario: Scenario | None = None
    try:
        made = load_or_build()
        scenario = made if isinstance(made, Scenario) else None
        answer, lacking = look(made)
    except InputError as error:
        findings = tuple(error.findings if scenario is None else scenario.findings_at(error.findings))
        reason = "; ".join(": ".join(filter(None, (finding.path, finding.message))) for finding in findings)
        return Outcome("refused", None, reason, findings, scenario)
    except DeadlockError as error:
        first = next(iter(str(error).splitlines()), "the program waits for itself")
        return Outcome("deadlock", None, first, (Finding(str(error)),), scenario)
    except Exception as error:  # noqa: BLE001 - a variant that breaks parsim is an outcome, and the others go on
        return failed(f"internal error: {type(error).__name__}: {error}", scenario)
    return Outcome("does not fit" if lacking else "fits", answer, lacking, (), scenario)


def failed(reason: str, scenario: Scenario | None = None) -> Outcome[Any]:
    """The outcome of a variant with which parsim or its process broke."""
    return Outcome("failed", None, reason, (Finding(reason),), scenario)


def document(scenario: Scenario) -> tuple[dict[str, Any], str]:
    """Look at a scenario: its report as JSON has it."""
    report, lacking = whole(scenario)
    return report.document(), lacking


def whole(scenario: Scenario, *, slow_gpu: float | None = None) -> tuple[Report, str]:
    """Look at a scenario: its report, `slow_gpu` as in `parsim.run.simulate`."""
    report = simulate(scenario, slow_gpu=slow_gpu)
    return report, "" if report.fits else report.limiter


def figures(scenario: Scenario) -> tuple[Figures, str]:
    """Look at a scenario: its step, with its faults where it has some, and its memory. Where nothing breaks, a long step is answered
    from a short one that proves to repeat itself.
    """
    built = build(scenario)
    if built.faults and built.weeks is None:
        return _broken(scenario)
    step = step_of(built)
    memory = step.memory
    short = step.method == "periods" and memory is step.simulated_memory
    reserved = max((device.reserved_bytes for device in memory.devices), default=0) if short else 0
    return Figures(step.step_time, built.training.samples, memory.peak_bytes, reserved), "" if step.fits else LACKING


def slowed(scenario: Scenario, *, nominal: float, speed: float) -> tuple[SlowGpu | None, str]:
    """Look at a scenario, whose step takes `nominal` seconds: what one GPU at `speed` of its own costs."""
    return slow_gpu(prepare(build(scenario), unfolded=not scenario.settings.report.fold), nominal, speed), ""


def _broken(scenario: Scenario) -> tuple[Figures, str]:
    """The same of a step in which something breaks."""
    report, lacking = whole(scenario)
    effect = None if (faults := report.measured.faults) is None else faults.together
    if effect is not None and effect.step_time_s is None:
        raise PlanError(Finding(effect.why, "variability.faults"))
    step = report.step_time if effect is None or effect.step_time_s is None else effect.step_time_s
    return Figures(step, report.measured.model.samples_per_step, report.peak_memory), lacking


def outcomes(variants: Sequence[Variant], look: Look[T], *, jobs: int | None = 1, with_scenarios: bool = False) -> Iterator[Outcome[T]]:
    """What comes of variants, in their order, as it comes, from `jobs` processes (None: one per CPU; 1: this one).

    Outcomes are without their scenarios unless they are asked for.
    """
    return in_order(
        partial(outcome if with_scenarios else _without_scenario, look=look), variants, jobs, lost=lambda _, reason: failed(reason)
    )


def answered(questions: Sequence[tuple[Variant, Look[Any]]], *, jobs: int | None = 1) -> Iterator[Outcome[Any]]:
    """The same of variants that are each looked at in their own way."""
    return in_order(_answered, questions, jobs, lost=lambda _, reason: failed(reason))


def _without_scenario(variant: Variant, look: Look[T]) -> Outcome[T]:
    return replace(outcome(variant, look), scenario=None)


def _answered(question: tuple[Variant, Look[Any]]) -> Outcome[Any]:
    return _without_scenario(*question)


# -- many jobs --------------------------------------------------------------------------------------------------------


class Numbered(Protocol):
    """Whatever a job is about."""

    @property
    def number(self) -> int:
        """Its place among the others."""


class QueueJob(NamedTuple, Generic[J]):
    """One question about one thing."""

    question: str
    place: J


Work = tuple[Callable[..., Sequence[Any]], tuple[Any, ...]]
"""a function for a worker, and its arguments; it gives an answer for each job, in order"""
Answered = tuple[QueueJob[J], Any]


class Queue(Protocol[J]):
    """Says what to ask next, and hears what came of it."""

    def take(self, sizes: Mapping[str, int]) -> list[QueueJob[J]]:
        """The next jobs, all of one question and at most `sizes` of it; none: nothing until something under way is told."""

    def work(self, jobs: Sequence[QueueJob[J]]) -> Work:
        """What a worker does about jobs of one question."""

    def tell(self, answered: Sequence[Answered[J]]) -> None:
        """What came of jobs."""

    def lost(self, job: QueueJob[J], reason: str) -> Any:
        """The answer of a job with which a worker died twice."""


class Runner(Generic[J]):
    """Gets the jobs of a queue done by a crew: hands out chunks, takes answers as they come, and outlives workers that die.

    A worker that dies takes its chunk with it, and in a pool of processes the chunks of all others. Whatever was on its way is then
    done again one by one, so that only a job with which a worker dies twice is lost.
    """

    def __init__(self, queue: Queue[J], crew: Crew) -> None:
        self.queue, self.crew = queue, crew
        self._waiting: dict[Future[Any], tuple[list[QueueJob[J]], float]] = {}
        self._suspects: list[QueueJob[J]] = []
        self._answered = False
        self._sizes = _Sizes()

    def run(self, *, keep: bool = False) -> Generator[list[Answered[J]], None, None]:
        """Every job with its answer, by chunks as they come; then the queue is told. The crew is sent home at the end, unless `keep`.

        Raises:
            ParsimError: workers cannot work at all, or have another parsim.
        """
        now = True
        try:
            while True:
                self._hand_out()
                if not self._waiting:
                    break
                yield from self._take()
                if self._suspects:
                    yield from self._again()
            now = False
        finally:
            if now or not keep:
                self.crew.close(now=now)

    def _hand_out(self) -> None:
        while len(self._waiting) < self.crew.each * self.crew.workers:
            chunk = self.queue.take(self._sizes)
            if not chunk:
                return
            self._waiting[self._submit(chunk)] = (chunk, monotonic())

    def _submit(self, chunk: list[QueueJob[J]]) -> Future[Any]:
        job, arguments = self.queue.work(chunk)
        return self.crew.submit(job, *arguments)

    def _take(self) -> Iterator[list[Answered[J]]]:
        done, _ = wait(self._waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
        if not done:
            self.crew.check()
        for future in [future for future in self._waiting if future in done]:
            chunk, began = self._waiting.pop(future)
            yield from self._answers(future, chunk, began)

    def _answers(self, future: Future[Any], chunk: list[QueueJob[J]], began: float) -> Iterator[list[Answered[J]]]:
        try:
            answers = future.result()
        except Exception as error:
            if not self.crew.died(error):
                raise (
                    error
                    if isinstance(error, ParsimError)
                    else ParsimError(f"the workers stopped: {type(error).__name__}: {error}; rows so far are kept")
                ) from error
            self._suspects += chunk
            return
        self._answered = True
        each = (monotonic() - began) / self.crew.each / len(chunk)
        question = chunk[0].question
        self._sizes[question] = max(1, min(LARGEST_CHUNK, 2 * self._sizes[question], int(CHUNK_TIME / max(each, 1e-6))))
        yield from self._told(list(zip(chunk, answers, strict=True)))

    def _told(self, answered: list[Answered[J]]) -> Iterator[list[Answered[J]]]:
        yield answered  # whoever keeps answers keeps them before anything follows from them
        self.queue.tell(answered)

    def _again(self) -> Iterator[list[Answered[J]]]:
        """What was on its way when a worker died, one by one: whoever is alone with a dying worker is to blame."""
        while self._waiting:
            yield from self._take()
        suspects, self._suspects = sorted(self._suspects, key=lambda job: job.place.number), []
        self.crew.renew()
        dead: list[QueueJob[J]] = []
        for job in suspects:
            yield from self._answers(self._alone(job), [job], monotonic())
            if self._suspects:
                dead, self._suspects = [*dead, *self._suspects], []
                self.crew.renew()
        if dead and not self._answered:
            raise ParsimError("worker processes die before they answer at all; with --workers 1 everything runs in this process")
        for job in dead:
            reason = "its worker process died twice (killed, out of memory, or crashed)"
            yield from self._told([(job, self.queue.lost(job, reason))])

    def _alone(self, job: QueueJob[J]) -> Future[Any]:
        future = self._submit([job])
        while not future.done():
            wait([future], timeout=_LOOK)
            self.crew.check()
        return future


class _Sizes(dict[str, int]):
    """Jobs of a question that make a chunk: one until it is known how long it takes."""

    def __missing__(self, question: str) -> int:
        return 1


class _Item(NamedTuple, Generic[S]):
    """One of several things that the same is asked about."""

    number: int
    value: S


class _InOrder(Generic[S, T]):
    """The queue of one question about many things."""

    def __init__(self, job: Callable[[S], T], items: Sequence[S], lost: Callable[[S, str], T]) -> None:
        self._left = (QueueJob("item", _Item(number, item)) for number, item in enumerate(items))
        self._job, self._lost = job, lost

    def take(self, sizes: Mapping[str, int]) -> list[QueueJob[_Item[S]]]:
        return list(islice(self._left, sizes["item"]))

    def work(self, jobs: Sequence[QueueJob[_Item[S]]]) -> Work:
        return _each, (self._job, [job.place.value for job in jobs])

    def tell(self, answered: Sequence[Answered[_Item[S]]]) -> None:
        """Nothing follows from it."""

    def lost(self, job: QueueJob[_Item[S]], reason: str) -> T:
        return self._lost(job.place.value, reason)


def in_order(job: Callable[[S], T], items: Sequence[S], jobs: int | None, *, lost: Callable[[S, str], T]) -> Iterator[T]:
    """The results of `job` for every item, in their order, as they come, in so many processes (None: one per CPU; 1: this one).

    `lost` makes a result for an item with which processes die.
    """
    processes = min(jobs or cpu_count() or 1, len(items))
    if processes <= 1:
        yield from map(job, items)
        return
    ready: dict[int, T] = {}
    number = 0
    for answered in Runner(_InOrder(job, items, lost), Processes(processes, spawn=False)).run():
        ready |= {done.place.number: answer for done, answer in answered}
        while number in ready:
            yield ready.pop(number)
            number += 1


def _each(job: Callable[[S], T], items: Sequence[S]) -> list[T]:
    return [job(item) for item in items]
