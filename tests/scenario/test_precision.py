"""Bytes per parameter of every precision preset.

Sources: ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1: 2+2+12 = 16 B with Adam); Megatron-LM's distributed
optimizer documentation (18 B: bf16 weights, fp32 gradients); PyTorch automatic mixed precision (fp32 weights and gradients).
"""

from __future__ import annotations

import pytest

from parsim.parallel.optimizer import MOMENTS
from parsim.parallel.training import Optimizer, Precision
from parsim.scenario import load
from parsim.scenario.precision import PRESETS, PrecisionKind, resolve, sum_text

MINIMAL = {"model": "gpt2", "cluster": "4x v100-32gb", "training": {"sequence_length": 1024, "global_batch": 8, "micro_batch": 1}}


def resident(precision: Precision, optimizer: str) -> int:
    return precision.parameters + precision.gradients + precision.master + MOMENTS[optimizer] * precision.optimizer_element


@pytest.mark.parametrize(
    ("preset", "adam", "momentum", "sgd", "casts", "matmul"),
    [
        ("fp32", 16, 12, 8, 0, "fp32"),
        ("tf32", 16, 12, 8, 0, "tf32"),
        ("amp-fp16", 16, 12, 8, 2, "fp16"),
        ("amp-bf16", 16, 12, 8, 2, "bf16"),
        ("fp16", 16, 12, 8, 0, "fp16"),
        ("bf16", 16, 12, 8, 0, "bf16"),
        ("fp16-fp32grad", 18, 14, 10, 0, "fp16"),
        ("bf16-fp32grad", 18, 14, 10, 0, "bf16"),
        ("pure-bf16", 8, 6, 4, 0, "bf16"),
        ("fp8", 18, 14, 10, 1, "fp8"),
    ],
)
def test_sums(preset: str, adam: int, momentum: int, sgd: int, casts: int, matmul: str) -> None:
    precision = PRESETS[preset]
    assert [resident(precision, name) for name in ("adamw", "momentum", "sgd")] == [adam, momentum, sgd]
    assert (precision.cached_casts, precision.matmul) == (casts, matmul)
    assert precision.reduce == precision.gradients


def test_the_presets_are_tested_completely() -> None:
    assert len(PRESETS) == 10


@pytest.mark.parametrize(
    ("preset", "optimizer", "text"),
    [
        ("bf16", "adamw", "2+2+4+8 = 16 B/parameter"),
        ("fp32", "adam", "4+4+8 = 16 B/parameter"),
        ("bf16-fp32grad", "adamw", "2+4+4+8 = 18 B/parameter"),
        ("pure-bf16", "adamw", "2+2+4 = 8 B/parameter"),
        ("amp-bf16", "adamw", "4+4+8 = 16 B/parameter (+2 cached)"),
        ("fp8", "adamw", "2+4+4+8 = 18 B/parameter (+1 cached)"),
        ("fp32", "sgd", "4+4+0 = 8 B/parameter"),
        ("bf16", "lion", "2+2+4+4 = 12 B/parameter"),
        ("bf16", "adam-8bit", "2+2+4+2 = ~10 B/parameter"),
        ("bf16", "adam-4bit", "2+2+4+1 = ~9 B/parameter"),
        ("bf16", "adam-mini", "2+2+4+4 = 12 B/parameter"),
        ("fp32", "adafactor", "4+4+0 = ~8 B/parameter"),
    ],
)
def test_texts(preset: str, optimizer: str, text: str) -> None:
    assert sum_text(PRESETS[preset], Optimizer(optimizer)) == text


def test_mappings_change_a_preset() -> None:
    kind = PrecisionKind()
    assert resolve(kind.check("auto"), "fp16") == PRESETS["fp16"]
    assert resolve(kind.check({"preset": "bf16"}), "fp16") == PRESETS["bf16"]
    custom = resolve(kind.check({"preset": "bf16", "gradients": "fp32", "optimizer": "bf16"}), "fp16")
    assert custom == Precision("custom", 2, 0, 4, 4, 2, 2, "bf16", 4)
    assert resolve(kind.check({"gradients": "fp32", "reduce": "bf16"}), "bf16").reduce == 2
    autocast = resolve(kind.check({"preset": "fp32", "matmul": "bf16", "activations": "bf16"}), "fp32")
    assert (autocast.cached_casts, autocast.parameters) == (2, 4)
    assert resolve(kind.check({"master": "none"}), "bf16").master == 0
    assert resolve(kind.check({"parameters": 4}), "bf16").cached_casts == 2


@pytest.mark.parametrize(
    "wrong", ["half-ish", "bfloat16", "amp", 16, None, [], {"x": 1}, {"gradients": 3}, {"matmul": "int8"}, {"parameters": True}]
)
def test_wrong_precisions(wrong: object) -> None:
    with pytest.raises(ValueError):
        PrecisionKind().check(wrong)


def test_merging_a_mapping_over_a_preset() -> None:
    scenario = load({**MINIMAL, "training": {**MINIMAL["training"], "precision": "bf16"}}, "training.precision.gradients=fp32")  # type: ignore[dict-item]
    assert resolve(scenario.settings.training.precision, "fp32") == Precision("custom", 2, 0, 4, 4, 4, 2, "bf16", 4)
