"""Decoders with RMSNorm and a gated MLP, or the Llama line's order of weights: those that differ from it in a fact or two.

Structure and key names follow the modelling and configuration files of huggingface/transformers (``src/transformers/models/<model_type>``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import Fields, words
from parsim.model.families.gemma4 import gemma4
from parsim.model.families.llama import BIASES, EXPERT_REGISTRATION, GEMMA, REGISTRATION, ROUTER, member
from parsim.model.families.readers import (
    biases,
    dense_first,
    dropout_of,
    given,
    groups,
    interleaved,
    shared_experts,
    together,
    unrotated,
    windows,
)

_ROUTER_LAST = (*REGISTRATION[:5], "mixture.experts", "mixture.router", "mixture.shared", *REGISTRATION[-2:])
_WIDE_NORM = {"query_key_norm": True, "query_key_norm_over": "projection"}
_NORMS_BEHIND = (*REGISTRATION[:5], "attention_output_norm", "mlp_output_norm")
_COUNT = {"num_local_experts": "experts.count", "num_experts": "experts.count", "num_experts_per_tok": "experts.top_k"}
_ALL_BIASES = "query_key_value_bias output_bias mlp_bias"

# dense


def _gemma3(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["activation"] = "gelu-tanh"
    fields["softcap_attention"] = tree.get("attn_logit_softcapping") is not None
    fields["softcap_logits"] = tree.get("final_logit_softcapping") is not None
    return {"hidden_act", "hidden_activation", "attn_logit_softcapping", "final_logit_softcapping"}


GEMMA3 = member(
    "gemma3-text",
    {
        **GEMMA.structure, "norm_in_fp32": True, "norm_placement": "sandwich", "query_key_norm": True, "hidden": 2304,
        "mlp": 9216, "layers": 26, "heads": 8, "kv_heads": 4, "vocabulary": 262208, "attention_window": 4096,
        "full_attention_every": 6,
    },
    BIASES,
    (*REGISTRATION[:5], "attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm"),
    stated={"use_bidirectional_attention": (False,)},
    harmless=words("cache_implementation rope_local_base_freq"),
    adjust=together(_gemma3, interleaved(4096, 6)),
)  # fmt: skip
GEMMA4 = member(
    "gemma4-text",
    {
        **GEMMA3.structure, "norm_offset": False, "vocabulary": 262144, "layers": 30, "value_norm": True, "scale_layer": True,
        "norm_by_power": True,
        "attention_window": 512, "full_attention_every": 6, "full_attention": {"head_dim": 512},
    },
    BIASES,
    (*REGISTRATION[:5], "attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm", "layer_scalar",
     "per_layer_input_gate", "per_layer_projection", "per_layer_norm",
     "mixture.router", "mixture.experts", "dense_output_norm", "mixture_output_norm", "mixture_norm"),
    stated={"use_bidirectional_attention": ("vision", False)},
    adjust=gemma4,
)  # fmt: skip
GLM = member(
    "glm",
    {"query_key_value_bias": True, "rotary_fraction": 0.5, "head_dim": 128, "fused_gate_up": True, "rotary_concatenates": True},
    {"attention_bias": "query_key_value_bias", "partial_rotary_factor": "rotary_fraction"},
    (*REGISTRATION[:5], "attention_norm", "mlp_norm"),
)
GLM4 = GLM._replace(
    name="glm4",
    model_type="glm4",
    structure={**GLM.structure, "norm_placement": "sandwich"},
    registration=(*REGISTRATION[:5], "attention_norm", "mlp_norm", "attention_output_norm", "mlp_output_norm"),
)
_CLIPS = given("clip_qkv", "clip_query_key_value")
OLMO = member(
    "olmo", {"normalisation": "layernorm", "norm_weights": False, "norm_bias": False, "norm_in_fp32": True}, BIASES, adjust=_CLIPS
)  # fmt: skip
OLMO2 = member("olmo2", {**_WIDE_NORM, "norm_placement": "output", "norm_in_fp32": True}, BIASES, _NORMS_BEHIND)
OLMO3 = OLMO2._replace(name="olmo3", model_type="olmo3", adjust=interleaved(4096, 4))


def _exaone4(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    read = interleaved(4096, 4)(fields, tree)
    fields["rotary_in_windows"] = bool(fields["attention_window"])
    return read


EXAONE4 = member(
    "exaone4",
    {"norm_placement": "output", "query_key_norm": True, "query_key_norm_everywhere": True},
    registration=_NORMS_BEHIND,
    adjust=_exaone4,
)
SMOLLM3 = member(
    "smollm3", {"tied_embeddings": True}, {**BIASES, "mlp_bias": "mlp_bias"}, adjust=together(windows, unrotated)
)  # fmt: skip
GRANITE = member(
    "granite",
    {"scale_residual": True, "scale_logits": True},
    {**BIASES, "mlp_bias": "mlp_bias"},
    harmless=words("embedding_multiplier logits_scaling residual_multiplier"),
)
HELIUM = member("helium", {"head_dim": 128, "norm_in_fp32": True}, {**BIASES, "mlp_bias": "mlp_bias"})
ARCEE = member("arcee", {"gated": False, "activation": "relu2"}, {**BIASES, "mlp_bias": "mlp_bias"})
APERTUS = member(
    "apertus",
    {"gated": False, "activation": "xielu", "query_key_norm": True},
    {**BIASES, "mlp_bias": "mlp_bias"},
    ("query_key_value", "attention_output", "query_key_norm", "mlp_up", "mlp_down", "mlp_activation", "attention_norm", "mlp_norm"),
    stated={"post_norm": (False,), "qk_norm": (True,)},
)
NEMOTRON = member(
    "nemotron",
    {"normalisation": "layernorm", "gated": False, "activation": "relu2", "rotary_fraction": 0.5, "rotary_concatenates": True},
    {**BIASES, "mlp_bias": "mlp_bias", "partial_rotary_factor": "rotary_fraction", "rope_percent": "rotary_fraction"},
    ("query_key_value", "attention_output", "mlp_up", "mlp_down", "attention_norm", "mlp_norm"),
)
HUNYUAN = member("hunyuan-v1-dense", {"query_key_norm": True}, BIASES, stated={"use_qk_norm": (True,), "use_cla": (False,)})
ERNIE = member(
    "ernie4-5", {"tied_embeddings": True, "head_dim": 128}, adjust=biases("use_bias", _ALL_BIASES), harmless=words("compression_ratio"),
)  # fmt: skip
HYPERCLOVA = GRANITE._replace(
    name="hyperclovax",
    model_type="hyperclovax",
    structure={**GRANITE.structure, "norm_placement": "sandwich", "head_dim": 128},
    registration=(*REGISTRATION[:5], "attention_norm", "mlp_norm", "attention_output_norm", "mlp_output_norm"),
    stated={"use_post_norm": (True,)},
)


def _vaultgemma(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """As Gemma 2, whose scores and logits have bounds where the config is silent."""
    read = interleaved(4096, 2)(fields, tree)
    fields |= {"activation": "gelu-tanh"}
    for key, name, usual in (("attn_logit_softcapping", "softcap_attention", 50.0), ("final_logit_softcapping", "softcap_logits", 30.0)):
        fields[name] = tree.get(key, usual) is not None
    return read | {"hidden_act", "hidden_activation", "attn_logit_softcapping", "final_logit_softcapping"}


VAULTGEMMA = member("vaultgemma", dict(GEMMA.structure), BIASES, adjust=_vaultgemma)


def _cwm(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Every fourth layer from the first sees all keys, unless the config says otherwise."""
    layers = int(fields["layers"])
    types = tree.get("layer_types") or ["full_attention" if layer % 4 == 0 else "sliding_attention" for layer in range(layers)]
    return interleaved(8192, 4)(fields, {**tree, "layer_types": types})


