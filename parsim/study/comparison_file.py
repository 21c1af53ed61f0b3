"""A comparison as a file: a base scenario, named variants of it, and keys that take several values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.files import Document
from parsim.scenario.values import did_you_mean, shown
from parsim.study.axes import Axis, Choice, Partial, label_of, nested

KEYS = ("name", "base", "baseline", "variants", "vary")
MARKS = ("variants", "vary")
"""a file with one of these keys at its top is a comparison"""
_NOT_HERE = ("extends", "overrides")


@dataclass(frozen=True)
class Entry:
    """One line of ``variants``: a scenario, and what changes in it."""

    label: str
    base: str
    """name or path, with ``+NAME`` for a named override; empty: all that there is, is in `partials`"""
    partials: tuple[Partial, ...] = ()


@dataclass(frozen=True)
class ComparisonFile:
    """What a comparison file says."""

    path: Path
    name: str
    baseline: str | None
    entries: tuple[Entry, ...]
    axes: tuple[Axis, ...]


def is_comparison(path: Path) -> bool:
    """Whether the file can be read and is a comparison."""
    try:
        return any(key in files.read(path).tree for key in MARKS)
    except ScenarioError:
        return False


def read(path: Path) -> ComparisonFile:
    """The comparison in a file.

    Raises:
        ScenarioError: all problems of the file's own keys; what the scenarios say is checked when they are loaded.
    """
    document = files.read(path)
    reader = _Reader(document)
    found = reader.comparison()
    if reader.findings:
        raise ScenarioError(reader.findings)
    return found


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.tree = document.tree
        self.findings: list[Finding] = []

    def problem(self, key: str, message: str, value: Any = None, suggestion: str = "") -> None:
        self.findings.append(Finding(message, key, value, suggestion, *self.document.locate(key)))

    def comparison(self) -> ComparisonFile:
        for key, value in self.tree.items():
            if key not in KEYS:
                self.problem(key, "unknown key of a comparison", value, did_you_mean(key, KEYS) or f"known: {', '.join(KEYS)}")
        path = Path(self.document.path)
        name = self.text("name") or path.stem
        variants = self.mapping("variants")
        base, shared = self.base("base") if "base" in self.tree else ("", None)
        entries = [self.entry(str(label), change, base, shared) for label, change in variants.items()]
        if not variants:
            if "base" not in self.tree:
                self.problem("base", "is missing", None, "name a scenario: base: llama-7b-ddp-8x-a100")
            entries = [Entry("", base, () if shared is None else (shared,))]
        vary = self.mapping("vary")
        axes = tuple(axis for key, values in vary.items() if (axis := self.axis(str(key), values, list(map(str, vary)))) is not None)
        return ComparisonFile(path, name, self.text("baseline"), tuple(entries), axes)

    def text(self, key: str) -> str | None:
        value = self.tree.get(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        self.problem(key, f"{shown(value)} is not a text", value)
        return None

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.tree.get(key)
        if value is None:
            return {}
        if isinstance(value, Mapping) and value:
            return value
        example = "write LABEL: {key: value}" if key == "variants" else "write parallel.data.strategy: [ddp, zero1]"
        self.problem(key, f"{shown(value)} is not a mapping", value, example)
        return {}

    def base(self, key: str, holder: Mapping[str, Any] | None = None) -> tuple[str, Partial | None]:
        """The scenario under `key`: its name, and what a mapping lays over what it extends (nothing: it is the scenario itself)."""
        value = (self.tree if holder is None else holder)["base"]
        if isinstance(value, Mapping):
            rest = {name: item for name, item in value.items() if name != "extends"}
            name = self.scenario(f"{key}.extends", value["extends"]) if "extends" in value else ""
            return name, (rest, self.below(key))
        return self.scenario(key, value), None

    def scenario(self, key: str, value: Any) -> str:
        """The name of a scenario, or its path from here; with ``+NAME`` for a named override."""
        if not isinstance(value, str) or not value.strip():
            self.problem(key, f"{shown(value)} is no scenario", value, "write a name, a path, NAME+OVERRIDE, or a mapping")
            return ""
        name, plus, block = value.partition("+")
        try:
            found = files.find("scenarios", name, self.document.path)
        except ScenarioError as error:
            self.problem(key, error.findings[0].message, value, error.findings[0].suggestion)
            return ""
        return f"{found.stem if files.is_shipped(found) else found}{plus}{block}"

    def entry(self, label: str, change: Any, base: str, shared: Partial | None) -> Entry:
        key = f"variants.{label}"
        if change is None:
            change = {}
        if not isinstance(change, Mapping):
            self.problem(key, f"{shown(change)} is not a mapping of changes", change, "write {key: value}")
            return Entry(label, base)
        for word in _NOT_HERE:
            if word in change:
                self.problem(f"{key}.{word}", "has no meaning in a variant", change[word], "write base: NAME or base: NAME+OVERRIDE")
        if "base" in change:
            base, shared = self.base(f"{key}.base", change)
        elif "base" not in self.tree:
            self.problem(key, "has no scenario to change", None, "write base: NAME here or at the top of the file")
        rest = {name: value for name, value in change.items() if name not in ("base", *_NOT_HERE)}
        partials = [] if shared is None else [shared]
        return Entry(label, base, (*partials, (rest, self.below(key))))

    def axis(self, key: str, values: Any, keys: list[str]) -> Axis | None:
        place = f"vary.{key}"
        if isinstance(values, Mapping) and len(values) > 1:
            return Axis(
                key,
                tuple(
                    Choice(str(label), partial=nested(key, value, self.document.origins, f"{place}.{label}"))
                    for label, value in values.items()
                ),
            )
        if isinstance(values, list) and len(values) > 1:
            return Axis(
                key,
                tuple(
                    Choice(label_of(key, value, keys), partial=nested(key, value, self.document.origins, f"{place}.{number}"))
                    for number, value in enumerate(values)
                ),
            )
        self.problem(place, "takes at least two values", values, "write a list, or a mapping LABEL: value")
        return None

    def below(self, key: str) -> dict[str, Any]:
        """The places of the keys under `key`, as if it were the top."""
        return {path[len(key) + 1 :]: place for path, place in self.document.origins.items() if path.startswith(f"{key}.")}
