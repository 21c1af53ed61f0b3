"""A scenario in the making, and what became of every key of the configuration that it is made from."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from parsim.errors import Finding, ScenarioError
from parsim.scenario.importers.training.keys import Key, Source
from parsim.scenario.placeholder import PLACEHOLDER
from parsim.units import real

Kind = Literal["translated", "no effect", "not modelled", "unknown"]
_WEIGHT = {"unknown": 0, "no effect": 1, "not modelled": 2, "translated": 3}
NULL = "null is the tool's default"
LARGEST = 10**15
"""of the whole numbers in a configuration: samples, tokens, bytes of a bucket"""
COMMENTS = ("_comment", "//", "#", "__comment")
"""begins of keys with which JSON files hold comments"""


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says beside the configuration."""

    name: str = "imported"
    on: str | None = None
    """machine: a topology, or a box such as ``8x a100-80gb``"""
    nodes: int | None = None
    model: str | None = None
    sequence_length: int | None = None
    micro_batch: int | None = None
    gradient_accumulation: int | None = None
    examples: int | None = None
    """samples of the data set"""
    variables: Mapping[str, str] = field(default_factory=dict)
    """of a shell script, by name; positional ones are 1, 2, ..."""


@dataclass(slots=True)
class Fate:
    """What became of one key."""

    key: Key
    kind: Kind
    to: list[str] = field(default_factory=list)
    """scenario keys, where it is translated"""
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        key = self.key
        place = {"file": key.file, "line": key.line, "column": key.column}
        return {"key": key.written, "value": key.value, **place, "became": self.kind, "to": self.to, "why": self.why}


@dataclass(frozen=True, slots=True)
class Line:
    """One value of the scenario and where it comes from."""

    value: Any
    keys: tuple[Key, ...]
    note: str = ""


@dataclass(frozen=True)
class Tables:
    """Keys of a tool that need no code, by reason; ``name*`` stands for all that begin so."""

    harmless: Mapping[str, str]
    """reason -> names that change neither time nor memory of a step"""
    unmodelled: Mapping[str, str]
    """reason -> names of what parsim does not model"""
    off: tuple[Any, ...] = (False, 0, "0", None, {}, [], "none", "None", "False", "false", "no")
    """values with which an unmodelled key does nothing"""

    def reason(self, table: Mapping[str, str], name: str) -> str:
        """The reason under which `name` stands in `table`, or an empty text."""
        for reason, names in table.items():
            for known in names.split():
                if known == name or (known.endswith("*") and name.startswith(known[:-1])):
                    return reason
        return ""

    def names(self) -> list[str]:
        """All of them."""
        return [name for table in (self.harmless, self.unmodelled) for names in table.values() for name in names.split()]


