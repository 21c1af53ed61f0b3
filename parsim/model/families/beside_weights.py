"""Decoders whose code lies beside their weights, not in huggingface/transformers: the Llama line under other names, with other keys.

Structure and key names follow ``configuration_*.py`` and ``modeling_*.py`` of these repositories on huggingface.co:
baichuan-inc/Baichuan2-7B-Base and -13B-Base, internlm/internlm-7b and internlm2-7b, Qwen/Qwen-7B, THUDM/chatglm3-6b,
LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct, openbmb/MiniCPM-2B-sft-bf16, deepseek-ai/deepseek-moe-16b-base, inclusionAI/Ling-lite;
fla-org/flash-linear-attention ``fla/models/transformer``. Heads that norm their weights (Baichuan 2, Ling) count without that norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import SIZES, Family, Fields, words
from parsim.model.families.llama import BIASES, EXPERT_REGISTRATION, ROUTER, STRUCTURE, member
from parsim.model.families.readers import biases, shared_experts, windows

_FUSED = {"fused_query_key_value": True}


def _baichuan(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The 7B models have rotary positions and say how many (``max_position_embeddings``), the 13B models ALiBi and ``model_max_length``."""
    if tree.get("max_position_embeddings") is None:
        fields["position"] = "alibi"
        fields["maximum_sequence"] = int(tree.get("model_max_length") or 4096)
    return {"model_max_length"}


BAICHUAN = member("baichuan", _FUSED, adjust=_baichuan)
INTERNLM = member("internlm", {}, harmless=words("rotary"), adjust=biases("bias", "query_key_value_bias output_bias", usual=True))
INTERNLM2 = member("internlm2", _FUSED, adjust=biases("bias", "query_key_value_bias output_bias", usual=True))


