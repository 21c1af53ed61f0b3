"""Decoders whose layers of attention take turns with gated short convolutions, or with Kimi Delta Attention: LFM2, Kimi Linear.

Structure and key names follow the modelling and configuration files of huggingface/transformers (``src/transformers/models/<model_type>``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.limits import LARGEST_SIZE
from parsim.model.families.family import SIZES, Fields, shortest, words
from parsim.model.families.llama import DEEPSEEK_V3, ROUTER, member
from parsim.model.families.readers import dense_first, groups, together

_LETTERS = {"full_attention": "*", "conv": "M", "linear_attention": "M"}


def _pattern(fields: Fields, types: Any, key: str) -> None:
    layers = int(fields["layers"])
    known = isinstance(types, list) and len(types) == layers and all(isinstance(kind, str) and kind in _LETTERS for kind in types)
    if not known:
        text = f"must say one of {', '.join(_LETTERS)} for each of {layers} layers, is {repr(types)[:60]}"
        raise ModelError(Finding(text, key, types, "take it from the model's own config.json"))
    fields["layer_pattern"] = shortest("".join(_LETTERS[kind] for kind in types))


def _lfm2(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Layers of both kinds; the mixer is as wide as the stream."""
    types, attends = tree.get("layer_types"), tree.get("full_attn_idxs")
    if types is None and attends is not None and not isinstance(attends, list):
        raise ModelError(Finding("must be a list of layers", "full_attn_idxs", attends, "take it from the model's own config.json"))
    layers = range(int(fields["layers"]))
    types = types or ["full_attention" if attends is None or layer in attends else "conv" for layer in layers]
    _pattern(fields, types, "layer_types")
    taps, bias = tree.get("conv_L_cache"), tree.get("conv_bias")
    if "M" in fields["layer_pattern"]:
        fields["mixer"] = {"kind": "convolution", "heads": int(fields["hidden"]), "convolution": 3 if taps is None else taps,
                           "convolution_bias": bool(bias), **_CHANNELS}  # fmt: skip
    for key in (widths := ("block_dim", "conv_dim", "conv_dim_out")):
        if tree.get(key) not in (None, fields["hidden"]):
            text = f"{tree[key]!r} is not hidden_size = {fields['hidden']}: not supported yet"
            raise ModelError(Finding(text, key, tree[key], "leave it out"))
    if (tied := tree.get("tie_embedding")) is not None:  # which transformers puts before tie_word_embeddings
        fields["tied_embeddings"] = bool(tied)
    read = "layer_types full_attn_idxs conv_L_cache conv_bias tie_embedding"
    return {*widths, *words(read)}


