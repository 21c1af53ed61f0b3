"""report.flop_convention and training.tokens: what MFU counts, and how long a training takes."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import InputError
from parsim.model.flops import MODEL_CONVENTIONS
from parsim.report import Report
from parsim.report.definitions import explain
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.schema import FLOP_CONVENTIONS

PEAK = 312e12
LAYERS, CORE, HEAD = 169_869_312, 18_874_368, 77_194_752
"""forward FLOP per token of gpt2 at 1024 tokens: weights, half of the attention cores, head"""
TOKENS = 4 * 1024
"""of a step"""


def tree(convention: str = "palm", **training: Any) -> dict[str, Any]:
    recipe = {"sequence_length": 1024, "global_batch": 4, "micro_batch": 2, **training}
    return {
        "model": "gpt2",
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 2},
        "training": recipe,
        "parallel": {"data": {"strategy": "ddp"}},
        "report": {"flop_convention": convention},
    }


def run(convention: str = "palm", **training: Any) -> Report:
    return simulate(tree(convention, **training))


@pytest.mark.parametrize(
    ("convention", "flop"),
    [
        ("palm", 859_885_056),
        ("llm-foundry", 859_885_056),
        ("6n", 6 * 124_439_808),
        ("6n-non-embedding", 6 * (124_439_808 - 51_281 * 768)),
        ("megatron", 3 * (LAYERS + 2 * CORE + HEAD)),
        ("megatron-lm", 3 * (LAYERS + CORE + HEAD)),
        ("exact", 3 * 265_938_432),
        ("exact-full", 3 * (LAYERS + 2 * CORE + HEAD)),
    ],
)
def test_mfu_follows_the_convention(convention: str, flop: int) -> None:
    report = run(convention)
    document = report.document()
    assert document["model"]["flop_convention"] == convention
    assert document["model"]["flop_per_step"] == pytest.approx(flop * TOKENS, rel=1e-12)
    assert document["mfu"] == pytest.approx(flop * TOKENS / (report.step_time * 2 * PEAK), rel=1e-12)
    assert document["model_tflops_per_gpu"] == pytest.approx(flop * TOKENS / (report.step_time * 2) / 1e12, rel=1e-12)
    assert document["hfu"] == document["mfu"]


EXECUTED = 12 * 4 * 768 * 1025 / 2
"""the causal core as kernels execute it: (s + 1) / 2 keys per token"""


@pytest.mark.parametrize(
    ("convention", "ratio"),
    [
        ("palm", 1 + (LAYERS + EXECUTED) / 859_885_056),
        ("llm-foundry", 4 / 3),  # their table: HFU = 4/3 MFU with activation checkpointing
        ("6n", 1 + LAYERS / (6 * 124_439_808)),
        ("exact", 1 + (LAYERS + EXECUTED) / (3 * 265_938_432)),
        # 96 B s L h^2 (1 + s/6h + V/16Lh) over 72 B s L h^2 (1 + s/6h + V/12Lh), 2104.04473
        (
            "megatron",
            96 * (1 + 1024 / (6 * 768) + 50257 / (16 * 12 * 768)) / (72 * (1 + 1024 / (6 * 768) + 50257 / (12 * 12 * 768))),
        ),
        ("exact-full", 1 + (LAYERS + 2 * CORE) / (3 * (LAYERS + 2 * CORE + HEAD))),
    ],
)
def test_hfu_adds_full_recomputation_as_the_convention_counts_it(convention: str, ratio: float) -> None:
    report = run(convention, recompute="full", attention="flash2")
    assert report.hfu is not None
    assert report.mfu is not None
    assert report.hfu / report.mfu == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize(("convention", "again"), [("megatron", 2 * CORE), ("exact", EXECUTED), ("palm", EXECUTED), ("6n", 0)])
def test_hfu_of_selective_recomputation(convention: str, again: float) -> None:
    report = run(convention, recompute="selective", attention="flash2")
    model = report.measured.model
    assert (model.hardware_flop_per_step - model.flop_per_step) / TOKENS == pytest.approx(again, rel=1e-9)


def test_half_of_the_layers_recomputed() -> None:
    report = run("llm-foundry", recompute={"blocks": 6})
    assert report.measured.model.hardware_flop_per_step / report.measured.model.flop_per_step == pytest.approx(1 + 1 / 6, rel=1e-12)


def test_the_schema_offers_what_the_model_room_counts() -> None:
    assert set(FLOP_CONVENTIONS) == set(MODEL_CONVENTIONS)


@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
def test_a_formula_that_does_not_describe_the_model_is_refused(model: str) -> None:
    scenario = load({**tree("megatron"), "model": model})
    with pytest.raises(InputError, match="does not describe") as caught:
        build(scenario)
    (finding,) = caught.value.findings
    assert (finding.path, finding.value) == ("report.flop_convention", "megatron")
    assert "palm or exact" in finding.suggestion


def images(**more: Any) -> dict[str, Any]:
    return {
        "model": "resnet50",
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 1},
        "training": {"global_batch": 8, "micro_batch": 8, **more.pop("training", {})},
        **more,
    }


def test_models_without_tokens() -> None:
    assert simulate(images()).document()["model"]["flop_convention"] == "exact"
    with pytest.raises(InputError) as caught:
        build(load(images(training={"tokens": "1G"}, report={"flop_convention": "6n"})))
    assert sorted(finding.path for finding in caught.value.findings) == ["report.flop_convention", "training.tokens"]


def test_time_to_train() -> None:
    report = run(tokens="2T")
    document = report.document()
    assert document["time_to_train_s"] == pytest.approx(2e12 / TOKENS * report.step_time, rel=1e-12)
    assert document["gpu_hours"] == pytest.approx(2 * document["time_to_train_s"] / 3600, rel=1e-12)
    billed = 8 / 2 * document["gpu_hours"]  # two GPUs in use, but the machine of eight is paid
    assert document["cost"]["to_train"] == pytest.approx(document["cost"]["per_gpu_hour"] * billed, rel=1e-12)
    assert document["cost"]["price"]["example"]
    assert document["energy_J"] == pytest.approx(2e12 / TOKENS * document["energy_per_step_J"], rel=1e-12)


def test_nobody_asked_about_time() -> None:
    document = run().document()
    assert (document["time_to_train_s"], document["gpu_hours"]) == (None, None)


@pytest.mark.parametrize("metric", ["mfu", "hfu", "time_to_train_s", "gpu_hours"])
def test_they_are_defined(metric: str) -> None:
    assert explain(metric).formula
