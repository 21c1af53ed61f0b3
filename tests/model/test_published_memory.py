"""Figures that circulate for memory, from parsim's models to the byte (or to the rounding of the figure)."""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any

import pytest

from parsim.model.activations import block_saved_bytes, saved_bytes
from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload
from parsim.run import simulate
from parsim.scenario import files, load

MIB, GIB = 2**20, 2**30
FP32: dict[str, Any] = {"element": 4, "dtype": "fp32", "weight_element": 4}


def look_up(name: str) -> dict[str, Any]:
    return files.read(files.find("models", name)).tree


@cache
def model(name: str, **changes: Any) -> Model:
    return build_model({"base": name, **changes}, name=name, base_lookup=look_up)


def test_llama_7b_by_the_formula_without_the_final_norm() -> None:
    """V H + L (4H^2 + 3 H H' + 2H) + H V misses the last norm's H weights."""
    assert parameter_count(model("llama-7b")) - 4096 == 6_738_411_520


def test_llama_65b_needs_five_v100_of_32_gb() -> None:
    weights = 2 * parameter_count(model("llama-65b"))
    assert weights == 130_571_321_344
    assert ceil(weights / 32e9) == 5


def test_13b_as_a_gelu_model_with_stored_scores() -> None:
    """sbh (34 + 5as/h) L for 1 x 1024 tokens, the whole training state with it, and "4M" tokens read as sequences of 1024."""
    gpt = build_model(
        {"family": "megatron-gpt", "hidden": 5120, "layers": 40, "heads": 40, "vocabulary": 32000}, name="13b", base_lookup=look_up
    )
    at = Workload(1, 1024, attention="eager", dropout=0.1, fused=True)
    layer = gpt.blocks[1]
    kept = block_saved_bytes(layer, at) + tape(layer, at).tensors["input"].bytes - 2 * 8 * at.tokens
    assert 40 * kept == 15_518_924_800
    states, ends = 16 * parameter_count(model("llama-13b")), 2 * 2 * 1024 * 5120
    assert states + ends + 40 * kept == 223_793_725_440
    assert round((states + ends + 40 * kept) / GIB, 4) == 208.4241
    assert 40 * kept * 4_000_000 / 1024 == 60_620_800_000_000


def test_13b_as_it_is_with_flash_attention() -> None:
    """T L (24h + 8f + 4a + 8), without 24 B of random state per layer: 8.9127 GiB."""
    layers = 40 * (block_saved_bytes(model("llama-2-13b").blocks[1], Workload(1, 1024)) - 24)
    assert layers == 9_569_894_400 == 1024 * 40 * (24 * 5120 + 8 * 13824 + 4 * 40 + 8)


@pytest.mark.parametrize(("sequence", "mib", "fitted"), [(512, 1056, 1070), (1024, 2329, 2346), (2560, 10034, 10045)])
def test_bert_of_one_sample_over_the_sequence(sequence: int, mib: int, fitted: int) -> None:
    """fp32 parameters with 2,560 positions, what training saves, and one cuBLAS workspace; a published fit says 1.5 % more at most."""
    bert = model("bert-base", task="encoder", maximum_sequence=2560)
    saved = saved_bytes(bert, Workload(1, sequence, attention="eager", dropout=0.1, **FP32))
    total = 4 * parameter_count(bert) + saved + 8_519_680
    assert round(total / MIB) == mib
    assert total / MIB == pytest.approx(fitted, rel=0.015)


def test_bert_inference_leaves_its_outputs() -> None:
    """32 x 512 in fp32: hidden states 48 MiB, pooled 0.09375, workspace 8.125."""
    bert = model("bert-base", task="encoder")
    tensors = tape(bert.blocks[-1], Workload(32, 512, backward=False, **FP32)).tensors
    assert (tensors["input"].bytes + tensors["pooler_activation"].bytes + 8_519_680) / MIB == 56.21875


def test_gpt2_states_and_activations() -> None:
    saved = saved_bytes(model("gpt2"), Workload(8, 1024, attention="mem-efficient", dropout=0.1, **FP32))
    assert 16 * parameter_count(model("gpt2")) + saved == 12_307_689_668


def test_the_peak_of_the_measured_mlp_without_workspaces() -> None:
    """360.2744140625 MiB on a GPU are 344.0244140625 without cuBLAS's two workspaces."""
    scenario = load(files.home("scenarios") / "mlp-1x-a100.yaml", "software.memory.workspace=0 B")
    assert simulate(scenario).document()["memory"]["peak_allocated_bytes"] / MIB == 344.0244140625
