"""YAML texts as plain trees with the position of every key. Nothing here knows what the keys mean.

YAML 1.2 (JSON is a subset), limited in expanded nodes, so that an alias bomb cannot stall it.

Punctuation of Chinese input methods where YAML needs ASCII looks right and means something else: it is found and named.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from unicodedata import name as unicode_name
from unicodedata import normalize

from parsim.columns import printable
from parsim.errors import Finding, ScenarioError
from parsim.limits import MOST_CHARACTERS, MOST_TEXT, MOST_VALUES

NODE_LIMIT = 500_000
"""largest number of values after YAML aliases are expanded"""
DEPTH_LIMIT = 100
LARGEST = 10**30
"""largest whole number: beyond anything real, and exact arithmetic with more digits is slow or impossible"""

_LONG_NUMBER = re.compile(r"\d{1000,}")
"""what Python refuses to convert, with other words"""

Origin = tuple[str, int | None, int | None]
"""file (or command-line argument), line and column, both from 1"""


def nearest(origins: Mapping[str, Origin], path: str) -> Origin | None:
    """The origin of `path` or of the closest key above it."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return None


def copied(tree: Any) -> Any:
    """A copy of a plain tree. `copy.deepcopy` asks every value how it is copied, and takes several times as long."""
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [copied(value) for value in tree]
    return tree


def plain(loaded: Any, name: str, origins: dict[str, Origin]) -> Any:
    """ruamel's tree as plain values; keys with punctuation of Chinese input methods are refused, all at once."""
    converter = _Converter(name, origins)
    tree = converter.value(loaded, "", 1)
    if converter.findings:
        raise ScenarioError(converter.findings)
    return tree


def load(text: str, name: str, *, repeated: bool = False) -> Any:
    """The round-trip tree of ruamel, its errors as findings. `repeated`: of a key that is written twice the last one counts."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.parser import Parser
    from ruamel.yaml.reader import ReaderError
    from ruamel.yaml.scanner import Scanner

    if len(text) > MOST_CHARACTERS:
        raise unreadable(f"{len(text):,} characters: at most {MOST_CHARACTERS:,} are read", name, suggestion="is it the right file?")
    if (values := sum(map(text.count, ",:\n"))) > MOST_VALUES:
        raise unreadable(f"about {values:,} values: at most {MOST_VALUES:,} are read", name, suggestion="is it the right file?")
    try:
        loader = YAML(typ="rt")
        loader.Scanner, loader.Parser = Scanner, Parser  # those of a round trip take half as long again, for comments that nobody reads
        if repeated:
            loader.Constructor = _last_of_each()
        if "*" in text and "&" in text:
            _refuse_cycles(text, name)
        return loader.load(text)
    except DuplicateKeyError as error:
        raise ScenarioError(duplicates(text, name) or Finding(str(error.problem), file=name)) from None
    except MarkedYAMLError as error:
        if wide := wide_marks(text, name):
            raise ScenarioError(wide) from None
        mark = error.problem_mark or error.context_mark
        parts = [str(part) for part in (error.problem, error.context) if part]
        problem = ", ".join(reversed(parts)) if parts[0].startswith("but ") else " ".join(parts)
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        raise unreadable(f"not valid YAML: {problem}", name, line, column, suggestion=_yaml_hint(text, problem)) from None
    except RecursionError:
        raise unreadable("nested too deeply", name, suggestion=f"at most {DEPTH_LIMIT} levels are read") from None
    except ReaderError as error:
        raise unreadable(f"the character U+{error.character:04X} is not allowed in YAML", name, *_place(text, error.position)) from None
    except (YAMLError, ValueError, TypeError, AttributeError, IndexError) as error:
        if number := _LONG_NUMBER.search(text):
            message = f"a number of {len(number[0]):,} digits: at most {len(str(LARGEST)) - 1} are read"
            raise unreadable(message, name, *_place(text, number.start())) from None
        summary = " ".join(str(error).split())[:200]
        raise unreadable(f"not valid YAML: {summary}", name) from None


def _refuse_cycles(text: str, name: str) -> None:
    """Refuses an alias inside the value that it stands for, of which ruamel's tree keeps nothing."""
    from ruamel.yaml import YAML
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

    opened: list[str | None] = []
    for event in YAML(typ="rt").parse(text):
        if isinstance(event, CollectionStartEvent):
            opened.append(event.anchor)
            if len(opened) > DEPTH_LIMIT:  # which is refused as soon as it is read
                return
        elif isinstance(event, CollectionEndEvent):
            opened.pop()
        elif isinstance(event, AliasEvent) and event.anchor in opened:
            mark = event.start_mark
            message = f"the alias '*{event.anchor}' is inside the value that it stands for"
            raise unreadable(message, name, mark.line + 1, mark.column + 1, suggestion="write the value out, or move the anchor")


