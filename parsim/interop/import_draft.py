"""A scenario in the making, what became of every key that it is made from, and both as commented YAML."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from parsim.columns import json_value, left, printable, width
from parsim.errors import Finding, ScenarioError
from parsim.interop.keys import Key, Source
from parsim.interop.shell_values import legible
from parsim.scenario import files
from parsim.scenario.scenario import flow
from parsim.scenario.support import PLACEHOLDER
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
    precision: str | None = None
    """types where the configuration leaves them open: bf16, amp-bf16 ..."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """of a shell script, by name; positional ones are 1, 2, ..."""
    vocabulary: int | None = None
    """rows of the word table, before padding"""
    tokenizer: str | None = None
    """name of the tokenizer that says them"""


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
        value = key.value if key.original is None else key.original
        return {"key": key.written, "value": json_value(value), **place, "became": self.kind, "to": self.to, "why": self.why}


@dataclass(frozen=True, slots=True)
class ScenarioLine:
    """One value of the scenario and where it comes from."""

    value: Any
    keys: tuple[Key, ...]
    note: str = ""


class ImportDraft:
    """Collects the lines of a scenario; every key of the source ends in exactly one way."""

    def __init__(self, tool: str, file: str, given: Given, evidence: str = "") -> None:
        self.tool = tool
        self.evidence = evidence
        """the keys by which the file was told to be the tool's"""
        self.file = file
        self.given = given
        self.lines: dict[str, ScenarioLine] = {}
        self.fates: dict[Key, Fate] = {}
        self.errors: list[Finding] = []
        self.remarks: list[Finding] = []
        """what to check beside single keys"""
        self.causes: dict[str, str] = {}
        """lines that are left to the reader for one reason, with that reason"""

    # -- lines of the scenario

    def write(self, path: str, value: Any, *keys: Key | None, note: str = "") -> None:
        """The scenario says `path`: `value`, because of `keys`."""
        present = tuple(key for key in keys if key is not None)
        self.lines[path] = ScenarioLine(value, present, note)
        for key in present:
            self._settle(key, "translated", "", path)

    def fill(self, path: str, how: str, *keys: Key | None) -> None:
        """Leave `path` to the reader; `how` says what to write."""
        self.write(path, PLACEHOLDER, *keys, note=f"FILL IN: {how}")

    def fill_together(self, paths: Mapping[str, str], answer: str, *keys: Key | None) -> None:
        """Leave several lines to the reader, with what to write, which one `answer` says at once: that is one question."""
        for path, how in paths.items():
            self.fill(path, how, *keys)
        self.causes |= dict.fromkeys(paths, answer)

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

    def refuse(self, key: Key | None, why: str, suggestion: str = "") -> None:
        """The key makes another job of it, which parsim does not simulate: nothing is imported, and the reader is told why."""
        if key is not None:
            self._settle(key, "not modelled", why)
            self.errors.append(key.finding(f"not supported yet: {why}", suggestion))

    def only_if(self, key: Key | None, off: Iterable[Any], why: str, meaning: str = "that is what parsim models") -> None:
        """A key that does nothing (`meaning`) with one of the values `off`, and is not modelled otherwise."""
        if key is not None:
            idle = any(type(value) is type(key.value) and value == key.value for value in off) or str(key.value) in map(str, off)
            if idle:
                self.harmless(key, meaning)
            else:
                self.unmodelled(key, why)

    def only_some(self, source: Source, *names: str) -> None:
        """The same for those of `names` that are given, by the table."""
        for name in names:
            only = source.table.only[name]
            self.only_if(source.get(name), only.values, only.why, only.meaning)

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

    def close(self, source: Source) -> None:
        """Say of every other key of `source` what it is."""
        table = source.table
        for key, last in source.superseded():
            if key not in self.fates:
                self.harmless(key, f"given again: {last.place(self.file)} counts")
        open_keys = [
            key for key in source.keys if source.valueless(key) and (key not in self.fates or self.fates[key].kind == "not modelled")
        ]
        self.errors += [key.finding("it has no value", key.hint) for key in open_keys]
        known = list(dict.fromkeys([*source.asked, *(name for name in table.names() if not name.endswith("*"))]))
        for key in source.keys:
            if key in self.fates:
                continue
            if key.name.rpartition(".")[2].startswith(COMMENTS):
                self.harmless(key, "a comment")
            elif key.value is None or key.value in ({}, []):
                self.harmless(key, NULL if key.value is None else "empty")
            elif why := table.reason(table.harmless, key.name):
                self.harmless(key, why)
            elif why := table.reason(table.refused, key.name):
                self.harmless(key, "switched off") if key.off else self.refuse(key, why)
            elif why := table.reason(table.unmodelled, key.name):
                self.harmless(key, "switched off") if key.off else self.unmodelled(key, why)
            elif key.name in source.asked:
                self.unmodelled(key, "of no meaning beside the other keys")
            else:
                near = difflib.get_close_matches(key.name, known, n=1, cutoff=0.75)
                hint = f"did you mean {spelled(key, near[0])}?" if near else ""
                if key.spreads:
                    self.refuse(key, f"ranks by a key that {self.tool} does not have, or parsim does not know", hint)
                else:
                    self._settle(key, "unknown", hint or "no key that parsim knows")

    # -- values

    def take(self, source: Source, path: str, *more: Key | None, minimum: int = 1) -> Any:
        """The scenario says `path` as the key of that row does; `more` are keys that have a part in it.

        None, and nothing is said, where the key is not given, or has a value without a meaning here.
        """
        key, row = source.of(path), source.table.rows[path]
        value: Any = None
        if key is not None:
            match row.kind:
                case "whole":
                    value = self.whole(key, minimum)
                case "number":
                    value = self.number(key)
                case "word":
                    value = row.ours(key.text if isinstance(key.value, list) else key.value)
                case _:
                    value = self.flag(key) is not (row.kind == "inverted")
        if value is not None:
            self.write(path, value, key, *more)
        return value

    def switch(self, source: Source, path: str, off: str = "switched off") -> bool:
        """Whether the flag of a row is on; one that is not has no effect, `off`."""
        key = source.of(path)
        on = key is not None and self.flag(key)
        if not on:
            self.harmless(key, off)
        return on

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
            shown = "it has no value" if key.value is True or key.value == "" else f"{legible(str(key.value))!r} is not a number"
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
            once = [error for n, error in enumerate(self.errors) if error not in self.errors[:n]]
            raise ScenarioError(sorted(once, key=lambda finding: (finding.file, finding.line or 0)))


