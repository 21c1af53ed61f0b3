"""Decoders whose layers of a window and layers that see all keys differ in more: MiMo-V2, Laguna, Granite SWA, Mellum, AFMoE.

Structure and key names follow the modelling and configuration files of huggingface/transformers (``src/transformers/models/<model_type>``);
MiMo-V2 also the keys of the ``config.json`` beside its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import Fields, words
from parsim.model.families.llama import BIASES, REGISTRATION, ROUTER, member
from parsim.model.families.readers import biases, dense_first, groups, pattern, rotary_shares
from parsim.model.families.rmsnorm import GRANITE, GRANITE_SHARED

_FULL, _WINDOW = "full_attention", "sliding_attention"
_EXPERTS_FIRST = (*REGISTRATION[:5], "mixture.experts", "mixture.router", "mixture.shared", *REGISTRATION[-2:])
_OWN_FILE = "take it from the model's own config.json"


def _typed(fields: Fields, tree: Mapping[str, Any], usual: Callable[[int], str], window: Any) -> list[str]:
    """The kind of every layer, `usual` where the config is silent; sets windows of `window` tokens."""
    layers = int(fields["layers"])
    types = list(tree.get("layer_types") or map(usual, range(layers)))
    if len(types) != layers:
        text = f"layer_types has {len(types)} entries for num_hidden_layers {layers}"
        raise ModelError(Finding(text, "layer_types", tree.get("layer_types"), "one word for every layer"))
    order = pattern(types)
    if _WINDOW in types:
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise ModelError(Finding("layers of sliding_attention need a window", "sliding_window", window, "give it: 128"))
        fields |= {"attention_window": window, **order}
    return types


def _every(step: int, first: int = -1) -> Callable[[int], str]:
    """Every n-th layer sees all keys, and so does layer number `first`."""
    return lambda layer: _FULL if (layer + 1) % step == 0 or layer == first else _WINDOW


def _all_full(_: int) -> str:
    return _FULL


def _by_kind(fields: Fields, types: Sequence[str], shares: Mapping[str, float], **full: int) -> None:
    """What layers that see all keys have in place of what layers of a window have; alone they have it as the architecture's own."""
    own = {**full, "rotary_fraction": shares[_FULL]}
    if _WINDOW not in types:
        fields |= own
        return
    fields["rotary_fraction"] = shares[_WINDOW]
    if _FULL in types and any(fields.get(name) != value for name, value in own.items()):
        fields["full_attention"] = own


# MiMo-V2


def _words_of(tree: Mapping[str, Any], key: str, named: Mapping[Any, str]) -> list[str] | None:
    """What a list of numbers per layer says in words."""
    said = tree.get(key)
    if said is None:
        return None
    if not isinstance(said, list) or any(type(number) is not int or number not in named for number in said):
        text = f"must have {' or '.join(f'{number} ({word})' for number, word in named.items())} for every layer"
        raise ModelError(Finding(text, key, said, _OWN_FILE))
    return [named[number] for number in said]


