"""Keys of a foreign configuration: name, value and where each stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsim.columns import printable
from parsim.errors import Finding
from parsim.interop.tables import KeyTable, key_table
from parsim.scenario.files import Document

LONGEST_VALUE = 60
"""letters of a value that a comment repeats"""
LARGE = 1e4
"""whole numbers from here on are shown without a fraction"""


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """One setting of the source. Two keys are the same only if they are the same object."""

    name: str
    """normal form: underscores, no dashes in front; nested ones dotted (``zero_optimization.stage``)"""
    written: str
    """as the source spells it: ``--num-layers``"""
    value: Any
    """true for an option without a value, a list for one with several"""
    file: str
    line: int | None = None
    column: int | None = None
    hint: str = ""
    """what would give it a value where the source does not"""

    @property
    def text(self) -> str:
        """The value as a word to look up."""
        return " ".join(map(str, self.value)) if isinstance(self.value, list) else str(self.value)

    def finding(self, message: str, suggestion: str = "") -> Finding:
        """A finding about this key, with its place."""
        return Finding(message, self.written, self.value, suggestion, self.file, self.line, self.column)

    def quoted(self, main: str) -> str:
        """The key as a comment of the scenario repeats it; `main` is the file that need not be named."""
        if isinstance(self.value, (list, tuple)):
            value = " ".join(map(str, self.value)) if self.written.startswith("-") else str(list(self.value))
        else:
            value = _scalar(self.value)
        value = printable(" ".join(value.split()))
        if len(value) > LONGEST_VALUE:
            value = value[: LONGEST_VALUE - 3] + "..."
        if self.written.startswith("-"):
            text = self.written if self.value is True else f"{self.written} {value}"
        else:
            text = f"{self.written}: {value}"
        return f"{text} ({self.place(main)})"

    def place(self, main: str) -> str:
        """``line 12``, or ``ds_config.json:12`` in another file than `main`."""
        if self.file != main:
            name = printable(Path(self.file).name)
            return f"{name}:{self.line}" if self.line else name
        return f"line {self.line}" if self.line else "given"


def _scalar(value: Any) -> str:
    """A value as YAML has it; 5e8 without its fraction."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) >= LARGE else str(value)


class Source:
    """The keys of one file or command, in order. Where a key is given twice the last one counts."""

    def __init__(self, keys: Iterable[Key], table: KeyTable, prefix: str = "") -> None:
        self.keys = tuple(key for key in keys if key.name.startswith(prefix))
        self.table = table
        """of the tool"""
        self.asked: dict[str, None] = {}
        """names that a reader has asked for, in order: those it knows what to do with"""
        self._last = {key.name.removeprefix(prefix): key for key in self.keys}
        self._prefix = prefix

    def below(self, section: str, table: KeyTable) -> Source:
        """The keys of a section, by their names in it, which are those of `table`."""
        return Source(self.keys, table, section)

    def of(self, *paths: str) -> Key | None:
        """The key that the table has for the first of our keys `paths` that is given."""
        return self.get(*(name for path in paths for name in self.table.rows[path].names))

    def get(self, *names: str) -> Key | None:
        """The key called by the first of `names` that is given with a value other than null."""
        self.asked |= dict.fromkeys(names)
        for name in names:
            key = self._last.get(name)
            if key is not None and key.value is not None:
                return key
        return None

    def all(self, *names: str) -> list[Key]:
        """All keys of these names that are given."""
        return [key for name in names if (key := self.get(name)) is not None]

    def superseded(self) -> Iterator[tuple[Key, Key]]:
        """Keys that are given again, and the last one of that name."""
        for key in self.keys:
            last = self._last[key.name.removeprefix(self._prefix)]
            if last is not key:
                yield key, last

    def __contains__(self, name: str) -> bool:
        return name in self._last


def of_document(document: Document, tool: str) -> Source:
    """The leaves of a parsed YAML or JSON file of a tool that has a key table."""
    return Source(_leaves(document.tree, "", document), key_table(tool))


def _leaves(tree: Mapping[str, Any], path: str, document: Document) -> Iterator[Key]:
    for key, value in tree.items():
        below = f"{path}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{below}.", document)
            continue
        _, line, column = document.locate(below)
        yield Key(below, below, value, document.path, line, column)
