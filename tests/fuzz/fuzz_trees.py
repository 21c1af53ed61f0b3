"""Documents as trees that can also hold what no honest document holds, and the texts of such trees.

A mapping is a list of pairs, so that a key can stand in it twice and need not be a text. Every form of file has such a tree: YAML and
JSON their own, XML elements as [tag, attributes, children], logs, tables and scripts as lines of words, a command line as pairs of
option and value.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from ruamel.yaml import YAML


class Pairs(list):
    """A mapping: [key, value] pairs."""


class Raw(str):
    """A piece of text that is written as it stands, whatever the form."""

    __slots__ = ()


@dataclass
class Slot:
    """A place in a tree that holds a value."""

    holder: list
    index: int
    keys: tuple[str, ...]
    """the keys above and of it; items of lists have *"""

    @property
    def value(self) -> Any:
        item = self.holder[self.index]
        return item[1] if isinstance(self.holder, Pairs) else item

    @value.setter
    def value(self, value: Any) -> None:
        if isinstance(self.holder, Pairs):
            self.holder[self.index][1] = value
        else:
            self.holder[self.index] = value

    @property
    def key(self) -> str:
        """The nearest key above the value."""
        return next((key for key in reversed(self.keys) if key != "*"), "")

    @property
    def place(self) -> str:
        """The last two keys: what is legal under ``fabric.kind`` is not under ``edges.kind``, nor is an item where its list is."""
        return ".".join(self.keys[-2:])


def slots(tree: Any, keys: tuple[str, ...] = ()) -> Iterator[Slot]:
    """Every place of a tree, outer ones first."""
    for index, item in enumerate(tree if isinstance(tree, list) else ()):
        if isinstance(tree, Pairs):
            below = (*keys, str(item[0]))
            yield Slot(tree, index, below)
            yield from slots(item[1], below)
        else:
            below = (*keys, "*")
            yield Slot(tree, index, below)
            yield from slots(item, below)


def tree_of(value: Any) -> Any:
    """A parsed document as a tree."""
    if isinstance(value, dict):
        return Pairs([key, tree_of(item)] for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [tree_of(item) for item in value]
    return value


def _flow(tree: Any, *, yaml: bool) -> str:
    """JSON, which is YAML as well; both have a word of their own for NaN."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Pairs):
        return "{" + ", ".join(f"{_key(key, yaml=yaml)}: {_flow(value, yaml=yaml)}" for key, value in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(_flow(item, yaml=yaml) for item in tree) + "]"
    if isinstance(tree, float) and not math.isfinite(tree):
        word = "nan" if math.isnan(tree) else "inf"
        sign = "-" if tree < 0 else ""
        return f"{sign}.{word}" if yaml else f"{sign}{'NaN' if word == 'nan' else 'Infinity'}"
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return json.dumps(tree)
    return json.dumps(str(tree))


def _key(key: Any, *, yaml: bool) -> str:
    return _flow(key if yaml else str(key), yaml=yaml)


def _yaml(tree: Any) -> str:
    """A line for every key at the top, so that places in messages mean something."""
    if not isinstance(tree, Pairs) or not tree:
        return _flow(tree, yaml=True) + "\n"
    return "".join(f"{_key(key, yaml=True)}: {_flow(value, yaml=True)}\n" for key, value in tree)


def _plain(tree: Any) -> str:
    """A value where the form knows texts only."""
    return str(tree) if isinstance(tree, (str, int, float)) else _flow(tree, yaml=False)


def _lines(text: str) -> list[list[str]]:
    """Words and what stands between them, line by line."""
    return [re.findall(r"[\w.\-]+|[^\w.\-]+", line) for line in text.splitlines(keepends=True)]


def _joined(tree: Any) -> str:
    return "".join("".join(map(_plain, line)) if isinstance(line, list) else _plain(line) for line in tree)


def _table(text: str) -> list[list[str]]:
    return [list(row) for row in csv.reader(StringIO(text))]


def _csv(tree: Any) -> str:
    out = StringIO()
    csv.writer(out, lineterminator="\n", escapechar="\\").writerows(
        [_plain(cell).replace("\0", "") for cell in row] if isinstance(row, list) else [_plain(row)] for row in tree
    )
    return out.getvalue()


def _element(node: ElementTree.Element) -> list:
    return [node.tag, Pairs([key, value] for key, value in node.attrib.items()), [_element(child) for child in node]]


def _xml(tree: Any) -> str:
    if not (isinstance(tree, list) and len(tree) == 3 and isinstance(tree[1], Pairs) and isinstance(tree[2], list)):
        return _plain(tree)
    tag, attributes, children = tree
    written = "".join(f' {_plain(key)}="{_attribute(_plain(value))}"' for key, value in attributes)
    return f"<{_plain(tag)}{written}>{''.join(map(_xml, children))}</{_plain(tag)}>\n"


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def arguments(tree: Any) -> list[str]:
    """The words of a command line: options with their values, KEY= with its value, and words behind a blank option."""
    words = []
    for option, value in tree if isinstance(tree, Pairs) else [["", tree]]:
        name = _plain(option).strip(" ")
        if name.endswith("="):  # of an override: one word
            words.append(name + _plain(value))
            continue
        words += [name] if name else []
        words += [] if value is None else [_plain(value)]
    return [word.replace("\0", "").encode("utf-8", "replace").decode() for word in words]


@dataclass(frozen=True)
class Form:
    """How a kind of file is read as a tree and written."""

    tree: Callable[[str], Any]
    text: Callable[[Any], str]
    packed: bool = False
    """by gzip"""

    def bytes(self, text: str) -> bytes:
        """What is written into the file."""
        raw = text.encode("utf-8", "surrogatepass")
        return gzip.compress(raw, 1, mtime=0) if self.packed else raw


FORMS = {
    "yaml": Form(lambda text: tree_of(YAML(typ="safe", pure=True).load(text)), _yaml),
    "json": Form(lambda text: tree_of(json.loads(text)), lambda tree: _flow(tree, yaml=False)),
    "json.gz": Form(lambda text: tree_of(json.loads(text)), lambda tree: _flow(tree, yaml=False), packed=True),
    "json lines": Form(
        lambda text: [tree_of(json.loads(line)) for line in text.splitlines()],
        lambda tree: "".join(_flow(row, yaml=False) + "\n" for row in tree),
    ),
    "lines": Form(_lines, _joined),
    "csv": Form(_table, _csv),
    "xml": Form(lambda text: _element(ElementTree.fromstring(text)), _xml),
    "arguments": Form(lambda text: tree_of(json.loads(text)), lambda tree: json.dumps(arguments(tree))),
}
