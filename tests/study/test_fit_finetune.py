"""`parsim fit --train`: verdicts, and LoRA and QLoRA offered where full training does not fit."""

from __future__ import annotations

import json

import pytest

from parsim.cli import execute
from parsim.errors import ScenarioError
from parsim.run import simulate
from parsim.scenario import load
from parsim.study.fit import fit
from parsim.study.fit_question import FitQuestion, scenario_of
from parsim.study.fit_text import document, text
from parsim.units import format_bytes

GIB = 2**30


def test_lora_and_qlora_are_offered():
    answer = fit(FitQuestion("llama-7b", "1x rtx-4090"))
    assert not answer.fits
    changes = {alternative.change.split(" (")[0]: alternative for alternative in answer.alternatives}
    assert {"LoRA", "QLoRA"} <= set(changes)
    weights = {name: changes[name].memory.devices[0].resident_bytes["parameters"] for name in ("LoRA", "QLoRA")}
    assert weights["QLoRA"] < 0.3 * weights["LoRA"]
    for name in ("LoRA", "QLoRA"):
        confirmed = simulate(load(answer.tree, *changes[name].overrides))
        assert confirmed.fits
        assert confirmed.peak_memory == changes[name].memory.peak_bytes
    assert "not tried" not in text(answer)
    assert answer.alternatives[0].memory.host is not None  # full training comes first, with states in host memory


def test_a_larger_model_needs_qlora():
    answer = fit(FitQuestion("llama-13b", "1x rtx-4090", train="lora", recompute="full", sequence_length=512))
    assert not answer.fits
    assert any(alternative.change.startswith("QLoRA") for alternative in answer.alternatives)
    assert not any(alternative.change.startswith("LoRA") for alternative in answer.alternatives)


def test_65b_in_four_bits_needs_about_50_gb():
    """A rule of practitioners: 65B, int4 and LoRA, 50 GB at least. NF4-DQ weights alone are 33.7 GB + 1.05 GB of 16-bit tables."""
    answer = fit(FitQuestion("llama-65b", "1x a100-80gb", train="qlora", recompute="full"), alternatives=False)
    assert answer.fits
    assert 40e9 < answer.report.peak_memory < 50e9
    resident = answer.report.measured.memory.devices[0].resident_bytes
    stored = 64_760_053_760 * 0.515869140625 + 2 * 525_606_912 + 4 * 199_884_800
    # the allocator cannot split the last 0.984 MiB off the 34 MiB segments of the attention's matrices (8192 x 8192)
    unsplit = 80 * 4 * (34 * 2**20 - 8192 * 8192 * 0.515869140625)
    assert resident["parameters"] == pytest.approx(stored + unsplit, rel=1e-6)
    lora = fit(FitQuestion("llama-65b", "1x a100-80gb", train="lora", recompute="full"), alternatives=False)
    assert not lora.fits


def test_states_are_those_of_trained_and_frozen_parameters():
    lora, qlora = (fit(FitQuestion("llama-7b", "1x a100-80gb", train=method), alternatives=False) for method in ("lora", "qlora"))
    assert "model states alone: 13.15 GiB" in text(lora)  # 2 P + 16 x 39,976,960
    assert "model states alone: 4.196 GiB" in text(qlora)
    assert "parameters trained   39,976,960 of 6,778,392,576 (0.59 %)" in text(lora)
    assert document(lora)["report"]["model"]["parameters_trainable"] == 39_976_960


def test_freezing_the_backbone():
    answer = fit(FitQuestion("llama-7b", "1x a100-80gb", train="freeze"), alternatives=False)
    assert answer.report.measured.model.parameters_trainable == 131_076_096
    assert answer.fits


def test_an_unknown_method_is_refused():
    with pytest.raises(ScenarioError, match="cannot train"):
        scenario_of(FitQuestion("gpt2", "1x a100-80gb", train="dora"))


def test_the_option_has_two_names(capsys):
    assert execute(["fit", "gpt2", "--on", "1x a100-80gb", "--train", "qlora", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert execute(["fit", "gpt2", "--on", "1x a100-80gb", "--train", "qlora", "--json"]) == 0
    two = json.loads(capsys.readouterr().out)
    assert one["scenario"] == two["scenario"]
    assert one["scenario"]["training"]["finetune"] == {"method": "qlora"}


@pytest.mark.parametrize("train", ["full", "lora", "qlora", "freeze"])
@pytest.mark.parametrize(
    ("optimizer", "total"),
    [("sgd", 8), ("momentum", 12), ("adam", 16), ("adamw", 16), ("adam-8bit", 10), ("adafactor", 8), ("lion", 12)],
)
def test_every_optimizer_is_answered(optimizer, total, train):
    """8-bit Adam and Adafactor print an approximate sum ("~10 B/parameter"); the states are counted from numbers, not from it."""
    answer = fit(FitQuestion("gpt2", "2x a100-80gb", train=train, optimizer=optimizer), alternatives=False)
    measured = answer.report.measured
    assert measured.memory.states.total == total
    if train == "full":
        states = format_bytes(total * measured.model.parameters // 2)
        assert f"model states alone: {states} per GPU" in text(answer)
    assert json.loads(json.dumps(document(answer)))["fits"]
