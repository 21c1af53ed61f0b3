"""Who simulates: this process, a pool of processes, a Dask cluster, or any executor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context, parent_process
from threading import Lock, Thread
from time import monotonic
from typing import Any, TypeVar

from parsim.errors import Finding, ParsimError, ScenarioError
from parsim.scenario.provenance import catalogue_sha256
from parsim.version import __version__

PATIENCE = 60.0
"""how long a cluster may be without workers [s]"""
Job = Callable[..., Any]
T = TypeVar("T")
_ONE_AT_A_TIME = Lock()
"""a worker with several threads (Dask) works in one of them: the interpreter runs one at a time anyway"""


class ForeignWorkerError(ParsimError):
    """A worker runs another version of parsim, or another catalogue."""


def stamp() -> tuple[str, str]:
    """What results depend on besides the scenario: parsim's version and the catalogue's hash."""
    return __version__, catalogue_sha256()


def at_work(expected: tuple[str, str], job: Callable[..., T], *arguments: Any) -> T:
    """Do a job on a worker; `expected` is the `stamp` of whoever asks.

    Raises:
        ForeignWorkerError: this process has another parsim.
    """
    if (mine := stamp()) != expected:
        what = f"version {mine[0]}, not {expected[0]}" if mine[0] != expected[0] else "another catalogue of devices and models"
        raise ForeignWorkerError(f"a worker has parsim {what}: its rows would not be comparable; install the same on all machines")
    with _ONE_AT_A_TIME:
        return job(*arguments)


class Crew:
    """Takes jobs, and says what to do when a worker dies. This one does them at once, in this process."""

    workers = 1
    each = 1
    """chunks per worker that may be on their way: one that it works on, one that it need not wait for"""

    def submit(self, job: Job, *arguments: Any) -> Future[Any]:
        """Begin a job. That its worker died shows in the future, not here."""
        future: Future[Any] = Future()
        try:
            future.set_result(job(*arguments))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future

    def died(self, error: BaseException) -> bool:
        """Whether a job ended so because its worker died."""
        return False

    def renew(self) -> None:
        """Replace workers that died."""

    def check(self) -> None:
        """Raise ParsimError if there is nobody left who could answer."""

    def close(self, *, now: bool) -> None:
        """Send everybody home; `now`: whatever they are doing."""


class Processes(Crew):
    """A pool of processes on this machine. A dead one breaks the whole pool (so does the standard library's), which is then replaced."""

    each = 2

    def __init__(self, workers: int, *, spawn: bool = True) -> None:
        self.workers, self._spawn = workers, spawn
        self.renew()

    def submit(self, job: Job, *arguments: Any) -> Future[Any]:
        try:
            return self._pool.submit(job, *arguments)
        except BrokenExecutor as error:  # since somebody looked last
            future: Future[Any] = Future()
            future.set_exception(error)
            return future

    def died(self, error: BaseException) -> bool:
        return isinstance(error, BrokenExecutor)

    def renew(self) -> None:
        # A fork has everything imported, but copies the locks of the threads of whoever uses parsim as a library; a spawned process
        # imports the script of its parent, which must be written for that. So short questions fork, and long studies spawn.
        self._pool = ProcessPoolExecutor(self.workers, mp_context=get_context("spawn" if self._spawn else None), initializer=settle)

    def close(self, *, now: bool) -> None:
        # the pool has no public way to end workers before Python 3.14
        processes = list((getattr(self._pool, "_processes", None) or {}).values()) if now else []
        self._pool.shutdown(wait=not now, cancel_futures=True)
        for process in processes:
            process.kill()


class Borrowed(Crew):
    """Somebody's executor. It is neither replaced nor shut down."""

    each = 2

    def __init__(self, executor: Executor, workers: int | None = None) -> None:
        self.executor = executor
        self.workers = workers or int(getattr(executor, "_max_workers", None) or os.cpu_count() or 1)

    def submit(self, job: Job, *arguments: Any) -> Future[Any]:
        return self.executor.submit(job, *arguments)


class Dask(Borrowed):
    """The workers of a Dask scheduler. Dask itself gives the work of a dead worker to another one.

    Raises:
        ScenarioError: Dask is not installed, or no scheduler answers.
    """

    def __init__(self, address: str) -> None:
        try:
            distributed: Any = import_module("distributed")
        except ImportError:
            message = "Dask is not installed"
            raise ScenarioError(Finding(message, "--dask", address, 'pip install "parsim[dask]"')) from None
        try:
            self.client = distributed.Client(address, timeout="15s", set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            hint = "start one: dask scheduler, and on each machine: dask worker ADDRESS --nthreads 1"
            message = f"no Dask scheduler answers: {str(error) or type(error).__name__}"
            raise ScenarioError(Finding(message, "--dask", address, hint)) from None
        super().__init__(self.client.get_executor(pure=False), max(1, self._threads()))
        self._seen = monotonic()

    def _threads(self) -> int:
        return sum(map(int, self.client.nthreads().values()))

    def died(self, error: BaseException) -> bool:
        return type(error).__name__ == "KilledWorker"

    def check(self) -> None:
        if self._threads() > 0:
            self._seen = monotonic()
        elif monotonic() - self._seen > PATIENCE:
            raise ParsimError(f"the Dask cluster has had no worker for {PATIENCE:g} s; rows so far are kept")

    def close(self, *, now: bool) -> None:
        self.client.close()  # what nobody waits for any more is cancelled


def settle() -> None:
    """What a worker process does first: Ctrl-C is the parent's business, and a worker never outlives its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)  # workers hold both ends of their queue, so nothing else tells them that the parent was killed


def crew(workers: int | None, executor: Executor | None, dask: str | None, work: int) -> Crew:
    """Who simulates `work` candidates: an executor, a Dask cluster, or so many processes (None: one per CPU)."""
    if executor is not None:
        return Borrowed(executor)
    if dask is not None:
        return Dask(dask)
    count = min(workers or os.cpu_count() or 1, work)
    return Processes(count) if count > 1 else Crew()
