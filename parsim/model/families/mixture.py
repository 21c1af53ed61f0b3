"""Decoders with experts: Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 and -V3.

Structure and key names follow huggingface/transformers ``src/transformers/models/<model_type>``; DeepSeek also
2405.04434 and 2412.19437.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import GROUPED, Family, Fields, words
from parsim.model.families.llama import HARMLESS, REGISTRATION, STRUCTURE, windows

_ROUTER = frozenset({"router_aux_loss_coef", "output_router_logits", "router_jitter_noise", "num_experts_per_token"})
_REGISTRATION = (*REGISTRATION[:5], "mixture.router", "mixture.experts", "mixture.shared", *REGISTRATION[-2:])

MIXTRAL = Family(
    name="mixtral",
    model_type="mixtral",
    structure={**STRUCTURE, "experts": {"renormalise": True}},
    registration=_REGISTRATION,
    keys={**GROUPED, "num_local_experts": "experts.count", "num_experts_per_tok": "experts.top_k"},
    harmless=HARMLESS | _ROUTER,
    adjust=windows,
)

_QWEN_EXPERTS = {
    "num_experts": "experts.count",
    "num_local_experts": "experts.count",
    "norm_topk_prob": "experts.renormalise",
    "num_experts_per_tok": "experts.top_k",
    "moe_intermediate_size": "experts.mlp",
    "decoder_sparse_step": "experts.every",
}

QWEN2_MOE = Family(
    name="qwen2-moe",
    model_type="qwen2_moe",
    structure={**STRUCTURE, "query_key_value_bias": True, "experts": {"shared_gate": True}},
    registration=_REGISTRATION,
    keys={**GROUPED, **_QWEN_EXPERTS, "shared_expert_intermediate_size": "experts.shared", "qkv_bias": "query_key_value_bias"},
    stated={"mlp_only_layers": ([],)},
    harmless=HARMLESS | _ROUTER,
    adjust=windows,
)

QWEN3_MOE = Family(
    name="qwen3-moe",
    model_type="qwen3_moe",
    structure={**STRUCTURE, "query_key_norm": True},
    registration=(*REGISTRATION[:5], "mixture.experts", "mixture.router", *REGISTRATION[-2:]),
    keys={**GROUPED, **_QWEN_EXPERTS, "attention_bias": "query_key_value_bias output_bias"},
    stated={"mlp_only_layers": ([],)},
    harmless=HARMLESS | _ROUTER,
    adjust=windows,
)


def _deepseek(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    size = tree.get("moe_intermediate_size")
    if size is None:
        raise ModelError(Finding("moe_intermediate_size is required", "moe_intermediate_size"))
    fields.setdefault("experts", {})["shared"] = (tree.get("n_shared_experts") or 0) * size
    fields["kv_heads"] = 0  # latent attention decompresses keys and values for every head
    return {"n_shared_experts", "num_key_value_heads"}


_LATENT = {
    "q_lora_rank": "latent.query_rank",
    "kv_lora_rank": "latent.key_rank",
    "qk_nope_head_dim": "latent.plain_dim",
    "qk_rope_head_dim": "latent.rotary_dim",
    "v_head_dim": "latent.value_dim",
}
_DEEPSEEK_KEYS = {
    **{key: name for key, name in GROUPED.items() if key != "num_key_value_heads"},
    **_LATENT,
    "n_routed_experts": "experts.count",
    "num_experts_per_tok": "experts.top_k",
    "moe_intermediate_size": "experts.mlp",
    "first_k_dense_replace": "experts.dense_layers",
    "moe_layer_freq": "experts.every",
    "attention_bias": "query_key_value_bias output_bias",
}
_DEEPSEEK_HARMLESS = (
    HARMLESS
    | _ROUTER
    | words(
        "n_group topk_group topk_method scoring_func routed_scaling_factor aux_loss_alpha seq_aux ep_size "
        "num_nextn_predict_layers qk_head_dim rope_interleave"
    )
)
_DEEPSEEK_REGISTRATION = (
    "query_down",
    "query_norm",
    "query_up",
    "key_value_down",
    "key_value_norm",
    "key_value_up",
    "attention_output",
    "mlp_up",
    "mlp_down",
    "mixture.experts",
    "mixture.router",
    "mixture.shared",
    "attention_norm",
    "mlp_norm",
)

DEEPSEEK_V2 = Family(
    name="deepseek-v2",
    model_type="deepseek_v2",
    structure={**STRUCTURE, "experts": {"router_fp32": True}},
    registration=_DEEPSEEK_REGISTRATION,
    keys=_DEEPSEEK_KEYS,
    stated={"mlp_bias": (False,)},
    harmless=_DEEPSEEK_HARMLESS | {"norm_topk_prob"},
    adjust=_deepseek,
)

DEEPSEEK_V3 = Family(
    name="deepseek-v3",
    model_type="deepseek_v3",
    structure={**STRUCTURE, "experts": {"router_bias": True, "router_fp32": True}},
    registration=_DEEPSEEK_REGISTRATION,
    keys={**_DEEPSEEK_KEYS, "norm_topk_prob": "experts.renormalise"},
    harmless=_DEEPSEEK_HARMLESS,
    adjust=_deepseek,
)

FAMILIES = (MIXTRAL, QWEN2_MOE, QWEN3_MOE, DEEPSEEK_V2, DEEPSEEK_V3)
