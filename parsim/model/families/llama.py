"""Decoders with RMSNorm and a gated MLP: Llama, Mistral, Qwen, Gemma, Phi-3.

Structure and key names follow the modelling and configuration files of huggingface/transformers
(``src/transformers/models/<model_type>``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import GROUPED, Family, Fields

STRUCTURE: dict[str, Any] = {
    "normalisation": "rmsnorm",
    "position": "rotary",
    "activation": "silu",
    "gated": True,
    "query_key_value_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "fused_query_key_value": False,
    "attention_dropout": False,
    "upcast_softmax": True,
}
REGISTRATION = ("query_key_value", "attention_output", "query_key_norm", "mlp_up", "mlp_down", "attention_norm", "mlp_norm")
HARMLESS = frozenset({"attention_dropout", "max_sequence_length", "rope_interleaved", "partial_rotary_factor"})


def windows(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Sliding windows: ``sliding_window`` with ``use_sliding_window``, ``max_window_layers`` and ``layer_types``."""
    window = int(tree.get("sliding_window") or tree.get("sliding_window_size") or 0)
    types = tree.get("layer_types")
    if not tree.get("use_sliding_window", True) or (types and set(types) == {"full_attention"}):
        window = 0
    if window and tree.get("max_window_layers") is not None:
        message = "full attention in the first layers and a sliding window in the rest is not supported yet"
        raise ModelError(Finding(message, "max_window_layers", tree["max_window_layers"], "set use_sliding_window: false"))
    fields["attention_window"] = window
    if window and types:
        fields["full_attention_every"] = _full_every(types)
    return {"sliding_window", "sliding_window_size", "use_sliding_window", "max_window_layers", "layer_types"}


def _full_every(types: list[str]) -> int:
    """The n for which every n-th entry, and no other, is ``full_attention``; 0 = none."""
    every = types.index("full_attention") + 1 if "full_attention" in types else 0
    expected = ["full_attention" if every and (layer + 1) % every == 0 else "sliding_attention" for layer in range(len(types))]
    if types != expected:
        raise ModelError(Finding("this order of layer types is not supported yet", "layer_types", types, "every n-th layer full is"))
    return every


LLAMA = Family(
    name="llama",
    model_type="llama",
    structure={**STRUCTURE, "maximum_sequence": 2048},
    registration=REGISTRATION,
    keys={**GROUPED, "attention_bias": "query_key_value_bias output_bias", "mlp_bias": "mlp_bias"},
    harmless=HARMLESS,
)

MISTRAL = Family(
    name="mistral", model_type="mistral", structure=STRUCTURE, registration=REGISTRATION, keys=GROUPED, harmless=HARMLESS, adjust=windows
)

QWEN2 = Family(
    name="qwen2",
    model_type="qwen2",
    structure={**STRUCTURE, "query_key_value_bias": True},
    registration=REGISTRATION,
    keys=GROUPED,
    harmless=HARMLESS | {"use_mrope"},
    adjust=windows,
)

QWEN3 = Family(
    name="qwen3",
    model_type="qwen3",
    structure={**STRUCTURE, "query_key_norm": True, "head_dim": 128},
    registration=REGISTRATION,
    keys={**GROUPED, "attention_bias": "query_key_value_bias output_bias"},
    harmless=HARMLESS,
    adjust=windows,
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


_GEMMA = {**STRUCTURE, "activation": "gelu-tanh", "tied_embeddings": True, "head_dim": 256, "norm_offset": True}
_CAUSAL = {"use_bidirectional_attention": (False,)}

GEMMA = Family(
    name="gemma",
    model_type="gemma",
    structure=_GEMMA,
    registration=REGISTRATION,
    keys={**GROUPED, "attention_bias": "query_key_value_bias output_bias"},
    stated=_CAUSAL,
    harmless=HARMLESS,
    adjust=_gemma,
)

GEMMA2 = Family(
    name="gemma2",
    model_type="gemma2",
    structure={
        **_GEMMA,
        "norm_placement": "sandwich",
        "attention_window": 4096,
        "full_attention_every": 2,
        "softcap_attention": True,
        "softcap_logits": True,
    },
    registration=(
        "query_key_value",
        "attention_output",
        "mlp_up",
        "mlp_down",
        "attention_norm",
        "attention_output_norm",
        "mlp_norm",
        "mlp_output_norm",
    ),
    keys={**GROUPED, "attention_bias": "query_key_value_bias output_bias"},
    stated=_CAUSAL,
    harmless=HARMLESS | {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "cache_implementation"},
    adjust=_gemma2,
)

PHI3 = Family(
    name="phi3",
    model_type="phi3",
    structure={**STRUCTURE, "fused_query_key_value": True, "fused_gate_up": True, "rotary_concatenates": True},
    registration=("attention_output", "query_key_value", "mlp_up", "mlp_down", "attention_norm", "mlp_norm"),
    keys={
        **GROUPED,
        "attention_bias": "query_key_value_bias output_bias",
        "resid_pdrop": "dropout",
        "partial_rotary_factor": "rotary_fraction",
    },
    harmless=HARMLESS | {"embd_pdrop", "original_max_position_embeddings"},
    adjust=windows,
)

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, PHI3)
