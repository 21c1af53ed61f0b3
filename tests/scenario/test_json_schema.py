"""The committed JSON Schema is up to date and agrees with what the loader accepts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parsim.scenario import files, load
from parsim.scenario.json_schema import FILE, schema, text
from parsim.scenario.schema import known_keys

ROOT = Path(__file__).resolve().parents[2]
MINIMAL: dict[str, Any] = {
    "model": "gpt2", "cluster": "4x v100-32gb", "training": {"sequence_length": 1024, "global_batch": 8, "micro_batch": 1},
}  # fmt: skip


@cache
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(schema())
    return jsonschema.Draft7Validator(schema())


def errors(tree: Any) -> list[str]:
    return [error.message for error in validator().iter_errors(tree)]


def test_the_committed_file_is_up_to_date() -> None:
    assert (ROOT / FILE).read_text(encoding="utf-8") == text(), f"write {FILE} anew: parsim schema > {FILE}"


def test_everything_is_described() -> None:
    document = schema()
    for name, definition in {"": document, **document["definitions"]}.items():
        for key, value in definition.get("properties", {}).items():
            assert value.get("description"), f"{name}.{key} has no text"


def test_every_key_is_in_it() -> None:
    document = schema()
    assert set(known_keys()[""]) == set(document["properties"])
    assert {"tp", "pp", "dp", "cp", "ep", "zero", "tensor"} <= set(document["definitions"]["ParallelSection"]["properties"])
    assert {"mbs", "gbs", "gas", "seq", "micro_batch"} <= set(document["definitions"]["TrainingSection"]["properties"])


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"parallel": {"tp": 2, "zero": 1}},
        {
            "training": {
                "gbs": "4M tokens",
                "mbs": 1,
                "recompute": True,
                "precision": {"gradients": "fp32"},
                "optimizer": "sgd",
                "data_loading": "1 ms",
            }
        },
        {"cluster": {"topology": {"gpu": "rtx-3090", "count": 6}, "fabric": "fat-tree", "memory_reserve": "1 GiB", "placement": [0, 1]}},
        {"overrides": {"big": {"training": {"gbs": 32}}}, "assumptions": {"dropout": 0}},
        {"parallel": {"pipeline": {"split": [1, 2]}, "data": {"bucket": "25 MiB"}}, "variability": {"slow": [{"rank": 1, "speed": 0.5}]}},
    ],
)
def test_what_the_loader_accepts_the_schema_accepts(extra: dict[str, Any]) -> None:
    tree = {**MINIMAL, **extra}
    load(tree)
    assert errors(tree) == []
    assert errors(load(tree).document()) == []


@pytest.mark.parametrize(
    "extra",
    [
        {"training": {"micro_batchs": 1}},
        {"parallel": {"tensor": {"size": 0}}},
        {"parallel": {"tp": "two"}},
        {"cluster": {"topology": "x", "memory_reserve": "400 Gb/s"}},
        {"training": {"precision": "bf61"}},
        {"overrides": {"big": {"trainin": {}}}},
        {"parallel": {"data": {"strategy": "dp"}}},
    ],
)
def test_what_is_wrong_is_wrong_in_both(extra: dict[str, Any]) -> None:
    assert errors({**MINIMAL, **extra})
    with pytest.raises(Exception):  # noqa: B017
        load({**MINIMAL, **extra})


def test_a_file_that_extends_may_leave_things_out() -> None:
    assert errors({"extends": "base.yaml", "training": {"mbs": 1}}) == []
    assert errors({"training": {"mbs": 1}})


@pytest.mark.parametrize("name", files.names("scenarios"))
def test_shipped_scenarios(name: str) -> None:
    path = files.find("scenarios", name)
    assert path.read_text(encoding="utf-8").splitlines()[0] == f"# yaml-language-server: $schema=../{FILE}"
    assert errors(files.read(path).tree) == []


def test_it_is_json() -> None:
    assert json.loads(text()) == json.loads(json.dumps(schema()))
