"""The keys of a scenario as the schema divides them: which hold a value, and which hold further keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from parsim.scenario.json_schema import schema
from parsim.scenario.shortforms import LATE_SCALAR, SCALAR

_WHOLE = ("training.recompute", "parallel.expert.imbalance", "overrides", "study")
"""mappings that are one value"""


@cache
def leaves() -> dict[str, dict[str, Any]]:
    """Dotted key -> its JSON Schema, for every key that holds a value."""
    whole = schema()
    return dict(_leaves(whole["definitions"], whole, ""))


def _leaves(definitions: Mapping[str, Any], node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in node.get("properties", {}).items():
        below = _section(definitions, value)
        if below is None or f"{prefix}{key}" in _WHOLE:
            yield f"{prefix}{key}", value
        else:
            yield from _leaves(definitions, below, f"{prefix}{key}.")


def _section(definitions: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The definition of a key that has keys of its own."""
    if "$ref" in node:
        target = node["$ref"].rpartition("/")[2]
        return _section(definitions, definitions[target]) if node["$ref"].startswith("#") else None
    if "properties" in node:
        return node
    return next((found for one in (*node.get("allOf", ()), *node.get("anyOf", ())) if (found := _section(definitions, one))), None)


@cache
def _sections() -> frozenset[str]:
    """Keys that hold further keys."""
    return frozenset(".".join(words[:count]) for words in (key.split(".") for key in leaves()) for count in range(1, len(words)))


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of a tree in long form, and their values; what the schema does not divide further is one value."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if path in _sections() and isinstance(value, Mapping):
            yield from flattened(value, f"{path}.")
        elif path in _sections() and (last := (LATE_SCALAR | SCALAR).get(path)):
            yield f"{path}.{last}", value
        else:
            yield path, value
