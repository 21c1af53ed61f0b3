"""Shipped models by the structure of their network: files that differ in sizes only are one case for tests of structure."""

from __future__ import annotations

from dataclasses import astuple, fields, replace
from functools import cache
from typing import Any

from parsim.errors import ModelError
from parsim.model.catalogue import build_model, read_architecture
from parsim.model.model import Model
from parsim.model.transformer import TransformerConfig
from parsim.scenario import files

STRUCTURES = (
    "bert-base", "bloom-560m", "llama-3-8b", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "gemma-2-27b", "gemma-2-9b",
    "gemma-2b", "gemma-7b", "gpt-neox-20b", "gpt2", "gpt3-175b", "llama-2-7b", "llama-3.2-1b", "llama-3.2-3b", "mistral-7b",
    "mistral-7b-v0.3", "mixtral-8x7b", "mpt-125m", "mpt-7b", "opt-125m", "opt-350m", "phi-2", "phi-3-mini", "pythia-1b",
    "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-8b", "qwen3-30b-a3b", "qwen3-32b", "resnet50", "resnet18",
    "resnet34", "roberta-base", "vit-base", "vit-huge", "gpt-oss-20b", "llama-4-scout", "llama-4-maverick", "kimi-k2", "glm-4.5",
    "retnet-1.3b", "mamba2-2.7b", "mamba-codestral-7b", "qwen3-next-80b-a3b",
    "nemotron-h-8b", "alexnet", "qwen2-57b-a14b", "deepseek-v3.2",
    "command-r-35b", "falcon-40b", "falcon-7b", "gemma-3-12b", "gemma-3-1b", "glm-4-9b", "gpt-j-6b", "granite-3.3-8b", "minimax-m2",
    "olmo-2-13b", "olmo-2-32b", "smollm3-3b", "starcoder2-15b", "starcoder2-3b",
    "t5-base", "t5-3b", "bart-large", "whisper-large-v3", "distilbert-base", "modernbert-base",
    "mistral-small-24b", "olmo-2-1b", "qwen1.5-0.5b", "qwen1.5-7b", "qwen1.5-moe-a2.7b", "smollm2-1.7b", "olmoe-1b-7b",
    "gemma-4-e2b", "gemma-4-e2b-it", "gemma-4-e4b", "gemma-4-e4b-it",
    "gemma-4-31b", "gemma-4-26b-a4b", "gemma-4-31b-it", "gemma-4-26b-a4b-it",
    "gemma-3-4b-it", "llava-1.5-7b", "ministral-3-3b", "qwen2-vl-2b", "qwen2-vl-7b", "qwen2.5-vl-3b", "qwen2.5-vl-7b",
    "qwen3-vl-4b", "qwen3-vl-8b", "qwen3-vl-30b-a3b", "qwen3-vl-32b", "qwen3.5-0.8b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b",
    "chatglm2-6b", "deberta-v3-base", "grok-1", "nemotron-4-15b", "nemotron-h-47b", "nemotron-h-56b",
    "nemotron-nano-9b-v2", "nemotron-nano-12b-v2", "nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b",
)  # fmt: skip
"""one model of each structure"""
SIZES = {"hidden", "layers", "vocabulary", "maximum_sequence", "vocab_divisible_by", "token_types", "labels"}
"""fields of an architecture that are counted with and decide nothing"""


def look_up(name: str) -> dict[str, Any]:
    return files.read(files.find("models", name)).tree


@cache
def shipped(name: str) -> Model:
    return build_model(look_up(name), name=name, base_lookup=look_up)


def _flag(value: Any) -> Any:
    """Whether a size is there; words as they are."""
    return min(value, 1) if isinstance(value, int) else value


def structure(name: str) -> tuple[Any, ...]:
    """What decides which operators a model has, and which formulas apply to them."""
    try:
        config = read_architecture(look_up(name), base_lookup=look_up).resolved()
    except ModelError:  # no transformer: the operators of its distinct blocks
        return tuple(tuple((type(one).__name__, one.name) for one in block.operators) for block in dict.fromkeys(shipped(name).blocks))
    return astuple(_plain(config))


def _plain(config: TransformerConfig) -> TransformerConfig:
    """The architecture with its sizes as far as they decide something."""
    derived = {
        "heads": 0,
        "kv_heads": (config.kv_heads > 1) + (config.kv_heads == config.heads),
        "head_dim": config.head_dim * config.heads == config.hidden,
        "mlp": config.mlp == 4 * config.hidden,
        "embedding_width": config.embedding_width == config.hidden,
        "attention_window": config.attention_window > 0,
        "dropout": config.dropout > 0,
    }
    config = replace(config, **dict.fromkeys(SIZES, 0), **derived)
    if config.vision is not None:
        config = replace(config, vision=replace(_plain(config.vision.resolved()), image=None, layer_pattern=""))
    for name_ in ("experts", "latent", "encoder", "projector"):
        part = getattr(config, name_)
        if part is not None:
            flags = {field.name: _flag(getattr(part, field.name)) for field in fields(part)}
            config = replace(config, **{name_: replace(part, **flags)})
    return config
