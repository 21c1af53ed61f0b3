"""Keys that take several values: ``parallel.data.strategy=ddp,zero1`` makes two scenarios of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.files import parse_value
from parsim.scenario.load import COMMAND_LINE
from parsim.scenario.scenario import flow
from parsim.scenario.shortforms import SHORT
from parsim.scenario.yaml_tree import Origin

Partial = tuple[Mapping[str, Any], Mapping[str, Origin]]
"""a part of a scenario, and where its keys were written"""

_SHORT_NAMES = {long: short.rpartition(".")[2] for short, long in SHORT.items() if short != "parallel.zero"}
"""long key -> the word it may be called by (``zero`` takes numbers, what it stands for does not)"""
_OPEN, _CLOSE, _QUOTES = "[{(", "]})", "\"'"
_LONGEST = 32
"""letters of a value in a label"""


@dataclass(frozen=True)
class AxisValue:
    """One value of a key: as an argument of the command line, or as a part of a scenario that stands in a file."""

    label: str
    argument: str = ""
    partial: Partial | None = None


@dataclass(frozen=True)
class VariedKey:
    """A key and the values it takes."""

    key: str
    choices: tuple[AxisValue, ...]


def split_values(text: str) -> list[str]:
    """The values of ``a,b,c``. A comma within brackets or quotes does not separate: ``[1, 2]`` is one value.

    >>> split_values("ddp,zero1"), split_values("[9,8,8]"), split_values("[9,8],[8,9]")
    (['ddp', 'zero1'], ['[9,8,8]'], ['[9,8]', '[8,9]'])
    """
    parts, depth, quote, begin, escaped = [], 0, "", 0, False
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and quote == '"' and not escaped
        elif letter in _QUOTES and (depth > 0 or not text[begin:place].strip()):
            quote = letter  # within a word it is an apostrophe
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == "," and depth <= 0:
            parts.append(text[begin:place])
            begin = place + 1
    return [part.strip() for part in (*parts, text[begin:])]


def axes_of(arguments: Iterable[str]) -> tuple[list[str], list[VariedKey]]:
    """The arguments with one value, for every variant, and the keys with several.

    Raises:
        ScenarioError: an empty value between commas, or a key twice with several values.
    """
    plain: list[str] = []
    several: list[tuple[str, list[str]]] = []
    findings: list[Finding] = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        values = split_values(text)
        if not equals or len(values) < 2:
            plain.append(argument)
            continue
        place = (COMMAND_LINE + argument, None, None)
        if "" in values:
            findings.append(Finding("a value between commas is empty", key, text, "write a,b,c, or put a text in quotes", *place))
        if any(key.strip() == other for other, _ in several):
            findings.append(Finding("takes several values twice", key.strip(), text, "write all of them once, with commas", *place))
        several.append((key.strip(), values))
    if findings:
        raise ScenarioError(findings)
    return plain, labelled(several)


def labelled(found: Sequence[tuple[str, Sequence[str]]]) -> list[VariedKey]:
    """The axes of keys and YAML texts, each value with the shortest label that tells it from the others."""
    values = {key: [_value(text) for text in texts] for key, texts in found}
    names = short_keys(list(values))
    words = [item for items in values.values() for item in items if _speaks(item)]
    return [
        VariedKey(
            key, tuple(AxisValue(_label(names[key], value, words), f"{key}={text}") for value, text in zip(values[key], texts, strict=True))
        )
        for key, texts in found
    ]


def label_of(key: str, value: Any, others: Sequence[str]) -> str:
    """How a variant with this value of `key` is called among the keys `others`."""
    return _label(short_keys([*others, key])[key], value, ())


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Key -> its short form (tp, mbs, ...) or as many of its last words as tell it from the others."""
    short: dict[str, str] = {}
    for key in dict.fromkeys(keys):
        words = key.split(".")
        count = 1
        while count < len(words) and any(other != key and other.split(".")[-count:] == words[-count:] for other in keys):
            count += 1
        short[key] = _SHORT_NAMES.get(key, ".".join(words[-count:]))
    return short


def combinations(axes: Sequence[VariedKey]) -> list[tuple[AxisValue, ...]]:
    """Every combination of the axes' values, the last axis fastest; one empty combination without axes."""
    return list(product(*(axis.choices for axis in axes)))


def nested(key: str, value: Any, origins: Mapping[str, Origin], place: str) -> Partial:
    """``a.b: value`` as a part of a scenario; `place` is where the value stands in a file whose `origins` are given."""
    tree: Any = value
    words = key.split(".")
    for word in reversed(words):
        tree = {word: tree}
    places: dict[str, Origin] = {}
    if place in origins:
        places = {".".join(words[: count + 1]): origins[place] for count in range(len(words))}
    below = {f"{key}{path[len(place) :]}": origin for path, origin in origins.items() if path.startswith(f"{place}.")}
    return tree, places | below


def _value(text: str) -> Any:
    """What a text means in YAML; the text itself where it means nothing (loading says so)."""
    try:
        return parse_value(text)
    except ScenarioError:
        return text


def _speaks(value: Any) -> bool:
    """Whether a value says what it is without its key: ``zero1`` does, ``8`` and ``25 MiB`` do not."""
    return isinstance(value, str) and value[:1].isalpha()


def _label(key: str, value: Any, words: Sequence[Any]) -> str:
    if _speaks(value) and words.count(value) <= 1:
        return str(value)
    text = flow(value)
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return f"{key}={text}"
