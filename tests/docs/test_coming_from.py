"""Tables of foreign options: every parsim key exists and takes the value, and typing the foreign name gives the hint."""

from __future__ import annotations

import re
from typing import Any

import pytest
from doc_pages import text_of

from parsim.errors import ScenarioError
from parsim.scenario import load
from parsim.scenario.problems import foreign_keys, translation

PAGES = ("megatron", "deepspeed", "torchtitan", "hugging-face")
_ROW = re.compile(r"^\| `([^`]+)` \| `([\w.]+)=([^`]+)` \|", re.MULTILINE)
ROWS = [(page, *row) for page in PAGES for row in _ROW.findall(text_of(f"coming-from-{page}"))]
BASE: dict[str, Any] = {"model": {"base": "gpt2"}, "cluster": {"topology": "dgx-a100-80gb"}, "training": {"sequence_length": 1024}}


def test_every_row_of_every_table_is_read() -> None:
    for page in PAGES:
        options = text_of(f"coming-from-{page}").partition("## Options")[2].partition("\n## ")[0]
        lines = [line for line in options.splitlines() if line.startswith("| `")]
        assert len(lines) == sum(row[0] == page for row in ROWS)
        assert len(lines) >= 15


@pytest.mark.parametrize(("page", "foreign", "key", "value"), ROWS, ids=[f"{page} {foreign}" for page, foreign, *_ in ROWS])
def test_a_row(page: str, foreign: str, key: str, value: str) -> None:
    batch = {} if key in ("training.micro_batch", "training.gradient_accumulation") else {"micro_batch": 1, "gradient_accumulation": 1}
    if key == "training.global_batch":
        batch = {"micro_batch": 1}
    tree = {**BASE, "training": {**BASE["training"], **(batch or {"global_batch": 512})}}
    load(tree, f"{key}={value}", trust_code=".py:" in value)
    long = {"parallel.zero": "parallel.data.strategy"}.get(key, key)
    name = foreign.rpartition(".")[2].lstrip("-")
    if name == key.rpartition(".")[2]:
        return  # theirs is ours
    hint = translation(name)
    assert hint, f"typing {foreign} gives no hint"
    assert long in hint or hint.partition("write ")[2].partition(":")[0].rpartition(".")[0] == long, f"{foreign}: {hint}, not {long}"


@pytest.mark.parametrize("word", sorted(foreign_keys()))
def test_a_hint_names_a_key_that_can_be_written(word: str) -> None:
    from parsim.scenario.schema import known_keys

    section, _, key = foreign_keys()[word][1].rpartition(".")
    assert section == "model" or key in known_keys()[section]


def test_typing_a_foreign_name_gives_the_hint() -> None:
    with pytest.raises(ScenarioError, match=r"the name in torchtitan; write parallel.pipeline.virtual_stages"):
        load({**BASE, "parallel": {"pipeline_parallel_layers_per_stage": 2}})
