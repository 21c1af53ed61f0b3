"""Candidates to rows: hands out chunks of questions, takes answers as they come, and outlives workers that die.

A worker that dies takes its chunk with it, and in a pool of processes the chunks of all others. Whatever was on its way is then
simulated again one by one, so that only a candidate with which a worker dies twice becomes a row that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from time import monotonic
from typing import Any

from parsim.errors import ParsimError
from parsim.study.sweep.candidates import Place, stamp
from parsim.study.sweep.choice import QUESTIONS, Choice, Job, Question
from parsim.study.sweep.crews import Crew
from parsim.study.sweep.evaluation import failed
from parsim.study.sweep.row import Row

Chunk = list[Job]
Came = tuple[Place, Row | None]
CHUNK_TIME = 0.5
"""what a chunk should take [s]: long beside sending it, short beside the patience of whoever looks at the bar"""
LARGEST_CHUNK = 64
_LOOK = 5.0
"""how often the crew is looked after [s]"""


class Runner:
    """Runs a choice of candidates on a crew; `record` gets every row once, in the order of arrival."""

    def __init__(self, choice: Choice, crew: Crew, record: Callable[[list[tuple[Place, Row]]], None]) -> None:
        self.choice, self.crew, self.record = choice, crew, record
        self._waiting: dict[Future[Any], tuple[Chunk, float]] = {}
        self._suspects: Chunk = []
        self._answered = False
        self._sizes: dict[Question, int] = dict.fromkeys(QUESTIONS, 1)

    def run(self) -> Iterator[Came]:
        """Every simulation, as it comes: with its row, or None where only its step was asked for.

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
            self.crew.close(now=now)

    def _hand_out(self) -> None:
        while len(self._waiting) < self.crew.each * self.crew.workers:
            chunk = self.choice.take(self._sizes)
            if not chunk:
                return
            self._waiting[self._submit(chunk)] = (chunk, monotonic())

    def _submit(self, chunk: Chunk) -> Future[Any]:
        job, arguments = self.choice.work(chunk)
        return self.crew.submit(job, *arguments, stamp())

    def _take(self) -> Iterator[Came]:
        done, _ = wait(self._waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
        if not done:
            self.crew.check()
        for future in [future for future in self._waiting if future in done]:
            chunk, began = self._waiting.pop(future)
            yield from self._answers(future, chunk, began)

    def _answers(self, future: Future[Any], chunk: Chunk, began: float) -> Iterator[Came]:
        try:
            answers = future.result()
        except Exception as error:
            if not self.crew.died(error):
                raise (
                    error
                    if isinstance(error, ParsimError)
                    else ParsimError(f"the workers cannot go on: {type(error).__name__}: {error}; rows so far are kept")
                ) from error
            self._suspects += chunk
            return
        self._answered = True
        each = (monotonic() - began) / self.crew.each / len(chunk)
        question = chunk[0].question
        self._sizes[question] = max(1, min(LARGEST_CHUNK, 2 * self._sizes[question], int(CHUNK_TIME / max(each, 1e-6))))
        yield from self._told(list(zip(chunk, answers, strict=True)))

    def _told(self, found: list[tuple[Job, Any]]) -> Iterator[Came]:
        """Answers that came; rows are recorded first."""
        rows = [(job.place, answer) for job, answer in found if isinstance(answer, dict)]
        if rows:
            self.record(rows)
        for job, answer in found:
            self.choice.tell(job, answer)
            if job.question in ("step", "row"):
                yield job.place, answer if isinstance(answer, dict) else None

    def _again(self) -> Iterator[Came]:
        """What was on its way when a worker died, one by one: whoever is alone with a dying worker is to blame."""
        while self._waiting:
            yield from self._take()
        suspects, self._suspects = sorted(self._suspects, key=lambda job: job.place.number), []
        self.crew.renew()
        dead: Chunk = []
        for job in suspects:
            yield from self._answers(self._alone(job), [job], monotonic())
            if self._suspects:
                dead, self._suspects = [*dead, *self._suspects], []
                self.crew.renew()
        if dead and not self._answered:
            raise ParsimError("worker processes die before they answer at all; with --workers 1 everything runs in this process")
        for job in dead:
            if job.place.candidate is not None:
                row = failed(job.place.candidate, job.place.settings, "its worker process died twice (killed, out of memory, or crashed)")
                yield from self._told([(job, row)])
            else:
                self.choice.tell(job, None)  # better bounds are not worth a worker

    def _alone(self, job: Job) -> Future[Any]:
        future = self._submit([job])
        while not future.done():
            wait([future], timeout=_LOOK)
            self.crew.check()
        return future
