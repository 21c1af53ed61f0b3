"""Bytes that autograd saves in real modules (each storage once, parameters and buffers left out) against parsim's prediction.

With the kernels of a GPU (see `torch_side`) on the ``meta`` device; equal to the byte where nothing is said. What differs is said
and bounded.
"""

from __future__ import annotations

from typing import Any

import pytest
from small_models import LANGUAGE, MIXTURES, small
from torch_side import counterpart, gpu_kernels, ids, module, saved_bytes, torch, transformers

from parsim.model import activations
from parsim.model.catalogue import build_model
from parsim.model.model import Model
from parsim.model.workload import Workload
from parsim.scenario import files

BATCH, SEQUENCE = 3, 32
EAGER_ONLY = ("bloom", "mpt", "gemma2")
"""transformers has no scaled_dot_product_attention for them"""
NEARLY = {
    "mpt": "the mask is a boolean tensor that masked_fill keeps, b s^2 bytes once per model",
    "qwen2-moe": "the chosen experts' weights are cast to 16 bit: 2 B instead of 4 per choice",
    "qwen3-moe": "the same",
    "deepseek-v2": "the same",
    "deepseek-v3": "choosing groups of experts first keeps its own indices and mask, about E + 40 B per token",
}
"""within 0.5 % here, where the hidden size is 64; the difference does not grow with it"""


def measured(config: Any, bits: str, attention: str, train: bool, batch: int = BATCH, sequence: int = SEQUENCE) -> int:
    built = module(config, bits=bits, attention=attention, train=train)
    words, labels = ids(batch, sequence), ids(batch, sequence)
    inputs: dict[str, Any] = {}
    if config.model_type in ("bert", "roberta"):  # token types that are not given are copied from a buffer
        inputs["token_type_ids"] = words
    if config.model_type == "bert":  # positions that are not given are a buffer
        inputs["position_ids"] = torch.arange(sequence, device="meta")[None]
    with gpu_kernels(attention):
        return saved_bytes(lambda: built(input_ids=words, labels=labels, **inputs), built)


def workload(model: Model, bits: str, attention: str, train: bool, batch: int = BATCH, sequence: int = SEQUENCE) -> Workload:
    element = 4 if bits == "fp32" else 2
    dropout = float(str(model.facts["dropout"])) if train else 0.0
    return Workload(batch, sequence, element=element, dtype=bits, weight_element=element, attention=attention, dropout=dropout)


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    ("bits", "attention"),
    [("fp32", "eager"), ("bf16", "eager"), ("fp32", "mem-efficient"), ("bf16", "mem-efficient"), ("bf16", "flash2")],
)
@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_with_their_loss(name: str, bits: str, attention: str, train: bool) -> None:
    if attention != "eager" and name in EAGER_ONLY:
        pytest.skip("transformers runs it with eager attention only")
    if name in MIXTURES and bits == "fp32":
        pytest.skip("grouped products on the meta device are 16-bit")
    if attention == "flash2" and name.startswith("deepseek"):
        pytest.skip("the flash kernel needs values as wide as keys")
    config = small(name)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = counterpart(config)
    expected = measured(config, bits, attention, train)
    predicted = activations.saved_bytes(model, workload(model, bits, attention, train))
    assert predicted == (pytest.approx(expected, rel=0.005) if name in NEARLY else expected)


