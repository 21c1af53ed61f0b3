"""A study as a file of its own, or as the ``study:`` block of a scenario; and the JSON Schema (draft-07) of both, for editors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.files import Document
from parsim.scenario.scenario import Scenario
from parsim.scenario.values import did_you_mean, shown
from parsim.scenario.yaml_tree import Origin
from parsim.study.sweep.definition import MOST_SEEDS, TOP, Reader, Source, StudyDefinition
from parsim.study.sweep.metrics import METRICS
from parsim.study.sweep.ranges import Axis

KEYS = ("name", "scenario", "override", "strategy", "axes", "lattice", "zip", "where", "minimise", "maximise", "seeds", "top")
MARKS = ("scenario", "axes", "lattice", "zip")
"""a file with one of these keys at its top, and no model, is a study"""
_SPELLINGS = {"minimize": "minimise", "maximize": "maximise", "constraints": "where", "objective": "minimise", "vary": "axes"}
_MOST_ROWS = 10_000


def definition_of(source: Source) -> StudyDefinition:
    """The study of a scenario, a study file, or the name of a shipped one; a scenario without a study has no axes yet.

    Raises:
        ScenarioError: all problems of the study's own keys, each with its place.
    """
    if isinstance(source, Scenario):
        return StudyDefinition(source, source.name, "scenario")
    if isinstance(source, Mapping):
        tree = {key: value for key, value in source.items() if key != "study"}
        document = Document("", dict(source), {})
        name = str(source.get("name", "scenario"))
        return (
            _Block(document, "study.", tree, name, "scenario").definition()
            if "study" in source
            else StudyDefinition(tree, name, "scenario")
        )
    word = str(source)
    if (path := _study_path(word)) is not None:
        return _Block(files.read(path), "", None, path.stem, path.stem).definition()
    file, plus, block = word.partition("+") if "+" in word and not files.exists(word) else (word, "", "")
    path = files.find("scenarios", file)
    stem = path.stem if not block else f"{path.stem}+{block}"
    document = files.read(path)
    definition = StudyDefinition(file, str(document.tree.get("name") or stem), stem)
    if document.tree.get("study") is not None:
        definition = _Block(document, "study.", file, path.stem, stem).definition()
    return definition.changed(named=[block]) if plus else definition


def is_study(tree: Mapping[str, Any]) -> bool:
    """Whether the keys are those of a study, not of a scenario."""
    return any(key in tree for key in MARKS) and "model" not in tree


def _study_path(word: str) -> Path | None:
    """The study file behind a word, if it is one; scenarios win over studies of the same name."""
    if word in files.names("scenarios"):
        return None
    path = Path(word).expanduser()
    if path.suffix in (".yaml", ".yml", ".json") and path.is_file():
        return path if is_study(files.read(path).tree) else None
    return files.find("studies", word) if word in files.names("studies") else None


class _Block:
    """The keys of a study; `prefix` is where they stand in the document."""

    def __init__(self, document: Document, prefix: str, scenario: Source | None, name: str, stem: str) -> None:
        self.document, self.prefix, self.scenario, self.name, self.stem = document, prefix, scenario, name, stem
        self.tree: Any = document.tree if not prefix else document.tree[prefix.rstrip(".")]
        self.reader = Reader(document.path)

    def place(self, key: str) -> Origin:
        return self.document.locate(f"{self.prefix}{key}")

    def problem(self, key: str, message: str, value: Any = None, suggestion: str = "") -> None:
        self.reader.findings.append(Finding(message, f"{self.prefix}{key}", value, suggestion, *self.place(key)))

    def definition(self) -> StudyDefinition:
        if not isinstance(self.tree, Mapping):
            place = self.document.locate(self.prefix.rstrip("."))
            raise ScenarioError(Finding(f"{shown(self.tree)} is not a study", "study", self.tree, "write axes, where, minimise", *place))
        for key, value in self.tree.items():
            if key not in KEYS:
                hint = f"write {_SPELLINGS[key]}" if key in _SPELLINGS else did_you_mean(key, KEYS) or f"known: {', '.join(KEYS)}"
                self.problem(key, "unknown key of a study", value, hint)
            elif value is None:
                self.problem(key, "is empty", None, "leave it out, or write a value")
        tree = {key: value for key, value in self.tree.items() if value is not None}
        axes = self.axes(tree)
        objectives = [self.reader.objective(one, place) for one, place in self.listed(tree, "minimise")]
        objectives += [self.reader.objective(one, place, most=True) for one, place in self.listed(tree, "maximise")]
        definition = StudyDefinition(
            source=self.source(tree) if self.scenario is None else self.refuse_scenario(tree),
            name=str(tree.get("name") or self.document.tree.get("name") or self.name),
            stem=self.stem,
            named=tuple(str(one) for one, _ in self.listed(tree, "override")),
            axes=tuple(axes),
            strategies=self.strategies(tree),
            where=tuple(one for text, place in self.listed(tree, "where") if (one := self.reader.constraint(text, place)) is not None),
            objectives=tuple(one for one in objectives if one is not None),
            top=self.top(tree),
        )
        if self.reader.findings:
            raise ScenarioError(self.reader.findings)
        return definition

    def axes(self, tree: Mapping[str, Any]) -> list[Axis]:
        read: list[Axis | None] = []
        listed = tree.get("axes", {})
        if not isinstance(listed, Mapping):
            self.problem("axes", f"{shown(listed)} is not a mapping of keys to values", listed, "write parallel.tensor.size: [1, 2, 4]")
            listed = {}
        read += [self.reader.axis(key, form, self.place(f"axes.{key}")) for key, form in listed.items()]
        read += [self.reader.lattice(form, place) for form, place in self.listed(tree, "lattice")]
        read += [self.reader.zipped(form, place) for form, place in self.listed(tree, "zip")]
        if "seeds" in tree:
            read += self.reader.seeds(tree["seeds"], self.place("seeds"))
        axes = [axis for axis in read if axis is not None]
        seen: dict[str, None] = {}
        for key in (key for axis in axes for key in axis.keys):
            if key in seen:
                self.problem("axes", f"{key} is varied twice", key, "keep one of them")
            seen[key] = None
        return axes

    def listed(self, tree: Mapping[str, Any], key: str) -> list[tuple[Any, Origin]]:
        """One value or a list of them, each with its place."""
        value = tree.get(key)
        if value is None:
            return []
        if isinstance(value, list):
            return [(item, self.place(f"{key}.{number}")) for number, item in enumerate(value)]
        return [(value, self.place(key))]

    def source(self, tree: Mapping[str, Any]) -> str:
        value = tree.get("scenario")
        if not isinstance(value, str) or not value.strip():
            self.problem(
                "scenario", "which scenario?" if value is None else f"{shown(value)} is no scenario", value, "write a name or a path"
            )
            return ""
        try:
            path = files.find("scenarios", value, self.document.path)
        except ScenarioError as error:
            self.problem("scenario", error.findings[0].message, value, error.findings[0].suggestion)
            return ""
        return path.stem if files.is_shipped(path) else str(path)

    def refuse_scenario(self, tree: Mapping[str, Any]) -> Source:
        if "scenario" in tree:
            self.problem("scenario", "a study in a scenario is about that scenario", tree["scenario"], "leave it out")
        return self.scenario if self.scenario is not None else ""

    def strategies(self, tree: Mapping[str, Any]) -> bool:
        value = tree.get("strategy")
        if value not in (None, "auto"):
            self.problem("strategy", f"{shown(value)} is not auto", value, "write strategy: auto, or the keys under axes")
        return value == "auto"

    def top(self, tree: Mapping[str, Any]) -> int:
        value = tree.get("top", TOP)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_ROWS:
            self.problem("top", f"{shown(value)} is not a whole number from 1 to {_MOST_ROWS:,}", value, "rows of the table, e.g. 10")
            return TOP
        return value


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
            "description": "number of seeds per candidate, or the seeds themselves",
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
