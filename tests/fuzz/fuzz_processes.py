"""Batches of mutants in processes that may die."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from fuzz_kinds import Kind
from fuzz_run import Verdict, case, prepare, run_case

MEMORY = 3 * 2**30
"""address space that a process may take beyond what it has at first [B]"""
WALL = 300.0
"""after which a process that says nothing is ended [s]: it waits for something"""
BATCH = 250
"""mutants of a process: the first ones fill its caches"""


def verdicts(numbers: Sequence[int], seed: int, kinds: Sequence[Kind], jobs: int, seconds: float) -> Iterator[Verdict]:
    """The verdicts of many mutants, in `jobs` processes of `BATCH` mutants each; in no order."""
    prepare(kinds)
    with tempfile.TemporaryDirectory(prefix="parsim-fuzz-") as folder:
        waiting = [list(numbers[begin : begin + BATCH]) for begin in range(0, len(numbers), BATCH)]
        running: list[_Process] = []
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_Process(waiting.pop(0), seed, kinds, Path(folder), seconds))
                ready, _, _ = select.select([process.pipe for process in running], [], [], 1.0)
                for process in list(running):
                    yield from process.read(ready=process.pipe in ready)
                    if process.ended:
                        running.remove(process)
                        waiting += [process.left] if process.left else []
        finally:
            for process in running:
                process.end()


class _Process:
    """A forked process with a batch of mutants; it says when it begins one, and how that ended."""

    def __init__(self, numbers: list[int], seed: int, kinds: Sequence[Kind], folder: Path, seconds: float) -> None:
        self.left = numbers
        self.seed, self.kinds = seed, kinds
        self.ended = False
        self._text = b""
        self._heard = time.monotonic()
        self.pipe, writing = os.pipe()
        sys.stdout.flush()
        self.process = os.fork()
        if self.process:
            os.close(writing)
            return
        os.close(self.pipe)
        status = 1
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if Path("/proc").exists() else 0
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
            for number in numbers:
                verdict = run_case(number, case(number, seed, kinds), folder / str(os.getpid()) / "here", seconds)
                os.write(writing, json.dumps(asdict(verdict), default=str).encode("utf-8", "replace") + b"\n")
            status = 0
        finally:
            os._exit(status)

    def read(self, *, ready: bool) -> Iterator[Verdict]:
        """Verdicts that have come; a process that says nothing for long, or is gone, has failed at the next mutant."""
        if ready:
            self._heard = time.monotonic()
            chunk = os.read(self.pipe, 1 << 16)
            self._text += chunk
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                verdict = Verdict(**json.loads(line))
                self.left.remove(verdict.number)
                yield verdict
            if chunk:
                return
        elif time.monotonic() - self._heard < WALL:
            return
        silent = not ready
        status = self.end()
        if self.left:
            number = self.left.pop(0)
            chosen = case(number, self.seed, self.kinds)
            why = f"said nothing for {WALL:g} s" if silent else f"the process died (status {status})"
            yield Verdict(number, chosen.kind.name, " ".join(chosen.words), chosen.mutant.changes, failures=[why])

    def end(self) -> int:
        """End the process; what it ended with."""
        if self.ended:
            return 0
        self.ended = True
        os.close(self.pipe)
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        return os.waitpid(self.process, 0)[1]
