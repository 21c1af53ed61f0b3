"""The rows of a CSV file that a user wrote."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from parsim.errors import Finding


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

    def _broken(self, error: csv.Error) -> None:
        # Python's own text proposes another mode of opening files
        problem = "a carriage return in the middle of a line" if "new-line character" in str(error) else str(error)
        self._findings.append(Finding(f"is no valid CSV: {problem}", file=self._name, line=self._reader.line_num + 1))
