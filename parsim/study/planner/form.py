"""The form: every key of a scenario with what it may be, from the schema and the catalogue. `places.toml` says where each one stands."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as resources
from typing import Any

from parsim.report.measured import AT_PEAK
from parsim.report.plots import style
from parsim.scenario.files import names
from parsim.scenario.provenance import catalogue_sha256
from parsim.study.planner.answers import NOTHING
from parsim.study.planner.keys import leaves
from parsim.study.planner.options import CHOSEN
from parsim.study.planner.state import EXAMPLE, example
from parsim.version import __version__

CATALOGUE = {"model": "models", "cluster.topology": "topologies", "software.profile": "software"}
"""keys whose values are names of the catalogue -> the kind"""
_REQUIRED = ("model", "cluster.topology")
"""keys that have no default"""
_AUTO = {"software.profile"}


@cache
def places() -> Mapping[str, Any]:
    """What `places.toml` says."""
    return tomllib.loads(resources("parsim.study.planner").joinpath("places.toml").read_text("utf-8"))


def control(key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A key as a field of the form: how it is entered, its values, its default, what the schema says of it."""
    words: list[Any] = []
    kinds: set[str] = set()
    for one in (value, *value.get("anyOf", ())):
        words += one.get("enum", ()) or ([one["const"]] if "const" in one else [])
        kind = one.get("type", [])
        kinds |= set([kind] if isinstance(kind, str) else kind)
        kinds |= {"object"} if "allOf" in one or "$ref" in one else set()
    numbers: Mapping[str, Any] = next((one for one in (value, *value.get("anyOf", ())) if one.get("type") in ("integer", "number")), {})
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
        "required": list(_REQUIRED),
        "length": "training.tokens",
        "nothing": NOTHING,
        "groups": [{"name": group["name"], "controls": [control(key, every[key]) for key in group["keys"]]} for group in places()["group"]],
        "advanced": [{"name": name, "controls": controls} for name, controls in sections.items()],
        "memory": [{"name": name, "colour": style.CATEGORIES[name].colour} for name in AT_PEAK],
    }
