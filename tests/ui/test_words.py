"""No text and no key is missing: languages beside each other, the page and its texts, the form and schema and catalogue."""

from __future__ import annotations

import re

from parsim.report.measured import AT_PEAK
from parsim.scenario.files import names
from parsim.study.planner.form import CATALOGUE, form, places
from parsim.study.planner.keys import leaves
from parsim.study.planner.options import CHOSEN
from parsim.study.planner.state import example
from parsim.ui.page import LANGUAGES, read, texts

EMPTY = {("text", "english", "en")}
"""what is said in the other language only"""
PLACED = [key for group in places()["group"] for key in group["keys"]]


def test_every_text_is_there_in_every_language() -> None:
    for section, listed in texts().items():
        for name, said in listed.items():
            assert set(said) == set(LANGUAGES), (section, name)
            filled = [re.findall(r"\{\w+\}", said[language]) for language in LANGUAGES]
            assert all(sorted(one) == sorted(filled[0]) for one in filled), (section, name)
            assert all(said[language] or (section, name, language) in EMPTY for language in LANGUAGES), (section, name)
    assert all(re.search(r"[\u4e00-\u9fff]", said["zh"]) for said in texts()["says"].values())


def test_every_text_that_the_page_asks_for_is_there_and_no_other() -> None:
    scripts = "".join(read(name) for name in ("format.js", "view.js", "page.js"))
    asked = set(re.findall(r'text\("(\w+)", "(\w+)"', scripts))
    asked |= {("text", name) for name in re.findall(r'data-(?:text|label)="(\w+)"', read("page.html"))}
    asked |= {("text", name) for name in re.findall(r'(?:notice|showWays\([^,]+,) ?\(?"(\w+)"', scripts)}
    asked |= {("says", name) for name in re.findall(r'": \["(\w+)"', scripts)} | {
        ("stage", name) for name in ("bound", "provisional", "simulated")
    }
    asked |= {("figure", name) for name in re.findall(r'figure\("(\w+)"', scripts)}
    quoted = set(re.findall(r'"(\w+)"', scripts))
    assert [one for one in asked if one[1] not in texts()[one[0]]] == []
    unused = [
        (section, name) for section in ("text", "says", "figure") for name in texts()[section] if name not in quoted | {n for _, n in asked}
    ]
    assert unused == []


def test_the_catalogue_and_the_schema_are_on_the_page_by_themselves() -> None:
    assert set(texts()["label"]) == set(PLACED)
    assert set(texts()["group"]) == {group["name"] for group in places()["group"]}
    assert set(texts()["memory"]) == set(AT_PEAK)
    shown = {control["key"]: control for group in (*form()["groups"], *form()["advanced"]) for control in group["controls"]}
    for key, kind in CATALOGUE.items():
        assert set(names(kind)) <= set(shown[key]["values"])
    assert set(CHOSEN) <= set(PLACED)
    assert set(example()) <= set(PLACED)


def test_every_key_of_the_schema_has_a_place() -> None:
    """A new key: put it into a group of parsim/study/planner/places.toml (with a label in parsim/ui/texts.toml), or list it as advanced."""
    listed = [*PLACED, *places()["advanced"], *places()["elsewhere"]]
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == set(leaves())
