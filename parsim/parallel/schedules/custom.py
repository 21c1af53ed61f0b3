"""A schedule that the user wrote: a table of slots, or a Python function that makes one."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from parsim.errors import MOST_PROBLEMS, Finding, PlanError
from parsim.limits import MOST_TABLE
from parsim.parallel.schedules.slot import APART, Overlapped, Schedule, Slot, SlotKind
from parsim.parallel.schedules.torch_csv import Communication, communication, communication_findings

PATH = "parallel.pipeline.schedule"

_CELLS = re.compile(r"\([^)]*\)\w*|[^\s,;]+")
_TORCH_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B")
_LABEL = re.compile(r"\s*rank\s+[0-9]+[^|:]*[|:]", re.IGNORECASE)


class SlotTable(NamedTuple):
    """The slots of a schedule of the user's own by rank, and where each stands in its file."""

    rows: Schedule
    places: tuple[tuple[tuple[int, int], ...], ...] = ()
    """(line, column), both from 1, by rank and position; empty where there is no file"""
    overlapped: Overlapped = APART
    left_out: int = 0
    """messages and collectives of a lowered table of torch, which parsim places itself"""


def from_text(text: str, file: str = "") -> Schedule:
    """The rows of `read_table`.

    >>> from_text("rank 0: F0.0, F0.1,, B0.0, B0.1")[0][2]
    Slot(kind=<SlotKind.FULL_BACKWARD: 'B'>, stage=0, micro_batch=0)
    """
    return read_table(text, file).rows


