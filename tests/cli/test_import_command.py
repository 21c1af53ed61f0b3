"""``parsim import config``: streams, exit codes, files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.scenario import load

DATA = Path(__file__).parent.parent / "data" / "training"
GPT = str(DATA / "megatron-gpt3-175b.sh")


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = execute(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_scenario_goes_to_standard_output_and_warnings_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("import", "config", GPT, "--on", "dgx-a100-80gb", capsys=capsys)
    assert code == 0
    assert out.startswith("# From ")
    assert "tensor:\n    size: 8" in out
    assert err == f"warning: {GPT}:32  --rampup-batch-size  not modelled: steps of the ramp-up are smaller; the full batch is simulated\n"


def test_the_word_config_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    whole = run("import", "config", GPT, capsys=capsys)
    assert run("import", GPT, capsys=capsys) == whole
    assert run("import", "--from", "megatron", GPT, capsys=capsys) == whole
    assert run("import", "--help", capsys=capsys)[0] == 0


def test_a_file_is_written_whole_and_never_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpt3.yaml"
    code, said, _ = run("import", GPT, "--out", str(out), "--on", "dgx-a100-80gb", "--name", "mine", capsys=capsys)
    assert (code, said) == (0, f"Wrote {out}. Next: parsim run {out}\n")
    assert load(out).name == "mine"
    before = out.read_text()
    code, _, err = run("import", GPT, "--out", str(out), capsys=capsys)
    assert code == 2
    assert "exists and is not overwritten" in err
    assert out.read_text() == before


def test_holes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "open.yaml"
    code, said, err = run("import", str(DATA / "ds_z2.json"), "--out", str(out), capsys=capsys)
    assert code == 0
    assert said == f"Wrote {out}. Fill in model, cluster.topology, cluster.nodes, training.sequence_length, then: parsim run {out}\n"
    assert "warning: cluster.topology  is left to fill in; a name of `parsim list topologies`" in err
    code, _, err = run("run", str(out), capsys=capsys)
    assert code == 2
    assert f"{out}:5:1  model  must be filled in: the imported configuration does not state it; write a name of" in err


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("import", GPT, "--json", capsys=capsys)
    document = json.loads(out)
    assert code == 0
    assert document["tool"] == "Megatron-LM"
    assert document["scenario"]["parallel"]["pipeline"] == {"size": 16}
    assert document["to_fill"] == ["cluster.topology"]
    ramp = next(key for key in document["keys"] if key["key"] == "--rampup-batch-size")
    assert (ramp["became"], ramp["line"], ramp["value"]) == ("not modelled", 32, ["16", "16", "5859375"])
    assert {key["became"] for key in document["keys"]} == {"translated", "no effect", "not modelled"}


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Stdin:
        buffer = io.BytesIO(b"--num-layers 2 --hidden-size 8 --num-attention-heads 2 --micro-batch-size 1 --seq-length 4")

    monkeypatch.setattr("sys.stdin", Stdin())
    code, out, _ = run("import", "-", capsys=capsys)
    assert code == 0
    assert "# From standard input, read as Megatron-LM (num_layers, hidden_size, num_attention_heads, micro_batch_size and 1 more);" in out
    assert "name: imported" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.sh"], "no such file"),
        ([GPT, "--set", "NODES"], "'NODES' is not NAME=VALUE"),
        ([GPT, "--from", "word"], "there is no format 'word'"),
        ([GPT, "--nodes", "0"], "greater than or equal to 1"),
    ],
)
def test_what_a_user_can_do_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("import", *words, capsys=capsys)
    assert (code, out) == (2, "")
    assert message in err