def spelled(key: Key, name: str) -> str:
    """`name` in the spelling of `key`."""
    if key.written.startswith("--"):
        return "--" + (name if "_" in key.written else name.replace("_", "-"))
    return name


def plain_name(written: str) -> str:
    """The normal form of an option's name."""
    return written.lstrip("-").replace("-", "_")


SECTIONS = ("model", "cluster", "training", "parallel", "software")
WIDEST = 56
"""columns after which comments are not aligned any more"""
LONGEST = 150
"""columns of a comment line"""


@dataclass(frozen=True, slots=True)
class ImportedScenario:
    """What an importer of training configurations hands back."""

    tool: str
    tree: dict[str, Any]
    yaml: str
    fates: tuple[Fate, ...]
    """what became of each key, in the order of the source"""
    to_fill: tuple[str, ...]
    """scenario keys that are left to the reader"""
    warnings: tuple[Finding, ...]
    """keys that are not modelled or unknown, lines to fill in, and what else to check"""
    evidence: str = ""
    """the keys by which it was told to be the tool's"""
    questions: int = 0
    """answers that are missing; one for all lines that follow from a script's arguments"""


def finished(draft: ImportDraft) -> ImportedScenario:
    """The draft as text and tree.

    Raises:
        ScenarioError: the source has values that cannot be read.
    """
    draft.check()
    _unused(draft)
    fates = sorted(draft.fates.values(), key=lambda fate: (fate.key.file != draft.file, fate.key.file, fate.key.line or 0))
    yaml = "\n".join([*_heading(draft), *_body(draft), *_remains(draft, fates)]) + "\n"
    tree = files.parse_text(yaml, draft.given.name).tree
    holes = tuple(path for path, line in draft.lines.items() if line.value == PLACEHOLDER)
    questions = len({draft.causes.get(path, path) for path in holes})
    return ImportedScenario(draft.tool, tree, yaml, tuple(fates), holes, tuple(_warnings(draft, fates, holes)), draft.evidence, questions)


