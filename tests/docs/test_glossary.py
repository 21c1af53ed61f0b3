"""docs/glossary.md is what the program says. Written anew with PARSIM_GOLDEN=write."""

from __future__ import annotations

import os

import pytest
from doc_pages import DOCS
from glossary import WORDS, glossary

from parsim.report.definitions import DEFINITIONS
from parsim.scenario.schema import known_keys


def test_the_page_is_up_to_date() -> None:
    path = DOCS / "glossary.md"
    if os.environ.get("PARSIM_GOLDEN") == "write":
        path.write_text(glossary(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == glossary()


def test_every_metric_is_on_it() -> None:
    text = glossary()
    assert all(f"### `{name}` [{definition.unit}]" in text for name, definition in DEFINITIONS.items())


@pytest.mark.parametrize("key", sorted({key for _, _, key in WORDS if key}))
def test_keys_exist(key: str) -> None:
    section, _, last = key.rpartition(".")
    assert last in known_keys()[section]


def test_words_are_sorted() -> None:
    words = [word.lower() for word, _, _ in WORDS]
    assert words == sorted(words)
