"""The corpus is what its rule says; every file is read, or refused with words; a setting that is changed changes the scenario.

The samples are always judged. The texts of the corpus lie outside the repository: PARSIM_CORPUS names their folder.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from corpus_files import EXPECTED, HALVES, Judged, corpus, listed, samples
from flag_changes import Change, changes, outcome, quiet
from verdicts import COLUMNS, HF_CONFIG, TOOL_WORDS, Verdict, judge

from parsim.errors import InputError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given

FOLDER = os.environ.get("PARSIM_CORPUS")
TRAINING = Path(__file__).parent.parent / "data" / "training"
SAMPLES = list(samples())
ALIKE = {
    "megatron-llama3-8b-fp8.sh:--bf16": "with --fp8-format the importer takes one preset for weights in bf16 and in fp16",
    "megatron-recipe.yaml:bf16": "the same",
}
"""settings that may change without a trace, and why"""


@cache
def expected() -> dict[str, dict[str, str]]:
    with EXPECTED.open(encoding="utf-8", newline="") as lines:
        return {row["file"]: row for row in csv.DictReader(lines)}


def cells(verdict: Verdict) -> dict[str, str]:
    return dict(zip(COLUMNS, verdict.row(), strict=True))


# -- the list


def test_the_list_is_drawn_by_its_rule() -> None:
    rows = listed()
    assert len({row["sha256"] for row in rows}) == len({(row["repository"], row["path"]) for row in rows}) == len(rows) == 480
    for row in rows:
        digest = hashlib.sha256(f"{row['repository']}:{row['path']}".encode()).hexdigest()
        assert row["half"] == ("develop" if digest[0] < "8" else "held")
        assert row["kind"] in (HF_CONFIG, *TOOL_WORDS)
        assert row["file"].startswith(f"files/{row['half']}/{row['kind']}/")
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])
        assert 0 < int(row["bytes"]) <= 200_000
        assert bool(row["model_type"]) == (row["kind"] == HF_CONFIG)


def test_no_repository_and_no_family_fills_the_list() -> None:
    rows = listed()
    kinds = Counter(row["kind"] for row in rows)
    assert kinds.pop(HF_CONFIG) == 227
    assert all(12 <= count <= 20 for count in kinds.values())
    types = Counter(row["model_type"] for row in rows if row["model_type"])
    assert len(types) == 97
    assert max(types.values()) == 8
    for kind in (HF_CONFIG, *kinds):
        assert max(Counter(row["repository"] for row in rows if row["kind"] == kind).values()) <= (40 if kind == HF_CONFIG else 20)


def test_the_page_about_imports_counts_what_is_expected() -> None:
    """Its table: files in the corpus, looked at, read, refused."""
    names = {
        HF_CONFIG: "model configs", "megatron": "Megatron-LM", "megatron-deepspeed": "Megatron-DeepSpeed", "deepspeed": "DeepSpeed",
        "accelerate": "accelerate", "hf-trainer": "Hugging Face Trainer", "trl": "TRL", "llama-factory": "LLaMA-Factory",
        "swift": "ms-swift", "axolotl": "axolotl", "gpt-neox": "GPT-NeoX", "torchtitan": "torchtitan", "nemo": "NeMo", "verl": "verl",
    }  # fmt: skip
    page = (Path(__file__).parent.parent.parent / "docs" / "import.md").read_text(encoding="utf-8")
    listed_kinds = Counter(row["kind"] for row in listed())
    verdicts = [row for row in expected().values() if row["file"].startswith("files/")]
    for kind, name in names.items():
        mine = [row["verdict"] for row in verdicts if row["kind"] == kind]
        lost = sum(verdict in ("refused", "unbuildable") for verdict in mine)
        cells = " | ".join(map(str, (listed_kinds[kind], len(mine), len(mine) - lost, lost)))
        assert re.search(rf"^\| {name}[^|]*\| {re.escape(cells)} \|", page, re.MULTILINE), (kind, cells)


# -- the samples


def test_every_kind_has_a_sample() -> None:
    assert {judged.kind for judged in SAMPLES} == {HF_CONFIG, *TOOL_WORDS}


@pytest.mark.parametrize("judged", SAMPLES, ids=lambda judged: judged.name)
def test_a_sample_ends_as_expected(judged: Judged) -> None:
    """`python tests/corpus --write` brings expected.csv up to date."""
    verdict, findings = judge(judged.path, judged.kind, judged.name)
    assert cells(verdict) == expected()[judged.name]
    assert_in_words(verdict, findings)


def assert_in_words(verdict: Verdict, findings: object) -> None:
    assert verdict.verdict != "traceback", verdict.reason
    for finding in findings if isinstance(findings, tuple) else ():
        assert finding.message
        assert finding.path or finding.line is not None or finding.suggestion, finding


# -- one setting changed


def importable() -> Iterator[tuple[str, Path]]:
    yield from ((path.name, path) for path in sorted(TRAINING.iterdir()))
    yield from ((judged.path.relative_to(judged.path.parent.parent).as_posix(), judged.path) for judged in SAMPLES)


@cache
def settings(path: Path) -> tuple[Any, list[Change]]:
    """The scenario of a file, and changes of what it says; none of one that is refused."""
    text = path.read_text(encoding="utf-8")
    try:
        imported = import_config(text, path.name, Given("corpus"))
    except InputError:
        return None, []
    return imported.tree, list(changes(text, imported, path.name))


def test_settings_of_every_section_are_changed() -> None:
    changed = [change for _, path in importable() for change in settings(path)[1]]
    assert len(changed) >= 60
    assert {change.path for change in changed} >= {
        "model.layers", "model.hidden", "training.micro_batch", "training.precision", "training.sequence_length",
        "parallel.tensor.size", "parallel.pipeline.size", "parallel.context.size", "parallel.expert.size",
        "training.global_batch", "training.gradient_accumulation", "training.finetune.method", "parallel.data.strategy",
        "cluster.nodes", "cluster.gpus",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "path"), list(importable()), ids=[name for name, _ in importable()])
def test_a_changed_setting_changes_the_scenario_or_is_refused(name: str, path: Path) -> None:
    before, changed = settings(path)
    ends = {f"{name}:{change.setting}": outcome(change, path.name, before) for change in changed}
    assert {setting: end for setting, end in ends.items() if end.startswith("ignored") and setting not in ALIKE} == {}


@pytest.mark.parametrize(("name", "path"), list(importable()), ids=[name for name, _ in importable()])
def test_no_size_is_said_to_have_no_effect(name: str, path: Path) -> None:
    """A file that is read as another tool's is such a loss already, and stands in expected.csv."""
    if expected().get(f"samples/{name}", {}).get("verdict", "accepted") == "accepted" and "hf-config" not in name:
        assert not quiet(import_config(path.read_text(encoding="utf-8"), path.name, Given("corpus")))


# -- the corpus itself


def drawn() -> list[Judged]:
    """Those whose texts the folder has."""
    return [] if FOLDER is None else [judged for half in HALVES for judged in corpus(Path(FOLDER), half) if judged.path.exists()]


@pytest.mark.skipif(FOLDER is None, reason="PARSIM_CORPUS does not say where the texts of the corpus lie")
def test_the_texts_are_those_of_the_list() -> None:
    assert FOLDER is not None
    for row in listed():
        path = Path(FOLDER) / row["file"]
        assert not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]


@pytest.mark.parametrize("judged", drawn(), ids=lambda judged: judged.name)
def test_a_file_of_the_corpus_ends_in_words(judged: Judged) -> None:
    """Rows of the half that judges are not written down."""
    verdict, findings = judge(judged.path, judged.kind, judged.name)
    assert_in_words(verdict, findings)
    if judged.half == "develop":
        assert cells(verdict) == expected()[judged.name]
