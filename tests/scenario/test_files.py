"""Reading files: positions, limits, and every way in which a file can be no scenario."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from parsim.errors import ScenarioError
from parsim.scenario import files, yaml_tree


def refusal(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        files.parse_text(text, "x.yaml")
    return str(caught.value)


def test_values_are_plain_and_numbers_are_numbers() -> None:
    tree = files.parse_text("a: 1e9\nb: 0777\nc: NO\non: true\nd: 12:30:45\ne: 80 GiB\nf: 2026-11-01\ng: ~\nh: [1, 2.5]\n", "x").tree
    assert tree == {"a": 1e9, "b": 777, "c": "NO", "on": True, "d": "12:30:45", "e": "80 GiB", "f": "2026-11-01", "g": None, "h": [1, 2.5]}
    assert [type(value) for value in tree.values()] == [float, int, str, bool, str, str, str, type(None), list]


def test_every_key_has_its_place() -> None:
    document = files.parse_text("a:\n  b: {c: 1, d: [x, {e: 2}]}\nbase: &b {k: 1}\nuse:\n  <<: *b\n  m: 2\n", "x.yaml")
    places = {key: origin[1:] for key, origin in document.origins.items()}
    assert places["a"] == (1, 1)
    assert places["a.b"] == (2, 3)
    assert places["a.b.d"] == (2, 13)
    assert places["a.b.d.1"] == (2, 20)
    assert places["a.b.d.1.e"] == (2, 21)
    assert places["use.k"] == (3, 11)  # where the merged key is written
    assert document.locate("a.b.c.deeper.still") == ("x.yaml", 2, 7)
    assert document.locate("nothing") == ("x.yaml", None, None)


def test_duplicate_keys_are_all_reported_with_both_places() -> None:
    assert refusal("a: 1\nb:\n  c: 1\n  c: 2\na: 2\n") == (
        "x.yaml:4:3  b.c  the key is written twice: first at line 3, column 3; keep one of them\n"
        "x.yaml:5:1  a  the key is written twice: first at line 1, column 1; keep one of them"
    )


def test_an_alias_inside_its_own_value_is_refused() -> None:
    assert refusal("a: &m\n  b: [*m]\n") == (
        "x.yaml:2:7  the alias '*m' is inside the value that it stands for; write the value out, or move the anchor"
    )
    assert files.parse_text("a: &m {b: 1}\nc: *m\n", "x.yaml").tree["c"] == {"b": 1}


def test_alias_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = "abcdefghij"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join(['*' + old] * 10)}]" for old, new in pairwise(letters)]
    assert yaml_tree.NODE_LIMIT == 500_000
    monkeypatch.setattr(yaml_tree, "NODE_LIMIT", 5_000)  # so many are read in no time
    assert "expands to more than 5,000 values" in refusal("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- a\n- b\n", "the top level is a list, expected a mapping"),
        ("hello", "the top level is a single value, expected a mapping"),
        ("a:\n\tb: 1\n", "spaces, not tabs"),
        ("a: b: c\n", "x.yaml:1:5  not valid YAML: mapping values are not allowed here; check the indentation"),
        ("a: [1, 2\n", "not valid YAML"),
        ("a: !thing 3\n", "a YAML tag"),
        ("a: !thing {b: 1}\n", "a YAML tag"),
        ("a: !!binary aGVsbG8=\n", "a YAML tag"),
        ("a: !!python/object/apply:os.system [id]\n", "a YAML tag"),
        ("true: 1\n", "the key True is not a text"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ("[" * 700, "nested too deeply"),
        ("a: \0", "x.yaml:1:4  the character U+0000"),
        ("a: " + "9" * 5000, "digits"),
    ],
)
def test_what_is_no_scenario(text: str, words: str) -> None:
    assert words in refusal(text)


def test_json_is_yaml_even_with_tabs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n\t"eps": 1e-05,\n\t"x": null\n}', encoding="utf-8")
    assert files.read(path).tree == {"eps": 1e-5, "x": None}


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def message(path: Path) -> str:
        with pytest.raises(ScenarioError) as caught:
            files.read(path)
        return str(caught.value)

    assert "is a directory" in message(tmp_path)
    (tmp_path / "scenario.yaml").write_text("a: 1")
    assert "no such file; did you mean 'scenario.yaml'?" in message(tmp_path / "senario.yaml")
    (tmp_path / "latin.yaml").write_bytes("a: 1\nname: Müller\n".encode("latin-1"))
    assert "latin.yaml:2:8  not UTF-8: byte 0xfc at offset 12; save the file as UTF-8" in message(tmp_path / "latin.yaml")
    (tmp_path / "wide.yaml").write_bytes("a: 1".encode("utf-16"))
    assert "not UTF-8" in message(tmp_path / "wide.yaml")
    (tmp_path / "bom.yaml").write_bytes("a: 1".encode("utf-8-sig"))
    assert files.read(tmp_path / "bom.yaml").tree == {"a": 1}
    with (tmp_path / "huge.yaml").open("wb") as stream:  # 100 MB on paper, nothing on disk
        stream.truncate(100 * 10**6)
    assert "has 100,000,000 bytes; at most 10,000,000 are read" in message(tmp_path / "huge.yaml")
    monkeypatch.setattr(files, "SIZE_LIMIT", 3)
    assert "at most 3 are read" in message(tmp_path / "scenario.yaml")


def test_shipped_files_are_found_by_name_and_alias() -> None:
    assert files.find("models", "llama-2-13b").stem == "llama-2-13b"
    assert files.find("models", "meta-llama/Llama-2-13b-hf").stem == "llama-2-13b"
    assert files.find("models", "META-LLAMA/llama-2-13B-HF").stem == "llama-2-13b"
    assert files.find("software", "megatron").stem == "megatron-core"
    assert "llama-2-13b" in files.names("models")
    assert files.aliases("models")["meta-llama/Llama-2-13b-hf"] == "llama-2-13b"
    for kind in files.KINDS:
        for name in files.names(kind):
            assert files.is_shipped(files.find(kind, name))


def test_reading_a_shipped_file_twice_gives_equal_but_separate_trees() -> None:
    path = files.find("models", "gpt2")
    first, second = files.read(path), files.read(path)
    assert first.tree == second.tree
    first.tree["name"] = "changed"
    assert files.read(path).tree["name"] == second.tree["name"]
    assert first.origins is second.origins  # parsed once


def test_own_files_are_found_beside_the_file_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "gpt2.yaml").write_text("name: mine")
    (tmp_path / "deep" / "model").mkdir()
    (tmp_path / "deep" / "model" / "config.json").write_text("{}")
    scenario = tmp_path / "deep" / "s.yaml"
    assert files.find("models", "gpt2.yaml", scenario) == tmp_path / "deep" / "gpt2.yaml"
    assert files.is_shipped(files.find("models", "gpt2", scenario))  # a bare name is the catalogue's
    assert files.find("models", "model", scenario).name == "config.json"
    monkeypatch.chdir(tmp_path)
    assert files.find("models", "deep/gpt2.yaml", tmp_path / "elsewhere" / "s.yaml") == Path("deep/gpt2.yaml")


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("models", "lama-7b", "did you mean 'llama-7b'"),
        ("models", "Qwen2.5-7B-Instuct", "did you mean 'Qwen/Qwen2.5-7B-Instruct'?"),
        ("models", "someone/Llama2-7b", "did you mean .*'llama-2-7b'"),
        ("models", "qwne3-8b", "did you mean 'qwen3-8b' or 'Qwen/Qwen3-8B'"),
        *(
            (
                "models",
                name,
                "unknown model .*; `parsim list models` has the catalogue; of any other model give the path of its config.json",
            )
            for name in (
                "nothing-like-it-at-all",
                "meta-llama/Llama-2-14b-hf",
                "Qwen/Qwen2.5-Omni-7B",
                "tiiuae/Falcon-H1-7B-Base",
                "microsoft/phi-4",
                "google/gemma-3-4b-qat",
                "Qwen/Qwen2.5-7B-Coder",
            )
        ),
        ("models", "my/model.yaml", "no such file"),
        ("models", " ", "needs a name or a path"),
        ("models", "a\0b", "needs a name or a path"),
        ("software", "deepsped", "did you mean 'deepspeed' or 'deepspeed-2021' or 'megatron-deepspeed'?"),
    ],
)
def test_unknown_names(kind: str, name: str, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        files.find(kind, name)
    assert re.search(words.replace("?", r"\?"), str(caught.value))


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        files.home("recipes")


def test_data_is_found_in_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "parsim"
    (package / "_data" / "topologies").mkdir(parents=True)
    (package / "_data" / "topologies" / "mine.yaml").write_text("name: mine")
    monkeypatch.setattr(files, "_PACKAGE", package)
    assert files.data_root() == package / "_data"
    assert files.names("topologies") == ["mine"]
    (package / "_data" / "topologies" / "later.yaml").write_text("name: later")
    assert files.names("topologies") == ["later", "mine"]
    (package / "_data" / "topologies" / "mine.yaml").unlink()
    assert files.names("topologies") == ["later"]


def test_command_line_values() -> None:
    values = ["8", "1e9", "80 GiB", "[1, 2]", "{a: x2}", "none", "null", "true"]
    assert [files.parse_value(text) for text in values] == [8, 1e9, "80 GiB", [1, 2], {"a": "x2"}, "none", None, True]
    with pytest.raises(ScenarioError):
        files.parse_value("[1, 2")


@pytest.mark.parametrize("name", ["tpu-v4", "TPU-v5e"])
def test_tpus_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ScenarioError, match="no times of their kernels are published"):
        files.find("devices", name)
