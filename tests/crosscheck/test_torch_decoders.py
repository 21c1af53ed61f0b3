"""Decoders of transformers, small, on the ``meta`` device: parameters, FLOP and saved bytes against parsim's."""

from __future__ import annotations

from typing import Any

import pytest
from decoders import DECODERS, PARAMETERS
from small_models import SPECIAL
from test_torch_flop import BATCH, SEQUENCE, of_parsim, of_torch
from test_torch_saved import measured, workload
from torch_side import counterpart, ids, module, transformers

from parsim.model import activations
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload

SCANS = (
    "mamba", "mamba with other sizes", "falcon_mamba", "jamba", "jamba without experts", "qwen3_5_text", "qwen3_5_moe_text",
    "granitemoehybrid", "granitemoehybrid without experts", "bamba", "nemotron_h with experts", "falcon_h1", "falcon_h1 with a norm",
    "rwkv", "rwkv with other widths",
)  # fmt: skip
"""whose kernels transformers replaces by Python on this device"""
NOT_ON_META = ("dbrx", "openai-gpt")
"""their code looks at values"""
CHOSEN = ("glm_moe_dsa",)
"""transformers computes all scores and masks those that were not chosen"""
APART = (
    "gemma4_text", "gemma4_text, values of their own", "gemma4_text, experts beside the MLP",
    "gemma4_text, per-layer inputs and shared keys", "gemma4_text, shared keys that are values",  # norms stand between the projections
    "stablelm of 12B", "dbrx", "qwen3_5_text", "qwen3_5_moe_text", "granitemoeshared", "granitemoehybrid",
    "granitemoehybrid without experts", "mamba", "mamba with other sizes", "falcon_mamba", "jamba", "jamba without experts",
)  # fmt: skip
"""where one of the two has a weight in several parts"""
NEARLY = {
    **dict.fromkeys(("gptj", "codegen", "gpt_neo"), 0.055),  # queries and keys are cast to fp32 before their product
    "persimmon": 0.04,  # queries, keys and values are copied apart
    "apertus": 0.035,  # xIELU keeps what ``where`` chose from
    "ernie4_5": 0.015,  # rotary positions in fp32
    "ernie4_5_moe": 0.01,
    "solar_open": 0.006,  # choosing groups of experts keeps indices and a mask
}
"""how far saved bytes may be off where the hidden size is 64; others by 0.5 %: masks of windows, casts of routers' weights"""


def config_of(name: str, **changes: Any) -> Any:
    kind, values = DECODERS[name]
    return transformers.AutoConfig.for_model(kind, **{**SPECIAL, **values, **changes})


@pytest.mark.parametrize("name", DECODERS)
def test_parameters_and_flop(name: str) -> None:
    """Parameters in their order, which DistributedDataParallel's buckets follow."""
    config = config_of(name)
    built = module(config, bits="bf16")
    model = counterpart(config)
    trained = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    assert parameter_count(model) == trained == PARAMETERS[name]
    if name not in APART:
        found = [p.count for block in model.blocks for p in block.parameters() if not p.buffer and not p.tied]
        assert found == [parameter.numel() for parameter in built.parameters() if parameter.requires_grad]
    if name in (*SCANS, *NOT_ON_META, *CHOSEN):
        return
    flop = of_torch(built, "eager", input_ids=ids(BATCH, SEQUENCE), labels=ids(BATCH, SEQUENCE))
    assert of_parsim(model, Workload(BATCH, SEQUENCE, attention="eager", dropout=float(str(model.facts["dropout"])))) == flop


@pytest.mark.parametrize("name", [name for name in DECODERS if " with" not in name and name not in (*SCANS, *NOT_ON_META, *CHOSEN)])
def test_saved_bytes_of_eager_attention(name: str) -> None:
    config = config_of(name)
    config.use_cache = False
    model = counterpart(config)
    predicted = activations.saved_bytes(model, workload(model, "bf16", "eager", train=True))
    assert predicted == pytest.approx(measured(config, "bf16", "eager", train=True), rel=NEARLY.get(config.model_type, 0.005))


@pytest.mark.parametrize("attention", ["mem-efficient", "flash2"])
@pytest.mark.parametrize("name", ["gemma4_text, per-layer inputs and shared keys", "gemma4_text, shared keys that are values"])
def test_saved_bytes_of_shared_keys_under_fused_attention(name: str, attention: str) -> None:
    """Keys and values are kept by the layer that makes them; windows longer than the samples need no mask."""
    config = config_of(name, sliding_window=64)
    config.use_cache = False
    model = counterpart(config)
    predicted = activations.saved_bytes(model, workload(model, "bf16", attention, train=True))
    assert predicted == measured(config, "bf16", attention, train=True)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("olmo2", "Olmo2ForSequenceClassification"),
        ("gptj", "GPTJForSequenceClassification"),
        ("gptj", "GPTJForQuestionAnswering"),
        ("gpt_neo", "GPTNeoForTokenClassification"),
        ("gpt_bigcode", "GPTBigCodeForSequenceClassification"),
        ("falcon", "FalconForTokenClassification"),
        ("falcon", "FalconForQuestionAnswering"),
        ("gemma3_text", "Gemma3TextForSequenceClassification"),
        ("gemma3_text", "Gemma3TextModel"),
        ("starcoder2", "Starcoder2Model"),
        ("stablelm", "StableLmForTokenClassification"),
        ("glm4", "Glm4ForTokenClassification"),
    ],
)
def test_heads_of_decoders(name: str, head: str) -> None:
    config = config_of(name, num_labels=2 if head.endswith("QuestionAnswering") else 5)
    kind = getattr(transformers, head)
    assert parameter_count(counterpart(config, kind)) == sum(p.numel() for p in module(config, kind=kind).parameters())
