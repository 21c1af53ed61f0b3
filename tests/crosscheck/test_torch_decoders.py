"""Decoders of transformers, small, on the ``meta`` device: parameters, FLOP and saved bytes against parsim's."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from decoders import DECODERS, PARAMETERS, STEP
from small_models import SPECIAL
from test_torch_flop import BATCH, SEQUENCE, of_parsim, of_torch
from test_torch_saved import measured, workload
from torch_side import F, counterpart, flop, gpu_kernels, ids, module, parameters, saved_bytes, transformers

from parsim.kernel import Gemm
from parsim.model import activations
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload

SCANS = (
    "mamba", "mamba with other sizes", "falcon_mamba", "jamba", "jamba without experts", "qwen3_5_text", "qwen3_5_moe_text",
    "granitemoehybrid", "granitemoehybrid without experts", "bamba", "nemotron_h with experts", "falcon_h1", "falcon_h1 with a norm",
    "rwkv", "rwkv with other widths", "kimi_linear",
)  # fmt: skip
"""whose kernels transformers replaces by Python on this device"""
NOT_ON_META = ("dbrx", "openai-gpt")
"""their code looks at values"""
CONVOLVED = ("lfm2", "lfm2 with biases", "lfm2_moe")
"""whose convolutions the counter counts with the words before the first, and in backward without groups"""
CHOSEN = ("glm_moe_dsa", "glm_moe_dsa with shared indexers")
"""transformers computes all scores and masks those that were not chosen"""
APART = (
    "gemma4_text", "gemma4_text, values of their own", "gemma4_text, experts beside the MLP",
    "gemma4_text, per-layer inputs and shared keys", "gemma4_text, shared keys that are values",  # norms stand between the projections
    "stablelm of 12B", "dbrx", "qwen3_5_text", "qwen3_5_moe_text", "granitemoeshared", "granitemoe_swa", "granitemoehybrid",
    "granitemoehybrid without experts", "mamba", "mamba with other sizes", "falcon_mamba", "jamba", "jamba without experts",
    "afmoe", "kimi_linear",
)  # fmt: skip
"""where one of the two has a weight in several parts"""
NEARLY = {
    **dict.fromkeys(("gptj", "codegen", "gpt_neo"), 0.055),  # queries and keys are cast to fp32 before their product
    "persimmon": 0.04,  # queries, keys and values are copied apart
    "apertus": 0.035,  # xIELU keeps what ``where`` chose from
    "ernie4_5": 0.015,  # rotary positions in fp32
    "ernie4_5_moe": 0.01,
    "mimo_v2_flash": 0.016,  # sinks are a column of the scores, of which the largest is found and subtracted
    "axk1": 0.006,
    "modernbert-decoder": 0.008,  # tables of rotary positions for either kind of layer
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
    assert parameter_count(model) == parameters(built) == PARAMETERS[name]
    if name not in APART:
        found = [p.count for block in model.blocks for p in block.parameters() if not p.buffer and not p.tied]
        assert found == [parameter.numel() for parameter in built.parameters()]
    if name in (*SCANS, *NOT_ON_META, *CHOSEN, *CONVOLVED):
        return
    flop = of_torch(built, "eager", input_ids=ids(BATCH, SEQUENCE), labels=ids(BATCH, SEQUENCE))
    assert of_parsim(model, Workload(BATCH, SEQUENCE, attention="eager", dropout=float(str(model.facts["dropout"])))) == flop


@pytest.mark.parametrize("name", CONVOLVED)
def test_products_beside_short_convolutions(name: str) -> None:
    """FLOP of matrix products and attention, with a convolution that has none."""
    config = config_of(name)
    built, model, at = module(config, bits="bf16"), counterpart(config), Workload(BATCH, SEQUENCE, attention="eager")

    def convolve(source: Any, *, weight: Any, bias: Any, padding: int, groups: int) -> Any:
        assert (weight.shape[0], padding) == (groups, weight.shape[-1] - 1)
        longer = F.pad(source, (0, padding)) * weight[:, 0, :1]
        return longer if bias is None else longer + bias[:, None]

    with mock.patch.object(F, "conv1d", convolve):
        expected = of_torch(built, "eager", input_ids=ids(BATCH, SEQUENCE), labels=ids(BATCH, SEQUENCE))
    works = [operator.work(at) for block in model.blocks for operator in block.operators]
    products = [
        [k.flop for k in kernels if isinstance(k, Gemm)] for w in works for kernels in (w.forward, (*w.backward_input, *w.backward_weight))
    ]
    assert (sum(map(sum, products[::2])), sum(map(sum, products[1::2]))) == expected


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


@pytest.mark.parametrize("experts", [False, True])
def test_the_text_of_step_3_7(experts: bool) -> None:
    """Transformers has no class of it with a head, and its experts look at values: saved bytes are compared without them."""
    kind, device = transformers.Step3p7TextModel, "cpu" if experts else "meta"
    config = transformers.AutoConfig.for_model("step3p5", **SPECIAL, **{**STEP, **({} if experts else {"mlp_layer_types": ["dense"] * 4})})
    config.use_cache = False
    built, model = module(config, bits="bf16", kind=kind, device=device), counterpart(config, kind)
    found = [p.count for block in model.blocks for p in block.parameters() if not p.buffer and not p.tied]
    assert found == [parameter.numel() for parameter in built.parameters()]
    at = workload(model, "bf16", "eager", train=True)

    def run() -> Any:
        return built(input_ids=ids(at.batch, at.sequence, device)).last_hidden_state.sum()

    with gpu_kernels():
        forward, total = flop(run)
        backward, _ = flop(total.backward)
        saved = saved_bytes(run, built)
    assert of_parsim(model, at) == (forward, backward)
    if not experts:
        assert activations.saved_bytes(model, at) == pytest.approx(saved, rel=0.005)
