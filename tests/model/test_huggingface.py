"""Public Hugging Face configs become the architectures of the catalogue; what is not understood is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parsim.errors import ModelError
from parsim.model.catalogue import build_model, read_architecture
from parsim.model.huggingface import read_config
from parsim.model.parameter_counts import parameter_count
from parsim.scenario import files

CONFIGS = Path(__file__).parent.parent / "data" / "hf"
CATALOGUE = {
    "bert-base-uncased": "bert-base",
    "mistral-7b-v0.1": "mistral-7b",
    "bloom": "bloom-176b",
}


def config(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return tree


def look_up(name: str) -> dict[str, Any]:
    return files.read(files.find("models", name)).tree


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_config_and_catalogue_are_the_same_architecture(name: str) -> None:
    shipped = read_architecture(look_up(CATALOGUE.get(name, name)), base_lookup=look_up)
    text = replace(read_config(config(name)), vision=None, projector=None)  # catalogue files of Llama 4 are its text
    assert text.resolved() == shipped.resolved()


def test_the_class_decides_the_head() -> None:
    tree = {**config("bert-base-uncased"), "architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    assert parameter_count(build_model(tree, name="bert", base_lookup=look_up)) == 109_482_240 + 3 * 769


def test_qwen2_moe_has_a_gated_shared_expert() -> None:
    # Qwen/Qwen1.5-MoE-A2.7B
    tree = {
        "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21, "moe_intermediate_size": 1408,
        "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "decoder_sparse_step": 1, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
        "use_sliding_window": False, "tie_word_embeddings": False, "vocab_size": 151936,
    }  # fmt: skip
    assert parameter_count(build_model(tree, name="qwen", base_lookup=look_up)) == 14_315_784_192


def test_changes_apply_to_a_config_used_as_base() -> None:
    trees = {"mine": config("llama-7b")}
    built = build_model({"base": "mine", "layers": 2, "dropout": 0.1}, name="two", base_lookup=trees.__getitem__)
    assert built.layers == 2
    assert built.facts["dropout"] == 0.1


def test_unknown_model_type_names_the_known_ones() -> None:
    with pytest.raises(ModelError) as caught:
        read_config({**config("llama-7b"), "model_type": "llama5"})
    assert "architecture 'llama5' is not known" in str(caught.value)
    assert "did you mean" not in str(caught.value)
    assert "bloom, camembert" in str(caught.value)


def test_an_unread_key_is_named() -> None:
    with pytest.raises(ModelError) as caught:
        read_config({**config("llama-7b"), "num_memory_layers": 4, "hyper_connections": 2})
    assert [finding.path for finding in caught.value.findings] == ["model.num_memory_layers", "model.hyper_connections"]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("llama-7b", {"hidden_size": None}, "hidden_size is required"),
        ("llama-7b", {"hidden_act": "mish"}, "model.activation"),
        ("llama-7b", {"architectures": ["LlamaForMaskedLM"]}, "not supported yet"),
        ("bert-base-uncased", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("bert-base-uncased", {"architectures": ["BertForMultipleChoice"]}, "not supported yet"),
        ("bert-base-uncased", {"model_type": "albert"}, "all layers share one set of weights"),
        ("bart-large", {"architectures": ["BartModel"]}, "'encoder' of an encoder-decoder is not supported yet"),
        ("bart-large", {"encoder_layerdrop": 0.1}, "encoder_layerdrop"),
        ("modernbert-base", {"global_attn_every_n_layers": "three"}, "must be a whole number"),
        ("t5-base", {"num_layers": "many"}, "must be a whole number"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "not supported yet"),
        ("phi-2", {"qk_layernorm": True}, "qk_layernorm"),
        ("qwen2.5-7b", {"layer_types": ["linear_attention"], "use_sliding_window": True}, "linear_attention are not supported yet"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [3]}, "mlp_only_layers"),
        ("mpt-7b", {"attn_config": {"alibi": True, "qk_ln": True}}, "qk_ln"),
        ("nemotron-h-8b", {"hybrid_override_pattern": None, "layers_block_type": ["conv"] * 52}, "kind conv are not supported yet"),
        ("retnet-1.3b", {"num_kv_heads": 2}, "retention with shared keys"),
        ("retnet-1.3b", {"attn": {"layers": [3], "num_heads": 8}}, "attn"),
        ("mamba-codestral-7b", {"expand": 3}, "8192 is not expand x hidden_size = 3 x 4096"),
        ("qwen3-next-80b-a3b", {"layer_types": ["chunked_attention"] * 48}, "chunked_attention are not supported yet"),
        ("llama-7b", {"num_key_value_heads": 5}, "32 / 5"),
        ("llama-7b", {"architectures": 7}, "must be a list of texts, is 7"),
        ("llama-7b", {"architectures": [7]}, "must be a list of texts"),
        ("llama-7b", {"hidden_act": ["silu"]}, "is ['silu']"),
        ("llama-7b", {"hidden_act": {"name": "silu"}}, "model.activation"),
        ("llama-7b", {"model_type": ["llama"]}, "not supported yet"),
        ("llama-7b", {"hidden_size": 10**12}, "must be at most 1,000,000,000"),
        ("llama-7b", {"attention_bias": "yes"}, "must be true or false"),
        ("mistral-7b-v0.1", {"sliding_window": "wide"}, "must be a whole number, is 'wide'"),
        ("mistral-7b-v0.1", {"sliding_window": -4}, "must be a whole number"),
        ("mistral-7b-v0.1", {"num_hidden_layers": {}, "max_window_layers": 2}, "must be a whole number, is {}"),
        ("mistral-7b-v0.1", {"num_hidden_layers": 10**9, "max_window_layers": 2}, "1,000,000,000 layers: at most 100,000"),
        ("gemma-2-9b", {"layer_types": 7}, "must be a list of texts"),
        ("mpt-7b", {"expansion_ratio": "four"}, "must be a number"),
        ("mpt-7b", {"expansion_ratio": math.nan}, "must be a number"),
        ("mpt-7b", {"attn_config": [1]}, "must be a mapping"),
        ("vit-base", {"id2label": 7}, "must be a mapping"),
        ("deepseek-v3", {"n_shared_experts": "one"}, "must be a whole number"),
    ],
)
def test_what_cannot_be_modelled_is_refused(name: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_config({**config(name), **change})
    assert words in str(caught.value)


def test_layer_types_of_new_configs() -> None:
    tree = config("gemma-2-9b")
    tree["layer_types"] = ["sliding_attention", "full_attention"] * 21
    assert read_config(tree) == read_config(config("gemma-2-9b"))
    tree["layer_types"][4] = "full_attention"
    assert [read_config(tree).kind(layer).window for layer in range(6)] == [4096, 0, 4096, 0, 0, 0]