def _unused(draft: ImportDraft) -> None:
    """Say which of the user's words had no use."""
    notes = {line.note: None for line in draft.lines.values()}
    for flag, value in (
        ("--sequence", draft.given.sequence_length),
        ("--micro-batch", draft.given.micro_batch),
        ("--gradient-accumulation", draft.given.gradient_accumulation),
        ("--examples", draft.given.examples),
        ("--vocabulary", draft.given.vocabulary),
        ("--tokenizer", draft.given.tokenizer),
        ("--precision", draft.given.precision),
    ):
        if value is not None and not any(note.startswith(flag) for note in notes):
            draft.remark(f"{flag} {value} has no use: the configuration says it in another way")


def _heading(draft: ImportDraft) -> list[str]:
    source = "standard input" if draft.file == "-" else draft.file
    told = f" as {draft.tool} ({draft.evidence})" if draft.evidence else f" as {draft.tool}"
    lines = [f"# From {printable(source)}, read{told}; behind each value stands what it came from."]
    if any(line.value == PLACEHOLDER for line in draft.lines.values()):
        lines.append(f"# What the configuration does not say is to be filled in: {PLACEHOLDER}.")
    return [*lines, f"name: {flow(draft.given.name)}", ""]


def _body(draft: ImportDraft) -> list[str]:
    tree: dict[str, Any] = {}
    for path, line in draft.lines.items():
        *above, last = path.split(".")
        holder = tree
        for part in above:
            holder = holder.setdefault(part, {})
        holder[last] = line
    rows: list[tuple[str, str]] = []
    for section in SECTIONS:
        if section in tree:
            rows += _rows(section, tree[section], 0, draft.file)
    widest = min(WIDEST, max(width(text) for text, comment in rows if comment))
    return [f"{left(text, widest)}  # {comment}" if comment else text for text, comment in rows]


def _rows(key: str, node: ScenarioLine | dict[str, Any], depth: int, main: str) -> Iterator[tuple[str, str]]:
    indent = "  " * depth
    if isinstance(node, ScenarioLine):
        said = dict.fromkeys(part.quoted(main) for part in node.keys)
        yield f"{indent}{key}: {flow(node.value)}", "; ".join([*said, *([node.note] if node.note else [])])
        return
    yield f"{indent}{key}:", ""
    for name, below in node.items():
        yield from _rows(name, below, depth + 1, main)


def _remains(draft: ImportDraft, fates: list[Fate]) -> list[str]:
    """Comments on what is not in the scenario."""
    lines: list[str] = []
    if draft.remarks:
        lines += ["", "# To check:"] + [f"#   {_one_line(remark)}" for remark in draft.remarks]
    for kind, title in (
        ("not modelled", "Not modelled, so that the answer does not depend on it:"),
        ("unknown", "Unknown keys, of which nothing was taken:"),
    ):
        named = [fate for fate in fates if fate.kind == kind]
        if named:
            lines += ["", f"# {title}", *(f"#   {fate.key.quoted(draft.file)}: {printable(fate.why)}" for fate in named)]
    quiet = [fate for fate in fates if fate.kind == "no effect"]
    if quiet:
        lines += ["", "# No effect on the time or memory of a step:"]
        for why in dict.fromkeys(fate.why for fate in quiet):
            lines += _wrapped(why, [fate.key.quoted(draft.file) for fate in quiet if fate.why == why])
    return lines


def _wrapped(why: str, keys: list[str]) -> Iterator[str]:
    row = f"#   {printable(why)}:"
    for at, key in enumerate(keys):
        piece = f" {key}{',' if at + 1 < len(keys) else ''}"
        if width(row) + width(piece) > LONGEST:
            yield row
            row = "#    "
        row += piece
    yield row


def _warnings(draft: ImportDraft, fates: list[Fate], holes: tuple[str, ...]) -> Iterator[Finding]:
    yield from draft.remarks
    for fate in fates:
        if fate.kind in ("not modelled", "unknown"):
            text = f"{'not modelled' if fate.kind == 'not modelled' else 'unknown key'}: {fate.why}"
            yield Finding(text, fate.key.written, fate.key.value, "", fate.key.file, fate.key.line, fate.key.column)
    for path in (path for path in holes if path not in draft.causes):
        yield Finding("is left to fill in", path, PLACEHOLDER, draft.lines[path].note.removeprefix("FILL IN: "))


def _one_line(finding: Finding) -> str:
    return printable("; ".join(part for part in (finding.message, finding.suggestion) if part))