def read_table(text: str, file: str = "") -> SlotTable:
    """Read a table: one line per rank, cells ``F0.3`` or torch's ``0F3``, separated by commas, semicolons or spaces.

    ``F0.3&B1.2``, or torch's ``(0F3;1B2)OVERLAP_F_B``, is a slot that overlaps a forward with a backward.
    Messages and collectives of torch's lowered tables are checked and left out (`torch_csv`).
    Empty cells are idle steps and mean nothing (order is all there is), ``#`` starts a comment, a label such as ``rank 0:`` may
    open a line, and empty lines are skipped. Reads what `slot.to_text` and torch's ``_dump_csv`` write. Raises `PlanError` with
    every bad cell. The result is not checked; see `check`.

    >>> read_table("F0.0 B0.0").places
    (((1, 1), (1, 6)),)
    """
    if len(text) > MOST_TABLE:
        message = f"a table of {len(text):,} characters: at most {MOST_TABLE:,} are read"
        raise PlanError(Finding(message, PATH, suggestion="is it the right file?", file=file))
    rows: list[tuple[Slot, ...]] = []
    places: list[tuple[tuple[int, int], ...]] = []
    overlapped: set[tuple[Slot, Slot]] = set()
    findings: list[Finding] = []
    lowered: list[list[Communication]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = line.partition("#")[0]
        label = _LABEL.match(cells)
        begin = label.end() if label else 0
        if not cells[begin:].strip(" \t,;"):
            continue
        row: list[Slot] = []
        columns: list[tuple[int, int]] = []
        sent: list[Communication] = []
        for cell in _CELLS.finditer(cells, begin):
            place = (number, cell.start() + 1)
            if message_cell := communication(cell.group(), len(row), place):
                sent.append(message_cell)
                continue
            try:
                passes = _passes(cell.group(), overlapped)
            except PlanError as error:
                findings += [finding.at(file, *place) for finding in error.findings]
                if len(findings) >= MOST_PROBLEMS - 1:  # the last that is listed says so
                    findings.append(Finding("the rest of the table is not read", PATH, file=file))
                    raise PlanError(findings) from None
                continue
            row += passes
            columns += [place] * len(passes)
        rows.append(tuple(row))
        places.append(tuple(columns))
        lowered.append(sent)
    if findings and file and not any(rows):  # any file may be named here: what is no table at all is not quoted
        raise PlanError(
            Finding("is not a schedule: none of its cells is a slot", PATH, None, "write one line per rank, e.g. F0.0 B0.0", file)
        )
    if findings:
        raise PlanError(findings)
    if not rows:
        raise PlanError(Finding("the schedule has no rows", path=PATH, file=file, suggestion="write one line per rank, e.g. F0.0 B0.0"))
    if misplaced := communication_findings(tuple(rows), lowered, PATH, file)[:MOST_PROBLEMS]:
        raise PlanError(misplaced)
    return SlotTable(tuple(rows), tuple(places), frozenset(overlapped), sum(map(len, lowered)))


def from_function(
    function: Callable[[int, int, int], Iterable[Any]], stages: int, micro_batches: int, virtual_stages: int = 1
) -> SlotTable:
    """Call ``function(stages, micro_batches, virtual_stages)``, a generator or a function, and read what it makes.

    It gives one row per rank; a row is a line of text as in `read_table`, or an iterable of `Slot`, ``"F0.3"``, ``"F0.3&B1.2"``
    or (kind, stage, micro_batch). Raises `PlanError` when the function fails or gives something else.
    """
    name = getattr(function, "__name__", repr(function))
    call = f"{name}({stages}, {micro_batches}, {virtual_stages})"
    rows: list[tuple[Slot, ...]] = []
    overlapped: set[tuple[Slot, Slot]] = set()
    try:
        for row in function(stages, micro_batches, virtual_stages):
            if isinstance(row, str):
                line = read_table(row)
                rows.append(line.rows[0])
                overlapped |= line.overlapped
            else:
                rows.append(tuple(slot for cell in row for slot in _passes(cell, overlapped)))
    except PlanError as error:
        raise PlanError([_in_call(finding, call, len(rows)) for finding in error.findings]) from error
    except Exception as error:
        message = f"{call} failed with {type(error).__name__}: {error}"
        raise PlanError(Finding(message, path=PATH, suggestion="return one row of slots per rank")) from error
    if not rows:
        raise PlanError(Finding(f"{call} gave no rows", path=PATH, suggestion="return one row of slots per rank"))
    return SlotTable(tuple(rows), overlapped=frozenset(overlapped))


def load_function(reference: str) -> Callable[[int, int, int], Iterable[Any]]:
    """The function that ``path/to/file.py:function`` names. Runs the file. Raises `PlanError` if that fails."""
    file, colon, name = reference.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        message = f"{reference!r} does not name a Python function"
        raise PlanError(Finding(message, path=PATH, value=reference, suggestion="write path/to/file.py:function"))
    if not Path(file).is_file():
        raise PlanError(Finding(f"there is no file {file!r}", path=PATH, value=reference))
    try:
        names = runpy.run_path(file)
    except Exception as error:
        raise PlanError(Finding(f"{file} failed with {type(error).__name__}: {error}", path=PATH, value=reference)) from error
    function = names.get(name)
    if not callable(function):
        known = ", ".join(key for key, value in names.items() if callable(value) and not key.startswith("_"))
        raise PlanError(
            Finding(f"{file} has no function {name!r}", path=PATH, value=reference, suggestion=f"it has {known}" if known else "")
        )
    return function  # type: ignore[no-any-return]


def _passes(cell: object, overlapped: set[tuple[Slot, Slot]]) -> tuple[Slot, ...]:
    """The pass of a cell, or the forward and the backward of an overlapped slot, which is added to `overlapped`."""
    if not isinstance(cell, str):
        return (_slot(cell),)
    torch = _TORCH_OVERLAP.fullmatch(cell)
    parts = torch[1].split(";") if torch else cell.removeprefix("(").removesuffix(")").split("&") if "&" in cell else [cell]
    if len(parts) > 2 or (torch and len(parts) == 1):
        message = f"{cell!r} overlaps {len(parts)} passes: an overlapped slot is one forward and one backward"
        raise PlanError(Finding(message, path=PATH, value=cell, suggestion="write F0.3&B1.2"))
    passes = tuple(sorted((_slot(part.strip()) for part in parts), key=lambda slot: slot.kind != SlotKind.FORWARD))
    if len(passes) == 2:
        overlapped.add((passes[0], passes[1]))
    return passes


def _slot(cell: object) -> Slot:
    if isinstance(cell, str):
        if communication(cell, 0, (0, 0)):
            message = f"{cell!r} is not supported yet among the slots of a function"
            raise PlanError(Finding(message, path=PATH, value=cell, suggestion="keep F, B, I and W; parsim adds the communication itself"))
        try:
            return Slot.parse(cell)
        except PlanError as error:
            raise PlanError([Finding(f.message, PATH, f.value, f.suggestion) for f in error.findings]) from error
    match cell:
        case (str(kind), int(stage), int(micro_batch)):
            known = SlotKind(kind) if kind in list(SlotKind) else kind  # others are reported by `check`, with their place
            return Slot._make((known, stage, micro_batch))
    raise PlanError(Finding(f"{cell!r} is not a slot", path=PATH, value=repr(cell), suggestion="give F0.3 or (kind, stage, micro_batch)"))


def _in_call(finding: Finding, call: str, row: int) -> Finding:
    return Finding(f"{call}, row {row}: {finding.message}", finding.path, finding.value, finding.suggestion)
