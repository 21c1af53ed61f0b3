"""Machines sized side by side, each in a process that tells what it finds while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from os import cpu_count
from typing import Any

from parsim.study.size.answer import Looked, Sized
from parsim.study.size.question import Machine
from parsim.study.workers import Processes, settle

Tell = Callable[[str, Looked], None]
"""is told the machine's label, and what was found for a number of GPUs"""
Job = Callable[[Machine, Tell], Sized]
_PATIENCE = 0.1
"""between two looks at what processes tell [s]"""
_queue: Any = None
"""in a worker: where it puts what it has to tell"""


def sizes(job: Job, machines: Sequence[Machine], workers: int | None, tell: Tell) -> Generator[Sized, None, None]:
    """What `job` finds of every machine, in their order, from so many processes (None: one per CPU; 1: this one)."""
    processes = min(workers or cpu_count() or 1, len(machines))
    if processes <= 1:
        yield from (job(machine, tell) for machine in machines)
        return
    crew = _Telling(processes)
    done = False
    try:
        yield from _answers(crew, job, machines, tell)
        done = True
    finally:
        crew.close(now=not done)


def _answers(crew: _Telling, job: Job, machines: Sequence[Machine], tell: Tell) -> Generator[Sized, None, None]:
    """In the order of the machines. A machine with which a process dies is tried once more, alone."""
    waiting: dict[Future[Any], int] = {crew.submit(_told, job, machine): place for place, machine in enumerate(machines)}
    ready: dict[int, Sized] = {}
    suspects: list[int] = []
    alone = False
    number = 0
    while number < len(machines):
        done, _ = wait(waiting, timeout=_PATIENCE, return_when=FIRST_COMPLETED)
        crew.hear(tell)
        for future in done:
            place = waiting.pop(future)
            error = future.exception()
            if error is None:
                ready[place] = future.result()
            elif not crew.died(error):
                raise error
            elif alone:
                ready[place] = Sized(machines[place].label, (), (), (), f"the process that sized it died twice: {error}")
            else:
                suspects.append(place)
        if not waiting and suspects:
            alone = True
            crew.renew()
            waiting[crew.submit(_told, job, machines[suspects[0]])] = suspects.pop(0)
        while number in ready:
            yield ready.pop(number)
            number += 1


class _Telling(Processes):
    """Processes that can tell something before they are done."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, spawn=False)

    def renew(self) -> None:
        self._heard = get_context().SimpleQueue()
        self._pool = ProcessPoolExecutor(self.workers, initializer=_begin, initargs=(self._heard,))

    def hear(self, tell: Tell) -> None:
        """Pass on what was told since."""
        while not self._heard.empty():
            tell(*self._heard.get())


def _begin(queue: Any) -> None:
    global _queue  # noqa: PLW0603 - one process, one queue
    settle()
    _queue = queue


def _told(job: Job, machine: Machine) -> Sized:
    return job(machine, _put)


def _put(machine: str, looked: Looked) -> None:
    _queue.put((machine, looked))