def _mimo(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Layers of a window have twice the key-value heads, and scores without a value; the files beside the weights say it in numbers."""
    kinds = tree.get("layer_types") or _words_of(tree, "hybrid_layer_pattern", {0: _FULL, 1: _WINDOW})
    size = tree.get("sliding_window_size")
    window = tree.get("sliding_window", 129) if size is None else int(size) + 1  # so many tokens before the token itself
    types = _typed(fields, {**tree, "layer_types": kinds}, _every(6, first=0), window)
    heads, kv_heads = int(fields["heads"]), int(fields.get("kv_heads") or 4)
    wanted = {
        "swa_num_attention_heads": heads,
        "swa_head_dim": tree.get("head_dim", 192),
        "swa_v_head_dim": tree.get("v_head_dim", 128),
        "swa_num_key_value_heads": 2 * kv_heads,
    }
    for key, size in wanted.items():
        if tree.get(key) not in (None, size):
            text = f"{tree[key]!r} is not supported yet: layers of a window have {size} here"
            raise ModelError(Finding(text, key, tree[key], "leave it out"))
    fields["kv_heads"] = 2 * kv_heads
    _by_kind(fields, types, rotary_shares(tree, {_FULL: 0.334, _WINDOW: 0.334}), kv_heads=kv_heads)
    fields["attention_sinks"] = _WINDOW in types
    layers = tree.get("mlp_layer_types") or _words_of(tree, "moe_layer_freq", {0: "dense", 1: "sparse"})
    layers = layers or ["dense", *["sparse"] * (len(types) - 1)]
    read = dense_first(fields, {**tree, "mlp_layer_types": layers}) | groups(fields, tree)
    keys = "layer_types hybrid_layer_pattern sliding_window sliding_window_size rope_parameters partial_rotary_factor moe_layer_freq"
    return {*read, *wanted, *words(keys), *biases("attention_bias", "query_key_value_bias")(fields, tree)}


MIMO_V2 = member(
    "mimo-v2-flash",
    {
        "head_dim": 192, "value_dim": 128, "scale_values": True, "sinks_in_windows": True, "upcast_softmax": False,
        "experts": {"router_bias": True, "router_dtype": "fp32", "renormalise": True},
    },
    {
        "v_head_dim": "value_dim", "n_routed_experts": "experts.count", "num_experts_per_tok": "experts.top_k",
        "moe_intermediate_size": "experts.mlp", "norm_topk_prob": "experts.renormalise",
    },
    ("attention", *_EXPERTS_FIRST),
    stated={
        "n_shared_experts": (0,), "add_swa_attention_sink_bias": (True,), "add_full_attention_sink_bias": (False,),
        "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "use_qk_norm": (False,), "mlp_bias": (False,),
        "hidden_dropout": (0, 0.0),
    },
    # published beside the weights, and read by nobody; the modules that predict further words are in the checkpoint alone
    harmless=ROUTER | words("attention_value_scale attention_chunk_size swa_rope_theta num_nextn_predict_layers"),
    adjust=_mimo,
)  # fmt: skip


# Laguna


def _laguna(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Heads by the kind of layer, each multiplied by one number."""
    types = _typed(fields, tree, _all_full, tree.get("sliding_window", 512))
    heads = tree.get("num_attention_heads_per_layer") or [fields["heads"]] * len(types)
    if not isinstance(heads, list) or len(heads) != len(types) or any(type(size) is not int or size < 1 for size in heads):
        text = f"must have a number of heads for each of {len(types)} layers"
        raise ModelError(Finding(text, "num_attention_heads_per_layer", heads, _OWN_FILE))
    found = {kind: {size for size, own in zip(heads, types, strict=True) if own == kind} for kind in set(types)}
    if any(len(sizes) > 1 for sizes in found.values()):
        text = "layers of one kind with different numbers of heads are not supported yet"
        raise ModelError(Finding(text, "num_attention_heads_per_layer", heads, "one number for windows, one for layers that see all keys"))
    if _WINDOW in found:
        fields["heads"] = min(found[_WINDOW])
    full = {"heads": min(found[_FULL])} if _FULL in found else {}
    _by_kind(fields, types, rotary_shares(tree, {_FULL: 0.5, _WINDOW: 1.0}), **full)
    gates = tree.get("gating_types")
    if gates is not None and (not isinstance(gates, list) or set(map(str, gates)) - {"per_head", "per-head"}):
        raise ModelError(Finding("gates other than one per head are not supported yet", "gating_types", gates, "per_head"))
    kinds = tree.get("mlp_layer_types")
    if kinds is None and tree.get("mlp_only_layers") is None:
        kinds = ["dense", *["sparse"] * (len(types) - 1)]
    read = dense_first(fields, {**tree, "mlp_layer_types": kinds})
    return read | words("layer_types sliding_window num_attention_heads_per_layer rope_parameters partial_rotary_factor gating_types")


LAGUNA = member(
    "laguna",
    {
        "head_dim": 128, "query_key_norm": True, "head_gate": "softplus", "rotary_concatenates": True,
        "experts": {"router_bias": True, "router_bias_counted": True, "renormalise": True},
    },
    {
        **BIASES, "num_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "shared_expert_intermediate_size": "experts.shared",
    },
    (*REGISTRATION[:3], "attention_gate", *_EXPERTS_FIRST[3:]),
    stated={
        "gating": (True, "per-head"), "norm_topk_prob": (True,), "qkv_bias": (False,), "decoder_sparse_step": (1,),
        "swa_attention_sink_enabled": (False,), "moe_router_logit_softcapping": (0, 0.0), "moe_apply_router_weight_on_input": (False,),
        "moe_router_score_func": ("sigmoid",),
    },
    harmless=ROUTER | words("moe_routed_scaling_factor swa_rope_parameters"),
    adjust=_laguna,
)  # fmt: skip


# Step 3.5 and the text of Step 3.7


def _sliding_heads(tree: Mapping[str, Any], types: Sequence[str], heads: int, kv_heads: int) -> int:
    """Heads of layers of a window: a number, a setting of the files beside the weights, or those of single layers."""
    other, layers = tree.get("attention_other_setting"), tree.get("per_layer_config")
    said = tree.get("num_sliding_attention_heads")
    if other is not None:
        usual = {"num_attention_groups": kv_heads, "head_dim": tree.get("head_dim", 128), "attention_type": _WINDOW}
        known = {*usual, "num_attention_heads", "true_head_dim"}
        if not isinstance(other, Mapping) or set(other) - known or any(other.get(key, size) != size for key, size in usual.items()):
            text = "layers of a window that differ in more than their number of heads are not supported yet"
            raise ModelError(Finding(text, "attention_other_setting", other, "num_attention_heads alone"))
        said = other.get("num_attention_heads") if said is None else said
    if layers:
        own = {str(layer): {"num_attention_heads": said} for layer, kind in enumerate(types) if kind == _WINDOW}
        if not isinstance(layers, Mapping) or {str(layer): changes for layer, changes in layers.items()} != own:
            text = "layers that differ in more than num_sliding_attention_heads are not supported yet"
            raise ModelError(Finding(text, "per_layer_config", layers, "leave it out"))
    size = heads if said is None else said
    if type(size) is not int or size < 1:
        raise ModelError(Finding("must be a number of heads", "num_sliding_attention_heads", size, _OWN_FILE))
    return size


def _step(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Lists of the files beside the weights go on for the modules that predict further words."""
    layers = int(fields["layers"])
    kinds = tree.get("layer_types")
    further = int(tree.get("num_nextn_predict_layers") or 0)
    if kinds and len(kinds) == layers + further:
        kinds = kinds[:layers]
    types = _typed(fields, {**tree, "layer_types": kinds}, _all_full, tree.get("sliding_window"))
    heads, kv_heads = int(fields["heads"]), int(fields.get("kv_heads") or 8)
    if _WINDOW in types:
        fields["heads"] = _sliding_heads(tree, types, heads, kv_heads)
    by_layer = tree.get("partial_rotary_factors")
    shares = rotary_shares(tree, {_FULL: 1.0, _WINDOW: 1.0})
    if isinstance(by_layer, list) and len(by_layer) in (layers, layers + further):
        shares |= {kind: rotary_shares({"partial_rotary_factor": by_layer[types.index(kind)]}, {kind: 1.0})[kind] for kind in set(types)}
    elif by_layer is not None:
        raise ModelError(Finding(f"must have a share for each of {layers} layers", "partial_rotary_factors", by_layer, _OWN_FILE))
    _by_kind(fields, types, shares, heads=heads)
    return _step_experts(fields, tree, layers) | set(
        words(
            "layer_types sliding_window num_sliding_attention_heads attention_other_setting per_layer_config rope_parameters "
            "partial_rotary_factor partial_rotary_factors num_nextn_predict_layers"
        )
    )


def _step_experts(fields: Fields, tree: Mapping[str, Any], layers: int) -> set[str]:
    """The first three layers are dense where the config is silent."""
    said, kinds = tree.get("moe_layers_enum"), tree.get("mlp_layer_types")
    if kinds is None:
        numbers = said.split(",") if isinstance(said, str) else range(min(3, layers), layers) if said is None else said
        if not isinstance(numbers, Sequence) or any(not str(number).strip().isdigit() for number in numbers if str(number).strip()):
            raise ModelError(Finding("must name the layers that have experts", "moe_layers_enum", said, "3,4,5"))
        sparse = {int(number) for number in numbers if str(number).strip()}
        kinds = ["sparse" if layer in sparse else "dense" for layer in range(layers)]
    return dense_first(fields, {**tree, "mlp_layer_types": kinds[:layers]}) | {"moe_layers_enum"}


STEP = member(
    "step3p5",
    {
        "head_dim": 128, "norm_offset": True, "norm_in_fp32": True, "query_key_norm": True, "head_gate": "sigmoid",
        "rotary_concatenates": True, "clamp_mlp": True, "experts": {"router_bias": True, "renormalise": True},
    },
    {
        **BIASES, "mlp_bias": "mlp_bias", "num_attention_groups": "kv_heads", "n_routed_experts": "experts.count",
        "moe_num_experts": "experts.count", "num_local_experts": "experts.count", "num_experts_per_tok": "experts.top_k",
        "moe_top_k": "experts.top_k", "moe_intermediate_size": "experts.mlp", "share_expert_dim": "experts.shared",
        "share_expert_dims": "experts.shared",
    },
    (*REGISTRATION[:3], "attention_gate", "mlp_up", "mlp_down", "mixture.router", "mixture.experts", "mixture.shared", *REGISTRATION[-2:]),
    stated={
        "gating": (True, "per-head"), "use_bidirectional_attention": (False,), "use_head_wise_attn_gate": (True,),
        "use_moe_router_bias": (True,), "moe_router_activation": ("sigmoid",), "att_impl_type": ("GQA",), "moe_every_n_layer": (1,),
        "norm_expert_weight": (True,), "zero_centered": (True,),
    },
    # bounds of gate and up are there in every layer, infinite where none is said
    harmless=ROUTER | words(
        "moe_router_scaling_factor swiglu_limits swiglu_limits_shared mtp_layer_types mtp_mlp_layer_types yarn_only_types max_seq_len "
        "need_fp32_gate"
    ),
    adjust=_step,
)._replace(classes={"Step3p7TextModel": "encoder"})  # fmt: skip


# Granite with windows


def _granite_swa(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Every fourth layer from the first sees all keys; an angle of 0 takes rotary positions away, from those or from all."""
    types = _typed(fields, tree, lambda layer: _WINDOW if layer % 4 else _FULL, tree.get("sliding_window", 128))
    angles = tree.get("layer_rope_theta")
    if angles is not None:
        if not isinstance(angles, list) or len(angles) != len(types):
            text = f"must have an angle for each of {len(types)} layers"
            raise ModelError(Finding(text, "layer_rope_theta", angles, _OWN_FILE))
        still = [not angle for angle in angles]
        if all(still):
            fields["position"] = "none"
        elif still == [kind == _FULL for kind in types]:
            fields["rotary_in_windows"] = True
        elif any(still):
            text = "layers without rotary positions other than those that see all keys are not supported yet"
            raise ModelError(Finding(text, "layer_rope_theta", angles, "0 for all of those, or for none"))
    return set(words("layer_types sliding_window layer_rope_theta"))


_SINKS = {"attention_sinks": True, "sinks_scale": True}
GRANITE_SWA = GRANITE._replace(
    name="granite-swa",
    model_type="granite_swa",
    structure={**GRANITE.structure, **_SINKS, "tied_embeddings": True},
    registration=("attention", *REGISTRATION),
    adjust=_granite_swa,
)
GRANITE_MOE_SWA = GRANITE_SHARED._replace(
    name="granitemoe-swa",
    model_type="granitemoe_swa",
    structure={**GRANITE_SHARED.structure, **_SINKS},
    registration=("attention", *GRANITE_SHARED.registration),
    adjust=_granite_swa,
)


# Mellum, AFMoE


def _mellum(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    types = _typed(fields, tree, _all_full, tree.get("sliding_window", 1024))
    shares = rotary_shares(tree, {_FULL: 1.0, _WINDOW: 1.0})
    if set(shares.values()) != {1.0}:
        text = "rotary positions of a part of every head are not supported yet"
        raise ModelError(Finding(text, "rope_parameters", tree.get("rope_parameters"), "leave partial_rotary_factor out"))
    _by_kind(fields, types, shares)
    return {"layer_types", "sliding_window", "rope_parameters", "partial_rotary_factor"} | dense_first(fields, tree)


MELLUM = member(
    "mellum",
    {"query_key_norm": True, "head_dim": 128, "experts": {"renormalise": True}},
    {
        **BIASES, "num_experts": "experts.count", "num_local_experts": "experts.count", "num_experts_per_tok": "experts.top_k",
        "moe_intermediate_size": "experts.mlp", "norm_topk_prob": "experts.renormalise",
    },
    (*REGISTRATION[:5], "mixture.experts", "mixture.router", *REGISTRATION[-2:]),
    stated={"use_sliding_window": (True,), "decoder_sparse_step": (1,)},
    # the module that predicts a further word is in the checkpoint; transformers' class has none
    harmless=ROUTER | words("num_nextn_predict_layers num_mtp_layers mtp_layer_types mtp_mlp_layer_types max_window_layers"),
    adjust=_mellum,
)  # fmt: skip


def _afmoe(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Layers of a window alone have rotary positions; the first ones are dense."""
    every = tree.get("global_attn_every_n_layers")
    types = _typed(fields, tree, _every(int(every or 4)), tree.get("sliding_window", 1024))
    fields |= {"rotary_in_windows": True} if _WINDOW in types else {"position": "none"}
    experts, shared = fields.setdefault("experts", {}), tree.get("num_shared_experts")
    experts["shared"] = int(2 if shared is None else shared) * int(tree.get("moe_intermediate_size") or 1408)
    for many, kept in (("n_group", "topk_group"), ("num_expert_groups", "num_limited_groups")):
        if tree.get(many) not in (None, 1) and tree.get(many) != tree.get(kept):
            raise ModelError(Finding("groups of experts are not supported yet for afmoe", many, tree[many], "1"))
    return set(
        words(
            "layer_types global_attn_every_n_layers sliding_window num_shared_experts n_group topk_group num_expert_groups "
            "num_limited_groups"
        )
    )


AFMOE = member(
    "afmoe",
    {
        "norm_placement": "sandwich", "norm_in_fp32": True, "query_key_norm": True, "query_key_norm_everywhere": True, "head_dim": 128,
        "attention_gate": True,
        "experts": {"router_bias": True, "router_bias_counted": True, "renormalise": True, "dense_layers": 1},
    },
    {
        **BIASES, "num_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "num_dense_layers": "experts.dense_layers",
    },
    (*REGISTRATION[:3], "attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm", "mixture.router", "mixture.shared",
     "mixture.experts", "mlp_up", "mlp_down"),
    stated={"score_func": ("sigmoid",), "route_norm": (True,)},
    harmless=ROUTER | words("route_scale mup_enabled use_grouped_mm load_balance_coeff"),
    adjust=_afmoe,
)  # fmt: skip

FAMILIES = (MIMO_V2, LAGUNA, STEP, GRANITE_SWA, GRANITE_MOE_SWA, MELLUM, AFMOE)
