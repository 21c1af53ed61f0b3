"""The form: every key of a scenario with what it may be, from the schema and the catalogue. `places.toml` says where each one stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files as resources
from typing import Any

from parsim.report.measured import AT_PEAK
from parsim.report.plots import style
from parsim.scenario.files import aliases, names
from parsim.scenario.json_schema import schema
from parsim.scenario.provenance import catalogue_sha256
from parsim.study.planner.options import CHOSEN
from parsim.study.planner.state import EXAMPLE, example
from parsim.version import __version__

CATALOGUE = {"model": "models", "cluster.topology": "topologies", "software.profile": "software"}
"""keys whose values are names of the catalogue -> the kind"""
_AUTO = {"software.profile"}
_WHOLE = ("training.recompute", "parallel.expert.imbalance")
"""mappings that are one value"""


@cache
def places() -> Mapping[str, Any]:
    """What `places.toml` says."""
    return tomllib.loads(resources("parsim.study.planner").joinpath("places.toml").read_text("utf-8"))


def leaves() -> dict[str, dict[str, Any]]:
    """Dotted key -> its JSON Schema, for every key that holds a value."""
    whole = schema()
    return dict(_leaves(whole["definitions"], whole, ""))


def _leaves(definitions: Mapping[str, Any], node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in node.get("properties", {}).items():
        below = _section(definitions, value)
        if below is None or f"{prefix}{key}" in _WHOLE or key in ("overrides", "study"):
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


def control(key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A key as a field of the form: how it is entered, its values, its default, what the schema says of it."""
    words: list[Any] = []
    kinds: set[str] = set()
    for one in (value, *value.get("anyOf", ())):
        words += one.get("enum", ()) or ([one["const"]] if "const" in one else [])
        kind = one.get("type", [])
        kinds |= set([kind] if isinstance(kind, str) else kind)
        kinds |= {"object"} if "allOf" in one or "$ref" in one else set()
    numbers = next((one for one in (value, *value.get("anyOf", ())) if one.get("type") in ("integer", "number")), {})
    if key in CHOSEN:
        entered = "choice"
    elif key in CATALOGUE:
        entered, words = "list", [*(["auto"] if key in _AUTO else []), *names(CATALOGUE[key])]
    elif words and kinds <= {"string", "null"} and not any("pattern" in one for one in value.get("anyOf", ())):
        entered = "list"
    elif "boolean" in kinds:
        entered, words = "list", [*(word for word in words if not isinstance(word, bool)), True, False]
    else:
        entered = "number" if kinds and kinds <= {"integer", "number"} else "text"
    limits = {name: numbers[name] for name in ("minimum", "maximum") if name in numbers}
    examples = [one["examples"][0] for one in (value, *value.get("anyOf", ())) if one.get("examples")]
    return {
        "key": key,
        "entered": entered,
        "values": list(dict.fromkeys(words)),
        "default": value.get("default"),
        "about": value.get("description", ""),
        "example": examples[0] if examples else None,
        **limits,
    }


@cache
def form() -> dict[str, Any]:
    """All that the page shows before any answer."""
    every = leaves()
    aside = places()["advanced"]
    sections: dict[str, list[dict[str, Any]]] = {}
    for key in aside:
        sections.setdefault(key.partition(".")[0], []).append(control(key, every[key]))
    return {
        "version": __version__,
        "catalogue": catalogue_sha256()[:12],
        "example": {"name": EXAMPLE, "state": example()},
        "aliases": aliases("topologies"),
        "groups": [{"name": group["name"], "controls": [control(key, every[key]) for key in group["keys"]]} for group in places()["group"]],
        "advanced": [{"name": name, "controls": controls} for name, controls in sections.items()],
        "memory": [{"name": name, "colour": style.CATEGORIES[name].colour} for name in AT_PEAK],
    }


def page_style() -> str:
    """The style of the report's page, which is this one's."""
    return resources("parsim.report").joinpath("page/page.css").read_text("utf-8")