def _adjusted(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The width of a gated MLP that has as many weights as one of the width given without a gate, unless the config says it is that."""
    keys = {"block_ff_dim": fields["mlp"], "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256}
    width, share, unit = (usual if tree.get(key) is None else tree[key] for key, usual in keys.items())
    known = (isinstance(number, int | float) and not isinstance(number, bool) and number > 0 for number in (width, share, unit))
    if not all(known) or not isinstance(unit, int) or max(width, share, unit) > LARGEST_SIZE:
        text = f"a width, a share of it and what it is a multiple of, are {width!r}, {share!r} and {unit!r}"
        raise ModelError(Finding(text, "block_ff_dim", tree.get("block_ff_dim"), "take them from the model's own config.json"))
    if tree.get("block_auto_adjust_ff_dim") is not False:
        width = int(2 * width / 3)
        if "block_ffn_dim_multiplier" not in tree or tree["block_ffn_dim_multiplier"] is not None:  # null: as it is
            width = -(-int(share * width) // unit) * unit
    fields["mlp"] = width
    return {*keys, "block_auto_adjust_ff_dim"}


_CHANNELS = {"key_heads": 1, "key_dim": 1, "value_dim": 1, "gate": False}
LFM2 = member(
    "lfm2",
    {"tied_embeddings": True, "query_key_norm": True},
    {"block_ff_dim": "mlp"},
    (
        "query_key_value", "attention_output", "query_key_norm", "mixer_convolution", "mixer_in", "mixer_out", "mlp_up", "mlp_down",
        "mixer_norm", "attention_norm", "mlp_norm",
    ),
    stated={"block_use_swiglu": (True,), "use_pos_enc": (True,)},
    # of files before transformers had the class
    harmless=words(
        "block_mlp_init_scale block_out_init_scale block_norm_eps block_use_xavier_init conv_use_xavier_init num_heads theta"
    ),
    adjust=together(_lfm2, _adjusted),
)  # fmt: skip


def _lfm2_moe(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    experts = fields.setdefault("experts", {})
    experts["router_bias"] = tree.get("use_expert_bias") is not False
    dense = tree.get("num_dense_layers")
    experts["dense_layers"] = 2 if dense is None else dense
    if tree.get("layer_types") is None:
        raise ModelError(Finding("layer_types is required", "layer_types", None, "take it from the model's own config.json"))
    return _lfm2(fields, tree) | {"use_expert_bias", "num_dense_layers"}


LFM2_MOE = LFM2._replace(
    name="lfm2-moe",
    model_type="lfm2_moe",
    structure={**LFM2.structure, "experts": {"renormalise": True}},
    keys={
        **LFM2.keys, "num_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "norm_topk_prob": "experts.renormalise",
    },
    registration=(*LFM2.registration[:-3], "mixture.experts", "mixture.router", *LFM2.registration[-3:]),
    harmless=LFM2.harmless | ROUTER | words("routed_scaling_factor"),
    adjust=_lfm2_moe,
)  # fmt: skip


def _kimi_linear(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Every fifth layer attends where the config is silent; the files beside the weights number layers from 1."""
    layers = int(fields["layers"])
    fields["kv_heads"] = 0
    own = tree.get("linear_attn_config")
    own = own if isinstance(own, Mapping) else {}
    types = tree.get("layer_types")
    if types is None:
        attends, delta = own.get("full_attn_layers"), own.get("kda_layers")
        types = ["full_attention" if layer and layer % 4 == 0 else "linear_attention" for layer in range(layers)]
        if isinstance(attends, list) and isinstance(delta, list):
            if sorted(map(str, [*attends, *delta])) != sorted(map(str, range(1, layers + 1))):
                text = f"full_attn_layers and kda_layers must name each of layers 1 to {layers} once"
                raise ModelError(Finding(text, "linear_attn_config", own, "take it from the model's own config.json"))
            types = ["full_attention" if layer in attends else "linear_attention" for layer in range(1, layers + 1)]
    _pattern(fields, types, "layer_types")
    sizes = {
        name: own.get(inner, tree.get(key, usual))
        for name, inner, key, usual in (
            ("heads", "num_heads", "linear_num_heads", 32),
            ("key_dim", "head_dim", "linear_head_dim", 128),
            ("convolution", "short_conv_kernel_size", "linear_conv_kernel_dim", 4),
        )
    }
    if strange := sorted(set(own) - {"full_attn_layers", "kda_layers", "num_heads", "head_dim", "short_conv_kernel_size"}):
        text = f"{', '.join(strange)}: not supported yet for kimi-linear"
        raise ModelError(Finding(text, "linear_attn_config", own, "leave it out"))
    if "M" in fields["layer_pattern"]:
        fields["mixer"] = {"kind": "kda", **sizes, "gate_bias": False}
    experts, shared = fields.setdefault("experts", {}), tree.get("num_shared_experts", tree.get("n_shared_experts"))
    experts["shared"] = int(1 if shared is None else shared) * int(experts.get("mlp") or 1024)
    count = tree.get("num_expert_group", tree.get("n_group"))
    read = groups(fields, {"n_group": count, "topk_group": tree.get("topk_group")}) | dense_first(fields, tree)
    keys = (
        "linear_attn_config layer_types linear_num_heads linear_head_dim linear_conv_kernel_dim num_shared_experts n_shared_experts "
        "num_expert_group num_key_value_heads"
    )
    return read | set(words(keys))


KIMI_LINEAR = DEEPSEEK_V3._replace(
    name="kimi-linear",
    model_type="kimi_linear",
    structure={
        **DEEPSEEK_V3.structure, "position": "none",
        "experts": {**DEEPSEEK_V3.structure["experts"], "renormalise": True, "dense_layers": 1},
    },
    registration=(
        "mixer_in", "mixer_convolution", "mixer_decay", "mixer_core", "mixer_gate_down", "mixer_gate_up", "mixer_gate_norm", "mixer_out",
        *DEEPSEEK_V3.registration[:-2], "mixer_norm", *DEEPSEEK_V3.registration[-2:],
    ),
    keys={
        **{key: name for key, name in DEEPSEEK_V3.keys.items() if key not in ("n_routed_experts", "moe_layer_freq")},
        **{key: name for key, name in SIZES.items() if key != "max_position_embeddings"},
        "model_max_length": "maximum_sequence", "max_position_embeddings": "maximum_sequence",
        "num_experts": "experts.count", "num_local_experts": "experts.count", "n_routed_experts": "experts.count",
        "num_experts_per_token": "experts.top_k", "moe_renormalize": "experts.renormalise",
    },
    stated={
        "mla_use_nope": (True,), "moe_router_activation_func": ("sigmoid",), "moe_layer_freq": (1,), "use_grouped_topk": (True,),
        "mla_use_output_gate": (False,),
    },
    harmless=DEEPSEEK_V3.harmless | words("head_dim rope_parameters"),
    adjust=_kimi_linear,
)  # fmt: skip

FAMILIES = (LFM2, LFM2_MOE, KIMI_LINEAR)
