"""What `parsim schema` prints is the committed file, and offers no word that a scenario may never hold."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parsim.cli import execute
from parsim.errors import InputError
from parsim.scenario import load
from parsim.scenario.json_schema import FILE, STUDY_FILE, schema

ROOT = Path(__file__).resolve().parents[2]
JOB: dict[str, Any] = {
    "model": "gpt2", "cluster": {"topology": "4x v100-32gb"}, "training": {"sequence_length": 128, "global_batch": 8, "micro_batch": 1},
}  # fmt: skip


@pytest.mark.parametrize(("words", "file"), [(["schema"], FILE), (["schema", "--study"], STUDY_FILE)])
def test_it_prints_the_committed_file(words: list[str], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(words) == 0
    assert capsys.readouterr().out == (ROOT / file).read_text(encoding="utf-8"), f"write it anew: parsim {' '.join(words)} > {file}"


def offered(node: dict[str, Any], definitions: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every word, number or flag that the schema lists for a key, with the path of the key; lists of them are left out."""
    reference = node.get("$ref", "")
    if reference.startswith("#"):
        yield from offered(definitions[reference.rpartition("/")[2]], definitions, path)
    listed = [
        *node.get("enum", ()),
        *([node["const"]] if "const" in node else ()),
        *((True, False) if node.get("type") == "boolean" else ()),
    ]
    yield from ((path, value) for value in listed)
    for part in (*node.get("anyOf", ()), *node.get("allOf", ())):
        yield from offered(part, definitions, path)
    for key, below in node.get("properties", {}).items():
        if (*path, key) not in (("extends",), ("overrides",), ("study",)):
            yield from offered(below, definitions, (*path, key))


def test_every_word_that_it_offers_is_taken() -> None:
    """Read, not planned: whether a word goes with the rest of a job is another question."""
    document = schema()
    refused = []
    words = list(offered(document, document["definitions"]))
    assert len(words) > 200
    for path, value in words:
        tree: dict[str, Any] = copy.deepcopy(JOB)
        place = tree
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
        try:
            load(tree)
        except InputError as error:
            refused += [f"{'.'.join(path)}: {json.dumps(value)}" for one in error.findings if "not supported yet" not in one.message]
    assert refused == []
