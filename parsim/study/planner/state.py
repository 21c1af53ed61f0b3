"""What is planned: the example with some of its keys changed, whole as a scenario, short as what differs.

A state is a flat mapping of dotted keys to values as YAML gives them; None takes a key of the example away. It reads no file and runs
no code: everything goes through `load(..., trusted=False)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from shlex import join
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.load import load, put
from parsim.scenario.scenario import Scenario, flow
from parsim.scenario.schema import ScenarioSchema
from parsim.study.planner.keys import flattened

EXAMPLE = "llama-3-70b-64x-h100"
"""what is planned before anybody changes anything"""
State = Mapping[str, Any]
LARGEST = 200_000
"""characters of a state as JSON"""
_MOST_KEYS = 200
_MODEL_SIGNS = ("model_type", "architectures")


@cache
def _example() -> dict[str, Any]:
    """The example as a flat mapping."""
    return dict(flattened({key: value for key, value in load(EXAMPLE).written.items() if key != "name"}))


def example() -> dict[str, Any]:
    """The example as a flat mapping, to be changed."""
    return deepcopy(_example())


def checked(state: Any) -> dict[str, Any]:
    """A state from somewhere else. Raises `ScenarioError` for what is none; what is in it is for `load` to judge."""
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state) or len(state) > _MOST_KEYS:
        raise ScenarioError(Finding(f"a state is a mapping of at most {_MOST_KEYS} keys"))
    if any(key.partition(".")[0] not in ScenarioSchema.model_fields or "" in key.split(".") for key in state):
        wrong = next(key for key in state if key.partition(".")[0] not in ScenarioSchema.model_fields or "" in key.split("."))
        raise ScenarioError(Finding("there is no such key", wrong))
    if len(json.dumps(state, default=str)) > LARGEST:
        raise ScenarioError(Finding(f"a state has at most {LARGEST:,} characters"))
    return dict(state)


def whole(state: State) -> dict[str, Any]:
    """All keys that are written: the example's and those of the state."""
    return {key: value for key, value in (example() | dict(state)).items() if value is not None}


def tree_of(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flat mapping as a scenario's tree. Raises `ScenarioError` where a key lies below a value."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        try:
            put(tree, key, deepcopy(value))
        except (AttributeError, TypeError):
            raise ScenarioError(Finding("lies below a key that has a value", key, value)) from None
    return tree


def scenario_of(state: State) -> Scenario:
    """The scenario, from the catalogue alone. Raises `ScenarioError`."""
    return load(tree_of(whole(state)), trusted=False)


def changes_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The state that a scenario's tree is: what differs from the example. Raises `ScenarioError`."""
    scenario = load(tree, trusted=False)
    flat = {key: value for key, value in flattened(scenario.written) if value is not None and (key, value) != ("name", "scenario")}
    base = _example()
    return {key: None for key in base if key not in flat} | {key: value for key, value in flat.items() if base.get(key) != value}


def yaml(state: State) -> str:
    """The scenario as a file: `parsim run` of it gives what is shown. Raises `ScenarioError`."""
    from parsim.study.best_strategy_text import yaml_of

    return "\n".join([*yaml_of(dict(scenario_of(state).written)), ""])


def command(state: State) -> str | None:
    """The command line that simulates the same; None where a value does not fit into one."""
    if any(isinstance(value, Mapping) and key in _example() for key, value in state.items()):  # it would be laid over what is there
        return None
    words = [f"{key}={'null' if value is None else flow(value)}" for key, value in state.items()]
    return join(["parsim", "run", EXAMPLE, *words])


def dropped(text: str, name: str) -> tuple[dict[str, Any], list[str]]:
    """The state of a file somebody has: a scenario, the config.json of a model, a launch script or configuration of another tool.

    Nothing else is read, nothing in it runs. The second value are remarks: what was inferred, and what is still to be said.

    Raises:
        ScenarioError: it is none of them, or what it says cannot be read.
    """
    if len(text) > files.SIZE_LIMIT:
        raise ScenarioError(Finding(f"the file has more than {files.SIZE_LIMIT:,} characters", value=name))
    if (tree := _mapping(text)) is not None:
        if any(sign in tree for sign in _MODEL_SIGNS):
            return {"model": tree}, []
        if set(tree) <= set(ScenarioSchema.model_fields) and ("extends" in tree or {"model", "cluster"} <= set(tree)):
            return changes_of(tree), []
    from parsim.interop.formats import import_config
    from parsim.interop.import_draft import Given

    imported = import_config(text, files.SEALED, Given(_called(name)))
    tree = imported.tree
    for key in imported.to_fill:
        put(tree, key, _example().get(key))
    remarks = [*map(str, imported.warnings), *(f"{key}: not said there, so it is the example's" for key in imported.to_fill)]
    return changes_of(tree), remarks


def _mapping(text: str) -> dict[str, Any] | None:
    """The text as a mapping, if it is one."""
    try:
        return files.parse_text(text, files.SEALED, json=text.lstrip().startswith("{")).tree
    except ScenarioError:
        return None


def _called(name: str) -> str:
    """A name for a scenario from that of a file: letters, digits and a few marks."""
    stem = name.replace("\\", "/").rpartition("/")[2].partition(".")[0]
    return "".join(letter for letter in stem if letter.isalnum() or letter in "-_ ")[:60] or "imported"