CWM = member("cwm", {"head_dim": 128}, {"mlp_bias": "mlp_bias"}, adjust=_cwm)
JAIS = member(
    "jais2",
    {
        "normalisation": "layernorm", "gated": False, "activation": "relu2", "head_dim": 128, "query_key_value_bias": True,
        "output_bias": True, "mlp_bias": True,
    },
    {**BIASES, "mlp_bias": "mlp_bias"},
)  # fmt: skip
SEED = member(
    "seed-oss",
    {"query_key_value_bias": True, "head_dim": 128},
    {"attention_bias": "query_key_value_bias", "attention_out_bias": "output_bias", "mlp_bias": "mlp_bias", "residual_dropout": "dropout"},
    adjust=dropout_of("attention_dropout"),
)


def _nanochat(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["softcap_logits"] = tree.get("final_logit_softcapping", 15.0) is not None
    return {"final_logit_softcapping"}


NANOCHAT = member(
    "nanochat",
    {
        "gated": False, "activation": "relu2", "norm_weights": False, "embedding_norm": True, "embedding_dropout": False,
        "query_key_norm": True, "query_key_norm_weights": False,
    },
    BIASES,
    adjust=_nanochat,
)  # fmt: skip
MINISTRAL = member("ministral", {}, adjust=windows, also=("ministral3",))

# experts

OLMOE = member(
    "olmoe", _WIDE_NORM, {**BIASES, **_COUNT, "norm_topk_prob": "experts.renormalise"}, EXPERT_REGISTRATION, harmless=ROUTER, adjust=_CLIPS
)  # fmt: skip
FLEX_OLMO = OLMO2._replace(
    name="flex-olmo",
    model_type="flex_olmo",
    registration=(*REGISTRATION[:3], "mixture.router", "mixture.experts", "attention_output_norm", "mlp_output_norm"),
    keys={**OLMO2.keys, **_COUNT, "norm_topk_prob": "experts.renormalise"},
    harmless=OLMO2.harmless | ROUTER,
)
GRANITE_MOE = member(
    "granitemoe",
    {"scale_residual": True, "scale_logits": True},
    {**BIASES, **_COUNT},
    ("query_key_value", "attention_output", "attention_norm", "mlp_norm", "mixture.router", "mixture.experts", "mixture.shared"),
    harmless=GRANITE.harmless | ROUTER,
)
GRANITE_SHARED = GRANITE_MOE._replace(
    name="granitemoeshared", model_type="granitemoeshared", keys={**GRANITE_MOE.keys, "shared_intermediate_size": "experts.shared"}
)


def _minimax_m2(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    width, kinds, layers = tree.get("rotary_dim"), tree.get("attn_type_list"), int(fields["layers"])
    if width:
        fields["rotary_fraction"] = min(1.0, width / (fields.get("head_dim") or 128))
    if kinds is not None and list(kinds) != [1] * layers:
        raise ModelError(Finding("linear attention of MiniMax is not supported yet", "attn_type_list", kinds, "1 for every layer"))
    return {"rotary_dim", "attn_type_list"}


MINIMAX_M2 = member(
    "minimax-m2",
    {**_WIDE_NORM, "head_dim": 128, "experts": {"router_bias": True, "renormalise": True}},
    _COUNT,
    EXPERT_REGISTRATION,
    stated={
        "use_qk_norm": (True,), "qk_norm_type": ("per_layer",), "use_routing_bias": (True,), "shared_intermediate_size": (0,),
        "scoring_func": ("sigmoid",),
    },
    # the modules that predict further words are in the checkpoint; transformers' class has none
    harmless=ROUTER | words(
        "layernorm_full_attention_beta layernorm_linear_attention_beta layernorm_mlp_beta mtp_transformer_layers num_mtp_modules use_mtp"
    ),
    adjust=_minimax_m2,
)  # fmt: skip
DOTS = member(
    "dots1",
    {"query_key_norm": True, "experts": {"router_bias": True, "router_dtype": "fp32"}},
    {
        **BIASES, "n_routed_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "first_k_dense_replace": "experts.dense_layers", "norm_topk_prob": "experts.renormalise", "moe_layer_freq": "experts.every",
    },
    _ROUTER_LAST,
    stated={"scoring_func": ("noaux_tc", "sigmoid")},
    harmless=ROUTER,
    adjust=together(windows, shared_experts, groups),
)  # fmt: skip
SOLAR = DOTS._replace(
    name="solar-open",
    model_type="solar_open",
    structure={**DOTS.structure, "query_key_norm": False, "head_dim": 128, "mlp": 0},
    keys={**DOTS.keys, "attention_bias": "query_key_value_bias"},
    registration=(*REGISTRATION[:5], "mixture.experts", "mixture.router", "mixture.shared", *REGISTRATION[-2:]),
    stated={"use_qk_norm": (False,)},
)


def _exaone_moe(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    shared = tree.get("num_shared_experts")
    fields.setdefault("experts", {})["shared"] = int(1 if shared is None else shared) * int(tree.get("moe_intermediate_size") or 1024)
    return _exaone4(fields, tree) | dense_first(fields, tree) | groups(fields, tree) | {"num_shared_experts"}


EXAONE_MOE = EXAONE4._replace(
    name="exaone-moe",
    model_type="exaone_moe",
    structure={**EXAONE4.structure, "norm_placement": "pre", "experts": {"router_bias": True, "router_dtype": "fp32", "dense_layers": 1}},
    registration=_ROUTER_LAST,
    keys={
        **EXAONE4.keys, **_COUNT, "moe_intermediate_size": "experts.mlp", "first_k_dense_replace": "experts.dense_layers",
        "norm_topk_prob": "experts.renormalise",
    },
    harmless=EXAONE4.harmless | ROUTER,
    adjust=_exaone_moe,
)  # fmt: skip


def _hunyuan_moe(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Experts as wide as the MLP where nothing else is said; the shared MLP is one or several of them wide."""
    experts, shared = fields.setdefault("experts", {}), tree.get("num_shared_expert")
    wide = int(tree.get("moe_intermediate_size") or fields["mlp"])
    experts |= {"mlp": wide, "shared": wide * int(1 if shared is None else shared)}
    return {"moe_intermediate_size", "num_shared_expert"}


_NO_TOWER = words(
    "anyres_pooling_size anyres_vit_two_views num_media_embeds vit_input_resolution vit_mapping_type vit_norm_type vit_patch vit_token "
    "im_end_id im_newline_id im_start_id text_start_id text_end_id video_start_id video_end_id xdrope_section skip_cls_token"
)
HUNYUAN_MOE = member(
    "hunyuan-v1-moe",
    {"query_key_norm": True, "experts": {"count": 1, "top_k": 1, "renormalise": True}},
    {**BIASES, "attention_head_dim": "head_dim", "num_experts": "experts.count", "moe_topk": "experts.top_k"},
    EXPERT_REGISTRATION,
    stated={
        "use_qk_norm": (True,),
        "use_cla": (False,),
        "use_mla": (False,),
        "use_mixed_mlp_moe": (True,),
        "moe_layer_num_skipped": (0,),
        "norm_type": ("rms",),
        "position_embedding_xdrope": (False,),
        "use_rotary_pos_emb": (True,),
        "mlp_bias": (False,),
        "vit_path": (),
        "vit_type": (),
        "add_classification_head": (False,),
        "norm_topk_prob": (True,),
    },
    # what of the first files belongs to a tower for images that this file does not have
    harmless=ROUTER
    | _NO_TOWER
    | words(
        "class_num dense_list pool_type org_vocab_size mask_init_id pad_id capacity_factor moe_drop_tokens cla_share_factor "
        "moe_random_routing_dropped_token"
    ),
    adjust=_hunyuan_moe,
    also=("hunyuan",),
)


def _ernie_moe(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    layers, experts = int(fields["layers"]), fields.setdefault("experts", {})
    last = tree.get("moe_layer_end_index")
    if last not in (None, -1, layers - 1):
        message = f"dense layers behind those with experts (layer {last} of {layers}) are not supported yet"
        raise ModelError(Finding(message, "moe_layer_end_index", last, f"use {layers - 1}"))
    start = tree.get("moe_layer_start_index")
    experts["dense_layers"] = 1 if start is None else start
    shared = tree.get("moe_num_shared_experts")
    experts["shared"] = (2 if shared is None else shared) * int(experts.get("mlp") or 0)
    return {"moe_layer_end_index", "moe_layer_start_index", "moe_num_shared_experts"} | biases("use_bias", _ALL_BIASES)(fields, tree)


ERNIE_MOE = member(
    "ernie4-5-moe",
    {"tied_embeddings": True, "experts": {"router_dtype": "fp32", "renormalise": True, "router_bias": True, "router_bias_counted": True}},
    {
        "moe_num_experts": "experts.count", "moe_k": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "moe_layer_interval": "experts.every",
    },
    EXPERT_REGISTRATION,
    stated={"moe_use_aux_free": (True,), "moe_gate": ("topk", "top2"), "use_moe": (True,)},
    harmless=ROUTER | words("moe_norm_min moe_capacity moe_group compression_ratio moe_use_hard_gate"),
    adjust=_ernie_moe,
)  # fmt: skip

FAMILIES = (
    HYPERCLOVA, VAULTGEMMA, CWM, JAIS, FLEX_OLMO, SOLAR, EXAONE_MOE,
    GEMMA3, GEMMA4,
    GLM, GLM4, OLMO, OLMO2, OLMO3, EXAONE4, SMOLLM3, GRANITE, HELIUM, ARCEE, APERTUS, NEMOTRON, HUNYUAN, ERNIE, SEED, NANOCHAT, MINISTRAL,
    OLMOE, GRANITE_MOE, GRANITE_SHARED, MINIMAX_M2, DOTS, HUNYUAN_MOE, ERNIE_MOE,
)  # fmt: skip
