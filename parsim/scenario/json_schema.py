"""The scenario's JSON Schema (draft-07), for editors: completion, hover texts and red lines while writing.

It accepts what `load` accepts as one file: short forms, scalar forms, and files that leave out what they extend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from parsim.scenario.schema import ScenarioSchema, sections
from parsim.scenario.shortforms import FAILURES, NUMBER, SCALAR, SHORT, ZERO

FILE = "parsim.schema.json"
"""its name at the root of the repository; a scenario's first line points there"""
STUDY_FILE = "parsim.study.schema.json"
"""the schema of studies, beside it"""
_ROOT = "Scenario"
_REQUIRED = ("model", "cluster", "training")


def schema() -> dict[str, Any]:
    """JSON Schema of a scenario file."""
    raw = ScenarioSchema.model_json_schema(ref_template="#/definitions/{model}")
    definitions: dict[str, Any] = {name: _down_level(definition) for name, definition in raw.pop("$defs").items()}
    root = _down_level(raw)
    names = {path: model.__name__ for path, model in sections(ScenarioSchema, "")}
    for short, long in SHORT.items():
        section, _, key = short.rpartition(".")
        definitions[names[section]]["properties"][key] = _short_form(long, definitions, names)
    for path in (*SCALAR, FAILURES):
        section, _, key = path.rpartition(".")
        holder = definitions[names[section]] if section else root
        holder["properties"][key] = _or_text(holder["properties"][key], _TEXT)
    for path in NUMBER:
        section, _, key = path.rpartition(".")
        properties = definitions[names[section]]["properties"]
        properties[key] = _or_number(properties[key])
    for definition in (*definitions.values(), root):
        definition.pop("title", None)
    for path, name in names.items():
        if path:
            definitions[name].pop("required", None)
    root.pop("required", None)
    texts = {"type": "string", "minLength": 1}
    root["properties"]["extends"] = _described(root["properties"]["extends"], {"anyOf": [texts, {"type": "array", "items": texts}]})
    partial = {
        "type": "object",
        "description": "a part of a scenario",
        "properties": {key: value for key, value in root["properties"].items() if key not in ("extends", "overrides", "study")},
        "additionalProperties": False,
    }
    definitions["Partial"] = partial
    overrides = {"type": "object", "additionalProperties": {"$ref": "#/definitions/Partial"}}
    root["properties"]["overrides"] = _described(root["properties"]["overrides"], overrides)
    root["properties"]["study"] = _described(root["properties"]["study"], {"allOf": [{"$ref": f"{STUDY_FILE}#/definitions/Study"}]})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "parsim scenario",
        **root,
        "anyOf": [{"required": ["extends"]}, {"required": list(_REQUIRED)}],
        "definitions": dict(sorted(definitions.items())),
    }


def text() -> str:
    """The schema as the file holds it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _short_form(long: str, definitions: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The schema of a short key: that of the long one, with a word about it."""
    section, _, key = long.rpartition(".")
    source = dict(definitions[names[section]]["properties"][key])
    source.pop("default", None)
    if long.endswith("strategy"):
        source = {"enum": list(ZERO)}
    return {**source, "description": f"short for {long}"}


_TEXT = {"type": "string", "minLength": 1}


def _or_text(value: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    """A section that a plain text may stand for."""
    kept: dict[str, Any] = {key: value[key] for key in ("description", "default") if key in value}
    inner = {key: item for key, item in value.items() if key not in kept}
    return {"anyOf": [text, inner], **kept}


def _or_number(value: dict[str, Any]) -> dict[str, Any]:
    """A section that a number may stand for."""
    kept: dict[str, Any] = {key: value[key] for key in ("description", "default") if key in value}
    inner = {key: item for key, item in value.items() if key not in kept}
    return {"anyOf": [{"type": "number"}, inner], **kept}


def _described(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {"description": old["description"], **new} if "description" in old else new


def _down_level(node: Any) -> Any:
    """Without titles, and with nothing beside a $ref: draft-07 ignores a reference's neighbours."""
    if isinstance(node, list):
        return [_down_level(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        plain[key] = value if key in ("default", "examples", "enum", "const") else _down_level(value)
    if "$ref" in plain and len(plain) > 1:
        plain["allOf"] = [{"$ref": plain.pop("$ref")}]
    return plain
