"""Laws: whatever is written, loading gives a scenario that survives its own document, or findings, never a crash."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import ScenarioError
from parsim.scenario import Scenario, load
from parsim.scenario.files import parse_text, parse_value
from parsim.scenario.load import merge
from parsim.scenario.scenario import flow
from parsim.scenario.schema import known_keys
from parsim.scenario.shortforms import SettingsSource

MINIMAL: dict[str, Any] = {
    "model": "gpt2",
    "cluster": {"topology": "4x v100-32gb"},
    "training": {"sequence_length": 1024, "global_batch": 8, "micro_batch": 1},
}
PATHS = sorted(f"{section}.{key}" if section else key for section, keys in known_keys().items() for key in keys)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 64),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["auto", "none", "1 ms", "400 Gb/s", "80 GiB", "4M tokens", "x2", "full", "adam", "fp32", "ddp", "gpipe", "null", "~", "1e9"]
    ),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)), max_leaves=5
)


def tree_of(path: str, value: Any) -> dict[str, Any]:
    tree: Any = value
    for key in reversed(path.split(".")):
        tree = {key: tree}
    return tree


def loaded(tree: Any, *arguments: str) -> Scenario | None:
    try:
        return load(tree, *arguments)
    except ScenarioError:
        return None


def survives(scenario: Scenario | None) -> None:
    if scenario is None:
        return
    document = json.loads(json.dumps(scenario.document()))
    again = load(document)
    assert again.document() == document
    assert again.hash() == scenario.hash()
    named = scenario.settings.model_copy(update={"name": again.settings.name})  # the document's name says what was changed
    assert again.settings == named


@given(st.sampled_from(PATHS), VALUES)
def test_one_key_with_anything(path: str, value: Any) -> None:
    base: dict[str, Any] = {}
    origins: dict[str, Any] = {}
    findings: list[Any] = []
    merge(base, origins, SettingsSource(MINIMAL, {}, findings))
    merge(base, origins, SettingsSource(tree_of(path, value), {}, findings))
    survives(loaded(base))


@given(VALUES)
def test_anything_at_all(value: Any) -> None:
    if isinstance(value, dict):
        loaded(value)


@given(st.sampled_from(PATHS), SCALARS)
def test_command_line_with_anything(path: str, value: Any) -> None:
    survives(loaded(MINIMAL, f"{path}={flow(value)}"))


@given(VALUES)
def test_shown_values_are_read_back(value: Any) -> None:
    if isinstance(value, (dict, list)) or value == value:  # noqa: PLR0124 (not NaN)
        text = flow(value)
        try:
            back = parse_value(text)
        except ScenarioError:
            return  # control characters and the like cannot stand in YAML
        assert json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        document = parse_text(text, "x.yaml")
    except ScenarioError:
        return
    assert isinstance(document.tree, dict)


@given(VALUES, VALUES)
def test_merging_twice_changes_nothing(first: Any, second: Any) -> None:
    base: dict[str, Any] = {}
    merge(base, {}, SettingsSource({"model": first, "assumptions": {"a": second}}, {}, []))
    again = json.dumps(base, sort_keys=True, default=str)
    merge(base, {}, SettingsSource(json.loads(json.dumps(base)), {}, []))
    assert "null" in again or json.dumps(base, sort_keys=True, default=str) == again
