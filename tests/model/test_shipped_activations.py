"""Bytes that shipped models keep for backward, against unique storages measured under PyTorch autograd and closed forms.

The measured figures are of Hugging Face's classes, parameters excluded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from parsim.model.activations import block_saved_bytes, saved_bytes
from parsim.model.catalogue import build_model
from parsim.model.model import Model
from parsim.model.workload import Workload
from parsim.scenario import files

MIB = 2**20
FP32 = {"element": 4, "dtype": "fp32"}


def look_up(name: str) -> dict[str, Any]:
    return files.read(files.find("models", name)).tree


@cache
def model(name: str, **changes: Any) -> Model:
    return build_model({"base": name, **changes}, name=name, base_lookup=look_up)


@pytest.mark.parametrize(
    ("batch", "sequence", "attention", "dropout", "measured"),
    [
        (32, 512, "eager", 0.0, 14_599_688_192),
        (32, 512, "eager", 0.1, 20_954_058_752),
        (32, 512, "mem-efficient", 0.0, 9_777_287_360),
        (32, 512, "mem-efficient", 0.1, 10_091_860_160),
        (1, 512, "eager", 0.1, 654_818_304),
        (1, 256, "eager", 0.1, 242_476_032),
    ],
)
def test_bert_base_in_fp32(batch: int, sequence: int, attention: str, dropout: float, measured: int) -> None:
    at = Workload(batch, sequence, attention=attention, dropout=dropout, **FP32)
    assert saved_bytes(model("bert-base", task="encoder"), at) == measured


def test_bert_base_in_bf16() -> None:
    assert saved_bytes(model("bert-base", task="encoder"), Workload(32, 512, dropout=0.1)) == 5_209_641_248


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({**FP32, "attention": "eager", "dropout": 0.1}, 21_183_569_924),
        ({**FP32, "attention": "mem-efficient", "dropout": 0.1}, 10_316_652_740),
        ({**FP32, "attention": "mem-efficient"}, 10_159_366_340),
        ({"dropout": 0.1}, 6_063_628_580),
        ({}, 5_906_342_180),
        ({"attention": "eager", "dropout": 0.1}, 12_098_707_460),
        ({"attention": "eager"}, 8_317_542_404),
    ],
)
def test_gpt2_of_8_x_1024_tokens(settings: dict[str, Any], measured: int) -> None:
    assert saved_bytes(model("gpt2"), Workload(8, 1024, **settings)) == measured


def test_llama_2_7b() -> None:
    assert saved_bytes(model("llama-2-7b"), Workload(1, 2048)) == 12_553_069_324


def test_llama_3_8b_with_copied_keys_and_values() -> None:
    assert saved_bytes(model("llama-3-8b", expand_key_value=True), Workload(1, 4096)) == 30_172_857_100


def test_vit_base() -> None:
    loss = 4 * 32 * 1000 + 8 * 32 + 4  # log-softmax, labels and weight: the measurement ended at the logits
    assert saved_bytes(model("vit-base"), Workload(32, 197, attention="mem-efficient", **FP32)) == 3_781_639_616 + loss


@pytest.mark.parametrize(
    ("name", "batch", "mib"),
    [("megatron-gpt-22b", 4, 6752), ("megatron-gpt-175b", 1, 2736), ("megatron-gpt-530b", 1, 3920), ("megatron-gpt-1t", 1, 4900)],
)
def test_megatron_layers_keep_34_sbh_and_the_scores(name: str, batch: int, mib: float) -> None:
    # sbh (34 + 5as/h): Korthikanti et al. 2022 (2205.05198), equation 1; layer-norm statistics are beyond it
    built = model(name)
    at = Workload(batch, 2048, attention="eager", dropout=0.1, fused=True)
    kept = block_saved_bytes(built.blocks[1], at) + 2 * at.tokens * built.hidden
    assert kept - 2 * 8 * at.tokens == mib * MIB


def test_every_shipped_transformer_runs_forward_and_backward() -> None:
    for name in files.names("models"):
        built = model(name)
        sequence = int(str(built.facts.get("sequence_length", 64))) if built.sequence else 1
        for attention in ("flash2", "eager"):
            assert saved_bytes(built, Workload(1, sequence, attention=attention, dropout=0.1)) > 0
