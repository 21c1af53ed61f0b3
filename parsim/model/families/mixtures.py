"""Decoders with experts of 2025: GPT-OSS, Llama 4, Kimi K2, GLM-4.5.

Structure and key names follow the modelling and configuration files of huggingface/transformers
(``src/transformers/models/<model_type>``); GPT-OSS also 2508.10925, Kimi K2 2507.20534 and the modelling file beside its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import Fields, shortest, words
from parsim.model.families.llama import BIASES, DEEPSEEK_V3, DEEPSEEK_V32, EXPERT_REGISTRATION, REGISTRATION, ROUTER, deepseek, member
from parsim.model.families.readers import biases, dense_first, shared_experts, together, unrotated, windows

GPT_OSS = member(
    "gpt-oss",
    {
        "query_key_value_bias": True, "output_bias": True, "head_dim": 64, "attention_sinks": True, "attention_window": 128,
        "full_attention_every": 2, "rotary_scaled": True, "experts": {"bias": True, "clamp": True, "renormalise": True},
    },
    {**BIASES, "num_local_experts": "experts.count", "num_experts_per_tok": "experts.top_k"},
    ("attention", *EXPERT_REGISTRATION),
    harmless=ROUTER | words("swiglu_limit swiglu_alpha initial_context_length experts_per_token"),
    adjust=windows,
)  # fmt: skip


def _llama4(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Every n-th layer has no rotary positions and sees all keys; the others see their own chunk."""
    chunk = int(tree.get("attention_chunk_size") or 0)
    unrotated(fields, tree)
    layers, interval = int(fields["layers"]), fields["no_rotary_every"]
    regular = [int(not interval or (layer + 1) % interval != 0) for layer in range(layers)]
    step = int(tree.get("interleave_moe_layer_step") or 1)
    mixtures = [layer for layer in range(layers) if (layer + 1) % step == 0]
    if tree.get("moe_layers") is not None and list(tree["moe_layers"]) != mixtures:
        message = f"experts in other layers than every {step}th are not supported yet"
        raise ModelError(Finding(message, "moe_layers", tree["moe_layers"], f"leave it out for {mixtures}"))
    types = ["chunked_attention" if rotates else "full_attention" for rotates in regular]
    if tree.get("layer_types") and list(tree["layer_types"]) != types:
        message = f"this order of layer types is not supported yet; every {interval}th layer full is"
        raise ModelError(Finding(message, "layer_types", tree["layer_types"]))
    fields |= {"attention_chunk": chunk, "full_attention_every": interval}
    fields["query_key_norm"] = bool(tree.get("use_qk_norm", True))
    fields.setdefault("experts", {})["shared"] = fields["experts"].get("mlp", 0)  # the MLP that every token visits is as wide as an expert
    read = "attention_chunk_size no_rope_layer_interval no_rope_layers moe_layers layer_types use_qk_norm interleave_moe_layer_step"
    fields["experts"]["every"] = step
    return set(words(read))


LLAMA4 = member(
    "llama4-text",
    {"query_key_norm_weights": False, "query_key_norm": True},
    {
        **BIASES, "intermediate_size": "experts.mlp", "intermediate_size_mlp": "mlp", "num_local_experts": "experts.count",
        "num_experts_per_tok": "experts.top_k",
    },
    EXPERT_REGISTRATION,
    harmless=ROUTER | words("attn_scale attn_temperature_tuning floor_scale for_llm_compressor cache_implementation"),
    adjust=_llama4,
)  # fmt: skip

KIMI_K2 = DEEPSEEK_V3._replace(name="kimi-k2", model_type="kimi_k2")


_INDEXERS = {"full": "F", "shared": "S"}


