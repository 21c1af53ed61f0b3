"""Kinds of values that scenario keys hold: each checks one value, words its own error, and says what an editor may offer.

They are annotations for pydantic (``Annotated[int, Whole(1, 64)]``). None of them coerces silently: ``"8"`` is not a number,
``yes`` is not true, and a unit has to be written.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from parsim import units

JsonSchema = dict[str, Any]
_NUMBER = r"[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]+)?"
_PATTERNS = {
    "bytes": (rf"^{_NUMBER} ?([kMGTPE]|[KMGTPE]i)?(B|b|bit)$", ["80 GiB", "512 MiB"]),
    "rate": (rf"^{_NUMBER} ?([kMGTPE]|[KMGTPE]i)?(B/s|b/s|bit/s|bps)$", ["600 GB/s", "400 Gb/s"]),
    "flops": (rf"^{_NUMBER} ?[kMGTPE]?(FLOP/s|FLOPS)$", ["312 TFLOP/s"]),
    "power": (rf"^{_NUMBER} ?[munµkMGT]?W$", ["2.8 kW"]),
    "time": (rf"^{_NUMBER} ?([munµk]?s|min|h|d)$", ["10 us", "1.5 ms", "2 h"]),
    "count": (rf"^{_NUMBER} ?([kMGTPB]|[KMGT]i)?( ?[a-zA-Z]+)?$", ["2T", "4M tokens"]),
}


@dataclass(frozen=True)
class Kind(ABC):
    """A value kind; subclasses say what `check` returns (or raises `ValueError`) and what `json_schema` offers."""

    @abstractmethod
    def check(self, value: Any) -> Any:
        """The typed value; raises `ValueError` with the rule it breaks."""

    @abstractmethod
    def json_schema(self) -> JsonSchema:
        """The JSON Schema of what a user may write."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchema:
        return self.json_schema()


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from `minimum` to `maximum`, written as ``4096``, ``1e6`` or ``4k``, or one of `words`."""

    minimum: int = 1
    maximum: int = 10**9
    words: tuple[str, ...] = ()
    optional: bool = False

    def check(self, value: Any) -> Any:
        if (self.optional and value is None) or (isinstance(value, str) and value in self.words):
            return value
        rule = _rule(f"a whole number from {self.minimum:,} to {self.maximum:,}", self.words)
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(f"{shown(value)} is not {rule}")
        if isinstance(value, str):
            number = _number(value, "count", self.words, rule)
        elif not math.isfinite(value):
            raise ValueError(f"{value} is not {rule}")
        else:
            number = value
        if number != int(number) or not self.minimum <= number <= self.maximum:
            raise ValueError(f"{shown(value)} is not {rule}")
        return int(number)

    def json_schema(self) -> JsonSchema:
        number = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}
        return _any_of(number, self.words, optional=self.optional)


@dataclass(frozen=True)
class Number(Kind):
    """A finite number in [minimum, maximum] (or below maximum where it is `open`), or one of `words`."""

    minimum: float = 0.0
    maximum: float = 1e30
    open: bool = False
    above: bool = False
    """minimum itself is not allowed"""
    words: tuple[str, ...] = ()
    optional: bool = False

    def check(self, value: Any) -> Any:
        if (self.optional and value is None) or (isinstance(value, str) and value in self.words):
            return value
        interval = f"{'(' if self.above else '['}{self.minimum:g}, {self.maximum:g}{')' if self.open else ']'}"
        rule = _rule(f"a number in {interval}", self.words)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{shown(value)} is not {rule}")
        low = value > self.minimum if self.above else value >= self.minimum
        high = value < self.maximum if self.open else value <= self.maximum
        if not (low and high):
            raise ValueError(f"{shown(value)} is not {rule}")
        return float(value)

    def json_schema(self) -> JsonSchema:
        number = {
            "type": "number",
            "exclusiveMinimum" if self.above else "minimum": self.minimum,
            "exclusiveMaximum" if self.open else "maximum": self.maximum,
        }
        return _any_of(number, self.words, optional=self.optional)


@dataclass(frozen=True)
class Quantity(Kind):
    """A value with a unit (`dimension` of `parsim.units.physical`), from `minimum` to `maximum` in base units, or one of `words`."""

    dimension: str
    maximum: float = math.inf
    words: tuple[str, ...] = ()
    optional: bool = False
    minimum: float = 0.0

    def check(self, value: Any) -> Any:
        if (self.optional and value is None) or (isinstance(value, str) and value in self.words):
            return value
        number = units.physical(value, self.dimension)
        if number < self.minimum:
            raise ValueError(f"{shown(value)} is less than {self.minimum:g}, the smallest allowed value")
        if number > self.maximum:
            limit = units.format_bytes(self.maximum) if self.dimension == "bytes" else units.format_time(self.maximum)
            raise ValueError(f"{shown(value)} is more than {limit}, the largest allowed value")
        return number

    def json_schema(self) -> JsonSchema:
        pattern, examples = _PATTERNS[self.dimension]
        kinds: list[JsonSchema] = [{"type": "string", "pattern": pattern, "examples": examples}, {"const": 0}]
        if self.dimension == "count":
            kinds[1] = {"type": "number", "minimum": 0}
        kinds += [{"const": word} for word in self.words]
        return {"anyOf": [*kinds, {"type": "null"}] if self.optional else kinds}


@dataclass(frozen=True)
class Flag(Kind):
    """true or false, or one of `words`."""

    words: tuple[str, ...] = ()

    def check(self, value: Any) -> Any:
        if isinstance(value, bool) or (isinstance(value, str) and value in self.words):
            return value
        meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(str(value).lower())
        hint = f"; write {meant}" if meant else ""
        raise ValueError(f"{shown(value)} is not {_rule('true or false', self.words)}{hint}")

    def json_schema(self) -> JsonSchema:
        return _any_of({"type": "boolean"}, self.words)


@dataclass(frozen=True)
class Choice(Kind):
    """One of `options`; `hints` are words people write instead, with what to say to them."""

    options: tuple[str, ...]
    hints: dict[str, str] = field(default_factory=dict, hash=False)

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and value in self.options:
            return value
        hint = self.hints.get(str(value).lower(), "") or did_you_mean(str(value), self.options)
        if isinstance(value, str) and hint:
            raise ValueError(f"{shown(value)} is not one of {', '.join(self.options)}; {hint}")
        raise ValueError(f"{shown(value)} is not one of {', '.join(self.options)}")

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "enum": list(self.options)}


@dataclass(frozen=True, slots=True)
class Silent:
    """Marks a key that the resolved scenario only has where it is not at its default."""


@dataclass(frozen=True)
class Text(Kind):
    """A text of at least one character, or null where it is `optional`."""

    example: str = ""
    optional: bool = False

    def check(self, value: Any) -> Any:
        if self.optional and value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            example = f', for example "{self.example}"' if self.example else ""
            raise ValueError(f"{shown(value)} is not a text{example}")
        return value

    def json_schema(self) -> JsonSchema:
        kind: JsonSchema = {"type": "string", "minLength": 1}
        if self.example:
            kind["examples"] = [self.example]
        return {"anyOf": [kind, {"type": "null"}]} if self.optional else kind


@dataclass(frozen=True)
class ListOf(Kind):
    """A list whose items are of one kind (not empty where `filled`), or one of `words`."""

    item: Kind
    words: tuple[str, ...] = ()
    filled: bool = False

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        if not isinstance(value, (list, tuple)) or (self.filled and not value):
            hint = did_you_mean(value, self.words) if isinstance(value, str) else ""
            raise ValueError(f"{shown(value)} is not {_rule('a list', self.words)}{'; ' + hint if hint else ''}")
        return tuple(self.item.check(item) for item in value)

    def json_schema(self) -> JsonSchema:
        return _any_of({"type": "array", "items": self.item.json_schema()}, self.words)


@dataclass(frozen=True)
class Anything(Kind):
    """A part that another room checks; only its outermost type is looked at here."""

    types: tuple[type, ...]
    rule: str

    def check(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, self.types):
            raise ValueError(f"{shown(value)} is not {self.rule}")
        if isinstance(value, str) and not value.strip():
            raise ValueError(f"an empty text is not {self.rule}")
        return value

    def json_schema(self) -> JsonSchema:
        names = {str: "string", dict: "object", list: "array", int: "integer", type(None): "null"}
        return {"type": [names[kind] for kind in self.types]}


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """``did you mean 'x'?`` for the closest of `known`, or an empty text."""
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def shown(value: Any) -> str:
    """A value in a message: its repr, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _rule(base: str, words: Sequence[str]) -> str:
    return " or ".join((base, *words))