def _internlm3(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The first files say bias and qkv_bias, transformers' class attention_bias and mlp_bias."""
    if tree.get("bias") is not None:
        fields |= {"output_bias": bool(tree["bias"]), "mlp_bias": bool(tree["bias"])}
    if tree.get("qkv_bias") is not None:
        fields["query_key_value_bias"] = bool(tree["qkv_bias"])
    return {"bias", "qkv_bias"}


INTERNLM3 = member(
    "internlm3",
    {},
    {**BIASES, "mlp_bias": "mlp_bias"},
    adjust=_internlm3,
)


def _qwen(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """``intermediate_size`` is of gate and up together; biases are those of queries, keys and values, with no_bias false of all."""
    fields["mlp"] = int(fields["mlp"]) // 2
    fields |= dict.fromkeys(("output_bias", "mlp_bias"), tree.get("no_bias") is False)
    return {"no_bias"}


QWEN = Family(
    name="qwen",
    model_type="qwen",
    structure={**STRUCTURE, **_FUSED, "query_key_value_bias": True},
    registration=("attention_norm", "query_key_value", "attention_output", "mlp_norm", "mlp_up", "mlp_down"),
    keys={**SIZES, "kv_channels": "head_dim", "seq_length": "maximum_sequence"},
    stated={"rotary_pct": (1, 1.0), "scale_attn_weights": (True,)},
    harmless=words("attn_dropout_prob emb_dropout_prob onnx_safe"),
    adjust=_qwen,
)


def _chatglm(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """ChatGLM2 and its successors; keys and values have groups where multi_query_attention says so."""
    fields["kv_heads"] = int(tree.get("multi_query_group_num") or 1) if tree.get("multi_query_attention") else 0
    fields["query_key_value_bias"] = bool(tree.get("add_qkv_bias") or tree.get("add_bias_linear"))
    fields |= dict.fromkeys(("output_bias", "mlp_bias"), tree.get("add_bias_linear") is not False)
    fields["final_norm"] = tree.get("post_layer_norm") is not False
    return {"multi_query_group_num", "multi_query_attention", "add_qkv_bias", "add_bias_linear", "post_layer_norm"}


CHATGLM = Family(
    name="chatglm",
    model_type="chatglm",
    structure={**STRUCTURE, **_FUSED, "fused_gate_up": True, "rotary_fraction": 0.5, "rotary_concatenates": True},
    registration=("attention_norm", "query_key_value", "attention_output", "mlp_norm", "mlp_up", "mlp_down"),
    keys={
        "hidden_size": "hidden", "num_layers": "layers", "num_attention_heads": "heads", "ffn_hidden_size": "mlp",
        "kv_channels": "head_dim", "padded_vocab_size": "vocabulary", "seq_length": "maximum_sequence",
        "tie_word_embeddings": "tied_embeddings", "hidden_dropout": "dropout",
    },
    stated={
        "rmsnorm": (True,), "apply_residual_connection_post_layernorm": (False,), "prefix_projection": (False,), "pre_seq_len": (),
        "position_encoding_2d": (False,),
    },
    harmless=words("vocab_size num_hidden_layers attention_dropout classifier_dropout fp32_residual_connection quantization_bit"),
    adjust=_chatglm,
    classes={"ChatGLMModel": "causal-lm", "ChatGLMForConditionalGeneration": "causal-lm"},
)  # fmt: skip
EXAONE = member(
    "exaone",
    {"maximum_sequence": 2048},
    {"num_layers": "layers", "activation_function": "activation"},
    ("attention_norm", "query_key_value", "attention_output", "mlp_norm", "mlp_up", "mlp_down"),
    harmless=words("embed_dropout"),
)
MINICPM = member(
    "minicpm",
    {"scale_residual": True},
    {**BIASES},
    stated={"num_experts": (0,)},
    harmless=words("scale_emb scale_depth dim_model_base mup_denominator"),
    adjust=windows,
)
DEEPSEEK = member(
    "deepseek",
    {"experts": {"router_dtype": "fp32"}},
    {
        **BIASES, "n_routed_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "first_k_dense_replace": "experts.dense_layers", "moe_layer_freq": "experts.every", "norm_topk_prob": "experts.renormalise",
    },
    EXPERT_REGISTRATION,
    stated={"scoring_func": ("softmax",)},
    harmless=ROUTER,
    adjust=shared_experts,
)  # fmt: skip


def _bailing(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Ling: experts under DeepSeek's names or under Qwen's."""
    experts, size = fields.setdefault("experts", {}), int(tree.get("moe_intermediate_size") or 0)
    shared = tree.get("n_shared_experts") if tree.get("num_shared_experts") is None else tree.get("num_shared_experts")
    experts["shared"] = int(shared or 0) * size
    read = biases("use_qkv_bias", "query_key_value_bias")(fields, tree) | biases("use_bias", "output_bias mlp_bias")(fields, tree)
    return read | {"n_shared_experts", "num_shared_experts"}


BAILING = member(
    "bailing-moe",
    _FUSED,
    {
        "n_routed_experts": "experts.count", "num_experts": "experts.count", "num_experts_per_tok": "experts.top_k",
        "moe_intermediate_size": "experts.mlp", "first_k_dense_replace": "experts.dense_layers", "norm_topk_prob": "experts.renormalise",
    },
    EXPERT_REGISTRATION,
    stated={"use_qk_norm": (False,), "norm_softmax": (False,), "multi_gate": (False,)},
    harmless=ROUTER | words("embedding_dropout output_dropout norm_head"),
    adjust=_bailing,
)  # fmt: skip


def _fla(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Two thirds of ``hidden_ratio``, rounded up to 256, where no width is given (fla/modules/mlp.py)."""
    hidden = int(fields["hidden"])
    fields["mlp"] = tree.get("intermediate_size") or -(-int(hidden * float(tree.get("hidden_ratio") or 4) * 2 / 3) // 256) * 256
    fields["attention_window"] = int(tree.get("window_size") or 0)
    return {"hidden_ratio", "intermediate_size", "window_size"}


FLA_TRANSFORMER = Family(
    name="fla-transformer",
    model_type="transformer",
    structure={**STRUCTURE, "maximum_sequence": 2048, "mlp": 0},
    registration=("attention_norm", "query_key_value", "attention_output", "mlp_norm", "mlp_up", "mlp_down"),
    keys={
        **{key: name for key, name in SIZES.items() if name not in ("heads", "mlp")}, "num_heads": "heads", "num_kv_heads": "kv_heads",
        "hidden_act": "activation", "qkv_bias": "query_key_value_bias", "qk_norm": "query_key_norm",
    },
    stated={"attention_bias": (False,)},
    harmless=words("elementwise_affine"),
    adjust=_fla,
)  # fmt: skip

FAMILIES = (BAICHUAN, INTERNLM, INTERNLM2, INTERNLM3, QWEN, CHATGLM, EXAONE, MINICPM, DEEPSEEK, BAILING, FLA_TRANSFORMER)