@pytest.mark.parametrize("name", LANGUAGE)
def test_bytes_are_linear_in_the_batch_and_quadratic_in_the_sequence(name: str) -> None:
    """So that small sizes speak for large ones: eager attention in training, second differences."""
    config = small(name)
    bits = "bf16" if name in MIXTURES else "fp32"
    model = counterpart(config)

    def of(batch: int, sequence: int) -> tuple[int, int]:
        settings = (bits, "eager", True, batch, sequence)
        return measured(config, *settings), activations.saved_bytes(model, workload(model, *settings))

    grid = {(b, s): of(b, s) for b, s in ((2, 8), (3, 8), (4, 8), (2, 16), (2, 24), (2, 32))}
    for side in (0, 1):
        assert grid[4, 8][side] - grid[3, 8][side] == grid[3, 8][side] - grid[2, 8][side]
        first, second, third = (grid[2, s + 8][side] - grid[2, s][side] for s in (8, 16, 24))
        assert third - second == second - first
    if name not in NEARLY:
        assert all(real == predicted for real, predicted in grid.values())


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("bits", "attention"), [("fp32", "eager"), ("fp32", "mem-efficient"), ("bf16", "flash2")])
def test_vision_transformer(bits: str, attention: str, train: bool) -> None:
    config = small("vit")
    built, model = module(config, bits=bits, attention=attention, train=train), counterpart(config)
    pixels = torch.zeros(BATCH, 3, 32, 32, device="meta", dtype=built.dtype)
    labels = torch.zeros(BATCH, dtype=torch.int64, device="meta")
    with gpu_kernels(attention):
        expected = saved_bytes(lambda: built(pixel_values=pixels, labels=labels), built)
    assert activations.saved_bytes(model, workload(model, bits, attention, train, sequence=17)) == expected


@pytest.mark.parametrize(
    ("name", "batch", "sequence", "bits", "attention", "known"),
    [
        ("gpt2", 8, 1024, "fp32", "eager", 21_183_569_924),
        ("gpt2", 8, 1024, "bf16", "flash2", 6_063_628_580),
        ("llama-2-7b", 1, 2048, "bf16", "flash2", 12_553_069_324),
        ("llama-3-8b", 1, 4096, "bf16", "flash2", None),
        ("bert-base", 32, 512, "fp32", "eager", None),
        ("pythia-6.9b", 1, 2048, "bf16", "flash2", None),
        ("opt-6.7b", 1, 2048, "bf16", "flash2", None),
        ("gemma-7b", 1, 2048, "bf16", "flash2", None),
        ("gemma-2-9b", 1, 2048, "bf16", "eager", None),
        ("qwen3-8b", 1, 2048, "bf16", "flash2", None),
        ("phi-2", 1, 2048, "bf16", "flash2", None),
        ("mixtral-8x7b", 1, 2048, "bf16", "flash2", None),
        ("qwen3-30b-a3b", 1, 2048, "bf16", "flash2", None),
        ("deepseek-v2-lite", 1, 2048, "bf16", "mem-efficient", None),
        ("deepseek-v3", 1, 2048, "bf16", "mem-efficient", None),
    ],
)
def test_published_sizes(name: str, batch: int, sequence: int, bits: str, attention: str, known: int | None) -> None:
    config, model = _published(name)
    expected = measured(config, bits, attention, True, batch, sequence)
    predicted = activations.saved_bytes(model, workload(model, bits, attention, True, batch, sequence))
    nearly = name in ("qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3")
    assert predicted == (pytest.approx(expected, rel=0.001) if nearly else expected)
    assert known in (None, predicted)


def look_up(word: str) -> dict[str, Any]:
    return files.read(files.find("models", word)).tree


