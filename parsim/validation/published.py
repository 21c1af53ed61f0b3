"""Reading what was published: rows of CSV files, and the descriptions of sources, machines and devices beside them.

All mistakes of all files are found in one go, each with its line.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from parsim.errors import Finding, ScenarioError
from parsim.scenario.files import Document, data_root, parse_value, read_text
from parsim.units import is_digits, real

Thing = TypeVar("Thing")
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError)
"""what reading a row or an entry raises where a user wrote something else than expected"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What every published row says beside its figures."""

    source: str
    """where it was printed"""
    note: str = ""
    """how it was read, or what is special about it"""
    left_out: str = ""
    """why it is not scored; empty: it is"""


def folder(kind: str, directory: str | Path | None = None) -> Path:
    """Where the rows of a kind are: the user's own `directory`, or the folder `validation/<kind>` that comes with parsim."""
    return data_root() / "validation" / kind if directory is None else Path(directory)


class CsvRows:
    """The rows of the CSV file called `name`, by the columns of its heading; where it is no CSV, reading ends with a finding."""

    def __init__(self, text: str, name: str, findings: list[Finding]) -> None:
        self._reader = csv.DictReader(io.StringIO(text), restval="")
        self._name = name
        self._findings = findings
        self.columns: tuple[str, ...] = ()
        try:
            self.columns = tuple(self._reader.fieldnames or ())
        except csv.Error as error:
            self._broken(error)

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Line, from 1, and cells of every row; a cell that is missing is empty."""
        try:
            for cells in self._reader if self.columns else ():
                yield self._reader.line_num, cells
        except csv.Error as error:
            self._broken(error)

    def made(self, make: Callable[[dict[str, str]], Thing]) -> Iterator[tuple[int, Thing]]:
        """Line, and what `make` makes of the cells, of every row; a row that it cannot use is a finding."""
        for line, cells in self:
            try:
                yield line, make(cells)
            except UNREADABLE as error:
                problem = f"has no column {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
                self._findings.append(Finding(problem, value=cells.get("id"), file=self._name, line=line))

    def _broken(self, error: csv.Error) -> None:
        # Python's own text proposes another mode of opening files
        problem = "a carriage return in the middle of a line" if "new-line character" in str(error) else str(error)
        self._findings.append(Finding(f"is no valid CSV: {problem}", file=self._name, line=self._reader.line_num + 1))


def cell(text: str) -> Any:
    """What a cell says, as a value of a scenario. Raises `ScenarioError`."""
    return deepcopy(_parsed(text))


_parsed = cache(parse_value)
"""thousands of cells repeat a few hundred texts"""


def read_rows(path: Path, make: Callable[[dict[str, str]], Thing], findings: list[Finding] | None = None) -> tuple[Thing, ...]:
    """What `make` makes of every row of a CSV file; what it cannot use goes to `findings`.

    Raises:
        ScenarioError: the file cannot be read; without `findings` also for rows that cannot be used.
    """
    problems: list[Finding] = [] if findings is None else findings
    rows = tuple(row for _, row in CsvRows(read_text(path), str(path), problems).made(make))
    if findings is None and problems:
        raise ScenarioError(problems)
    return rows


def read_entries(about: Document, section: str, make: Callable[[str, Any], Thing], findings: list[Finding]) -> dict[str, Thing]:
    """What `make` makes of every entry (name, tree) of a section; what it cannot use, and a section without any, is a finding."""
    entries: dict[str, Thing] = {}
    for name, tree in about.section(section).items():
        try:
            entries[name] = make(name, tree)
        except UNREADABLE as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            findings.append(Finding(problem, f"{section}.{name}").at(*about.locate(f"{section}.{name}")))
    if not entries and not findings:
        findings.append(Finding("missing", section, file=about.path))
    return entries


def only_known(tree: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a key that is not known."""
    for key in tree:
        if key not in known:
            raise ValueError(f"unknown key {key!r}; known: {', '.join(known)}")


def one_of(cells: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    """The word under `key`, which is one of those that are known."""
    if cells[key] not in known:
        words = " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"
        raise ValueError(f"{key} is {words}, not {cells[key]!r}")
    return str(cells[key])


def exclusions(entries: Any) -> dict[str, str]:
    """Row, or range of rows such as ``name-0001..0029`` -> why it is left out, from a list of ``{rows: [...], reason: ...}``."""
    return {str(row): str(entry["reason"]) for entry in entries or () for row in entry["rows"]}


def excluded_by_rule(entries: Any, rules: Mapping[str, Any]) -> dict[str, str]:
    """As `exclusions`, from a list of ``{rows: [...], rule: NAME, because: ...}``; ``rows: all`` leaves out every row.

    Raises:
        ValueError: a rule that is not among `rules`.
    """
    found: dict[str, str] = {}
    for entry in entries or ():
        if (rule := entry["rule"]) not in rules:
            raise ValueError(f"no rule is called {rule!r}; known: {', '.join(rules)}")
        because = f": {entry['because']}" if entry.get("because") else ""
        rows = entry["rows"]
        found |= {str(row): f"{rule}{because}" for row in (["all"] if rows == "all" else rows)}
    return found


def reason(excluded: Mapping[str, str], row: str) -> str:
    """Why a row is left out, alone or in a range; empty: it is not."""
    for key in (row, "all"):
        if key in excluded:
            return excluded[key]
    for key, why in excluded.items():
        if (match := re.fullmatch(r"(.*-)([0-9]+)\.\.([0-9]+)", key)) and row.startswith(match[1]):
            number = row[len(match[1]) :]
            if is_digits(number) and int(match[2]) <= int(number) <= int(match[3]):
                return why
    return ""


def printed_time(cells: Mapping[str, str], rate: str, work: float, unit: float) -> float:
    """Seconds, from the column ``time_us`` or, where it is empty, from `work` over the printed `rate`, a column in `unit` per second."""
    micro = cells.get("time_us")
    time = real(micro) * 1e-6 if micro else work / (real(cells[rate]) * unit)
    if not 0 < time < math.inf:
        raise ValueError(f"a time is positive, not {time:g} s")
    return time
