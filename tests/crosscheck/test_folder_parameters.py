"""The comparison over a folder of configs: what it calls equal, different and unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import folder_parameters
import pytest
from folder_parameters import NO_CLASS, compared
from small_models import small
from torch_side import class_of


def written(folder: Path, name: str, **changes: Any) -> None:
    config = small(name)
    tree = {**config.to_dict(), "architectures": [class_of(config).__name__], **changes}
    (folder / f"{name}.json").write_text(json.dumps(tree))


def ends(folder: Path) -> dict[str, str]:
    return {one.file: one.end for one in compared(folder)}


def test_small_models_are_equal(tmp_path: Path) -> None:
    for name in ("gpt2", "bert", "llama", "vit"):
        written(tmp_path, name)
    (tmp_path / "README.md").write_text("no config")
    assert ends(tmp_path) == {"bert.json": "equal", "gpt2.json": "equal", "llama.json": "equal", "vit.json": "equal"}


def test_what_one_side_does_not_know(tmp_path: Path) -> None:
    written(tmp_path, "llama", architectures=["LlamaOfNobodyForCausalLM"])
    written(tmp_path, "bert", model_type="a-type-of-nobody")
    written(tmp_path, "gpt2", model_type="speech_to_text")
    found = ends(tmp_path)
    assert found == {"llama.json": NO_CLASS, "bert.json": "refused by parsim", "gpt2.json": "refused by parsim, known to transformers"}


def test_a_wrong_count_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "llama")
    monkeypatch.setattr(folder_parameters, "parameter_count", lambda _: 7)
    monkeypatch.setattr("sys.argv", ["folder_parameters", str(tmp_path)])
    assert folder_parameters.main() == 1
    assert "parsim 7, transformers " in capsys.readouterr().out