def _published(name: str) -> tuple[Any, Model]:
    """transformers' configuration with the sizes of a shipped model, and that model."""
    model = build_model({"base": name}, name=name, base_lookup=look_up)
    facts: dict[str, Any] = dict(model.facts)
    tree = look_up(name)
    experts, latent = dict(tree.get("experts") or {}), dict(tree.get("latent") or {})
    common = {
        "hidden_size": model.hidden, "num_hidden_layers": model.layers, "num_attention_heads": model.heads, "vocab_size": model.vocabulary,
        "max_position_embeddings": model.maximum_sequence, "intermediate_size": facts["mlp"],
        "tie_word_embeddings": facts["tied_embeddings"], "use_cache": False, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    grouped = {**common, "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim}
    moe = {"num_experts_per_tok": experts.get("top_k"), "moe_intermediate_size": experts.get("mlp"), "norm_topk_prob": True}
    low_rank = {
        "q_lora_rank": latent.get("query_rank") or None, "kv_lora_rank": latent.get("key_rank"), "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": experts.get("count"),
        "n_shared_experts": experts.get("shared", 0) // (experts.get("mlp") or 1), "first_k_dense_replace": experts.get("dense_layers"),
        "num_key_value_heads": model.heads,
    }  # fmt: skip
    made: dict[str, Any] = {
        "gpt2": lambda: transformers.GPT2Config(
            n_embd=model.hidden, n_layer=model.layers, n_head=model.heads, vocab_size=model.vocabulary, use_cache=False
        ),
        "llama": lambda: transformers.LlamaConfig(**grouped),
        "bert": lambda: transformers.BertConfig(**common),
        "gpt-neox": lambda: transformers.GPTNeoXConfig(**common),
        "opt": lambda: transformers.OPTConfig(**common, ffn_dim=facts["mlp"], word_embed_proj_dim=model.hidden),
        "gemma": lambda: transformers.GemmaConfig(**grouped),
        "gemma2": lambda: transformers.Gemma2Config(**grouped),
        "qwen3": lambda: transformers.Qwen3Config(**grouped),
        "phi": lambda: transformers.PhiConfig(**common, partial_rotary_factor=0.4, resid_pdrop=0.1),
        "mixtral": lambda: transformers.MixtralConfig(**grouped),
        "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**grouped, **moe, num_experts=experts["count"]),
        "deepseek-v2": lambda: transformers.DeepseekV2Config(**common, **{**moe, "norm_topk_prob": False}, **low_rank),
        "deepseek-v3": lambda: transformers.DeepseekV3Config(**common, **moe, **low_rank, n_group=8, topk_group=4),
    }
    return made[str(facts["family"])](), model


# --- written layer by layer -------------------------------------------------------------------------------------------


def mlp(activation: str) -> tuple[Any, Model]:
    between = {"": [], "relu": [torch.nn.ReLU()], "gelu": [torch.nn.GELU()]}[activation]
    with torch.device("meta"):
        built = torch.nn.Sequential(
            torch.nn.Linear(1024, 1024), *between, torch.nn.Linear(1024, 1024), *between, torch.nn.Linear(1024, 2048)
        )
    words = [activation] if activation else []
    layers: list[Any] = [{"linear": {"out": 1024}}, *words, {"linear": {"out": 1024}}, *words, {"linear": {"out": 2048}}]
    return built, build_model(
        {"input": {"shape": [1024], "dtype": "fp32"}, "layers": layers}, name="mlp", base_lookup=lambda _: {}, loss="sum"
    )


@pytest.mark.parametrize("bits", ["fp32", "bf16"])
@pytest.mark.parametrize(("activation", "mib"), [("", 120), ("relu", 120), ("gelu", 200)])
def test_multi_layer_perceptron(activation: str, mib: int, bits: str) -> None:
    """10,240 rows: each linear layer keeps its input; ReLU's output is the next one's, GELU keeps its own."""
    built, model = mlp(activation)
    built = built.to(torch.float32 if bits == "fp32" else torch.bfloat16)
    rows = torch.zeros(10240, 1024, device="meta", dtype=next(built.parameters()).dtype)
    element = rows.element_size()
    expected = saved_bytes(lambda: built(rows).sum(), built)
    assert expected == mib * 2**20 * element // 4
    at = Workload(10240, element=element, dtype=bits, weight_element=element)
    assert activations.saved_bytes(model, at) == expected


@pytest.mark.parametrize("depth", ["resnet18", "resnet50"])
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_residual_networks(depth: str, train: bool) -> None:
    """fp32, 224 x 224; transformers' ResNet has the operators of torchvision's. Its activations do not work in place."""
    shape = {
        "resnet18": {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"},
        "resnet50": {"depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048], "layer_type": "bottleneck"},
    }[depth]
    config = transformers.ResNetConfig(**shape, num_labels=1000)
    with torch.device("meta"):
        built = transformers.ResNetForImageClassification._from_config(config).train(train)
    pixels = torch.zeros(4, 3, 224, 224, device="meta")
    expected = saved_bytes(lambda: built(pixel_values=pixels).logits.sum(), built)  # noqa: PLW0108 - runs under the hooks
    model = build_model({"base": depth}, name=depth, base_lookup=look_up, loss="sum")
    predicted = activations.saved_bytes(model, Workload(4, element=4, dtype="fp32", weight_element=4))
    assert predicted == expected