def _indexers(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Which layers have an indexer: ``indexer_types``, a pattern of letters or words, or every n-th one behind the first few."""
    layers = int(fields["layers"])
    key = "indexer_types" if tree.get("indexer_types") is not None else "index_topk_pattern"
    said = tree.get(key)
    if said is None:
        every, first = max(int(tree.get("index_topk_freq") or 1), 1), tree.get("index_skip_topk_offset")
        start = 2 if first is None else int(first)
        letters = "".join("F" if max(layer - start + 1, 0) % every == 0 else "S" for layer in range(layers))
    else:
        kinds = list(said) if isinstance(said, str | list) else []
        letters = "".join(_INDEXERS.get(str(kind), str(kind)) for kind in kinds)
        if len(kinds) != layers or set(letters) - {"F", "S"}:
            text = f"must say full or shared (F or S) for each of {layers} layers, is {repr(said)[:60]}"
            raise ModelError(Finding(text, key, said, "take it from the model's own config.json"))
    if "S" in letters:
        fields.setdefault("latent", {})["indexers"] = shortest(letters)
    return set(words("indexer_types index_topk_pattern index_topk_freq index_skip_topk_offset"))


GLM_LITE = DEEPSEEK_V3._replace(
    name="glm4-moe-lite",
    model_type="glm4_moe_lite",
    structure={**DEEPSEEK_V3.structure, "experts": {**DEEPSEEK_V3.structure["experts"], "dense_layers": 1}},
    harmless=DEEPSEEK_V3.harmless | words("head_dim"),
    adjust=together(deepseek, dense_first),
)


def _no_experts(fields: Fields, _: Mapping[str, Any]) -> set[str]:
    fields["kv_heads"] = 0  # latent attention decompresses keys and values for every head
    return {"num_key_value_heads"}


YOUTU = DEEPSEEK_V3._replace(
    name="youtu",
    model_type="youtu",
    structure={**{key: value for key, value in DEEPSEEK_V3.structure.items() if key != "experts"}, "tied_embeddings": True},
    keys={key: name for key, name in DEEPSEEK_V3.keys.items() if not name.startswith("experts.")},
    harmless=DEEPSEEK_V3.harmless | words("head_dim embedding_initializer_range"),
    adjust=_no_experts,
)
MINICPM3 = YOUTU._replace(
    name="minicpm3",
    model_type="minicpm3",
    structure={**YOUTU.structure, "scale_residual": True},
    harmless=YOUTU.harmless | words("scale_emb scale_depth dim_model_base"),
)
GLM_DSA = DEEPSEEK_V32._replace(
    name="glm-moe-dsa",
    model_type="glm_moe_dsa",
    structure={
        **DEEPSEEK_V32.structure,
        "latent": {"chosen": 2048, "index_heads": 32},
        "experts": {**DEEPSEEK_V32.structure["experts"], "dense_layers": 3},
    },
    stated={**DEEPSEEK_V32.stated, "moe_router_dtype": ("float32",)},
    harmless=DEEPSEEK_V32.harmless | words("indexer_rope_interleave index_share_for_mtp_iteration"),
    adjust=together(deepseek, dense_first, _indexers),
)


GLM4_MOE = member(
    "glm4-moe",
    {"query_key_value_bias": True, "rotary_fraction": 0.5, "experts": {"router_bias": True, "router_dtype": "fp32"}},
    {
        "partial_rotary_factor": "rotary_fraction", "use_qk_norm": "query_key_norm",
        "n_routed_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "first_k_dense_replace": "experts.dense_layers", "norm_topk_prob": "experts.renormalise",
    },
    (*REGISTRATION[:5], "mixture.experts", "mixture.router", "mixture.shared", *REGISTRATION[-2:]),
    harmless=ROUTER | words("n_group topk_group routed_scaling_factor num_nextn_predict_layers"),
    adjust=together(shared_experts, biases("attention_bias", "query_key_value_bias"), dense_first),
)  # fmt: skip

AXK1 = GLM_LITE._replace(
    name="axk1",
    model_type="axk1",
    structure={**GLM_LITE.structure, "experts": {**GLM_LITE.structure["experts"], "output_norm": True}},
    registration=tuple(one for role in GLM_LITE.registration for one in (role, *["mixture.output_norm"] * (role == "mixture.shared"))),
    keys={key: name for key, name in GLM_LITE.keys.items() if key != "moe_layer_freq"},
    stated={**GLM_LITE.stated, "moe_layer_freq": (1,)},
)


def _hy_v3(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The MLP that every token visits, as wide as an expert or several; the first layer is dense where the config is silent."""
    experts, shared = fields.setdefault("experts", {}), tree.get("num_shared_experts")
    experts["shared"] = int(1 if shared is None else shared) * int(experts.get("mlp") or 1536)
    kinds, first = tree.get("mlp_layer_types"), tree.get("first_k_dense_replace")
    if kinds is None:
        experts["dense_layers"] = 1 if first is None else first
    return {"num_shared_experts", "first_k_dense_replace"} | dense_first(fields, tree)


HY_V3 = member(
    "hy-v3",
    {
        "head_dim": 128, "query_key_norm": True,
        "experts": {"router_bias": True, "router_dtype": "fp32", "renormalise": True, "wide_sum": True},
    },
    {
        **BIASES, "mlp_bias": "mlp_bias", "num_experts": "experts.count", "num_local_experts": "experts.count",
        "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp", "expert_hidden_dim": "experts.mlp",
        "enable_moe_fp32_combine": "experts.wide_sum",
    },
    (*REGISTRATION[:5], "mixture.router", "mixture.experts", "mixture.shared", *REGISTRATION[-2:]),
    stated={"qk_norm": (True,), "moe_router_use_sigmoid": (True,), "moe_router_enable_expert_bias": (True,), "route_norm": (True,)},
    # the module that predicts a further word is in the checkpoint; transformers' class has none, nor a head in fp32
    harmless=ROUTER | words(
        "router_scaling_factor num_nextn_predict_layers use_grouped_mm enable_attention_fp32_softmax enable_lm_head_fp32"
    ),
    adjust=_hy_v3,
)  # fmt: skip

FAMILIES = (GPT_OSS, LLAMA4, KIMI_K2, GLM_LITE, YOUTU, MINICPM3, GLM_DSA, GLM4_MOE, AXK1, HY_V3)
