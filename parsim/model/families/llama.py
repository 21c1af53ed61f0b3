"""Decoders with RMSNorm and a gated MLP: Llama, Mistral, Qwen, Gemma, Phi-3; with experts Mixtral, Qwen-MoE, DeepSeek-V2 and -V3.

Structure and key names follow the modelling and configuration files of huggingface/transformers
(``src/transformers/models/<model_type>``); DeepSeek also 2405.04434 and 2412.19437.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import GROUPED, Adjust, Family, Fields, words
from parsim.model.families.readers import dense_first, groups, shared_experts, together, windows

STRUCTURE: dict[str, Any] = {
    "normalisation": "rmsnorm", "position": "rotary", "activation": "silu", "gated": True, "query_key_value_bias": False,
    "output_bias": False, "mlp_bias": False, "fused_query_key_value": False, "attention_dropout": False,
    "upcast_softmax": True,
}  # fmt: skip
REGISTRATION = ("query_key_value", "attention_output", "query_key_norm", "mlp_up", "mlp_down", "attention_norm", "mlp_norm")
HARMLESS = frozenset({"attention_dropout", "max_sequence_length", "rope_interleaved", "partial_rotary_factor"})


BIASES = {"attention_bias": "query_key_value_bias output_bias"}


def member(
    name: str,
    structure: Fields,
    keys: Mapping[str, str] | None = None,
    registration: tuple[str, ...] = REGISTRATION,
    *,
    stated: Mapping[str, tuple[Any, ...]] | None = None,
    harmless: frozenset[str] = frozenset(),
    adjust: Adjust | None = None,
    also: tuple[str, ...] = (),
) -> Family:
    """A family of the Llama line: what it says beyond the line's structure and the line's keys."""
    return Family(
        name=name,
        model_type=name.replace("-", "_"),
        structure={**STRUCTURE, **structure},
        registration=registration,
        keys={**GROUPED, **(keys or {})},
        stated=stated or {},
        harmless=HARMLESS | harmless,
        adjust=adjust,
        also=also,
    )


def _gemma(fields: Fields, _: Mapping[str, Any]) -> set[str]:
    # Gemma's first configs say hidden_act "gelu", but the model has always used the tanh form.
    fields["activation"] = "gelu-tanh"
    return {"hidden_act", "hidden_activation"}


def _gemma2(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["full_attention_every"] = 2
    fields["softcap_attention"] = tree.get("attn_logit_softcapping", 50.0) is not None
    fields["softcap_logits"] = tree.get("final_logit_softcapping", 30.0) is not None
    return _gemma(fields, tree) | windows(fields, tree)


_GEMMA = {"activation": "gelu-tanh", "tied_embeddings": True, "head_dim": 256, "norm_offset": True}
_CAUSAL = {"use_bidirectional_attention": (False,)}

LLAMA = member(
    "llama",
    {"maximum_sequence": 2048},
    {**BIASES, "mlp_bias": "mlp_bias"},
    also=("Yi", "yi", "aquila", "xverse", "skywork", "open_llama", "code_llama", "iquestcoder"),
)
MISTRAL = member("mistral", {}, adjust=windows)
QWEN2 = member("qwen2", {"query_key_value_bias": True}, harmless=frozenset({"use_mrope"}), adjust=windows)
QWEN3 = member("qwen3", {"query_key_norm": True, "head_dim": 128}, BIASES, adjust=windows)
GEMMA = member("gemma", _GEMMA, BIASES, stated=_CAUSAL, adjust=_gemma)
GEMMA2 = member(
    "gemma2",
    {
        **_GEMMA, "norm_placement": "sandwich", "attention_window": 4096, "full_attention_every": 2, "softcap_attention": True,
        "softcap_logits": True,
    },
    BIASES,
    ("query_key_value", "attention_output", "mlp_up", "mlp_down", "attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm"),
    stated=_CAUSAL,
    harmless=words("query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping cache_implementation"),
    adjust=_gemma2,
)  # fmt: skip
PHI3 = member(
    "phi3",
    {"fused_query_key_value": True, "fused_gate_up": True, "rotary_concatenates": True},
    {**BIASES, "resid_pdrop": "dropout", "partial_rotary_factor": "rotary_fraction"},
    ("attention_output", "query_key_value", "mlp_up", "mlp_down", "attention_norm", "mlp_norm"),
    harmless=words("embd_pdrop original_max_position_embeddings"),
    adjust=windows,
)

# experts

ROUTER = words("router_aux_loss_coef output_router_logits router_jitter_noise num_experts_per_token")
EXPERT_REGISTRATION = (*REGISTRATION[:5], "mixture.router", "mixture.experts", "mixture.shared", *REGISTRATION[-2:])
_QWEN_EXPERTS = {
    "num_experts": "experts.count", "num_local_experts": "experts.count", "norm_topk_prob": "experts.renormalise",
    "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp", "decoder_sparse_step": "experts.every",
}  # fmt: skip

MIXTRAL = member(
    "mixtral",
    {"experts": {"renormalise": True}},
    {"num_local_experts": "experts.count", "num_experts_per_tok": "experts.top_k"},
    EXPERT_REGISTRATION,
    harmless=ROUTER,
    adjust=windows,
)
QWEN2_MOE = member(
    "qwen2-moe",
    {"query_key_value_bias": True, "experts": {"shared_gate": True}},
    {**_QWEN_EXPERTS, "shared_expert_intermediate_size": "experts.shared", "qkv_bias": "query_key_value_bias"},
    EXPERT_REGISTRATION,
    harmless=ROUTER,
    adjust=together(windows, dense_first),
)
QWEN3_MOE = member(
    "qwen3-moe",
    {"query_key_norm": True},
    {**_QWEN_EXPERTS, **BIASES},
    (*REGISTRATION[:5], "mixture.experts", "mixture.router", *REGISTRATION[-2:]),
    harmless=ROUTER,
    adjust=together(windows, dense_first),
)


def deepseek(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Experts as DeepSeek writes them, beside latent attention."""
    fields["kv_heads"] = 0  # latent attention decompresses keys and values for every head
    return {"num_key_value_heads"} | shared_experts(fields, tree) | groups(fields, tree)