def _place(text: str, offset: int) -> tuple[int, int]:
    """Line and column of a character, from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _last_of_each() -> Any:
    """A constructor of ruamel's that overwrites a key which it has, as PyYAML does."""
    from ruamel.yaml.constructor import RoundTripConstructor

    class LastOfEach(RoundTripConstructor):
        def check_mapping_key(self, *_: Any) -> bool:
            return True

    return LastOfEach


class _Converter:
    """ruamel's tree to plain values, noting the position of every key and counting what aliases expand to."""

    def __init__(self, name: str, origins: dict[str, Origin]) -> None:
        self.name = name
        self.origins = origins
        self.nodes = 0
        self.findings: list[Finding] = []

    def value(self, node: Any, path: str, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > NODE_LIMIT:
            raise unreadable(f"expands to more than {NODE_LIMIT:,} values", self.name, suggestion="do not multiply YAML aliases (*name)")
        if depth > DEPTH_LIMIT:
            raise unreadable(f"nested more than {DEPTH_LIMIT} levels deep", self.name, suggestion="do not let a YAML alias contain itself")
        if isinstance(node, (dict, list)):
            self._refuse_tag(node, path)
            return self._mapping(node, path, depth) if isinstance(node, dict) else self._sequence(node, path, depth)
        return self._scalar(node, path)

    def _mapping(self, node: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in node.items():
            if isinstance(key, str) and len(key) > MOST_TEXT:
                raise unreadable(f"a key of {len(key):,} characters: at most {MOST_TEXT:,} are read", self.name)
            below = f"{path}.{key}" if path else str(key)
            position = _key_position(node, key)
            if position is not None:
                self.origins[below] = (self.name, position[0] + 1, position[1] + 1)
            if isinstance(key, bool) or not isinstance(key, (str, int, float)):
                where = self.origins.get(below, (self.name, None, None))
                raise unreadable(f"the key {key!r} is not a text", *where, suggestion="put it in quotes")
            if wide := wide_key(str(key)):
                self.findings.append(replace(wide, path=path).at(*self.origins.get(below, (self.name, None, None))))
            plain[str(key)] = self.value(item, below, depth + 1)
        return plain

    def _sequence(self, node: list[Any], path: str, depth: int) -> list[Any]:
        plain = []
        for index, item in enumerate(node):
            below = f"{path}.{index}" if path else str(index)
            marks = getattr(node, "lc", None)
            if marks is not None and marks.data and index in marks.data:
                line, column = marks.item(index)
                self.origins[below] = (self.name, line + 1, column + 1)
            plain.append(self.value(item, below, depth + 1))
        return plain

    def _scalar(self, node: Any, path: str) -> Any:
        from ruamel.yaml.scalarbool import ScalarBoolean

        if node is None:
            return None
        if isinstance(node, (bool, ScalarBoolean)):
            return bool(node)
        if isinstance(node, str):
            if len(node) > MOST_TEXT and path and not path.endswith("schedule"):
                where = nearest(self.origins, path) or (self.name, None, None)
                raise unreadable(f"a text of {len(node):,} characters: at most {MOST_TEXT:,} are read", *where)
            return printable(str(node))
        if isinstance(node, int):
            return self._whole(int(node), path)
        if isinstance(node, float):
            return float(node)
        if isinstance(node, dt.datetime):
            return node.isoformat(" ")
        if isinstance(node, dt.date):
            return node.isoformat()
        raise self._tagged(path)

    def _whole(self, number: int, path: str) -> int:
        if abs(number) <= LARGEST:
            return number
        where = nearest(self.origins, path) or (self.name, None, None)
        written = f"{'-' if number < 0 else ''}{str(abs(number))[:12]}..."
        message = f"{written!r} is larger than the limit of 1e30"
        self.findings.append(Finding(message, path, written).at(*where))
        return 0

    def _refuse_tag(self, node: Any, path: str) -> None:
        tag = getattr(node, "tag", None)
        if tag is not None and tag.value is not None and tag.value not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise self._tagged(path)

    def _tagged(self, path: str) -> ScenarioError:
        where = nearest(self.origins, path) or (self.name, None, None)
        return unreadable("a YAML tag (!name) or a binary value is not supported here", *where, suggestion="write a plain value")


def _key_position(node: dict[Any, Any], key: Any) -> tuple[int, int] | None:
    """Line and column (from 0) of `key`, also where it comes from a merged mapping (``<<: *base``)."""
    marks = getattr(node, "lc", None)
    if marks is not None and marks.data and key in marks.data:
        line, column = marks.key(key)
        return line, column
    for merged in getattr(node, "merge", None) or ():
        source = merged[1] if isinstance(merged, tuple) else merged
        if isinstance(source, dict) and source is not node and key in source:
            return _key_position(source, key)
    return None


def duplicates(text: str, name: str) -> list[Finding]:
    """One finding for every key that a mapping writes twice, with both positions."""
    from ruamel.yaml import YAML

    loader = YAML(typ="rt")
    loader.allow_duplicate_keys = True
    findings: list[Finding] = []
    seen: dict[Any, None] = {}
    todo: list[tuple[Any, str]] = [(loader.compose(text), "")]
    while todo:
        node, path = todo.pop()
        if node is None or node in seen:
            continue
        seen[node] = None
        if node.id == "sequence":
            todo += [(item, f"{path}.{index}" if path else str(index)) for index, item in enumerate(node.value)]
        if node.id != "mapping":
            continue
        first: dict[str, Any] = {}
        for key, item in node.value:
            label = str(key.value)
            below = f"{path}.{label}" if path else label
            mark = key.start_mark
            if label in first and key.id == "scalar":
                before = first[label]
                message = f"the key is written twice: first at line {before.line + 1}, column {before.column + 1}"
                findings.append(Finding(message, below, None, "keep one of them", name, mark.line + 1, mark.column + 1))
            first.setdefault(label, mark)
            todo.append((item, below))
    return sorted(findings, key=lambda finding: (finding.line or 0, finding.column or 0))


def _yaml_hint(text: str, problem: str) -> str:
    if "\\t" in problem or ("\t" in text and "cannot start any token" in problem):
        return "YAML is indented with spaces, not tabs"
    if "mapping values are not allowed" in problem:
        return "check the indentation, and put texts that contain ': ' in quotes"
    return ""


def unreadable(message: str, file: str, line: int | None = None, column: int | None = None, *, suggestion: str = "") -> ScenarioError:
    """The error of a text that cannot be read."""
    return ScenarioError(Finding(message, suggestion=suggestion, file=file, line=line, column=column))


_WORD = r"[A-Za-z_][\w.-]*"
_WIDE_SPACE = "\u3000\u00a0"
_KEY = re.compile(rf"[\s{_WIDE_SPACE}]*(?P<key>{_WORD})\s*(?P<mark>[：＝])\s*(?P<value>.*)", re.DOTALL)
"""a key that swallowed its value: ``micro_batch：16``"""
_AT_START = re.compile(rf"[ -]*(?P<key>{_WORD})\s*(?P<mark>[：＝])\s*(?P<value>[^#]*)")
_INSIDE = re.compile(r"[：，；｛｝［］“”‘’]")
_INDENT = re.compile(rf"^[ \t-]*(?P<mark>[{_WIDE_SPACE}])")
_FLOW = re.compile(r"[\[{｛［]")
_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|(?:^|\s)#.*")
_ASCII = {"“": '"', "”": '"', "‘": "'", "’": "'"}


def wide_key(key: str) -> Finding | None:
    """What is wrong with a key that was read as ``micro_batch：16``, or that begins with an ideographic space."""
    if match := _KEY.fullmatch(key):
        return _finding(match["mark"], f"write {match['key']}: {_narrow(match['value'])}".rstrip())
    if key[:1] in tuple(_WIDE_SPACE) or key[-1:] in tuple(_WIDE_SPACE):
        return _finding(key[0] if key[0] in _WIDE_SPACE else key[-1], f"write {key.strip(_WIDE_SPACE + ' ')} with ASCII spaces")
    return None


def wide_marks(text: str, file: str) -> list[Finding]:
    """Full-width punctuation of a file that is no YAML, where it is likely to be why; texts in quotes and comments are left out."""
    return [
        found.at(file, number, column)
        for number, line in enumerate(text.splitlines(), 1)
        for column, found in _of_line(_TEXT.sub(lambda part: " " * len(part[0]), line))
    ]


def _of_line(line: str) -> Iterator[tuple[int, Finding]]:
    """Columns from 1, and what stands there."""
    if match := _INDENT.match(line):
        yield match.start("mark") + 1, _finding(match["mark"], "indent with ASCII spaces")
    if match := _AT_START.match(line):
        yield match.start("mark") + 1, _finding(match["mark"], f"write {match['key']}: {_narrow(match['value'])}".rstrip())
        return
    opened = _FLOW.search(line)
    if opened is not None:
        for mark in _INSIDE.finditer(line, opened.start()):
            yield mark.start() + 1, _finding(mark[0], f"write {_narrow(mark[0])!r}")


def _finding(mark: str, suggestion: str) -> Finding:
    what = unicode_name(mark).lower()
    shown = "" if mark in _WIDE_SPACE else f" {mark!r}"
    return Finding(f"{what}{shown} (U+{ord(mark):04X}) where YAML needs ASCII", value=mark, suggestion=suggestion)


def _narrow(text: str) -> str:
    return "".join(_ASCII.get(letter) or normalize("NFKC", letter) for letter in text).strip()
