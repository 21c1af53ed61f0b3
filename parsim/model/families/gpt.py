"""Decoders with LayerNorm: GPT-2 and Megatron's GPT, OPT, BLOOM, GPT-NeoX, Phi, MPT, BioGPT, XGLM.

Structure and key names follow the modelling and configuration files of huggingface/transformers
(``src/transformers/models/<model_type>``), MPT also mosaicml/llm-foundry; Megatron's GPT follows NVIDIA/Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import SIZES, Adjust, Family, Fields, words

_SIZES = {key: name for key, name in SIZES.items() if name != "mlp"}


def _drops_weights(key: str) -> Adjust:
    """Whether attention's weights are dropped, which `key` says; with 0.1 each where it is silent."""

    def adjust(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
        fields["attention_dropout"] = bool(tree.get(key, 0.1))
        return {key}

    return adjust


GPT2 = Family(
    name="gpt2",
    model_type="gpt2",
    structure={"activation": "gelu-new", "tied_embeddings": True, "dropout": 0.1, "maximum_sequence": 1024},
    keys={
        "n_embd": "hidden", "n_layer": "layers", "n_head": "heads", "n_inner": "mlp", "n_positions": "maximum_sequence",
        "vocab_size": "vocabulary", "activation_function": "activation", "resid_pdrop": "dropout",
        "tie_word_embeddings": "tied_embeddings",
    },
    stated={"scale_attn_weights": (True,), "add_cross_attention": (False,)},
    harmless=words(
        "n_ctx embd_pdrop scale_attn_by_inverse_layer_idx reorder_and_upcast_attn summary_activation summary_first_dropout "
        "summary_proj_to_labels summary_type summary_use_proj"
    ),
    adjust=_drops_weights("attn_pdrop"),
)  # fmt: skip

MEGATRON_GPT = Family(
    name="megatron-gpt",
    structure={"activation": "gelu", "tied_embeddings": True, "dropout": 0.1, "maximum_sequence": 2048},
)


def _opt(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    if not tree.get("do_layer_norm_before", True):
        fields |= {"norm_placement": "post", "final_norm": False}
    if tree.get("_remove_final_layer_norm"):
        fields["final_norm"] = False
    fields["attention_dropout"] = bool(tree.get("attention_dropout", 0.0))
    return {"do_layer_norm_before", "_remove_final_layer_norm", "attention_dropout"}


OPT = Family(
    name="opt",
    model_type="opt",
    structure={
        "upcast_softmax": True, "activation": "relu", "tied_embeddings": True, "dropout": 0.1, "attention_dropout": False,
        "embedding_dropout": False, "maximum_sequence": 2048, "position_offset": 2, "positions_per_sample": True,
        "fused_query_key_value": False,
    },
    registration=("query_key_value", "attention_output", "attention_norm", "mlp_up", "mlp_down", "mlp_norm"),
    keys={
        **_SIZES, "ffn_dim": "mlp", "word_embed_proj_dim": "embedding_width", "activation_function": "activation",
        "dropout": "dropout",
    },
    stated={
        "enable_bias": (True,), "layer_norm_elementwise_affine": (True,), "activation_dropout": (0.0, 0),
        "layerdrop": (0.0, 0),
    },
    harmless=frozenset({"init_std", "prefix"}),
    adjust=_opt,
)  # fmt: skip


def _bloom(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["attention_dropout"] = bool(tree.get("attention_dropout", 0.0))
    return {"attention_dropout"}


BLOOM = Family(
    name="bloom",
    model_type="bloom",
    structure={
        "upcast_softmax": True, "activation": "gelu", "tied_embeddings": True, "position": "alibi", "embedding_norm": True,
        "embedding_dropout": False, "maximum_sequence": 2048, "attention_dropout": False,
    },
    keys={
        **_SIZES, "n_embed": "hidden", "n_layer": "layers", "n_head": "heads", "seq_length": "maximum_sequence",
        "n_inner": "mlp", "hidden_dropout": "dropout",
    },
    stated={"apply_residual_connection_post_layernorm": (False,)},
    harmless=words(
        "slow_but_exact offset_alibi bias_dropout_fusion masked_softmax_fusion attention_softmax_in_fp32 skip_bias_add "
        "skip_bias_add_qkv unk_token_id"
    ),
    adjust=_bloom,
)  # fmt: skip


def _gpt_neox(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    if not tree.get("attention_bias", True):
        fields |= {"query_key_value_bias": False, "output_bias": False}
    fields["attention_dropout"] = bool(tree.get("attention_dropout", 0.0))
    return {"attention_bias", "attention_dropout"}


GPT_NEOX = Family(
    name="gpt-neox",
    model_type="gpt_neox",
    structure={
        "upcast_softmax": True, "activation": "gelu", "position": "rotary", "rotary_fraction": 0.25,
        "rotary_concatenates": True, "parallel_residual": True, "attention_dropout": False, "maximum_sequence": 2048,
    },
    registration=("attention_norm", "mlp_norm", "query_key_value", "attention_output", "mlp_up", "mlp_down"),
    keys={
        **SIZES, "hidden_act": "activation", "rotary_pct": "rotary_fraction", "use_parallel_residual": "parallel_residual",
        "hidden_dropout": "dropout",
    },
    harmless=frozenset({"rotary_emb_base", "is_decoder", "classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"}),
    adjust=_gpt_neox,
)  # fmt: skip

PHI = Family(
    name="phi",
    model_type="phi",
    structure={
        "upcast_softmax": True, "activation": "gelu-new", "position": "rotary", "rotary_fraction": 0.5,
        "rotary_concatenates": True, "parallel_residual": True, "shared_norm": True, "head_bias": True,
        "fused_query_key_value": False, "attention_dropout": False, "embedding_dropout": False, "maximum_sequence": 2048,
    },
    registration=("query_key_value", "attention_output", "mlp_up", "mlp_down", "attention_norm"),
    keys={
        **SIZES, "num_key_value_heads": "kv_heads", "hidden_act": "activation", "partial_rotary_factor": "rotary_fraction",
        "resid_pdrop": "dropout",
    },
    stated={"qk_layernorm": (False,)},
    harmless=frozenset({"embd_pdrop", "attention_dropout"}),
)  # fmt: skip


def _mpt(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["mlp"] = int((4 if tree.get("expansion_ratio") is None else tree["expansion_ratio"]) * tree["d_model"])
    attention = tree.get("attn_config") or {}
    fields["clip_query_key_value"] = attention.get("clip_qkv") is not None
    for key in ("qk_ln", "rope", "prefix_lm"):
        if attention.get(key):
            raise ModelError(Finding(f"attn_config.{key} is not supported yet for mpt", "attn_config", attention[key]))
    alibi = attention.get("alibi", False)
    learned = tree.get("learned_pos_emb", True) and not alibi
    fields["position"] = "alibi" if alibi else "learned" if learned else "none"
    fields["kv_heads"] = attention.get("kv_n_heads", 1 if attention.get("attn_type") == "multiquery_attention" else 0)
    fields["attention_dropout"] = bool(attention.get("attn_pdrop", 0.0))
    if tree.get("no_bias") is False:
        fields |= {"norm_bias": True, "query_key_value_bias": True, "output_bias": True, "mlp_bias": True}
    return {"expansion_ratio", "attn_config", "learned_pos_emb", "no_bias"}


MPT = Family(
    name="mpt",
    model_type="mpt",
    structure={
        "upcast_softmax": True, "activation": "gelu", "tied_embeddings": True, "norm_bias": False, "query_key_value_bias": False,
        "output_bias": False, "mlp_bias": False, "attention_dropout": False, "maximum_sequence": 2048,
    },
    registration=("attention_norm", "query_key_value", "attention_output", "mlp_norm", "mlp_up", "mlp_down"),
    keys={
        "d_model": "hidden", "n_heads": "heads", "n_layers": "layers", "max_seq_len": "maximum_sequence",
        "vocab_size": "vocabulary", "resid_pdrop": "dropout", "tie_word_embeddings": "tied_embeddings",
    },
    stated={"norm_type": ("low_precision_layernorm", "layernorm")},
    harmless=frozenset({"emb_pdrop", "init_config", "init_device", "logit_scale", "verbose", "embedding_fraction", "tokenizer_name"}),
    adjust=_mpt,
)  # fmt: skip


BIOGPT = OPT._replace(
    name="biogpt",
    model_type="biogpt",
    structure={
        **OPT.structure, "upcast_softmax": False, "activation": "gelu", "embedding_dropout": True, "attention_dropout": True,
        "maximum_sequence": 1024,
    },
    keys={**SIZES, "hidden_act": "activation", "hidden_dropout_prob": "dropout"},
    stated={"activation_dropout": (0.0, 0), "layerdrop": (0.0, 0)},
    harmless=words("scale_embedding"),
    adjust=_drops_weights("attention_probs_dropout_prob"),
)  # fmt: skip


XGLM = OPT._replace(
    name="xglm",
    model_type="xglm",
    structure={
        **OPT.structure, "upcast_softmax": False, "activation": "gelu", "position": "sinusoidal", "positions_computed": True,
        "positions_per_sample": False, "embedding_dropout": True, "attention_dropout": True, "bounded_scores": True,
    },
    keys={
        "d_model": "hidden", "num_layers": "layers", "attention_heads": "heads", "ffn_dim": "mlp", "vocab_size": "vocabulary",
        "max_position_embeddings": "maximum_sequence", "tie_word_embeddings": "tied_embeddings", "activation_function": "activation",
        "dropout": "dropout",
    },
    stated={"activation_dropout": (0.0, 0), "layerdrop": (0.0, 0), "add_cross_attention": (False,)},
    harmless=words("init_std scale_embedding"),
    adjust=_drops_weights("attention_dropout"),
)  # fmt: skip

FAMILIES = (GPT2, MEGATRON_GPT, OPT, BLOOM, GPT_NEOX, PHI, MPT, BIOGPT, XGLM)
