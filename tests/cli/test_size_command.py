"""``parsim size`` as a user types it: streams, exit codes, files."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.study.size.answer import AnswerData
from parsim.study.size.text import text

ASKED = [
    "size", "gpt2", "--tokens", "10B", "--on", "dgx-a100-80gb", "--sequence", "1024", "--global-batch", "64k tokens", "--gpus", "8",
    "--gpu-hour", "2 USD", "--workers", "1",
]  # fmt: skip


def test_json_files_and_scenarios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, saved = tmp_path / "out", tmp_path / "saved"
    assert execute([*ASKED, "--json", "--out", str(out), "--save", str(saved)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recipe"]["global_batch"] == 64
    assert document["ranked"][0]["gpus"] == 8
    assert sorted(path.name for path in out.iterdir()) == ["gpus-time.svg", "size.html", "size.json", "size.txt", "time-cost.svg"]
    assert json.loads((out / "size.json").read_text(encoding="utf-8")) == document
    page = (out / "size.html").read_text(encoding="utf-8")
    assert "Strategy: tp GPUs that share every layer (tensor parallelism), pp pipeline stages, dp replicas" in page
    assert "MFU: FLOP that the model needs over" in page
    (scenario,) = saved.iterdir()
    assert execute(["run", str(scenario), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    best = document["ranked"][0]
    assert report["step_time_s"] == best["step_time_s"]
    assert report["estimate"]["step_time_s"] == best["estimate"]["step_time_s"]
    assert report["estimate"]["cost_to_train"] == best["cost"]
    assert report["estimate"]["time_to_train_s"] == best["time_to_train_s"]
    assert report["goodput"] == best["goodput"]


def test_text_names_what_was_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(ASKED) == 0
    said = capsys.readouterr().out
    assert "What the search covered" in said
    assert "dgx-a100-80gb" in said


def test_what_cannot_be_done_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["size", "gpt2", "--tokens", "10T", "--hours", "1", "--on", "dgx-a100-80gb", "--max-gpus", "16", "--workers", "1"]
    assert execute(words) == 3
    said = capsys.readouterr().out
    assert "cannot: even at the peak of 16 GPUs it takes" in said
    assert "would be needed (--max-gpus 16)" in said


def test_ctrl_c_after_the_search_still_prints_the_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(answer: AnswerData, columns: int | None = None) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return text(answer, columns)

    monkeypatch.setattr("parsim.study.size.text.text", interrupted)
    assert execute(ASKED) == 130
    said = capsys.readouterr().out
    assert said.count("Rent 1 x dgx-a100-80gb (8 GPUs)") == 1
    assert "So far" not in said


def test_mistakes_are_exit_2_and_all_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["size", "gtp2", "--tokens", "lots", "--on", "dgx-a100", "--budget", "$5"]) == 2
    said = capsys.readouterr().err
    for words in ("gtp2", "--tokens", "--budget", "write USD instead of $", "3 problems"):
        assert words in said


def test_without_a_limit_it_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["size", "gpt2", "--tokens", "1B", "--on", "dgx-a100"]) == 2
    assert "no limit given; add --days, --hours, --budget or --gpus" in capsys.readouterr().err


def test_a_file_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(
        "size: {model: gpt2, tokens: 10B, days: 2, on: dgx-a100-80gb, sequence_length: 1024, global_batch: 64, gpu_hour: 2 USD}\n",
        encoding="utf-8",
    )
    assert execute(["size", str(path), "--gpus", "8", "--workers", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["question"]["days"] == 2.0
    assert document["ranked"][0]["gpus"] == 8


def test_models_without_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["size", "resnet50", "--tokens", "1B", "--on", "dgx-a100", "--hours", "5"]) == 2
    assert "resnet50 has no tokens to be trained on" in capsys.readouterr().err


def test_idle_gpus_are_those_paid_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ASKED[:-4], "--gpus", "20", "--workers", "1"]
    words[words.index("--gpus") : words.index("--gpus") + 2] = []
    assert execute(words) == 0
    said = capsys.readouterr().out
    assert "20 GPUs are in 3 x 8: 24 are paid for" in said
    assert "16 work, 8 are idle; use 16 or 24" in said
