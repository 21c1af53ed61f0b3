"""Decoders with LayerNorm beyond those of `parsim.model.families.gpt`: GPT-J, CodeGen, GPT-Neo, StarCoder, Falcon, StableLM, Cohere, DBRX.

Structure and key names follow the modelling and configuration files of huggingface/transformers (``src/transformers/models/<model_type>``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.limits import MOST_LAYERS, beyond
from parsim.model.families.family import GROUPED, SIZES, Family, Fields, shortest, words
from parsim.model.families.gpt import GPT2
from parsim.model.families.llama import BIASES, EXPERT_REGISTRATION, REGISTRATION, ROUTER, STRUCTURE
from parsim.model.families.readers import biases, dense_first, dropout_of, interleaved, together, windows

_LAYER_NORM = {**STRUCTURE, "normalisation": "layernorm"}
_PLAIN = {**_LAYER_NORM, "gated": False}
_DEFAULT_HEAD = ("query_key_value", "attention_output", "mlp_up", "mlp_down", "attention_norm", "mlp_norm")
_NORM_FIRST = ("attention_norm", "query_key_value", "attention_output", "mlp_up", "mlp_down")


def _rotated(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """A share of each head from ``rotary_dim``; null: all of it."""
    width = tree.get("rotary_dim", 64)
    fields["rotary_fraction"] = min(1.0, width / (int(fields["hidden"]) / int(fields["heads"]))) if width else 1.0
    return {"rotary_dim"}


GPTJ = Family(
    name="gptj",
    model_type="gptj",
    structure={
        **_PLAIN, "activation": "gelu-new", "mlp_bias": True, "parallel_residual": True, "shared_norm": True, "head_bias": True,
        "rotary_concatenates": True, "maximum_sequence": 2048,
    },
    registration=_NORM_FIRST,
    keys=GPT2.keys,
    harmless=words("n_ctx embd_pdrop scale_attn_weights rotary"),
    adjust=together(_rotated, dropout_of("attn_pdrop")),
)  # fmt: skip
CODEGEN = GPTJ._replace(name="codegen", model_type="codegen", structure={**GPTJ.structure, "fused_query_key_value": True})


def _gpt_neo(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Layers that see all keys or a window: pairs of kinds and how often they repeat."""
    types = tree.get("attention_types")
    kinds: list[str] = list(tree.get("attention_layers") or ()) if types is None else []
    for pair in types or ():
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list) and isinstance(pair[1], int)):
            raise ModelError(
                Finding("must be pairs of kinds and how often they repeat", "attention_types", types, '[[["global", "local"], 12]]')
            )
        if many := beyond(len(pair[0]) * pair[1], MOST_LAYERS, "layers", "attention_types"):
            raise ModelError(many)
        kinds += pair[0] * pair[1]
    kinds = kinds or ["global", "local"] * (int(fields["layers"]) // 2)
    if set(kinds) - {"global", "local"} or len(kinds) != int(fields["layers"]):
        message = f"must say global or local for {fields['layers']} layers, says {len(kinds)} of {', '.join(sorted(map(str, set(kinds))))}"
        raise ModelError(Finding(message, "attention_types", types))
    fields["attention_window"] = int(tree.get("window_size") or 256)
    fields["layer_pattern"] = shortest("".join("*" if kind == "global" else "W" for kind in kinds))
    return {"attention_types", "attention_layers", "window_size"}


GPT_NEO = Family(
    name="gpt-neo",
    model_type="gpt_neo",
    structure={
        **_PLAIN, "activation": "gelu-new", "position": "learned", "mlp_bias": True, "output_bias": True, "tied_embeddings": True,
        "maximum_sequence": 2048, "mlp": 0,
    },
    registration=("attention_norm", "query_key_value", "attention_output", "mlp_norm", "mlp_up", "mlp_down"),
    keys={
        **SIZES, "num_layers": "layers", "num_heads": "heads", "activation_function": "activation", "resid_dropout": "dropout",
    },
    harmless=words("embed_dropout classifier_dropout"),
    adjust=together(_gpt_neo, dropout_of("attention_dropout")),
)  # fmt: skip


def _bigcode(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    many, said = tree.get("multi_query"), tree.get("num_key_value_heads")
    fields["kv_heads"] = (1 if many is not False else 0) if said is None else said
    return {"multi_query", "num_key_value_heads"}


GPT_BIGCODE = GPT2._replace(
    name="gpt-bigcode",
    model_type="gpt_bigcode",
    structure={**GPT2.structure, "activation": "gelu-tanh", "upcast_softmax": True},
    harmless=GPT2.harmless | words(
        "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner validate_runner_input max_batch_size "
        "max_sequence_length pad_key_length pre_allocate_kv_cache"
    ),
    adjust=together(_bigcode, dropout_of("attn_pdrop", 0.1)),
)  # fmt: skip
STARCODER2 = Family(
    name="starcoder2",
    model_type="starcoder2",
    structure={
        **_PLAIN,
        "activation": "gelu-tanh",
        "tied_embeddings": True,
        "query_key_value_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    },
    registration=_DEFAULT_HEAD,
    keys={**GROUPED, "residual_dropout": "dropout"},
    stated={"mlp_type": ("default",), "norm_type": ("layer_norm",)},
    harmless=words("embedding_dropout attention_dropout"),
    adjust=together(windows, biases("use_bias", "query_key_value_bias output_bias mlp_bias", usual=True)),
)


def _falcon(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The three generations: RW (sequential, ALiBi), 7B (one norm, one key head), 40B and 180B (two norms, groups of heads)."""
    new, parallel = bool(tree.get("new_decoder_architecture")), tree.get("parallel_attn") is not False
    heads = tree.get("num_kv_heads") if tree.get("num_kv_heads") is not None else tree.get("n_head_kv")
    norms = tree.get("num_ln_in_parallel_attn")
    fields["kv_heads"] = heads or 0 if new else 0 if tree.get("multi_query") is False else 1
    fields |= {"parallel_residual": new or parallel, "shared_norm": norms == 1 if new else parallel}
    fields["position"] = "alibi" if tree.get("alibi") else "rotary"
    fields |= dict.fromkeys(("query_key_value_bias", "output_bias", "mlp_bias"), bool(tree.get("bias")))
    read = words("new_decoder_architecture parallel_attn num_kv_heads n_head_kv num_ln_in_parallel_attn multi_query alibi bias")
    return {*read, *dropout_of("attention_dropout")(fields, tree)}


FALCON = Family(
    name="falcon",
    model_type="falcon",
    structure={
        **_PLAIN, "activation": "gelu", "fused_query_key_value": True, "tied_embeddings": True, "maximum_sequence": 2048, "mlp": 0,
        "upcast_softmax": False, "parallel_residual": True,
    },
    registration=("query_key_value", "attention_output", "mlp_up", "mlp_down", "attention_norm", "mlp_norm"),
    keys={
        **{key: name for key, name in SIZES.items() if name != "mlp"}, "n_embed": "hidden", "n_layer": "layers", "n_head": "heads",
        "ffn_hidden_size": "mlp", "hidden_dropout": "dropout", "activation": "activation",
    },
    stated={"apply_residual_connection_post_layernorm": (False,)},
    harmless=words("ffn_factor"),
    adjust=_falcon,
    also=("RefinedWeb", "RefinedWebModel"),
)  # fmt: skip


def _stablelm(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    parallel = bool(tree.get("use_parallel_residual"))
    fields |= {"parallel_residual": parallel, "shared_norm": parallel}
    return {"use_parallel_residual"}


STABLELM = Family(
    name="stablelm",
    model_type="stablelm",
    structure={
        **_LAYER_NORM, "rotary_fraction": 0.25, "rotary_concatenates": True, "query_key_norm_over": "heads",
        "query_key_normalisation": "layernorm", "maximum_sequence": 4096,
    },
    registration=("query_key_value", "attention_output", "query_key_norm", "mlp_up", "mlp_down", "attention_norm", "mlp_norm"),
    keys={
        **GROUPED, "use_qkv_bias": "query_key_value_bias", "partial_rotary_factor": "rotary_fraction", "rope_pct": "rotary_fraction",
        "rotary_pct": "rotary_fraction", "qk_layernorm": "query_key_norm", "hidden_dropout": "dropout",
    },
    harmless=words("attention_dropout rotary_scaling_factor norm_bias"),
    adjust=_stablelm,
    also=("stablelm_epoch",),
)  # fmt: skip
PERSIMMON = Family(
    name="persimmon",
    model_type="persimmon",
    structure={
        **_PLAIN, "activation": "relu2", "fused_query_key_value": True, "query_key_value_bias": True, "output_bias": True, "mlp_bias": True,
        "rotary_fraction": 0.5, "rotary_concatenates": True, "query_key_norm": True, "query_key_normalisation": "layernorm",
        "query_key_norm_bias": True,
    },
    registration=REGISTRATION,
    keys={**SIZES, "hidden_act": "activation", "partial_rotary_factor": "rotary_fraction", "qk_layernorm": "query_key_norm",
          "hidden_dropout": "dropout"},
    harmless=words("attention_dropout"),
)  # fmt: skip
_COHERE = {
    **_LAYER_NORM, "norm_bias": False, "parallel_residual": True, "shared_norm": True, "tied_embeddings": True, "scale_logits": True,
    "norm_in_fp32": True, "query_key_norm_over": "heads", "query_key_normalisation": "layernorm",
}  # fmt: skip
COHERE = Family(
    name="cohere",
    model_type="cohere",
    structure=_COHERE,
    registration=("query_key_value", "attention_output", "query_key_norm", "mlp_up", "mlp_down", "attention_norm"),
    keys={**GROUPED, **BIASES, "use_qk_norm": "query_key_norm"},
    stated={"use_parallel_block": (True,), "use_gated_activation": (True,), "use_parallel_embedding": (False, True)},
    harmless=words("attention_dropout logit_scale"),
)


def _cohere2(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    read = interleaved(4096, 4)(fields, tree)
    fields["rotary_in_windows"] = bool(fields["attention_window"])
    if not fields["attention_window"]:
        fields["position"] = "none"
    return read


COHERE2 = COHERE._replace(
    name="cohere2",
    model_type="cohere2",
    stated={**COHERE.stated, "use_qk_norm": (False,), "position_embedding_type": ("rope_gptj",), "rotary_pct": (1, 1.0),
            "order_of_interleaved_layers": ("local_attn_first",)},
    keys={**GROUPED, **BIASES},
    adjust=_cohere2,
)  # fmt: skip


def _cohere2_moe(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Every fourth layer sees all keys, counted behind the first dense ones; those have rotary positions in any case."""
    layers = int(fields["layers"])
    usual_numbers = {"first_k_dense_replace": 0, "sliding_window_pattern": 4, "prefix_dense_sliding_window_pattern": 1}
    numbers = [usual if tree.get(key) is None else tree[key] for key, usual in usual_numbers.items()]
    for key, number in zip(usual_numbers, numbers, strict=True):
        if type(number) is not int or number < (key != "first_k_dense_replace"):
            raise ModelError(Finding(f"must be a number of layers, is {repr(number)[:60]}", key, number, f"{usual_numbers[key]}"))
    first, every, dense_every = numbers
    first = min(first, layers)
    full, window = "full_attention", "sliding_attention"
    usual = [window if (i + 1) % dense_every else full for i in range(first)]
    usual += [window if (i + 1) % every else full for i in range(layers - first)]
    kinds = tree.get("mlp_layer_types") or ["dense"] * first + ["sparse"] * (layers - first)
    read = interleaved(4096, 4)(fields, {**tree, "layer_types": tree.get("layer_types") or usual, "sliding_window_pattern": None})
    fields |= {"rotary_in_windows": bool(fields["attention_window"]), "rotary_in_dense": dense_every == 1}
    experts, width = fields.setdefault("experts", {}), int(fields["mlp"])
    experts |= {"mlp": width, "shared": width * int(tree.get("num_shared_experts") or 0)}
    sigmoid = tree.get("expert_selection_fn") == "sigmoid"
    experts["renormalise"] = sigmoid and tree.get("norm_topk_prob") is not False
    fields["mlp"] = tree.get("prefix_dense_intermediate_size") or width
    if tree.get("rms_norm_eps") is not None:
        fields |= {"normalisation": "rmsnorm", "norm_in_fp32": False}
    if not fields["attention_window"]:
        fields["position"] = "none"
        if "dense" in kinds and dense_every == 1:
            text = "rotary positions in the first dense layers alone are not supported yet"
            raise ModelError(Finding(text, "prefix_dense_sliding_window_pattern", dense_every, "give layer_types with sliding_attention"))
    keys = "first_k_dense_replace sliding_window_pattern prefix_dense_sliding_window_pattern num_shared_experts expert_selection_fn"
    read |= words(f"{keys} norm_topk_prob prefix_dense_intermediate_size rms_norm_eps")
    return read | dense_first(fields, {**tree, "mlp_layer_types": kinds})


COHERE2_MOE = COHERE._replace(
    name="cohere2-moe",
    model_type="cohere2_moe",
    structure={**_COHERE, "head_dim": 128},
    registration=(*COHERE.registration[:-1], "mixture.router", "mixture.experts", "mixture.shared", "attention_norm"),
    keys={**GROUPED, **BIASES, "num_experts": "experts.count", "num_experts_per_tok": "experts.top_k"},
    stated={
        **COHERE.stated, "use_qk_norm": (False,), "shared_expert_combination_strategy": ("average", "sum"),
        "expert_selection_fn": ("softmax", "sigmoid"),
    },
    harmless=COHERE.harmless | ROUTER,
    adjust=_cohere2_moe,
)  # fmt: skip
PHIMOE = Family(
    name="phimoe",
    model_type="phimoe",
    structure=_LAYER_NORM,
    registration=EXPERT_REGISTRATION,
    keys={
        **GROUPED, **BIASES, "num_local_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "lm_head_bias": "head_bias",
        "hidden_dropout": "dropout",
    },
    harmless=ROUTER | words("attention_dropout input_jitter_noise original_max_position_embeddings"),
    adjust=windows,
)  # fmt: skip
ORION = Family(
    name="orion",
    model_type="orion",
    structure=_LAYER_NORM,
    registration=REGISTRATION,
    keys={**GROUPED, **BIASES},
    harmless=words("attention_dropout max_sequence_length"),
)


def _dbrx(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    attention, experts = tree.get("attn_config") or {}, tree.get("ffn_config")
    if not isinstance(experts, Mapping) or not isinstance(attention, Mapping):
        raise ModelError(Finding("ffn_config is required, a mapping", "ffn_config", experts, "take it from the model's own config.json"))
    fields["kv_heads"] = attention.get("kv_n_heads", 1)
    fields["clip_query_key_value"] = attention.get("clip_qkv") is not None
    width = experts.get("ffn_hidden_size", 3584)
    fields["mlp"] = width
    fields["experts"] = {
        "count": experts.get("moe_num_experts", 4), "top_k": experts.get("moe_top_k", 1), "mlp": width,
        "renormalise": experts.get("moe_normalize_expert_weights", 1.0) is not None,
    }  # fmt: skip
    return {"attn_config", "ffn_config", "num_key_value_heads"}


DBRX = Family(
    name="dbrx",
    model_type="dbrx",
    structure={**_LAYER_NORM, "norm_bias": False, "fused_query_key_value": True},
    registration=("attention_norm", "query_key_value", "attention_output", "mlp_norm", "mixture.router", "mixture.experts"),
    keys={
        "d_model": "hidden", "n_heads": "heads", "n_layers": "layers", "max_seq_len": "maximum_sequence", "vocab_size": "vocabulary",
        "resid_pdrop": "dropout", "tie_word_embeddings": "tied_embeddings",
    },
    harmless=ROUTER | words("emb_pdrop"),
    adjust=_dbrx,
)  # fmt: skip

OPENAI_GPT = GPT2._replace(
    name="openai-gpt",
    model_type="openai-gpt",
    structure={**GPT2.structure, "norm_placement": "post", "final_norm": False, "maximum_sequence": 512},
    registration=("query_key_value", "attention_output", "attention_norm", "mlp_up", "mlp_down", "mlp_norm"),
    keys={**GPT2.keys, "afn": "activation"},
    stated={},
    harmless=words("n_ctx embd_pdrop n_special predict_special_tokens"),
)

FAMILIES = (
    GPTJ, CODEGEN, GPT_NEO, GPT_BIGCODE, STARCODER2, FALCON, STABLELM, PERSIMMON, COHERE, COHERE2, COHERE2_MOE, PHIMOE, ORION, DBRX,
    OPENAI_GPT,
)  # fmt: skip
