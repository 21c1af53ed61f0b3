"""`parsim export` as a script sees it: streams, files, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parsim.cli import execute


def test_standard_output_is_the_file_and_notes_go_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["export", "llama-7b-zero3-offload-2x-rtx-3090", "--to", "deepspeed"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["zero_optimization"]["stage"] == 3
    assert "in the script: tokenizer(..., max_length=2048)" in err
    assert "start with: torchrun --nnodes 1 --nproc-per-node 2 SCRIPT.py --deepspeed FILE" in err


def test_a_file_is_written_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "fsdp.yaml"
    arguments = ["export", "llama-13b-fsdp-16x-a100", "--to", "fsdp", "--out", str(target)]
    assert execute(arguments) == 0
    assert f"Next: accelerate launch --config_file {target} SCRIPT.py" in capfd.readouterr().out
    text = target.read_text(encoding="utf-8")
    assert "fsdp_version: 2" in text
    assert execute(arguments) == 2
    assert "exists and is not overwritten" in capfd.readouterr().err
    assert target.read_text(encoding="utf-8") == text


def test_json_is_one_document(capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["export", "gpt3-175b-1024x-a100", "--to", "megatron", "--json"]) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert err == ""
    assert (document["parsim"], document["to"], document["file"]) == (1, "megatron", None)
    assert document["keys"]["parallel.tensor.size"] == {"kind": "exported", "text": "--tensor-model-parallel-size 8"}
    assert document["text"].startswith("#!/bin/bash\n")


def test_refusals_name_file_key_and_tool_and_write_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "job.json"
    assert execute(["export", "gpt3-175b-1024x-a100", "--to", "fsdp", "--out", str(target), "--json"]) == 2
    errors = json.loads(capfd.readouterr().out)["errors"]
    place = next(error for error in errors if error["path"] == "parallel.pipeline.size")
    assert place["file"].endswith("gpt3-175b-1024x-a100.yaml")
    assert (place["line"], place["value"]) == (11, 8)
    assert "--to megatron" in place["suggestion"]
    assert not target.exists()


@pytest.mark.parametrize("arguments", [[], ["--to", "nemo"], ["--to", "fsdp", "--fsdp-version", "3"]])
def test_wrong_options(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["export", "gpt2-ddp-4x-a100", *arguments]) == 2
    assert capfd.readouterr().out == ""
