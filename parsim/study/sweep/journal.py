"""The files of a study: ``results.jsonl``, one row per line as they come, and ``study.json``, which says what was asked.

Only one process writes. A line is on the disk before the next is begun; a line that a killed process left unfinished is cut off when
the study goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from parsim.errors import Finding, ScenarioError
from parsim.report.write import replacing
from parsim.study.sweep.row import Row

RESULTS = "results.jsonl"
STUDY = "study.json"
LOCK = ".lock"


class Journal:
    """The rows of one directory, those of before and those to come.

    Raises:
        ScenarioError: the directory cannot be written, another study is in it, another process writes there, or a line in the middle
            is not a row.
    """

    def __init__(self, directory: Path, asked: Mapping[str, Any], *, restart: bool = False) -> None:
        self.directory = directory
        self.path = directory / RESULTS
        self.rows: dict[str, Row] = {}
        """key -> row"""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(directory / LOCK)
            try:
                self._file = self._opened(asked, restart=restart)
            except BaseException:
                self._release()
                raise
        except OSError as error:
            raise ScenarioError(
                Finding(f"cannot write the study: {error.strerror}", file=str(error.filename or directory), suggestion="use another --out")
            ) from None

    def _opened(self, asked: Mapping[str, Any], *, restart: bool) -> BinaryIO:
        """The file of rows, to write on at its end; what is in it is read."""
        if restart:
            self.path.unlink(missing_ok=True)
            (self.directory / STUDY).unlink(missing_ok=True)
        self._check(asked)
        self.rows = _read(self.path)
        with replacing(self.directory / STUDY) as out:
            out.write(_json({**asked, "results": RESULTS}).encode())
        return self.path.open("ab")

    def _release(self) -> None:
        (self.directory / LOCK).unlink(missing_ok=True)  # while it is ours: whoever comes next makes a new one
        os.close(self._lock)

    def _check(self, asked: Mapping[str, Any]) -> None:
        """Refuse to go on with another study."""
        path = self.directory / STUDY
        if not path.exists():
            if self.path.exists() and self.path.stat().st_size:
                message = f"has {RESULTS} but no {STUDY}: nobody knows what it answers"
                raise ScenarioError(
                    Finding(message, suggestion="begin anew with --restart, or use another --out", file=str(self.directory))
                )
            return
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            message = "is not readable as JSON"
            raise ScenarioError(Finding(message, suggestion="begin anew with --restart", file=str(path))) from None
        differs = [name for name in FINGERPRINT if before.get(name) != asked.get(name)]
        if differs:
            words = {"version": f"it was made by parsim {before.get('version')}", "axes": "it ranges over something else"}
            words |= {"scenario_sha256": "its scenario is another one", "catalogue_sha256": "devices or models have changed since"}
            reasons = "; ".join(words[name] for name in differs)
            hint = "begin anew with --restart, or use another --out"
            raise ScenarioError(Finding(f"holds another study: {reasons}", suggestion=hint, file=str(self.directory)))

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows, whole lines at once, and wait until they are on the disk; a key that is there already is left out."""
        fresh = [row for row in rows if row["key"] not in self.rows]
        if not fresh:
            return
        self._file.write("".join(line(row) for row in fresh).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows |= {row["key"]: row for row in fresh}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._release()


FINGERPRINT = ("version", "catalogue_sha256", "scenario_sha256", "axes")
"""what must be the same for a study to go on; constraints and objectives may change: rows are rows"""


def line(row: Mapping[str, Any]) -> str:
    """A row as a line of the file."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str) + "\n"


def _read(path: Path) -> dict[str, Row]:
    """The rows of a file; an unfinished last line is cut off."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    rows: dict[str, Row] = {}
    for number, text in enumerate(content[:whole].splitlines(), 1):
        try:
            row = json.loads(text)
            rows.setdefault(row["key"], row)
        except (ValueError, KeyError, TypeError):
            message = "is not a row of results: the file was changed by something else"
            raise ScenarioError(
                Finding(message, suggestion="delete the line, or begin anew with --restart", file=str(path), line=number)
            ) from None
    return rows


def _locked(path: Path) -> int:
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
        message = "another parsim sweep writes here"
        raise ScenarioError(Finding(message, suggestion="wait for it, or use another --out", file=str(path.parent))) from None
    except OSError:  # a file system without locks
        return descriptor
    return descriptor


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n"
