"""Decoders whose layers, or some of them, carry a state: RetNet, GLA, Gated DeltaNet, Mamba-2, Qwen3-Next, Nemotron-H, Falcon-H1.

Structure and key names: huggingface/transformers ``models/mamba2``, ``models/qwen3_next``, ``models/nemotron_h``, ``models/falcon_h1``;
fla-org/flash-linear-attention ``fla/models/retnet``, ``gla``, ``gated_deltanet`` and ``fla/layers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import GROUPED, SIZES, Adjust, Family, Fields, shortest, words
from parsim.model.families.llama import BIASES, HARMLESS, ROUTER, STRUCTURE
from parsim.model.families.readers import groups, together

_LAYER_TYPES = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E"}
_MIXER = ("mixer_core", "mixer_convolution", "mixer_in", "mixer_gate_norm", "mixer_out")
_MAMBA = {"key_heads": 8, "key_dim": 128, "convolution": 4, "convolution_bias": True}
_MAMBA_KEYS = {
    "n_groups": "mixer.key_heads", "conv_kernel": "mixer.convolution", "chunk_size": "mixer.chunk",
    "use_conv_bias": "mixer.convolution_bias",
}  # fmt: skip
TIME_STEPS = words("time_step_rank time_step_min time_step_max time_step_floor time_step_limit residual_in_fp32 rescale_prenorm_residual")


def _pattern(types: list[str], key: str) -> str:
    """The words of `types` as letters, said once where they repeat."""
    if strange := sorted(set(types) - set(_LAYER_TYPES)):
        message = f"layers of the kind {' and '.join(strange)} are not supported yet"
        raise ModelError(Finding(message, key, types, f"supported: {', '.join(_LAYER_TYPES)}"))
    return shortest("".join(_LAYER_TYPES[kind] for kind in types))


def _fla_mlp(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The width, or two thirds of ``hidden_ratio`` times the hidden size, rounded up to 256 (fla/modules/mlp.py)."""
    fields["mlp"] = tree.get("intermediate_size")
    if fields["mlp"] is None:
        fields["mlp"] = -(-int(int(fields["hidden"]) * float(tree.get("hidden_ratio") or 4) * 2 / 3) // 256) * 256
    return {"hidden_ratio", "intermediate_size"}


def _expanded(what: str, key_share: float, value_share: float) -> Adjust:
    """A reader of keys and values whose widths are shares of the hidden size, for a mixer called `what`."""

    def read(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
        hidden, heads = int(fields["hidden"]), int(fields["heads"])
        for name, key, usual in (("key_dim", "expand_k", key_share), ("value_dim", "expand_v", value_share)):
            fields.setdefault("mixer", {})[name] = int(hidden * float(tree.get(key, usual))) // heads
        if tree.get("num_kv_heads") not in (None, heads):
            raise ModelError(Finding(f"{what} with shared keys is not supported yet", "num_kv_heads", tree["num_kv_heads"], "leave it out"))
        return {"expand_k", "expand_v", "num_kv_heads"} | _fla_mlp(fields, tree)

    return read


RETNET = Family(
    name="retnet",
    model_type="retnet",
    structure={
        **STRUCTURE, "layer_pattern": "M", "maximum_sequence": 2048, "mixer": {"kind": "retention"},
    },
    registration=("mixer_norm", "mixer_in", "mixer_out", "mixer_gate_norm", "mlp_norm", "mlp_up", "mlp_down"),
    keys={
        **{key: name for key, name in SIZES.items() if key not in ("num_attention_heads", "intermediate_size")},
        "num_heads": "heads mixer.heads", "hidden_act": "activation",
    },
    stated={"attn": (), "feature_map": (), "attn_mode": ("chunk", "fused_chunk"), "use_output_gate": (True,)},
    harmless=words(
        "use_short_conv conv_size elementwise_affine fuse_norm fuse_swiglu fuse_cross_entropy fuse_linear_cross_entropy use_l2warp"
    ),
    adjust=_expanded("retention", 1.0, 2.0),
)  # fmt: skip
_FLA_SWITCHES = words(
    "elementwise_affine fuse_norm fuse_swiglu fuse_cross_entropy fuse_linear_cross_entropy use_l2warp gate_logit_normalizer clamp_min "
    "allow_neg_eigval use_gk"
)
_FLA_REGISTRATION = ("mixer_norm", *_MIXER, "mixer_decay_down", "mixer_decay_up", "mlp_norm", "mlp_up", "mlp_down")
GLA = RETNET._replace(
    name="gla",
    model_type="gla",
    structure={**RETNET.structure, "position": "none", "mixer": {"kind": "gla"}},
    registration=_FLA_REGISTRATION,
    stated={
        "attn": (), "feature_map": (), "attn_mode": ("chunk", "fused_chunk"), "use_output_gate": (True,), "use_short_conv": (False,),
        "use_gv": (False,),
    },
    harmless=_FLA_SWITCHES | words("conv_size"),
    adjust=_expanded("gated linear attention", 0.5, 1.0),
)  # fmt: skip


def _gated_deltanet(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Heads of their own width, values wider by ``expand_v``."""
    heads, size = int(fields["heads"]), int(tree.get("head_dim") or 256)
    values, width = tree.get("num_v_heads"), float(tree.get("expand_v", 2.0)) * size
    if width != int(width):
        raise ModelError(Finding(f"head_dim x expand_v = {width:g} is not whole", "expand_v", tree.get("expand_v"), "use another"))
    fields["head_dim"] = size
    fields.setdefault("mixer", {}).update({"heads": values or heads, "key_heads": heads, "key_dim": size, "value_dim": int(width)})
    return {"head_dim", "expand_v", "num_v_heads"} | _fla_mlp(fields, tree)


GATED_DELTANET = GLA._replace(
    name="gated-deltanet",
    model_type="gated_deltanet",
    structure={**GLA.structure, "mixer": {"kind": "gated-delta", "convolution": 4}},
    keys={**{key: name for key, name in RETNET.keys.items() if key != "num_heads"}, "num_heads": "heads", "conv_size": "mixer.convolution"},
    stated={"attn": (), "attn_mode": ("chunk",), "use_gate": (True,), "use_short_conv": (True,)},
    harmless=_FLA_SWITCHES,
    adjust=_gated_deltanet,
)


def _mamba2(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    heads, size, hidden, expand = fields["heads"], fields.get("head_dim", 64), fields["hidden"], tree.get("expand", 2)
    if heads * size != hidden * expand:
        text = f"num_heads x head_dim = {heads} x {size} = {heads * size} is not expand x hidden_size = {expand} x {hidden}"
        raise ModelError(Finding(text, "num_heads", heads, f"use {hidden * expand // size}"))
    return {"expand"}


MAMBA2 = Family(
    name="mamba2",
    model_type="mamba2",
    structure={
        **STRUCTURE, "position": "none", "layer_pattern": "M", "one_sublayer": True, "head_dim": 64,
        "mixer": {"kind": "mamba2", "value_dim": 64, "chunk": 256, **_MAMBA},
    },
    registration=("mixer_norm", *_MIXER),
    keys={
        "hidden_size": "hidden", "num_hidden_layers": "layers", "vocab_size": "vocabulary", "tie_word_embeddings": "tied_embeddings",
        "num_heads": "heads mixer.heads", "head_dim": "head_dim mixer.value_dim", "state_size": "mixer.key_dim", **_MAMBA_KEYS,
    },
    stated={"use_bias": (False,), "rms_norm": (True,), "norm_before_gate": (True, False), "hidden_act": ("silu",)},
    harmless=TIME_STEPS,
    adjust=_mamba2,
)  # fmt: skip


def _qwen3_next(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    if tree.get("layer_types"):
        fields["layer_pattern"] = _pattern(tree["layer_types"], "layer_types")
    elif tree.get("full_attention_interval"):
        fields["layer_pattern"] = "M" * (int(tree["full_attention_interval"]) - 1) + "*"
    return {"layer_types", "full_attention_interval"}


_DELTA = {"kind": "gated-delta", "heads": 32, "key_heads": 16, "key_dim": 128, "value_dim": 128, "convolution": 4}
QWEN3_NEXT = Family(
    name="qwen3-next",
    model_type="qwen3_next",
    structure={
        **STRUCTURE, "head_dim": 256, "rotary_fraction": 0.25, "query_key_norm": True, "norm_offset": True, "attention_gate": True,
        "layer_pattern": "MMM*", "experts": {"renormalise": True, "shared_gate": True},
        "mixer": _DELTA,
    },
    registration=(
        *_MIXER, "query_key_value", "attention_output", "query_key_norm", "mixture.router", "mixture.experts", "mixture.shared",
        "mlp_up", "mlp_down", "mixer_norm", "attention_norm", "mlp_norm",
    ),
    keys={
        **GROUPED, "num_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "moe_intermediate_size": "experts.mlp",
        "norm_topk_prob": "experts.renormalise", "decoder_sparse_step": "experts.every",
        "shared_expert_intermediate_size": "experts.shared",
        "partial_rotary_factor": "rotary_fraction", "linear_conv_kernel_dim": "mixer.convolution", "linear_key_head_dim": "mixer.key_dim",
        "linear_value_head_dim": "mixer.value_dim", "linear_num_key_heads": "mixer.key_heads", "linear_num_value_heads": "mixer.heads",
    },
    stated={"mlp_only_layers": ([],), "attention_bias": (False,)},
    harmless=HARMLESS | words("router_aux_loss_coef output_router_logits"),
    adjust=_qwen3_next,
)  # fmt: skip


_QWEN35_STATED = {"attention_bias": (False,), "attn_output_gate": (True,), "output_gate_type": ("swish", "silu")}
QWEN35_MOE = QWEN3_NEXT._replace(
    name="qwen3.5-moe",
    model_type="qwen3_5_moe_text",
    structure={
        **QWEN3_NEXT.structure, "mlp": 0, "kv_heads": 2,
        "experts": {"renormalise": True, "shared_gate": True, "count": 256, "top_k": 8, "mlp": 512, "shared": 512},
    },
    registration=(*_MIXER[:2], *_MIXER[3:], "mixer_in", *QWEN3_NEXT.registration[5:]),
    stated={"mlp_only_layers": ([],), **_QWEN35_STATED},
    # the module that predicts a further word is in the checkpoint; transformers' class has none
    harmless=QWEN3_NEXT.harmless | words("mtp_num_hidden_layers mtp_use_dedicated_embeddings mamba_ssm_dtype"),
)  # fmt: skip
QWEN35 = QWEN35_MOE._replace(
    name="qwen3.5",
    model_type="qwen3_5_text",
    structure={**{name: value for name, value in QWEN3_NEXT.structure.items() if name != "experts"}, "kv_heads": 4},
    keys={key: name for key, name in QWEN3_NEXT.keys.items() if not name.startswith("experts.")},
    stated=_QWEN35_STATED,
)


_HYBRID_KEYS = {
    "mamba_n_heads": "mixer.heads", "mamba_n_groups": "mixer.key_heads", "mamba_d_state": "mixer.key_dim",
    "mamba_d_conv": "mixer.convolution", "mamba_chunk_size": "mixer.chunk", "mamba_conv_bias": "mixer.convolution_bias",
}  # fmt: skip


def _inner(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The width of a head of the mixer: given, or what is left of ``mamba_expand`` times the hidden size."""
    return _head_of(fields, tree, int((tree.get("mamba_expand") or 2) * int(fields["hidden"])), "mamba_expand x hidden_size")


def _head_of(fields: Fields, tree: Mapping[str, Any], width: int, of: str) -> set[str]:
    """The width of a head of a mixer that is `width` wide."""
    mixer, size = fields.setdefault("mixer", {}), tree.get("mamba_d_head")
    heads = int(mixer.get("heads") or 128)
    mixer["value_dim"] = width // heads if size in (None, "auto") else size
    if not isinstance(mixer["value_dim"], int) or mixer["value_dim"] * heads != width:
        text = f"mamba_n_heads x mamba_d_head = {heads} x {size} is not {of} = {width}"
        raise ModelError(Finding(text, "mamba_d_head", size, f"use {width // heads}"))
    return {"mamba_d_head", "mamba_expand"}


def _granite_hybrid(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Layers of both kinds; without experts the shared MLP stands alone."""
    types = tree.get("layer_types") or tree.get("layers_block_type")
    if types:
        fields["layer_pattern"] = _pattern(types, "layer_types")
    fields["position"] = "rotary" if tree.get("position_embedding_type") == "rope" else "none"
    shared = tree.get("shared_intermediate_size")
    shared = 1024 if shared is None else shared
    experts = tree.get("num_local_experts")
    if experts == 0:
        fields |= {"mlp": shared, "experts": None}
    else:
        fields.setdefault("experts", {}).update({"shared": shared, "count": 8 if experts is None else experts})
    return {"layer_types", "layers_block_type", "position_embedding_type", "shared_intermediate_size", "num_local_experts"}


GRANITE_HYBRID = Family(
    name="granitemoehybrid",
    model_type="granitemoehybrid",
    structure={
        **STRUCTURE, "scale_residual": True, "scale_logits": True, "layer_pattern": "M", "experts": {"count": 8, "top_k": 2},
        "mixer": {"kind": "mamba2", "heads": 128, **_MAMBA, "key_heads": 1, "key_dim": 256, "value_dim": 64, "chunk": 256},
    },
    registration=(
        "mixer_norm", "attention_norm", "mlp_norm", "mixture.router", "mixture.experts", "mixture.shared", "mlp_up", "mlp_down", *_MIXER,
        "query_key_value", "attention_output",
    ),
    keys={**GROUPED, **BIASES, **_HYBRID_KEYS, "num_experts_per_tok": "experts.top_k"},
    stated={"mamba_proj_bias": (False,), "normalization_function": ("rmsnorm",)},
    harmless=HARMLESS | ROUTER | TIME_STEPS | words("embedding_multiplier logits_scaling residual_multiplier init_method"),
    adjust=together(_inner, _granite_hybrid),
)  # fmt: skip


def _bamba(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    attends, layers = tree.get("attn_layer_indices") or [], int(fields["layers"])
    fields["layer_pattern"] = shortest("".join("*" if layer in attends else "M" for layer in range(layers)))
    if not attends:
        fields["position"] = "none"
    return {"attn_layer_indices", "layer_types", "layers_block_type"}


BAMBA = Family(
    name="bamba",
    model_type="bamba",
    structure={**STRUCTURE, "rotary_fraction": 0.5, "rotary_concatenates": True, "mixer": GRANITE_HYBRID.structure["mixer"]},
    registration=("mlp_up", "mlp_down", "mixer_norm", "attention_norm", "mlp_norm", *_MIXER, "query_key_value", "attention_output"),
    keys={**GROUPED, **BIASES, **_HYBRID_KEYS, "mlp_bias": "mlp_bias"},
    stated={"mamba_proj_bias": (False,)},
    harmless=HARMLESS | TIME_STEPS | words("num_logits_to_keep z_loss_coefficient attn_rotary_emb"),
    adjust=together(_inner, _bamba),
)


def _nemotron_h(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    types, pattern = tree.get("layers_block_type") or tree.get("layer_types"), tree.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        fields["layer_pattern"] = pattern
    elif types:
        fields["layer_pattern"] = _pattern(types, "layers_block_type")
    if fields.get("layer_pattern"):
        fields.setdefault("layers", len(pattern or types or ()))
    if "E" not in fields.get("layer_pattern", ""):
        fields["experts"] = None  # keys of experts are written all the same
    else:
        shared = tree.get("n_shared_experts", 1) or 0
        fields.setdefault("experts", {})["shared"] = (tree.get("moe_shared_expert_intermediate_size") or 7688) * min(shared, 1)
        groups(fields, tree)
    return set(
        words(
            "layers_block_type layer_types hybrid_override_pattern n_shared_experts moe_shared_expert_intermediate_size n_group topk_group"
        )
    )


def _falcon_h1(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The mixer is ``mamba_d_ssm`` wide, or as wide as ``mamba_expand`` says where that is null."""
    width = tree.get("mamba_d_ssm", 1024)
    read = _inner(fields, tree) if width is None else _head_of(fields, tree, int(width), "mamba_d_ssm")
    return read | {"mamba_d_ssm"}


FALCON_H1 = Family(
    name="falcon-h1",
    model_type="falcon_h1",
    structure={
        **STRUCTURE, "layer_pattern": "H", "scale_residual": True, "scale_logits": True, "scale_projections": True,
        "mixer": {**GRANITE_HYBRID.structure["mixer"], "gate_norm": False},
    },
    registration=("mlp_up", "mlp_down", *_MIXER, "query_key_value", "attention_output", "attention_norm", "mlp_norm"),
    keys={**GROUPED, **BIASES, **_HYBRID_KEYS, "mlp_bias": "mlp_bias", "mamba_rms_norm": "mixer.gate_norm"},
    stated={"mamba_proj_bias": (False,), "projectors_bias": (False,)},
    harmless=HARMLESS | TIME_STEPS | words(
        "attention_in_multiplier attention_out_multiplier embedding_multiplier key_multiplier lm_head_multiplier mlp_multipliers "
        "ssm_in_multiplier ssm_multipliers ssm_out_multiplier mamba_norm_before_gate mamba_use_mlp num_logits_to_keep "
        "mlp_expansion_factor layer_types layers_block_type"
    ),
    adjust=_falcon_h1,
)  # fmt: skip
NEMOTRON_H = Family(
    name="nemotron-h",
    model_type="nemotron_h",
    structure={
        **STRUCTURE, "position": "none", "gated": False, "activation": "relu2", "one_sublayer": True, "layer_pattern": "M-M-M-M*-",
        "head_dim": 128, "mixer": {"kind": "mamba2", "heads": 128, "value_dim": 64, "chunk": 128, **_MAMBA}, "layers": 0,
    },
    registration=(
        "mixer_norm", "attention_norm", "mlp_norm", *_MIXER, "query_key_value", "attention_output", "mixture.experts", "mixture.router",
        "mixture.shared", "mlp_up", "mlp_down",
    ),
    keys={
        **{key: name for key, name in GROUPED.items() if key != "hidden_act"}, "attention_head_dim": "head_dim",
        "mlp_hidden_act": "activation", "ssm_state_size": "mixer.key_dim", "mamba_num_heads": "mixer.heads",
        "mamba_head_dim": "mixer.value_dim", **_MAMBA_KEYS, "n_routed_experts": "experts.count", "num_experts_per_tok": "experts.top_k",
        "moe_intermediate_size": "experts.mlp", "norm_topk_prob": "experts.renormalise", "moe_latent_size": "experts.latent",
    },
    stated={
        "mamba_hidden_act": ("silu",), "mamba_proj_bias": (False,), "mlp_bias": (False,), "attention_bias": (False,), "use_bias": (False,),
        "sliding_window": (), "hidden_dropout": (0.0,),
    },
    # the modules that predict further words are in the checkpoint; transformers' class has none
    harmless=TIME_STEPS | words(
        "attention_dropout expand mamba_ssm_cache_dtype num_logits_to_keep use_mamba_kernels moe_shared_expert_overlap "
        "mtp_layers_block_type num_nextn_predict_layers partial_rotary_factor"
    ),
    adjust=_nemotron_h,
)  # fmt: skip

FAMILIES = (
    RETNET,
    GLA,
    GATED_DELTANET,
    MAMBA2,
    QWEN3_NEXT,
    QWEN35,
    QWEN35_MOE,
    GRANITE_HYBRID,
    BAMBA,
    FALCON_H1,
    NEMOTRON_H,
)