def _number(value: str, dimension: str, words: Sequence[str], rule: str) -> float:
    hint = did_you_mean(value, words)
    if hint:
        raise ValueError(f"{shown(value)} is not {rule}; {hint}")
    try:
        return units.parse(value, dimension)
    except ValueError:
        raise ValueError(f"{shown(value)} is not {rule}") from None


def _any_of(kind: JsonSchema, words: Sequence[str], *, optional: bool = False) -> JsonSchema:
    kinds = [kind, *({"const": word} for word in words), *([{"type": "null"}] if optional else [])]
    return kind if len(kinds) == 1 else {"anyOf": kinds}


class Section(BaseModel):
    """A mapping with known keys only; immutable; the text under each key is its documentation in editors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, arbitrary_types_allowed=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON Schema of the section, every key with its text."""
        # pydantic's use_attribute_docstrings parses the source of every section when it is imported, also where nobody asks for texts
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in _texts(cls).items():
            key = cls.model_fields[name].alias or name
            properties[key] = {"description": text, **properties[key]}
        return schema


def _texts(section: type[Section]) -> dict[str, str]:
    """Key -> the text that stands under it in the class."""
    body = ast.parse(dedent(inspect.getsource(section))).body[0]
    texts: dict[str, str] = {}
    for key, text in pairwise(body.body if isinstance(body, ast.ClassDef) else ()):
        match key, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                texts[name] = inspect.cleandoc(words)
    return texts
