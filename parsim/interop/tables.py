"""The key table of a tool: its keys beside ours, one row for reading and writing, and why the other keys of either side have none.

The tables are `keys/TOOL.yaml`. Importers read by our key (`Source.of`), exporters write by it (`ExportDraft.option`,
`ExportDraft.entry`): how a key and its words are called there stands in the table only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parsim.scenario import files

OFF: tuple[Any, ...] = (False, 0, "0", None, {}, [], "none", "None", "False", "false", "no")
"""values with which a key that is not modelled does nothing"""


@dataclass(frozen=True, slots=True)
class Row:
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
    rows: dict[str, Row]
    """by our key"""
    lacks: dict[str, str]
    """our key -> why the tool has no counterpart"""
    only: dict[str, Only]
    """by the tool's key"""
    harmless: dict[str, str]
    """reason -> the tool's keys that change neither time nor memory of a step; ``name*`` stands for all that begin so"""
    unmodelled: dict[str, str]
    """reason -> the tool's keys whose effect parsim does not model"""

    def reason(self, reasons: Mapping[str, str], name: str) -> str:
        """The reason under which `name` stands in `reasons`, or an empty text."""
        for reason, names in reasons.items():
            for known in names.split():
                if known == name or (known.endswith("*") and name.startswith(known[:-1])):
                    return reason
        return ""

    def names(self) -> list[str]:
        """The tool's keys that stand under a reason."""
        return [name for reasons in (self.harmless, self.unmodelled) for names in reasons.values() for name in names.split()]

    def below(self, prefix: str) -> list[Row]:
        """The rows of our keys that begin with `prefix`."""
        return [row for path, row in self.rows.items() if path.startswith(prefix)]


@cache
def key_table(tool: str) -> KeyTable:
    """The table ``keys/TOOL.yaml``, with the tables that it includes."""
    tree = _read(tool)
    parts = [*(_read(name) for name in tree.get("include", ())), tree]
    table = KeyTable(tree["tool"], {}, {}, {}, {}, {})
    for part in reversed(parts):
        begins = part.get("prefixes", ())
        table.harmless.update({reason: _behind(begins, names) for reason, names in part["no effect"].items()})
        table.unmodelled.update(part.get("not modelled", {}))
    for part in parts:
        begins = part.get("prefixes", ())
        table.rows.update({path: _row(path, entry, begins) for path, entry in part.get("keys", {}).items()})
        table.lacks.update(part.get("no counterpart", {}))
        table.only.update(
            {name: _only(e) for key, e in part.get("modelled only with", {}).items() for name in _behind(begins, key).split()}
        )
    return table


def _read(name: str) -> dict[str, Any]:
    return files.read(Path(__file__).parent / "keys" / f"{name}.yaml").tree


def _behind(begins: Sequence[str], names: str) -> str:
    """Every name behind every one of `begins`; the names as they are where there are none."""
    return " ".join(f"{begin}{name}" for name in names.split() for begin in begins or ("",))


def _row(path: str, entry: str | Mapping[str, Any], begins: Sequence[str]) -> Row:
    """A row; plain names stand for a whole number that both sides write alike."""
    if isinstance(entry, str):
        entry = {"key": entry}
    kind = "word" if "words" in entry else entry.get("kind", "whole")
    return Row(path, tuple(_behind(begins, entry["key"]).split()), kind, entry.get("words", {}), entry.get("also", {}))


def _only(entry: Mapping[str, Any]) -> Only:
    return Only(tuple(entry["values"]), entry["otherwise"], entry.get("meaning", "that is what parsim models"))
