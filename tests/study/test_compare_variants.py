"""Which scenarios a comparison is about, and what they are called."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import ScenarioError
from parsim.scenario.load import load
from parsim.scenario.scenario import flow
from parsim.study.axes import split_values
from parsim.study.compare_variants import MOST, variants

PLAIN = "gpt2-ddp-4x-a100"


def labels(*sources: str, **options: object) -> list[str]:
    files = [word for word in sources if "=" not in word]
    return [one.label for one in variants(files, [word for word in sources if "=" in word], **options).all]


def message(*sources: str, **options: object) -> str:
    with pytest.raises(ScenarioError) as error:
        labels(*sources, **options)
    return "\n".join(map(str, error.value.findings))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ddp", ["ddp"]),
        ("ddp, zero1", ["ddp", "zero1"]),
        ("[9, 8, 8]", ["[9, 8, 8]"]),
        ("[9, 8],[8, 9]", ["[9, 8]", "[8, 9]"]),
        ("{every: 2},{blocks: [1, 2]},full", ["{every: 2}", "{blocks: [1, 2]}", "full"]),
        ("'a, b',\"c, ' d\"", ["'a, b'", '"c, \' d"']),
        ("1,,2", ["1", "", "2"]),
        ("don't,stop", ["don't", "stop"]),
        ('"a\\", b",c', ['"a\\", b"', "c"]),
    ],
)
def test_commas_separate_values_outside_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


VALUES = st.recursive(
    st.integers() | st.booleans() | st.text(st.characters(codec="ascii", exclude_characters="\x7f", min_codepoint=32), min_size=1),
    lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=4,
)


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_what_is_joined_by_commas_comes_apart_again(values: list[object]) -> None:
    texts = [flow(value) for value in values]
    assert split_values(",".join(texts)) == [text.strip() for text in texts]


def test_a_list_makes_variants_named_by_their_values() -> None:
    assert labels(PLAIN, "parallel.data.strategy=ddp,zero1") == ["ddp", "zero1"]
    assert labels(PLAIN, "training.micro_batch=1,2") == ["mbs=1", "mbs=2"]
    assert labels(PLAIN, "training.mbs=1,2") == ["mbs=1", "mbs=2"]
    assert labels(PLAIN, "parallel.data.bucket=25 MiB,50 MiB") == ["bucket=25 MiB", "bucket=50 MiB"]
    assert labels(PLAIN, "parallel.data.overlap_reduce=true,false") == ["overlap_reduce=true", "overlap_reduce=false"]


def test_keys_are_told_apart_by_as_many_words_as_it_takes() -> None:
    both = labels(PLAIN, "software.host.per_layer_forward=0 us,1 us", "cluster.interference=off,simple")
    assert both == ["per_layer_forward=0 us, off", "per_layer_forward=0 us, simple", "per_layer_forward=1 us, off",
                    "per_layer_forward=1 us, simple"]  # fmt: skip
    both = labels(PLAIN, "parallel.pipeline.size=1,2", "training.recompute=none,full", "parallel.data.strategy=none,ddp")
    assert both[0] == "pp=1, recompute=none, strategy=none"
    assert both[-1] == "pp=2, full, ddp"
    assert len(both) == 8


def test_several_lists_make_the_product_and_the_last_runs_fastest() -> None:
    found = variants([PLAIN], ["training.mbs=1,2", "parallel.zero=0,1", "training.gbs=16"])
    assert [one.label for one in found.all] == ["mbs=1, zero=0", "mbs=1, zero=1", "mbs=2, zero=0", "mbs=2, zero=1"]
    assert found.all[1].arguments == ("training.gbs=16", "training.mbs=1", "parallel.zero=1")


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.integers(1, 2))
def test_there_are_as_many_as_the_product_and_no_label_twice(sizes: list[int], files: int) -> None:
    keys = ("training.micro_batch", "training.sequence_length", "training.global_batch")
    arguments = [f"{key}={','.join(str(value + 1) for value in range(size))}" for key, size in zip(keys, sizes, strict=False)]
    sources = ["llama-7b-zero1-8x-a100", "llama-7b-zero2-8x-a100"][:files]
    total = files * prod(sizes)
    if total > MOST:
        assert f"= {total:,} variants" in message(*sources, *arguments)
        return
    found = labels(*sources, *arguments)
    assert len(found) == len(set(found)) == total


def test_too_many_are_refused_with_the_arithmetic() -> None:
    sizes = ",".join(map(str, range(1, 9)))
    text = message(PLAIN, "gpt3-22b-8x-a100", f"training.mbs={sizes}", "training.seq=1,2,3,4")
    assert "2 scenarios x 8 values of training.mbs x 4 values of training.seq = 64 variants, at most 48 can be compared" in text


def test_files_are_called_by_the_words_that_differ() -> None:
    stages = [f"llama-7b-{one}-8x-a100" for one in ("ddp", "zero1", "zero2")]
    assert labels(*stages) == ["ddp", "zero1", "zero2"]
    assert labels("llama-7b-zero3-8x-a100", "llama-7b-zero3-8x-rtx-4090") == ["a100", "rtx-4090"]
    assert labels("mlp-1x-a100", "custom-schedule") == ["mlp-1x-a100", "custom-schedule"]
    assert labels(*stages[:2], "training.mbs=1,2") == ["ddp, mbs=1", "ddp, mbs=2", "zero1, mbs=1", "zero1, mbs=2"]


def test_named_overrides_stand_behind_a_plus() -> None:
    found = variants(["gpt2-xl-gpipe-4x-v100", "gpt2-xl-gpipe-4x-v100+1f1b", "gpt2-xl-gpipe-4x-v100+1f1b+balanced"])
    assert [one.label for one in found.all] == ["no override", "1f1b", "1f1b+balanced"]
    pipeline = [one.scenario().settings.parallel.pipeline for one in found.all]
    assert [(one.schedule, one.split) for one in pipeline] == [("gpipe", "even"), ("1f1b", "even"), ("1f1b", "balanced")]


def test_equal_names_get_numbers_and_labels_can_be_given() -> None:
    assert labels(PLAIN, PLAIN) == [f"{PLAIN} (1)", f"{PLAIN} (2)"]
    assert labels(PLAIN, "training.mbs=1,2", labels=["one", "two"]) == ["one", "two"]
    assert "1 labels for 2 variants; one for each, in this order: mbs=1; mbs=2" in message(PLAIN, "training.mbs=1,2", labels=["one"])


def test_scenarios_and_mappings_are_sources_too() -> None:
    scenario = load(PLAIN)
    tree = {"name": "tree", **{key: value for key, value in scenario.document().items() if key != "name"}}
    found = variants([scenario, tree], ["training.mbs=1"])
    assert [one.label for one in found.all] == [scenario.name, "tree"]
    assert {one.scenario().settings.training.micro_batch for one in found.all} == {1}


def test_one_is_no_comparison_and_nothing_is_none_either() -> None:
    assert "one scenario is no comparison" in message(PLAIN)
    assert "unknown scenario or comparison 'zero-nvlnk'; did you mean 'zero-nvlink'?" in message("zero-nvlnk")
    assert "no scenario to compare" in message("training.mbs=1,2")
    assert "a value between commas is empty" in message(PLAIN, "training.mbs=1,,2")
    assert "takes several values twice" in message(PLAIN, "training.mbs=1,2", "training.mbs=4,8")


COMPARISON = """\
name: Two stages of ZeRO
base: small.yaml
baseline: B, mbs=2
variants:
  A: {parallel: {zero: 1}}
  B: {parallel: {zero: 2}}
  C: {base: {extends: small.yaml+big, parallel: {zero: 3}}}
