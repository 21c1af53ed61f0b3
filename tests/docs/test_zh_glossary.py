"""docs/zh-CN/glossary.md: every metric of the report is in it, and every key that it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parsim import load, simulate
from parsim.report.definitions import DEFINITIONS
from parsim.scenario.json_schema import schema

PAGE = Path(__file__).parents[2] / "docs" / "zh-CN" / "glossary.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("| 中文 |", "|---"))
]


def keys_of(node: dict[str, Any], root: dict[str, Any], prefix: str = "") -> Iterator[str]:
    while node.get("$ref", "").startswith("#"):  # what other files describe has its own keys
        target = root
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    for kind in ("anyOf", "oneOf", "allOf"):
        for choice in node.get(kind, ()):
            yield from keys_of(choice, root, prefix)
    for key, below in node.get("properties", {}).items():
        yield f"{prefix}{key}"
        yield from keys_of(below, root, f"{prefix}{key}.")


@pytest.fixture(name="known", scope="module")
def known_fixture() -> set[str]:
    document = schema()
    return set(keys_of(document, document))


def named(column: int) -> list[str]:
    return [name for row in ROWS for name in re.findall(r"`([^`]+)`", row[column])]


def test_every_row_has_a_term_in_both_languages_and_one_line_of_meaning():
    assert len(ROWS) > 70
    for row in ROWS:
        assert len(row) == 5, row
        assert re.search(r"[\u4e00-\u9fff]", row[0]), row
        assert re.fullmatch(r"[ -~]+", row[1]), row
        assert re.search(r"[\u4e00-\u9fff]", row[4]), row
        assert row[4].endswith("。"), row
        assert all(cell == "–" or cell.startswith("`") for cell in row[2:4]), row


def test_every_metric_is_explained():
    assert set(DEFINITIONS) <= set(named(3))


def test_every_other_metric_is_a_key_of_the_report():
    document = simulate(
        load({"model": "gpt2", "cluster": "single-a100", "training": {"sequence_length": 128, "global_batch": 1, "micro_batch": 1}})
    ).document()
    for name in set(named(3)) - set(DEFINITIONS):
        found: Any = document
        for key in name.split("."):
            assert key in found, name
            found = found[key]


def test_every_key_exists(known):
    assert [key for key in named(2) if key not in known] == []


def test_every_section_is_covered(known):
    sections = {key for key in known if "." not in key}
    assert sections <= {key.partition(".")[0] for key in named(2)}
    training = {key for key in known if key.count(".") == 1 and key.startswith("training.")} - {
        "training.mbs", "training.gbs", "training.gas", "training.seq", "training.partial_micro_batch",
    }  # fmt: skip
    assert training <= {".".join(key.split(".")[:2]) for key in named(2)}
