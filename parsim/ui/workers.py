"""Processes that work for the server, which computes nothing itself: each answers one question at a time and may be ended any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

_LOOK = 0.05
"""how long a thread waits before it asks whether anybody still wants the answer [s]"""
START = 120.0
"""until a new worker has everything imported [s]; an answer's time begins then"""
MEMORY = 24 * 2**30
"""address space of a worker [B]"""
_CONTEXT = get_context("spawn")
Document = dict[str, Any]


class Lost(Exception):  # noqa: N818 - no error of the user's
    """The worker ended, or took too long; `reason` is ``time`` or ``gone``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _work(pipe: Connection) -> None:
    """What a worker process does until the server closes the pipe."""
    # imported here: the server answers long before all of it is there
    from parsim.study.workers import settle

    settle()
    from parsim.errors import ParsimError
    from parsim.study.planner.work import JOBS, findings
    from parsim.study.planner.work import search as search_job

    with suppress(ImportError, ValueError, OSError):
        import resource  # Unix only

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    pipe.send(None)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            if name == "search":
                search_job(arguments[0], pipe.send)
            else:
                for document in JOBS[name](*arguments):
                    pipe.send(document)
        except ParsimError as error:
            pipe.send(findings(error))
        except (MemoryError, RecursionError) as error:
            pipe.send({"kind": "error", "findings": [{"path": "", "message": f"too large to be answered here: {type(error).__name__}"}]})
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and the next question is answered
            pipe.send({"kind": "error", "findings": [{"path": "", "message": f"internal error: {type(error).__name__}: {error}"}]})
        pipe.send(None)


class Worker:
    """One process."""

    def __init__(self) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    @property
    def number(self) -> int:
        """Of the process."""
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.is_alive()

    def end(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    async def ask(self, job: str, *arguments: Any, limit: float, alive: float | None = None) -> AsyncIterator[Document]:
        """Its answers as they come; every `alive` seconds without one ``{"kind": "alive"}``. Whoever leaves before the end ends it.

        Raises:
            Lost: it ended, or took longer than `limit` [s].
        """
        done = False
        said = monotonic()
        last = said + (limit if self._ready else START)
        try:
            self._pipe.send((job, arguments))
            while not done:
                while not await asyncio.to_thread(self._pipe.poll, _LOOK):
                    if (now := monotonic()) > last:
                        raise Lost("time")
                    if alive is not None and now - said >= alive:
                        said = now
                        yield {"kind": "alive"}
                document = self._pipe.recv()
                if document is not None:
                    said = monotonic()
                    yield document
                elif self._ready:
                    done = True
                else:  # its first word: it can begin
                    self._ready, last = True, monotonic() + limit
        except (EOFError, OSError):
            raise Lost("gone") from None
        finally:
            if not done:
                self.end()


class Desk:
    """A worker that is replaced where it was ended; with a spare one there is no wait for the next."""

    def __init__(self, *, spare: bool) -> None:
        self.turn = asyncio.Lock()
        """held by whoever asks"""
        self._has_spare = spare
        self._workers: list[Worker] = []
        """who answers, and who would next"""

    def start(self) -> None:
        """Have somebody there when the first question comes."""
        self._workers = [worker for worker in self._workers if worker.alive] or [Worker()]

    def end(self) -> None:
        """Everybody."""
        for worker in self._workers:
            with suppress(OSError, ValueError):
                worker.end()
        self._workers = []

    @property
    def processes(self) -> list[int]:
        """Their numbers."""
        return [worker.number for worker in self._workers if worker.alive]

    async def ask(self, job: str, *arguments: Any, limit: float, alive: float | None = None) -> AsyncIterator[Document]:
        """See `Worker.ask`; whoever asks holds `turn`."""
        self.start()
        answers = self._workers[0].ask(job, *arguments, limit=limit, alive=alive)
        try:
            async for document in answers:
                yield document
        finally:
            await answers.aclose()  # type: ignore[attr-defined]
            if self._has_spare and len(self._workers) == 1:
                self._workers.append(Worker())