vary:
  training.micro_batch: [1, 2]
"""
SMALL = """\
model: gpt2
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {sequence_length: 128, global_batch: 8, micro_batch: 4}
overrides:
  big: {training: {global_batch: 16}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    (tmp_path / "stages.yaml").write_text(COMPARISON, encoding="utf-8")
    return tmp_path


def test_a_comparison_file_names_its_variants(folder: Path) -> None:
    found = variants([folder / "stages.yaml"])
    assert (found.title, found.stem, found.baseline) == ("Two stages of ZeRO", "stages", "B, mbs=2")
    assert [one.label for one in found.all] == ["A, mbs=1", "A, mbs=2", "B, mbs=1", "B, mbs=2", "C, mbs=1", "C, mbs=2"]
    settings = [one.scenario().settings for one in found.all]
    assert [one.parallel.data.strategy for one in settings] == ["zero1"] * 2 + ["zero2"] * 2 + ["zero3"] * 2
    assert [one.training.micro_batch for one in settings] == [1, 2] * 3
    assert [one.training.global_batch for one in settings] == [8, 8, 8, 8, 16, 16]


def test_arguments_win_over_a_comparison_file_and_multiply_it(folder: Path) -> None:
    found = variants([folder / "stages.yaml"], ["training.micro_batch=1", "training.recompute=none,full"])
    assert len(found.all) == 12
    assert found.all[1].label == "A, mbs=1, full"
    assert {one.scenario().settings.training.micro_batch for one in found.all} == {1}


def test_problems_of_a_comparison_file_have_their_places(folder: Path) -> None:
    path = folder / "bad.yaml"
    path.write_text(
        "basline: A\nvariants:\n  A: 5\n  B: {base: nope.yaml}\n  C: {}\n  D: {base: small.yaml, extends: x}\nvary:\n  training.mbs: [1]\n",
        encoding="utf-8",
    )
    with pytest.raises(ScenarioError) as error:
        variants([path])
    found = {(one.line, one.path): f"{one.message}; {one.suggestion}" for one in error.value.findings}
    assert all(one.file == str(path) for one in error.value.findings)
    assert found[1, "basline"] == "unknown key of a comparison; did you mean 'baseline'?"
    assert found[3, "variants.A"] == "5 is not a mapping of changes; write {key: value}"
    assert found[4, "variants.B.base"].startswith("no such file 'nope.yaml'")
    assert found[5, "variants.C"].startswith("has no scenario to change")
    assert found[6, "variants.D.extends"].startswith("has no meaning in a variant")
    assert found[8, "vary.training.mbs"].startswith("takes at least two values")
    assert len(found) == 6


def test_a_wrong_key_in_a_variant_points_into_the_comparison_file(folder: Path) -> None:
    path = folder / "typo.yaml"
    path.write_text("base: small.yaml\nvariants:\n  A: {}\n  B:\n    training: {micro_bach: 2}\n", encoding="utf-8")
    good, bad = variants([path]).all
    assert good.scenario().name == "small"
    with pytest.raises(ScenarioError) as error:
        bad.scenario()
    (finding,) = error.value.findings
    assert (finding.file, finding.line, finding.column, finding.path) == (str(path), 5, 16, "training.micro_bach")


def test_an_unknown_baseline_in_a_file_is_said(folder: Path) -> None:
    path = folder / "base.yaml"
    path.write_text("base: small.yaml\nbaseline: Z\nvariants: {A: {}, B: {parallel: {zero: 1}}}\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"2:1  baseline  no variant is called 'Z'; known: A; B"):
        variants([path])