DEEPSEEK_V2 = Family(
    name="deepseek-v2",
    model_type="deepseek_v2",
    structure={**STRUCTURE, "experts": {"router_dtype": "fp32"}},
    registration=(
        "query_down", "query_norm", "query_up", "key_value_down", "key_value_norm", "key_value_up", "attention_output", "mlp_up",
        "mlp_down", "mixture.experts", "mixture.router", "mixture.shared", "attention_norm", "mlp_norm",
    ),
    keys={
        **{key: name for key, name in GROUPED.items() if key != "num_key_value_heads"},
        "q_lora_rank": "latent.query_rank", "kv_lora_rank": "latent.key_rank", "qk_nope_head_dim": "latent.plain_dim",
        "qk_rope_head_dim": "latent.rotary_dim", "v_head_dim": "latent.value_dim",
        "n_routed_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "first_k_dense_replace": "experts.dense_layers", "moe_layer_freq": "experts.every", **BIASES,
    },
    stated={"mlp_bias": (False,)},
    harmless=HARMLESS | ROUTER | words(
        "topk_method scoring_func routed_scaling_factor aux_loss_alpha seq_aux ep_size norm_topk_prob "
        "num_nextn_predict_layers qk_head_dim rope_interleave"
    ),
    adjust=deepseek,
)  # fmt: skip
DEEPSEEK_V3 = DEEPSEEK_V2._replace(
    name="deepseek-v3",
    model_type="deepseek_v3",
    structure={**STRUCTURE, "experts": {"router_bias": True, "router_dtype": "fp32"}},
    keys={**DEEPSEEK_V2.keys, "norm_topk_prob": "experts.renormalise"},
    stated={},
    harmless=DEEPSEEK_V2.harmless - {"norm_topk_prob"},
)  # fmt: skip
DEEPSEEK_V32 = DEEPSEEK_V3._replace(
    name="deepseek-v3.2",
    model_type="deepseek_v32",
    structure={**DEEPSEEK_V3.structure, "latent": {"chosen": 2048}},
    registration=(*DEEPSEEK_V2.registration[:7], "indexer", *DEEPSEEK_V2.registration[7:]),
    keys={**DEEPSEEK_V3.keys, "index_topk": "latent.chosen", "index_n_heads": "latent.index_heads", "index_head_dim": "latent.index_dim"},
    stated={"mlp_bias": (False,)},
    harmless=DEEPSEEK_V3.harmless | words("head_dim mlp_layer_types layer_types num_experts"),
)  # fmt: skip

FAMILIES = (
    LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, PHI3, MIXTRAL, QWEN2_MOE, QWEN3_MOE, DEEPSEEK_V2, DEEPSEEK_V3, DEEPSEEK_V32,
)  # fmt: skip
