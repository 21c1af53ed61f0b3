"""Rows of results (what was varied, what came out, or why nothing did), the objectives that rank them, and the files that keep them.

The same candidate always gives the same row. ``results.jsonl`` has one row per line as they come, ``study.json`` says what was asked. Only
one process writes. A line is on the disk before the next is begun; a line that a killed process left unfinished is cut off when the study
goes on. Lines that are no rows of the study are set aside in ``results.damaged.jsonl``, and said.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parsim.errors import Finding, OutputError, ScenarioError
from parsim.report.write import write_file
from parsim.scenario.files import open_input, read_text
from parsim.scenario.scenario import flow
from parsim.scenario.yaml_tree import Origin
from parsim.study.search.search import Values
from parsim.study.sweep.metrics import ALIASES, METRICS, NOTHING, Metric, figures, metric
from parsim.study.variants import STATUSES, Outcome


@dataclass(frozen=True)
class Objective:
    """A figure, and which way is better."""

    metric: Metric
    most: bool = False
    """maximise; else minimise"""
    origin: Origin = ("", None, None)

    @property
    def word(self) -> str:
        """minimise or maximise."""
        return "maximise" if self.most else "minimise"

    def __str__(self) -> str:
        return f"{self.word} {self.metric.name}"

    def score(self, row: Mapping[str, Any]) -> float | None:
        """What is to be small; None where the row has no such figure."""
        value = row.get(self.metric.name)
        return None if value is None else -float(value) if self.most else float(value)

    def shown(self, score: float) -> str:
        """The figure of a score, with its name and unit."""
        return f"{self.metric.title} {self.metric.shown(self.figure(score))}"

    def figure(self, score: float) -> float:
        """What the score stands for."""
        return -score if self.most else score


def scores(objectives: Sequence[Objective], row: Mapping[str, Any]) -> Values | None:
    """What is to be small; None where a figure is missing."""
    scored = [one.score(row) for one in objectives]
    return None if None in scored else tuple(float(score) for score in scored if score is not None)


def objective(name: Any, origin: Origin = ("", None, None), *, most: bool = False) -> Objective:
    """The objective of a metric's name.

    Raises:
        ScenarioError: no such metric, or none that may be small or large.
    """
    word = "maximise" if most else "minimise"
    wanted = metric(name.strip()) if isinstance(name, str) else None
    if wanted is None:
        known = [item.name for item in METRICS if item.better]
        close = difflib.get_close_matches(str(name), [*known, *ALIASES], n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise ScenarioError(Finding(f"there is no figure {name!r} to {word}", word, name, hint, *origin))
    if not wanted.better or wanted.name == "fits":
        raise ScenarioError(Finding(f"{wanted.name} is neither better small nor large", word, name, "use it in where", *origin))
    return Objective(wanted, most, origin)


Row = dict[str, Any]
"""``key``, ``status`` (one of `STATUSES`), the varied keys, the figures of `metrics`, ``limiter_kind``, ``reason``, ``findings``"""
_SAID = 3
"""findings that a reason repeats"""
_FINDING = {"path", "value", "message", "suggestion"}
_COLUMNS = {"key", "status", *NOTHING, "limiter_kind", "reason", "findings"}


def damage(row: Any) -> str:
    """What makes something that was read from a file no row; empty for a row."""
    if not isinstance(row, dict):
        return "is no mapping"
    missing = [name for name in ("key", "status", *NOTHING, "limiter_kind", "reason", "findings") if name not in row]
    if missing:
        return f"has no {', '.join(missing[:_SAID])}{f' and {len(missing) - _SAID} more' if len(missing) > _SAID else ''}"
    if not isinstance(row["key"], str) or row["status"] not in STATUSES:
        return f"has no {'key' if not isinstance(row['key'], str) else 'known status'}"
    for name in NOTHING:
        value = row[name]
        if value is not None and not (isinstance(value, bool) if name == "fits" else _is_number(value)):
            return f"{name} is {'no number' if name != 'fits' else 'neither true nor false'}"
    if (row["step_time_s"] is None) == (row["status"] in STATUSES[:2]):
        return f"its status and its step_time_s contradict each other: {row['status']}"
    findings = row["findings"]
    if not isinstance(findings, list) or not all(isinstance(one, dict) and set(one) >= _FINDING for one in findings):
        return "findings is no list of findings"
    return "" if isinstance(row["reason"], str) else "reason is no text"


def settings_of(row: Row) -> dict[str, Any]:
    """What was varied."""
    return {name: value for name, value in row.items() if name not in _COLUMNS}


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False


def row(key: str, settings: Mapping[str, Any], came: Outcome[Mapping[str, Any]]) -> Row:
    """The row of a candidate, from what came of it."""
    report = came.answer
    return {
        "key": key,
        "status": came.status,
        **settings,
        **(NOTHING if report is None else figures(report)),
        "limiter_kind": None if report is None else report["limiter_kind"],
        "reason": _refusal(came.findings) if came.status == "refused" else came.reason,
        "findings": [_texts(finding) for finding in came.findings],
    }


def _refusal(findings: Sequence[Finding]) -> str:
    """The first findings in one line."""
    said = [": ".join(filter(None, (finding.path, finding.message))) for finding in findings]
    more = [f"and {len(said) - _SAID} more"] if len(said) > _SAID else []
    return "; ".join([*said[:_SAID], *more])


def _texts(finding: Finding) -> dict[str, str]:
    """A finding as texts: columns of a table have one type."""
    value = "" if finding.value is None else finding.value if isinstance(finding.value, str) else flow_or_text(finding.value)
    return {"path": finding.path, "value": value, "message": finding.message, "suggestion": finding.suggestion}


def flow_or_text(value: Any) -> str:
    """A value as YAML, or as Python says it."""
    try:
        return flow(value)
    except (TypeError, ValueError):
        return str(value)


RESULTS = "results.jsonl"
STUDY = "study.json"
DAMAGED = "results.damaged.jsonl"
LOCK = ".lock"


class Journal:
    """The rows of one directory, those of before and those to come.

    `points`: the settings of all points of the study, where rows of other points are none of its own.

    Raises:
        ScenarioError: the directory cannot be written, another study is in it, or another process writes there.
    """

    def __init__(
        self,
        directory: Path,
        asked: Mapping[str, Any],
        *,
        restart: bool = False,
        points: Callable[[], Iterable[Mapping[str, Any]]] | None = None,
    ) -> None:
        self.directory = directory
        self.path = directory / RESULTS
        self.damaged: list[Finding] = []
        """lines that were set aside"""
        self._points = points
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

    def _opened(self, asked: Mapping[str, Any], *, restart: bool) -> FileIO:
        """The file of rows, to write on at its end; what is in it is read."""
        if restart:
            self.path.unlink(missing_ok=True)
            (self.directory / STUDY).unlink(missing_ok=True)
        self._check(asked)
        self.rows = self._read()
        write_file(self.directory / STUDY, _json({**asked, "results": RESULTS}).encode())
        return self.path.open("ab", buffering=0)

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
        before, line, problem = _parsed(read_text(path))
        if problem or not isinstance(before, dict):
            message = f"does not say what the rows answer: {problem or 'it is no mapping'}"
            hint = "put the file back, begin anew with --restart, or use another --out"
            raise ScenarioError(Finding(message, suggestion=hint, file=str(path), line=line))
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
        left = memoryview("".join(line(row) for row in fresh).encode())
        before = os.fstat(self._file.fileno()).st_size
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, before)
            hint = f"the {len(self.rows)} rows before are kept: make room, and the same command goes on with them"
            message = f"cannot be written: {error.strerror}"
            raise OutputError(Finding(message, value=RESULTS, suggestion=hint, file=str(self.path))) from None
        self.rows |= {row["key"]: row for row in fresh}

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
        ours: set[str] | None = None
        for number, text in enumerate(content[:whole].splitlines(keepends=True), 1):
            row, _, problem = _parsed(text)
            problem = problem or damage(row)
            if not problem and self._points is not None:
                ours = {_text(point) for point in self._points()} if ours is None else ours
                problem = "" if _text(settings_of(row)) in ours else "is a row of another study"
            if problem:
                aside.append(text)
                said = f"{problem}; the line is set aside in {DAMAGED}, and its candidate is simulated again"
                self.damaged.append(Finding(said, file=str(self.path), line=number))
            else:
                kept.append(text)
                rows.setdefault(row["key"], row)
        if aside:
            _keep(self.directory / DAMAGED, b"".join(aside))
            write_file(self.path, b"".join(kept))
        elif whole < len(content):
            os.truncate(self.path, whole)
        return rows

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


def _text(settings: Mapping[str, Any]) -> str:
    """Settings as they compare: as JSON has them, in one order."""
    return json.dumps(settings, sort_keys=True, default=str)


def _keep(path: Path, lines: bytes) -> None:
    """Add lines to those that were set aside before."""
    before = path.read_bytes() if path.exists() else b""
    if not before.endswith(lines):
        write_file(path, before + lines)


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
