"""Keys: those of a foreign configuration, with value and place, and the key table of a tool, which says what each is called here.

The tables are `tables/TOOL.yaml`: one row for reading and writing, and why the other keys of either side have none. Importers read by our
key (`Source.of`), exporters write by it (`ExportDraft.option`, `ExportDraft.entry`): how a key and its words are called there stands in
the table only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parsim.columns import printable, visible
from parsim.errors import Finding
from parsim.scenario import files
from parsim.scenario.files import Document

LONGEST_VALUE = 60
"""letters of a value that a comment repeats"""
LARGE = 1e4
"""whole numbers from here on are shown without a fraction"""


OFF: tuple[Any, ...] = (False, 0, "0", None, {}, [], "none", "None", "False", "false", "no")
"""values with which a key that is not modelled does nothing"""


_RANKS = re.compile(r"parallel\w*_(?:size|degree)$|^(?:size|degree)_\w*parallel|^(?:tp|pp|cp|ep|sp)_(?:size|degree)$")
"""names of keys that say over how many ranks something is spread, in the ways of Megatron-LM, torchtitan and others"""


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
    original: Any = None
    """the value as the source writes it, where a reader has followed or turned it"""

    @property
    def text(self) -> str:
        """The value as a word to look up."""
        return " ".join(map(str, self.value)) if isinstance(self.value, list) else str(self.value)

    @property
    def off(self) -> bool:
        """Its value is one with which a switch does nothing."""
        return any(type(value) is type(self.value) and value == self.value for value in OFF)

    @property
    def spreads(self) -> bool:
        """Its name says over how many ranks something is spread, and its value is more than one: another job than without it."""
        return (
            _RANKS.search(self.name.rpartition(".")[2]) is not None and self.text.isascii() and self.text.isdigit() and int(self.text) > 1
        )

    def finding(self, message: str, suggestion: str = "") -> Finding:
        """A finding about this key, with its place."""
        return Finding(message, self.written, self.value, suggestion, self.file, self.line, self.column)

    def quoted(self, main: str) -> str:
        """The key as a comment of the scenario repeats it; `main` is the file that need not be named."""
        said = self.value if self.original is None else self.original
        if isinstance(said, (list, tuple)):
            value = " ".join(map(str, said)) if self.written.startswith("-") else str(list(said))
        else:
            value = _scalar(said)
        value = visible(printable(" ".join(value.split())))
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

    def valueless(self, key: Key) -> bool:
        """Whether `key` counts, takes a value by the table, and has none because a variable has none."""
        row = next((row for row in self.table.rows.values() if key.name in row.names), None)
        takes = (
            row is not None and row.kind in ("whole", "number", "word") and not any(word in (True, False) for word in row.words.values())
        )
        last = self._last.get(key.name.removeprefix(self._prefix)) is key
        return takes and last and bool(key.hint) and key.value in (True, "")

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


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One of our keys and what a tool calls it."""

    path: str
    """our key, or one side of it that the tool says with a key of its own (``training.precision.bf16``)"""
    names: tuple[str, ...]
    """the tool's: the one that is written, then those of older versions, which are read too"""
    kind: str
    """whole | number | flag | inverted (a flag that says the opposite) | word"""
    words: Mapping[str, Any]
    """our values -> the tool's; an empty mapping where both say the same"""
    also: Mapping[str, str]
    """further values of the tool, which are read only -> ours"""

    @property
    def name(self) -> str:
        """The name that is written."""
        return self.names[0]

    def ours(self, theirs: Any) -> str | None:
        """Our value for a value of the tool's; None where it has no meaning here. Of several that the tool calls alike, the first."""
        return next((mine for mine, word in self.words.items() if str(word) == str(theirs)), self.also.get(str(theirs)))

    def theirs(self, ours: Any) -> Any:
        """The tool's value for ours; None where the tool has none."""
        return self.words.get(str(ours).lower() if isinstance(ours, bool) else str(ours)) if self.words else ours

    @property
    def known(self) -> list[str]:
        """Our values that the tool's words mean, each once."""
        return list(dict.fromkeys([*self.words, *self.also.values()]))


