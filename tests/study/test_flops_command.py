"""`parsim flops`: parts, conventions with their arithmetic, time to train."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from structures import STRUCTURES

from parsim import theory
from parsim.cli import execute
from parsim.errors import InputError
from parsim.model.flops import CONVENTIONS
from parsim.study.counting import arithmetic, conventions, hardware, subject
from parsim.study.flops import FlopsQuestion, document, flops, text


def counted(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert execute(["flops", *arguments, "--json"]) == 0
    out = capsys.readouterr().out
    return json.loads(out)


def value(written: str) -> float:
    """What printed arithmetic comes to."""
    return float(eval(written.replace(",", "").replace(" x ", " * ").replace("^", "**")))


@pytest.mark.parametrize("name", STRUCTURES)
def test_printed_arithmetic_is_the_number_beside_it(name: str) -> None:
    of = subject(name)
    for one in (*conventions(of), *hardware(of, "full"), *hardware(of, "selective")):
        assert value(one.arithmetic) == pytest.approx(one.flop, rel=1e-12), one.name
        assert one.formula == CONVENTIONS[one.name].meaning
    assert value(arithmetic(of, "exact")) == pytest.approx(next(one.flop for one in conventions(of) if one.name == "exact"), rel=1e-12)


FORWARD = [
    ("gpt2", 1024, 265_938_432),
    ("llama-2-7b", 2048, 13_751_025_664),
    ("llama-2-7b", 4096, 14_287_896_576),
    ("llama-3-8b", 8192, 17_156_800_512),
    ("llama-2-70b", 4096, 142_795_079_680),
]


@pytest.mark.parametrize(("name", "sequence", "flop"), FORWARD)
def test_forward_flop_per_token(name: str, sequence: int, flop: int) -> None:
    for training, factor in ((False, 1), (True, 3)):
        found = document(flops(FlopsQuestion(name, sequence, training=training)))
        assert found["total"]["flop_per_unit"] == factor * flop
        assert {one["name"]: one["flop"] for one in found["conventions"]}["exact"] == factor * flop
        assert sum(part["share"] for part in found["parts"]) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "sequence", "flop"),
    [("gpt2", 1024, 859_885_056), ("llama-2-7b", 2048, 43_651_719_168), ("llama-3-8b", 8192, 61_066_469_376)],
)
def test_palm_beside_it(name: str, sequence: int, flop: int) -> None:
    found = {one["name"]: one["flop"] for one in document(flops(FlopsQuestion(name, sequence)))["conventions"]}
    assert found["palm"] == found["llm-foundry"] == flop
    assert round(flops(FlopsQuestion(name, sequence, training=False)).conventions[2].flop * 3) == flop


@pytest.mark.parametrize(
    ("name", "batch", "step"),
    [
        ("megatron-gpt-145.6b", 2304, "5.6417e+18"),
        ("megatron-gpt-175b", 1536, "4.5110e+18"),
        ("megatron-gpt-530b", 2520, "2.2216e+19"),
        ("megatron-gpt-1t", 3072, "5.1391e+19"),
    ],
)
def test_megatron_steps(name: str, batch: int, step: str) -> None:
    found = {one["name"]: one["flop"] for one in document(flops(FlopsQuestion(name, 2048)))["conventions"]}
    assert f"{found['megatron-hardware'] * 2048 * batch:.4e}" == step
    of = subject(name, 2048).model
    closed = theory.megatron_step_flops(1, 2048, of.layers, of.hidden, 51200, recompute=False) / 2048
    head = 6 * 51200 * of.hidden * (1 - 72 / 96)  # 2104.04473 spreads V/16 over 96; 2205.05198 writes V/12 for 72
    assert found["megatron"] == pytest.approx(closed + head, rel=1e-12)


def test_bert_attends_to_all_keys() -> None:
    found = document(flops(FlopsQuestion("bert-base", 512, training=False)))
    layers = sum(part["flop"] for part in found["parts"] if part["group"] == "layers 0-11")
    assert layers / 512 == 188_743_680


def test_ridge_point_and_what_is_bound_by_what(capsys: pytest.CaptureFixture[str]) -> None:
    found = counted("llama-2-7b", "--gpu", "a100", capsys=capsys)
    ridge = 312e12 / 2039e9
    assert found["gpu"] == {"name": "A100 SXM 80GB", "peak_flops": 312e12, "bandwidth_Bps": 2039e9, "ridge_flop_per_B": ridge}
    for part in found["parts"]:
        assert part["bound"] == ("compute" if part["flop_per_B"] >= ridge else "memory")
        assert part["roofline_s"] == pytest.approx(max(part["flop"] / 312e12, part["bytes"] / 2039e9), rel=1e-12)
    bound = {part["part"]: part["bound"] for part in found["parts"] if part["group"].startswith("layers")}
    assert bound == {
        "norm": "memory", "attention linears": "compute", "elementwise": "memory", "attention core": "compute", "MLP": "compute",
    }  # fmt: skip


def test_a_core_of_flash_attention_does_half_a_flop_per_byte_and_key() -> None:
    # forward: 2 s^2 a d FLOP (causal) over 8 s a d bytes = s / 4; forward and backward 3 x over 3 x the same
    (core,) = (part for part in document(flops(FlopsQuestion("llama-2-7b", 2048)))["parts"] if part["part"] == "attention core")
    assert core["flop_per_B"] == 2048 / 4


def test_weights_are_read_once_per_micro_batch() -> None:
    # [b s, h] x [h, 3h]: 2 b s h 3h FLOP over 2 (b s h + 3 h^2 + 3 b s h) bytes
    def intensity(batch: int) -> float:
        rows = document(flops(FlopsQuestion("gpt2", 128, batch, training=False)))["parts"]
        return float(next(part["flop_per_B"] for part in rows if part["part"] == "head"))

    for batch in (1, 8):
        m, h, v = 128 * batch, 768, 50257
        assert intensity(batch) == pytest.approx(2 * m * h * v / (2 * (m * h + h * v + m * v)), rel=1e-12)


def test_fused_kernels_move_less() -> None:
    eager, fused = (sum(part["bytes"] for part in document(flops(FlopsQuestion("gpt2", fused=fused)))["parts"]) for fused in (False, True))
    assert fused < eager


def test_forward_counts_one_pass() -> None:
    found = document(flops(FlopsQuestion("gpt2", 1024, training=False)))
    assert found["passes"] == ["forward"]
    assert all("backward_input_flop" not in part for part in found["parts"])
    assert {one["name"] for one in found["conventions"]}.isdisjoint({"hfu", "megatron-hardware"})


@pytest.mark.parametrize(
    ("name", "gpu", "tokens", "share", "hours"),
    [
        # GPU-hours of 2307.09288, table 2, and of Llama 3.1's model card; MFU by 6 N
        ("llama-2-7b", "a100", "2T", "39.06%", 184_320),
        ("llama-2-13b", "a100", "2T", "37.72%", 368_640),
        ("llama-2-70b", "a100", "2T", "42.84%", 1_720_320),
        ("llama-3.1-405b", "h100", "15.6T", "34.60%", 30.84e6),
    ],
)
def test_gpu_hours(name: str, gpu: str, tokens: str, share: str, hours: float, capsys: pytest.CaptureFixture[str]) -> None:
    found = counted(name, "--gpu", gpu, "--gpus", "1024", "--tokens", tokens, "--mfu", share, "--convention", "6n", capsys=capsys)
    time = found["training_time"]
    assert time["gpu_hours"] == pytest.approx(hours, rel=2e-4)
    assert time["time_to_train_s"] == pytest.approx(time["gpu_hours"] / 1024 * 3600, rel=1e-12)


def test_days_of_gpt_3() -> None:
    # 2104.04473, section 5.1: 8 T P / (n X), X = 140 TFLOP/s of hardware FLOP; of 8 = 6 + 2 an MFU by 6 N counts 6
    share = 140 / 312 * 6 / 8
    answer = flops(FlopsQuestion("gpt3-175b", gpu="a100", gpus=1024, tokens="300G", mfu=str(share), convention="6n"))
    assert answer.time is not None
    days = answer.time.seconds / theory.DAY
    assert days * 175e9 / 174_604_259_328 == pytest.approx(theory.time_to_train(175e9, 300e9, 1024, 140e12) / theory.DAY, rel=1e-12)
    assert round(days * 175e9 / 174_604_259_328, 2) == 33.91


def test_the_time_is_printed_with_its_arithmetic() -> None:
    lines = text(flops(FlopsQuestion("llama-2-7b", 2048, gpu="a100", gpus=1024, tokens="2T"))).splitlines()
    (head,) = (line for line in lines if line.startswith("Time of"))
    assert head == "Time of 2,000,000,000,000 tokens at an MFU of 40 % (assumed; give yours with --mfu)"
    (work,) = (line for line in lines if line.startswith("  work"))
    assert work == "  work  43,651,719,168 FLOP/token (palm) x 2e+12 = 8.7303e+22 FLOP"
    (time,) = (line for line in lines if line.startswith("  time"))
    assert time.startswith("  time  8.7303e+22 / (1,024 x 312 TFLOP/s x 0.4) = 6.8315e+05 s")
    assert any(re.match(r"  palm: 6 x 6,738,415,616 \+ 12 x 32 x 4,096 x 2,048 = 43,651,719,168", line) for line in lines)


@pytest.mark.parametrize("arguments", [("resnet50", "--batch", "32", "--gpu", "v100"), ("vit-base",), ("mixtral-8x7b", "--fused")])
def test_other_models(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["flops", *arguments]) == 0
    out = capsys.readouterr().out
    assert "FLOP per " in out
    assert "nan" not in out


def test_a_hugging_face_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}),
        encoding="utf-8",
    )
    found = counted(str(path), "--sequence", "1024", capsys=capsys)
    assert found["total"]["flop_per_unit"] == 3 * 265_938_432
    assert found["model"] == tmp_path.name


def test_a_config_in_the_working_directory_is_called_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    test_a_hugging_face_config(tmp_path, capsys)
    monkeypatch.chdir(tmp_path)
    assert execute(["flops", "config.json"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path.name}: 124,")


def test_a_file_is_wrong_at_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: gpt2\nlayers: 2\nhiden: 3\n", encoding="utf-8")
    assert execute(["flops", str(path), "--gpu", "a1000"]) == 2
    err = capsys.readouterr().err
    assert f"{path}:3:1  model.hiden  unknown field 'hiden'; did you mean 'hidden'?" in err
    assert "unknown device 'a1000'" in err
    assert "2 problems." in err


@pytest.mark.parametrize(
    ("question", "paths"),
    [
        (FlopsQuestion("gpt2", 2048), ["--sequence"]),
        (FlopsQuestion("resnet50", 5), ["--sequence"]),
        (FlopsQuestion("vit-base", 196), ["--sequence"]),
        (FlopsQuestion("resnet50", gpu="a100", tokens="2T"), ["--tokens"]),
        (FlopsQuestion("gpt2", mfu="40%", gpus=4, convention="6n"), ["--convention", "--gpus", "--mfu"]),
        (FlopsQuestion("gpt2", tokens="2T"), ["--tokens"]),
        (FlopsQuestion("gpt2", gpu="a100", tokens="2 GB", mfu="40"), ["--mfu", "--tokens"]),
        (FlopsQuestion("gpt2", gpu="a100", tokens="-1", mfu="half"), ["--mfu", "--tokens"]),
        (FlopsQuestion("gpt2", gpu="a100", tokens="0"), ["--tokens"]),
        (FlopsQuestion("gpt2", gpu="v100", dtype="bf16"), ["--dtype"]),
        (FlopsQuestion("gpt2", dtype="bf17"), ["--dtype"]),
        (FlopsQuestion("llama-2-7b", gpu="a100", tokens="2T", convention="megatron"), ["--convention"]),
        (FlopsQuestion("llama-2-7b", gpu="a100", tokens="2T", convention="hfu"), ["--convention"]),
    ],
)
def test_everything_wrong_is_said_at_once(question: FlopsQuestion, paths: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        flops(question)
    assert sorted(finding.path for finding in caught.value.findings) == paths


def test_stage_times_have_no_flop(tmp_path: Path) -> None:
    path = tmp_path / "stages.yaml"
    path.write_text("stages: [{forward: 1 ms, backward: 2 ms}]\n", encoding="utf-8")
    with pytest.raises(InputError, match="no FLOP to count"):
        flops(FlopsQuestion(str(path)))
