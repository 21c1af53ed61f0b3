"""Every leaf of a scenario: its key, and the kind of its values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from parsim.scenario.problems import known_keys, sections
from parsim.scenario.schema import ScenarioSchema
from parsim.scenario.shortforms import SYNONYMS, ZERO, long_key
from parsim.scenario.values import Kind

FREE = ("model", "cluster.topology", "cluster.set", "assumptions")
"""keys below these are those of other files"""
_NO_LEAVES = ("name", "extends", "overrides", "study")


@cache
def leaves() -> Mapping[str, Kind]:
    """Long key -> the kind of its values, in the order of the schema; keys of other files are not in it (`FREE`)."""
    found: dict[str, Kind] = {}
    for section, model in sections(ScenarioSchema, ""):
        for name, info in model.model_fields.items():
            path = f"{section}.{name}" if section else info.alias or name
            kind = next((item for item in info.metadata if isinstance(item, Kind)), None)
            if kind is not None and path not in _NO_LEAVES:
                found[path] = kind
    return found


def is_key(key: str) -> bool:
    """Whether a scenario may have a value under `key`: a leaf, a section, or anything below a free part."""
    section, _, last = key.rpartition(".")
    return last in known_keys().get(section, ()) or any(key.startswith(f"{free}.") for free in FREE)


def value_at(tree: Mapping[str, Any], key: str) -> Any:
    """What `tree` has under a dotted key; None where it has nothing."""
    found: Any = tree
    for word in key.split("."):
        if not isinstance(found, Mapping) or word not in found:
            return None
        found = found[word]
    return found


def canonical(key: str, value: Any) -> tuple[str, Any]:
    """Long key and value of what may be written short: ``parallel.zero`` with 3 is ``parallel.data.strategy`` with zero3."""
    if key == "parallel.zero":
        value = ZERO.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value
    key = long_key(key)
    for word, meant in SYNONYMS.get(key, {}).items():
        if type(word) is type(value) and word == value:
            return key, meant
    return key, value