class Draft:
    """Collects the lines of a scenario; every key of the source ends in exactly one way."""

    def __init__(self, tool: str, file: str, given: Given) -> None:
        self.tool = tool
        self.file = file
        self.given = given
        self.lines: dict[str, Line] = {}
        self.fates: dict[Key, Fate] = {}
        self.errors: list[Finding] = []
        self.remarks: list[Finding] = []
        """what to check beside single keys"""

    # -- lines of the scenario

    def write(self, path: str, value: Any, *keys: Key | None, note: str = "") -> None:
        """The scenario says `path`: `value`, because of `keys`."""
        present = tuple(key for key in keys if key is not None)
        self.lines[path] = Line(value, present, note)
        for key in present:
            self._settle(key, "translated", "", path)

    def fill(self, path: str, how: str, *keys: Key | None) -> None:
        """Leave `path` to the reader; `how` says what to write."""
        self.write(path, PLACEHOLDER, *keys, note=f"FILL IN: {how}")

    def value(self, path: str) -> Any:
        """What is written under `path`; None where nothing is, or where it is left to fill in."""
        line = self.lines.get(path)
        return None if line is None or line.value == PLACEHOLDER else line.value

    def remark(self, message: str, path: str = "", suggestion: str = "") -> None:
        """Something that the reader should check."""
        self.remarks.append(Finding(message, path, suggestion=suggestion, file=self.file))

    # -- what becomes of a key

    def harmless(self, key: Key | None, why: str) -> None:
        """The key changes neither the time nor the memory of a step."""
        if key is not None:
            self._settle(key, "no effect", why)

    def unmodelled(self, key: Key | None, why: str) -> None:
        """The key changes something that parsim does not model."""
        if key is not None:
            self._settle(key, "not modelled", why)

    def only_if(self, key: Key | None, off: Iterable[Any], why: str, meaning: str = "that is what parsim models") -> None:
        """A key that does nothing (`meaning`) with one of the values `off`, and is not modelled otherwise."""
        if key is not None:
            idle = any(type(value) is type(key.value) and value == key.value for value in off) or str(key.value) in map(str, off)
            if idle:
                self.harmless(key, meaning)
            else:
                self.unmodelled(key, why)

    def settled(self, key: Key) -> bool:
        """Whether it is known what becomes of `key`."""
        return key in self.fates

    def _settle(self, key: Key, kind: Kind, why: str, path: str = "") -> None:
        """Note what becomes of `key`; where two parts of an importer look at it, what matters more to a step is kept."""
        known = self.fates.get(key)
        if known is None or _WEIGHT[kind] > _WEIGHT[known.kind]:
            self.fates[key] = Fate(key, kind, [path] if path else [], why)
        elif path and path not in known.to:
            known.to.append(path)

    def close(self, source: Source, tables: Tables) -> None:
        """Say of every other key of `source` what it is."""
        for key, last in source.superseded():
            if key not in self.fates:
                self.harmless(key, f"given again: {last.place(self.file)} counts")
        known = list(dict.fromkeys([*source.asked, *(name for name in tables.names() if not name.endswith("*"))]))
        for key in source.keys:
            if key in self.fates:
                continue
            if key.name.rpartition(".")[2].startswith(COMMENTS):
                self.harmless(key, "a comment")
            elif key.value is None or key.value in ({}, []):
                self.harmless(key, NULL if key.value is None else "empty")
            elif why := tables.reason(tables.harmless, key.name):
                self.harmless(key, why)
            elif why := tables.reason(tables.unmodelled, key.name):
                off = any(type(value) is type(key.value) and value == key.value for value in tables.off)
                self.harmless(key, "switched off") if off else self.unmodelled(key, why)
            elif key.name in source.asked:
                self.unmodelled(key, "of no meaning beside the other keys")
            else:
                near = difflib.get_close_matches(key.name, known, n=1, cutoff=0.75)
                self._settle(key, "unknown", f"did you mean {spelled(key, near[0])}?" if near else "no key that parsim knows")

    # -- values

    def whole(self, key: Key | None, minimum: int = 0) -> int | None:
        """The key's value as a whole number; what is none is an error."""
        number = self.number(key)
        if key is None or number is None:
            return None
        if number != int(number) or not minimum <= number <= LARGEST:
            self.errors.append(key.finding(f"{key.value} is not a whole number from {minimum}", key.hint))
            return None
        return int(number)

    def number(self, key: Key | None) -> float | None:
        """The key's value as a number; what is none is an error."""
        if key is None:
            return None
        try:
            return real("" if isinstance(key.value, (bool, list, dict)) else str(key.value).replace("_", ""))
        except ValueError:
            shown = "it has no value" if key.value is True or key.value == "" else f"{key.value!r} is not a number"
            self.errors.append(key.finding(shown, key.hint or "write a number"))
            return None

    def flag(self, key: Key | None, default: bool = False) -> bool:
        """The key's value as true or false; what is neither is an error."""
        if key is None:
            return default
        if isinstance(key.value, bool):
            return key.value
        word = str(key.value).strip().lower()
        if word in ("true", "1", "yes", "y", "t", "on"):
            return True
        if word in ("false", "0", "no", "n", "f", "off", ""):
            return False
        self.errors.append(key.finding(f"{key.value!r} is neither true nor false", key.hint or "write true or false"))
        return default

    def check(self) -> None:
        """Raise what was wrong with the source."""
        if self.errors:
            raise ScenarioError(sorted(self.errors, key=lambda finding: (finding.file, finding.line or 0)))


def spelled(key: Key, name: str) -> str:
    """`name` in the spelling of `key`."""
    if key.written.startswith("--"):
        return "--" + (name if "_" in key.written else name.replace("_", "-"))
    return name


def plain_name(written: str) -> str:
    """The normal form of an option's name."""
    return written.lstrip("-").replace("-", "_")
