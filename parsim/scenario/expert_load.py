"""Counted tokens of experts, read from a CSV file of rows (layer, expert, tokens)."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, ScenarioError
from parsim.parallel.expert_load import PATH, ExpertTokens, Histogram, Imbalance, Zipf
from parsim.scenario import files
from parsim.scenario.references import folder

if TYPE_CHECKING:
    from parsim.scenario.scenario import Scenario

COLUMNS = ("layer", "expert", "tokens")
MOST_ROWS = 1_000_000
_MOST_SHOWN = 10


def imbalance(written: Any, scenario: Scenario) -> Imbalance:
    """The load that ``parallel.expert.imbalance`` means. Raises `ScenarioError` for a file that is none, with its lines."""
    if not isinstance(written, tuple):
        return float(written)
    word, value = written
    if word == "zipf":
        return Zipf(value)
    beside = folder(scenario.origins, PATH, scenario.source)
    if beside == files.SEALED:
        text = f"{value!r} names a file, and no files are read for this text"
        raise ScenarioError(Finding(text, PATH, value, "write a number, or {zipf: s}"))
    path = Path(value).expanduser()
    if not path.is_absolute() and beside is not None:
        path = Path(beside).parent / path
    try:
        text = files.read_text(path)
    except ScenarioError as error:
        raise ScenarioError([replace(finding, path=PATH, value=value) for finding in error.findings]) from None
    return read_histogram(text, str(path))


def read_histogram(text: str, file: str) -> Histogram:
    """The rows of a file. Raises `ScenarioError` with every line that is wrong."""
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    rows: list[ExpertTokens] = []
    problems: list[Finding] = []
    seen: set[tuple[int, int]] = set()
    try:
        header = tuple(cell.strip() for cell in next(lines, []))
        if header != COLUMNS:
            text = f"the first line must be {','.join(COLUMNS)}"
            raise ScenarioError(Finding(text, PATH, ",".join(header)[:60], "", file, 1))
        for cells in lines:
            if not cells:
                continue
            if len(rows) >= MOST_ROWS:
                raise ScenarioError(
                    Finding(f"at most {MOST_ROWS:,} rows are read", PATH, None, "is it the right file?", file, lines.line_num)
                )
            row = _row(cells, lines.line_num)
            if isinstance(row, str) or (row.layer, row.expert) in seen:
                text = row if isinstance(row, str) else f"expert {row.expert} of layer {row.layer} is listed twice"
                problems.append(Finding(text, PATH, ",".join(cells)[:60], "", file, lines.line_num))
                if len(problems) >= _MOST_SHOWN:
                    break
                continue
            seen.add((row.layer, row.expert))
            rows.append(row)
    except csv.Error as error:
        problems.append(Finding(f"is no CSV: {error}", PATH, None, "", file, lines.line_num))
    if problems:
        raise ScenarioError(problems)
    return Histogram(file, tuple(rows))


def _row(cells: list[str], line: int) -> ExpertTokens | str:
    """A row, or what is wrong with it."""
    if len(cells) != len(COLUMNS):
        return f"{len(cells)} values instead of {len(COLUMNS)} ({', '.join(COLUMNS)})"
    layer, expert = (int(cell) if cell.strip().isascii() and cell.strip().isdigit() and len(cell) < 12 else -1 for cell in cells[:2])
    if layer < 0 or expert < 0:
        return "layer and expert are whole numbers, counted from 0"
    try:
        tokens = float(cells[2])
    except ValueError:
        tokens = math.nan
    if not 0 <= tokens <= 1e18:
        return f"tokens: {cells[2].strip()[:40]!r} is no count from 0 to 1e18"
    return ExpertTokens(layer, expert, tokens, line)