@dataclass(frozen=True, slots=True)
class Only:
    """A key that is modelled with some of its values only."""

    values: tuple[Any, ...]
    """with which it does what parsim models, or nothing"""
    why: str
    """what other values change"""
    meaning: str
    """what `values` mean"""


@dataclass(frozen=True)
class KeyTable:
    """Everything that is known of a tool's keys without arithmetic."""

    tool: str
    """as its users call it"""
    rows: dict[str, KeyRow]
    """by our key"""
    lacks: dict[str, str]
    """our key -> why the tool has no counterpart"""
    only: dict[str, Only]
    """by the tool's key"""
    harmless: dict[str, str]
    """reason -> the tool's keys that change neither time nor memory of a step; ``name*`` stands for all that begin so"""
    unmodelled: dict[str, str]
    """reason -> the tool's keys whose effect parsim does not model"""
    refused: dict[str, str]
    """reason -> the tool's keys that make another job of it than parsim can simulate"""

    def reason(self, reasons: Mapping[str, str], name: str) -> str:
        """The reason under which `name` stands in `reasons`, or an empty text."""
        for reason, names in reasons.items():
            for known in names.split():
                if known == name or (known.endswith("*") and name.startswith(known[:-1])):
                    return reason
        return ""

    def names(self) -> list[str]:
        """The tool's keys that stand under a reason."""
        return [name for reasons in (self.harmless, self.unmodelled, self.refused) for names in reasons.values() for name in names.split()]

    def below(self, prefix: str) -> list[KeyRow]:
        """The rows of our keys that begin with `prefix`."""
        return [row for path, row in self.rows.items() if path.startswith(prefix)]


@cache
def key_table(tool: str) -> KeyTable:
    """The table ``tables/TOOL.yaml``, with the tables that it includes."""
    tree = _read(tool)
    parts = [*(_read(name) for name in tree.get("include", ())), tree]
    table = KeyTable(tree["tool"], {}, {}, {}, {}, {}, {})
    for part in reversed(parts):
        begins = part.get("prefixes", ())
        _join(table.harmless, {reason: _behind(begins, names) for reason, names in part["no effect"].items()})
        _join(table.unmodelled, part.get("not modelled", {}))
        _join(table.refused, part.get("refused", {}))
    for part in parts:
        begins = part.get("prefixes", ())
        table.rows.update({path: _row(path, entry, begins) for path, entry in part.get("keys", {}).items()})
        table.lacks.update(part.get("no counterpart", {}))
        table.only.update(
            {name: _only(e) for key, e in part.get("modelled only with", {}).items() for name in _behind(begins, key).split()}
        )
    return table


def _join(known: dict[str, str], more: Mapping[str, str]) -> None:
    """Add names to their reasons; two tables may have one reason."""
    for reason, names in more.items():
        known[reason] = f"{known[reason]} {names}" if reason in known else names


def _read(name: str) -> dict[str, Any]:
    return files.read(Path(__file__).parent / "tables" / f"{name}.yaml").tree


def _behind(begins: Sequence[str], names: str) -> str:
    """Every name behind every one of `begins`; the names as they are where there are none."""
    return " ".join(f"{begin}{name}" for name in names.split() for begin in begins or ("",))


def _row(path: str, entry: str | Mapping[str, Any], begins: Sequence[str]) -> KeyRow:
    """A row; plain names stand for a whole number that both sides write alike."""
    if isinstance(entry, str):
        entry = {"key": entry}
    kind = "word" if "words" in entry else entry.get("kind", "whole")
    return KeyRow(path, tuple(_behind(begins, entry["key"]).split()), kind, entry.get("words", {}), entry.get("also", {}))


def _only(entry: Mapping[str, Any]) -> Only:
    return Only(tuple(entry["values"]), entry["otherwise"], entry.get("meaning", "that is what parsim models"))
