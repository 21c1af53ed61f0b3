"""Files that keep what long questions have answered so far, line by line.

A file of JSON lines has one row per line as they come, a second file says what was asked. Only one process writes. A line is on the disk
before the next is begun; a line that a killed process left unfinished is cut off when the question goes on. Lines that are no rows of the
question are set aside in a file of their own, and said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from parsim.errors import Finding, OutputError, ScenarioError
from parsim.report.write import write_file
from parsim.scenario.files import open_input, read_text

Row = dict[str, Any]
"""at least ``key``"""

LOCK = ".lock"


class Journal:
    """The rows of one directory, those of before and those to come.

    Raises:
        ScenarioError: the directory cannot be written, another question is answered in it, or another process writes there.
    """

    results: ClassVar[str] = "results.jsonl"
    """file of the rows"""
    question: ClassVar[str] = "study.json"
    """file that says what was asked"""
    damaged_lines: ClassVar[str] = "results.damaged.jsonl"
    """file of lines that were set aside"""
    what: ClassVar[str] = "study"
    """what is asked, in words"""
    command: ClassVar[str] = "parsim sweep"
    fingerprint: ClassVar[tuple[str, ...]] = ("version", "catalogue_sha256", "scenario_sha256", "axes")
    """what must be the same for the question to go on"""

    def __init__(self, directory: Path, asked: Mapping[str, Any], *, restart: bool = False) -> None:
        self.directory = directory
        self.path = directory / self.results
        self.damaged: list[Finding] = []
        """lines that were set aside"""
        self.rows: dict[str, Row] = {}
        """key -> row"""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(directory / LOCK, self.command)
            try:
                self._file = self._opened(asked, restart=restart)
            except BaseException:
                self._release()
                raise
        except OSError as error:
            raise ScenarioError(
                Finding(
                    f"cannot write the {self.what}: {error.strerror}", file=str(error.filename or directory), suggestion="use another --out"
                )
            ) from None

    def _opened(self, asked: Mapping[str, Any], *, restart: bool) -> FileIO:
        """The file of rows, to write on at its end; what is in it is read."""
        if restart:
            self.path.unlink(missing_ok=True)
            (self.directory / self.question).unlink(missing_ok=True)
        self._check(asked)
        self.rows = self._read()
        write_file(self.directory / self.question, _json({**asked, "results": self.results}).encode())
        return self.path.open("ab", buffering=0)

    def _release(self) -> None:
        (self.directory / LOCK).unlink(missing_ok=True)  # while it is ours: whoever comes next makes a new one
        os.close(self._lock)

    def _check(self, asked: Mapping[str, Any]) -> None:
        """Refuse to go on with another study."""
        path = self.directory / self.question
        if not path.exists():
            if self.path.exists() and self.path.stat().st_size:
                message = f"has {self.results} but no {self.question}: the question that it answers is lost"
                raise ScenarioError(
                    Finding(message, suggestion="start over with --restart, or choose another --out", file=str(self.directory))
                )
            return
        before, line, problem = _parsed(read_text(path))
        if problem or not isinstance(before, dict):
            message = f"does not say what the rows answer: {problem or 'it is no mapping'}"
            hint = "restore the file, start over with --restart, or choose another --out"
            raise ScenarioError(Finding(message, suggestion=hint, file=str(path), line=line))
        differs = [name for name in self.fingerprint if before.get(name) != asked.get(name)]
        if differs:
            words = {"version": f"it was made by parsim {before.get('version')}", "axes": "its range is different"}
            words |= {"scenario_sha256": "its scenario is different", "catalogue_sha256": "devices or models have changed since"}
            reasons = "; ".join(words[name] for name in differs)
            hint = "start over with --restart, or choose another --out"
            raise ScenarioError(Finding(f"holds another {self.what}: {reasons}", suggestion=hint, file=str(self.directory)))

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows, whole lines at once, and wait until they are on the disk; a key that is there already is left out."""
        fresh = [row for row in rows if row["key"] not in self.rows]
        if not fresh:
            return
        left = memoryview("".join(line(row) for row in fresh).encode())
        before = os.fstat(self._file.fileno()).st_size
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, before)
            hint = f"the {len(self.rows)} rows before are kept: make room, then run the same command again to continue"
            message = f"cannot be written: {error.strerror}"
            raise OutputError(Finding(message, value=self.results, suggestion=hint, file=str(self.path))) from None
        self.rows |= {row["key"]: row for row in fresh}

    def damage(self, row: Any) -> str:
        """What makes something that was read from the file no row of this question; empty for a row."""
        return "" if isinstance(row, dict) and isinstance(row.get("key"), str) else "has no key"

    def _read(self) -> dict[str, Row]:
        """The rows of the file. An unfinished last line is cut off; lines that are no rows of the study are set aside."""
        if not self.path.exists():
            return {}
        with open_input(self.path) as stream:
            content = stream.read()
        whole = content.rfind(b"\n") + 1
        rows: dict[str, Row] = {}
        kept: list[bytes] = []
        aside: list[bytes] = []
        for number, text in enumerate(content[:whole].splitlines(keepends=True), 1):
            row, _, problem = _parsed(text)
            problem = problem or self.damage(row)
            if problem:
                aside.append(text)
                said = f"{problem}; the line is set aside in {self.damaged_lines}, and its candidate is simulated again"
                self.damaged.append(Finding(said, file=str(self.path), line=number))
            else:
                kept.append(text)
                rows.setdefault(row["key"], row)
        if aside:
            _keep(self.directory / self.damaged_lines, b"".join(aside))
            write_file(self.path, b"".join(kept))
        elif whole < len(content):
            os.truncate(self.path, whole)
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._release()


def line(row: Mapping[str, Any]) -> str:
    """A row as a line of the file."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str) + "\n"


def _parsed(text: str | bytes) -> tuple[Any, int | None, str]:
    """JSON as Python has it; the line and the reason where it is none."""
    try:
        return json.loads(text), 1, ""
    except json.JSONDecodeError as error:
        return None, error.lineno, f"is no JSON: {error.msg}"
    except RecursionError:
        return None, 1, "is nested too deeply"
    except ValueError as error:  # no UTF-8, or a number of thousands of digits
        return None, 1, "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "has a number of too many digits"


def _keep(path: Path, lines: bytes) -> None:
    """Add lines to those that were set aside before."""
    before = path.read_bytes() if path.exists() else b""
    if not before.endswith(lines):
        write_file(path, before + lines)


def _locked(path: Path, command: str) -> int:
    """An open lock that ends with this process, however it ends.

    Raises:
        ScenarioError: another process has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        import fcntl
    except ImportError:  # Windows: nobody checks
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        message = f"another {command} writes here"
        raise ScenarioError(Finding(message, suggestion="wait for it, or use another --out", file=str(path.parent))) from None
    except OSError:  # a file system without locks
        return descriptor
    return descriptor


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n"
