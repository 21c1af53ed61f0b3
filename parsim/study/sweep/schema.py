"""The JSON Schema (draft-07) of study files, for editors: completion, hover texts and red lines while writing."""

from __future__ import annotations

import json
from typing import Any

from parsim.study.sweep.definition import MOST_SEEDS, TOP
from parsim.study.sweep.metrics import METRICS

FILE = "parsim.study.schema.json"
"""its name at the root of the repository; a study's first line points there"""
_NUMBER = {"type": "number"}
_OF = {"anyOf": [{"const": "gpus"}, {"type": "integer", "minimum": 1}, {"type": "string", "minLength": 1}]}


def schema() -> dict[str, Any]:
    """JSON Schema of a study file; its definition ``Study`` is also that of a scenario's ``study:`` block."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "parsim study",
        "allOf": [{"$ref": "#/definitions/Study"}],
        "required": ["scenario"],
        "definitions": {"Axis": _axis(), "Constraint": _constraint(), "Figure": _figure(), "Lattice": _lattice(), "Study": _study()},
    }


def text() -> str:
    """The schema as the file holds it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _study() -> dict[str, Any]:
    axis, texts = {"$ref": "#/definitions/Axis"}, {"type": "string", "minLength": 1}
    columns = {"type": "object", "minProperties": 2, "additionalProperties": axis}
    properties = {
        "name": {**texts, "description": "what the table is called; the file name by default"},
        "scenario": {**texts, "description": "the scenario that is changed: the name of a shipped one, or a path from here"},
        "override": _some(texts, "named blocks of the scenario's overrides that hold for all candidates"),
        "strategy": {"const": "auto", "description": "range over the standard strategies of the machine"},
        "axes": {
            "type": "object",
            "description": "keys of the scenario and the values they take; one value holds for all candidates",
            "additionalProperties": axis,
        },
        "lattice": _some({"$ref": "#/definitions/Lattice"}, "keys whose product is a number, such as tensor x pipeline x data = gpus"),
        "zip": _some(columns, "keys whose values go together, the first with the first and so on"),
        "where": _some({"$ref": "#/definitions/Constraint"}, "what must hold; `fits` does unless a constraint speaks of it"),
        "minimise": _some({"$ref": "#/definitions/Figure"}, "figures to make small; step_time by default"),
        "maximise": _some({"$ref": "#/definitions/Figure"}, "figures to make large"),
        "seeds": {
            "description": "simulate every candidate with so many seeds, or with these",
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST_SEEDS},
                {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            ],
        },
        "top": {"type": "integer", "minimum": 1, "default": TOP, "description": "rows of the table"},
    }
    return {"type": "object", "description": "a range of scenarios, and what is looked for in it", "properties": properties,
            "additionalProperties": False}  # fmt: skip


def _some(one: dict[str, Any], description: str) -> dict[str, Any]:
    """One, or a list of them."""
    return {"description": description, "anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _axis() -> dict[str, Any]:
    bounds = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}

    def form(**properties: Any) -> dict[str, Any]:
        required = [name for name in properties if name != "step"]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return {
        "description": "the values of a key",
        "anyOf": [
            {"type": "array", "minItems": 1},
            form(**{"from": _NUMBER, "to": _NUMBER, "step": _NUMBER}),
            form(**{"from": _NUMBER, "to": _NUMBER, "factor": _NUMBER}),
            form(powers_of_two=bounds),
            form(divisors_of=_OF),
            {"type": ["string", "number", "boolean", "null"]},
        ],
    }


def _lattice() -> dict[str, Any]:
    keys = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    return {
        "type": "object",
        "properties": {"product": keys, "equals": _OF},
        "required": ["product", "equals"],
        "additionalProperties": False,
    }


def _constraint() -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "examples": ["fits", "step_time < 2 s", "tensor.size <= gpus_per_node", "mfu > 40 %"]}


def _figure() -> dict[str, Any]:
    names = [name for metric in METRICS if metric.better and metric.name != "fits" for name in (metric.name, *metric.aliases)]
    return {"type": "string", "enum": names}
