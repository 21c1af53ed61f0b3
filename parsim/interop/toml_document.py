"""TOML texts as documents, with the line of every key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from parsim.columns import printable
from parsim.errors import Finding, ScenarioError
from parsim.limits import MOST_CHARACTERS, MOST_TEXT, MOST_VALUES
from parsim.scenario.files import Document
from parsim.scenario.yaml_tree import DEPTH_LIMIT, LARGEST, Origin, unreadable

_HEADER = re.compile(r"\s*\[\s*([\w.\-]+)\s*\]\s*(?:#.*)?")
_ENTRY = re.compile(r"""\s*["']?([\w.\-]+)["']?\s*=""")
_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")


def is_toml(text: str) -> bool:
    """Whether the first thing that stands in `text` is a section of TOML with entries below it."""
    rows = [row for row in text.splitlines() if row.strip() and not row.lstrip().startswith("#")]
    return bool(rows) and _HEADER.fullmatch(rows[0]) is not None and sum(_ENTRY.match(row) is not None for row in rows) > 0


def read_toml(text: str, name: str) -> Document:
    """`text` as a document called `name`.

    Raises `ScenarioError`: no valid TOML, or as large or as deep as no configuration is.
    """
    if len(text) > MOST_CHARACTERS:
        raise unreadable(f"{len(text):,} characters: at most {MOST_CHARACTERS:,} are read", name, suggestion="is it the right file?")
    if (values := sum(map(text.count, "=,\n"))) > MOST_VALUES:
        raise unreadable(f"about {values:,} values: at most {MOST_VALUES:,} are read", name, suggestion="is it the right file?")
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line, column = (int(place[1]), int(place[2])) if place else (None, None)
        raise unreadable(f"not valid TOML: {_PLACE.sub('', str(error)).strip()}", name, line, column) from None
    except (RecursionError, ValueError) as error:
        raise unreadable(f"not valid TOML: {' '.join(str(error).split())[:200]}", name) from None
    origins = dict(_origins(text, name))
    return Document(name, {str(key): _plain(value, name, 1) for key, value in tree.items()}, origins)


def _origins(text: str, name: str) -> Iterator[tuple[str, Origin]]:
    """Where sections and their keys stand, by their dotted names."""
    above = ""
    for number, row in enumerate(text.splitlines(), 1):
        if (header := _HEADER.fullmatch(row)) is not None:
            above = f"{header[1]}."
            yield header[1], (name, number, row.index("[") + 1)
        elif (entry := _ENTRY.match(row)) is not None:
            yield above + entry[1], (name, number, entry.start(1) + 1)


def _plain(value: Any, name: str, depth: int) -> Any:
    """Values as YAML would give them: dates as texts, numbers of a length that can be counted with."""
    if depth > DEPTH_LIMIT:
        raise unreadable(f"nested more than {DEPTH_LIMIT} levels deep", name)
    if isinstance(value, dict):
        return {str(key): _plain(item, name, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, name, depth + 1) for item in value]
    if isinstance(value, str) and len(value) > MOST_TEXT:
        raise unreadable(f"a text of {len(value):,} characters: at most {MOST_TEXT:,} are read", name)
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        raise ScenarioError(Finding(f"a number of {len(str(value))} digits", file=name))
    return value if isinstance(value, (bool, int, float)) else str(value)
